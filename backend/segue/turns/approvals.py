"""Plans that wait for a yes, as seen by the people who may give it: the plan's user or, by a rule, others, who see as
much of the conversation as the rule allows. Decisions by button, each stored with the turn that carries it out.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Annotated, Any, Literal

from sqlalchemy import ColumnElement, Row, Select, and_, false, func, or_, select

from segue.db.engine import Connection
from segue.db.models import messages, plans, sessions, turns
from segue.db.rows import newest_first, older_than, plan_of
from segue.domain.approval_rule import MAX_REASON_CHARS, Others, WaitsFor
from segue.domain.errors import AppError, InvalidRequest, NotFound, app_error
from segue.domain.field_types import doc
from segue.domain.identity import Identity, Operator
from segue.domain.ids import digest_of_json
from segue.domain.plan import BUTTON_MESSAGES, PAGE_MESSAGE, Button, Plan, PlanStatus, Step, end, next_version
from segue.domain.tool import ToolFailed
from segue.domain.user_request import PAGE
from segue.memory.history import IN_HISTORY
from segue.memory.session_store import lock_session
from segue.plans import mandates
from segue.plans import store as plan_store
from segue.plans.store import StalePlan, StoredPlan, is_open
from segue.tools.availability import ToolAvailability
from segue.tools.input_schema import faults_of
from segue.tools.user_requests import faults_of_answer
from segue.turns.admission import Admitted, accepted_before, admit_locked
from segue.turns.chat_request import ChatRequest
from segue.turns.queries import first_open_turn
from segue.users.audit import record_act

MAX_MESSAGES = 20
MAX_MESSAGE_CHARS = 4000

ApprovalStatus = Literal["waiting", "asked", "decided"]


@dataclass(frozen=True, slots=True)
class ApprovalMessage:
    """A message of the session that those who decide are shown."""

    role: Annotated[str, doc("Who wrote it: `user` or `assistant`.")]
    content: Annotated[str, doc("The text of the message, at most its first 4,000 characters.")]
    at: Annotated[datetime, doc("When the message was stored.")]


@dataclass(frozen=True, slots=True)
class Approval:
    """A plan that waits for a yes, or that has been decided on."""

    session_id: Annotated[str, doc("The id of the session that the plan is in.")]
    plan_id: Annotated[str, doc("The id of the plan.")]
    version: Annotated[int, doc("The version of the plan, which a decision has to name.")]
    step: Annotated[Step | None, doc("The step that waits, or the last one decided on; null if unreadable.")]
    since: Annotated[datetime, doc("When the user was asked.")]
    status: Annotated[PlanStatus, doc("The status of the plan.")]
    asker: Annotated[str, doc("The user whose plan it is.")]
    goal: Annotated[str, doc("What the user wants to achieve.")]
    steps: Annotated[tuple[Step, ...], doc("All steps that one decision is for.")]
    expires_at: Annotated[datetime, doc("Until when the plan waits for a decision.")]
    told: Annotated[str | None, doc("The question as the user read it; null if no others decide.")] = None
    messages: Annotated[
        tuple[ApprovalMessage, ...],
        doc("For others who decide: what the user asked for and, by the rule and while it waits, the conversation."),
    ] = ()

    @property
    def digest(self) -> str:
        """The digest of the fields that the deciders are shown."""
        return digest_of_json([self.plan_id, self.version, self.steps, self.told, self.messages])


@dataclass(frozen=True, slots=True)
class OpsApproval:
    """A plan of any user that waits for a yes, without its words and arguments."""

    session_id: Annotated[str, doc("The id of the session that the plan is in.")]
    user: Annotated[str, doc("The user whose plan it is.")]
    plan_id: Annotated[str, doc("The id of the plan.")]
    version: Annotated[int, doc("The version of the plan, which grows with every change.")]
    tool: Annotated[str | None, doc("The tool of the waiting step; null if this release cannot read the plan.")]
    since: Annotated[datetime, doc("When the user was asked.")]
    expires_at: Annotated[datetime, doc("Until when the plan waits for a decision.")]


@dataclass(frozen=True, slots=True)
class Decider:
    """Another person than the user, or the user as one of a group, who decides by a rule; and from where they do."""

    identity: Identity
    channel: Literal["button", "link", "terminal"]
    request_id: str | None = None
    reason: str | None = None


# What waits for the client's page asks the user nothing.
_ASKS_USER = (plans.c.status == "waiting") & ~plans.c.steps.contains([{"asks": {"mode": PAGE}}])


async def count_approvals(connection: Connection, *, now: datetime) -> int:
    """Returns how many plans of all users wait for a yes."""
    waiting = select(func.count()).where(_ASKS_USER, is_open(), plans.c.expires_at > now)
    return (await connection.execute(waiting)).scalar_one()


async def list_approvals(
    connection: Connection, who: Identity, *, before: str | None, limit: int, now: datetime, status: ApprovalStatus
) -> list[Approval]:
    """Newest first; `before` is the id of the last one seen. `waiting` are plans that they may decide now, `asked`
    their own that wait for others, `decided` others' that they have decided something on. Expired ones do not wait.
    """
    listed = _listed(before, limit)
    is_own, waits = sessions.c.owner == who.user, and_(_ASKS_USER, plans.c.expires_at > now)
    match status:
        case "waiting":
            listed = listed.where(waits, or_(is_own & plans.c.for_group.is_(None), _may_decide(who, now)))
        case "asked":
            listed = listed.where(waits, is_own, plans.c.for_group.is_not(None))
        case "decided":
            listed = listed.where(plans.c.decided_by.contains([who.user]))
    decider = who if status == "decided" else None
    return [await _approval(connection, row, decider, now) for row in await connection.execute(listed)]


async def list_all_approvals(
    connection: Connection, *, before: str | None, limit: int, now: datetime
) -> list[OpsApproval]:
    """Returns the waiting plans of all users, as `list_approvals` does those of one."""
    listed = _listed(before, limit).where(_ASKS_USER, plans.c.expires_at > now, is_open())
    waiting = []
    for row in await connection.execute(listed):
        step, of = _plan(row).waiting_step, (row.session_id, row.owner, row.id, row.version)
        waiting.append(OpsApproval(*of, step.tool if step else None, row.since, row.expires_at))
    return waiting


async def get_approval(connection: Connection, identity: Identity, plan_id: str, *, now: datetime) -> Approval:
    """Returns one of the user's own, or one that is or was for a group of theirs. Raises NotFound."""
    row = (await connection.execute(_listed(None, 1).where(plans.c.id == plan_id))).one_or_none()
    steps = _plan(row).steps if row is not None else ()
    is_asked = any(isinstance(each.waits_for, WaitsFor) and each.waits_for.is_for(identity, now) for each in steps)
    if row is None or not (row.owner == identity.user or is_asked):
        raise NotFound("approval")
    return await _approval(connection, row, identity if row.owner != identity.user else None, now)


