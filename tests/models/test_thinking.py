"""A model's thinking is told from its answer however the text is cut, and never reaches a row or a plan."""

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from segue.agent.stream_reply import MAX_REASONING_CHARS
from segue.config import Settings
from segue.models.reply import AnswerPart, ModelCall
from segue.models.streamed_answer import Listener, StreamedAnswer
from tests.support.plans import ASK
from tests.support.provider import Provider, Reply, calls, delta, fails, says, sse
from tests.support.service import Client, running
from tests.support.streams import Sent, streamed, texts

PIECES = ["<think>", "</think>", "<thi", "nk>", "[THINK]", "[/THINK]", "`", "```", "a", "<", "/", "\n", " b "]
CHANNELS = ["<|channel|>analysis", "<|channel|>final", "<|message|>", "<|end|>", "analysis", "assistantfinal"]
CALLS = [
    "<tool_call>",
    "[TOOL_CALLS]",
    "<|channel|>commentary to=",
    "assistantcommentary to=",
    "{",
    '{"name"',
    "[",
    "j",
]


def read(text: str, cuts: list[int], *, held: bool = False) -> tuple[str, str, str]:
    """The answer, the thinking, and the words that a listener has heard and that were not withdrawn. A call is one if
    its text ends in a brace, and is the end of the answer.
    """
    heard: list[str] = []

    def read_calls(text: str) -> list[ModelCall]:
        return [ModelCall("look", {"text": text})] if text.endswith("{") else []

    answer = StreamedAnswer(Listener(heard.append, heard.clear), begins_inside=held, read_calls=read_calls)
    for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True):
        answer.add(AnswerPart(text[start:end]))
    reply = answer.reply()
    called = "".join(f"|{call.args}" for call in reply.calls)
    return f"{reply.text}{called}", reply.reasoning, f"{''.join(heard)}{called}"


@given(st.lists(st.sampled_from([*PIECES, *CHANNELS, *CALLS]), max_size=12).map("".join), st.data())
def test_the_answer_is_the_same_however_it_is_cut(text: str, data: st.DataObject) -> None:
    cuts, held = sorted(data.draw(st.sets(st.integers(0, len(text))))), data.draw(st.booleans())
    answer, thinking, heard = read(text, cuts, held=held)
    assert heard == answer
    assert (answer, thinking) == read(text, [], held=held)[:2]


@pytest.mark.parametrize("cut", range(1, 40))
def test_a_tag_is_found_wherever_it_is_cut(cut: int) -> None:
    for name in ("think", "reasoning"):
        text = f"<{name}>Let me see.</{name}>It is 42, a < b."
        assert read(text, [cut]) == ("It is 42, a < b.", "Let me see.", "It is 42, a < b."), name


@pytest.mark.in_turns(1)
@pytest.mark.parametrize("as_stream", [False, True], ids=["json", "stream"])
async def test_thinking_is_neither_shown_nor_stored_nor_sent_back(
    client: Client, provider: Provider, *, as_stream: bool
) -> None:
    provider.will(says("<think>The user is a secret agent.</think>It is noon."), says("Yes."))
    session = await client.new_session()
    seen: Any
    if as_stream:
        sent = await streamed(client, session, "What time is it?")
        assert list(texts(sent).values()) == ["It is noon."]
        seen = [each.event for each in sent]
    else:
        seen = await client.chat(session, "What time is it?")
    await client.chat(session, "Really?")
    for everything in (seen, await client.messages(session), provider.requests):
        assert "secret agent" not in orjson.dumps(everything).decode()
    assert [message["content"] for message in provider.messages(role="assistant")] == ["It is noon."]


async def test_words_that_were_thinking_are_ended_as_a_message_of_their_own(client: Client, provider: Provider) -> None:
    provider.will(says("The user is a secret agent. </think> It is noon."))
    session = await client.new_session()
    sent = await streamed(client, session, "What time is it?")
    answer = sent[-1].event["result"]["message"]
    assert answer["content"] == texts(sent)[answer["id"]] == "It is noon."
    assert [row["content"] for row in await client.messages(session)] == ["What time is it?", "It is noon."]


