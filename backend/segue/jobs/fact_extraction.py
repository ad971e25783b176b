"""Turns whose message may tell a fact: which is due, who has it, and for how long. One column, `turns.facts_due_at`.

A claim moves it ahead by the lease; as long as nothing succeeds it moves ahead by the age of the turn, so tries grow
rarer, and after GIVE_UP it is cleared. The turns of a session come in order, or a correction might come first.
"""

from dataclasses import dataclass
from datetime import timedelta

from sqlalchemy import case, exists, func, null, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from segue.db.models import sessions, turns

GIVE_UP = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Due:
    owner: str
    session_id: str
    turn_id: str


async def claim_due(connection: AsyncConnection, *, lease_s: float) -> Due | None:
    """The turn that has been due for longest, now this process's. None where none is."""
    earlier = turns.alias("earlier")
    waits = exists().where(
        earlier.c.session_id == turns.c.session_id,
        earlier.c.seq < turns.c.seq,
        earlier.c.facts_due_at.is_not(None),
        earlier.c.finished_at.is_not(None),
    )
    is_due = turns.c.facts_due_at <= func.now()
    oldest = (
        select(turns.c.id)
        .where(is_due, turns.c.finished_at.is_not(None), ~waits)
        .order_by(turns.c.facts_due_at)
        .limit(1)
        .with_for_update(skip_locked=True)
        .scalar_subquery()
    )
    age = func.now() - turns.c.finished_at
    next_try = func.now() + func.greatest(timedelta(seconds=lease_s), age)
    claimed = await connection.execute(
        update(turns)
        .where(turns.c.id == oldest, is_due, sessions.c.id == turns.c.session_id)
        .values(facts_due_at=case((age > GIVE_UP, null()), else_=next_try))
        .returning(sessions.c.owner, turns.c.session_id, turns.c.id)
    )
    row = claimed.one_or_none()
    return Due(row.owner, row.session_id, row.id) if row else None


async def hold_session(connection: AsyncConnection, due: Due) -> bool:
    """Keeps the session from being deleted until the caller's transaction ends. False where it is gone."""
    session = select(sessions.c.id).where(sessions.c.id == due.session_id, sessions.c.owner == due.owner)
    return await connection.scalar(session.with_for_update(read=True, key_share=True)) is not None


async def done(connection: AsyncConnection, due: Due) -> None:
    await connection.execute(update(turns).where(turns.c.id == due.turn_id).values(facts_due_at=None))


async def give_back(connection: AsyncConnection, due: Due) -> None:
    """Somebody else may take it at once."""
    still = (turns.c.id == due.turn_id, turns.c.facts_due_at.is_not(None))
    await connection.execute(update(turns).where(*still).values(facts_due_at=func.now()))
