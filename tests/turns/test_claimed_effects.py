"""An answer that claims an effect which no call of the session had is asked about once, and corrected in one line."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from segue import ToolFailed, tool
from segue.config import Settings
from segue.language.shown_call import translate
from tests.support.plans import reads
from tests.support.provider import Provider, calls, says, streams
from tests.support.service import Client, running
from tests.support.streams import chatting, texts

NOTHING = translate("nothing_changed", "en")
CLAIM = "I have sent the note to Rossi."


@tool(effect="destructive", confirm=False)
async def send_note(to: str) -> str:
    """Sends a note."""
    return f"sent to {to}"


@tool(effect="destructive", confirm=False)
async def post_note(to: str) -> str:
    """Posts a note."""
    raise ToolFailed(f"no address of {to}")


@tool(effect="read_only")
async def find_note(word: str) -> str:
    """Finds a note."""
    return f"a note with {word}"


@pytest.fixture
async def client(settings: Settings) -> AsyncIterator[Client]:
    async with running(settings, tools=[send_note, post_note, find_note]) as client:
        yield client


async def said(client: Client, provider: Provider, *replies: Any, session: str | None = None) -> str:
    provider.will(*replies)
    answer = await client.chat(session or await client.new_session(), "What about the note to Rossi?")
    content: str = answer["message"]["content"]
    return content


async def test_the_model_is_asked_once_with_its_calls_in_view_and_its_second_answer_counts(
    client: Client, provider: Provider
) -> None:
    assert await said(client, provider, says(CLAIM), says("I have not sent it. Shall I?")) == (
        "I have not sent it. Shall I?"
    )
    assert '"calls_that_changed":[]' in str(provider.requests[-1]["messages"][-1])
    assert len(provider.requests) == 2


async def test_an_answer_that_claims_it_again_is_followed_by_a_line_in_the_users_language(
    client: Client, provider: Provider
) -> None:
    assert await said(client, provider, says(CLAIM), says(CLAIM)) == f"{CLAIM}\n\n{NOTHING}"
    provider.will(says("Ho inviato la nota a Rossi."), says("Ho inviato la nota a Rossi."))
    answer = await client.chat(await client.new_session(), "Manda per favore una nota a Rossi")
    assert answer["message"]["content"].endswith(translate("nothing_changed", "it"))


async def test_what_a_call_of_the_turn_did_or_may_have_done_is_no_false_claim(
    client: Client, provider: Provider
) -> None:
    assert await said(client, provider, calls(("send_note", {"to": "Rossi"})), says(CLAIM)) == CLAIM


BOTH = "I have sent the note. I have posted it too."


@pytest.mark.in_turns(1)
@pytest.mark.parametrize(("read", "answer"), [("none", BOTH), ("confirm", "It is sent, and could not be posted.")])
async def test_after_a_failure_the_small_model_reads_whether_the_answer_claims_more_than_was_done(
    client: Client, provider: Provider, read: str, answer: str
) -> None:
    tried = calls(("send_note", {"to": "Rossi"}), ("post_note", {"to": "Rossi"}))
    more = [] if read == "none" else [says(answer)]
    assert await said(client, provider, tried, says(BOTH), reads(read), *more) == answer
    [asked] = [each for each in provider.requests if "You check what an assistant says" in str(each["messages"])]
    assert BOTH in str(asked["messages"])
    assert "post_note" not in str(asked["messages"])


async def test_a_claim_of_what_failed_that_was_heard_is_followed_by_the_failure(
    client: Client, provider: Provider
) -> None:
    tried = calls(("send_note", {"to": "Rossi"}), ("post_note", {"to": "Rossi"}))
    provider.will(tried, streams("I have sent the note. ", "I have posted it too."), reads("confirm"))
    async with chatting(client, await client.new_session(), "What about the note to Rossi?") as stream:
        events = await stream.rest()
    assert list(texts(events).values()) == [f"{BOTH}\n\n✗ post note — no address of Rossi"]


async def test_a_call_that_only_reads_sends_nothing(client: Client, provider: Provider) -> None:
    looked = calls(("find_note", {"word": "Rossi"}))
    assert await said(client, provider, looked, says(CLAIM), says(CLAIM)) == f"{CLAIM}\n\n{NOTHING}"


@pytest.mark.in_turns(1)
@pytest.mark.parametrize(("read", "answer"), [("none", CLAIM), ("confirm", "It is not sent.")])
async def test_of_an_earlier_effect_the_small_model_reads_whether_the_answer_reports_it(
    client: Client, provider: Provider, read: str, answer: str
) -> None:
    session = await client.new_session()
    await said(client, provider, calls(("send_note", {"to": "Rossi"})), says(CLAIM), session=session)
    more = [] if read == "none" else [says("It is not sent.")]
    assert await said(client, provider, says(CLAIM), reads(read), *more, session=session) == answer
    [asked] = [each for each in provider.requests if "You check what an assistant says" in str(each["messages"])]
    assert "send_note succeeded" in str(asked["messages"])


@pytest.mark.sweep
async def test_words_that_were_heard_already_are_followed_by_the_line_alone(client: Client, provider: Provider) -> None:
    provider.will(streams("I have sent ", "the note to Rossi."))
    async with chatting(client, await client.new_session(), "What about the note to Rossi?") as stream:
        events = await stream.rest()
    assert list(texts(events).values()) == [f"{CLAIM}\n\n{NOTHING}"]
    assert len(provider.requests) == 1


@pytest.mark.sweep
async def test_where_no_tool_could_have_done_it_words_about_a_text_are_no_claim(
    settings: Settings, provider: Provider
) -> None:
    async with running(settings) as client:
        for answer in ("I have updated the second paragraph.", "Done."):
            assert await said(client, provider, says(answer)) == answer
    assert len(provider.requests) == 2
