"""The start of tool calls, as one statement stores it."""

from dataclasses import replace

import pytest

from segue.config import Settings
from segue.db.engine import Database
from segue.domain.ids import new_id, utc_now
from segue.domain.session import RequestedCall
from segue.memory.history import NewMessage
from segue.tools.results import calls_of_turns
from segue.turns.call_starts import start_calls
from segue.turns.claims import Claim, StaleTurn
from tests.support.left_turns import abandoned
from tests.support.service import running


def two_calls() -> NewMessage:
    now = utc_now()
    calls = [RequestedCall(new_id("call", now), name, {"at": name}) for name in ("first", "second")]
    return NewMessage("assistant", "Two calls.", now, id=new_id("msg", now), tool_calls=calls)


async def stored(database: Database, claim: Claim) -> list[tuple[str, str, str]]:
    async with database.read_only() as connection:
        calls = (await calls_of_turns(connection, [claim.key.turn_id])).get(claim.key.turn_id, ())
    return [(call.tool_call_id, call.args["at"], call.status) for call in calls]


async def test_a_start_whose_answer_was_lost_is_stored_once_and_in_the_order_of_the_calls(settings: Settings) -> None:
    async with running(settings, takes_turns=False) as client:
        session = await client.new_session()
        async with abandoned(settings, session, lease_s=600) as (database, claim):
            message = two_calls()
            for _ in range(2):
                await start_calls(database, claim, message)
            first, second = message.tool_calls
            assert await stored(database, claim) == [
                (first.id, "first", "running"),
                (second.id, "second", "running"),
            ]
        assert [row["content"] for row in await client.messages(session)] == ["hello?", "Two calls."]


async def test_a_worker_whose_epoch_is_stale_starts_no_call(settings: Settings) -> None:
    async with running(settings, takes_turns=False) as client:
        session = await client.new_session()
        async with abandoned(settings, session, lease_s=600) as (database, claim):
            with pytest.raises(StaleTurn):
                await start_calls(database, replace(claim, epoch=claim.epoch - 1), two_calls())
            assert not await stored(database, claim)
        assert [row["content"] for row in await client.messages(session)] == ["hello?"]
