"""The record of a turn's run, even of one that fails: counted from its events, then logged, observed and stored.

`turns.run` holds arrays without trailing defaults, since few are read. While a turn runs for longer than LONG_S, its
process reports it in Redis: for people only. Nothing depends on it, and a plain turn pays nothing.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

from pydantic import AwareDatetime
from sqlalchemy import ColumnElement, Row, func, literal, literal_column, null, select, update
from sqlalchemy.dialects.postgresql import JSONB

from segue.db.engine import Connection
from segue.db.models import turns
from segue.db.redis_keys import DETAILS_DROPPED_KEY, Cache, activity_key
from segue.db.rows import cached, readable, reader, without_defaults
from segue.domain import events, session, telemetry
from segue.domain.errors import TURN_CANCELLED, AppError
from segue.domain.field_types import doc
from segue.domain.ids import first_id
from segue.domain.plan import Plan
from segue.log import log
from segue.turns.claims import Claim

if TYPE_CHECKING:  # the doctor reads what runs did, and needs no library of a model's
    from segue.agent.state import TurnInput
    from segue.models.metered_model import MeteredModel

KEPT_ATTEMPTS: Final = 20
DETAILS_BATCH: Final = 1000
DETAILS_DROPPED_TTL_S: Final = 604_800
LONG_S: Final = 1.0
KEPT_S: Final = 600  # a report of a process
_COUNTED: Final = ("input_tokens", "cached_tokens", "output_tokens", "reasoning_tokens", "estimated")


class TurnMetrics:
    """Counts one run of a turn. `tools` returns the fields that say how the session's tools stand."""

    def __init__(
        self, claim: Claim, model: "MeteredModel", observe: telemetry.Observe, *, tools: Callable[[], dict[str, Any]]
    ) -> None:
        self._claim = claim
        self._model = model
        self._observe = observe
        self._tools = tools
        self._started = model.began
        self._seconds: float | None = None
        self._used = session.Usage()
        self._calls: Counter[str] = Counter()
        self._tools_ms = 0
        self._nodes: list[telemetry.NodeRun] = []
        self._plan: Plan | None = None
        self._verdict: session.Verdict | None = None
        self._web_search: session.WebSearchReport | None = None
        self._memory: session.MemoryReport | None = None

    def start_from(self, start: "TurnInput") -> None:
        self._plan = start["open_plan"].plan if start["open_plan"] else None
        self._memory = memory_report(start)

    def stop(self) -> session.Usage:
        """Ends the measured time, before the outcome is stored. Returns what the run used."""
        spent, self._seconds = self._model.account.total, time.monotonic() - self._started
        counted = {name: getattr(spent, name) for name in _COUNTED}
        cost, duration_ms = None if spent.cost is None else float(spent.cost), round(self._seconds * 1000)
        self._used = session.Usage(spent.calls, **counted, cost=cost, duration_ms=duration_ms)
        return self._used

    @property
    def node(self) -> str | None:
        """The node that runs, or ran last."""
        return self._nodes[-1].node if self._nodes else None

    def timeline(self, usage: session.Usage | None = None) -> telemetry.RunTimeline:
        calls = tuple(self._model.calls)
        return telemetry.RunTimeline(tuple(self._nodes), calls, max(self._model.llm_calls - len(calls), 0), usage)

    def record_end(self, error: AppError | None = None) -> None:
        claim, model, plan = self._claim, self._model, self._plan
        used = asdict(self._used) | {"llm_calls": model.llm_calls}  # calls that failed too, which take no tokens
        times, reports = (self._seconds, claim.queued_s), (self._verdict, self._web_search)
        record_end(
            self._observe,
            claim.key,
            telemetry.TurnEnded(outcome_of(error), error.code if error else None, *times, *reports),
            request_id=claim.request.origin.request_id,
            attempt=claim.attempt,
            epoch=claim.epoch,
            queued_ms=round(claim.queued_s * 1000),
            model=model.name,
            model_ms=round(model.seconds * 1000),
            tools_ms=self._tools_ms,
            llm_retries=model.retried,
            tool_calls=self._calls.total(),
            tool_outcomes=dict(self._calls),
            plan_id=plan and plan.id,
            plan_status=plan and plan.status,
            verdict=self._verdict,
            web_search=self._web_search and self._web_search.reason,
            memory=self._memory and asdict(self._memory),
            **used,
            **self._tools(),
        )

    def count(self, event: events.Event) -> None:
        match event:
            case events.StepStarted(node):
                self._nodes.append(telemetry.NodeRun(node, self._since_start_ms()))
            case events.StepFinished() if self._nodes:
                begun = self._nodes[-1]
                self._nodes[-1] = begun._replace(duration_ms=self._since_start_ms() - begun.at_ms)
            case telemetry.ToolCalled():
                self._calls[event.outcome] += 1
                self._tools_ms += round(event.seconds * 1000)
                self._observe(event)
            case events.ToolStateChanged(tool, state):
                self._observe(telemetry.SessionToolStateChanged(tool, state.status))
            case events.PlanChanged(plan):
                self._plan_changed(plan)
            case session.AcknowledgementReport():
                self._verdict = event.verdict
            case session.WebSearchReport():
                self._web_search = event
            case _:
                pass

    def _since_start_ms(self) -> int:
        return round((time.monotonic() - self._started) * 1000)

    def _plan_changed(self, plan: Plan) -> None:
        before, self._plan = self._plan, plan
        is_same = before is not None and before.id == plan.id
        was_open = before is not None and before.is_open
        if was_open and not is_same:
            self._observe(telemetry.PlanEnded("superseded"))
        if not plan.is_open and (was_open or not is_same):
            self._observe(telemetry.PlanEnded(plan.status))


