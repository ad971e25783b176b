"""What a provider gave with its calls goes back with their results as it came, to the same endpoint, within bounds."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import orjson
import pytest
from langchain_core.messages import AIMessage
from starlette.responses import Response

from segue.agent.render_messages import SessionContent, assistant_message, build_prompt
from segue.config import Settings
from segue.domain.session import Message, RequestedCall
from segue.memory.history_window import WindowLimits, estimate
from segue.models.providers.completion_reader import MAX_OPAQUE_BYTES
from segue.models.providers.openai import wire_message
from segue.models.reply import OPAQUE, ModelCall, Opaque, Reply, opaque_parts
from tests.support.provider import Provider, completion, fails, says, streams
from tests.support.provider import Reply as Scripted
from tests.support.service import Client, running
from tests.support.streams import streamed
from tests.support.sweeps import first

pytestmark = pytest.mark.in_turns

SIGNED = {"google": {"thought_signature": "c2lnbmVk"}}


def call(name: str = "current_time", **more: Any) -> dict[str, Any]:
    function = {"name": name, "arguments": '{"timezone": "Europe/Rome"}'}
    return {"id": "c1", "type": "function", "function": function, **more}


DETAILS = [
    {"type": "reasoning.text", "index": 0, "text": "Let me see.", "signature": "xyz", "format": "anthropic"},
    {"type": "reasoning.encrypted", "index": 1, "data": "abc"},
]
# A whole message; the same as deltas; what comes back beside OpenAI's own fields: of the message and of the call.
GIVEN = {
    "DeepSeek's reasoning": (
        {"content": "", "reasoning_content": "Let me see.", "tool_calls": [call()]},
        [{"reasoning_content": "Let me"}, {"reasoning_content": " see."}, {"tool_calls": [call(index=0)]}],
        {"reasoning_content": "Let me see."},
        {},
    ),
    "OpenRouter's details": (
        {"content": "", "reasoning_details": DETAILS, "tool_calls": [call()]},
        [
            {"reasoning_details": [{"type": "reasoning.text", "index": 0, "text": "Let me", "format": "anthropic"}]},
            {"reasoning_details": [{"type": "reasoning.text", "index": 0, "text": " see.", "format": "anthropic"}]},
            {"reasoning_details": [{"type": "reasoning.text", "index": 0, "signature": "xyz"}]},
            {"reasoning_details": [DETAILS[1]]},
            {"tool_calls": [call(index=0)]},
        ],
        {"reasoning_details": DETAILS},
        {},
    ),
    "Gemini's signature": (
        {"content": "", "tool_calls": [call(extra_content=SIGNED)]},
        [{"tool_calls": [call(index=0, extra_content=SIGNED)]}],
        {},
        {"extra_content": SIGNED},
    ),
    "Mistral's thinking": (
        {"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}]}], "tool_calls": [call()]},
        [
            {"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "H"}]}]},
            {"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "m."}]}]},
            {"tool_calls": [call(index=0)]},
        ],
        {"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}]}]},
        {},
    ),
}


@pytest.mark.parametrize(("message", "deltas", "of_message", "of_call"), first(2, GIVEN.values()), ids=list(GIVEN))
@pytest.mark.parametrize("as_stream", [False, True], ids=["json", "stream"])
async def test_what_came_with_a_call_goes_back_with_its_result(
    client: Client,
    provider: Provider,
    message: dict[str, Any],
    deltas: list[dict[str, Any]],
    of_message: dict[str, Any],
    of_call: dict[str, Any],
    *,
    as_stream: bool,
) -> None:
    first: Scripted = completion({"role": "assistant", **message}, "tool_calls")
    provider.will(streams(*deltas, finish_reason="tool_calls") if as_stream else first, says("Noon."), says("Good."))
    session = await client.new_session()
    ask: Callable[..., Any] = streamed if as_stream else client.chat
    await ask(client, session, "What time is it?") if as_stream else await ask(session, "What time is it?")
    [sent] = provider.messages(1, role="assistant")
    [made] = sent.pop("tool_calls")
    assert sent == {"role": "assistant", "content": "", **of_message}
    assert made == {"id": made["id"], "type": "function", "function": made["function"], **of_call}
    await client.chat(session, "Thanks")
    rows = orjson.dumps(await client.messages(session)).decode()
    assert "Let me see" not in rows
    assert "thinking" not in rows


@pytest.mark.parametrize("model", ["MiniMax-M2", "qwen3"])
async def test_thinking_in_the_text_beside_a_call_goes_back_to_a_model_that_wants_it(
    settings: Settings, provider: Provider, model: str
) -> None:
    text = "<think>Let me see.</think>\nI look."
    async with running(settings.model_copy(update={"llm_model": model})) as client:
        session = await client.new_session()
        for answer in (
            completion({"role": "assistant", "content": text, "tool_calls": [call()]}, "tool_calls"),
            streams(*text, {"tool_calls": [call(index=0)]}, finish_reason="tool_calls"),
        ):
            provider.will(answer, says("<think>Let me see.</think>Noon."))
            sent = await streamed(client, session, "What time is it?")
            assert "Let me see" not in str([each.event for each in sent])
        provider.will(says("Good."))
        await client.chat(session, "Thanks")
        rows = await client.messages(session)
    said = [message["content"] for message in provider.messages(role="assistant")]
    assert said == [text if model == "MiniMax-M2" else "I look.", "Noon."] * 2
    assert "Let me see" not in str(rows)


async def test_an_endpoint_that_refuses_what_it_gave_does_not_get_it_again(client: Client, provider: Provider) -> None:
    message = {"role": "assistant", "content": "", "reasoning": "Hm.", "tool_calls": [call(extra_content=SIGNED)]}
    refused = [
        fails(400, body=f'{{"error": {{"message": "property \'{name}\' is unsupported"}}}}')
        for name in ("reasoning", "extra_content")
    ]
    provider.will(completion(message, "tool_calls"), *refused, says("Noon."))
    answer = await client.chat(await client.new_session(), "What time is it?")
    assert answer["message"]["content"] == "Noon."
    assert len(answer["tool_calls"]) == 1
    [sent] = provider.messages(role="assistant")
    assert sent.keys() == {"role", "content", "tool_calls"}
    assert sent["tool_calls"][0].keys() == {"id", "type", "function"}


@pytest.mark.parametrize(
    "said",
    [
        "Corrupted thought signature.",
        "messages[2].reasoning_details: the signature could not be verified",
        "Provider returned error: upstream rejected the request payload",
    ],
)
async def test_what_an_endpoint_can_no_longer_verify_of_a_conversation_still_goes_back_in_others(
    client: Client, provider: Provider, said: str
) -> None:
    details = [{"type": "reasoning.text", "index": 0, "text": "Hm.", "signature": "xyz"}]
    signed = {"role": "assistant", "content": "", "reasoning_details": details}
    message = {**signed, "tool_calls": [call(extra_content=SIGNED)]}
    refused = fails(400, body=orjson.dumps({"error": {"message": said}}).decode())
    provider.will(completion(message, "tool_calls"), says("Noon."), refused, says("Good."), says("Bye."))
    session = await client.new_session()
    for asked in ("What time is it?", "Thanks", "Bye"):
        await client.chat(session, asked)
    for request in (-2, -1):
        [made, *_] = provider.messages(request, role="assistant")
        assert made.keys() == {"role", "content", "tool_calls"}
        assert made["tool_calls"][0].keys() == {"id", "type", "function"}
    provider.will(completion(message, "tool_calls"), says("Noon."))
    await client.chat(await client.new_session(), "What time is it?")
    [sent] = provider.messages(role="assistant")
    assert sent["reasoning_details"] == details
    assert sent["tool_calls"][0]["extra_content"] == SIGNED


def sent_back(opaque: Opaque, *, to: str) -> dict[str, Any]:
    reply = Reply("", (ModelCall("search", {}, SIGNED), ModelCall("find", {})), 1, 1, opaque=opaque)
    calls = [RequestedCall(f"call_{number}", "search", {}) for number in range(2)]
    return wire_message(assistant_message("", calls, opaque=opaque_parts(reply, reply.calls)), made_by=to)


def test_opaque_parts_go_to_the_endpoint_that_made_them_only() -> None:
    opaque = Opaque("here", {"reasoning_content": "Hm."})
    at_home, abroad = sent_back(opaque, to="here"), sent_back(opaque, to="elsewhere")
    assert at_home["reasoning_content"] == "Hm."
    assert [call.get("google") for call in at_home["tool_calls"]] == [SIGNED["google"], None]
    assert abroad.keys() == {"role", "content", "tool_calls"}
    assert all(call.keys() == {"id", "type", "function"} for call in abroad["tool_calls"])


@pytest.mark.sweep
@pytest.mark.parametrize("character", ["x", "é", "\x01"])
async def test_words_are_cut_to_fit_and_what_cannot_be_cut_stays_away(
    client: Client, provider: Provider, character: str
) -> None:
    long = character * 2 * MAX_OPAQUE_BYTES
    words = {"role": "assistant", "content": "", "reasoning_content": long, "tool_calls": [call(extra_content=SIGNED)]}
    signature = {"role": "assistant", "content": "", "signature": long, "tool_calls": [call(extra_content=SIGNED)]}
    provider.will(completion(words, "tool_calls"), says("Noon."), completion(signature, "tool_calls"), says("Noon."))
    session = await client.new_session()
    await client.chat(session, "What time is it?")
    [sent] = provider.messages(role="assistant")
    kept = sent["reasoning_content"]
    assert len(kept) > MAX_OPAQUE_BYTES // 7
    assert long.startswith(kept)
    assert sent["tool_calls"][0]["extra_content"] == SIGNED
    assert len(orjson.dumps([kept, SIGNED])) <= MAX_OPAQUE_BYTES
    other = await client.new_session()
    await client.chat(other, "What time is it?")
    [sent] = provider.messages(role="assistant")
    assert sent.keys() == {"role", "content", "tool_calls"}
    assert sent["tool_calls"][0].keys() == {"id", "type", "function"}


@pytest.mark.parametrize(
    ("deltas", "kept"),
    [
        ([{"reasoning": "x" * 100, "reasoning_details": [{**DETAILS[0], "text": "x" * 100}]}] * 700, False),
        ([{"reasoning": "", "reasoning_details": [{**DETAILS[1], "data": "x" * (MAX_OPAQUE_BYTES - 99)}]}], True),
        ([{"reasoning": "", "reasoning_details": [{**DETAILS[1], "data": "x" * MAX_OPAQUE_BYTES}]}], False),
    ],
    ids=["long words", "nearly no room", "no room"],
)
@pytest.mark.timeout(60)  # an endless loop would keep the test until it hangs
async def test_words_for_which_nothing_leaves_room_are_left_out(
    client: Client, provider: Provider, deltas: list[dict[str, Any]], *, kept: bool
) -> None:
    provider.will(streams(*deltas, {"tool_calls": [call(index=0)]}, finish_reason="tool_calls"), says("Noon."))
    await streamed(client, await client.new_session(), "What time is it?")
    [sent] = provider.messages(role="assistant")
    assert ("reasoning_details" in sent) is kept
    assert not sent.get("reasoning")


async def test_a_process_that_takes_a_turn_over_and_later_turns_send_it_but_another_model_never_gets_it(
    settings: Settings, provider: Provider
) -> None:
    cut_off = asyncio.Event()

    async def silent(_: dict[str, Any]) -> Response:
        await cut_off.wait()
        return says("too late")

    message = {"role": "assistant", "content": "", "reasoning_content": "Let me\0 see.", "secret": {"a": "b\0"}}
    provider.will(completion({**message, "tool_calls": [call(extra_content=SIGNED)]}, "tool_calls"), silent)
    async with running(settings.model_copy(update={"shutdown_grace_s": 0.1})) as client:
        session = await client.new_session()
        await client.send(session, "What time is it?", background=True)
        await provider.wait_for_requests(2)
    cut_off.set()
    provider.will(says("Noon."), says("Good."))
    async with running(settings) as client:
        await client.ended(session)
        await client.chat(session, "Thanks")
        export = orjson.dumps(await client.get(f"/sessions/{session}/export")).decode()
        listed = orjson.dumps([await client.messages(session), await client.turns(session)]).decode()
    for request in (2, 3):
        sent, *_ = provider.messages(request, role="assistant")
        assert (sent["reasoning_content"], sent["secret"]) == ("Let me see.", {"a": "b"})
        assert [made["extra_content"] for made in sent["tool_calls"]] == [SIGNED]
    assert "Let me" not in export + listed
    assert "thought_signature" not in export + listed
    provider.will(says("Bye."), says("And again."))
    for model, is_theirs in (("another", False), ("scripted", True)):
        async with running(settings.model_copy(update={"llm_model": model})) as client:
            await client.chat(session, "Bye")
        sent, *_ = provider.messages(role="assistant")
        assert ("reasoning_content" in sent, "extra_content" in sent["tool_calls"][0]) == (is_theirs, is_theirs)


LONG = {"text": "x" * 5000}


def turns_with_opaque_parts(count: int) -> SessionContent:
    history, at = list[Message](), datetime(2026, 1, 1, tzinfo=UTC)
    for number in range(count):
        of_turn: dict[str, Any] = {"seq": len(history), "turn_id": f"turn_{number}", "created_at": at}
        made = RequestedCall(f"call_{number}", "look", LONG)
        found = {"tool_call_id": made.id, "tool_name": "look", "status": "succeeded"}
        history += [
            Message(f"user_{number}", role="user", content="Look", **of_turn),
            Message(f"call_msg_{number}", role="assistant", content="", tool_calls=(made,), **of_turn),
            Message(f"tool_{number}", role="tool", content=found, tool_call_id=made.id, **of_turn),
        ]
    parts = {"by": "here", "message": {"reasoning_content": "Hm. " * 1000}, "calls": [{}]}
    opaque = {message.id: parts for message in history if message.tool_calls}
    return SessionContent(None, [], at, [], None, history, [], {}, (), opaque)


@pytest.mark.parametrize(("tokens", "kept"), [(100_000, "1111"), (10_000, "0011"), (1_000, "0001")])
def test_what_takes_too_much_of_the_window_is_dropped_oldest_first_but_never_of_the_running_turn(
    tokens: int, kept: str
) -> None:
    session = turns_with_opaque_parts(4)
    shown = build_prompt(session, WindowLimits(messages=100, tokens=tokens, summarises=False), estimate).messages
    calling = [message for message in shown if isinstance(message, AIMessage) and message.tool_calls]
    assert "".join("01"[OPAQUE in message.additional_kwargs] for message in calling).rjust(4, "0") == kept
    for message in calling:
        assert (message.tool_calls[0]["args"] == LONG) == (OPAQUE in message.additional_kwargs)


def test_what_providers_want_back_goes_before_the_words_of_older_turns() -> None:
    session = turns_with_opaque_parts(3)
    opening, *others = session.history
    session = replace(session, history=[replace(opening, content="Look at this. " * 400), *others])
    shown = build_prompt(session, WindowLimits(messages=100, tokens=10_000, summarises=False), estimate).messages
    calling = [message for message in shown if isinstance(message, AIMessage) and message.tool_calls]
    assert [OPAQUE in message.additional_kwargs for message in calling] == [False, True, True]
    assert "Look at this. " * 400 in shown[1].text
