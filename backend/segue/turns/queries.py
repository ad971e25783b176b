"""Reads of turns: by owner, by the event log, and by operators. Ages are by the database's clock, as leases."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from datetime import datetime
from typing import Annotated, Any, get_args

from sqlalchemy import ColumnElement, Float, Row, distinct, false, func, select, update

from segue.db.engine import Connection, Database
from segue.db.models import OPEN_TURNS, QUEUED, RUNNING, sessions, triggers, turns
from segue.db.rows import readable, reader
from segue.domain import session
from segue.domain.errors import AppError, NotFound, Unreadable, app_error, existing
from segue.domain.field_types import doc
from segue.domain.plan import decision_of
from segue.domain.telemetry import Backlog
from segue.domain.tool import ToolCall, TurnEffect, UnreadableCall
from segue.memory.history import STEERED, final_messages
from segue.memory.session_store import feedback_on
from segue.tools.results import allowed_among, calls_of_turns, effects_of_turns
from segue.turns.chat_request import TurnRequest, request_of
from segue.turns.claims import last_ended_turn, runs_beside
from segue.turns.run_record import prompt_of

NOT_ENDED = frozenset({"queued", "running"})  # OPEN_TURNS are literals of statements, which equal no text
RUNS_ITSELF = turns.c.read_by.is_(None)  # no other turn has read its message
# Needs what every write of a turn needs: the table, its lock, the right to write.
CHANGES_NOTHING = update(turns).where(false()).values(status=turns.c.status)
_OTHER = turns.alias("other")
_UNREADABLE = session.TurnError(**{name: getattr(Unreadable("turn"), name) for name in session.TurnError.__slots__})


@dataclass(frozen=True, slots=True)
class TurnsOverview:
    """The open turns of all processes."""

    queued: Annotated[int, doc("Turns that wait for a process, or for another turn of their session.")]
    running: Annotated[int, doc("The number of turns that are running.")]
    running_on: Annotated[int, doc("The number of processes that are running a turn.")]
    leases_passed: Annotated[int, doc("The number of running turns whose process died or hangs.")]
    oldest_queued_s: Annotated[float | None, doc("Seconds that the oldest queued turn has waited; null if none.")]
    longest_running_s: Annotated[float | None, doc("Seconds that the longest turn has been running; null if none.")]


@dataclass(frozen=True, slots=True)
class OpenTurn:
    """`lease_left_s` is below 0 after the lease has lapsed, and None if no process has the turn."""

    turn_id: str
    status: session.TurnStatus
    epoch: int
    attempts: int
    worker: str | None
    lease_until: datetime | None
    lease_left_s: float | None
    waiting_s: float
    cancel_requested_at: datetime | None


async def get_turn(connection: Connection, owner: str, session_id: str, turn_id: str) -> session.Turn:
    """Returns a turn, or the one that read its message if it never ran. Raises NotFound, also to other owners."""
    found = select(*turns.c).join(sessions, sessions.c.id == turns.c.session_id)
    found = found.where(turns.c.id == _reader_of(turn_id), sessions.c.owner == owner)
    # Not in the statement: PostgreSQL would look through the session's turns for it, as most sessions have few.
    rows = [row for row in await connection.execute(found) if row.session_id == session_id]
    if not rows:
        raise NotFound("turn")
    return (await _turns(connection, rows))[0]


async def list_turns(
    connection: Connection, owner: str, session_id: str, *, before: str | None, limit: int, failed: bool = False
) -> list[session.Turn]:
    """Newest first by arrival, not by id, which several clocks make before. `failed`: only those with an error."""
    mine = (sessions.c.id == session_id, sessions.c.owner == owner, RUNS_ITSELF)
    statement = select(*turns.c).join(sessions, sessions.c.id == turns.c.session_id).where(*mine)
    statement = statement.order_by(turns.c.seq.desc()).limit(limit)
    if failed:
        statement = statement.where(turns.c.error.is_not(None))
    if before is not None:
        named = select(_OTHER.c.seq).where(_OTHER.c.id == before, _OTHER.c.session_id == session_id)
        statement = statement.where(turns.c.seq < named.scalar_subquery())
    return await _turns(connection, (await connection.execute(statement)).all())


async def find_turn(
    connection: Connection, owner: str, session_id: str, turn_id: str, *, goes_on: bool = False
) -> session.TurnKey:
    """Raises NotFound for a session or a turn that is missing or another owner's. With `goes_on`, for a message that is
    to follow it, also AppError `not_in_history` for one in a branch.
    """
    and_reader = sessions.outerjoin(turns, turns.c.id == _reader_of(turn_id))
    key = select(*turns.c["id", "session_id", "seq", "epoch", "branch"]).select_from(and_reader)
    found = key.where(sessions.c.id == session_id, sessions.c.owner == owner)
    row = existing("session", (await connection.execute(found)).one_or_none())
    if row.session_id != session_id:  # not in the statement, as above
        raise NotFound("turn")
    if goes_on and row.branch is not None:
        raise app_error("not_in_history")
    return session.turn_key(session_id, row)


async def asks_for_json(connection: Connection, turn_id: str) -> bool:
    """Returns whether the client asked for an answer that fits its schema."""
    request = request_of(await connection.scalar(select(turns.c.request).where(turns.c.id == turn_id)), turn_id)
    return request is not None and request.options.output_schema is not None


async def with_metadata(connection: Connection, listed: Sequence[session.Message]) -> list[session.Message]:
    """Returns the messages with their metadata: a button's decision, the model that answered, the notes it got with
    them, the user's feedback, the mandate that a call ran under.
    """
    of_report = (turns.c.report[name].as_string().label(name) for name in session.SHOWN_OF_REPORT)
    lists = (turns.c.report[name].label(name) for name in ("sources", "effects"))
    columns = (turns.c.id, turns.c.request, *lists, *of_report)
    statement = select(*columns).where(turns.c.id.in_({each.turn_id for each in listed}))
    found = {row.id: row for row in await connection.execute(statement)}
    feedback = await feedback_on(connection, [each.id for each in listed])
    allowed = await allowed_among(connection, [each.tool_call_id for each in listed if each.tool_call_id])
    ended = await effects_of_turns(connection, found)
    read = reader(tuple[TurnEffect, ...])
    held = {of: readable(read, row.effects, "turns", of) or () for of, row in found.items() if row.effects}
    changed = {of: session.with_held(ended.get(of, ()), held.get(of, ())) for of in ended.keys() | held.keys()}
    last = await final_messages(connection, list(changed)) if changed else {}
    effects = {each.id: changed[of] for of, each in last.items()}

    def shown(each: session.Message) -> session.Message:
        under, turn = allowed.get(each.tool_call_id or "", {}), found.get(each.turn_id)
        metadata = each.metadata | _metadata(each, turn) | feedback.get(each.id, {}) | under
        return replace(each, metadata=metadata, sources=_sources(each, turn), effects=effects.get(each.id, ()))

    return list(map(shown, listed))


def _sources(message: session.Message, turn: Row[Any] | None) -> tuple[session.Source, ...]:
    is_answer = message.role == "assistant" and not message.tool_calls and not message.cut_off
    known = turn.sources if turn is not None and is_answer else None
    return (readable(reader(tuple[session.Source, ...]), known, "turns", message.turn_id) or ()) if known else ()


async def with_turns(connection: Connection, listed: Sequence[session.Message]) -> list[session.Message]:
    """Returns the messages, those that stand for their turns as MessageOfTurn."""
    ids = {each.turn_id for each in listed}
    found = {row.id: row for row in await connection.execute(select(turns).where(turns.c.id.in_(ids)))}
    answers = await final_messages(connection, list(ids))
    calls = await calls_of_turns(connection, list(ids))

    def stands_for_it(message: session.Message) -> bool:
        answer = answers.get(message.turn_id)
        if answer is None or answer.tool_calls:
            return message.role == "user" and STEERED not in message.metadata
        return message.id == answer.id

    def shown(each: session.Message) -> session.Message:
        if isinstance(each, session.UnreadableMessage) or each.turn_id not in found or not stands_for_it(each):
            return each
        turn = _summary(found[each.turn_id], calls.get(each.turn_id, ()))
        return session.MessageOfTurn(**{of.name: getattr(each, of.name) for of in fields(each)}, turn=turn)

    return list(map(shown, listed))


def _summary(row: Row[Any], calls: tuple[ToolCall | UnreadableCall, ...]) -> session.TurnSummary:
    report, status = report_of(row), status_of(row)
    return session.TurnSummary(
        turn_id=row.id,
        status=status,
        acknowledgement=report.acknowledgement if report else None,
        plan_id=report.plan.id if report and report.plan else None,
        tool_calls=calls,
        error=report.error if report else None if status in NOT_ENDED else _error(row),
    )


def _metadata(message: session.Message, turn: Row[Any] | None) -> dict[str, Any]:
    if turn is None:
        return {}
    if message.role == "assistant" and turn.model is not None:
        # a model may have said it in the same turn
        hidden = () if session.WRITTEN_BY in message.metadata else session.OF_SERVICE
        hidden = (*hidden, session.REASONING) if message.tool_calls else hidden
        return {name: value for name, value in session.answer_metadata(turn).items() if name not in hidden}
    request = request_of(turn.request, turn.id) if message.role == "user" and STEERED not in message.metadata else None
    return _of_button(message, request) if request else {}


def _of_button(message: session.Message, request: TurnRequest) -> dict[str, Any]:
    """Returns a button's decision as metadata, empty for a message that was typed."""
    if not (request.decided_plan_id or request.amends):
        return {}
    plan_id, version = request.shown_plan or (None, None)
    decision = "amend" if request.amends else decision_of(message.content)
    optional = {"args_changed": request.args_changed, "remember": request.remember, "by": request.decided_by}
    fields = {"decision": decision, "plan_id": request.decided_plan_id or plan_id, "plan_version": version}
    return fields | {name: value for name, value in optional.items() if value}


