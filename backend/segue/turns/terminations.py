"""How a turn ends without an answer, or starts again: failed, cancelled, given back, taken from whoever let it lapse.

Every statement is guarded by what the turn was when it was looked at, so that of two who end it one does. A tool call
that is still open when its turn ends has an unknown outcome.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, Select, case, func, literal, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from segue.db.models import OPEN_TURNS, sessions, tool_calls, turns
from segue.domain import turn_errors
from segue.domain.errors import AppError
from segue.domain.session import TurnKey
from segue.memory.history import INTERRUPTED
from segue.turns import statements
from segue.turns.store import Claim, held

OBEY_WITHIN_S = 2.5  # an owner that has not cancelled by then is taken for dead
START_WITHIN_S = 2.0  # a turn nobody has begun by then was lost on its way
MAX_AT_ONCE = 100


@dataclass(frozen=True, slots=True)
class Neglected:
    """A turn that needs looking after. `left_s` is what remains of its time where it is `running`."""

    key: TurnKey
    epoch: int
    running: bool
    attempts: int
    cancelled: bool
    left_s: float | None


async def end_turn(connection: AsyncConnection, claim: Claim, error: AppError, *, now: datetime) -> bool:
    """Ends a turn of ours with an error everyone who asks will hear. False where it is no longer ours."""
    ended = await connection.execute(_ending(statements.IS_HELD, error, finished_at=literal(now)), held(claim))
    return ended.one_or_none() is not None


async def hand_back(connection: AsyncConnection, claim: Claim, *, timeout_s: float) -> bool:
    """Gives a turn of ours to whoever takes it next, and the attempt does not count. False where it must not go on."""
    values = {"by_owner": True, "timeout_s": timeout_s, **held(claim)}
    return (await connection.execute(statements.REQUEUE, values)).one_or_none() is not None


async def neglected(connection: AsyncConnection, *, timeout_s: float) -> list[Neglected]:
    """What nobody looks after: lapsed turns, wishes to cancel that are not obeyed, turns nobody has begun."""
    values = {
        "obey_within": timedelta(seconds=OBEY_WITHIN_S),
        "start_within": timedelta(seconds=START_WITHIN_S),
        "timeout_s": timeout_s,
        "at_most": MAX_AT_ONCE,
    }
    return [
        Neglected(
            key=TurnKey(row.session_id, row.id, row.seq),
            epoch=row.epoch,
            running=row.status == "running",
            attempts=row.attempts,
            cancelled=row.cancelled,
            left_s=row.left_s,
        )
        for row in await connection.execute(statements.NEGLECTED, values)
    ]


async def take_back(connection: AsyncConnection, turn: Neglected, *, timeout_s: float) -> bool:
    """Queues a lapsed turn again. False where its owner has come back or somebody was quicker."""
    values = {"by_owner": False, "timeout_s": timeout_s, "held_turn": turn.key.turn_id, "held_epoch": turn.epoch}
    return (await connection.execute(statements.REQUEUE, values)).one_or_none() is not None


async def end_neglected(connection: AsyncConnection, turn: Neglected, error: AppError) -> bool:
    """Ends what is not to be tried again. False where its owner has come back or somebody was quicker."""
    given_up = (turns.c.lease_until < func.now()) | turns.c.cancel_requested_at.is_not(None)
    values = {"held_turn": turn.key.turn_id, "held_epoch": turn.epoch}
    ended = await connection.execute(_ending((*statements.IS_HELD, given_up), error, finished_at=func.now()), values)
    return ended.one_or_none() is not None


async def cancel_turn(connection: AsyncConnection, owner: str, turn: TurnKey) -> dict[str, bool]:
    """Whether the turn has ended with it, by its id: one that was queued has, one that runs its owner stops. Empty
    where it has ended before.
    """
    return await _cancel(connection, owner, turn.session_id, turns.c.id == turn.turn_id)


async def cancel_before(connection: AsyncConnection, owner: str, turn: TurnKey) -> dict[str, bool]:
    """The same for every turn that is open before this one."""
    return await _cancel(connection, owner, turn.session_id, turns.c.seq < turn.turn_seq)


async def release(connection: AsyncConnection, owner: str, session_id: str) -> None:
    """Takes a session's open turns from whoever runs them, as the first thing that happens to a session that goes."""
    await connection.execute(
        update(turns)
        .where(turns.c.session_id == session_id, turns.c.status.in_(OPEN_TURNS), _is_owned(owner))
        .values(status="cancelled", lease_until=None, finished_at=func.now())
    )


async def _cancel(
    connection: AsyncConnection, owner: str, session_id: str, which: ColumnElement[bool]
) -> dict[str, bool]:
    queued = turns.c.status == "queued"
    error = literal(_error_row(turn_errors.cancelled()), turns.c.error.type)
    wished = await connection.execute(
        update(turns)
        .where(turns.c.session_id == session_id, which, turns.c.status.in_(OPEN_TURNS), _is_owned(owner))
        .values(
            cancel_requested_at=func.coalesce(turns.c.cancel_requested_at, func.now()),
            status=case((queued, "cancelled"), else_=turns.c.status),
            error=case((queued, error), else_=turns.c.error),
            finished_at=case((queued, func.now()), else_=turns.c.finished_at),
        )
        .returning(turns.c.id, turns.c.status)
    )
    return {row.id: row.status == "cancelled" for row in wished}


def _ending(
    which: Sequence[ColumnElement[bool]], error: AppError, *, finished_at: ColumnElement[datetime]
) -> Select[tuple[str]]:
    ended = (
        update(turns)
        .where(*which)
        .values(
            status="cancelled" if error.code == turn_errors.CANCELLED else "failed",
            error=_error_row(error),
            lease_until=None,
            finished_at=finished_at,
        )
        .returning(turns.c.id)
        .cte("ended")
    )
    left_open = (
        update(tool_calls)
        .where(tool_calls.c.turn_id.in_(select(ended.c.id)), tool_calls.c.status == "running")
        .values(status="unknown", error=INTERRUPTED, summary=INTERRUPTED)
        .cte("left_open")
    )
    return select(ended.c.id).add_cte(left_open)


def _is_owned(owner: str) -> ColumnElement[bool]:
    return select(sessions.c.id).where(sessions.c.id == turns.c.session_id, sessions.c.owner == owner).exists()


def _error_row(error: AppError) -> dict[str, Any]:
    return {
        "code": error.code,
        "status": error.status,
        "title": error.title,
        "detail": error.detail,
        "retryable": error.retryable,
    }
