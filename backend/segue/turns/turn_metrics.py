"""What a turn has come to: counted from its events as they are emitted, so that a turn that fails has numbers too.

The process that stores the end of a turn records it: one line in the log and one observation.
"""

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import structlog

from segue.agent.state import TurnInput
from segue.domain import turn_errors
from segue.domain.errors import AppError
from segue.domain.events import (
    AcknowledgementDetected,
    Event,
    PlanChanged,
    SearchDecided,
    StepFinished,
    StepStarted,
    ToolRan,
    ToolStateChanged,
)
from segue.domain.plan import Plan
from segue.domain.session import MemoryReport, TurnKey, Usage, Verdict, WebSearchReport
from segue.domain.telemetry import (
    NodeRun,
    Observe,
    PlanEnded,
    RunTimeline,
    SessionToolStateChanged,
    ToolCalled,
    TurnEnded,
    TurnOutcome,
)
from segue.models.metered_model import MeteredModel
from segue.turns.claims import Claim

log = structlog.get_logger()


class TurnMetrics:
    """Counts one run of a turn. `tools` returns the fields that say how the session's tools stand."""

    def __init__(
        self, claim: Claim, model: MeteredModel, observe: Observe, *, tools: Callable[[], dict[str, Any]]
    ) -> None:
        self._claim = claim
        self._model = model
        self._observe = observe
        self._tools = tools
        self._started = model.began
        self._seconds: float | None = None
        self._calls: Counter[str] = Counter()
        self._tools_ms = 0
        self._nodes: list[NodeRun] = []
        self._plan: Plan | None = None
        self._verdict: Verdict | None = None
        self._web_search: WebSearchReport | None = None
        self._memory: MemoryReport | None = None

    def start_from(self, start: TurnInput) -> None:
        self._plan = start["open_plan"].plan if start["open_plan"] else None
        self._memory = memory_report(start)

    def stop(self) -> Usage:
        """Ends the measured time, before the outcome is stored. Returns what the run used."""
        self._seconds = time.monotonic() - self._started
        return self._usage()

    def _usage(self) -> Usage:
        spent = self._model.account.total
        return Usage(
            llm_calls=spent.calls,
            input_tokens=spent.input_tokens,
            cached_tokens=spent.cached_tokens,
            output_tokens=spent.output_tokens,
            reasoning_tokens=spent.reasoning_tokens,
            estimated=spent.estimated,
            cost=None if spent.cost is None else float(spent.cost),
            duration_ms=round((self._seconds or 0) * 1000),
        )

    @property
    def node(self) -> str | None:
        """The node that runs, or ran last."""
        return self._nodes[-1].node if self._nodes else None

    def timeline(self, usage: Usage | None = None) -> RunTimeline:
        calls = tuple(self._model.calls)
        return RunTimeline(tuple(self._nodes), calls, max(self._model.llm_calls - len(calls), 0), usage)

    def record_end(self, error: AppError | None = None) -> None:
        claim, model, plan = self._claim, self._model, self._plan
        used = asdict(self._usage()) | {"llm_calls": model.llm_calls}  # calls that failed too, which take no tokens
        ended = TurnEnded(
            outcome_of(error),
            error.code if error else None,
            self._seconds,
            claim.queued_s,
            self._verdict,
            self._web_search,
        )
        record_end(
            self._observe,
            claim.key,
            ended,
            request_id=claim.origin.request_id,
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

    def count(self, event: Event) -> None:
        match event:
            case StepStarted(node):
                self._nodes.append(NodeRun(node, self._since_start_ms()))
            case StepFinished() if self._nodes:
                begun = self._nodes[-1]
                self._nodes[-1] = begun._replace(duration_ms=self._since_start_ms() - begun.at_ms)
            case ToolRan(tool, outcome, duration_ms):
                self._calls[outcome] += 1
                self._tools_ms += duration_ms
                self._observe(ToolCalled(tool, outcome, duration_ms / 1000))
            case ToolStateChanged(tool, state):
                self._observe(SessionToolStateChanged(tool, state.status))
            case PlanChanged(plan):
                self._plan_changed(plan)
            case AcknowledgementDetected(report):
                self._verdict = report.verdict
            case SearchDecided(report):
                self._web_search = report
            case _:
                pass

    def _since_start_ms(self) -> int:
        return round((time.monotonic() - self._started) * 1000)

    def _plan_changed(self, plan: Plan) -> None:
        before, self._plan = self._plan, plan
        same = before is not None and before.id == plan.id
        if before is not None and before.is_open and not same:
            self._observe(PlanEnded("superseded"))
        if not plan.is_open and not (same and before is not None and not before.is_open):
            self._observe(PlanEnded(plan.status))


def outcome_of(error: AppError | None) -> TurnOutcome:
    if error is None:
        return "completed"
    return "cancelled" if error.code == turn_errors.CANCELLED else "failed"


def record_end(observe: Observe, turn: TurnKey, ended: TurnEnded, **fields: object) -> None:
    """Logs the one line that every turn ends with, and observes its numbers."""
    write = log.warning if ended.outcome == "failed" else log.info
    write(
        "turn_finished",
        session_id=turn.session_id,
        turn_id=turn.turn_id,
        outcome=ended.outcome,
        code=ended.code,
        **fields,
    )
    observe(ended)


def memory_report(start: TurnInput) -> MemoryReport:
    return MemoryReport(
        short_term=start["memory"] is not None,
        long_term=len(start["facts"]),
        history_messages=len(start["prompt"]) - 2,  # beside the system message and the running one
        tool_results=len(start["earlier_results"]),
    )