async def turn_of_key(connection: Connection, owner: str, session_id: str, key: str) -> Row[*tuple[Any, ...]] | None:
    """Returns the fields that admission needs of the session's turn under an idempotency key; None if it has none."""
    first = turns.alias("asked")
    statement = (
        select(turns.c.id, turns.c.seq, turns.c.epoch, turns.c.status, turns.c.error, first.c.body_hash, turns.c.branch)
        .join(first, turns.c.id == func.coalesce(first.c.read_by, first.c.id))
        .join(sessions, sessions.c.id == turns.c.session_id)
        .where(first.c.session_id == session_id, first.c.idempotency_key == key, sessions.c.owner == owner)
    )
    return (await connection.execute(statement)).one_or_none()


async def turn_ids(connection: Connection, session_id: str) -> list[str]:
    return list((await connection.execute(select(turns.c.id).where(turns.c.session_id == session_id))).scalars())


async def sessions_of_open(connection: Connection, turn_ids: Iterable[str]) -> dict[str, str | None]:
    """Returns the session in which each turn is open, None for one that has ended. One without a row is left out."""
    statement = select(turns.c.id, turns.c.status, turns.c.session_id).where(turns.c.id.in_(turn_ids))
    return {row.id: row.session_id if row.status in NOT_ENDED else None for row in await connection.execute(statement)}


