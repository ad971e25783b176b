"""Plans that wait for a yes, as seen by the people who may give it: the plan's user or, by a rule, others, who see as
much of the conversation as the rule allows. `admission.begin_decision` carries out a decision in the same transaction.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Annotated, Any, Literal

from sqlalchemy import ColumnElement, Row, Select, and_, false, func, or_, select
from sqlalchemy.ext.asyncio import AsyncConnection

from segue.db.models import messages, plans, sessions, turns
from segue.db.rows import newest_first, older_than, plan_of
from segue.domain.approval_rule import MAX_REASON_CHARS, Others, WaitsFor
from segue.domain.errors import AppError, InvalidRequest, NotFound, app_error
from segue.domain.field_types import doc
from segue.domain.identity import Identity, Operator
from segue.domain.ids import digest_of_json
from segue.domain.plan import Button, Plan, PlanStatus, Step
from segue.domain.user_request import PAGE
from segue.memory.history import IN_HISTORY
from segue.plans.store import StalePlan, StoredPlan, is_open
from segue.users.audit import record_act

MAX_MESSAGES = 20
MAX_MESSAGE_CHARS = 4000

ApprovalStatus = Literal["waiting", "asked", "decided"]


@dataclass(frozen=True, slots=True)
class ApprovalMessage:
    """What was said in the session."""

    role: Annotated[str, doc("`user` or `assistant`.")]
    content: Annotated[str, doc("How it begins: 4,000 characters at most.")]
    at: Annotated[datetime, doc("When.")]


@dataclass(frozen=True, slots=True)
class Approval:
    """A plan that waits for a yes, or has been decided on."""

    session_id: Annotated[str, doc("The session that waits.")]
    plan_id: Annotated[str, doc("Its plan.")]
    version: Annotated[int, doc("For the decision.")]
    step: Annotated[
        Step | None, doc("The step that waits, or was decided on last; null if this release cannot read the plan.")
    ]
    since: Annotated[datetime, doc("When the user was asked.")]
    status: Annotated[PlanStatus, doc("The plan's.")]
    asker: Annotated[str, doc("The user whose plan it is.")]
    goal: Annotated[str, doc("What they want.")]
    steps: Annotated[tuple[Step, ...], doc("All steps that one decision is for.")]
    expires_at: Annotated[datetime, doc("Until when it waits.")]
    told: Annotated[str | None, doc("If it waits for others: the question as the user has read it.")] = None
    messages: Annotated[
        tuple[ApprovalMessage, ...],
        doc("Others are shown what the user had asked for and, if the rule says so while it waits, the conversation."),
    ] = ()

    @property
    def digest(self) -> str:
        """The digest of the fields that the deciders are shown."""
        return digest_of_json([self.plan_id, self.version, self.steps, self.told, self.messages])


@dataclass(frozen=True, slots=True)
class OpsApproval:
    """A plan of any user that waits for a yes, without its words and arguments."""

    session_id: Annotated[str, doc("The session that waits.")]
    user: Annotated[str, doc("Whose it is.")]
    plan_id: Annotated[str, doc("Its plan.")]
    version: Annotated[int, doc("Grows with every change.")]
    tool: Annotated[str | None, doc("What the step that waits calls; null if this release cannot read the plan.")]
    since: Annotated[datetime, doc("When the user was asked.")]
    expires_at: Annotated[datetime, doc("Until when it waits.")]


@dataclass(frozen=True, slots=True)
class Decider:
    """Another person than the user, or the user as one of a group, who decides by a rule; and from where they do."""

    identity: Identity
    channel: Literal["button", "link", "terminal"]
    request_id: str | None = None
    reason: str | None = None


# What waits for the client's page asks the user nothing.
_ASKS_USER = (plans.c.status == "waiting") & ~plans.c.steps.contains([{"asks": {"mode": PAGE}}])


async def count_approvals(connection: AsyncConnection, *, now: datetime) -> int:
    """Returns how many plans of all users wait for a yes."""
    waiting = select(func.count()).where(_ASKS_USER, is_open(), plans.c.expires_at > now)
    return (await connection.execute(waiting)).scalar_one()


async def list_approvals(
    connection: AsyncConnection,
    identity: Identity,
    *,
    before: str | None,
    limit: int,
    now: datetime,
    status: ApprovalStatus = "waiting",
) -> list[Approval]:
    """Newest first; `before` is the id of the last one seen. `waiting` are plans that they may decide now, `asked`
    their own that wait for others, `decided` others' that they have decided something on. Expired ones do not wait.
    """
    listed = _listed(before, limit)
    is_own, waits = sessions.c.owner == identity.user, and_(_ASKS_USER, plans.c.expires_at > now)
    match status:
        case "waiting":
            listed = listed.where(waits, or_(is_own & plans.c.for_group.is_(None), _may_decide(identity, now)))
        case "asked":
            listed = listed.where(waits, is_own, plans.c.for_group.is_not(None))
        case "decided":
            listed = listed.where(plans.c.decided_by.contains([identity.user]))
    decider = identity if status == "decided" else None
    return [await _approval(connection, row, decider, now) for row in await connection.execute(listed)]


async def list_all_approvals(
    connection: AsyncConnection, *, before: str | None, limit: int, now: datetime
) -> list[OpsApproval]:
    """Returns the waiting plans of all users, as `list_approvals` does those of one."""
    listed = _listed(before, limit).where(_ASKS_USER, plans.c.expires_at > now, is_open())
    waiting = []
    for row in await connection.execute(listed):
        step, of = _plan(row).waiting_step, (row.session_id, row.owner, row.id, row.version)
        waiting.append(OpsApproval(*of, step.tool if step else None, row.since, row.expires_at))
    return waiting


async def get_approval(connection: AsyncConnection, identity: Identity, plan_id: str, *, now: datetime) -> Approval:
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


async def _approval(connection: AsyncConnection, row: Row[Any], decider: Identity | None, now: datetime) -> Approval:
    """Shows a `decider` who has decided nothing of the questions and answers that came after."""
    plan, asker = _plan(row), row.owner
    is_asked = decider is None or (plan.waits_for is not None and plan.waits_for.is_for(decider, now))
    waiting = plan.waiting_steps if is_asked else ()
    by = ((step, step.others) for step in plan.steps if step.waits_for != "self" and step.others)
    own = (step for step, others in by if decider is None or decider.user in (*others.yes_by, others.no_by))
    shown = waiting or tuple(own)[-1:]
    first = next(iter(shown), None)
    approval = Approval(
        row.session_id, row.id, row.version, first, row.since, plan.status, asker, row.goal, shown, row.expires_at
    )
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


async def record_decision(
    connection: AsyncConnection, stored: StoredPlan, owner: str, button: Button, by: Decider, *, now: datetime
) -> StoredPlan:
    """Returns the plan with this person's decision, not yet stored, and records it in the audit. Raises AppError
    `plan_expired`, `not_yours_to_decide`, InvalidRequest, and StalePlan if another version waits.
    """
    waits, step = stored.plan.waits_for, stored.plan.waiting_step
    if waits is None or step is None or stored.plan.version != button.version:
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


def is_agreed(plan: Plan) -> bool:
    """Returns whether as many others as the rule wants have said yes to the waiting steps."""
    return all(step.others is not None and step.others.agree for step in plan.waiting_steps)


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
