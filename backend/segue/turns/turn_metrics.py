"""What a turn has come to so far, heard from its own events, also where it fails and leaves no state behind.

Tells how a turn has ended: one line in the log and one observation, once the end is stored and by whoever stored it.
"""

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import structlog

from segue.agent.model import MeteredModel
from segue.agent.state import TurnInput
from segue.domain import turn_errors
from segue.domain.errors import AppError
from segue.domain.events import (
    AcknowledgementDetected,
    Emit,
    Event,
    PlanChanged,
    SearchDecided,
    ToolRan,
    ToolStateChanged,
)
from segue.domain.plan import Plan
from segue.domain.session import MemoryReport, TurnKey, Usage, Verdict, WebSearchReport
from segue.domain.telemetry import Observe, PlanEnded, SessionToolStateChanged, ToolCalled, TurnEnded, TurnOutcome
from segue.turns.report import memory_report
from segue.turns.store import Claim

log = structlog.get_logger()


class Tally:
    """Of one run of a turn. `tools` says how the session's tools stand."""

    def __init__(
        self, claim: Claim, model: MeteredModel, observe: Observe, *, tools: Callable[[], dict[str, Any]]
    ) -> None:
        self._claim = claim
        self._model = model
        self._observe = observe
        self._tools = tools
        self._started = time.monotonic()
        self._seconds: float | None = None
        self._calls: Counter[str] = Counter()
        self._tools_ms = 0
        self._plan: Plan | None = None
        self._verdict: Verdict | None = None
        self._web_search: WebSearchReport | None = None
        self._memory: MemoryReport | None = None

    def begins_with(self, snapshot: TurnInput) -> None:
        self._plan = snapshot["open_plan"].plan if snapshot["open_plan"] else None
        self._memory = memory_report(snapshot)

    def hearing(self, emit: Emit) -> Emit:
        def hear_and_emit(event: Event) -> None:
            self._hear(event)
            emit(event)

        return hear_and_emit

    def stop(self) -> Usage:
        """The run is over; what is left is to store it."""
        self._seconds = time.monotonic() - self._started
        model = self._model
        return Usage(model.llm_calls, model.input_tokens, model.output_tokens, round(self._seconds * 1000))

    def tell_end(self, error: AppError | None = None) -> None:
        claim, model, plan = self._claim, self._model, self._plan
        ended = TurnEnded(
            outcome_of(error),
            error.code if error else None,
            self._seconds,
            claim.queued_s,
            self._verdict,
            self._web_search,
        )
        tell_end(
            self._observe,
            claim.key,
            ended,
            request_id=claim.origin.request_id,
            attempt=claim.attempt,
            epoch=claim.epoch,
            duration_ms=round((self._seconds or 0) * 1000),
            queued_ms=round(claim.queued_s * 1000),
            model_ms=round(model.seconds * 1000),
            tools_ms=self._tools_ms,
            llm_calls=model.llm_calls,
            llm_retries=model.retried,
            input_tokens=model.input_tokens,
            output_tokens=model.output_tokens,
            tool_calls=self._calls.total(),
            tool_outcomes=dict(self._calls),
            plan_id=plan and plan.id,
            plan_status=plan and plan.status,
            verdict=self._verdict,
            web_search=self._web_search and self._web_search.reason,
            memory=self._memory and asdict(self._memory),
            **self._tools(),
        )

    def _hear(self, event: Event) -> None:
        match event:
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


def tell_end(observe: Observe, turn: TurnKey, ended: TurnEnded, **fields: object) -> None:
    """The one line that every turn ends with, and its numbers."""
    say = log.warning if ended.outcome == "failed" else log.info
    say(
        "turn_finished",
        session_id=turn.session_id,
        turn_id=turn.turn_id,
        outcome=ended.outcome,
        code=ended.code,
        **fields,
    )
    observe(ended)
