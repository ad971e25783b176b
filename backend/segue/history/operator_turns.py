"""Turns of every session as operators see them: where each runs, what it waits for, and its steps with their times.

A process stores the times of a turn in `turns.run` when it ends, and keeps them in Redis until then; `turns.timeline`
has earlier attempts. Only reads, and no words or arguments. Callers check that the asker may see all users' turns.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from operator import lt
from typing import Annotated, Any, Final, Literal, get_args

from pydantic import AwareDatetime, BaseModel, Field
from sqlalchemy import ColumnElement, Row, Select, func, or_, select

from segue.db.engine import Connection
from segue.db.models import OPEN_TURNS, messages, plans, sessions, tool_calls, turns
from segue.db.redis_keys import Cache
from segue.db.rows import cached, if_given, oldest_first, readable, reader
from segue.domain.errors import existing
from segue.domain.field_types import doc
from segue.domain.identity import MAX_USER_CHARS
from segue.domain.ids import first_id
from segue.domain.session import PromptReport, TurnReport, TurnStatus, Usage, first_words
from segue.domain.telemetry import ModelRun, NodeRun, RunTimeline
from segue.domain.tool import CallStatus
from segue.history.operator_figures import HAS_RUN, SKEW
from segue.turns.queries import RUNS_ITSELF, lease_left, report_of, status_of
from segue.turns.run_record import ActivityReport, prompt_of, read_activity, run_of

READ_CHARS: Final = 1000  # of a message, for its first words
Named = Annotated[str | None, Field(max_length=MAX_USER_CHARS, pattern="^[^\x00]*$")]


@dataclass(frozen=True, slots=True)
class Running:
    """What a running turn waits for: a tool or a model."""

    kind: Annotated[Literal["tool", "model"], doc("Whether it is a tool or a model.")]
    name: Annotated[str, doc("The name of the tool or model.")]
    since: Annotated[datetime, doc("When the tool or model was called.")]


@dataclass(frozen=True, slots=True)
class OpsTurn:
    """A turn of any user, without what was said in it."""

    turn_id: Annotated[str, doc("The id of the turn, which begins with `turn_`.")]
    session_id: Annotated[str, doc("The id of the session that the turn is in.")]
    owner: Annotated[str, doc("The user who owns the session.")]
    agent: Annotated[str | None, doc("The id of the agent that answers; null until a process has begun it.")]
    status: Annotated[TurnStatus, doc("The status of the turn; `queued` and `running` are open.")]
    instance: Annotated[str | None, doc("The process that runs or last ran the turn: its host and process id.")]
    attempt: Annotated[int, doc("The number of times that a process began to run the turn.")]
    epoch: Annotated[int, doc("Grows each time a process takes the turn; a write under an older one is refused.")]
    lease_until: Annotated[datetime | None, doc("When the process's hold on the turn lapses if not renewed.")]
    lease_left_s: Annotated[float | None, doc("Seconds until `lease_until`. Below 0: the process died or hangs.")]
    created_at: Annotated[datetime, doc("When the user's message was accepted.")]
    started_at: Annotated[datetime | None, doc("When the last attempt began; null before the first one.")]
    finished_at: Annotated[datetime | None, doc("When the turn ended; null while it is open.")]
    cancel_requested_at: Annotated[datetime | None, doc("When the turn was told to stop; null if it was not.")]
    error_code: Annotated[str | None, doc("The code of the problem that the turn ended with, if any.")]
    running: Annotated[tuple[Running, ...], doc("The tools or model that the turn waits for at this moment.")] = ()
    node: Annotated[str | None, doc("The graph's node it is in; null in the first second and without Redis.")] = None
    heard_at: Annotated[datetime | None, doc("When its process last reported `node`: every half second.")] = None
    usage: Annotated[Usage | None, doc("What the turn used; null before its end, and if its process died.")] = None
    said: Annotated[str | None, doc("How its message begins, in lists and if `include=words` may be given.")] = None


class TurnFilter(BaseModel):
    """Which turns to list: those that match every filter given."""

    status: Annotated[TurnStatus | Literal["any"] | None, doc("Only this status; `any` for all; default: open.")] = None
    session_id: Annotated[str | None, Field(max_length=200), doc("Only turns of the session with this id.")] = None
    tool: Annotated[Named, doc("Only turns that wait for this tool or, if ended, called it.")] = None
    owner: Annotated[Named, doc("Only turns of this user.")] = None
    code: Annotated[Named, doc("Only turns that ended with a problem of this code.")] = None
    since: Annotated[AwareDatetime | None, doc("Only turns whose message came at this time or later.")] = None
    until: Annotated[AwareDatetime | None, doc("Only turns whose message came before this time.")] = None


async def list_any(
    connection: Connection, filters: TurnFilter, *, words: bool = False, before: str | None = None, limit: int
) -> list[OpsTurn]:
    """Returns open turns, or those of a status, newest first, no copies; with `words` also how their messages begin."""
    statement = _turns().where(HAS_RUN, *_fits(filters), if_given(turns.c.id, before, lt))
    if words:
        of_user = (messages.c.turn_id == turns.c.id) & (messages.c.role == "user")
        first = select(func.left(messages.c.content, READ_CHARS)).where(of_user).order_by(messages.c.seq).limit(1)
        statement = statement.add_columns(first.scalar_subquery().label("said"))
    rows = (await connection.execute(statement.order_by(turns.c.id.desc()).limit(limit))).all()
    return await _with_tools(connection, rows)


def _fits(filters: TurnFilter) -> Iterable[ColumnElement[bool]]:
    if filters.status != "any":
        yield turns.c.status == filters.status if filters.status else turns.c.status.in_(OPEN_TURNS)
    if filters.status == "failed" or filters.code is not None:
        yield turns.c.error.is_not(None)  # so that it is read from an index of those
    yield if_given(turns.c.error["code"].as_string(), filters.code)
    yield if_given(turns.c.session_id, filters.session_id)
    yield if_given(sessions.c.owner, filters.owner)
    if filters.tool is not None:
        runs = select(tool_calls.c.id).where(tool_calls.c.turn_id == turns.c.id, tool_calls.c.tool_name == filters.tool)
        yield runs.where(or_(tool_calls.c.status == "running", turns.c.finished_at.is_not(None))).exists()
    if filters.since is not None:  # ids are in the order of time, as far as clocks agree
        yield (turns.c.created_at >= filters.since) & (turns.c.id >= first_id("turn", filters.since - SKEW))
    if filters.until is not None:
        yield (turns.c.created_at < filters.until) & (turns.c.id < first_id("turn", filters.until + SKEW))


async def find_any(connection: Connection, turn_id: str) -> OpsTurn:
    """Raises NotFound for a turn that is in no session."""
    row = existing("turn", (await connection.execute(_turns().where(turns.c.id == turn_id))).one_or_none())
    return (await _with_tools(connection, [row]))[0]


async def with_activity(cache: Cache, listed: Sequence[OpsTurn]) -> list[OpsTurn]:
    """Adds the processes' reports on the turns that run."""
    found = await read_activity(cache, {turn.instance for turn in listed if turn.status == "running" and turn.instance})
    return [_with_report(turn, found.get(turn.instance or "")) for turn in listed]