async def first_open_turn(connection: Connection, session_id: str) -> str | None:
    """Returns the id of the session's turn that runs or is next to run; None if no turn is open."""
    statement = select(turns.c.id).where(turns.c.session_id == session_id, turns.c.status.in_(OPEN_TURNS))
    return await connection.scalar(statement.order_by(turns.c.seq).limit(1))


async def ended_turns(connection: Connection, session_id: str) -> Sequence[Row[Any]]:
    """Returns the rows of the turns in the session's history that have ended, oldest first."""
    ended = select(turns).where(turns.c.session_id == session_id, turns.c.finished_at.is_not(None))
    return (await connection.execute(ended.where(turns.c.branch.is_(None)).order_by(turns.c.seq))).all()


async def last_in_history(connection: Connection, session_id: str) -> Row[Any] | None:
    """Returns the newest turn in the session's history, and under which key it was `retried` last."""
    last = select(turns, turns.c.request["retried"].label("retried")).order_by(turns.c.seq.desc()).limit(1)
    last = last.where(turns.c.session_id == session_id, turns.c.branch.is_(None), RUNS_ITSELF)
    return (await connection.execute(last)).one_or_none()


async def groups_of_last(connection: Connection, session_id: str) -> tuple[str, ...]:
    """Returns the groups that the user was in with the newest turn in the session's history."""
    last = await last_in_history(connection, session_id)
    request = request_of(last.request, last.id) if last else None
    return request.origin.groups if request else ()


