"""A tool that has failed comes back by one try: one call, one instance, one lease."""

import asyncio
from datetime import timedelta

import pytest
from pydantic import SecretStr
from redis.asyncio import Redis

from segue.config import Settings
from segue.tools.run import LONGEST
from tests.support.health import (
    MOODY,
    QUESTION,
    called,
    fails_out,
    obedient,
    offered,
    state,
    uses,
)
from tests.support.plans import Frozen
from tests.support.provider import Provider, calls, says
from tests.support.service import Client, running
from tests.support.shelf import Shelf

WAIT = timedelta(seconds=300)


async def test_a_try_that_succeeds_closes_the_matter_and_one_that_fails_opens_it_anew(
    client: Client, provider: Provider, shelf: Shelf, clock: Frozen
) -> None:
    session = await fails_out(client, provider, shelf)
    clock.now += WAIT - timedelta(seconds=1)
    assert not (await state(client, session))["available"]
    clock.now += timedelta(seconds=1)
    half_open = await state(client, session)
    assert (half_open["available"], half_open["reason_code"]) == (True, "half_open")
    shelf.trouble = "still closed"
    assert await uses(client, provider, session) == "failed"
    assert MOODY not in offered(provider)
    clock.now += WAIT
    shelf.trouble = None
    assert await uses(client, provider, session) == "succeeded"
    after = await state(client, session)
    assert (after["status"], after["consecutive_failures"], after["reason_code"]) == ("available", 0, "succeeded")
    assert len(shelf.effects) == 5


async def test_of_several_calls_in_a_round_one_tries_the_tool_and_the_others_run_nothing(
    client: Client, provider: Provider, shelf: Shelf, clock: Frozen
) -> None:
    session = await fails_out(client, provider, shelf)
    clock.now += WAIT
    shelf.open.clear()
    provider.will(calls((MOODY, {"word": "a"}), (MOODY, {"word": "b"}), (MOODY, {"word": "c"})), says("done"))
    turn = asyncio.create_task(client.chat(session, QUESTION))
    await shelf.wait_for_effects(4)
    shelf.open.set()
    made = (await turn)["tool_calls"]
    assert sorted(call["status"] for call in made) == ["failed", "failed", "succeeded"]
    assert [call["error"] for call in made if call["error"]] == [
        f"{MOODY} has failed and is just being tried again by another call. Go on without it for now."
    ] * 2
    assert len(shelf.effects) == 4
    assert (await state(client, session))["status"] == "available"


@pytest.mark.sweep  # test_fleet.py has two instances try
async def test_a_session_tries_its_tool_once_over_two_instances(
    client: Client, other: Client, provider: Provider, shelf: Shelf, clock: Frozen
) -> None:
    session = await fails_out(client, provider, shelf)
    clock.now += WAIT
    shelf.trouble = "still closed"
    provider.will(*[obedient((MOODY, {"word": "x"}))] * 4)
    await asyncio.gather(client.chat(session, QUESTION), other.chat(session, QUESTION))
    assert len(shelf.effects) == 4
    assert (await state(other, session))["retry_at"] == "2026-11-20T09:10:00Z"


@pytest.mark.sweep
async def test_a_try_that_hangs_frees_its_lease_and_counts_as_a_failure(
    settings: Settings, provider: Provider, shelf: Shelf, clock: Frozen
) -> None:
    impatient = settings.model_copy(update={"tool_timeout_s": 0.3})
    async with running(impatient, clock=clock) as client:
        session = await fails_out(client, provider, shelf)
        clock.now += WAIT
        shelf.open.clear()
        assert await uses(client, provider, session) == "failed"
        assert (await state(client, session))["retry_at"] == "2026-11-20T09:10:00Z"
        clock.now += WAIT
        shelf.open.set()
        assert await uses(client, provider, session) == "succeeded"


@pytest.mark.sweep
async def test_a_try_whose_process_died_holds_its_lease_for_the_longest_call_and_no_longer(
    settings: Settings, provider: Provider, shelf: Shelf, clock: Frozen, client: Client, redis_url: str
) -> None:
    session = await fails_out(client, provider, shelf)
    clock.now += WAIT
    shelf.open.clear()
    provider.will(calls((MOODY, {"word": "x"})), says("done"))
    turn = asyncio.create_task(client.chat(session, QUESTION))
    await shelf.wait_for_effects(4)
    async with Redis.from_url(redis_url, protocol=2) as redis:
        longest_s = LONGEST * settings.tool_timeout_s  # of a call that tells its progress
        assert longest_s * 1000 < await redis.pttl("segue:tools:try:mcp_moody") <= (longest_s + 5) * 1000
    shelf.open.set()
    await turn
    async with Redis.from_url(redis_url, protocol=2) as redis:
        assert not await redis.exists("segue:tools:try:mcp_moody")


@pytest.mark.sweep
async def test_without_redis_a_tool_that_failed_is_still_tried_only_once(
    settings: Settings, provider: Provider, shelf: Shelf, clock: Frozen
) -> None:
    lost = settings.model_copy(update={"redis_url": SecretStr("redis://127.0.0.1:1/0")})
    async with running(lost, clock=clock) as client:
        session = await fails_out(client, provider, shelf)
        assert MOODY not in offered(provider)
        clock.now += WAIT
        shelf.trouble = "still closed"
        await called(client, provider, session, *[(MOODY, {"word": str(number)}) for number in range(4)])
        assert len(shelf.effects) == 4