def reasoning(sent: list[Sent]) -> str:
    return "".join(each.event["delta"] for each in sent if each.type == "REASONING_MESSAGE_CONTENT")


THOUGHT = ("The user is ", "a secret agent.")
DONE = (delta("stop"), "data: [DONE]\n\n")
REASONED = {
    "apart": sse(*(delta(reasoning_content=each) for each in THOUGHT), delta(content="It is noon."), *DONE),
    "in the text": says(f"<think>{''.join(THOUGHT)}</think>It is noon."),
    "found out late": says(f"{''.join(THOUGHT)} </think> It is noon."),
}


@pytest.mark.in_turns(1)
@pytest.mark.parametrize("reply", REASONED.values(), ids=list(REASONED))
async def test_thinking_is_streamed_if_it_is_wanted_and_is_no_part_of_the_answer(
    settings: Settings, provider: Provider, reply: Reply
) -> None:
    provider.will(reply)
    async with running(settings.model_copy(update={"show_reasoning": True})) as client:
        session = await client.new_session()
        sent = await streamed(client, session, "What time is it?")
        stored = await client.messages(session)
    assert reasoning(sent).strip() == "".join(THOUGHT)
    types = [each.type for each in sent]
    assert types.index("REASONING_START") < types.index("REASONING_END")
    assert types[types.index("REASONING_END") + 1] == "TEXT_MESSAGE_START"
    answer = sent[-1].event["result"]
    assert texts(sent)[answer["message"]["id"]] == "It is noon."
    kept = [each["metadata"].pop("reasoning") for each in (answer["message"], stored[-1])]
    assert kept == ["".join(THOUGHT).strip()] * 2
    assert "secret agent" not in orjson.dumps([answer, stored]).decode()


async def test_thinking_that_is_streamed_is_bounded_and_ends_before_calls_and_errors(
    settings: Settings, provider: Provider
) -> None:
    thought = delta(reasoning_content="x" * 60_000)
    call = {"index": 0, "id": "c1", "type": "function", "function": {"name": "current_time", "arguments": "{}"}}
    provider.will(
        sse(thought, thought, delta("tool_calls", tool_calls=[call]), *DONE[1:]), sse(thought, ""), fails(401)
    )
    async with running(settings.model_copy(update={"show_reasoning": True})) as client:
        sent = await streamed(client, await client.new_session(), "What time is it?")
    types = [each.type for each in sent]
    ends = [at for at, kind in enumerate(types) if kind == "REASONING_END"]
    shown = [len(reasoning(part)) for part in (sent[: ends[0]], sent[ends[0] :])]
    assert (shown, len(ends)) == ([MAX_REASONING_CHARS, 60_000], 2)
    assert ends[0] < types.index("TOOL_CALL_START") < ends[1] < types.index("TEXT_MESSAGE_START")


async def test_the_planner_is_not_given_thinking_to_read(client: Client, provider: Provider) -> None:
    zones = ("Europe/Rome", "Asia/Tokyo")
    steps = [
        {"id": n, "description": zone, "tool": "current_time", "args": {"timezone": zone}}
        for n, zone in enumerate(zones, start=1)
    ]
    drafted, meant = (orjson.dumps({"steps": each}).decode() for each in (steps[:1], steps))
    provider.will(says(f"<think>Perhaps {drafted}</think>{meant}"), says("Both."))
    answer = await client.chat(await client.new_session(), ASK)
    assert answer["message"]["content"] == "Both."
    assert [call["args"]["timezone"] for call in answer["tool_calls"]] == list(zones)


async def test_an_empty_answer_after_a_tool_leaves_the_session_usable(client: Client, provider: Provider) -> None:
    noon = ("current_time", {"timezone": "Europe/Rome"})
    provider.will(calls(noon), says(""), says(" "), says("Here I am."))
    session = await client.new_session()
    told = await client.chat(session, "What time is it?")
    assert told["message"]["metadata"]["written_by"] == "service"
    assert (await client.chat(session, "hello?"))["message"]["content"] == "Here I am."
    assert len((await client.get(f"/sessions/{session}/tool-results"))["items"]) == 1