_LAST_ENDED = select(turns.c.id.label("turn_id"), turns.c.finished_at).where(turns.c.id == last_ended_turn())


async def last_ended(connection: Connection, session_id: str) -> Row[*tuple[Any, ...]] | None:
    """Returns the `turn_id` and `finished_at` of the turn in the history that ended last."""
    return (await connection.execute(_LAST_ENDED, {"at_session": session_id})).one_or_none()


async def turn_after(connection: Connection, session_id: str, turn_id: str | None) -> str | None:
    """Returns the id of the turn that follows another one in the history, of the first one for None."""
    seq = select(_OTHER.c.seq).where(_OTHER.c.session_id == session_id, _OTHER.c.id == turn_id).scalar_subquery()
    after = select(turns.c.id).where(turns.c.session_id == session_id, turns.c.branch.is_(None))
    if turn_id is not None:
        after = after.where(turns.c.seq > seq)
    return await connection.scalar(after.order_by(turns.c.seq).limit(1))


async def outcomes_of(database: Database, turn_ids: Sequence[str]) -> dict[str, session.TurnAnswer]:
    """Returns by id the outcomes of the turns that have ended. That of a deleted turn is NotFound, as a value. Raises
    StorageUnavailable also while no turn can end, since nothing can be written.
    """
    if database.refuses_writes:
        await database.ping(CHANGES_NOTHING)
    async with database.read_only() as connection:
        rows = (await connection.execute(select(turns).where(turns.c.id.in_(turn_ids)))).all()
        readers: dict[str, session.TurnKey] = {}
        if read_by := {row.read_by for row in rows if row.read_by}:
            keys = select(turns.c.session_id, turns.c.id, turns.c.seq, turns.c.epoch).where(turns.c.id.in_(read_by))
            readers = {row.id: session.turn_key(row.session_id, row) for row in await connection.execute(keys)}
        ended = await _turns(connection, [row for row in rows if row.status not in NOT_ENDED and not row.read_by])
    outcomes: dict[str, session.TurnAnswer] = {turn.turn_id: turn.answer for turn in ended if turn.answer}
    outcomes |= {turn.turn_id: AppError(**asdict(turn.error)) for turn in ended if turn.error and not turn.answer}
    outcomes |= {row.id: session.turn_steered(readers[row.read_by]) for row in rows if row.read_by}
    return outcomes | {turn_id: NotFound("session") for turn_id in set(turn_ids) - {row.id for row in rows}}


async def overview(connection: Connection) -> TurnsOverview:
    row = (await connection.execute(_OPEN_TURNS_COUNTED)).one()
    return TurnsOverview(**{each.name: getattr(row, each.name) for each in fields(TurnsOverview)})


async def read_backlog(connection: Connection) -> Backlog:
    row = (await connection.execute(_OPEN_TURNS_COUNTED)).one()
    return Backlog(row.queued, row.running, lapsed=row.leases_passed, oldest_s=row.oldest_ready_s)


async def open_turns_of(connection: Connection, session_id: str) -> list[OpenTurn]:
    """Returns the open turns of a session in the order in which they run."""
    plain = (turns.c[name] for name in OpenTurn.__slots__ if name in turns.c)
    statement = (
        select(turns.c.id.label("turn_id"), *plain, lease_left(), _age(turns.c.queued_at).label("waiting_s"))
        .where(turns.c.session_id == session_id, turns.c.status.in_(OPEN_TURNS))
        .order_by(turns.c.seq)
    )
    return [OpenTurn(**row) for row in (await connection.execute(statement)).mappings()]


