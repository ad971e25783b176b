"""Routes for operators: turns and sessions of every user without what was said, the audit, the webhook, and figures."""

from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Annotated, Any, Literal

from fastapi import Path, Query
from pydantic import TypeAdapter
from starlette.responses import StreamingResponse

from segue.api.deps import Ops, Services, ServicesDep, SessionId, TurnId, router_of
from segue.api.me import AS_LINES, as_lines
from segue.api.problems import problems
from segue.api.schemas import BY_SEQ, Page, PageQuery, PagingDep, id_position
from segue.db.engine import Database
from segue.domain.errors import NotFound
from segue.domain.field_types import doc
from segue.domain.ids import is_id
from segue.domain.plan import Plan, PlanStatus, StepStatus, UnreadablePlan
from segue.domain.session import Message, UnreadableMessage
from segue.domain.tool import ToolState
from segue.events.outbox import OutboxState, WaitingEvent, list_events, read_outbox, retry_events
from segue.history import operator_turns
from segue.history.operator_figures import Period, WindowFigures
from segue.memory.history import list_messages
from segue.memory.session_store import get_session, owner_of
from segue.turns.approvals import OpsApproval, count_approvals, list_all_approvals
from segue.turns.queries import TurnsOverview, overview
from segue.users.audit import Act, AuditedAction, list_acts, record_act

MESSAGES_SHOWN = 50
ACTS_AT_ONCE = 200

router = router_of("ops", "/ops")

AnySessionId = Annotated[SessionId, Path(description="A session of any user.")]
AnyTurnId = Annotated[TurnId, Path(description="A turn of any user.")]
ByAction = Annotated[AuditedAction | None, Query(description="Only these acts.")]
ByActor = Annotated[operator_turns.Named, Query(description="Only those of this operator.")]
OneEvent = Annotated[operator_turns.Named, Query(description="Only this event.")]
_POSITION, _PLAN_POSITION = id_position("turn"), id_position("plan")
_ACT: TypeAdapter[Act] = TypeAdapter(Act)


@dataclass(frozen=True, slots=True)
class OpsStep:
    """A step of a plan, without its words."""

    id: Annotated[int, doc("From 1.")]
    status: Annotated[StepStatus, doc("How it stands.")]
    tool: Annotated[str | None, doc("What it calls.")]


@dataclass(frozen=True, slots=True)
class OpsPlan:
    """The open plan, without its words."""

    id: Annotated[str, doc("Begins with `plan_`.")]
    version: Annotated[int, doc("Grows with every change.")]
    status: Annotated[PlanStatus, doc("`waiting` waits for the user's yes.")]
    expires_at: Annotated[datetime, doc("Until when it waits.")]
    steps: Annotated[tuple[OpsStep, ...], doc("In their order.")]


@dataclass(frozen=True, slots=True)
class OpsContent:
    """What was said: for the scope `ops:content`."""

    title: Annotated[str | None, doc("The session's.")]
    metadata: Annotated[dict[str, Any], doc("What the client keeps with it.")]
    plan: Annotated[Plan | UnreadablePlan | None, doc("The open plan, whole.")]
    messages: Annotated[list[Message | UnreadableMessage], doc("The newest ones, newest first.")]


@dataclass(frozen=True, slots=True)
class OpsSession:
    """A session of any user."""

    id: Annotated[str, doc("Begins with `ses_`.")]
    owner: Annotated[str, doc("Whose it is.")]
    agent: Annotated[str, doc("Who answers.")]
    created_at: Annotated[datetime, doc("When it was made.")]
    updated_at: Annotated[datetime, doc("When something last happened in it.")]
    message_count: Annotated[int, doc("How many messages its history has.")]
    open_turns: Annotated[list[operator_turns.OpsTurn], doc("Those that run or wait.")]
    failed_turns: Annotated[list[operator_turns.OpsTurn], doc("The newest that failed, five at most.")]
    plan: Annotated[OpsPlan | None, doc("The open plan.")]
    tools: Annotated[dict[str, ToolState], doc("Those that cannot be called now, by name.")]
    content: Annotated[OpsContent | None, doc("Null for callers without the scope `ops:content`.")]


class TurnQuery(PageQuery, operator_turns.TurnFilter):
    """A page of turns."""

    include: Annotated[Literal["words"] | None, doc("`words`: also `said`, for `ops:content`.")] = None


