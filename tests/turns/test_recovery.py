"""A turn whose process is killed goes on in another one: from what is stored, without doing anything twice."""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from pydantic import SecretStr
from sqlalchemy import func, select
from starlette.responses import Response

from segue.config import Settings
from segue.db.engine import Database
from segue.db.models import turns, usage
from segue.domain.errors import app_error
from segue.domain.identity import LOCAL_USER, Charge
from segue.domain.ids import utc_now
from segue.domain.session import AcknowledgementReport, MemoryReport, TurnReport, Usage, WebSearchReport
from segue.domain.telemetry import RunTimeline
from segue.memory.history import NewMessage, append_message
from segue.turns import claims, terminations
from segue.turns.claims import Claim, StaleTurn
from tests.support.left_turns import abandoned, left_running
from tests.support.provider import Provider, says
from tests.support.service import Client, running
from tests.support.stores import looking_into

NOTHING = TurnReport(AcknowledgementReport(), None, WebSearchReport(), MemoryReport(), Usage(), "nobody")
LAPSE = "UPDATE turns SET lease_until = now(), queued_at = now() - make_interval(mins => $2) WHERE session_id = $1"


async def test_a_worker_that_wakes_up_while_its_turn_runs_elsewhere_writes_nothing(
    client: Client, settings: Settings, provider: Provider
) -> None:
    go = asyncio.Event()

    async def held(_: dict[str, Any]) -> Response:
        await go.wait()
        return says("taken over")

    provider.will(held)
    session = await client.new_session()
    async with abandoned(settings, session) as (database, claim):
        await provider.wait_for_requests(1)
        [before] = await client.turns(session)
        assert (before["status"], before["attempts"]) == ("running", 2)
        await writes_nothing(database, claim)
        assert await client.turns(session) == [before]
        go.set()
        [turn] = await client.ended(session)
        rows = await client.messages(session)
        await writes_nothing(database, claim)
    assert (turn["status"], turn["answer"]["message"]["content"]) == ("completed", "taken over")
    assert [row["content"] for row in rows] == ["hello?", "taken over"]
    assert await client.messages(session) == rows
    assert await client.turns(session) == [turn]


async def writes_nothing(database: Database, claim: Claim) -> None:
    """Each statement that a worker writes a turn by, under a claim that another worker has taken from it."""
    with pytest.raises(StaleTurn):
        async with claims.fenced_transaction(database, claim) as connection:
            await append_message(connection, claim.key, NewMessage("assistant", "late", utc_now()))
    async with database.autocommit() as connection:
        with pytest.raises(StaleTurn):
            await terminations.finish_turn(
                connection,
                claim,
                answer=NewMessage("assistant", "late", utc_now()),
                report=NOTHING,
                timeline=RunTimeline(),
                cut_off=None,
                improves_title=False,
                charges={(utc_now().date(), "late"): Charge("late")},
            )
        assert await connection.scalar(select(func.count()).where(usage.c.model == "late")) == 0
        failed = app_error("internal_error")
        assert not await terminations.end_turn(connection, claim, failed, now=utc_now(), timeline=RunTimeline())
        assert not await terminations.requeue(connection, claim, "handed_back", timeout_s=300)
        assert await claims.renew_leases(connection, [claim], worker="late", lease_s=600) == set()
        assert await claims.still_held(connection, [claim]) == ({}, set())


async def test_a_turn_begun_again_has_the_time_that_its_first_attempt_left(
    client: Client, settings: Settings, provider: Provider
) -> None:
    never = asyncio.Event()

    async def held(_: dict[str, Any]) -> Response:
        await never.wait()
        return says("too late")

    provider.will(held)
    session = await client.new_session()
    async with abandoned(settings, session, lease_s=600), looking_into(settings) as stores:
        await stores.database.execute(
            "UPDATE turns SET lease_until = now(), started_at = now() - make_interval(secs => $1)",
            settings.turn_timeout_s - 1,
        )
        await provider.wait_for_requests(1)
        assert 0 < await stores.database.fetchval("SELECT left_s FROM turns") <= 1
        [turn] = await client.ended(session)
    never.set()
    assert (turn["error"]["code"], turn["attempts"]) == ("turn_timeout", 2)


async def test_a_turn_whose_owner_has_come_back_is_neither_taken_from_it_nor_ended(settings: Settings) -> None:
    async with running(settings, takes_turns=False) as client:
        session = await client.new_session()
    async with abandoned(settings, session) as (database, claim), database.autocommit() as connection:
        [seen] = await terminations.neglected_turns(connection, timeout_s=300)
        assert await claims.renew_leases(connection, [claim], worker="back", lease_s=600) == {claim.key.turn_id}
        assert not await terminations.requeue(connection, seen, "process_lost", timeout_s=300)
        assert not await terminations.end_turn(connection, seen, app_error("turn_gave_up", attempts=3), now=utc_now())
        assert (await connection.execute(select(turns.c.status))).scalar_one() == "running"


