"""A plan, its steps, and the transitions that each may make, which return a new Plan with the next version. Pure."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Annotated, Any, Final, Literal, get_args

from segue.domain.approval_rule import Others, WaitsFor
from segue.domain.field_types import IsUnreadable, doc
from segue.domain.tool import RememberFor
from segue.domain.user_request import PAGE, UserRequest

PlanStatus = Literal["active", "waiting", "completed", "failed", "cancelled", "expired", "superseded"]
StepStatus = Literal["pending", "running", "waiting", "complete", "failed", "skipped", "unknown"]
Decision = Literal["confirm", "reject"]
Pressed = Literal["confirm", "reject", "amend"]
Planning = Literal["auto", "always", "never"]
Confirm = Literal["destructive", "always", "never"]
ConfirmWords = Literal["shown", "never"]  # which yes to the model's own words counts

MAX_STEPS = 5
NOT_CHOSEN: Final = "the user did not choose it"
BUTTON_MESSAGES: Mapping[Decision, str] = {"confirm": "👍", "reject": "👎"}  # what stands in the history for a button
PAGE_MESSAGE = "↩"  # and for what the client's page gave for its calls
OPEN: frozenset[PlanStatus] = frozenset({"active", "waiting"})
NOT_STARTED: frozenset[StepStatus] = frozenset({"pending", "waiting"})

# Those without a line of their own are final.
PLAN_TRANSITIONS: Mapping[PlanStatus, frozenset[PlanStatus]] = {
    **dict.fromkeys(get_args(PlanStatus), frozenset()),
    "active": frozenset({"active", "waiting", "completed", "failed", "cancelled", "expired", "superseded"}),
    "waiting": frozenset({"active", "waiting", "failed", "cancelled", "expired", "superseded"}),
}
STEP_TRANSITIONS: Mapping[StepStatus, frozenset[StepStatus]] = {
    **dict.fromkeys(get_args(StepStatus), frozenset()),
    "pending": frozenset({"running", "waiting", "complete", "failed", "skipped"}),
    "waiting": frozenset({"pending", "waiting", "failed", "skipped"}),
    "running": frozenset({"complete", "failed", "unknown", "pending", "waiting"}),
}


class IllegalTransition(Exception):
    """A transition that PLAN_TRANSITIONS or STEP_TRANSITIONS does not list."""


@dataclass(frozen=True, slots=True)
class Step:
    """A step of a plan: a tool call, or a text that the model writes."""

    id: Annotated[int, doc("The number of the step in its plan, from 1.")]
    description: Annotated[str, doc("What the step is to do.")]
    tool: Annotated[str | None, doc("The name of the tool to call; null for a step that the model writes.")]
    args: Annotated[dict[str, Any] | None, doc("While it waits, exactly what will run; before, may refer to results.")]
    status: Annotated[
        StepStatus, doc("`pending`, `running` and `waiting` are open, others final. `unknown`: may have taken effect.")
    ] = "pending"
    requires_confirmation: Annotated[bool, doc("Whether the step needs the user's yes before it runs.")] = False
    tool_call_id: Annotated[str | None, doc("The id of the tool call that carries out the step, if any.")] = None
    result_preview: Annotated[str | None, doc("The beginning of the step's result; null without one.")] = None
    error: Annotated[str | None, doc("Why the step failed or was skipped.")] = None
    args_origin: Annotated[
        Mapping[str, str] | None,
        doc(
            "Where each text and number in `args` comes from, by path, if the step waits or has waited. `user` (typed "
            "with a decision), `message:<id>` and `fact:<id>` are the user's; `quoted:<message id>`, `program:<message "
            "id>` and `result:<tool_call_id>` are not; `model`: it is in none of these."
        ),
    ] = None
    asks: Annotated[
        UserRequest | None, doc("What the tool asks beyond a yes, while the step waits. A decision gives the `answer`.")
    ] = None
    waits_for: Annotated[
        Literal["self"] | WaitsFor, doc("Who decides while it waits: the user (`self`), or others by an agent's rule.")
    ] = "self"
    others: Annotated[Others | None, doc("What others have decided by such a rule; null if nothing.")] = None


@dataclass(frozen=True, slots=True)
class Button:
    """What a user decides on the step that waits in a `version` of a plan, by a button and not in words."""

    decision: Pressed
    version: int
    args: dict[str, Any] | None = None  # in place of the step's; with a `confirm` only
    message: str = ""  # what an `amend` changes
    remember: RememberFor | None = None  # its tool need not ask again; with a `confirm` only
    plan_id: str | None = None  # None for the one that is open
    answer: dict[str, Any] | None = None  # what the user filled in, if the step asks for it; with a `confirm` only
    chosen: frozenset[int] | None = None  # those of several steps that run, None for all; with a `confirm` only


@dataclass(frozen=True, slots=True)
class Plan:
    """What the agent will do, if a message asks for several steps or a tool call needs a yes."""

    id: Annotated[str, doc("The id of the plan, which begins with `plan_`.")]
    version: Annotated[int, doc("Grows with every change, also from plan to plan. A decision names the one shown.")]
    goal: Annotated[str, doc("What the user wants to achieve.")]
    status: Annotated[PlanStatus, doc("The status of the plan: `active` and `waiting` are open, others final.")]
    current_step: Annotated[int, doc("The id of the first step not yet complete or skipped, or of the last step.")]
    origin_message_id: Annotated[str, doc("The id of the user's message that the plan was made for.")]
    expires_at: Annotated[datetime, doc("Until when the plan waits for a decision.")]
    created_at: Annotated[datetime, doc("When the plan was made.")]
    steps: Annotated[tuple[Step, ...], doc("The steps in their order, at most five.")]

    @property
    def is_open(self) -> bool:
        return self.status in OPEN

    @property
    def waiting_steps(self) -> tuple[Step, ...]:
        """The steps that one yes is for. A plan of several calls that the model made at once waits with all of them."""
        return tuple(step for step in self.steps if step.status == "waiting")

    @property
    def waiting_step(self) -> Step | None:
        return next(iter(self.waiting_steps), None)

    @property
    def waits_for(self) -> WaitsFor | None:
        """Those who decide on the steps that wait, None if it is the user. All that wait at once wait for the same."""
        step = self.waiting_step
        return step.waits_for if step is not None and isinstance(step.waits_for, WaitsFor) else None

    @property
    def page_steps(self) -> tuple[Step, ...]:
        """The steps whose calls the client's page is to run. They wait together, and with no other."""
        return tuple(step for step in self.waiting_steps if step.asks is not None and step.asks.mode == PAGE)

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
    """A plan that this release cannot read. It has no steps, and nothing can be done with it."""

    unreadable: IsUnreadable