def _may_decide(identity: Identity, now: datetime) -> ColumnElement[bool]:
    """Returns the condition for plans that `_check_decider` lets through: the same rule, in SQL."""
    names, user = sorted(identity.groups | identity.roles), identity.user
    if not names:
        return false()
    is_asked = or_(plans.c.for_group.in_(names), and_(plans.c.later_group.in_(names), plans.c.later_at <= now))
    has_said = plans.c.steps.contains([{"status": "waiting", "others": {"yes_by": [user]}}])
    is_shut_out = plans.c.steps.contains([{"status": "waiting", "waits_for": {"who": "other"}}])
    return and_(is_asked, ~has_said, ~and_(sessions.c.owner == user, is_shut_out))


def _listed(before: str | None, limit: int) -> Select[Any]:
    since = func.coalesce(turns.c.finished_at, plans.c.created_at).label("since")
    listed = select(plans, sessions.c.owner, since).join(sessions, sessions.c.id == plans.c.session_id)
    listed = listed.outerjoin(turns, turns.c.id == plans.c.asked_in).where(older_than(plans, before))
    return listed.order_by(*newest_first(plans)).limit(limit)


def _plan(row: Row[Any]) -> Plan:
    return plan_of({name: getattr(row, name) for name in Plan.__dataclass_fields__})


