"""Titles by the small model: after the first answer, once, and never over one that a user has given."""

import asyncio
from typing import Any

import orjson
import pytest
from starlette.responses import Response

from segue.config import Settings
from tests.support.logs import awaiting
from tests.support.plans import Frozen
from tests.support.provider import Provider, fails, says
from tests.support.service import Client, running
from tests.support.stores import Stores, looking_into
from tests.support.streams import listening

ASKED = "Ciao, puoi dirmi come si coltivano i limoni in un vaso sul balcone in inverno?"
SETTLED = "SELECT title FROM sessions WHERE id = $1 AND title_due_at IS NULL"
SPENT = """
INSERT INTO usage (owner, day, model, calls, input_tokens, cached_tokens, output_tokens, reasoning_tokens, estimated)
SELECT owner, $1, 'm', 1, 1000000, 0, 0, 0, false FROM sessions
"""
IS_LATE_OR_SETTLED = """
SELECT title_due_at IS NULL OR title_due_at BETWEEN now() + interval '1 hour' AND now() + interval '1 day' FROM sessions
"""


@pytest.fixture
def small(settings: Settings) -> Settings:
    return settings.model_copy(update={"llm_small_model": "small"})


async def title_of(client: Client, session: str) -> str:
    return str((await client.get(f"/sessions/{session}"))["title"])


async def settled(stores: Stores, session: str) -> str:
    """The title once no better one is due."""
    return str(await stores.until(SETTLED, session))


async def test_a_title_is_made_after_the_first_answer_in_the_sessions_language_and_told_in_the_feed(
    small: Settings, provider: Provider
) -> None:
    provider.will(says("In vaso, al sole."), says("Prego."))
    provider.title = says('"Limoni in vaso."\n(due parole)')
    async with running(small) as client, looking_into(small) as stores, listening(client, "/events") as feed:
        session = await client.new_session(language="it")
        await client.chat(session, ASKED)
        heard = await feed.until("session_titled")
        assert heard[-1].event == {"type": "session_titled", "session_id": session, "title": "Limoni in vaso"}
        assert await settled(stores, session) == await title_of(client, session) == "Limoni in vaso"
        await client.chat(session, "grazie mille per tutto")
        booked = "SELECT sum(calls) FROM usage WHERE session_id = $1 AND model = 'small'"
        assert await stores.until(booked, session) == 1
    [asked] = provider.titles
    assert asked["model"] == "small"
    given = orjson.loads(asked["messages"][-1]["content"])
    assert given == {"user": ASKED, "assistant": "In vaso, al sole.", "language": "it"}


async def test_what_models_write_around_a_title_is_left_out_in_any_script_and_quotes_within_it_stay(
    small: Settings, provider: Provider
) -> None:
    written = {
        "**«Limoni in vaso».**": "Limoni in vaso",
        "La vita di «Dante»": "La vita di «Dante»",
        '"Growing" and "Watering"': '"Growing" and "Watering"',
        "「阳台种柠檬」。": "阳台种柠檬",
        "《柠檬》": "柠檬",
        "\u200f«زراعة الليمون»\u200f": "زراعة الليمون",
    }
    async with running(small) as client, looking_into(small) as stores:
        for answer, title in written.items():
            provider.will(says("Bene."))
            provider.title = says(answer)
            session = await client.new_session()
            await client.chat(session, ASKED)
            assert await settled(stores, session) == title


async def test_a_title_set_by_hand_stays_also_if_it_is_set_while_the_model_thinks(
    small: Settings, provider: Provider
) -> None:
    go = asyncio.Event()

    async def thinking(_: dict[str, Any]) -> Response:
        go_on.set()
        await go.wait()
        return says("The model's")

    go_on, provider.title = asyncio.Event(), thinking
    async with running(small) as client, looking_into(small) as stores:
        named = await client.new_session(title="hello")
        cleared = await client.new_session()
        provider.will(says("Hi."), says("Hi."))
        await client.chat(named, "hello")
        await client.chat(cleared, "hello")
        await go_on.wait()
        await client.http.patch(f"/sessions/{cleared}", json={"title": "hello"})
        async with awaiting("title_written") as written:
            go.set()
            await written.wait()
        assert await settled(stores, cleared) == await settled(stores, named) == "hello"
    assert len(provider.titles) == 1


async def forked(client: Client, session: str, message: str) -> str:
    return str((await client.http.post(f"/sessions/{session}/fork", json={"message_id": message})).json()["id"])


async def test_a_title_that_a_cap_leaves_no_room_for_is_made_once_it_lifts(small: Settings, provider: Provider) -> None:
    clock = Frozen()
    capped = small.model_copy(update={"limit_tokens_per_day": 1_000_000})
    provider.title = says("Greetings")
    async with looking_into(small) as stores:

        async def spends_all(_: dict[str, Any]) -> Response:
            await stores.database.execute(SPENT, clock().date())
            return says("Hi.")

        provider.always("hello", spends_all)
        async with running(capped, clock=clock) as client:
            session = await client.new_session()
            await client.chat(session, "hello")
            await stores.until(IS_LATE_OR_SETTLED)
        assert provider.titles == []
        await stores.database.execute("UPDATE sessions SET title_due_at = now() WHERE title_due_at IS NOT NULL")
        async with running(small):
            assert await settled(stores, session) == "Greetings"


@pytest.mark.sweep
async def test_a_title_that_a_process_left_unmade_another_one_makes_and_one_that_fails_stays_the_first_words(
    small: Settings, provider: Provider
) -> None:
    asked, never = asyncio.Event(), asyncio.Event()

    async def silent(_: dict[str, Any]) -> Response:
        asked.set()
        await never.wait()
        return says("too late")

    provider.title = silent
    async with looking_into(small) as stores:
        async with running(small) as client:
            session = await client.new_session()
            provider.will(says("Hi."))
            answer = await client.chat(session, "hello")
            assert answer["message"]["content"] == "Hi."
            await asked.wait()
        never.set()
        provider.title = says("Greetings")
        async with running(small) as client:
            assert await settled(stores, session) == "Greetings"
            provider.title = fails(400)
            provider.will(says("Bye."))
            other = await client.new_session()
            await client.chat(other, "good bye")
            assert await settled(stores, other) == "good bye"


@pytest.mark.sweep
async def test_a_fork_that_still_has_the_first_words_gets_a_title_of_its_own_after_its_next_answer(
    small: Settings, provider: Provider
) -> None:
    go = asyncio.Event()

    async def thinking(_: dict[str, Any]) -> Response:
        await go.wait()
        return says("Greetings")

    provider.title = thinking
    async with running(small) as client, looking_into(small) as stores:
        session = await client.new_session()
        provider.will(says("Hi."), says("Again."), says("Once more."))
        message = (await client.chat(session, "hello"))["message"]["id"]
        waits = await forked(client, session, message)
        go.set()
        assert await settled(stores, session) == "Greetings"
        named = await forked(client, session, message)
        assert (await title_of(client, waits), await settled(stores, named)) == ("hello", "Greetings")
        provider.title = says("Good day")
        await client.chat(named, "and now?")
        await client.chat(waits, "and now?")
        assert (await settled(stores, waits), await title_of(client, named)) == ("Good day", "Greetings")
    assert len(provider.titles) == 2


async def test_without_a_small_model_the_first_words_stay(client: Client, provider: Provider) -> None:
    provider.will(says("Hi."))
    session = await client.new_session()
    await client.chat(session, "hello")
    assert (await title_of(client, session), provider.titles) == ("hello", [])
