"""A message whose process has a free place: one statement stores it and claims its turn."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import fields
from typing import Any

import pytest

from segue.config import Settings
from segue.db.engine import Database
from segue.domain.errors import AppError
from segue.domain.identity import LOCAL_USER
from segue.domain.ids import utc_now
from segue.domain.session import TurnOptions
from segue.memory.session_store import lock_session
from segue.turns import admission, claims
from segue.turns.admission import admit, run_again
from segue.turns.chat_request import ChatRequest, Once
from segue.turns.claims import Claim, Claimer
from segue.turns.queries import find_turn
from tests.support.left_turns import abandoned
from tests.support.provider import Provider, calls, fails, says
from tests.support.service import Client, running
from tests.support.stores import looking_into

HERE = Claimer("here", lease_s=600)
LOOKS_AFTER_LEASES = ("UPDATE turns SET lease_until", "UPDATE turns SET worker")  # of a process at any moment
OF_ONE_TURN = {"key", "queued_s", "last_turn_id", "answered_turn_id"}


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    database = Database(database_url)
    yield database
    await database.close()


async def accepted(database: Database, session: str, request: ChatRequest) -> Claim | None:
    async with database.autocommit() as connection:
        return await admission.begin_claimed(connection, LOCAL_USER, session, request, now=utc_now(), claimer=HERE)


async def then_claimed(database: Database, session: str, request: ChatRequest) -> Claim | None:
    async with database.autocommit() as connection:
        await admission.begin_turn(connection, LOCAL_USER, session, request, now=utc_now(), room=9)
        return await claims.claim_next(connection, session, worker=HERE.worker, lease_s=HERE.lease_s)


async def test_it_is_the_claim_that_the_turn_would_have_got_from_the_queue(
    client: Client, database: Database, settings: Settings, provider: Provider
) -> None:
    options = TurnOptions('{"b": 0, "a": 0}', stop=("END",), max_tokens=9, temperature=0.0, instructions="Be brief.")
    request = ChatRequest("My name is Ada.", force_web_search=True, stream=True, once=Once("k", "h"), options=options)
    rows = []
    for earlier in range(2):
        found: list[Claim | None] = []
        for way in (accepted, then_claimed):
            session = await client.new_session(language="it", time_zone="Europe/Rome")
            for _ in range(earlier):
                provider.will(says("Ciao."))
                await client.chat(session, "Hello.")
            found.append(await way(database, session, request))
            rows.append(await row_of(settings, session))
        at_once, queued = found
        assert at_once is not None
        assert at_once.request.options == options
        for each in fields(Claim):
            assert getattr(at_once, each.name) == getattr(queued, each.name) or each.name in OF_ONE_TURN, each.name
        assert at_once.key.turn_seq == 1 + 2 * earlier
    assert rows[0] == rows[1]
    assert rows[2] == rows[3]


async def row_of(settings: Settings, session: str) -> dict[str, Any]:
    async with looking_into(settings) as stores:
        row = await stores.database.fetchrow(
            """SELECT seq, status, epoch, attempts, agent, worker, request, idempotency_key, body_hash, left_s,
                   lease_until > now() + interval '9 minutes' AS is_leased, facts_due_at IS NOT NULL AS tells
            FROM turns WHERE session_id = $1 ORDER BY seq DESC LIMIT 1""",
            session,
        )
    return dict(row)


async def test_a_turn_of_a_busy_session_is_not_claimed_and_not_stored_twice(client: Client, database: Database) -> None:
    session = await client.new_session()
    assert await accepted(database, session, ChatRequest("first")) is not None
    assert await accepted(database, session, ChatRequest("second")) is None
    assert [turn["status"] for turn in await client.turns(session)] == ["running"]


async def test_a_service_with_a_free_place_claims_what_it_accepts(
    client: Client, settings: Settings, provider: Provider
) -> None:
    provider.will(says("Hello."))
    session = await client.new_session()
    await client.chat(session, "hello")
    async with looking_into(settings) as stores:
        assert await stores.database.fetchval("SELECT started_at = queued_at FROM turns")  # of one transaction


async def test_a_turn_with_a_tool_call_ends_without_a_look_for_the_next_one(
    client: Client, settings: Settings, provider: Provider
) -> None:
    session = await client.new_session()
    async with looking_into(settings) as stores, stores.writing() as writes:
        for _ in range(2):
            provider.will(calls(("current_time", {})), says("It is noon."))
            await client.chat(session, "What time is it?")
    looks = [write for write in writes if any(each in write for each in LOOKS_AFTER_LEASES)]
    of_turns = [write for write in writes if write.startswith("turns ") and write not in looks]
    assert len(of_turns) == 4, of_turns  # each is accepted, and ends


async def test_a_message_that_comes_while_a_failed_turn_is_run_again_finds_the_session_busy(
    client: Client, database: Database, settings: Settings, provider: Provider
) -> None:
    provider.will(fails(500))
    session = await client.new_session()
    assert (await client.send(session, "hello")).status_code >= 500
    [failed] = await client.turns(session)
    async with looking_into(settings) as stores, database.transaction() as connection:
        await lock_session(connection, LOCAL_USER, session)
        turn = await find_turn(connection, LOCAL_USER, session, failed["turn_id"])
        assert await run_again(connection, turn, ChatRequest(""), now=utc_now(), room=1)
        claimed = asyncio.create_task(accepted(database, session, ChatRequest("and this?")))
        if_free = ChatRequest("and this, if nothing runs?", on_busy="reject")
        admitted = asyncio.create_task(admit(database, LOCAL_USER, session, if_free, now=utc_now(), tools=dict))
        await stores.until_locked(count=2)
        await connection.commit()
    assert await claimed is None
    with pytest.raises(AppError) as refused:
        await admitted
    assert refused.value.code == "turn_in_progress"


async def test_only_a_turn_that_this_process_may_have_claimed_unheard_is_claimed_anew(
    settings: Settings, database: Database
) -> None:
    async with running(settings, takes_turns=False) as client:
        session = await client.new_session()
    async with abandoned(settings, session, lease_s=600) as (_, claim):

        async def claimed(*unheard: str) -> Claim | None:
            return await database.write(claims.claim_next, session, worker="here", lease_s=600, unheard=unheard)

        assert await claimed() is None
        assert await claimed("another") is None
        assert await database.read(claims.sessions_claimed, [session], unheard=["another"]) == []
        assert await database.read(claims.sessions_claimed, [session], unheard=["gone"]) == [session]
        anew = await claimed("gone")
        assert anew is not None
        assert (anew.key, anew.epoch, anew.attempt) == (claim.key, claim.epoch + 1, claim.attempt)
        assert await database.write(claims.still_held, [claim]) == ({}, set())
