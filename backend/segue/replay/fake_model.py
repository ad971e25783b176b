"""The model in one recorded turn: it answers each request of the service from the recording. Pure.

A recording holds the outcome of a turn and not its requests (docs/replay.md), so the kind of a request decides.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from segue.domain.recording import RecordedPlan, RecordedStep, RecordedTurn, Round
from segue.replay.requests import kind_of_request

NOT_STARTED = frozenset({"pending", "skipped"})
STARTED = frozenset({"running", "complete", "failed", "unknown"})


@dataclass(frozen=True, slots=True)
class ModelReply:
    """A text, and tool calls: names and arguments."""

    text: str = ""
    calls: tuple[tuple[str, dict[str, Any]], ...] = ()


@dataclass(slots=True)
class FakeModel:
    """`before` is the plan at the start of the turn, or None if the turn made the plan."""

    turn: RecordedTurn
    before: RecordedPlan | None
    rounds: list[Round] = field(init=False)
    texts: list[str] = field(init=False)
    filled: set[int] = field(default_factory=set)
    plan_given: bool = False

    def __post_init__(self) -> None:
        self.rounds = [each for each in self.turn.rounds if each.by == "model"]
        self.texts = [each.text for each in self.turn.rounds if each.by == "plan" and not each.calls]

    def answer(self, request: Mapping[str, Any]) -> ModelReply | None:
        """Returns None if the recording holds no answer."""
        reply: ModelReply | None
        match kind_of_request(request):
            case "plan":
                reply = self._plan()
            case "amendment":
                reply = ModelReply(_steps_text(self._amended()))
            case "reading":
                reply = ModelReply(orjson.dumps({"verdict": self.turn.reading or "none"}).decode())
            case "arguments":
                reply = self._arguments(request["tools"][0]["function"]["name"])
            case "step":
                reply = ModelReply(self.texts.pop(0)) if self.texts else None
            case "loop":
                reply = self._next_round()
            case "other":
                reply = ModelReply("{}")
        return reply

    @property
    def _made(self) -> tuple[RecordedStep, ...]:
        """The steps of the plan that this turn has made."""
        made = self.turn.plan
        return made.steps if made and (self.before is None or self.before.number != made.number) else ()

    def _plan(self) -> ModelReply:
        """A plan of calls that had to wait came from the loop; `_next_round` makes it again."""
        first = next((each.by for each in self.turn.rounds if each.by != "search"), None)
        came_from_loop = bool(self.turn.said) or first in ("model", "user")
        self.plan_given = bool(self._made) and not came_from_loop
        return ModelReply(_steps_text(self._made if self.plan_given else ()))

    def _amended(self) -> tuple[RecordedStep, ...]:
        plan = self.turn.plan
        if plan is None or self.before is None or plan.version == self.before.version:
            return ()
        return plan.steps[sum(step.status in STARTED for step in self.before.steps) :]

    def _arguments(self, tool: str) -> ModelReply | None:
        for step in self.turn.plan.steps if self.turn.plan else ():
            if step.tool == tool and step.args is not None and self._starts(step) and step.id not in self.filled:
                self.filled.add(step.id)
                return ModelReply(calls=((tool, step.args),))
        return None

    def _starts(self, step: RecordedStep) -> bool:
        earlier = [each for each in self.before.steps if each.id == step.id] if self.before else []
        return step.status not in NOT_STARTED and all(each.status not in STARTED for each in earlier)

    def _next_round(self) -> ModelReply | None:
        if self.rounds:
            recorded = self.rounds.pop(0)
            return ModelReply(recorded.text, tuple((call.tool, call.args) for call in recorded.calls))
        if self._made and not self.plan_given:
            self.plan_given = True
            return ModelReply(self.turn.said or "", tuple((step.tool or "", step.args or {}) for step in self._made))
        return self._answer()

    def _answer(self) -> ModelReply | None:
        text = self.turn.answer if self.turn.said is None else self.turn.said
        return ModelReply(text) if text else None


def _steps_text(steps: tuple[RecordedStep, ...]) -> str:
    drafted = [
        step.model_dump(include={"id", "description", "tool", "args", "requires_confirmation"}) for step in steps
    ]
    return orjson.dumps({"steps": drafted}).decode()
