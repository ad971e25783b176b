"""Who gets in: a message becomes a turn, or hears why not. Everything is decided by the rows of the session itself.

The common case is one statement. Whoever it does not let in, because others are there or came at the same moment, asks
again under the lock of the session's row, where the answer is exact.
"""

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection

from segue.db.engine import Database
from segue.db.models import OPEN_TURNS, sessions, turns
from segue.domain import turn_errors
from segue.domain.session import TurnKey, TurnStatus
from segue.memory.sessions import lock_session
from segue.turns.store import ChatRequest, KeyTaken, Once, begin_turn

MAX_QUEUED = 10  # beside the one that runs


@dataclass(frozen=True, slots=True)
class Admitted:
    """A turn and how it stood then. Not `fresh`: it was there already, under the same idempotency key."""

    turn: TurnKey
    status: TurnStatus = "queued"
    fresh: bool = True


async def admit(database: Database, owner: str, session_id: str, request: ChatRequest, *, now: datetime) -> Admitted:
    """Raises NotFound, AppError `turn_in_progress`, `too_many_queued`, `idempotency_key_reused`."""
    room = MAX_QUEUED + 1 if request.on_busy == "enqueue" else 1
    try:
        async with database.autocommit() as connection:
            turn = await begin_turn(connection, owner, session_id, request, now=now, room=room)
    except KeyTaken:
        turn = None
    if turn is not None:
        return Admitted(turn)
    async with database.transaction() as connection:
        await lock_session(connection, owner, session_id)
        return await admit_locked(connection, owner, session_id, request, now=now)


async def admit_locked(
    connection: AsyncConnection, owner: str, session_id: str, request: ChatRequest, *, now: datetime
) -> Admitted:
    """In a transaction that holds the lock of the session's row."""
    known = await turn_under(connection, owner, session_id, request.once)
    if known is not None:
        return known
    open_turns = await _open_turns(connection, session_id)
    if open_turns and request.on_busy == "reject":
        raise turn_errors.in_progress(open_turns[0])
    if len(open_turns) > MAX_QUEUED and request.on_busy == "enqueue":
        raise turn_errors.too_many_queued(MAX_QUEUED)
    turn = await begin_turn(connection, owner, session_id, request, now=now, room=len(open_turns) + 1)
    if turn is None:
        raise AssertionError("the session is locked and there is room in it")
    return Admitted(turn)


async def turn_under(connection: AsyncConnection, owner: str, session_id: str, once: Once | None) -> Admitted | None:
    """The turn that was accepted under this key. Raises AppError `idempotency_key_reused` for another body."""
    if once is None:
        return None
    statement = (
        select(turns.c.id, turns.c.seq, turns.c.status, turns.c.body_hash)
        .join(sessions, sessions.c.id == turns.c.session_id)
        .where(turns.c.session_id == session_id, turns.c.idempotency_key == once.key, sessions.c.owner == owner)
    )
    row = (await connection.execute(statement)).one_or_none()
    if row is None:
        return None
    if row.body_hash != once.body_hash:
        raise turn_errors.key_reused()
    return Admitted(TurnKey(session_id, row.id, row.seq), row.status, fresh=False)


async def _open_turns(connection: AsyncConnection, session_id: str) -> list[str]:
    statement = select(turns.c.id).where(turns.c.session_id == session_id, turns.c.status.in_(OPEN_TURNS))
    return list((await connection.execute(statement.order_by(turns.c.seq))).scalars())
