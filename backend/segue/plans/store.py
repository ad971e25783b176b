"""Stored plans: one open plan per session, every change a compare-and-set on the version. Owns the table `plans`. The
loser of a race gets StalePlan and reads again. A button, an API call and a yes in the chat all end in `decide`.
"""

from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from typing import Annotated, Any, Final, Literal

from pydantic import Field
from sqlalchemy import ColumnElement, Row, Select, func, insert, select, update

from segue.db.engine import Connection
from segue.db.models import plans, sessions, turns, written
from segue.db.rows import newest_first, older_than, opaque_of, plan_of, readable, reader
from segue.domain import plan as domain
from segue.domain.approval_rule import USER
from segue.domain.errors import AppError, Unreadable
from segue.domain.session import TurnKey
from segue.domain.user_request import UserAnswer, answers_of_page, question_of_step, with_answer
from segue.events.outbox import approval_requested
from segue.plans.value_origins import values_of

BATCH = 100  # plans that expire in one transaction


class StalePlan(AppError):
    """The plan is no longer at the version it was read at, or no longer open."""

    def __init__(self) -> None:
        detail = "The plan is not at this version any more. Read it again and decide on what it says now."
        super().__init__("plan_changed", status=409, title="The plan has changed", detail=detail)


@dataclass(frozen=True, slots=True)
class StoredPlan:
    """A plan and its hidden fields. A yes is a grant: for the steps that waited, until each has started.

    `made_with` has digests of the agent and, by name, of the tools of the open steps, as a yes was last asked for or
    the plan was made. The user is asked again about any that have changed since.
    """

    plan: domain.Plan
    session_id: str
    granted_to: str | None = None  # the turn in which the grant holds
    granted_step: int | None = None  # the last of its steps
    granted_seq: int | None = None  # the seq of that turn as it was read; it is not stored
    tool_hash: str | None = None  # digest of the tool that was shown with the first step that waits or is granted
    asked_in: str | None = None  # the turn whose answer asked for a yes last
    blocked_tools: tuple[str, ...] = ()  # those that this answer said cannot run
    made_with: Mapping[str, str] = field(default_factory=dict)
    texts: Mapping[str, str] = field(default_factory=dict)  # what steps without a tool wrote, by the step's id
    reminded: bool = False  # an answer about something else has mentioned the plan
    taken_on_by: str | None = None  # the turn that made, decided or amended it last; run again, it goes on with it
    opaque: Mapping[str, Any] | None = None  # what a provider wants back with its calls that are the steps, in order
    answers: tuple[UserAnswer, ...] = ()  # asked by the call of the step that waits or runs, with what was answered

    def opaque_of(self, step: domain.Step) -> Mapping[str, Any] | None:
        """Returns what goes with the message that makes a step's call."""
        return {**self.opaque, "calls": self.opaque["calls"][step.id - 1 : step.id]} if self.opaque else None

    def grants(self, step: domain.Step, turn_id: str) -> bool:
        return self.granted_to == turn_id and self.granted_step is not None and step.id <= self.granted_step

    def granted_behind(self, step: domain.Step, turn_id: str) -> tuple[str, int] | None:
        """Returns the rest of the grant once a step has started."""
        last = self.granted_step
        return (turn_id, last) if last is not None and self.granted_to == turn_id and step.id < last else None

    def is_for_a_later_turn(self, turn: TurnKey) -> bool:
        """Returns whether a button approved it for a later turn than this one."""
        return self.granted_seq is not None and self.granted_seq > turn.turn_seq


_Texts = dict[Annotated[str, Field(pattern="^[1-9]$")], str]
_GRANTED = select(turns.c.seq).where(turns.c.id == plans.c.granted_to).scalar_subquery()
_WITH_GRANT = select(plans, _GRANTED.label("granted_seq"))


async def open_plan(connection: Connection, session_id: str) -> StoredPlan | None:
    """Returns the session's open plan, None if it has none. It may be an UnreadablePlan."""
    return await _first(connection, _WITH_GRANT.where(plans.c.session_id == session_id, is_open()))


