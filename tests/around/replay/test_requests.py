"""What a strict provider would refuse, as the scripted provider and the replay judge it."""

from typing import Any

import pytest

from segue.around.replay.request_rules import invalid_history
from segue.models.normal_form import ANY_MODEL, WireForm
from tests.support.request_forms import invalid_in_form

SYSTEM = {"role": "system", "content": "You are."}
USER = {"role": "user", "content": "Hello"}
SAYS = {"role": "assistant", "content": "There."}


def asks(*call_ids: str, arguments: str = "{}", name: str = "look", text: Any = "") -> dict[str, Any]:
    made = [{"id": call_id, "function": {"name": name, "arguments": arguments}} for call_id in call_ids]
    return {"role": "assistant", "content": text, "tool_calls": made}


def gives(call_id: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": "found"}


A, B = "aaaaaaaa1", "bbbbbbbb2"


@pytest.mark.parametrize(
    ("messages", "form"),
    [
        ([SYSTEM, USER], ANY_MODEL),
        ([SYSTEM, USER, asks(A, B), gives(B), gives(A), SAYS, USER], ANY_MODEL),
        ([SYSTEM, USER, asks(A, text="Let me look."), gives(A), asks(B), gives(B)], ANY_MODEL),
        ([SYSTEM, USER, SAYS, USER, asks(A), gives(A), SAYS, USER], ANY_MODEL),
        ([USER, SAYS, USER], WireForm(no_system_role=True)),
        ([SYSTEM, USER, asks(A), gives(A), asks(B), gives(B)], WireForm(one_call_per_message=True)),
        ([SYSTEM, USER, asks(A), gives(A)], WireForm(no_text_beside_calls=True)),
    ],
)
def test_a_whole_conversation_is_accepted(messages: list[dict[str, Any]], form: WireForm) -> None:
    assert invalid_in_form(messages, form) is None


@pytest.mark.parametrize(
    ("messages", "fault"),
    [
        ([USER], "system message"),
        ([SYSTEM, USER, SYSTEM], "system message"),
        ([SYSTEM], "starts with the user"),
        ([SYSTEM, asks(A), gives(A)], "starts with the user"),
        ([SYSTEM, USER, gives(A)], f"a result without a call: {A}"),
        ([SYSTEM, USER, asks(A), gives(A), gives(A)], f"a result without a call: {A}"),
        ([SYSTEM, USER, asks(A, B), gives(A), USER], f"unanswered calls: ['{B}']"),
        ([SYSTEM, USER, asks(A)], "the assistant has the last word"),
        ([SYSTEM, USER, asks(A, B), gives(A)], f"unanswered calls: ['{B}']"),
        ([SYSTEM, USER, asks(A, A), gives(A)], f"the same call twice: ['{A}']"),
        ([SYSTEM, USER, asks(A), gives(A), asks(A), gives(A)], f"the same call twice: ['{A}']"),
        ([SYSTEM, USER, asks(A, arguments="[1]"), gives(A)], f"no JSON object: ['{A}']"),
        ([SYSTEM, USER, asks(A, arguments="{"), gives(A)], f"no JSON object: ['{A}']"),
        ([SYSTEM, USER, asks("call_1234"), gives("call_1234")], "ids that do not fit"),
        ([SYSTEM, USER, asks(A + "0"), gives(A + "0")], "ids that do not fit"),
        ([SYSTEM, USER, asks(A, name="look here"), gives(A)], "impossible name"),
        ([SYSTEM, USER, asks(A, text=None), gives(A)], "no text"),
        ([SYSTEM, USER, USER], "out of turn"),
        ([SYSTEM, USER, asks(A), gives(A), USER], "out of turn"),
        ([SYSTEM, USER, SAYS, SAYS, USER], "out of turn"),
        ([SYSTEM, USER, SAYS], "the assistant has the last word"),
        ([SYSTEM, USER, SAYS, asks(A), gives(A)], "the assistant twice in a row"),
        ([SYSTEM, {"role": "user", "content": " "}], "says nothing"),
    ],
)
def test_a_request_a_provider_would_refuse_is_told_why(messages: list[dict[str, Any]], fault: str) -> None:
    assert fault in (invalid_history(messages) or "")


@pytest.mark.parametrize(
    ("form", "messages", "fault"),
    [
        (WireForm(one_call_per_message=True), [SYSTEM, USER, asks(A, B), gives(A), gives(B)], "two calls"),
        (WireForm(no_text_beside_calls=True), [SYSTEM, USER, asks(A, text="Well."), gives(A)], "text beside calls"),
        (WireForm(no_system_role=True), [SYSTEM, USER], "no system role"),
    ],
)
def test_what_a_family_of_models_cannot_take_is_told(
    form: WireForm, messages: list[dict[str, Any]], fault: str
) -> None:
    assert invalid_history(messages) is None
    assert fault in (invalid_in_form(messages, form) or "")
