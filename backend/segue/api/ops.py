"""Routes for operators: turns and sessions of every user without what was said, the audit, the webhook, and figures."""

from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Annotated, Any, Literal

from fastapi import Path, Query
from pydantic import TypeAdapter
from starlette.responses import StreamingResponse

from segue.api.deps import AnySession, Ops, Parts, Services, SessionId, TurnId, router_of
from segue.api.me import AS_LINES, as_lines
from segue.api.problems import problems
from segue.api.schemas import BY_SEQ, Page, Paged, Paging, id_position
from segue.db.engine import Database
from segue.domain.field_types import doc
from segue.domain.plan import Plan, PlanStatus, StepStatus, UnreadablePlan
from segue.domain.session import Message, UnreadableMessage
from segue.domain.tool import ToolState
from segue.events.outbox import OutboxState, WaitingEvent, list_events, read_outbox, retry_events
from segue.history import operator_turns
from segue.history.operator_figures import Period, WindowFigures
from segue.history.operator_turns import OpsTurn
from segue.memory.history import list_messages
from segue.memory.session_store import get_session, owner_of
from segue.turns.approvals import OpsApproval, count_approvals, list_all_approvals
from segue.turns.queries import TurnsOverview, overview
from segue.users.audit import Act, AuditedAction, list_acts, record_act

MESSAGES_SHOWN = 50
ACTS_AT_ONCE = 200

router = router_of("ops", "/ops")

AnySessionId = Annotated[SessionId, Path(description="The id of a session, of any user.")]
AnyTurnId = Annotated[TurnId, Path(description="The id of a turn, of any user.")]
ByAction = Annotated[AuditedAction | None, Query(description="Lists only acts of this kind.")]
ByActor = Annotated[operator_turns.Named, Query(description="Lists only acts of this operator.")]
OneEvent = Annotated[operator_turns.Named, Query(description="The id of the event to send again; all if left out.")]
_POSITION, _PLAN_POSITION = id_position("turn"), id_position("plan")
_ACT: TypeAdapter[Act] = TypeAdapter(Act)


@dataclass(frozen=True, slots=True)
class OpsStep:
    """A step of a plan, without its texts."""

    id: Annotated[int, doc("The number of the step in its plan, from 1.")]
    status: Annotated[StepStatus, doc("The status of the step.")]
    tool: Annotated[str | None, doc("The tool that the step calls; null if it calls none.")]


@dataclass(frozen=True, slots=True)
class OpsPlan:
    """The open plan of a session, without its texts."""

    id: Annotated[str, doc("The plan's id; begins with `plan_`.")]
    version: Annotated[int, doc("The version of the plan, which grows with every change.")]
    status: Annotated[PlanStatus, doc("The status of the plan; `waiting` waits for a yes.")]
    expires_at: Annotated[datetime, doc("When the plan expires (UTC).")]
    steps: Annotated[tuple[OpsStep, ...], doc("The steps, in order.")]


@dataclass(frozen=True, slots=True)
class OpsContent:
    """What was said in a session, for callers with the scope `ops:content`."""

    title: Annotated[str | None, doc("The title of the session; null if it has none.")]
    metadata: Annotated[dict[str, Any], doc("The client's own data of the session.")]
    plan: Annotated[Plan | UnreadablePlan | None, doc("The open plan with its texts; null if none is open.")]
    messages: Annotated[list[Message | UnreadableMessage], doc("The newest messages, at most 50, newest first.")]