async def plan_in_question(
    connection: Connection, session_id: str, *, answered_turn_id: str | None
) -> StoredPlan | None:
    """Returns the plan that a yes is for: the open one, or one that expired after the last answer asked for it."""
    statement = _WITH_GRANT.where(plans.c.session_id == session_id, is_open() | just_expired(answered_turn_id))
    stored = await _first(connection, statement.order_by(is_open().desc(), *newest_first(plans)))
    return None if stored is None or isinstance(stored.plan, domain.UnreadablePlan) else stored


async def newest_has_expired(connection: Connection, session_id: str) -> bool:
    newest = select(plans.c.status).where(plans.c.session_id == session_id).order_by(*newest_first(plans)).limit(1)
    return (await connection.execute(newest)).scalar_one_or_none() == "expired"


async def expire_overdue(connection: Connection, *, now: datetime) -> int:
    """Ends up to BATCH plans that have waited too long. Returns how many."""
    overdue = select(plans).where(plans.c.status == "waiting", plans.c.expires_at <= now).limit(BATCH)
    ended = 0
    for stored in map(_stored_plan, await connection.execute(overdue)):
        with suppress(StalePlan):
            await swap(connection, stored, domain.end(stored.plan, "expired"))
            ended += 1
    return ended


async def get_plan(connection: Connection, plan_id: str) -> StoredPlan:
    """Raises Unreadable, and NoResultFound if there is none: for ids of plans that are known to exist."""
    return usable(_stored_plan((await connection.execute(select(plans).where(plans.c.id == plan_id))).one()))


async def plan_of_turn(connection: Connection, turn_id: str, session_id: str) -> StoredPlan | None:
    """Returns the plan that a turn has made, decided or amended, open or not. Raises Unreadable."""
    statement = select(plans).where(plans.c.session_id == session_id, plans.c.taken_on_by == turn_id)
    stored = await _first(connection, statement.order_by(*newest_first(plans)))
    return stored and usable(stored)


async def list_plans(
    connection: Connection, owner: str, session_id: str, *, before: str | None, limit: int
) -> list[domain.Plan]:
    """Returns the newest first; none if the session has another owner."""
    statement = (
        select(plans)
        .join(sessions, sessions.c.id == plans.c.session_id)
        .where(sessions.c.id == session_id, sessions.c.owner == owner, older_than(plans, before))
        .order_by(*newest_first(plans))
        .limit(limit)
    )
    return [plan_of(row._asdict()) for row in await connection.execute(statement)]


async def offer(connection: Connection, stored: StoredPlan, turn: TurnKey) -> StoredPlan | None:
    """Stores a turn's new plan in place of the session's open one. Its first version follows the last of the session: a
    button names a version and no plan. Returns None, and stores nothing, if the open one is approved for a later turn.
    """
    while (before := await open_plan(connection, stored.session_id)) is not None:
        if before.is_for_a_later_turn(turn):
            return None
        with suppress(StalePlan):  # a button came in between: it is read again
            await swap(connection, before, domain.end(before.plan, "superseded"))
    stored = replace(stored, plan=replace(stored.plan, version=await _last_version(connection, stored.session_id) + 1))
    await connection.execute(insert(plans).values(_columns(stored)))
    return stored


async def version_to_come(connection: Connection, session_id: str) -> int:
    """Returns a version that a new plan of the session does not pass before all its steps wait."""
    return await _last_version(connection, session_id) + domain.MAX_STEPS + 3


async def _last_version(connection: Connection, session_id: str) -> int:
    return await connection.scalar(select(func.max(plans.c.version)).where(plans.c.session_id == session_id)) or 0


async def cancel_open(connection: Connection, session_id: str, only: tuple[str, int] | None = None) -> None:
    """Cancels the session's open plan, if it has one: `only` that of this id that waits at this version, or any."""
    while (stored := await open_plan(connection, session_id)) is not None:
        if only not in (None, (stored.plan.id, stored.plan.version)):
            return
        with suppress(StalePlan):  # it has expired just now
            await swap(connection, stored, domain.end(stored.plan, "cancelled"))