def _with_report(turn: OpsTurn, report: ActivityReport | None) -> OpsTurn:
    """Adds a process's report. A call in the ledger counts as what the turn waits for, whatever the report says."""
    activity = report.turns.get(turn.turn_id) if report else None
    if report is None or activity is None or activity.epoch != turn.epoch or turn.status != "running":
        return turn
    waits = (Running("model", activity.model.name, activity.model.since),) if activity.model else ()
    return replace(turn, node=activity.node, heard_at=report.at, running=turn.running or waits)


async def _with_tools(connection: Connection, rows: Sequence[Row[Any]]) -> list[OpsTurn]:
    calls: dict[str, tuple[Running, ...]] = {}
    if running := [row.turn_id for row in rows if row.status == "running"]:
        statement = select(tool_calls.c.turn_id, tool_calls.c.tool_name, tool_calls.c.started_at)
        statement = statement.where(tool_calls.c.turn_id.in_(running), tool_calls.c.status == "running")
        for row in await connection.execute(statement.order_by(*oldest_first(tool_calls))):
            calls[row.turn_id] = (*calls.get(row.turn_id, ()), Running("tool", row.tool_name, row.started_at))
    listed = []
    for turn in rows:
        shown = turn._asdict() | {"status": status_of(turn), "running": calls.get(turn.turn_id, ())}
        shown["usage"] = turn.usage and cached(reader(Usage), turn.usage)
        listed.append(OpsTurn(**{**shown, "said": first_words(shown.get("said") or "") or None}))
    return listed


def _turns() -> Select[Any]:
    shown: Iterable[Any] = (turns.c[name] for name in OpsTurn.__slots__ if name in turns.c)
    named = {"turn_id": turns.c.id, "instance": turns.c.worker, "attempt": turns.c.attempts}
    usage = func.coalesce(turns.c.report["usage"], turns.c.timeline["usage"])
    read = {"usage": usage, "error_code": turns.c.error["code"].as_string()}
    labelled = (column.label(name) for name, column in (named | read).items())
    of_session = sessions.c.id == turns.c.session_id
    return select(sessions.c.owner, lease_left(), *labelled, *shown).join(sessions, of_session).where(RUNS_ITSELF)


