"""A plan, its steps, and the transitions that each may make. Pure: knows no store and no clock.

A transition returns a new Plan with the next version; the store replaces the old one by compare-and-set.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Literal

PlanStatus = Literal["active", "waiting", "completed", "failed", "cancelled", "expired", "superseded"]
StepStatus = Literal["pending", "running", "waiting", "complete", "failed", "skipped", "unknown"]
Decision = Literal["confirm", "reject"]
Pressed = Literal["confirm", "reject", "amend"]
Planning = Literal["auto", "always", "never"]
Confirm = Literal["destructive", "always", "never"]

MAX_STEPS = 5
# What stands in the history for a button.
BUTTON_MESSAGES: Mapping[Decision, str] = {"confirm": "👍", "reject": "👎"}
OPEN: frozenset[PlanStatus] = frozenset({"active", "waiting"})
NOT_STARTED: frozenset[StepStatus] = frozenset({"pending", "waiting"})

PLAN_TRANSITIONS: Mapping[PlanStatus, frozenset[PlanStatus]] = {
    "active": frozenset({"active", "waiting", "completed", "failed", "cancelled", "expired", "superseded"}),
    "waiting": frozenset({"active", "waiting", "failed", "cancelled", "expired", "superseded"}),
    "completed": frozenset(),
    "failed": frozenset(),
    "cancelled": frozenset(),
    "expired": frozenset(),
    "superseded": frozenset(),
}
STEP_TRANSITIONS: Mapping[StepStatus, frozenset[StepStatus]] = {
    "pending": frozenset({"running", "waiting", "complete", "failed", "skipped"}),
    "waiting": frozenset({"pending", "waiting", "failed", "skipped"}),
    "running": frozenset({"complete", "failed", "unknown", "pending"}),
    "complete": frozenset(),
    "failed": frozenset(),
    "skipped": frozenset(),
    "unknown": frozenset(),
}


class IllegalTransition(Exception):
    """A transition that PLAN_TRANSITIONS or STEP_TRANSITIONS does not list."""


@dataclass(frozen=True, slots=True)
class Step:
    """`args` may refer to earlier steps until the step starts; while it waits they are exactly what will run.

    `args_origin` says of a step that waits, or has waited, where the texts and numbers in `args` come from, by path:
    `user` (typed with a decision), `message:<id>`, `fact:<id>`, `result:<tool_call_id>`, or `model` if none has it.
    """

    id: int
    description: str
    tool: str | None
    args: dict[str, Any] | None
    status: StepStatus = "pending"
    requires_confirmation: bool = False
    tool_call_id: str | None = None
    result_preview: str | None = None
    error: str | None = None
    args_origin: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Button:
    """What a user decides on the step that waits in a `version` of a plan, by a button and not in words.

    `args` take the place of the step's: with a `confirm` only. `message` is what an `amend` changes.
    """

    decision: Pressed
    version: int
    args: dict[str, Any] | None = None
    message: str = ""


@dataclass(frozen=True, slots=True)
class Plan:
    """`current_step` is the id of the first step that is not over, or of the last one."""

    id: str
    version: int
    goal: str
    status: PlanStatus
    current_step: int
    origin_message_id: str
    expires_at: datetime
    created_at: datetime
    steps: tuple[Step, ...]

    @property
    def is_open(self) -> bool:
        return self.status in OPEN

    @property
    def waiting_step(self) -> Step | None:
        return next((step for step in self.steps if step.status == "waiting"), None)

    @property
    def running_step(self) -> Step | None:
        return next((step for step in self.steps if step.status == "running"), None)

    @property
    def started_steps(self) -> tuple[Step, ...]:
        """The steps that have started; in an open plan they come before all others."""
        return tuple(step for step in self.steps if step.status not in NOT_STARTED)

    @property
    def next_step(self) -> Step | None:
        """The first step that has not started; None if all have."""
        return next((step for step in self.steps if step.status in NOT_STARTED), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreadablePlan(Plan):
    """Stands for a row that this release cannot read. It has no steps, and nothing can be done with it."""

    unreadable: Literal[True]


def known_status(status: str) -> PlanStatus:
    """Returns the status of a row, `failed` if this release has no such status."""
    return next((known for known in PLAN_TRANSITIONS if known == status), "failed")


def decision_of(message: object) -> Decision | None:
    """Returns the decision whose button wrote this message."""
    return next((decision for decision, sign in BUTTON_MESSAGES.items() if sign == message), None)


def new_plan(
    plan_id: str,
    *,
    goal: str,
    origin_message_id: str,
    steps: Sequence[Step],
    created_at: datetime,
    expires_at: datetime,
) -> Plan:
    return Plan(
        id=plan_id,
        version=1,
        goal=goal,
        status="active",
        current_step=1,
        origin_message_id=origin_message_id,
        expires_at=expires_at,
        created_at=created_at,
        steps=tuple(steps[:MAX_STEPS]),
    )


def update_step(plan: Plan, step_id: int, status: StepStatus, **changes: Any) -> Plan:
    """Changes one step's status and fields, and the plan's status if it follows. Raises IllegalTransition.

    A step that failed fails the plan, and every step that has not started is skipped.
    """
    step = plan.steps[step_id - 1]
    if status not in STEP_TRANSITIONS[step.status]:
        raise IllegalTransition(f"step {step_id}: {step.status} to {status}")
    moved = replace(step, status=status, **changes)
    steps = [moved if each.id == step_id else each for each in plan.steps]
    match status:
        case "failed" | "unknown":
            return _next_version(plan, "failed", _skip_open(steps, f"step {step_id} did not succeed"))
        case "waiting":
            return _next_version(plan, "waiting", steps)
        case _:
            over = all(each.status in ("complete", "skipped") for each in steps)
            return _next_version(plan, "completed" if over else "active", steps)


def end(plan: Plan, status: Literal["cancelled", "expired", "superseded"]) -> Plan:
    """Ends an open plan before its last step; steps that have not started are skipped. Raises IllegalTransition."""
    return _next_version(plan, status, _skip_open(plan.steps, f"the plan was {status}"))


def replace_open_steps(plan: Plan, steps: Sequence[Step]) -> Plan:
    """Amends a plan: keeps the started steps and replaces the others by `steps`, with ids that follow on."""
    kept = plan.started_steps
    room = MAX_STEPS - len(kept)
    renumbered = [replace(step, id=len(kept) + index) for index, step in enumerate(steps[:room], start=1)]
    return _next_version(plan, "active", [*kept, *renumbered])


def _skip_open(steps: Sequence[Step], reason: str) -> list[Step]:
    return [replace(step, status="skipped", error=reason) if step.status in NOT_STARTED else step for step in steps]


def _next_version(plan: Plan, status: PlanStatus, steps: Sequence[Step]) -> Plan:
    if status not in PLAN_TRANSITIONS[plan.status]:
        raise IllegalTransition(f"plan {plan.id}: {plan.status} to {status}")
    current = next((step.id for step in steps if step.status not in ("complete", "skipped")), len(steps))
    return replace(plan, version=plan.version + 1, status=status, current_step=current, steps=tuple(steps))
