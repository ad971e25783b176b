"""Judges the requests to the model: what kind one is, and whether a strict provider would accept it. Pure.

The scripted provider of the tests judges by the same rule.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final, Literal

import orjson

from segue.agent import prompts

RequestKind = Literal["loop", "plan", "amendment", "reading", "arguments", "step", "synthesis", "other"]

# The amender's prompt contains the planner's, so it comes first.
_NOTES: Final[Mapping[str, RequestKind]] = {
    prompts.AMENDER: "amendment",
    prompts.PLANNER: "plan",
    prompts.READER: "reading",
    prompts.ENDED: "synthesis",
    prompts.CARRYING_OUT: "step",
    prompts.OUT_OF_ROUNDS: "loop",
}


def kind_of_request(request: Mapping[str, Any]) -> RequestKind:
    """Returns `loop` for the ordinary next message, and `other` for a request outside a turn, such as a job's."""
    if request.get("tools"):
        return "arguments" if request.get("tool_choice") == "required" else "loop"
    system = str(request["messages"][0]["content"])
    return next((asked for note, asked in _NOTES.items() if note in system), "other")


def invalid_history(messages: list[dict[str, Any]]) -> str | None:
    """Returns why a strict provider would refuse the messages, or None."""
    if [message["role"] for message in messages].count("system") != 1 or messages[0]["role"] != "system":
        return "exactly one system message has to come first"
    if len(messages) < 2 or messages[1]["role"] != "user":  # noqa: PLR2004 (the system's and the user's)
        return "a conversation starts with the user"
    return _malformed_call(messages) or _unpaired_call(messages)


def _malformed_call(messages: list[dict[str, Any]]) -> str | None:
    calls = [call for message in messages for call in message.get("tool_calls") or ()]
    if repeated := [call_id for call_id, times in Counter(call["id"] for call in calls).items() if times > 1]:
        return f"the same call twice: {repeated}"
    broken = [call["id"] for call in calls if not _is_object(call["function"]["arguments"])]
    return f"arguments that are no JSON object: {broken}" if broken else None


def _unpaired_call(messages: list[dict[str, Any]]) -> str | None:
    open_calls: set[str] = set()
    for message in messages:
        if message["role"] == "tool":
            if message["tool_call_id"] not in open_calls:
                return f"a result nobody called for: {message['tool_call_id']}"
            open_calls.remove(message["tool_call_id"])
            continue
        if open_calls:
            break
        open_calls = {call["id"] for call in message.get("tool_calls") or ()}
    return f"unanswered calls: {sorted(open_calls)}" if open_calls else None


def _is_object(text: str) -> bool:
    try:
        return isinstance(orjson.loads(text), dict)
    except orjson.JSONDecodeError:
        return False
