"""The tools of a request as any endpoint takes them: names, descriptions and schemas that fit. Pure.

One tool that an endpoint refuses would stop every message of every session that has it.
"""

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from langchain_core.language_models import BaseChatModel, LanguageModelInput
from langchain_core.messages import AIMessage
from langchain_core.runnables import Runnable

from segue.agent.llm.reply import MAX_NAME_CHARS, NOT_IN_A_NAME, ToolChoiceMode
from segue.agent.llm.tool_schemas import Bounds, acceptable_schema
from segue.agent.untrusted import neutralised
from segue.domain.tool import ToolSpec
from segue.tools.normalize import clean_text
from segue.tools.summaries import shortened

MAX_TOOLS: Final = 128  # that all endpoints take
MAX_KNOWN: Final = 1000
MAX_BOUND_SETS: Final = 64

_FITTING_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_HASH_CHARS: Final = 8


@dataclass(frozen=True, slots=True)
class OfferedTools:
    """OpenAI's form of the tools, and their own names by the names they are offered under."""

    functions: tuple[dict[str, Any], ...]
    names: Mapping[str, str]


class ToolOffers:
    """Makes tools fit, each once: a schema takes a third of a millisecond, and the tools of requests change often."""

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self._known: dict[str, tuple[ToolSpec, dict[str, Any]]] = {}

    def of(self, tools: Iterable[ToolSpec]) -> OfferedTools:
        """Returns the tools as they are offered, in their order."""
        names: dict[str, str] = {}
        functions: list[dict[str, Any]] = []
        for tool in tools:
            offered, tries = offered_name(tool.name), 0
            while offered in names:
                tries += 1
                offered = _with_hash(tool.name, f"{tool.name}/{tries}")
            names[offered] = tool.name
            functions.append({"type": "function", "function": {"name": offered, **self._fitting(tool)}})
        return OfferedTools(tuple(functions), names)

    def _fitting(self, tool: ToolSpec) -> dict[str, Any]:
        known = self._known.get(tool.name)
        if known is not None and known[0] == tool:
            return known[1]
        if len(self._known) >= MAX_KNOWN:
            self._known.clear()
        fitting = {
            "description": shortened(neutralised(clean_text(tool.description)), self._bounds.description_chars),
            "parameters": acceptable_schema(tool.input_schema, self._bounds),
        }
        self._known[tool.name] = (tool, fitting)
        return fitting


@dataclass(frozen=True, slots=True)
class ToolBound:
    """A model with tools, and their own names by those they are offered under."""

    runnable: Runnable[LanguageModelInput, AIMessage]
    names: Mapping[str, str]


class ToolBindings:
    """Binds tools to a model, each distinct set once."""

    def __init__(self, model: BaseChatModel, bounds: Bounds) -> None:
        self._model = model
        self._offers = ToolOffers(bounds)
        self._known: dict[tuple[object, ...], tuple[tuple[ToolSpec, ...], ToolBound]] = {}

    def of(self, tools: tuple[ToolSpec, ...], *, tool_choice: ToolChoiceMode) -> ToolBound:
        if not tools:
            return ToolBound(self._model, {})
        key = (tool_choice, *(tool.name for tool in tools))
        known = self._known.get(key)
        if known is not None and known[0] == tools:
            return known[1]
        if len(self._known) >= MAX_BOUND_SETS:
            self._known.clear()
        offered = self._offers.of(tools)
        runnable = self._model.bind_tools(
            offered.functions, **({} if tool_choice == "auto" else {"tool_choice": tool_choice})
        )
        self._known[key] = (tools, ToolBound(runnable, offered.names))
        return self._known[key][1]


@lru_cache(1024)
def offered_name(name: str) -> str:
    """Returns the name that a tool is offered under and its calls are shown with: its own, if that may be sent."""
    return name if _FITTING_NAME.fullmatch(name) else _with_hash(name, name)


def _with_hash(name: str, hashed: str) -> str:
    digest = hashlib.sha256(hashed.encode(errors="replace")).hexdigest()[:_HASH_CHARS]
    return f"{NOT_IN_A_NAME.sub('_', name)[: MAX_NAME_CHARS - _HASH_CHARS - 1]}_{digest}"