@dataclass(frozen=True, slots=True)
class OpsSession:
    """A session of any user, as operators see it."""

    id: Annotated[str, doc("The session's id; begins with `ses_`.")]
    owner: Annotated[str, doc("The user who owns the session.")]
    agent: Annotated[str, doc("The id of the agent that answers in the session.")]
    created_at: Annotated[datetime, doc("When the session was created (UTC).")]
    updated_at: Annotated[datetime, doc("When something last happened in the session (UTC).")]
    message_count: Annotated[int, doc("The number of messages in its history.")]
    open_turns: Annotated[list[OpsTurn], doc("The turns that run or wait, at most 50.")]
    failed_turns: Annotated[list[OpsTurn], doc("The newest turns that failed, at most five.")]
    plan: Annotated[OpsPlan | None, doc("The open plan; null if none is open.")]
    tools: Annotated[dict[str, ToolState], doc("The tools that cannot be called now, by name.")]
    content: Annotated[OpsContent | None, doc("What was said; null for callers without the scope `ops:content`.")]


class TurnQuery(Paging, operator_turns.TurnFilter):
    """Which turns to list."""

    session_id: Annotated[AnySession | None, doc("Only turns of the session with this id.")] = None
    include: Annotated[Literal["words"] | None, doc("`words` also shows `said`; needs `ops:content`.")] = None


@router.get("/turns", responses=problems("forbidden", "unknown_tool", "session_not_found"))
async def list_any_turns(services: Parts, operator: Ops, query: Annotated[TurnQuery, Query()]) -> Page[OpsTurn]:
    """Lists the turns of all users, with what each does, took and cost. Newest first. Needs the scope `ops`; with
    `include=words` and `ops:content` it also shows how their messages begin, which is audited.
    """
    words = query.include == "words" and "ops:content" in operator.scopes
    async with services.database.read_only() as connection:
        if query.session_id is not None:
            await owner_of(connection, query.session_id)
        found = await operator_turns.list_any(connection, query, words=words, **query.behind(_POSITION))
    if not found:
        services.tools.specs(query.tool)
    if words and found:
        read = {"sessions": sorted({turn.session_id for turn in found})}
        await services.database.write(record_act, operator, "read_session", details=read)
    return query.page(await operator_turns.with_activity(services.cache, found), lambda turn: turn.turn_id)


@router.post("/turns/{turn_id}/cancel", responses=problems("forbidden"))
async def cancel_any_turn(turn_id: AnyTurnId, services: Parts, operator: Ops) -> OpsTurn:
    """Cancels a turn of any user. Answers once it has ended; an ended turn stays as it is. Needs the scope `ops`."""
    turn = await _turn(services, turn_id)
    await services.database.transact(record_act, operator, "cancel_turn", session_id=turn.session_id, turn_id=turn_id)
    await services.turns.cancel(turn.owner, turn.session_id, turn_id)
    return await _turn(services, turn_id)


@router.get("/turns/{turn_id}/timeline", responses=problems("forbidden"))
async def get_timeline(turn_id: AnyTurnId, services: Parts, _: Ops) -> operator_turns.TurnTimeline:
    """Shows the timeline of a turn of any user. Has the turn's attempts, nodes, calls of models and tools, and waits,
    without what was said and without arguments. Needs the scope `ops`.
    """
    return await services.read(operator_turns.timeline_of, services.cache, turn_id)


@router.get("/sessions/{session_id}", responses=problems("forbidden"))
async def get_any_session(session_id: AnySessionId, services: Parts, operator: Ops) -> OpsSession:
    """Shows the state of a session of any user. Needs the scope `ops`; `ops:content` also shows what was said."""
    async with services.database.read_only() as connection:
        owner = await owner_of(connection, session_id)
        session = await get_session(connection, owner, session_id)
        of_session = operator_turns.TurnFilter(session_id=session_id)
        open_turns = await operator_turns.list_any(connection, of_session, limit=50)
        failed = await operator_turns.list_any(connection, of_session.model_copy(update={"status": "failed"}), limit=5)
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
async def list_any_approvals(services: Parts, _: Ops, paging: Paged) -> Page[OpsApproval]:
    """Lists all users' plans that wait for a yes. Newest first, without texts and arguments. Needs the scope `ops`."""
    found = await services.read(list_all_approvals, now=services.clock(), **paging.behind(_PLAN_POSITION))
    return paging.page(found, lambda each: each.plan_id)


