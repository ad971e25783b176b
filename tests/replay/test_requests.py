"""What a strict provider would refuse, as the scripted provider and the replay judge it."""

from typing import Any

import pytest

from segue.replay.requests import invalid_history

SYSTEM = {"role": "system", "content": "You are."}
USER = {"role": "user", "content": "Hello"}


def asks(*call_ids: str, arguments: str = "{}") -> dict[str, Any]:
    made = [{"id": call_id, "function": {"name": "look", "arguments": arguments}} for call_id in call_ids]
    return {"role": "assistant", "content": None, "tool_calls": made}


def gives(call_id: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": "found"}


@pytest.mark.parametrize(
    "messages",
    [
        [SYSTEM, USER],
        [SYSTEM, USER, asks("a", "b"), gives("b"), gives("a"), {"role": "assistant", "content": "There."}, USER],
        [SYSTEM, USER, asks("a"), gives("a"), asks("b"), gives("b")],
    ],
)
def test_a_whole_conversation_is_accepted(messages: list[dict[str, Any]]) -> None:
    assert invalid_history(messages) is None


@pytest.mark.parametrize(
    ("messages", "fault"),
    [
        ([USER], "system message"),
        ([SYSTEM, USER, SYSTEM], "system message"),
        ([SYSTEM], "starts with the user"),
        ([SYSTEM, asks("a"), gives("a")], "starts with the user"),
        ([SYSTEM, USER, gives("a")], "nobody called for: a"),
        ([SYSTEM, USER, asks("a"), gives("a"), gives("a")], "nobody called for: a"),
        ([SYSTEM, USER, asks("a", "b"), gives("a"), USER], "unanswered calls: ['b']"),
        ([SYSTEM, USER, asks("a")], "unanswered calls: ['a']"),
        ([SYSTEM, USER, asks("a", "a"), gives("a")], "the same call twice: ['a']"),
        ([SYSTEM, USER, asks("a"), gives("a"), asks("a"), gives("a")], "the same call twice: ['a']"),
        ([SYSTEM, USER, asks("a", arguments="[1]"), gives("a")], "no JSON object: ['a']"),
        ([SYSTEM, USER, asks("a", arguments="{"), gives("a")], "no JSON object: ['a']"),
    ],
)
def test_a_request_a_provider_would_refuse_is_told_why(messages: list[dict[str, Any]], fault: str) -> None:
    assert fault in (invalid_history(messages) or "")