def lease_left() -> ColumnElement[float]:
    return (-_age(turns.c.lease_until)).label("lease_left_s")


def _age(moment: ColumnElement[datetime] | ColumnElement[datetime | None]) -> ColumnElement[float]:
    return func.round(func.extract("epoch", func.now() - moment), 1).cast(turns.c.left_s.type)


async def _turns(connection: Connection, rows: Sequence[Row[Any]]) -> list[session.Turn]:
    reports = {row.id: report for row in rows if (report := report_of(row))}
    messages = await final_messages(connection, list(reports)) if reports else {}
    calls = await calls_of_turns(connection, list(reports)) if reports else {}
    for turn_id, effects in (await effects_of_turns(connection, calls) if calls else {}).items():
        reports[turn_id] = replace(reports[turn_id], effects=session.with_held(effects, reports[turn_id].effects))
    return [_turn(row, reports.get(row.id), messages.get(row.id), calls.get(row.id, ())) for row in rows]


_AS_STORED = ("session_id", "attempts", "created_at", "started_at", "finished_at", "branch")


def _turn(
    row: Row[Any], report: session.TurnReport | None, message: session.Message | None, calls: tuple[ToolCall, ...]
) -> session.Turn:
    """Returns a turn that has ended with its answer or an error, which is `unreadable` if neither can be read."""
    status, answer, error = status_of(row), None, None
    if status != row.status:
        error = _UNREADABLE
    elif report is not None and message is not None:
        key = session.TurnKey(row.session_id, row.id, row.seq)
        answer, error = session.chat_answer(key, message, report, calls), report.error
    elif status not in NOT_ENDED:
        error = _error(row)
    return session.Turn(
        **{name: getattr(row, name) for name in _AS_STORED},
        turn_id=row.id,
        status=status,
        error=error,
        answer=answer,
        prompt=prompt_of(row, report) if report and answer else None,
    )


def status_of(row: Row[Any]) -> session.TurnStatus:
    """Returns the status of a row, `failed` if this release has no such status."""
    return next((known for known in get_args(session.TurnStatus) if known == row.status), "failed")


def report_of(row: Row[Any]) -> session.TurnReport | None:
    """Returns None if the turn has no report, or one that cannot be read."""
    return None if row.report is None else readable(reader(session.TurnReport), row.report, "turns", row.id)


def _error(row: Row[Any]) -> session.TurnError:
    columns = {**row.error, "extra": row.error_extra or {}} if isinstance(row.error, dict) else row.error
    return readable(reader(session.TurnError), columns, "turns", row.id) or _UNREADABLE


def _reader_of(turn_id: str) -> ColumnElement[str]:
    """The turn of this id, or the one that has read its message."""
    return func.coalesce(select(_OTHER.c.read_by).where(_OTHER.c.id == turn_id).scalar_subquery(), turn_id)


# Over the index of open turns. The oldest ready turn is the one that waits for a process longest.
_WAITS, _RUNS = turns.c.status == QUEUED, turns.c.status == RUNNING
_READY_FOR = func.now() - func.min(turns.c.queued_at).filter(_WAITS, ~runs_beside(turns))
_OPEN_TURNS_COUNTED = select(
    func.count().filter(_WAITS).label("queued"),
    func.count().filter(_RUNS).label("running"),
    func.count(distinct(turns.c.worker)).filter(_RUNS).label("running_on"),
    func.count().filter(_RUNS, turns.c.lease_until < func.now()).label("leases_passed"),
    func.max(_age(turns.c.queued_at)).filter(_WAITS).label("oldest_queued_s"),
    func.max(_age(turns.c.started_at)).filter(_RUNS).label("longest_running_s"),
    func.coalesce(func.extract("epoch", _READY_FOR).cast(Float), 0.0).label("oldest_ready_s"),
).where(turns.c.status.in_(OPEN_TURNS))


async def sealed_of_triggers(connection: Connection) -> Sequence[str]:
    """Returns the sealed secrets of all active triggers."""
    return (await connection.scalars(select(triggers.c.sealed).where(triggers.c.status == "active"))).all()
