"""What fails in several sessions is failed for all: counted over instances, tried once, never a wrong block."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr
from redis.asyncio import Redis

from segue.config import Settings
from tests.support.health import (
    MOODY,
    QUESTION,
    called,
    fails_for_all,
    fails_out,
    obedient,
    offered,
    reset,
    state,
    uses,
)
from tests.support.plans import Frozen
from tests.support.provider import Provider, calls, says
from tests.support.proxy import Outage, proxied
from tests.support.service import Client, running
from tests.support.shelf import Shelf

WAIT = timedelta(seconds=300)


@pytest.fixture
async def redis(redis_url: str) -> AsyncIterator[Redis]:
    async with Redis.from_url(redis_url, protocol=2) as connected:
        yield connected


async def for_all(client: Client) -> dict[str, Any]:
    found: dict[str, Any] = (await client.get("/tool-states", tool=MOODY))["tools"][MOODY]["fleet"]
    return found


async def reset_fleet(client: Client, **body: object) -> dict[str, Any]:
    response = await client.http.post("/tool-states/reset", json=body)
    assert response.status_code == 200, response.text
    after: dict[str, Any] = response.json()
    return after


async def test_a_tool_that_failed_out_in_three_sessions_has_failed_for_all(
    client: Client, other: Client, provider: Provider, shelf: Shelf, redis: Redis
) -> None:
    for _ in range(2):
        await fails_out(client, provider, shelf)
        assert (await for_all(other))["available"]
    await fails_out(other, provider, shelf)
    fleet = await for_all(client)
    assert min([await redis.ttl(key) for key in await redis.keys("segue:tools:*")]) > 0
    assert (fleet["status"], fleet["available"], fleet["reason_code"]) == ("failed", False, "fleet_failed")
    session = await client.new_session()
    effects = len(shelf.effects)
    [call] = await called(client, provider, session, (MOODY, {"word": "x"}))
    assert (call["status"], len(shelf.effects)) == ("failed", effects)
    assert MOODY not in offered(provider, -2)
    seen = await state(other, session)
    assert (seen["status"], seen["available"], seen["reason_code"]) == ("available", False, "fleet_failed")
    assert seen["retry_at"] == "2026-11-20T09:05:00Z"


@pytest.mark.sweep
async def test_what_only_sessions_count_is_left_out_of_the_fleet_and_not_told_as_none_or_never(
    client: Client, provider: Provider, shelf: Shelf
) -> None:
    counted = ("execution_count", "consecutive_failures")
    session = await client.new_session()
    assert await uses(client, provider, session) == "succeeded"
    assert [(await for_all(client))[name] for name in counted] == [None, None]
    await fails_for_all(client, provider, shelf)
    fleet = await for_all(client)
    assert [fleet[name] for name in counted] == [None, None]
    assert (fleet["last_failure_time"], fleet["last_success_time"]) == ("2026-11-20T09:00:00Z", None)
    held = (await client.http.put(f"/tool-states/{MOODY}", json={"status": "maintenance"})).json()
    assert [held[name] for name in counted] == [None, None]
    assert [(await state(client, session))[name] for name in counted] == [1, 0]


@pytest.mark.sweep
async def test_what_a_tool_said_in_one_session_is_not_told_in_another(
    client: Client, provider: Provider, shelf: Shelf
) -> None:
    await fails_for_all(client, provider, shelf)
    session = await client.new_session()
    [call] = await called(client, provider, session, (MOODY, {"word": "x"}))
    for told in (
        call["error"],
        str(provider.messages(-2)),
        str(await state(client, session)),
        str(await for_all(client)),
    ):
        assert "the shelf is closed" not in told
    assert "It has failed in several sessions." in call["error"]


@pytest.mark.sweep
async def test_one_sessions_trouble_stays_its_own(
    client: Client, provider: Provider, shelf: Shelf, clock: Frozen
) -> None:
    session = await fails_out(client, provider, shelf)
    for _ in range(4):
        clock.now += timedelta(seconds=50)
        await reset(client, session)
        await fails_out(client, provider, shelf, session)
    assert (await for_all(client))["available"]
    assert await uses(client, provider, await client.new_session()) == "succeeded"


@pytest.mark.sweep
async def test_a_success_in_between_starts_the_count_anew(client: Client, provider: Provider, shelf: Shelf) -> None:
    for _ in range(2):
        await fails_out(client, provider, shelf)
    assert await uses(client, provider, await client.new_session()) == "succeeded"
    for _ in range(2):
        await fails_out(client, provider, shelf)
        assert (await for_all(client))["available"]
    await fails_out(client, provider, shelf)
    assert not (await for_all(client))["available"]


@pytest.mark.sweep
async def test_failures_further_apart_than_the_window_are_nobody_elses(
    client: Client, provider: Provider, shelf: Shelf, clock: Frozen
) -> None:
    await fails_out(client, provider, shelf)
    clock.now += WAIT + timedelta(seconds=1)
    for _ in range(2):
        await fails_out(client, provider, shelf)
    assert (await for_all(client))["available"]
    await fails_out(client, provider, shelf)
    assert not (await for_all(client))["available"]


@pytest.mark.sweep
async def test_over_two_instances_one_call_tries_the_tool_and_its_success_frees_it_for_all(
    client: Client, other: Client, provider: Provider, shelf: Shelf, clock: Frozen
) -> None:
    await fails_for_all(client, provider, shelf)
    clock.now += WAIT
    here, there = await client.new_session(), await other.new_session()
    shelf.open.clear()
    provider.will(*[obedient((MOODY, {"word": "x"}))] * 4)
    trying = asyncio.create_task(client.chat(here, QUESTION))
    await shelf.wait_for_effects(10)
    [refused] = (await other.chat(there, QUESTION))["tool_calls"]
    assert refused["error"].startswith(f"{MOODY} has failed and is just being tried again by another call.")
    shelf.open.set()
    [tried] = (await trying)["tool_calls"]
    assert (tried["status"], len(shelf.effects)) == ("succeeded", 10)
    assert (await for_all(other))["status"] == "available"
    assert await uses(other, provider, there) == "succeeded"


@pytest.mark.sweep  # the test above has two instances try
async def test_a_failed_try_over_two_instances_is_the_only_one(
    client: Client, other: Client, provider: Provider, shelf: Shelf, clock: Frozen
) -> None:
    failed = [await fails_out(client, provider, shelf) for _ in range(3)]
    clock.now += WAIT
    shelf.trouble = "still closed"
    sessions = [*failed, *[await client.new_session() for _ in range(3)]]
    provider.will(*[obedient((MOODY, {"word": "x"}))] * 12)
    instances = (client, other) * 3
    await asyncio.gather(*(one.chat(session, QUESTION) for one, session in zip(instances, sessions, strict=True)))
    assert len(shelf.effects) == 10
    assert (await for_all(other))["retry_at"] == "2026-11-20T09:10:00Z"
    assert not (await state(other, sessions[-1]))["available"]


@pytest.mark.sweep
async def test_a_call_that_waited_its_turn_looks_again_before_it_tries_the_tool(
    client: Client, other: Client, provider: Provider, shelf: Shelf, clock: Frozen
) -> None:
    await fails_for_all(client, provider, shelf)
    clock.now += WAIT
    here, there = await client.new_session(), await other.new_session()
    sleeping = [("mcp_sleepy", {"number": number}) for number in range(8)]
    provider.will(calls(*sleeping, (MOODY, {"word": "late"})), says("done"))
    waiting = asyncio.create_task(client.chat(here, QUESTION))
    await shelf.wait_for_effects(17)
    provider.script, later = [], provider.script
    shelf.trouble = "still closed"
    assert await uses(other, provider, there) == "failed"
    provider.script = later
    shelf.awake.set()
    [late] = [call for call in (await waiting)["tool_calls"] if call["tool_name"] == MOODY]
    assert (late["status"], "moody late" in shelf.effects) == ("failed", False)
    assert "wait until 2026-11-20T09:10:00Z" in late["error"]


@pytest.mark.sweep
async def test_the_fleet_is_reset_by_hand_and_a_session_where_it_is_named(
    client: Client, other: Client, provider: Provider, shelf: Shelf
) -> None:
    sessions = [await fails_out(client, provider, shelf) for _ in range(3)]
    after = await reset_fleet(other, tool_name=MOODY, scope="fleet")
    assert after["tools"][MOODY] == {"fleet": await for_all(client), "sessions": {"failed": 3}}
    assert after["tools"][MOODY]["fleet"]["available"]
    assert await uses(client, provider, await client.new_session()) == "succeeded"
    after = await reset_fleet(other, session_id=sessions[0])
    assert after["tools"][MOODY]["sessions"] == {"available": 2, "failed": 2}
    assert [item["session_id"] for item in after["items"]] == sessions[1:]
    assert await uses(client, provider, sessions[0]) == "succeeded"


@pytest.mark.in_turns(1)
@pytest.mark.parametrize("outage", ["refuses", "hangs_up"])
async def test_while_redis_is_away_nothing_has_failed_for_all(
    outage: Outage, settings: Settings, redis_url: str, provider: Provider, shelf: Shelf, clock: Frozen
) -> None:
    async with proxied(Path(redis_url.removeprefix("unix://"))) as proxy:
        behind = settings.model_copy(update={"redis_url": SecretStr(f"redis://127.0.0.1:{proxy.port}/0")})
        async with running(behind, clock=clock) as client:
            sessions = [await fails_out(client, provider, shelf) for _ in range(3)]
            assert not (await for_all(client))["available"]
            await proxy.begin(outage)
            assert (await for_all(client))["available"]
            assert await uses(client, provider, await client.new_session()) == "succeeded"
            assert (await state(client, sessions[0]))["status"] == "failed"
            await reset(client, sessions[0])
            await fails_out(client, provider, shelf, sessions[0])


@pytest.mark.sweep
async def test_a_fleet_that_lost_its_memory_blocks_nothing(
    client: Client, provider: Provider, shelf: Shelf, redis: Redis
) -> None:
    await fails_for_all(client, provider, shelf)
    await redis.flushall()
    assert await uses(client, provider, await client.new_session()) == "succeeded"


@pytest.mark.in_turns(1)
@pytest.mark.parametrize(
    "value", [b"{", b"null", b'{"status": "asleep"}', b'{"status": "failed", "failed_at": "noon"}']
)
async def test_a_state_of_the_fleet_that_cannot_be_read_blocks_nothing(
    value: bytes, client: Client, provider: Provider, redis: Redis
) -> None:
    await redis.hset("segue:tools:failed", MOODY, value)
    await redis.hset("segue:tools:failed", "gone_tool", value)
    assert (await for_all(client))["available"]
    assert await uses(client, provider, await client.new_session()) == "succeeded"
