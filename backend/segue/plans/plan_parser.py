"""Parses the plan in a model's answer into steps, and resolves the references in their arguments. Pure.

Tolerant of the form, strict about the content: ids and statuses are ours, tools must exist, references point backwards,
or there is no plan. `{"$from": 1, "path": "emails[0].id"}` is the value in step 1's result at that JMESPath.
"""

import difflib
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import islice
from typing import Any, TypeVar

import orjson
from pydantic import BaseModel, Field, ValidationError, field_validator, model_validator

from segue.domain.plan import MAX_STEPS, Step

REFERENCE = "$from"
MAX_DESCRIPTION_CHARS = 300
MAX_TEXT_CHARS = 50_000
MAX_DEPTH = 64
MAX_CANDIDATES = 100
MAX_BYTES = 1_000_000  # of the arguments of a step, about what a model can write itself
_OPENING = re.compile(r"[{\[]")
_STRING = r'"(?:[^"\\]|\\(?:.|\Z))*(?:"|\Z)'  # an open one ends with the text
_TOKEN = re.compile(rf"{_STRING}|[{{}}\[\]]", re.DOTALL)
_TRAILING_COMMA = re.compile(rf"({_STRING})|,(?=\s*[}}\]])", re.DOTALL)
Shape = TypeVar("Shape", bound=BaseModel)
AtPath = Callable[[Any, str], Awaitable[Any]]
_NO_TOOL = frozenset({"", "none", "null", "no_tool", "answer"})


class DraftStep(BaseModel):
    """A step as the model writes it; its id serves only the model's references."""

    id: int | str | None = None
    description: str = Field(min_length=1)
    tool: str | None = None
    args: dict[str, Any] | None = None
    requires_confirmation: bool = False

    @field_validator("tool", mode="before")
    @classmethod
    def _no_tool(cls, value: object) -> object:
        return None if isinstance(value, str) and value.strip().casefold() in _NO_TOOL else value

    @field_validator("args", mode="before")
    @classmethod
    def _read_args(cls, value: object) -> object:
        """Reads arguments that come as JSON text: a strict schema has no other way for an object of any form."""
        text = value.strip() if isinstance(value, str) else None
        if text in ("", "null"):
            return None
        return next(find_json(text), value) if text and text.startswith("{") else value

    @field_validator("requires_confirmation", mode="before")
    @classmethod
    def _absent(cls, value: object) -> object:
        return value is not None and value


class Draft(BaseModel):
    steps: list[DraftStep]

    @model_validator(mode="before")
    @classmethod
    def _listed(cls, value: object) -> object:
        return {"steps": value} if isinstance(value, list) else value


def parse_plan(text: str, *, tools: Collection[str], done: int = 0) -> tuple[Step, ...]:
    """Returns the steps of the first JSON object in the text that is a plan; none if one of them cannot be used. `done`
    steps come before these, which count on from there and may refer to them. At most MAX_STEPS in all are kept.
    """
    found = first_object(text, Draft)
    drafts = found.steps[: MAX_STEPS - done] if found else []
    called = [str(draft.id if draft.id is not None else index) for index, draft in enumerate(drafts, start=done + 1)]
    counted = Counter(called)
    # Our id by the model's; 0 for one that the model gave twice, which cannot be referred to.
    ours = {name: index if counted[name] == 1 else 0 for index, name in enumerate(called, start=done + 1)}
    numbers = {str(index): index for index in range(1, done + 1)} | ours
    steps = []
    for index, draft in enumerate(drafts, start=done + 1):
        tool = _known_tool(draft.tool, tools) if draft.tool else None
        if draft.tool and tool is None:
            return ()
        args = _renumbered(draft.args, numbers) if tool else None
        if not all(0 < each < index for each in referred_to(args)):
            return ()
        description = " ".join(draft.description.split())[:MAX_DESCRIPTION_CHARS]
        steps.append(Step(index, description, tool, args, requires_confirmation=draft.requires_confirmation))
    return tuple(steps)


def _known_tool(name: str, tools: Collection[str]) -> str | None:
    """Returns the tool of this name, else the only one of this name behind a prefix, else the closest name."""
    if name in tools:
        return name
    suffixed = [tool for tool in tools if tool.endswith(f"_{name}")]
    if len(suffixed) == 1:
        return suffixed[0]
    return next(iter(difflib.get_close_matches(name, tools, n=1, cutoff=0.85)), None)


