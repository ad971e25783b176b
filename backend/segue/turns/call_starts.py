"""What a running turn stores and reads under its fence while it runs: calls before they start, a message and a row for
each in one statement; messages that were sent to it meanwhile; its choice of tools.
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from functools import partial
from itertools import starmap
from types import MappingProxyType
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.exc import IntegrityError
from sqlalchemy.sql.dml import ReturningInsert

from segue.agent.state import WriteWithStart
from segue.db.engine import Connection, Database, outlast
from segue.db.models import QUEUED, messages, sessions, tool_calls, turns
from segue.db.rows import without_defaults
from segue.domain.events import SteerRead
from segue.domain.session import TurnKey, turn_key
from segue.domain.tool import CallEffect, ToolChoice
from segue.memory.history import NEW_MESSAGE_COLUMNS, NewMessage, insert_message, message_values, move_message, next_seq
from segue.plans.mandates import Use, book
from segue.tools.results import PlanStep
from segue.turns.claims import IS_HELD, Claim, StaleTurn, fenced_transaction, held


async def start_calls(
    database: Database,
    claim: Claim,
    message: NewMessage,
    step: PlanStep | None = None,
    under: Mapping[str, Use] = MappingProxyType({}),
    effects: Mapping[str, CallEffect] = MappingProxyType({}),
    also: WriteWithStart | None = None,
) -> None:
    """Stores a message and its calls, which have not run. `under` has by their ids the uses of mandates, which are
    booked in the same transaction, in which `also` writes too. `effects` has by id those of calls that may have one,
    with who approved them. Raises StaleTurn, and MandateSpent with nothing stored.
    """
    values = message_values(claim.key, message) | held(claim.key, claim.epoch)
    values["of_plan"], values["of_step"] = (step.plan_id, step.step_id) if step else (None, None)
    values["made"] = [
        {"id": call.id, "tool_name": call.name, "args": call.args, **_notes(under.get(call.id), effects.get(call.id))}
        for call in message.tool_calls
    ]
    if also is not None or under:
        async with fenced_transaction(database, claim) as connection:
            await _start(connection, values)
            await book(connection, under, session_id=claim.key.session_id, now=message.created_at)
            if also is not None:
                await also(connection)
        return

    with suppress(IntegrityError):  # only an attempt whose answer was lost can have stored what has these ids
        await outlast(partial(database.write, _start, values))


def _notes(use: Use | None, effect: CallEffect | None) -> dict[str, Any]:
    values: dict[str, Any] = {}
    if use is not None:
        values |= {"mandate_id": use.mandate_id, "granted": use.in_session, "covered": use.covered}
    if effect is not None:
        values["effect"] = without_defaults(replace(effect, approved_by=None))
        values |= {"approval": without_defaults(effect.approved_by)} if effect.approved_by else {}
    return values


async def _start(connection: Connection, values: Mapping[str, Any]) -> None:
    if (await connection.execute(_START, values)).first() is None:
        raise StaleTurn


def _starting() -> ReturningInsert[str]:
    fenced = sa.select(turns.c.session_id).where(*IS_HELD).with_for_update(read=True).cte("fenced")
    stored = insert_message(next_seq(fenced.c.session_id))
    message = stored.returning(messages.c.session_id, messages.c.turn_id, messages.c.id).cte("said")
    texts, objects = ("id", "tool_name", "mandate_id"), ("args", "covered", "effect", "approval")
    kinds = {**dict.fromkeys(texts, sa.Text), **dict.fromkeys(objects, JSONB), "granted": sa.Boolean}
    records = sa.func.jsonb_to_recordset(sa.bindparam("made", type_=JSONB))
    calls = records.table_valued(*starmap(sa.column, kinds.items())).render_derived("made", with_types=True)
    row = {
        **{name: calls.c[name] for name in (*texts, *objects)},
        "session_id": message.c.session_id,
        "turn_id": message.c.turn_id,
        "message_id": message.c.id,
        "status": sa.literal("running"),
        "plan_id": sa.bindparam("of_plan", type_=sa.Text),
        "step_id": sa.bindparam("of_step", type_=sa.Integer),
        "granted": sa.func.coalesce(calls.c.granted, sa.false()),
        "started_at": NEW_MESSAGE_COLUMNS["created_at"],
    }
    rows = sa.select(*row.values()).select_from(message.join(calls, sa.true()))
    return sa.insert(tool_calls).from_select(list(row), rows).returning(tool_calls.c.id)


_START = _starting()


# A message that a running turn is to read is a queued turn that never ran, so it has no calls. Unread, it runs next.
_STEERS: tuple[sa.ColumnElement[bool], ...] = (
    turns.c.session_id == sa.bindparam("at_session", type_=sa.Text),
    turns.c.status == QUEUED,
    turns.c.epoch == 0,
    turns.c.request["steers"].as_string() == sa.bindparam("steered", type_=sa.Text),
)
_IS_STEERED = sa.select(sa.exists().where(*_STEERS))
_STEERS_READ = sa.select(turns.c.id, turns.c.seq, turns.c.epoch, turns.c.facts_due_at).where(*_STEERS)
_STEERS_IN_ORDER = _STEERS_READ.order_by(turns.c.seq).with_for_update()


async def is_steered(database: Database, turn: TurnKey) -> bool:
    """Returns whether a message waits to be read by a turn."""
    waits = {"at_session": turn.session_id, "steered": turn.turn_id}
    return bool(await outlast(partial(database.read, Connection.scalar, _IS_STEERED, waits)))


async def read_steers(connection: Connection, claim: Claim) -> list[SteerRead]:
    """Makes the messages that wait for a running turn part of it, in their order, in its fenced transaction."""
    reader, read = claim.key, []
    waits = {"at_session": reader.session_id, "steered": reader.turn_id}
    for row in (await connection.execute(_STEERS_IN_ORDER, waits)).all():
        ended = {"status": "completed", "read_by": reader.turn_id, "facts_due_at": None}
        await connection.execute(sa.update(turns).where(turns.c.id == row.id).values(ended))
        if row.facts_due_at is not None:
            due = sa.func.coalesce(turns.c.facts_due_at, row.facts_due_at)
            await connection.execute(sa.update(turns).where(turns.c.id == reader.turn_id).values(facts_due_at=due))
        read.append(SteerRead(await move_message(connection, row.id, reader), turn_key(reader.session_id, row)))
    return read


async def store_tool_choice(database: Database, claim: Claim, choice: ToolChoice) -> None:
    async with fenced_transaction(database, claim) as connection:
        chosen = sa.update(sessions).where(sessions.c.id == claim.key.session_id).values(tool_choice=asdict(choice))
        await connection.execute(chosen)
