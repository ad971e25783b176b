"""How a call that may have taken effect is settled: its tool's declared check, and the meaning of the answer."""

from collections.abc import Mapping
from typing import Any, Final

import orjson
from pydantic import TypeAdapter, ValidationError

from segue.domain.tool import SettlingCheck, ToolFunction, ToolSpec
from segue.tools.paging import InvalidPath, at_path, check_path
from segue.tools.run import CallOutcome

_READ: Final = TypeAdapter(SettlingCheck)
_KEYS: Final = frozenset(SettlingCheck.__slots__)


def read_check(declared: object) -> SettlingCheck:
    """Returns a check declared as `{tool, args, done, not_done}`. Raises ValueError with what to correct."""
    if isinstance(declared, Mapping) and (unknown := sorted(map(str, declared.keys() - _KEYS))):
        raise ValueError(f"{unknown[0][:64]} is unknown: a check has {', '.join(SettlingCheck.__slots__)}")
    try:
        check = _READ.validate_python(declared)
    except ValidationError as error:
        fault = error.errors(include_url=False, include_input=False)[0]
        raise ValueError(f"{'.'.join(map(str, fault['loc'])) or 'it'}: {fault['msg']}") from None
    paths = [check.done, check.not_done, *(each for each in check.args.values() if isinstance(each, str))]
    for path in paths:
        if path is not None:
            check_path(path)
    return check


def unfit(name: str, check: SettlingCheck, offered: Mapping[str, ToolSpec]) -> str | None:
    """Returns why the check of the tool called `name` cannot be used; None if it can. It runs unasked."""
    if check.tool not in offered:
        return f"{name} is verified by {check.tool}, which does not exist"
    if offered[check.tool].effect != "read_only":
        return f"{name} is verified by {check.tool}, which does not only read"
    return None


async def args_of_check(check: SettlingCheck, args: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the check's arguments; those that the call has nothing for are left out. Raises InvalidPath."""
    written, found = orjson.dumps(args).decode(), {}
    for name, value in check.args.items():
        argument = await at_path(written, value, is_json=True) if isinstance(value, str) else value
        if argument is not None:
            found[name] = argument
    return found


async def took_effect(check: SettlingCheck, outcome: CallOutcome) -> bool | None:
    """Returns whether the answer to a check shows an effect; None if it shows neither, or both."""
    if outcome.status != "succeeded":
        return None
    text, is_json = outcome.payload.text, outcome.payload.kind == "json"
    content = text if is_json else orjson.dumps(text).decode()
    try:
        shows = [await _holds(content, condition) for condition in (check.done, check.not_done)]
    except InvalidPath:
        return None
    return shows[0] if shows[0] != shows[1] else None


async def _holds(content: str, condition: str | None) -> bool:
    """Truth is JMESPath's: a number is true, and empty values are not."""
    value = await at_path(content, condition, is_json=True) if condition else None
    return value is not None and value is not False and value not in ("", [], {})


def without_argument(schema: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Returns the schema without an argument that the model does not give. Raises ValueError if it has none such."""
    properties = schema.get("properties") or {}
    if name not in properties:
        raise ValueError(f"idempotency_arg {name[:64]!r} is none of its arguments")
    kept = {key: value for key, value in properties.items() if key != name}
    return {**schema, "properties": kept, "required": [each for each in schema.get("required", ()) if each != name]}


def with_call_id(run: ToolFunction, name: str) -> ToolFunction:
    """Returns the function as it runs: given the id of the call in the argument called `name`, if it has one."""
    return (lambda args, context: run({**args, name: context.tool_call_id}, context)) if name else run
