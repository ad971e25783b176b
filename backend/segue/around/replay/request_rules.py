"""Tells the kind of a model request, and whether a strict provider takes it. The tests' provider uses it too. Pure."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import cycle, pairwise
from typing import Any, Final, Literal

from segue.agent import prompts
from segue.domain.ids import TOOL_NAME, read_json
from segue.models.tool_schemas import MAX_TOOLS

RequestKind = Literal["loop", "plan", "amendment", "reading", "arguments", "step", "other"]

_NOTES: Final[Mapping[str, RequestKind]] = {  # the amender's prompt contains the planner's, so it comes first
    prompts.TEXTS["amender"]: "amendment",
    prompts.TEXTS["planner"]: "plan",
    prompts.TEXTS["reader"]: "reading",
    prompts.TEXTS["agreement"]: "reading",
    prompts.TEXTS["carrying_out"]: "step",
    prompts.TEXTS["out_of_rounds"]: "loop",
}

_CALL_ID: Final = re.compile(r"[a-zA-Z0-9]{9}")
_BARRED_AT_THE_TOP: Final = frozenset({"allOf", "anyOf", "enum", "not", "oneOf"})


def kind_of_request(request: Mapping[str, Any]) -> RequestKind:
    """Returns `loop` for the ordinary next message, and `other` for a request outside a turn, such as a job's."""
    if request.get("tool_choice") == "required":
        return "arguments"
    last = request["messages"][-1]
    instruction = str(last["content"]) if last["role"] == "user" else ""
    unmarked: RequestKind = "loop" if "tools" in request else "other"
    return next((kind for note, kind in _NOTES.items() if note in instruction), unmarked)


def invalid_history(messages: list[dict[str, Any]]) -> str | None:
    """Returns why the strictest endpoint or template would refuse the messages (docs/providers.md), or None."""
    roles, talk = [message["role"] for message in messages], messages[1:]
    if roles.count("system") != 1 or roles[0] != "system":
        return "exactly one system message has to come first"
    if not talk or talk[0]["role"] != "user":
        return "a conversation starts with the user"
    if talk[-1]["role"] not in {"user", "tool"}:
        return "the assistant has the last word"
    if any(not (isinstance(message.get("content"), str) or _has_parts(message)) for message in messages):
        return "a content that is no text"
    return _malformed_call(talk) or _unpaired_call(talk) or _out_of_turn(talk)


def _has_parts(message: Mapping[str, Any]) -> bool:
    """Whether the content is a list: of thinking, which only goes back to the endpoint that gave it, or of media."""
    parts = message.get("content")
    needed = {"assistant": {"thinking"}, "user": {"image_url", "file"}}.get(message["role"], set())
    return isinstance(parts, list) and any(part["type"] in needed for part in parts)


def _malformed_call(messages: list[dict[str, Any]]) -> str | None:
    calls = [call for message in messages for call in message.get("tool_calls") or ()]
    if repeated := [call_id for call_id, times in Counter(call["id"] for call in calls).items() if times > 1]:
        return f"the same call twice: {repeated}"
    if unfit := [call["id"] for call in calls if not _CALL_ID.fullmatch(call["id"])]:
        return f"ids that do not fit {_CALL_ID.pattern}: {unfit}"
    if unfit := [call["id"] for call in calls if not TOOL_NAME.fullmatch(call["function"]["name"])]:
        return f"calls of a tool with an impossible name: {unfit}"
    broken = [call["id"] for call in calls if not isinstance(read_json(call["function"]["arguments"]), dict)]
    return f"arguments that are no JSON object: {broken}" if broken else None


def _unpaired_call(messages: list[dict[str, Any]]) -> str | None:
    open_calls: set[str] = set()
    for message in messages:
        if message["role"] == "tool":
            if message["tool_call_id"] not in open_calls:
                return f"a result without a call: {message['tool_call_id']}"
            open_calls.remove(message["tool_call_id"])
            continue
        if open_calls:
            break
        open_calls = {call["id"] for call in message.get("tool_calls") or ()}
    return f"unanswered calls: {sorted(open_calls)}" if open_calls else None


def _out_of_turn(messages: list[dict[str, Any]]) -> str | None:
    """User and assistant alternate; templates count neither results nor messages with calls."""
    counted = [message for message in messages if message["role"] != "tool" and not message.get("tool_calls")]
    if any(message["role"] != role for message, role in zip(counted, cycle(("user", "assistant")), strict=False)):
        return f"out of turn: {[message['role'] for message in counted]}"
    if any(first["role"] == second["role"] == "assistant" for first, second in pairwise(messages)):
        return "the assistant twice in a row"
    if any(not str(message["content"]).strip() for message in counted):
        return "a message that says nothing"
    return None


def invalid_tools(tools: Sequence[Mapping[str, Any]]) -> str | None:
    """Returns why an endpoint would refuse the tools of a request, or None."""
    functions = [tool["function"] for tool in tools]
    names = [function["name"] for function in functions]
    if len(names) > MAX_TOOLS or len(set(names)) < len(names):
        return f"{len(names)} tools with {len(set(names))} names"
    if unfit := [name for name in names if not TOOL_NAME.fullmatch(name)]:
        return f"impossible names: {unfit}"
    for function in functions:
        schema = function["parameters"]
        if schema.get("type") != "object" or "properties" not in schema or not _BARRED_AT_THE_TOP.isdisjoint(schema):
            return f"{function['name']}: its schema is not simply that of an object"
        parts = _schemas_in(schema)
        if any("$ref" in each or ("array" in each.get("type", "") and "items" not in each) for each in parts):
            return f"{function['name']}: a reference, or an array without items"
    return None


def _schemas_in(schema: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield schema
    below = [*schema.get("properties", {}).values(), *schema.get("anyOf", ()), schema.get("items")]
    for each in (*below, schema.get("additionalProperties")):
        if isinstance(each, Mapping):
            yield from _schemas_in(each)