async def test_a_worker_that_wakes_up_after_its_turn_was_ended_elsewhere_writes_nothing(settings: Settings) -> None:
    """Its epoch is still the turn's."""
    gave_up = app_error("turn_gave_up", attempts=3)
    async with running(settings, takes_turns=False) as client:
        session = await client.new_session()
        async with abandoned(settings, session) as (database, claim):
            async with database.transaction() as connection:
                [seen] = await terminations.neglected_turns(connection, timeout_s=300)
                assert await terminations.end_turn(connection, seen, gave_up, now=utc_now()) is not None
            await writes_nothing(database, claim)
        [turn] = await client.turns(session)
        assert (turn["status"], turn["error"]["code"]) == ("failed", "turn_gave_up")
        assert [each["content"] for each in await client.messages(session)] == ["hello?"]


async def test_a_turn_is_cancelled_and_taken_by_nobody_but_its_owner(settings: Settings, client: Client) -> None:
    session = await client.new_session()
    async with (
        abandoned(settings, session, lease_s=600) as (database, claim),
        database.autocommit() as connection,
        looking_into(settings) as stores,
    ):
        row = await stores.database.fetchrow("SELECT * FROM turns")
        assert await terminations.cancel_turn(connection, "mallory", claim.key) == {}
        assert await terminations.cancel_before(connection, "mallory", replace(claim.key, turn_seq=9)) == {}
        await terminations.cancel_open_turns(connection, "mallory", session)
        assert await stores.database.fetchrow("SELECT * FROM turns") == row
        assert await terminations.cancel_turn(connection, LOCAL_USER, claim.key) == {claim.key: False}
        assert (await connection.execute(select(turns.c.cancel_requested_at))).scalar_one() is not None


@pytest.mark.in_turns(1)
@pytest.mark.parametrize(
    ("column", "value", "code"),
    [("attempts", 3, "turn_gave_up"), ("left_s", -9.0, "turn_timeout"), ("cancel_requested_at", ..., "turn_cancelled")],
)
async def test_a_lapsed_turn_that_is_not_to_be_tried_again_ends_with_the_reason(
    client: Client, settings: Settings, provider: Provider, column: str, value: Any, code: str
) -> None:
    session = await client.new_session()
    async with abandoned(settings, session, lease_s=600), looking_into(settings) as stores:
        await stores.database.execute(
            f"UPDATE turns SET {column} = $1, lease_until = now() - interval '1 second'",  # noqa: S608 (ours)
            datetime(2020, 1, 1, tzinfo=UTC) if value is ... else value,
        )
        [turn] = await client.ended(session)
    assert turn["error"]["code"] == code
    provider.will(says("here"))
    assert (await client.chat(session, "and now?"))["message"]["content"] == "here"


@pytest.mark.sweep
async def test_a_message_that_redis_lost_on_its_way_is_answered_all_the_same(
    settings: Settings, provider: Provider
) -> None:
    provider.will(says("found it"))
    async with running(settings, takes_turns=False) as accepts, looking_into(settings) as stores:
        session = await accepts.new_session()
        assert (await accepts.send(session, "hello", background=True)).status_code == 202
        await stores.redis.flushall()
        async with running(settings):
            [turn] = await accepts.ended(session)
    assert turn["answer"]["message"]["content"] == "found it"


@pytest.mark.hasty
@pytest.mark.sweep
async def test_turns_that_cannot_be_recovered_keep_no_other_from_it(
    settings: Settings, provider: Provider, own_database_url: str
) -> None:
    own = settings.model_copy(update={"database_url": SecretStr(own_database_url), "turn_lease_s": 1})
    provider.will(says("recovered"))
    async with running(own, takes_turns=False) as client:
        locked, refused, other = (await left_running(own, client, "locked", "refused", "other")).values()
    async with looking_into(own) as stores, looking_into(own) as holder:
        for ago, session in enumerate((other, refused, locked)):
            await stores.database.execute(LAPSE, session, ago)
        await stores.database.execute(f"ALTER TABLE turns ADD CHECK (session_id <> '{refused}' OR status = 'running')")
        async with holder.database.transaction():
            await holder.database.execute("SELECT FROM turns WHERE session_id = $1 FOR UPDATE", locked)
            async with running(own) as client:
                [turn] = await client.ended(other)
                assert (await client.get("/health/ready"))["worker"] == "ok"
                assert [(await client.turns(each))[0]["status"] for each in (locked, refused)] == ["running"] * 2
    assert turn["answer"]["message"]["content"] == "recovered"
