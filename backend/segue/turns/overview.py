"""How turns stand, for whoever looks after the service: across all sessions, and in one of them. Only reads.

Ages are by the database's clock, which leases are by too.
"""

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import ColumnElement, distinct, func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from segue.db.models import OPEN_TURNS, QUEUED, RUNNING, turns
from segue.domain.session import TurnError, TurnStatus


@dataclass(frozen=True, slots=True)
class TurnsOverview:
    """`leases_passed` are running turns that nobody renews; `running_on` counts the processes that hold one."""

    queued: int
    running: int
    running_on: int
    leases_passed: int
    oldest_queued_s: float | None
    longest_running_s: float | None


@dataclass(frozen=True, slots=True)
class OpenTurn:
    """`lease_left_s` is below 0 where the lease has passed, and None where nobody has the turn."""

    turn_id: str
    status: TurnStatus
    epoch: int
    attempts: int
    worker: str | None
    lease_until: datetime | None
    lease_left_s: float | None
    waiting_s: float
    cancel_requested_at: datetime | None


@dataclass(frozen=True, slots=True)
class LastTurn:
    turn_id: str
    status: TurnStatus
    finished_at: datetime | None
    error: TurnError | None


async def overview(connection: AsyncConnection) -> TurnsOverview:
    queued, running = turns.c.status == QUEUED, turns.c.status == RUNNING
    statement = select(
        func.count().filter(queued).label("queued"),
        func.count().filter(running).label("running"),
        func.count(distinct(turns.c.worker)).filter(running).label("running_on"),
        func.count().filter(running, turns.c.lease_until < func.now()).label("leases_passed"),
        func.max(_age(turns.c.queued_at)).filter(queued).label("oldest_queued_s"),
        func.max(_age(turns.c.started_at)).filter(running).label("longest_running_s"),
    ).where(turns.c.status.in_(OPEN_TURNS))
    return TurnsOverview(**(await connection.execute(statement)).mappings().one())


async def open_turns_of(connection: AsyncConnection, session_id: str) -> list[OpenTurn]:
    """In the order in which they run."""
    statement = (
        select(
            turns.c.id.label("turn_id"),
            turns.c.status,
            turns.c.epoch,
            turns.c.attempts,
            turns.c.worker,
            turns.c.lease_until,
            (-_age(turns.c.lease_until)).label("lease_left_s"),
            _age(turns.c.queued_at).label("waiting_s"),
            turns.c.cancel_requested_at,
        )
        .where(turns.c.session_id == session_id, turns.c.status.in_(OPEN_TURNS))
        .order_by(turns.c.seq)
    )
    return [OpenTurn(**row) for row in (await connection.execute(statement)).mappings()]


async def last_turn_of(connection: AsyncConnection, session_id: str, *, failed: bool = False) -> LastTurn | None:
    """The newest turn, or the newest that ended with an error."""
    statement = select(turns.c.id, turns.c.status, turns.c.finished_at, turns.c.error)
    statement = statement.where(turns.c.session_id == session_id).order_by(turns.c.seq.desc()).limit(1)
    if failed:
        statement = statement.where(turns.c.error.is_not(None))
    row = (await connection.execute(statement)).one_or_none()
    if row is None:
        return None
    error = TurnError(**{name: row.error[name] for name in TurnError.__slots__}) if row.error else None
    return LastTurn(row.id, row.status, row.finished_at, error)


def _age(moment: ColumnElement[datetime] | ColumnElement[datetime | None]) -> ColumnElement[float]:
    return func.round(func.extract("epoch", func.now() - moment), 1).cast(turns.c.left_s.type)
