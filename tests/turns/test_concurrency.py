"""One turn at a time in a session, as many sessions side by side as there are."""

import asyncio
from collections.abc import Sequence
from typing import Any

import orjson
import pytest
from starlette.responses import Response

from segue.agent.prompts import in_own_words
from segue.config import Settings
from segue.db.engine import Database
from segue.domain.identity import LOCAL_USER
from segue.domain.ids import utc_now
from segue.models.untrusted import unfenced
from segue.turns.admission import begin_turn
from segue.turns.chat_request import ChatRequest
from tests.support.provider import Provider, calls, fails, says
from tests.support.service import Client, running
from tests.support.stores import arrived

ZONES = (
    "Africa/Cairo",
    "America/Lima",
    "Asia/Kolkata",
    "Asia/Tokyo",
    "Europe/Oslo",
    "Europe/Rome",
    "Pacific/Fiji",
    "UTC",
)


async def looks_then_answers(body: dict[str, Any]) -> Response:
    """Calls `current_time` with the zone the user named, then says that zone."""
    said = next(message["content"] for message in reversed(body["messages"]) if message["role"] == "user")
    zone = in_own_words(said)
    return says(zone) if body["messages"][-1]["role"] == "tool" else calls(("current_time", {"timezone": zone}))


def exchange(zone: str) -> list[str]:
    return [f"user {zone}", f"calls {zone}", f"tool {zone}", f"assistant {zone}"]


def heard(messages: Sequence[dict[str, Any]]) -> list[str]:
    """What a request holds beside its system message, each message with the zone it is about."""
    told = []
    for message in messages[1:]:
        if message["role"] == "tool":
            result = orjson.loads(unfenced(message["content"]))
            told.append(f"tool {result.get('args', result)['timezone']}")
        elif message.get("tool_calls"):
            [call] = message["tool_calls"]
            told.append(f"calls {orjson.loads(call['function']['arguments'])['timezone']}")
        else:
            told.append(f"{message['role']} {in_own_words(message['content'])}")
    return told


@pytest.mark.sweep  # tests/faults/test_instances.py has eight at two instances
async def test_eight_messages_at_once_run_one_after_the_other_and_each_sees_those_before(
    settings: Settings, provider: Provider
) -> None:
    provider.will(*[looks_then_answers] * 16)
    async with running(settings.model_copy(update={"history_limit": 32})) as client:
        session = await client.new_session()
        answers = await asyncio.gather(*(client.chat(session, zone) for zone in ZONES))
        rows = await client.messages(session)
        memory = (await client.get(f"/sessions/{session}/memory"))["short_term"]
    assert [answer["message"]["content"] for answer in answers] == list(ZONES)
    assert [[call["args"]["timezone"] for call in answer["tool_calls"]] for answer in answers] == [[z] for z in ZONES]
    assert [row["seq"] for row in rows] == list(range(1, 33))
    arrived = [row["content"] for row in rows if row["role"] == "user"]
    asked = [heard(provider.messages(number)) for number in range(0, 16, 2)]
    before: list[str] = []
    for zone, window in zip(arrived, asked, strict=True):
        assert window == [*before, f"user {zone}"]
        before += exchange(zone)
    assert [result["args"]["timezone"] for result in memory["tool_results"]] == arrived[::-1]
    assert (memory["last_user_message"], memory["message_count"]) == (arrived[-1], 32)


async def test_a_message_that_another_process_accepted_meanwhile_is_answered_next(
    settings: Settings, provider: Provider, database_url: str
) -> None:
    entered, release = asyncio.Event(), asyncio.Event()

    async def held(_: dict[str, Any]) -> Response:
        entered.set()
        await release.wait()
        return says("first")

    provider.will(held, says("second"))
    async with running(settings.model_copy(update={"turn_lease_s": 600})) as client:
        session = await client.new_session()
        first = asyncio.create_task(client.chat(session, "0"))
        await entered.wait()
        elsewhere = Database(database_url)
        async with elsewhere.autocommit() as connection:
            await begin_turn(connection, LOCAL_USER, session, ChatRequest("1"), now=utc_now(), room=9)
        await elsewhere.close()
        release.set()
        await first
        await provider.wait_for_requests(2)
    assert provider.messages(1, role="user")[-1]["content"] == "1"


@pytest.mark.sweep
async def test_sessions_do_not_wait_for_each_other(client: Client, provider: Provider) -> None:
    release = asyncio.Event()

    async def held(body: dict[str, Any]) -> Response:
        await release.wait()
        return says(in_own_words(body["messages"][-1]["content"]))

    provider.will(*[held] * 5)
    sessions = [await client.new_session() for _ in range(5)]
    turns = [asyncio.create_task(client.chat(session, f"in {session}")) for session in sessions]
    await provider.wait_for_requests(5)
    assert [(await client.get(f"/sessions/{session}"))["running_turn_id"] is None for session in sessions] == [
        False
    ] * 5
    release.set()
    answers = await asyncio.gather(*turns)
    assert [answer["message"]["content"] for answer in answers] == [f"in {session}" for session in sessions]
    assert [(await client.get(f"/sessions/{session}"))["running_turn_id"] for session in sessions] == [None] * 5


async def test_a_held_session_lets_others_finish_and_keeps_its_own_line(
    client: Client, provider: Provider, settings: Settings
) -> None:
    release = asyncio.Event()

    async def held(_: dict[str, Any]) -> Response:
        await release.wait()
        return says("first")

    provider.will(held, says("elsewhere"), says("second"))
    busy, free = await client.new_session(), await client.new_session()
    first = asyncio.create_task(client.chat(busy, "one"))
    await provider.wait_for_requests(1)
    second = asyncio.create_task(client.chat(busy, "two"))
    assert (await client.chat(free, "hello"))["message"]["content"] == "elsewhere"
    await arrived(settings, busy, 2)
    assert len(provider.requests) == 2
    release.set()
    answers = await asyncio.gather(first, second)
    assert [answer["message"]["content"] for answer in answers] == ["first", "second"]


async def test_a_turn_that_failed_does_not_hold_up_those_behind_it(
    client: Client, provider: Provider, settings: Settings
) -> None:
    release = asyncio.Event()

    async def fails_late(_: dict[str, Any]) -> Response:
        await release.wait()
        return fails(500)

    provider.will(fails_late, says("second"), says("third"))
    session = await client.new_session()
    first = asyncio.create_task(client.send(session, "one"))
    await provider.wait_for_requests(1)
    second = asyncio.create_task(client.chat(session, "two"))
    await arrived(settings, session, 2)
    third = asyncio.create_task(client.chat(session, "three"))
    await arrived(settings, session, 3)
    release.set()
    assert (await first).status_code == 502
    assert [(await turn)["message"]["content"] for turn in (second, third)] == ["second", "third"]
    assert [message["content"] for message in provider.messages()[1:]] == ["one", "two", "second", "three"]
