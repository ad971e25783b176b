"""The turns of a process that is gone go on long before their leases end, and no others."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack
from typing import Any

import asyncpg
import pytest
from pydantic import SecretStr
from starlette.responses import Response
from structlog.testing import capture_logs

from segue.around.doctor.examine import examine
from segue.config import Settings
from segue.domain.ids import utc_now
from tests.support.left_turns import left_running
from tests.support.logs import awaiting, until
from tests.support.patience import PATIENCE_S
from tests.support.provider import Provider, says
from tests.support.proxy import door_to
from tests.support.service import Client, running
from tests.support.stores import looking_into

HERE = "database = (SELECT oid FROM pg_database WHERE datname = current_database())"
LOCKS = f"FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 1 AND {HERE} AND pid <> pg_backend_pid()"
OF_WORKER = "(classid::bigint << 32 | objid::bigint) = hashtextextended(turns.worker, 1)"
OUTAGE = {  # what is told at the beginning, and at the end
    "presence_not_held": "presence_held",
    "recovery_failed": "recovery_works",
    "limits_not_read": "limits_are_current",
}
LOOKING_AFTER = ("presence_not_held", "recovery_failed", "leases_not_renewed")
GONE, FROZEN, OLDER = "gone/1:1", "frozen/1:1", "older:1"


@pytest.fixture
def patient(settings: Settings) -> Settings:
    """No lease ends within a test."""
    return settings.model_copy(update={"turn_lease_s": 600})


@pytest.fixture
async def database(settings: Settings) -> AsyncIterator[asyncpg.Connection]:
    async with looking_into(settings) as stores:
        yield stores.database


async def untouched(database: asyncpg.Connection, *sessions: str) -> bool:
    """Whether their turns are still those of the first who claimed them, for long."""
    stand = "SELECT count(*) FROM turns WHERE session_id = ANY($1) AND status = 'running' AND attempts = 1"
    return bool(
        await database.fetchval(f"{stand} AND lease_until > now() + interval '60 s'", sessions) == len(sessions)
    )


async def test_only_of_workers_without_a_lock_are_those_with_a_lock_no_more_taken_for_gone(
    patient: Settings, provider: Provider, database: asyncpg.Connection
) -> None:
    provider.will_to(GONE, says("Taken over."))
    await database.execute("SELECT pg_advisory_lock(hashtextextended($1, 1))", FROZEN)
    async with running(patient) as client:
        sessions = await left_running(patient, client, FROZEN, OLDER, GONE)
        [turn] = await client.ended(sessions[GONE])
        assert (turn["attempts"], turn["answer"]["message"]["content"]) == (2, "Taken over.")
        assert await untouched(database, sessions[FROZEN], sessions[OLDER])


async def test_a_turn_taken_over_where_none_may_run_is_queued_for_others_at_once(
    patient: Settings, provider: Provider
) -> None:
    provider.will_to(GONE, says("Taken over."))
    async with running(patient, takes_turns=False) as accepts, awaiting("turn_recovered") as recovered:
        sessions = await left_running(patient, accepts, GONE)
        async with asyncio.timeout(PATIENCE_S):
            await recovered.wait()
        async with looking_into(patient) as stores:
            await stores.database.execute("UPDATE turns SET queued_at = now() + interval '1 hour'")  # not by recovery
        async with running(patient):
            await accepts.ended(sessions[GONE])


class Thinking:
    """A model that answers once it is let go."""

    def __init__(self) -> None:
        self.asked, self.go = asyncio.Event(), asyncio.Event()

    async def __call__(self, _: Mapping[str, Any]) -> Response:
        self.asked.set()
        await self.go.wait()
        return says("A long thought.")


async def thinks(client: Client, provider: Provider) -> tuple[str, Thinking]:
    thought = Thinking()
    provider.will_to("Think", thought)
    session = await client.new_session()
    await client.send(session, "Think", background=True)
    async with asyncio.timeout(PATIENCE_S):
        await thought.asked.wait()
    return session, thought


async def test_a_worker_that_is_taken_for_gone_and_lives_renews_its_lease(
    patient: Settings, provider: Provider, database: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("segue.turns.presence.GRACE_S", 60.0)

    async def is_renewed() -> bool:
        return bool(await database.fetchval("SELECT lease_until > now() + interval '100 s' FROM turns"))

    async with running(patient) as client:
        session, thought = await thinks(client, provider)
        for _ in range(2):  # the first time its first renewal was due
            await database.execute("UPDATE turns SET lease_until = now() + interval '50 s'")
            await until(is_renewed)
        thought.go.set()
        [turn] = await client.ended(session)
    assert turn["attempts"] == 1


async def is_locked(database: asyncpg.Connection) -> bool:
    """Whether the name of the one turn's worker is that of a lock."""
    return bool(await database.fetchval(f"SELECT EXISTS (SELECT {LOCKS} AND {OF_WORKER}) FROM turns"))  # noqa: S608