@router.get("/turns", responses=problems("forbidden", "unknown_tool", "session_not_found"))
async def list_any_turns(
    services: ServicesDep, operator: Ops, query: Annotated[TurnQuery, Query()]
) -> Page[operator_turns.OpsTurn]:
    """Lists the turns of all users, with what each does, took and cost. Newest first. For the scope `ops`; with
    `ops:content` also how their messages begin, which is audited.
    """
    before = query.paging.after(_POSITION)
    words = query.include == "words" and "ops:content" in operator.scopes
    if query.session_id is not None and not is_id("ses", query.session_id):
        raise NotFound("session")
    async with services.database.read_only() as connection:
        if query.session_id is not None:
            await owner_of(connection, query.session_id)
        found = await operator_turns.list_any(connection, query, words=words, before=before, limit=query.limit + 1)
    if not found:
        services.tools.specs(query.tool)
    if words and found:
        read = {"sessions": sorted({turn.session_id for turn in found})}
        await services.database.write(record_act, operator, "read_session", details=read)
    return query.paging.page(await operator_turns.with_activity(services.cache, found), lambda turn: turn.turn_id)


@router.post("/turns/{turn_id}/cancel", responses=problems("forbidden"))
async def cancel_any_turn(turn_id: AnyTurnId, services: ServicesDep, operator: Ops) -> operator_turns.OpsTurn:
    """Cancels a turn of any user. Answers once it has ended; one that had ended before stays as it is. For the scope
    `ops`.
    """
    turn = await _turn(services, turn_id)
    await services.database.transact(record_act, operator, "cancel_turn", session_id=turn.session_id, turn_id=turn_id)
    await services.turns.cancel(turn.owner, turn.session_id, turn_id)
    return await _turn(services, turn_id)


@router.get("/turns/{turn_id}/timeline", responses=problems("forbidden"))
async def get_timeline(turn_id: AnyTurnId, services: ServicesDep, _: Ops) -> operator_turns.TurnTimeline:
    """Shows what a turn of any user did when: its attempts, nodes, calls of models and tools, and what it waited for.
    Without what was said and without arguments. For the scope `ops`.
    """
    return await services.read(operator_turns.timeline_of, services.cache, turn_id)


@router.get("/sessions/{session_id}", responses=problems("forbidden"))
async def get_any_session(session_id: AnySessionId, services: ServicesDep, operator: Ops) -> OpsSession:
    """Shows how a session of any user stands. For the scope `ops`; with `ops:content` also what was said."""
    async with services.database.read_only() as connection:
        owner = await owner_of(connection, session_id)
        session = await get_session(connection, owner, session_id)
        of_session = operator_turns.TurnFilter(session_id=session_id)
        open_turns = await operator_turns.list_any(connection, of_session, limit=50)
        which = operator_turns.TurnFilter(status="failed", session_id=session_id)
        failed = await operator_turns.list_any(connection, which, limit=5)
    content, words = None, "ops:content" in operator.scopes
    if words:
        async with services.database.transaction() as connection:
            await record_act(connection, operator, "read_session", session_id=session_id)
            messages = await list_messages(connection, owner, session_id, limit=MESSAGES_SHOWN, newest_first=True)
        content = OpsContent(session.title, session.metadata, session.pending_plan, messages)
    states, plan = await services.tools.session_states(session_id, owner, words=words), session.pending_plan
    steps = tuple(OpsStep(step.id, step.status, step.tool) for step in plan.steps) if plan else ()
    return OpsSession(
        owner=owner,
        open_turns=await operator_turns.with_activity(services.cache, open_turns),
        failed_turns=failed,
        plan=OpsPlan(plan.id, plan.version, plan.status, plan.expires_at, steps) if plan else None,
        tools={name: state for name, state in states.items() if not state.available},
        content=content,
        **{name: getattr(session, name) for name in ("id", "agent", "created_at", "updated_at", "message_count")},
    )


@router.get("/approvals", responses=problems("forbidden"))
async def list_any_approvals(services: ServicesDep, _: Ops, paging: PagingDep) -> Page[OpsApproval]:
    """Lists what waits for a yes of any user, without words and arguments. Newest first. For the scope `ops`."""
    found = await services.read(list_all_approvals, now=services.clock(), **paging.behind(_PLAN_POSITION))
    return paging.page(found, lambda each: each.plan_id)


