"""A model's thinking is told from its answer however the text is cut, and never reaches a row or a plan."""

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import AIMessageChunk

from segue.agent.streamed_answer import Listener, StreamedAnswer
from tests.support.plans import ASK
from tests.support.provider import Provider, calls, says
from tests.support.service import Client
from tests.support.streams import streamed, texts

PIECES = ["<think>", "</think>", "<thi", "nk>", "[THINK]", "[/THINK]", "`", "```", "a", "<", "/", "\n", " b "]


def read(text: str, cuts: list[int]) -> tuple[str, str, str]:
    """The answer, the thinking, and the words that a listener has heard and that were not withdrawn."""
    heard: list[str] = []
    answer = StreamedAnswer(Listener(heard.append, heard.clear))
    for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True):
        answer.add(AIMessageChunk(content=text[start:end]))
    reply = answer.reply()
    return reply.text, reply.reasoning, "".join(heard)


@given(st.lists(st.sampled_from(PIECES), max_size=12).map("".join), st.data())
def test_the_answer_is_the_same_however_it_is_cut(text: str, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)))))
    answer, thinking, heard = read(text, cuts)
    assert heard == answer
    assert (answer, thinking) == read(text, [])[:2]


@pytest.mark.parametrize("cut", range(1, 40))
def test_a_tag_is_found_wherever_it_is_cut(cut: int) -> None:
    text = "<think>Let me see.</think>It is 42, a < b."
    assert read(text, [cut]) == ("It is 42, a < b.", "Let me see.", "It is 42, a < b.")


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
    failed = await client.send(session, "What time is it?")
    assert (failed.status_code, failed.json()["code"]) == (502, "model_unavailable")
    assert "empty answer" in failed.json()["detail"]
    assert (await client.chat(session, "hello?"))["message"]["content"] == "Here I am."
    assert len((await client.get(f"/sessions/{session}/tool-results"))["items"]) == 1