async def swap(
    connection: Connection,
    stored: StoredPlan,
    moved: domain.Plan,
    *,
    grant: tuple[str, int] | None = None,
    tool_hash: str | None = None,
    asked_in: str | None = None,
    blocked_tools: tuple[str, ...] | None = None,
    texts: Mapping[str, str] | None = None,
    taken_on_by: str | None = None,
) -> StoredPlan:
    """Stores `moved` in place of `stored`, from which it was made. A `grant` is a turn and a step. What was granted is
    gone unless it is granted again, and so is `tool_hash`; the rest stays unless it is given. Raises StalePlan if the
    stored version is another one, or is no longer open.
    """
    after = replace(
        stored,
        plan=moved,
        granted_to=grant[0] if grant else None,
        granted_step=grant[1] if grant else None,
        granted_seq=None,
        tool_hash=tool_hash,
        asked_in=asked_in or stored.asked_in,
        blocked_tools=stored.blocked_tools if blocked_tools is None else blocked_tools,
        texts=texts or stored.texts,
        taken_on_by=taken_on_by or stored.taken_on_by,
    )
    marked = {"reminded"} if asked_in else {"reminded", "asked_in"}  # `mark_asked` changes these without a new version
    changed = {name: value for name, value in _columns(after).items() if name not in marked}
    is_same = (plans.c.id == stored.plan.id, plans.c.version == stored.plan.version, is_open())
    swapped = await connection.execute(update(plans).where(*is_same).values(changed).returning(plans.c.id))
    if swapped.one_or_none() is None:
        raise StalePlan
    await approval_requested(connection, moved, session_id=after.session_id, turn_id=after.taken_on_by)
    return after


async def settle_step(
    connection: Connection, plan_id: str, step_id: int, became: Literal["complete", "failed"], **found: str | None
) -> StoredPlan | None:
    """Stores the outcome of a step whose turn had died in it. Returns the plan, None if it was settled or moved on."""
    stored = await get_plan(connection, plan_id)
    match next((step.status for step in stored.plan.steps if step.id == step_id), None):
        case "running" if stored.plan.is_open:
            with suppress(StalePlan):
                return await swap(connection, stored, domain.update_step(stored.plan, step_id, became, **found))
        case "unknown":
            settled = replace(stored, plan=domain.correct_step(stored.plan, step_id, became, **found))
            is_same = (plans.c.id == plan_id) & (plans.c.version == stored.plan.version)
            if (await connection.execute(update(plans).where(is_same).values(_columns(settled)))).rowcount:
                return settled
    return None


async def decide(
    connection: Connection,
    stored: StoredPlan,
    decision: domain.Decision,
    *,
    turn_id: str,
    now: datetime,
    args: dict[str, Any] | None = None,
    answer: dict[str, Any] | None = None,
    chosen: Collection[int] | None = None,
) -> StoredPlan:
    """Applies the user's decision to the steps that wait. A yes holds for these, or the `chosen` of them, in this
    version and turn, once each; `args` are what the user typed in place of the first one's, `answer` is what they
    filled in if it asks for that. A no to what it asks is told to its tool, if the call may be made again without a
    yes; else it cancels the plan like any no.

    Returns the plan as expired if it has waited too long. Raises StalePlan as `swap`, and if no (chosen) step waits.
    """
    step = stored.plan.waiting_step
    if stored.plan.expires_at <= now:
        return await swap(connection, stored, domain.end(stored.plan, "expired"))
    waiting = {each.id for each in stored.plan.waiting_steps}
    if step is None or not waiting.issuperset(chosen or ()):
        raise StalePlan
    open_answer = question_of_step(stored.answers, step.id) if step.asks else None
    if decision == "reject" and not (open_answer and open_answer.may_repeat):
        return await swap(connection, stored, domain.end(stored.plan, "cancelled"), taken_on_by=turn_id)
    if stored.plan.page_steps:
        stored = replace(stored, answers=answers_of_page((each.id for each in stored.plan.page_steps), answer or {}))
    elif step.asks is not None:
        stored = replace(stored, answers=with_answer(stored.answers, step.id, step.asks, decision, answer))
    typed = {} if args is None else {"args": args, "args_origin": dict.fromkeys(values_of(args), USER)}
    if typed:
        stored = replace(stored, opaque=None)  # the call is not the one that it came with
    moved = domain.approve(stored.plan, chosen, **typed)
    grant = (turn_id, max(waiting))
    first, tool_hash = moved.next_step, stored.tool_hash
    if first is not None and first.id != step.id:  # the yes is not for the one whose tool was noted as shown
        tool_hash = stored.made_with.get(first.tool or "")
    return await swap(connection, stored, moved, grant=grant, tool_hash=tool_hash, taken_on_by=turn_id)