def outcome_of(error: AppError | None) -> telemetry.TurnOutcome:
    return "completed" if error is None else "cancelled" if error.code == TURN_CANCELLED else "failed"


def record_end(observe: telemetry.Observe, turn: session.TurnKey, ended: telemetry.TurnEnded, **fields: object) -> None:
    """Logs the one line that every turn ends with, and observes its numbers."""
    write = log.warning if ended.outcome == "failed" else log.info
    ids = {"session_id": turn.session_id, "turn_id": turn.turn_id, "outcome": ended.outcome, "code": ended.code}
    write("turn_finished", **ids, **fields)
    observe(ended)


def memory_report(start: "TurnInput") -> session.MemoryReport:
    return session.MemoryReport(
        short_term=start["memory"] is not None,
        long_term=len(start["facts"]),
        history_messages=len(start["prompt"]) - 2,  # beside the system message and the running one
        tool_results=len(start["earlier_results"]),
    )


class StoredNode(NamedTuple):
    """A NodeRun. Most take no millisecond."""

    node: str
    at_ms: int
    duration_ms: int | None = 0


class StoredCall(NamedTuple):
    """A ModelRun, what is rare about it last. `model` is None for the one that the report names."""

    at_ms: int
    duration_ms: int
    input_tokens: int
    output_tokens: int
    model: str | None = None
    cached_tokens: int = 0
    cost: float | None = None
    first_token_ms: int | None = None
    retries: int = 0
    outcome: str = "answered"


class StoredRun(NamedTuple):
    """`parts` are the prompt's in their order, with their tokens; the first `cacheable` of them are."""

    nodes: tuple[StoredNode, ...] = ()
    model_calls: tuple[StoredCall, ...] = ()
    parts: dict[str, int] | None = None
    cacheable: int = 0
    left_out: int = 0

    def timeline(self, report: session.TurnReport | None) -> telemetry.RunTimeline:
        answered_by, nodes = report.model if report else "", (telemetry.NodeRun(*node) for node in self.nodes)
        calls = (call._asdict() | {"model": call.model or answered_by} for call in self.model_calls)
        return telemetry.RunTimeline(tuple(nodes), tuple(telemetry.ModelRun(**call) for call in calls), self.left_out)

    @property
    def prompt(self) -> session.PromptReport | None:
        named = enumerate((self.parts or {}).items())
        parts = tuple(session.PromptPart(*part, cacheable=place < self.cacheable) for place, part in named)
        return session.PromptReport(parts, sum(part.tokens for part in parts)) if parts else None


def stored_run(timeline: telemetry.RunTimeline, report: session.TurnReport | None = None) -> list[Any]:
    """Returns the value of `turns.run`, beside a report that is stored without its prompt."""
    shown = report.prompt.parts if report and report.prompt else ()
    answered_by = report.model if report else None
    run = {
        "nodes": [_cut(StoredNode, node._asdict()) for node in timeline.nodes],
        "model_calls": [
            _cut(StoredCall, call._asdict() | {"model": call.model if call.model != answered_by else None})
            for call in timeline.model_calls
        ],
        "parts": {part.part: part.tokens for part in shown} or None,
        "cacheable": sum(part.cacheable for part in shown),
        "left_out": timeline.left_out,
    }
    return _cut(StoredRun, run)


def _cut(kind: type[StoredNode | StoredCall | StoredRun], members: Mapping[str, Any]) -> list[Any]:
    """Returns the members in the order of their kind, without the last ones if these have their defaults."""
    values, defaults = [members[name] for name in kind._fields], kind._field_defaults
    while values and values[-1] == defaults.get(kind._fields[len(values) - 1], ...):
        values.pop()
    return values


