"""Whether arguments fit a tool's input schema. Both come from outside, so patterns run in linear time, references are
counted before they are followed, and only a cheap error is explained. jsonschema-rs, 3 MB, is imported at first use.
"""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

import orjson

from segue.domain.errors import InvalidRequest
from segue.domain.tool import Tool, ToolFailed, ToolRetry
from segue.log import log

if TYPE_CHECKING:
    from jsonschema_rs import Validator

MAX_CLIENT_SCHEMA_BYTES: Final = 32_000
ANY_OBJECT: Final = '{"type":"object"}'
MAX_EXPANSION: Final = 100_000  # subschemas, each counted as often as references lead to it
MAX_EXPLAINED_DEPTH: Final = 6
_TOLD_CHARS = 200
_DEFINITIONS = ("$defs", "definitions")  # counted where a reference leads into them
_MAX_ODD_PATTERNS = 100
_DRAFTS: Final = ("draft-04", "draft-06", "draft-07", "draft/2019-09", "draft/2020-12")
REFERENCES: Final = ("$ref", "$dynamicRef", "$recursiveRef")


class UnfitSchema(ValueError):
    """A schema that arguments cannot be checked by; the message says why."""


class InputSchema:
    """A compiled schema. Raises UnfitSchema for one that is invalid, refers to elsewhere, or would take too long."""

    def __init__(self, schema: Mapping[str, Any], *, tool: str) -> None:
        expansion, self._is_recursive = _expansion(schema)
        if expansion > MAX_EXPANSION:
            raise UnfitSchema(f"its references lead to over {MAX_EXPANSION} subschemas")
        self._validator = _compiled(orjson.loads(orjson.dumps(schema)), tool)

    def faults(self, args: Any) -> list[str]:
        """Returns what is wrong with the arguments, at most five things, or nothing if they fit."""
        if self._validator.is_valid(args):
            return []
        # With references that lead back, all ways through them are tried, which doubles with each level.
        if self._is_recursive and _depth(args) > MAX_EXPLAINED_DEPTH:
            return ["$: they do not fit its input schema"]
        found = islice(self._validator.iter_errors(args), 5)
        return [f"{_path(fault.instance_path)}: {fault.message[:_TOLD_CHARS]}" for fault in found]


def check_args(tool: Tool, args: dict[str, Any]) -> None:
    """Raises ToolRetry with the arguments that are wrong, ToolFailed if the schema itself cannot be used."""
    if faults := faults_of(tool, args):
        raise ToolRetry(f"Invalid arguments for {tool.spec.name}: {'; '.join(faults)}. Correct them and call again.")


def faults_of(tool: Tool, args: dict[str, Any]) -> list[str]:
    """Returns what is wrong with the arguments, each fault behind its path. Raises ToolFailed as `check_args`."""
    name = tool.spec.name
    try:
        return _schema(name, orjson.dumps(tool.spec.input_schema)).faults(args)
    except (ValueError, TypeError) as unfit:
        raise ToolFailed(f"The input schema of {name} cannot be used: {unfit}") from unfit


def accepts(tool: Tool, args: dict[str, Any]) -> bool:
    """Whether a call with these arguments would reach the tool."""
    with suppress(ToolFailed):
        return not faults_of(tool, args)
    return False


def faults_by(schema: str, value: object) -> list[str]:
    """Returns what is wrong with a value by a schema in JSON text. Raises UnfitSchema if the schema cannot be used."""
    return _schema("", schema.encode()).faults(value)


async def schema_text(schema: dict[str, Any]) -> str:
    """Returns a client's schema for TurnOptions. Raises AppError `invalid_request` if it can check no answer."""
    text = orjson.dumps(schema).decode()
    if len(text.encode()) > MAX_CLIENT_SCHEMA_BYTES:
        raise InvalidRequest(f"The schema of the answer has more than {MAX_CLIENT_SCHEMA_BYTES} bytes.")
    try:
        await asyncio.to_thread(faults_by, text, None)
    except UnfitSchema as unfit:
        raise InvalidRequest(f"No answer can be checked by the schema: {unfit}.") from unfit
    return text