async def mark_asked(connection: Connection, stored: StoredPlan, *, turn_id: str | None, reminded: bool) -> None:
    """Stores the turn whose answer asks for a yes now, or None; `reminded` if it answers something else too."""
    changes: dict[str, Any] = {"reminded": stored.reminded or reminded}
    if stored.plan.waits_for is None:  # others are shown what was asked, and no answer since
        changes["asked_in"] = turn_id
    await connection.execute(update(plans).where(plans.c.id == stored.plan.id).values(changes))


async def rule_of(connection: Connection, turn_id: str) -> str | None:
    """Returns the name of the rule by which the message of a turn that ended was read."""
    rule = turns.c.report["acknowledgement"]["rule"].astext
    return await connection.scalar(select(rule).where(turns.c.id == turn_id))


def is_open() -> ColumnElement[bool]:
    """Returns the condition on `plans` that a plan is open."""
    return plans.c.status.in_(written(*sorted(domain.OPEN)))


def just_expired(answered_turn_id: ColumnElement[str] | str | None) -> ColumnElement[bool]:
    """Returns a condition on `plans`: expired, after this turn's answer asked for a yes. A yes now is for this plan."""
    return (plans.c.status == "expired") & (plans.c.asked_in == answered_turn_id)


async def _first(connection: Connection, statement: Select[Any]) -> StoredPlan | None:
    row = (await connection.execute(statement.limit(1))).one_or_none()
    return _stored_plan(row) if row else None


_AS_STORED: Final = ("session_id", "granted_to", "granted_step", "tool_hash", "asked_in", "reminded", "taken_on_by")


def _stored_plan(row: Row[Any]) -> StoredPlan:
    """Returns the plan of a row. Fields beside the plan only help it on, and are left out if they cannot be read."""
    return StoredPlan(
        plan=plan_of(row._asdict()),
        granted_seq=row._asdict().get("granted_seq"),
        **{name: getattr(row, name) for name in _AS_STORED},
        blocked_tools=readable(reader(tuple[str, ...]), row.blocked_tools or (), "plans", row.id) or (),
        made_with=readable(reader(dict[str, str]), row.made_with or {}, "plans", row.id) or {},
        texts=readable(reader(_Texts), row.texts, "plans", row.id) or {},
        opaque=opaque_of(row.opaque, "plans", row.id),
        answers=readable(reader(tuple[UserAnswer, ...]), row.answers or (), "plans", row.id) or (),
    )


def usable(stored: StoredPlan) -> StoredPlan:
    """Returns `stored`. Raises Unreadable if the plan cannot be read."""
    if isinstance(stored.plan, domain.UnreadablePlan):
        raise Unreadable("plan")
    return stored


def _columns(stored: StoredPlan) -> dict[str, Any]:
    """Returns the columns to write: of a plan that this release cannot read, the status and version alone."""
    if isinstance(stored.plan, domain.UnreadablePlan):
        return {"status": stored.plan.status, "version": stored.plan.version}
    columns = asdict(stored)
    del columns["granted_seq"]
    absent = {name: None for name in ("blocked_tools", "answers") if not columns[name]}
    # The groups that decide now, and those who have decided something, find it by these.
    waits, others = stored.plan.waits_for, [step.others for step in stored.plan.steps if step.others is not None]
    return {
        **columns.pop("plan"),
        **columns,
        **absent,
        "for_group": waits and waits.group,
        "later_group": waits and waits.escalates_to,
        "later_at": waits and waits.escalates_at,
        "decided_by": sorted({name for each in others for name in (*each.yes_by, each.no_by) if name}) or None,
    }
