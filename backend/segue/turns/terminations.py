"""How a run of a turn ends: with its answer, failed, cancelled, handed back or recovered. Every statement checks what
was read, so only one process ends the turn. A call that is still open gets an unknown outcome.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Literal

import sqlalchemy as sa
from sqlalchemy.sql.dml import ReturningInsert

from segue.db.engine import Connection
from segue.db.models import OPEN_TURNS, QUEUED, RUNNING, messages, plans, sessions, tool_calls, turns
from segue.db.rows import without_defaults
from segue.domain.errors import TURN_CANCELLED, AppError, turn_cancelled
from segue.domain.events import CallEnded
from segue.domain.session import Message, TurnKey, TurnReport, turn_key
from segue.domain.telemetry import RunTimeline
from segue.events.outbox import OF_TURNS, Outbox, outbox_of, turns_ended
from segue.memory import history
from segue.memory.history_window import INTERRUPTED
from segue.memory.session_store import title_due_on_answer
from segue.memory.summary import due_columns
from segue.tools.normalize import clean, clean_text
from segue.tools.receipts import append_receipt
from segue.tools.results import unanswered_calls
from segue.turns.claims import IS_HELD, Claim, StaleTurn, held, runs_beside
from segue.turns.run_record import attempt_ended, run_failed, stored_run
from segue.users.usage import ChargesByDay, booking, charged

CANCEL_WITHIN_S = 2.5  # a process that has not cancelled its turn by then is taken for dead
START_WITHIN_S = 2.0  # what was sent of a turn that no process has begun by then was lost
MAX_ATTEMPTS = 3
MAX_AT_ONCE = 100

WhyRequeued = Literal["handed_back", "storage_lost", "process_lost"]


@dataclass(frozen=True, slots=True)
class NeglectedTurn:
    """A turn to recover. `left_s` is the rest of its time if it is `running`."""

    key: TurnKey
    owner: str
    epoch: int
    running: bool
    attempts: int
    cancelled: bool
    left_s: float | None


def _finish(told: Outbox | None = None) -> ReturningInsert[int]:
    finished = (
        sa.update(turns)
        .where(*IS_HELD)
        .values(
            status="completed",
            report=sa.bindparam("outcome", type_=turns.c.report.type),
            lease_until=None,
            finished_at=history.NEW_MESSAGE_COLUMNS["created_at"],
            run=sa.bindparam("run", type_=turns.c.run.type),
            # It was told to the telemetry of the run. What goes on without a request does so with these groups.
            request=sa.case(
                (turns.c.request["origin"].has_key("groups"), turns.c.request), else_=turns.c.request.op("-")("origin")
            ),
        )
        .returning(*(OF_TURNS if told else (turns.c.session_id,)))
        .cte("finished")
    )
    allocated = history.next_seq(
        finished.c.session_id,
        updated_at=sa.func.clock_timestamp(),
        last_turn_id=history.NEW_MESSAGE_COLUMNS["turn_id"],
        title_due_at=title_due_on_answer(sa.bindparam("improves_title", type_=sa.Boolean)),
        **due_columns(sa.bindparam("cut_off", type_=sa.BigInteger), sa.bindparam("seen_seq", type_=sa.BigInteger)),
    )
    session = sa.select(finished.c.session_id)
    also = [booking(session.scalar_subquery(), session.exists()).cte("booked")]
    if told:
        also.append(turns_ended(finished, history.NEW_MESSAGE_COLUMNS["content"] if told.content else None).cte("told"))
    return history.insert_message(allocated).add_cte(*also).returning(messages.c.seq)


_FINISH = {told: _finish(told) for told in (None, Outbox(content=False), Outbox(content=True))}


async def finish_turn(
    connection: Connection,
    claim: Claim,
    *,
    answer: history.NewMessage,
    report: TurnReport,
    timeline: RunTimeline,
    cut_off: int | None,
    improves_title: bool,
    charges: ChargesByDay,
) -> Message:
    """Stores the answer, completes the turn and books its charges in one statement, and once though it is asked again.
    Raises StaleTurn if the claim no longer holds. `cut_off` is the seq of the last turn that the summary is to cover,
    None if none is due. `improves_title` says whether a model is to give a session a title after its first answer.
    """
    values = history.message_values(claim.key, answer)
    outcome = {"outcome": without_defaults(replace(report, prompt=None)), "run": stored_run(timeline, report)}
    due = {"cut_off": cut_off, "seen_seq": claim.summary_seq, "improves_title": improves_title}
    finish, spent = _FINISH[outbox_of(connection)], charged(claim.owner, charges)
    message_id, at = values[history.NEW_MESSAGE_COLUMNS["id"].key], answer.created_at
    seq = await connection.scalar(finish, {**outcome, **due, **held(claim.key, claim.epoch), **spent, **values})
    if seq is None:
        stored = (await history.final_messages(connection, [claim.key.turn_id])).get(claim.key.turn_id)
        if stored is None or stored.id != message_id:  # which no other run has given its answer
            raise StaleTurn
        seq, at = stored.seq, stored.created_at
    return Message(message_id, seq, claim.key.turn_id, answer.role, answer.content, at)


async def end_turn(
    connection: Connection,
    turn: Claim | NeglectedTurn,
    error: AppError,
    *,
    now: datetime,
    timeline: RunTimeline | None = None,
    cut_off: history.NewMessage | None = None,
) -> tuple[AppError, list[CallEnded]] | None:
    """Ends a running turn with an error, and stores its `cut_off` message. Returns the error as every reader of the
    turn gets it, and the calls that ended with it; None if the claim no longer holds or, of a neglected turn, if its
    lease was renewed or another process has recovered it. Several statements: to be called in a transaction.
    """
    is_neglected = (turns.c.lease_until < sa.func.now()) | turns.c.cancel_requested_at.is_not(None)
    of_neglected, of_claim = ((*IS_HELD, is_neglected), sa.func.now()), (IS_HELD, sa.literal(now))
    which, at = of_neglected if isinstance(turn, NeglectedTurn) else of_claim
    did = {"finished_at": at, **(run_failed(timeline) if timeline else {})}
    ending = _ending(which, error, did, is_told=outbox_of(connection) is not None)
    if (await connection.execute(ending, held(turn.key, turn.epoch))).one_or_none() is None:
        return None
    if error.code == TURN_CANCELLED:
        error = await note_approval(connection, turn.key.turn_id)
    calls = await _end_calls(connection, turn.key, now=now)
    if cut_off is not None:
        await history.append_message(connection, turn.key, cut_off)
    return error, calls


def _ending(
    which: Sequence[sa.ColumnElement[bool]], error: AppError, did: Mapping[str, Any], *, is_told: bool
) -> sa.Select[tuple[str]]:
    ended = (
        sa.update(turns)
        .where(*which)
        .values(
            status="cancelled" if error.code == TURN_CANCELLED else "failed",
            error=error_row(error),
            error_extra=clean(error.extra) or None,
            lease_until=None,
            **did,
        )
        .returning(*OF_TURNS)
        .cte("ended")
    )
    of_turns = tool_calls.c.turn_id.in_(sa.select(ended.c.id))
    running = sa.update(tool_calls).where(of_turns, tool_calls.c.status == "running")
    left_open = running.values(status="unknown", error=INTERRUPTED, summary=INTERRUPTED).cte("left_open")
    return sa.select(ended.c.id).add_cte(left_open, *((turns_ended(ended).cte("told"),) if is_told else ()))


def _approved_step() -> sa.Select[tuple[str | None]]:
    """A grant is gone once its step starts, and its call is the first that the turn makes for the plan."""
    request = turns.c.request
    of_plan = sa.func.coalesce(request["decided_plan_id"].as_string(), request["shown_plan"][0].as_string())
    calls = sa.select(tool_calls.c.status).where(tool_calls.c.turn_id == turns.c.id, tool_calls.c.plan_id == plans.c.id)
    first = calls.order_by(tool_calls.c.id).limit(1).scalar_subquery()
    unused = plans.c.taken_on_by.is_distinct_from(turns.c.id) | (plans.c.granted_to == turns.c.id)
    ran = first.in_(("succeeded", "failed"))
    became = sa.case((ran, "ran"), (first.is_not(None), "unknown"), (unused, "did_not_run"))
    decided = sa.select(became).select_from(turns.join(plans, plans.c.id == of_plan))
    return decided.where(turns.c.id == sa.bindparam("at_turn"))


_APPROVED_STEP = _approved_step()


async def note_approval(connection: Connection, turn_id: str) -> AppError:
    """Returns the error of a cancelled turn, with the outcome of the step that a yes was for, and stores it unless the
    turn runs again. To be called once it has ended: until then another process may begin the step.
    """
    error = turn_cancelled(await connection.scalar(_APPROVED_STEP, {"at_turn": turn_id}))
    if error.extra:
        values, is_over = {"error": error_row(error), "error_extra": error.extra}, turns.c.status == "cancelled"
        await connection.execute(sa.update(turns).where(turns.c.id == turn_id, is_over).values(values))
    return error


async def _end_calls(connection: Connection, turn: TurnKey, *, now: datetime) -> list[CallEnded]:
    """Gives every call of the history an answer: of one whose turn ended first, that its outcome is unknown."""
    ended = []
    for reference in await unanswered_calls(connection, turn.turn_id):
        message = history.NewMessage("tool", asdict(reference), now, tool_call_id=reference.tool_call_id)
        ended.append(CallEnded(reference, await history.append_message(connection, turn, message)))
        await append_receipt(connection, reference.tool_call_id)
    return ended


# What is left of a running turn's time: what it had when claimed, less its run until now or until it lapsed.
_ALLOWED_S = sa.func.coalesce(turns.c.left_s, sa.bindparam("timeout_s", type_=turns.c.left_s.type))
_RAN = sa.func.least(sa.func.now(), turns.c.lease_until) - turns.c.started_at
_LEFT_S = _ALLOWED_S - sa.func.extract("epoch", _RAN).cast(turns.c.left_s.type)

_REQUEUE = (  # a running turn is queued again by its process, or after its lease lapsed
    sa.update(turns)
    .where(*IS_HELD, turns.c.cancel_requested_at.is_(None))
    .where(sa.or_(sa.bindparam("by_owner", type_=sa.Boolean), turns.c.lease_until < sa.func.now()))
    .values(
        status="queued",
        queued_at=sa.func.now(),
        left_s=_LEFT_S,
        attempts=turns.c.attempts - sa.bindparam("free", type_=sa.Boolean).cast(sa.Integer),
        worker=None,
        lease_until=None,
        **attempt_ended(sa.bindparam("why", type_=sa.Text), at=sa.func.now()),
    )
    .returning(turns.c.id)
)


async def requeue(connection: Connection, turn: Claim | NeglectedTurn, why: WhyRequeued, *, timeout_s: float) -> bool:
    """Queues a running turn again; it costs an attempt unless it is `handed_back`. Returns False if it is cancelled or
    not held; if the `process_lost` it, also if its lease was renewed or another process has recovered it.
    """
    options = {"by_owner": why != "process_lost", "free": why == "handed_back", "why": why, "timeout_s": timeout_s}
    return (await connection.execute(_REQUEUE, held(turn.key, turn.epoch) | options)).one_or_none() is not None


_IS_OVERDUE = turns.c.cancel_requested_at < sa.func.now() - timedelta(seconds=CANCEL_WITHIN_S)
_NOT_BEGUN = sa.func.abs(sa.func.extract("epoch", sa.func.now() - turns.c.queued_at)) > START_WITHIN_S  # clocks go back
_NEGLECTED = (
    sa.select(
        turns.c.id,
        turns.c.session_id,
        sa.select(sessions.c.owner).where(sessions.c.id == turns.c.session_id).scalar_subquery().label("owner"),
        turns.c.seq,
        turns.c.epoch,
        (turns.c.status == RUNNING).label("running"),
        turns.c.attempts,
        turns.c.cancel_requested_at.is_not(None).label("cancelled"),
        _LEFT_S.label("left_s"),
    )
    .where(
        turns.c.status.in_(OPEN_TURNS),
        sa.or_(
            sa.and_(turns.c.status == RUNNING, sa.or_(turns.c.lease_until < sa.func.now(), _IS_OVERDUE)),
            sa.and_(turns.c.status == QUEUED, _NOT_BEGUN, ~runs_beside(turns)),
        ),
    )
    .order_by(turns.c.status.desc(), turns.c.queued_at)
    .limit(MAX_AT_ONCE)
)


async def neglected_turns(connection: Connection, *, timeout_s: float) -> list[NeglectedTurn]:
    """Returns up to MAX_AT_ONCE turns: running with a lapsed lease or overdue cancellation, or queued and not begun."""
    of_turn = ("owner", "epoch", "running", "attempts", "cancelled", "left_s")
    rows = await connection.execute(_NEGLECTED, {"timeout_s": timeout_s})
    return [NeglectedTurn(turn_key(row.session_id, row), *(getattr(row, name) for name in of_turn)) for row in rows]


async def cancel_turn(connection: Connection, owner: str, turn: TurnKey) -> dict[TurnKey, bool]:
    """Cancels a queued turn, and asks the process that runs it to cancel a running one, with the messages it was still
    to read. Returns by turn whether it has ended; nothing for one that had ended before.
    """
    reader = turns.alias()
    runs = sa.exists().where(reader.c.id == turn.turn_id, reader.c.status == "running")
    steers = (turns.c.request["steers"].as_string() == turn.turn_id) & runs
    return await _cancel(connection, owner, turn.session_id, (turns.c.id == turn.turn_id) | steers)


async def cancel_before(connection: Connection, owner: str, turn: TurnKey) -> dict[TurnKey, bool]:
    """Does the same to every open turn before this one."""
    return await _cancel(connection, owner, turn.session_id, turns.c.seq < turn.turn_seq)


async def cancel_open_turns(connection: Connection, owner: str, session_id: str) -> None:
    """Ends the open turns of a session that is about to be deleted, so that no process writes for them any more."""
    are_open = (turns.c.session_id == session_id, turns.c.status.in_(OPEN_TURNS), _is_owned(owner))
    ended = {"status": "cancelled", "lease_until": None, "finished_at": sa.func.now()}
    await connection.execute(sa.update(turns).where(*are_open).values(ended))


async def _cancel(
    connection: Connection, owner: str, session_id: str, which: sa.ColumnElement[bool]
) -> dict[TurnKey, bool]:
    queued = turns.c.status == "queued"
    cancelled = (
        sa.update(turns)
        .where(turns.c.session_id == session_id, which, turns.c.status.in_(OPEN_TURNS), _is_owned(owner))
        .values(
            cancel_requested_at=sa.func.coalesce(turns.c.cancel_requested_at, sa.func.now()),
            status=sa.case((queued, "cancelled"), else_=turns.c.status),
            error=sa.case((queued, sa.literal(error_row(turn_cancelled()), turns.c.error.type)), else_=turns.c.error),
            finished_at=sa.case((queued, sa.func.now()), else_=turns.c.finished_at),
        )
        .returning(*OF_TURNS)
        .cte("cancelled")
    )
    statement = sa.select(cancelled.c.id, cancelled.c.seq, cancelled.c.epoch, cancelled.c.status)
    if outbox_of(connection) is not None:
        statement = statement.add_cte(turns_ended(cancelled).cte("told"))
    return {turn_key(session_id, row): row.status == "cancelled" for row in await connection.execute(statement)}


def _is_owned(owner: str) -> sa.ColumnElement[bool]:
    return sa.select(sessions.c.id).where(sessions.c.id == turns.c.session_id, sessions.c.owner == owner).exists()


def error_row(error: AppError) -> dict[str, Any]:
    """Returns an error as it is stored. Its detail may quote a model or a provider."""
    row = {name: getattr(error, name) for name in ("code", "status", "title", "detail", "retryable")}
    return row | {"detail": clean_text(error.detail)}