async def _approval(connection: Connection, row: Row[Any], decider: Identity | None, now: datetime) -> Approval:
    """Shows a `decider` who has decided nothing of the questions and answers that came after."""
    plan = _plan(row)
    is_asked = decider is None or (plan.waits_for is not None and plan.waits_for.is_for(decider, now))
    waiting = plan.waiting_steps if is_asked else ()
    by = ((step, step.others) for step in plan.steps if step.waits_for != "self" and step.others)
    own = (step for step, others in by if decider is None or decider.user in (*others.yes_by, others.no_by))
    shown = waiting or tuple(own)[-1:]
    first = next(iter(shown), None)
    of = row.session_id, row.id, row.version
    approval = Approval(*of, first, row.since, plan.status, row.owner, row.goal, shown, row.expires_at)
    waits = next((step.waits_for for step in shown if isinstance(step.waits_for, WaitsFor)), None)
    if waits is None:
        return approval
    answer = select(messages.c.content).where(messages.c.turn_id == row.asked_in, messages.c.role == "assistant")
    statement = select(messages).where(messages.c.session_id == row.session_id)
    if waiting and waits.shows == "conversation":
        statement = statement.where(IN_HISTORY, messages.c.role.in_(("user", "assistant")), messages.c.content != "")
    else:
        statement = statement.where(messages.c.id == row.origin_message_id)
    found = await connection.execute(statement.order_by(messages.c.seq.desc()).limit(MAX_MESSAGES))
    said_last_first = [ApprovalMessage(each.role, each.content[:MAX_MESSAGE_CHARS], each.created_at) for each in found]
    last = answer.order_by(messages.c.seq.desc()).limit(1)
    question = await connection.scalar(last) if waiting else None  # `asked_in` is of a later question then
    return replace(approval, told=question, messages=tuple(said_last_first[::-1]))


async def begin_decision(
    connection: Connection,
    owner: str,
    session_id: str,
    button: Button,
    *,
    tools: ToolAvailability,
    request: ChatRequest,
    now: datetime,
    by: Decider | None = None,
) -> Admitted | None:
    """Stores the decision on a waiting plan and the turn that carries it out, in the caller's transaction.

    `request` has everything but the message; `by` decides if the plan waits for others. Returns None if the plan has
    expired, which is stored then, or needs one more yes of others. A plan whose turn died waits too, though no step
    says so yet: its next turn settles it. Raises NotFound, AppError `no_open_plan`, `waits_for_others`, StalePlan for
    every version but the one that waits, Unreadable, and what `_check_args`, `_remember` and `_record_decision` raise.
    """
    await lock_session(connection, owner, session_id)
    if (known := await accepted_before(connection, owner, session_id, request.once)) is not None:
        return await admit_locked(connection, owner, session_id, request, now=now) if known.failed_for_now else known
    stored = await plan_store.open_plan(connection, session_id)
    if stored is None:
        if await plan_store.newest_has_expired(connection, session_id):
            return None
        raise app_error("no_open_plan")
    plan_store.usable(stored)
    if stored.plan.version != button.version or button.plan_id not in (None, stored.plan.id):
        raise StalePlan
    if by is not None:
        stored = await _record_decision(connection, stored, owner, button, by, now=now)
        is_agreed = all(step.others is not None and step.others.agree for step in stored.plan.waiting_steps)
        if button.decision == "confirm" and not is_agreed:
            await plan_store.swap(connection, stored, next_version(stored.plan), tool_hash=stored.tool_hash)
            return None
        request = replace(request, decided_by=by.identity.user)
    elif button.decision == "confirm" and stored.plan.waits_for is not None:
        raise app_error("waits_for_others", whom=stored.plan.waits_for.told)
    request = replace(request, message=_message_of(button, stored.plan), amends=button.decision == "amend")
    return await _begin_decided(connection, owner, stored, button, tools=tools, request=request, now=now)