@dataclass(frozen=True, slots=True)
class Attempt:
    """A process's attempt to run a turn."""

    instance: Annotated[str | None, doc("The host and process id of the process.")]
    epoch: Annotated[int, doc("The turn's epoch in the attempt. It grows with every attempt.")]
    started_at: Annotated[AwareDatetime | None, doc("When the process took the turn.")]
    ended_at: Annotated[AwareDatetime | None, doc("When the attempt ended; null while it runs.")]
    why: Annotated[str | None, doc("Why: `handed_back`, `storage_lost`, `process_lost` or a code; null: it answered.")]


@dataclass(frozen=True, slots=True)
class Wait:
    """A time in which nothing of a turn ran."""

    kind: Annotated[Literal["queued", "approval"], doc("`queued`: for a process. `approval`: for a yes afterwards.")]
    since: Annotated[datetime, doc("When the wait began.")]
    until: Annotated[datetime | None, doc("When the wait ended; null while it lasts.")]


@dataclass(frozen=True, slots=True)
class TimedNode:
    """A run of one of the graph's nodes."""

    node: Annotated[str, doc("The name of the node.")]
    at: Annotated[datetime, doc("When the node began.")]
    duration_ms: Annotated[int | None, doc("The duration in milliseconds; null if it had not ended.")]


@dataclass(frozen=True, slots=True)
class TimedModelCall:
    """A model call, including all its tries."""

    model: Annotated[str, doc("The model that answered, or that was asked.")]
    node: Annotated[str | None, doc("The graph's node that made the call.")]
    at: Annotated[datetime, doc("When the model was first asked.")]
    duration_ms: Annotated[int, doc("Milliseconds that the call took, including all tries.")]
    first_token_ms: Annotated[int | None, doc("Milliseconds to the first word; null unless a client streamed it.")]
    retries: Annotated[int, doc("The number of times that the model was asked again.")]
    outcome: Annotated[str, doc("`answered`, `cancelled`, or why the call failed.")]
    input_tokens: Annotated[int, doc("Tokens sent to the model.")]
    cached_tokens: Annotated[int, doc("The part of the input tokens that the provider had cached.")]
    output_tokens: Annotated[int, doc("Tokens received from the model.")]
    cost: Annotated[float | None, doc("Cost in US dollars; null if the model has no price.")]


@dataclass(frozen=True, slots=True)
class TimedToolCall:
    """A tool call, without its arguments and result."""

    tool_call_id: Annotated[str, doc("The id of the tool call, which begins with `call_`.")]
    tool: Annotated[str, doc("The name of the tool.")]
    status: Annotated[CallStatus, doc("The status of the call; `unknown` if its outcome is not known.")]
    at: Annotated[datetime, doc("When the tool was called.")]
    duration_ms: Annotated[int | None, doc("Milliseconds; null until it has ended, or if its process died.")]
    plan_id: Annotated[str | None, doc("The id of the plan that the call is a step of, if any.")]
    step_id: Annotated[int | None, doc("The number of that step in the plan, if any.")]
    granted: Annotated[bool, doc("Whether it ran without asking, under a mandate for its session.")]
    mandate_id: Annotated[str | None, doc("The id of the mandate under which it ran without asking, if any.")]
    settled_by: Annotated[str | None, doc("The id of the check's call that settled an unknown outcome.")]


@dataclass(frozen=True, slots=True)
class TurnTimeline:
    """What happened in a turn, and when."""

    turn: Annotated[OpsTurn, doc("The turn, and where it is now or how it ended.")]
    model: Annotated[str | None, doc("The model that answered; null without an answer.")]
    usage: Annotated[Usage | None, doc("What the turn used; null before its end, and if its process died.")]
    prompt: Annotated[PromptReport | None, doc("The parts of the last request to a model; null without an answer.")]
    attempts: Annotated[list[Attempt], doc("The attempts to run the turn, the last twenty.")]
    waits: Annotated[list[Wait], doc("The times in which nothing of the turn ran.")]
    nodes: Annotated[list[TimedNode], doc("Nodes of the last attempt; empty if its process died or just began.")]
    model_calls: Annotated[list[TimedModelCall], doc("Model calls of the last attempt, the first hundred.")]
    model_calls_left_out: Annotated[int, doc("The number of further model calls that are not listed.")]
    tool_calls: Annotated[list[TimedToolCall], doc("The tool calls of all attempts, the first 500.")]


@dataclass(frozen=True, slots=True)
class _Kept(RunTimeline):
    attempts: tuple[Attempt, ...] = ()