def _renumbered(value: Any, numbers: Mapping[str, int]) -> Any:
    """Returns the same arguments with references by our ids, 0 for a step that there is none of."""
    if isinstance(value, dict) and REFERENCE in value:
        return {**value, REFERENCE: numbers.get(str(value[REFERENCE]), 0)}
    if isinstance(value, dict):
        return {key: _renumbered(item, numbers) for key, item in value.items()}
    return [_renumbered(item, numbers) for item in value] if isinstance(value, list) else value


class Unresolved(Exception):
    """A reference to a step without a result, or to too much; the text says which."""


class _NoValue(Exception):
    """A reference whose path leads to nothing."""


async def resolve(args: Mapping[str, Any] | None, results: Mapping[int, Any], *, at_path: AtPath) -> dict[str, Any]:
    """Returns plain arguments, without those whose references lead to nothing. Raises Unresolved, and as `at_path`."""
    resolved: dict[str, Any] = {}
    for name, value in (args or {}).items():
        with suppress(_NoValue):
            resolved[name] = await _resolved(value, results, at_path)
    if _is_large(resolved):
        raise Unresolved(f"its arguments are over {MAX_BYTES // 10**6} MB: refer to a part of a result by a path")
    return resolved


def _is_large(value: Any) -> bool:
    """Returns whether a value is over MAX_BYTES, without writing it: a thousand references may lead to one result."""
    left, unseen = MAX_BYTES, [value]
    while unseen and left > 0:
        match unseen.pop():
            case str() as text:
                left -= len(text)
            case dict() as members:
                unseen += (*members, *members.values())
            case list() as items:
                unseen += items
        left -= 4
    return left <= 0


def referred_to(value: Any) -> set[int]:
    """Returns the ids of the steps whose results these arguments refer to."""
    if isinstance(value, dict) and REFERENCE in value:
        return {value[REFERENCE]} if isinstance(value[REFERENCE], int) else set()
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return set().union(*map(referred_to, items))


def missing(args: Mapping[str, Any], schema: Mapping[str, Any], planned: Iterable[str] = ()) -> list[str]:
    """Returns the names of required and planned arguments that are absent: without them it would be another call."""
    return [name for name in dict.fromkeys((*schema.get("required", ()), *planned)) if name not in args]


async def _resolved(value: Any, results: Mapping[int, Any], at_path: AtPath) -> Any:
    match value:
        case dict() if REFERENCE in value:
            step, path = value[REFERENCE], value.get("path")
            if not isinstance(step, int) or step not in results:
                raise Unresolved(f"step {step} has no result to refer to")
            found = await at_path(results[step], str(path or ""))
            if found is None and path:
                listing = re.split(r"\W", str(path), maxsplit=1)[0] or "@"
                if await at_path(results[step], f"{listing} == `[]`"):
                    raise Unresolved(f"step {step} has found nothing: there is no {path} in its result")
                raise _NoValue
            return found
        case dict():
            return {key: await _resolved(item, results, at_path) for key, item in value.items()}
        case list():
            return [await _resolved(item, results, at_path) for item in value]
        case _:
            return value


def first_object(text: str, shape: type[Shape]) -> Shape | None:
    """Returns the first JSON object in a model's text that has this shape; None if there is none."""
    for value in find_json(text):
        with suppress(ValidationError):
            return shape.model_validate(value)
    return None


def find_json(text: str) -> Iterator[Any]:
    """Yields the outermost {…} and […] of a text that parse as JSON, of the first 100."""
    for candidate in islice(_balanced(text), MAX_CANDIDATES):
        for attempt in (candidate, _TRAILING_COMMA.sub(r"\1", candidate)):
            with suppress(orjson.JSONDecodeError):
                yield orjson.loads(attempt)
                break


def _balanced(text: str) -> Iterator[str]:
    """Yields the outermost brackets with what is in them, unless nested too deep. Brackets in strings do not count."""
    text, at = text[:MAX_TEXT_CHARS], 0
    while opening := _OPENING.search(text, at):
        depth = deepest = 0
        for token in _TOKEN.finditer(text, opening.start()):
            depth += {"{": 1, "[": 1, "}": -1, "]": -1}.get(token.group()[0], 0)
            deepest = max(deepest, depth)
            if depth == 0:
                break
        else:
            return
        if deepest <= MAX_DEPTH:
            yield text[opening.start() : token.end()]
        at = token.end()