async def _begin_decided(
    connection: Connection,
    owner: str,
    stored: StoredPlan,
    button: Button,
    *,
    tools: ToolAvailability,
    request: ChatRequest,
    now: datetime,
) -> Admitted | None:
    session_id = stored.session_id
    if stored.plan.status == "active":
        has_more = button.args is not None or button.answer is not None or button.remember
        if has_more or await first_open_turn(connection, session_id) is not None:
            raise StalePlan
        return await admit_locked(connection, owner, session_id, request, now=now)
    if stored.plan.expires_at <= now:
        await plan_store.swap(connection, stored, end(stored.plan, "expired"))
        return None
    if button.decision == "amend":
        return await admit_locked(connection, owner, session_id, request, now=now)
    _check_args(stored.plan, button.args, tools, owner=owner, groups=request.origin.groups)
    _check_answer(stored.plan, button)
    changed, remember = button.args is not None, button.remember
    request = replace(request, decided_plan_id=stored.plan.id, args_changed=changed, remember=remember)
    admitted = await admit_locked(connection, owner, session_id, request, now=now)
    options: dict[str, Any] = {"args": button.args, "answer": button.answer, "chosen": button.chosen}
    await plan_store.decide(connection, stored, button.decision, turn_id=admitted.turn.turn_id, now=now, **options)
    if button.remember:
        await _remember(connection, owner, stored, tools, now=now)
    return admitted


async def _record_decision(
    connection: Connection, stored: StoredPlan, owner: str, button: Button, by: Decider, *, now: datetime
) -> StoredPlan:
    """Returns the plan with this person's decision, not yet stored, and records it in the audit. Raises AppError
    `plan_expired`, `not_yours_to_decide`, InvalidRequest, and StalePlan if it waits for nobody else.
    """
    waits, step = stored.plan.waits_for, stored.plan.waiting_step
    if waits is None or step is None:
        raise StalePlan
    if stored.plan.expires_at <= now:
        raise app_error("plan_expired")
    agreed = step.others.yes_by if step.others else ()
    _check_decider(waits, owner, by.identity, agreed, now)
    if button.args is not None and not waits.may_change_args:
        raise InvalidRequest("The rule lets those who decide change no arguments. Decide without `args`.")
    is_yes, user = button.decision == "confirm", by.identity.user
    yes_by, no_by = ((*agreed, user), None) if is_yes else (agreed, user)
    decided = Others(by=waits, yes_by=yes_by, no_by=no_by, reason=by.reason and by.reason[:MAX_REASON_CHARS])
    approval = await get_approval(connection, by.identity, stored.plan.id, now=now)
    details = {"plan_id": stored.plan.id, "version": button.version, "decision": button.decision, "channel": by.channel}
    details |= {"rule": waits.rule, "who": waits.who, "group": waits.group, "shown": approval.digest}
    details |= {"args_changed": button.args is not None}
    of = {"session_id": stored.session_id, "tool": step.tool}
    await record_act(connection, Operator(user, request_id=by.request_id), "decide_approval", details=details, **of)

    def with_decision(each: Step) -> Step:
        own = each.waits_for if each.status == "waiting" else "self"
        return each if own == "self" else replace(each, others=replace(decided, by=own))

    return replace(stored, plan=replace(stored.plan, steps=tuple(map(with_decision, stored.plan.steps))))


def _check_decider(waits: WaitsFor, owner: str, identity: Identity, agreed: Sequence[str], now: datetime) -> None:
    """As `_may_decide`, in Python. Raises AppError `not_yours_to_decide`, NotFound if it does not wait for them."""
    if not waits.is_for(identity, now):
        if identity.user == owner:
            raise app_error("decision_of_others", whom=waits.told)
        raise NotFound("approval")
    if waits.who == "other" and identity.user == owner:
        raise app_error("decision_of_another", group=waits.group)
    if identity.user in agreed:
        raise app_error("yes_of_another", group=waits.group)