async def test_a_turn_that_waited_for_the_start_of_a_process_is_claimed_by_the_name_of_its_lock(
    patient: Settings, provider: Provider, database: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    thought = Thinking()
    provider.will_to("Think", thought)
    async with running(patient, takes_turns=False) as accepts:
        session = await accepts.new_session()
        await accepts.send(session, "Think", background=True)
    monkeypatch.setattr("segue.turns.presence.token_hex", lambda _: "taken")
    name = f"{socket.gethostname()}/taken:{os.getpid()}"
    await database.execute("SELECT pg_advisory_lock(hashtextextended($1, 1))", name)

    async def is_waited_for() -> bool:
        return bool(await database.fetchval(f"SELECT count(*) {LOCKS} AND NOT granted"))

    async def let_go() -> None:
        await until(is_waited_for)
        await database.execute("SELECT pg_advisory_unlock_all()")

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(let_go())
        async with running(patient) as client:
            async with asyncio.timeout(PATIENCE_S):
                await thought.asked.wait()
            assert await is_locked(database)
            thought.go.set()
            await client.ended(session)


async def test_a_process_that_has_lost_its_connection_takes_its_lock_again_and_doubts_nobody_for_a_while(
    patient: Settings, provider: Provider, database: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("segue.turns.presence.SETTLED_S", 600.0)

    async def is_locked_again() -> bool:
        return await is_locked(database)

    async def has_looked_again() -> bool:
        looked = f"query_start > $1 AND state = 'idle' AND pid IN (SELECT pid {LOCKS})"
        return bool(await database.fetchval(f"SELECT count(*) FROM pg_stat_activity WHERE {looked}", since))  # noqa: S608

    async with running(patient) as client:
        session, thought = await thinks(client, provider)
        await until(is_locked_again)
        before = await database.fetchval("SELECT worker FROM turns")
        await database.execute(f"SELECT pg_terminate_backend(pid, 5000) {LOCKS}")
        await until(is_locked_again)
        assert await database.fetchval("SELECT worker FROM turns") != before
        sessions = await left_running(patient, client, GONE)
        since = await database.fetchval("SELECT clock_timestamp()")
        await until(has_looked_again)
        assert await untouched(database, session, sessions[GONE])
        thought.go.set()
        await client.ended(session)


@pytest.mark.sweep
async def test_the_log_tells_once_that_an_outage_has_begun_and_once_that_it_is_over(
    patient: Settings, database_url: str
) -> None:
    def times(event: str) -> int:
        return sum(each["event"] == event for each in told)

    async def has_failed_for_long() -> bool:
        return door.arrivals > begun + 15  # of four a second: what looks most seldom has looked twice

    async def is_over() -> bool:
        return all(map(times, OUTAGE.values()))

    async with door_to(database_url) as (door, behind):
        beyond = patient.model_copy(update={"database_url": SecretStr(behind)})
        async with running(beyond):
            with capture_logs() as told:
                begun = door.arrivals
                await door.begin("hangs_up")
                await until(has_failed_for_long)
                await door.open()
                await until(is_over)
    assert [(times(begins), times(ends)) for begins, ends in OUTAGE.items()] == [(1, 1)] * len(OUTAGE)


@pytest.mark.sweep
async def test_a_fault_that_is_no_outage_ends_nothing_that_looks_after_turns(
    patient: Settings, provider: Provider
) -> None:
    provider.will_to(GONE, says("Taken over."))
    async with running(patient) as client, looking_into(patient) as stores, AsyncExitStack() as stack:
        session, thought = await thinks(client, provider)
        told = [await stack.enter_async_context(awaiting(each)) for each in LOOKING_AFTER]
        async with stores.hidden("turns"), asyncio.timeout(PATIENCE_S):
            await asyncio.gather(*(each.wait() for each in told))
        left = await left_running(patient, client, GONE)
        assert (await client.ended(left[GONE]))[0]["attempts"] == 2
        thought.go.set()
        assert (await client.ended(session))[0]["attempts"] == 1
        assert (await client.get("/health/ready"))["worker"] == "ok"


@pytest.mark.hasty
async def test_a_turn_whose_acceptance_was_not_heard_is_found_by_the_process_that_accepted_it(
    patient: Settings, database_url: str, provider: Provider
) -> None:
    provider.will(says("Here."))
    async with (
        door_to(database_url) as (door, behind),
        running(patient.model_copy(update={"database_url": SecretStr(behind)})) as client,
    ):
        session = await client.new_session()
        lost = door.lose(b"Where am I")
        refused = await client.send(session, "Where am I?")
        assert (refused.status_code, lost.is_set()) == (503, True)
        [turn] = await client.ended(session)
    assert (turn["status"], turn["attempts"]) == ("completed", 1)


@pytest.mark.hasty
@pytest.mark.sweep
async def test_a_turn_whose_claim_was_not_heard_runs_at_once_and_costs_no_attempt(
    patient: Settings, database_url: str, provider: Provider
) -> None:
    provider.will(says("Here."))
    async with running(patient, takes_turns=False) as accepts, door_to(database_url) as (door, behind):
        session = await accepts.new_session()
        lost = door.lose(b"Where am I")
        await accepts.send(session, "Where am I?", background=True)
        async with running(patient.model_copy(update={"database_url": SecretStr(behind)})):
            [turn] = await accepts.ended(session)
    assert lost.is_set()
    assert (turn["status"], turn["attempts"]) == ("completed", 1)


async def test_behind_a_pooler_the_lease_decides_and_log_and_doctor_say_so(
    patient: Settings, provider: Provider, database_url: str, database: asyncpg.Connection
) -> None:
    async with door_to(database_url) as (pooler, behind):
        pooler.pools = True
        pooled = patient.model_copy(update={"database_url": SecretStr(behind)})
        async with awaiting("presence_not_held") as told, running(pooled) as client:
            async with asyncio.timeout(PATIENCE_S):
                await told.wait()
            session, thought = await thinks(client, provider)
            assert await database.fetchval(f"SELECT count(*) {LOCKS}") == 0
            assert "/" not in await database.fetchval("SELECT worker FROM turns")
            thought.go.set()
            await client.ended(session)
        report = await examine(pooled.model_copy(update={"openai_base_url": None}))
    assert "A pooler is in front of it" in "".join(report.lines(utc_now()))