@router.get("/audit", responses=problems("forbidden"))
async def list_audit(
    services: ServicesDep, _: Ops, paging: PagingDep, action: ByAction = None, actor: ByActor = None
) -> Page[Act]:
    """Lists what operators did. Newest first. For the scope `ops`."""
    found = await services.read(list_acts, action=action, actor=actor, **paging.behind(BY_SEQ))
    return paging.page(found, lambda act: act.seq)


@router.get("/audit/export", response_class=StreamingResponse, responses={**AS_LINES, **problems("forbidden")})
async def export_audit(
    services: ServicesDep, _: Ops, action: ByAction = None, actor: ByActor = None
) -> StreamingResponse:
    """Exports what operators did, as JSON, an act of `GET /ops/audit` a line. Newest first. For the scope `ops`."""
    return as_lines(_lines_of_acts(services.database, action, actor))


async def _lines_of_acts(database: Database, action: AuditedAction | None, actor: str | None) -> AsyncIterator[str]:
    before: int | None = None
    while True:
        acts = await database.read(list_acts, action=action, actor=actor, before=before, limit=ACTS_AT_ONCE)
        for act in acts:
            yield f"{_ACT.dump_json(act).decode()}\n"
        if len(acts) < ACTS_AT_ONCE:
            return
        before = acts[-1].seq


@dataclass(frozen=True, slots=True)
class Retried:
    """What was made due."""

    events: Annotated[int, doc("How many events are sent again now and not later.")]


@router.get("/webhooks", responses=problems("forbidden"))
async def get_webhooks(services: ServicesDep, _: Ops) -> OutboxState:
    """Shows what waits to be sent to WEBHOOK_URL, and why. For the scope `ops`."""
    return await services.read(read_outbox)


@router.get("/webhooks/events", responses=problems("forbidden"))
async def list_webhook_events(services: ServicesDep, _: Ops, paging: PagingDep) -> Page[WaitingEvent]:
    """Lists the events that wait to be sent to WEBHOOK_URL, oldest first. For the scope `ops`."""
    found = await services.read(list_events, after=paging.after(BY_SEQ) or 0, limit=paging.limit + 1)
    return paging.page(found, lambda event: event.seq)


@router.post("/webhooks/retry", responses=problems("forbidden"))
async def retry_webhooks(services: ServicesDep, operator: Ops, event_id: OneEvent = None) -> Retried:
    """Sends what has failed again now, not after its back-off: for a receiver that works again. For the scope `ops`."""
    async with services.database.transaction() as connection:
        await record_act(connection, operator, "retry_webhooks", details={"event_id": event_id})
        return Retried(await retry_events(connection, event_id))


async def _turn(services: Services, turn_id: str) -> operator_turns.OpsTurn:
    turn = await services.read(operator_turns.find_any, turn_id)
    return (await operator_turns.with_activity(services.cache, [turn]))[0]


@dataclass(frozen=True, slots=True)
class OpenWork(TurnsOverview):
    """What there is to do at this moment, in all processes together."""

    approvals_waiting: Annotated[int, doc("Plans that wait for their user's yes.")]
    instances: Annotated[int | None, doc("Processes that take turns; null if Redis does not say.")]


@dataclass(frozen=True, slots=True)
class Overview:
    """How the service does."""

    window: Annotated[Period, doc("What the figures are of.")]
    at: Annotated[datetime, doc("When it was asked.")]
    now: Annotated[OpenWork, doc("What there is to do.")]
    figures: Annotated[WindowFigures, doc("What was done, and how it went.")]


@router.get("/overview", responses=problems("forbidden"))
async def get_overview(
    services: ServicesDep,
    _: Ops,
    *,
    window: Annotated[Period, Query(description="The last 60 minutes, or the last 96 quarters of an hour.")] = "hour",
) -> Overview:
    """Shows how the service does: turns, latency, errors, tokens and costs over time, and what there is to do now. Each
    turn counts when its message was accepted. For the scope `ops`.
    """
    at = services.clock()
    figures = await services.figures.read(window, now=at)
    async with services.database.read_only() as connection:
        now = await overview(connection)
        waiting = await count_approvals(connection, now=at)
    work = OpenWork(**asdict(now), approvals_waiting=waiting, instances=await services.turns.queue.workers())
    return Overview(window, at, work, figures)
