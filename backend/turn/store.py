"""The rows of turns: begin, claim, keep, finish. Each is one short guarded statement.

Who owns a turn is a lease with an epoch, the fencing token: a worker whose epoch is stale is refused in the statement
that would write. One running turn per session is a unique index, not a lock.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any

from pydantic import TypeAdapter
from sqlalchemy import ColumnElement, Row, Select, func, literal, select, tuple_, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection

from backend.db.engine import Database
from backend.db.models import tool_calls, turns
from backend.domain.errors import AppError, NotFound
from backend.domain.ids import new_id
from backend.domain.session import Message, TurnReport, TurnStatus
from backend.memory.history import INTERRUPTED, TurnKey, message_values
from backend.tools.states import StoredHealth, read_states
from backend.turn import failures, statements

_read_report = TypeAdapter(TurnReport).validate_python


class StaleTurn(Exception):
    """Another worker owns the turn now, or it has ended. Whoever hears this stops without a word."""


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """`decided_plan_id` is the plan whose button was pressed, where that is what the message is."""

    message: str
    force_web_search: bool = False
    decided_plan_id: str | None = None


@dataclass(frozen=True, slots=True)
class Claim:
    """A turn this worker owns until `epoch` is not the row's any more, and what it knew of the session.

    `last_turn_id` is the turn that ended last, however it ended, `answered_turn_id` the last one with an answer.
    `has_open_plan` can only become false, since plans are made by the turn that runs. `shown_plan` is the open plan,
    and its version, that stood when the message came: a yes is for that one.
    """

    key: TurnKey
    epoch: int
    owner: str
    force_web_search: bool
    decided_plan_id: str | None
    shown_plan: tuple[str, int] | None
    message_count: int
    last_turn_id: str | None
    answered_turn_id: str | None
    has_open_plan: bool
    tool_states: Mapping[str, StoredHealth]


@dataclass(frozen=True, slots=True)
class EndedTurn:
    turn_id: str
    finished_at: datetime


@dataclass(frozen=True, slots=True)
class TurnOutcome:
    """How a turn stands: the report of a completed one, the error of a failed one."""

    key: TurnKey
    status: TurnStatus
    report: TurnReport | None
    error: AppError | None


async def begin_turn(
    connection: AsyncConnection, owner: str, session_id: str, request: ChatRequest, *, now: datetime
) -> TurnKey:
    """Accepts a message: takes the session's next seq, stores the turn as queued and the user's message with it."""
    turn_id = new_id("turn", now)
    message = message_values(
        TurnKey(session_id, turn_id, 0),
        message_id=new_id("msg", now),
        role="user",
        content=request.message,
        now=now,
    )
    asked = {"force_web_search": request.force_web_search, "decided_plan_id": request.decided_plan_id}
    stored = await connection.execute(statements.BEGIN, {"caller": owner, "asked": asked, **message})
    seq = stored.scalar_one_or_none()
    if seq is None:
        raise NotFound("session")
    return TurnKey(session_id, turn_id, seq)


async def claim_next(connection: AsyncConnection, session_id: str, *, worker: str, lease_s: float) -> Claim | None:
    """The session's oldest open turn, if it is queued: now running, under a new epoch. None where one runs already."""
    claiming = {"at_session": session_id, "claimer": worker, "lease": timedelta(seconds=lease_s)}
    try:
        row = (await connection.execute(statements.CLAIM, claiming)).one_or_none()
    except IntegrityError:
        return None
    if row is None:
        return None
    shown = row.request.get("shown_plan")
    return Claim(
        key=TurnKey(session_id, row.id, row.seq),
        epoch=row.epoch,
        owner=row.owner,
        force_web_search=row.request["force_web_search"],
        decided_plan_id=row.request.get("decided_plan_id"),
        shown_plan=(shown[0], shown[1]) if shown else None,
        message_count=row.next_seq - 1,
        last_turn_id=row.last_turn_id,
        answered_turn_id=row.answered_turn_id,
        has_open_plan=row.has_open_plan,
        tool_states=read_states(row.tool_states),
    )


@asynccontextmanager
async def fenced_transaction(database: Database, claim: Claim) -> AsyncIterator[AsyncConnection]:
    """A transaction of a running turn. Raises StaleTurn before anything is written by a worker that lost it."""
    async with database.transaction() as connection:
        if (await connection.execute(statements.FENCE, _held(claim))).one_or_none() is None:
            raise StaleTurn
        yield connection