def run_of(row: Row[Any]) -> StoredRun | None:
    """Returns the run of a turn; None if it has none, or one that cannot be read."""
    return None if row.run is None else readable(reader(StoredRun), row.run, "turns", row.id)


def prompt_of(row: Row[Any], report: session.TurnReport) -> session.PromptReport | None:
    """Returns the prompt of an answer. The release before stores it with the report."""
    return report.prompt or ((run := run_of(row)) and run.prompt)


def run_failed(run: telemetry.RunTimeline) -> dict[str, Any]:
    """Returns the columns of a turn that record its last run, if it has no report."""
    used = literal(without_defaults(telemetry.RunTimeline(usage=run.usage)), JSONB)
    timeline = func.coalesce(turns.c.timeline, literal({}, JSONB)).op("||")(used)
    return {"run": literal(stored_run(run), turns.c.run.type), "timeline": timeline}


def attempt_ended(why: ColumnElement[Any], *, at: ColumnElement[Any]) -> dict[str, Any]:
    """Returns those columns after an attempt that was not the last."""
    attempt = func.jsonb_build_object(
        *("instance", turns.c.worker, "epoch", turns.c.epoch, "started_at", turns.c.started_at),
        *("ended_at", at, "why", why),
    )
    before = func.coalesce(turns.c.timeline["attempts"], literal([], JSONB))
    newest: ColumnElement[Any] = literal_column(f"CAST('$[last-{KEPT_ATTEMPTS - 1} to last]' AS jsonpath)")
    kept = func.jsonb_path_query_array(before.op("||")(attempt), newest)
    return {"run": None, "timeline": func.jsonb_build_object("attempts", kept)}


async def drop_old_details(connection: Connection, cache: Cache, *, before: datetime) -> int:
    """Forgets the records of turns that ended before then, and returns how many. Looks at the next DETAILS_BATCH turns
    in the order of their ids, which no index of details would pay for; Redis knows up to which one that was done.
    """
    done = await cache.get_json(DETAILS_DROPPED_KEY)
    after = done if isinstance(done, str) else ""
    looked = select(turns.c.id).where(turns.c.id > after, turns.c.id < first_id("turn", before))
    ids = (await connection.execute(looked.order_by(turns.c.id).limit(DETAILS_BATCH))).scalars().all()
    if not ids:
        return 0
    has_details = turns.c.id.in_(ids), turns.c.run.is_not(None) | turns.c.timeline.is_not(None)
    old = select(turns.c.id).where(*has_details)
    locked = old.where(turns.c.finished_at < before).with_for_update(skip_locked=True).cte("locked")
    forgotten = update(turns).where(turns.c.id.in_(select(locked.c.id))).values(run=null(), timeline=null())
    count = (await connection.execute(forgotten)).rowcount
    # Not beyond one that is locked, or was run again since: it is looked at another time.
    left = await connection.scalar(select(func.min(turns.c.id)).where(*has_details))
    up_to = max((each for each in ids if left is None or each < left), default=after)
    await cache.set_json(DETAILS_DROPPED_KEY, up_to, ttl_s=DETAILS_DROPPED_TTL_S)
    return count


@dataclass(frozen=True, slots=True)
class ModelWait:
    """A model call that has not been answered yet."""

    name: Annotated[str, doc("The name of the model that was asked.")]
    since: Annotated[AwareDatetime, doc("When the model was first asked.")]


@dataclass(frozen=True, slots=True)
class TurnActivity:
    """`epoch` is the turn's: the report of a process that has lost the turn counts for nothing."""

    epoch: int
    node: str | None
    model: ModelWait | None
    timeline: telemetry.RunTimeline | None = None


@dataclass(frozen=True, slots=True)
class ActivityReport:
    """The last report of a process, and its time."""

    at: AwareDatetime
    turns: dict[str, TurnActivity]


async def report_activity(cache: Cache, worker: str, turns: Mapping[str, TurnActivity], *, now: datetime) -> None:
    await cache.set_json(activity_key(worker), ActivityReport(now, dict(turns)), ttl_s=KEPT_S)


async def read_activity(cache: Cache, workers: Iterable[str]) -> dict[str, ActivityReport]:
    """Returns the last report of each process that has made one within KEPT_S."""
    names = sorted(set(workers))
    values = await asyncio.gather(*(cache.get_json(activity_key(name)) for name in names))
    read = reader(ActivityReport)
    reports = {name: cached(read, value) for name, value in zip(names, values, strict=True) if value is not None}
    return {name: report for name, report in reports.items() if report is not None}