def decided_already(plan: Plan) -> AppError:
    """Returns the message for people who come too late: who has decided what."""
    last, error = next((each.others for each in reversed(plan.steps) if each.others), None), StalePlan()
    if last is None:
        return error
    decision, by = ("reject", last.no_by) if last.no_by else ("confirm", ", ".join(last.yes_by))
    error.detail = f"{by} has decided: {decision}. {error.detail}"
    return error.with_extra(decided_by=by, decision=decision)


def _message_of(button: Button, plan: Plan) -> str:
    """Returns the text that stands for it in the history."""
    if button.decision == "amend":
        return button.message
    return PAGE_MESSAGE if plan.page_steps and button.decision == "confirm" else BUTTON_MESSAGES[button.decision]


async def _remember(
    connection: Connection, owner: str, stored: StoredPlan, tools: ToolAvailability, *, now: datetime
) -> None:
    """Stores that the tool of the step that waits, as it was shown, need not ask again in the session. Raises AppError
    `unknown_tool` if it is gone, `invalid_request` if no tool was shown or it always asks.
    """
    step = stored.plan.waiting_step
    if step is None or step.tool is None or stored.tool_hash is None:
        detail = "The question shows no definition of a tool that could be remembered. Decide without `remember`."
        raise InvalidRequest(detail)
    if tools.specs(step.tool, owner=owner)[step.tool].always_asks:
        raise InvalidRequest(f"{step.tool} asks about each call: no yes to it is kept. Decide without `remember`.")
    of = connection, owner, stored.session_id, step.tool, stored.tool_hash
    await mandates.remember(*of, plan_id=stored.plan.id, now=now)


def _check_args(
    plan: Plan, args: dict[str, Any] | None, tools: ToolAvailability, *, owner: str, groups: Collection[str]
) -> None:
    """Raises AppError `unknown_tool` if the tool of the step that waits is gone, `invalid_args` if it refuses them."""
    if args is None:
        return
    tool = plan.waiting_step.tool if plan.waiting_step else None
    if tool is None:
        raise _invalid("invalid_args", "The step that waits calls no tool: there are no arguments to change.")
    tools.specs(tool, owner=owner, groups=groups)
    try:
        faults = faults_of(tools.tools(owner)[tool], args)
    except ToolFailed as refused:
        raise _invalid("invalid_args", str(refused)) from refused
    if faults:
        raise _invalid("invalid_args", "; ".join(faults), faults)


def _check_answer(plan: Plan, button: Button) -> None:
    """Raises AppError `invalid_answer` if a yes lacks an answer that the waiting step asks for, or has more."""
    asks = plan.waiting_step.asks if plan.waiting_step else None
    if plan.page_steps:
        _check_results(plan, button)
        return
    if asks is None or asks.mode == "url":
        if button.answer is not None:
            raise _invalid("invalid_answer", "The step that waits asks for a yes or a no: it takes no `answer`.")
        return
    faults = faults_of_answer(asks, {**(asks.given or {}), **(button.answer or {})})
    if faults and button.decision == "confirm":
        raise _invalid("invalid_answer", "; ".join(faults), faults)


def _check_results(plan: Plan, button: Button) -> None:
    """Raises AppError `invalid_answer` if a yes is not exactly the page's results for the steps that wait for them."""
    results, steps = button.answer or {}, {str(step.id) for step in plan.page_steps}
    fit = (isinstance(one, dict) and len(one) == 1 and one.keys() <= {"output", "error"} for one in results.values())
    is_just_that = bool(results) and steps.issuperset(results) and button.args is None and not button.remember
    if button.decision == "confirm" and not (is_just_that and all(fit)):
        why = "The steps that wait take, by their ids, the `output` or `error` of each call, and nothing else."
        raise _invalid("invalid_answer", why)


def _invalid(name: Literal["invalid_args", "invalid_answer"], why: str, faults: Sequence[str] = ()) -> AppError:
    field, found = ("body", name.removeprefix("invalid_")), (fault.partition(": ") for fault in faults)
    errors = [{"loc": [*field, *filter(None, [at.lstrip("$.")])], "msg": said, "type": name} for at, _, said in found]
    return app_error(name, why=why, errors=errors)
