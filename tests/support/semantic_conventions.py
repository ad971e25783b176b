"""OpenTelemetry's semantic conventions, read from the package that holds their names and values.

Of a name it has no type and of a span no list, and of GenAI's it says that they have moved to a release of their own,
whose tables are restated here: what a span of an operation has to tell, and the form of messages.
"""

import ast
import inspect
import pkgutil
import re
from functools import cache
from importlib import import_module
from itertools import pairwise
from typing import Any

from jsonschema_rs import validator_for
from opentelemetry.semconv import attributes
from opentelemetry.semconv._incubating import attributes as incubating

REPLACED = ("Deprecated: Replaced", "Deprecated: Removed")
# No convention names the cost yet. Langfuse and others read this one.
BESIDE = {"gen_ai.usage.cost": float}
OF_EVERY_CALL = {"gen_ai.operation.name", "gen_ai.conversation.id", "gen_ai.agent.name"}
OF_MODELS = {"gen_ai.provider.name", "gen_ai.request.model", "gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens"}
TOLD = {
    "invoke_agent": OF_EVERY_CALL | OF_MODELS,
    "chat": OF_EVERY_CALL
    | OF_MODELS
    | {
        "gen_ai.response.finish_reasons",
        "gen_ai.response.id",
        "gen_ai.response.model",
        "server.address",
        "server.port",
    },
    "execute_tool": OF_EVERY_CALL
    | {"gen_ai.tool.name", "gen_ai.tool.call.id", "gen_ai.tool.description", "gen_ai.tool.type"},
}
KINDS = {"invoke_agent": "INTERNAL", "chat": "CLIENT", "execute_tool": "INTERNAL"}
TYPES = {
    "gen_ai.request.stream": bool,
    "gen_ai.response.finish_reasons": list,
    "http.response.status_code": int,
    "server.port": int,
    **BESIDE,
}
FINISH_REASONS = frozenset({"stop", "length", "content_filter", "tool_call", "compaction", "error"})


def _part(of: str, **fields: Any) -> dict[str, Any]:
    required = [name for name in ("content", "name", "response") if name in fields]
    return {"type": "object", "required": ["type", *required], "properties": {"type": {"const": of}, **fields}}


TEXT = {"type": "string"}
TEXT_PART = _part("text", content=TEXT)
PARTS = [
    TEXT_PART,
    _part("reasoning", content=TEXT),
    _part("tool_call", id={"type": ["string", "null"]}, name=TEXT, arguments={"type": "object"}),
    _part("tool_call_response", id={"type": ["string", "null"]}, response={}),
]
ROLE = {"enum": ["system", "user", "assistant", "tool"]}
MESSAGE = {
    "type": "object",
    "required": ["role", "parts"],
    "properties": {"role": ROLE, "parts": {"type": "array", "items": {"oneOf": PARTS}}},
}
MESSAGES = validator_for({"type": "array", "items": MESSAGE})
INSTRUCTIONS = validator_for({"type": "array", "items": TEXT_PART})


@cache
def known() -> dict[str, frozenset[str]]:
    """The names in force, each with its values if it has only some."""
    found: dict[str, frozenset[str]] = {}
    for package in (attributes, incubating):
        for module in pkgutil.iter_modules(package.__path__):
            body = ast.parse(inspect.getsource(import_module(f"{package.__name__}.{module.name}"))).body
            names = {}
            for told, text in pairwise([*body, ast.Pass()]):
                if isinstance(told, ast.AnnAssign) and not _text(text).startswith(REPLACED):
                    names[ast.unparse(told.target)] = str(ast.literal_eval(told.value or ast.Constant("")))
                if isinstance(told, ast.ClassDef):
                    constant = re.sub("(?<!^)([A-Z])", r"_\1", told.name.removesuffix("Values")).upper()
                    found[names.get(constant, "")] = _values(told)
            found = dict.fromkeys(names.values(), frozenset[str]()) | found
    return found


def faults(name: str, value: Any) -> list[str]:
    """What the conventions have against an attribute."""
    if name.startswith("segue."):
        return []
    if name not in known() and name not in BESIDE:
        return [f"{name} is no name of theirs"]
    wanted = TYPES.get(name, int if name.endswith("_tokens") else str)
    if type(value) is not wanted:
        return [f"{name} is {value!r}, which is no {wanted.__name__}"]
    values = FINISH_REASONS if wanted is list else known().get(name, frozenset())
    if not values or "_OTHER" in values:  # such a list is open
        return []
    told = set(value) if isinstance(value, list) else {value}
    return [] if told <= values else [f"{name} is {value!r}, which is none of {sorted(values)}"]


def _text(node: ast.stmt) -> str:
    match node:
        case ast.Expr(ast.Constant(str(text))):
            return text.strip()
        case _:
            return ""


def _values(of: ast.ClassDef) -> frozenset[str]:
    return frozenset(str(ast.literal_eval(each.value)) for each in of.body if isinstance(each, ast.Assign))