@router.get("/audit", responses=problems("forbidden"))
async def list_audit(
    services: Parts, _: Ops, paging: Paged, action: ByAction = None, actor: ByActor = None
) -> Page[Act]:
    """Lists the audit: what operators did. Newest first. Needs the scope `ops`."""
    found = await services.read(list_acts, action=action, actor=actor, **paging.behind(BY_SEQ))
    return paging.page(found, lambda act: act.seq)


@router.get("/audit/export", response_class=StreamingResponse, responses={**AS_LINES, **problems("forbidden")})
async def export_audit(services: Parts, _: Ops, action: ByAction = None, actor: ByActor = None) -> StreamingResponse:
    """Exports the audit, one act of `GET /ops/audit` as JSON on each line. Newest first. Needs the scope `ops`."""
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
    """How many events of the webhook are sent again."""

    events: Annotated[int, doc("The number of events that are sent again now.")]


@router.get("/webhooks", responses=problems("forbidden"))
async def get_webhooks(services: Parts, _: Ops) -> OutboxState:
    """Shows how many events wait to be sent to WEBHOOK_URL, and why. Needs the scope `ops`."""
    return await services.read(read_outbox)


@router.get("/webhooks/events", responses=problems("forbidden"))
async def list_webhook_events(services: Parts, _: Ops, paging: Paged) -> Page[WaitingEvent]:
    """Lists the events that wait to be sent to WEBHOOK_URL. Oldest first. Needs the scope `ops`."""
    found = await services.read(list_events, after=paging.after(BY_SEQ) or 0, limit=paging.limit + 1)
    return paging.page(found, lambda event: event.seq)


@router.post("/webhooks/retry", responses=problems("forbidden"))
async def retry_webhooks(services: Parts, operator: Ops, event_id: OneEvent = None) -> Retried:
    """Sends failed events to the webhook again now, without waiting for their back-off. Needs the scope `ops`."""
    async with services.database.transaction() as connection:
        await record_act(connection, operator, "retry_webhooks", details={"event_id": event_id})
        return Retried(await retry_events(connection, event_id))


async def _turn(services: Services, turn_id: str) -> OpsTurn:
    turn = await services.read(operator_turns.find_any, turn_id)
    return (await operator_turns.with_activity(services.cache, [turn]))[0]


@dataclass(frozen=True, slots=True)
class OpenWork(TurnsOverview):
    """The work that is open at this moment, in all processes together."""

    approvals_waiting: Annotated[int, doc("The number of plans that wait for a yes.")]
    instances: Annotated[int | None, doc("The number of processes that run turns; null if Redis is away.")]


@dataclass(frozen=True, slots=True)
class Overview:
    """The state of the service, and its figures over time."""

    window: Annotated[Period, doc("The period of the figures.")]
    at: Annotated[datetime, doc("When the figures were read (UTC).")]
    now: Annotated[OpenWork, doc("The work that is open now.")]
    figures: Annotated[WindowFigures, doc("The turns of the period: their number, latency, errors and costs.")]


@router.get("/overview", responses=problems("forbidden"))
async def get_overview(
    services: Parts,
    _: Ops,
    *,
    window: Annotated[Period, Query(description="The last 60 minutes, or the last 96 quarters of an hour.")] = "hour",
) -> Overview:
    """Shows turns, latency, errors, tokens and costs over time, and the work that is open now. A turn counts when its
    message was accepted. Needs the scope `ops`.
    """
    at = services.clock()
    figures = await services.figures.read(window, now=at)
    async with services.database.read_only() as connection:
        now = await overview(connection)
        waiting = await count_approvals(connection, now=at)
    work = OpenWork(**asdict(now), approvals_waiting=waiting, instances=await services.turns.queue.workers())
    return Overview(window, at, work, figures)