async def timeline_of(connection: Connection, cache: Cache, turn_id: str) -> TurnTimeline:
    """Raises NotFound for a turn that is in no session."""
    found = await find_any(connection, turn_id)
    row = (await connection.execute(select(turns).where(turns.c.id == turn_id))).one()
    [turn] = await with_activity(cache, [found])
    report = report_of(row)
    stored = _stored(row, report)
    run: RunTimeline = stored
    earlier = stored.attempts
    if turn.status == "running":  # what its process said last of it
        process = (await read_activity(cache, [turn.instance or ""])).get(turn.instance or "")
        activity = process.turns.get(turn.turn_id) if process else None
        run = (activity.timeline if activity and activity.epoch == turn.epoch else None) or RunTimeline()
    return TurnTimeline(
        turn=turn,
        model=report.model if report else None,
        usage=report.usage if report else run.usage,
        prompt=prompt_of(row, report) if report else None,
        attempts=[*earlier, *_last_attempt(turn, earlier)],
        waits=[*_queued(turn, earlier), *await _approval(connection, row)],
        nodes=[TimedNode(each.node, _at(turn, each), each.duration_ms) for each in run.nodes],
        model_calls=_model_calls(turn, run),
        model_calls_left_out=run.left_out,
        tool_calls=await _tool_calls(connection, turn_id),
    )


def _stored(row: Row[Any], report: TurnReport | None) -> _Kept:
    stored = (readable(reader(_Kept), row.timeline, "turns", row.id) if row.timeline is not None else None) or _Kept()
    if stored.nodes or (run := run_of(row)) is None:  # the release before stores it with the attempts
        return stored
    last = run.timeline(report)
    return replace(stored, nodes=last.nodes, model_calls=last.model_calls, left_out=last.left_out)


def _last_attempt(turn: OpsTurn, earlier: Sequence[Attempt]) -> list[Attempt]:
    """The attempt that runs or ran last; none if all have been given up and the turn waits for the next."""
    if turn.instance is None or turn.started_at is None or any(each.epoch == turn.epoch for each in earlier):
        return []
    return [Attempt(turn.instance, turn.epoch, turn.started_at, turn.finished_at, turn.error_code)]


def _queued(turn: OpsTurn, earlier: Sequence[Attempt]) -> list[Wait]:
    """The waits from the message to the first attempt, and from the end of each attempt to the next."""
    begun = [*(each.started_at for each in earlier), *(each.started_at for each in _last_attempt(turn, earlier))]
    since = [turn.created_at, *(each.ended_at for each in earlier)]
    until = [*begun, *([turn.finished_at] if len(begun) < len(since) else [])]
    return [Wait("queued", each, end) for each, end in zip(since, until, strict=False) if each is not None]


def _model_calls(turn: OpsTurn, run: RunTimeline) -> list[TimedModelCall]:
    calls = []
    for each in run.model_calls:
        begun = [node.node for node in run.nodes if node.at_ms <= each.at_ms]
        fields = {name: value for name, value in each._asdict().items() if name != "at_ms"}
        calls.append(TimedModelCall(node=begun[-1] if begun else None, at=_at(turn, each), **fields))
    return calls


def _at(turn: OpsTurn, each: NodeRun | ModelRun) -> datetime:
    return (turn.started_at or turn.created_at) + timedelta(milliseconds=each.at_ms)


async def _tool_calls(connection: Connection, turn_id: str) -> list[TimedToolCall]:
    shown = ("status", "duration_ms", "plan_id", "step_id", "granted", "mandate_id", "settled_by")
    of_call = (tool_calls.c.id.label("tool_call_id"), tool_calls.c.tool_name.label("tool"))
    statement = select(*of_call, tool_calls.c.started_at.label("at"), *(tool_calls.c[name] for name in shown))
    statement = statement.where(tool_calls.c.turn_id == turn_id).order_by(*oldest_first(tool_calls)).limit(500)
    rows, known = (await connection.execute(statement)).mappings(), get_args(CallStatus)
    return [TimedToolCall(**{**row, "status": row["status"] if row["status"] in known else "unknown"}) for row in rows]


async def _approval(connection: Connection, row: Row[Any]) -> list[Wait]:
    """The wait for a yes that the turn's answer asked for last: it ends with the next message, or with the plan."""
    if row.finished_at is None:
        return []
    later = turns.alias("later")
    answered = select(func.min(later.c.created_at)).where(later.c.session_id == row.session_id, later.c.seq > row.seq)
    question = select(plans.c.status, plans.c.expires_at, answered.scalar_subquery().label("answered_at"))
    question = question.where(plans.c.session_id == row.session_id, plans.c.asked_in == row.id)
    found = (await connection.execute(question.limit(1))).one_or_none()
    if found is None:
        return []
    until = found.answered_at or (None if found.status == "waiting" else found.expires_at)
    return [Wait("approval", row.finished_at, until)]