def known_status(status: str) -> PlanStatus:
    """Returns the status of a row, `failed` if this release has no such status."""
    return next((known for known in PLAN_TRANSITIONS if known == status), "failed")


def decision_of(message: object) -> Decision | None:
    return next((decision for decision, sign in BUTTON_MESSAGES.items() if sign == message), None)


def page_call_id(plan_id: str, version: int, step_id: int) -> str:
    """Returns the id under which a page is given the call of a step that waits for it."""
    return f"{plan_id}:{version}:{step_id}"


def update_step(plan: Plan, step_id: int, status: StepStatus, **changes: Any) -> Plan:
    """Changes one step's status and fields, and the plan's status if it follows. Raises IllegalTransition. A step that
    failed fails the plan, and every step that has not started is skipped.
    """
    step = plan.steps[step_id - 1]
    if status not in STEP_TRANSITIONS[step.status]:
        raise IllegalTransition(f"step {step_id}: {step.status} to {status}")
    steps = [replace(step, status=status, **changes) if each.id == step_id else each for each in plan.steps]
    match status:
        case "failed" | "unknown":
            return _next_version(plan, "failed", _skip_open(steps, f"step {step_id} did not succeed"))
        case "waiting":
            return _next_version(plan, "waiting", steps)
        case _:
            over = all(each.status in ("complete", "skipped") for each in steps)
            return _next_version(plan, "completed" if over else "active", steps)


def approve(plan: Plan, chosen: Collection[int] | None = None, **changes: Any) -> Plan:
    """Frees the steps that wait, or the `chosen` of them, to run; the others are skipped. `changes` are the first's."""
    first = plan.waiting_step

    def decided(step: Step) -> Step:
        if step.status != "waiting":
            return step
        if chosen is not None and step.id not in chosen:
            return replace(step, status="skipped", error=NOT_CHOSEN)
        return replace(step, status="pending", asks=None, **(changes if step is first else {}))

    return _next_version(plan, "active", list(map(decided, plan.steps)))


def end(plan: Plan, status: Literal["cancelled", "expired", "superseded"]) -> Plan:
    """Ends an open plan before its last step; steps that have not started are skipped. Raises IllegalTransition."""
    return _next_version(plan, status, _skip_open(plan.steps, f"the plan was {status}"))


def add_steps(plan: Plan, steps: Sequence[Step]) -> Plan:
    """Adds steps to the end of an open plan, as many as it has room for."""
    first = len(plan.steps) + 1
    added = [replace(step, id=number) for number, step in enumerate(steps, start=first) if number <= MAX_STEPS]
    return _next_version(plan, plan.status, [*plan.steps, *added])


def replace_open_steps(plan: Plan, steps: Sequence[Step]) -> Plan:
    """Amends a plan: keeps the started steps and replaces the others by `steps`, with ids that follow on."""
    kept = plan.started_steps
    room = MAX_STEPS - len(kept)
    renumbered = [replace(step, id=len(kept) + index) for index, step in enumerate(steps[:room], start=1)]
    return _next_version(plan, "active", [*kept, *renumbered])


def next_version(plan: Plan) -> Plan:
    """Returns the plan as it is, for a question that no reply sent before it answers."""
    return _next_version(plan, plan.status, plan.steps)


def correct_step(plan: Plan, step_id: int, status: StepStatus, **changes: Any) -> Plan:
    """Returns an ended plan with what became of a step that was unknown. It is no new version: the plan stays over."""
    steps = [replace(each, status=status, **changes) if each.id == step_id else each for each in plan.steps]
    return replace(plan, steps=tuple(steps))


def _skip_open(steps: Sequence[Step], reason: str) -> list[Step]:
    return [replace(step, status="skipped", error=reason) if step.status in NOT_STARTED else step for step in steps]


def _next_version(plan: Plan, status: PlanStatus, steps: Sequence[Step]) -> Plan:
    if status not in PLAN_TRANSITIONS[plan.status]:
        raise IllegalTransition(f"plan {plan.id}: {plan.status} to {status}")
    current = next((step.id for step in steps if step.status not in ("complete", "skipped")), len(steps))
    return replace(plan, version=plan.version + 1, status=status, current_step=current, steps=tuple(steps))


def patched(plan: Any, changes: Iterable[Mapping[str, Any]]) -> Any:
    """Returns a plan's JSON after the patch of a STATE_DELTA, which only replaces values below `/plan`."""
    state = {"plan": deepcopy(plan)}
    for change in changes:
        *above, last = (int(name) if name.isdigit() else name for name in change["path"].split("/")[1:])
        place: Any = state
        for name in above:
            place = place[name]
        place[last] = change["value"]
    return state["plan"]
