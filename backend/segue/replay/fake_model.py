"""The model's part of one recorded turn: an answer to whatever it is asked, however often the service asks. Pure.

The recording says what a turn came to, not which requests led there (docs/replay.md), so an answer is found by what
is asked for.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from segue.domain.recording import RecordedCall, RecordedPlan, RecordedStep, RecordedTurn, Round
from segue.replay.requests import asked_for

NOT_STARTED = frozenset({"pending", "skipped"})
STARTED = frozenset({"running", "complete", "failed", "unknown"})


@dataclass(frozen=True, slots=True)
class Line:
    """What the model says, and the calls it makes: names and arguments."""

    text: str = ""
    calls: tuple[tuple[str, dict[str, Any]], ...] = ()


@dataclass(slots=True)
class Script:
    """`before` is how the turn's plan stood when the turn began; None for a plan that the turn has made."""

    turn: RecordedTurn
    before: RecordedPlan | None
    rounds: list[Round] = field(init=False)
    texts: list[str] = field(init=False)
    filled: set[int] = field(default_factory=set)
    plan_given: bool = False

    def __post_init__(self) -> None:
        self.rounds = [each for each in self.turn.rounds if each.by == "model"]
        self.texts = [each.text for each in self.turn.rounds if each.by == "plan" and not each.calls]

    def answer(self, request: Mapping[str, Any]) -> Line | None:
        """None where the recording holds nothing to answer with."""
        line: Line | None
        match asked_for(request):
            case "plan":
                line = self._plan()
            case "amendment":
                line = Line(_steps_text(self._amended()))
            case "reading":
                line = Line(orjson.dumps({"verdict": self.turn.reading or "none"}).decode())
            case "arguments":
                line = self._arguments(request["tools"][0]["function"]["name"])
            case "step":
                line = Line(self.texts.pop(0)) if self.texts else None
            case "synthesis":
                line = self._last_words()
            case "loop":
                line = self._next_round()
            case "other":
                line = Line("{}")
        return line

    @property
    def _made(self) -> tuple[RecordedStep, ...]:
        """The steps of the plan that this turn has made."""
        return self.turn.plan.steps if self.turn.plan and self.before is None else ()

    def _plan(self) -> Line:
        """A plan that came out of the loop, calls that had to wait, is made there again."""
        came_of_the_loop = bool(self.turn.said) or any(each.by == "model" for each in self.turn.rounds)
        self.plan_given = bool(self._made) and not came_of_the_loop
        return Line(_steps_text(self._made if self.plan_given else ()))

    def _amended(self) -> tuple[RecordedStep, ...]:
        plan = self.turn.plan
        if plan is None or self.before is None or plan.version == self.before.version:
            return ()
        return plan.steps[sum(step.status in STARTED for step in self.before.steps) :]

    def _arguments(self, tool: str) -> Line | None:
        for step in self.turn.plan.steps if self.turn.plan else ():
            if step.tool == tool and step.args is not None and self._begins(step) and step.id not in self.filled:
                self.filled.add(step.id)
                return Line(calls=((tool, step.args),))
        return None

    def _begins(self, step: RecordedStep) -> bool:
        """Whether the step has got its arguments in this turn."""
        earlier = [each for each in self.before.steps if each.id == step.id] if self.before else []
        return step.status not in NOT_STARTED and all(each.status not in STARTED for each in earlier)

    def _next_round(self) -> Line | None:
        if self.rounds:
            said = self.rounds.pop(0)
            return Line(said.text, tuple(map(_called, said.calls)))
        if self._made and not self.plan_given:
            self.plan_given = True
            return Line(self.turn.said or "", tuple((step.tool or "", step.args or {}) for step in self._made))
        return self._last_words()

    def _last_words(self) -> Line | None:
        said = self.turn.answer if self.turn.said is None else self.turn.said
        return Line(said) if said else None


def _called(call: RecordedCall) -> tuple[str, dict[str, Any]]:
    return call.tool, call.args


def _steps_text(steps: tuple[RecordedStep, ...]) -> str:
    """Steps as a planner writes them."""
    drafted = [
        step.model_dump(include={"id", "description", "tool", "args", "requires_confirmation"}) for step in steps
    ]
    return orjson.dumps({"steps": drafted}).decode()