async def finish_turn(
    connection: AsyncConnection, claim: Claim, *, answer: str, report: TurnReport, now: datetime
) -> Message:
    """Stores the answer and completes the turn in one statement. Raises StaleTurn where the turn is not ours."""
    message_id = new_id("msg", now)
    values = message_values(claim.key, message_id=message_id, role="assistant", content=answer, now=now)
    stored = await connection.execute(statements.FINISH, {"outcome": asdict(report), **_held(claim), **values})
    seq = stored.scalar_one_or_none()
    if seq is None:
        raise StaleTurn
    return Message(id=message_id, seq=seq, turn_id=claim.key.turn_id, role="assistant", content=answer, created_at=now)


async def fail_turn(connection: AsyncConnection, claim: Claim, error: AppError, *, now: datetime) -> None:
    """Ends a turn with an error everyone who asks will hear. Says nothing where the turn is no longer ours."""
    await connection.execute(_failing(statements.IS_HELD, error, finished_at=literal(now)), _held(claim))


async def renew_leases(connection: AsyncConnection, claims: Sequence[Claim], *, lease_s: float) -> set[str]:
    """The turn ids that are still ours, each with a lease from now."""
    mine = tuple_(turns.c.id, turns.c.epoch).in_([(claim.key.turn_id, claim.epoch) for claim in claims])
    renewed = await connection.execute(
        update(turns)
        .where(mine, turns.c.status == "running")
        .values(lease_until=func.now() + timedelta(seconds=lease_s))
        .returning(turns.c.id)
    )
    return set(renewed.scalars())


async def fail_lapsed(connection: AsyncConnection) -> int:
    """Ends every running turn whose worker has let its lease pass, and gives how many."""
    lapsed = (turns.c.status == "running", turns.c.lease_until < func.now())
    ended = await connection.execute(_failing(lapsed, failures.interrupted(), finished_at=func.now()))
    return len(ended.all())


async def sessions_waiting(connection: AsyncConnection) -> list[str]:
    """Sessions in which a turn is queued and none runs."""
    running = turns.alias("running")
    busy = select(running.c.id).where(running.c.session_id == turns.c.session_id, running.c.status == "running")
    statement = select(turns.c.session_id).where(turns.c.status == "queued", ~busy.exists()).distinct()
    return list((await connection.execute(statement)).scalars())


async def a_turn_is_open(connection: AsyncConnection, session_id: str) -> bool:
    statement = select(turns.c.id).where(turns.c.session_id == session_id, turns.c.status.in_(("queued", "running")))
    return (await connection.execute(statement.limit(1))).one_or_none() is not None


async def turn_outcome(connection: AsyncConnection, turn_id: str) -> TurnOutcome | None:
    """None where the turn is gone: its session was deleted."""
    row = (await connection.execute(select(turns).where(turns.c.id == turn_id))).one_or_none()
    if row is None:
        return None
    return TurnOutcome(
        key=TurnKey(row.session_id, row.id, row.seq),
        status=row.status,
        report=_read_report(row.report) if row.report else None,
        error=_error(row),
    )


async def last_ended(connection: AsyncConnection, session_id: str) -> EndedTurn | None:
    row = (await connection.execute(statements.LAST_ENDED, {"at_session": session_id})).one_or_none()
    return EndedTurn(row.id, row.finished_at) if row else None


def _failing(
    which: tuple[ColumnElement[bool], ...], error: AppError, *, finished_at: ColumnElement[datetime]
) -> Select[tuple[str]]:
    """Ends turns with an error and gives their ids. What of their tool calls is still open has an unknown outcome."""
    failed = (
        update(turns)
        .where(*which)
        .values(status="failed", error=_error_row(error), lease_until=None, finished_at=finished_at)
        .returning(turns.c.id)
        .cte("failed")
    )
    left_open = (
        update(tool_calls)
        .where(tool_calls.c.turn_id.in_(select(failed.c.id)), tool_calls.c.status == "running")
        .values(status="unknown", error=INTERRUPTED, summary=INTERRUPTED)
        .cte("left_open")
    )
    return select(failed.c.id).add_cte(left_open)


def _held(claim: Claim) -> dict[str, Any]:
    """What a statement with statements.IS_HELD is executed with."""
    return {"held_turn": claim.key.turn_id, "held_epoch": claim.epoch}


def _error_row(error: AppError) -> dict[str, Any]:
    return {
        "code": error.code,
        "status": error.status,
        "title": error.title,
        "detail": error.detail,
        "retryable": error.retryable,
    }


def _error(row: Row[Any]) -> AppError | None:
    return (
        AppError(row.error["code"], **{key: row.error[key] for key in row.error if key != "code"})
        if row.error
        else None
    )