@lru_cache(maxsize=512)
def _schema(tool: str, schema: bytes) -> InputSchema:
    return InputSchema(orjson.loads(schema), tool=tool)


def _compiled(schema: Any, tool: str) -> "Validator":
    """May change `schema`: a pattern that has no linear form is left out of the check, the tool stays."""
    import jsonschema_rs  # noqa: PLC0415 (see above)

    linear = jsonschema_rs.RegexOptions()
    if not isinstance(schema, dict):
        raise UnfitSchema("it is no JSON object")
    if not str(schema.get("$schema", "")).rstrip("#").endswith(tuple(f"{draft}/schema" for draft in _DRAFTS)):
        schema.pop("$schema", None)
    for _ in range(_MAX_ODD_PATTERNS):
        try:
            return jsonschema_rs.validator_for(schema, pattern_options=linear, validate_formats=False, offline=True)
        except jsonschema_rs.ValidationError as fault:
            is_pattern = isinstance(fault.kind, jsonschema_rs.ValidationErrorKind.Format)
            pattern = _left_out(schema, fault.instance_path) if is_pattern else None
            if pattern is None:
                raise UnfitSchema(f"{_path(fault.instance_path)}: {fault.message[:_TOLD_CHARS]}") from fault
            log.warning("tool_pattern_left_out", tool=tool, pattern=pattern[:_TOLD_CHARS])
    raise UnfitSchema(f"over {_MAX_ODD_PATTERNS} of its patterns cannot be checked")


def _left_out(schema: Any, path: Sequence[str | int]) -> str | None:
    """Removes the pattern at a path of the schema and returns it; None if there is no pattern."""
    *way, last = path or [""]
    for part in way:
        schema = schema[part]
    if last == "pattern" and isinstance(schema, dict) and isinstance(schema[last], str):
        return str(schema.pop(last))
    if way and way[-1] == "patternProperties":
        del schema[last]
        return str(last)
    return None


def _expansion(schema: Mapping[str, Any]) -> tuple[int, bool]:
    """Returns how many subschemas references lead to, counted each time, and whether any leads back to itself."""
    counted: dict[str, int] = {}
    is_recursive = False

    def of_reference(reference: str) -> int:
        nonlocal is_recursive
        if reference not in counted:
            counted[reference] = 0  # while it is being counted: leading back to it adds nothing
            counted[reference] = min(of(at_reference(schema, reference)), MAX_EXPANSION + 1) or 1
        elif counted[reference] == 0:
            is_recursive = True
        return counted[reference]

    def of(node: Any) -> int:
        if isinstance(node, list):
            return sum(map(of, node))
        if not isinstance(node, Mapping):
            return 0
        references = (node[name] for name in REFERENCES if isinstance(node.get(name), str))
        children = (child for name, child in node.items() if name not in _DEFINITIONS)
        return 1 + sum(map(of_reference, references)) + sum(map(of, children))

    try:
        return of_reference("#"), is_recursive
    except RecursionError as error:
        raise UnfitSchema("it is nested too deeply") from error


def at_reference(root: Any, reference: str) -> Any:
    """Returns the node that a reference within the schema leads to, None if there is none."""
    if not reference.startswith("#"):
        return None
    found = root
    for part in unquote(reference[1:]).split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        if isinstance(found, list) and name.isdecimal() and name.isascii() and len(name) < 6:  # noqa: PLR2004 (digits)
            found = found[int(name)] if int(name) < len(found) else None
        else:
            found = found.get(name) if isinstance(found, Mapping) else None
    return found


def _depth(value: Any) -> int:
    if isinstance(value, Mapping):
        value = list(value.values())
    return 1 + max(map(_depth, value), default=0) if isinstance(value, list) else 0


def _path(parts: Sequence[str | int]) -> str:
    return "$" + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in parts)
