"""Routes to read plans and to decide on the step that waits for the user."""

from fastapi import APIRouter, Request, Response
from structlog.contextvars import bind_contextvars

from segue.api.deps import Caller, IdempotencyKey, OriginDep, ServicesDep, SessionId, StrictJsonRoute
from segue.api.events import OR_EVENTS, answer_or_events, wants_events
from segue.api.problem_codes import OF_DECISIONS, problems
from segue.api.problems import PROBLEMS
from segue.api.schemas import Cursor, Limit, Page, PlanDecision, decode_cursor, id_position, page
from segue.domain.plan import Plan, UnreadablePlan
from segue.domain.session import ChatAnswer
from segue.memory.sessions import get_session
from segue.plans import store
from segue.turns.store import once

router = APIRouter(prefix="/sessions/{session_id}", tags=["plans"], route_class=StrictJsonRoute, responses=PROBLEMS)

_POSITION = id_position("plan")


@router.get("/plan", responses=problems("no_open_plan"))
async def get_open_plan(session_id: SessionId, services: ServicesDep, caller: Caller) -> Plan | UnreadablePlan:
    """Shows the plan that is open."""
    async with services.database.read_only() as connection:
        session = await get_session(connection, caller, session_id)
    if session.pending_plan is None:
        raise store.no_open_plan()
    return session.pending_plan


@router.get("/plans")
async def list_plans(
    session_id: SessionId, services: ServicesDep, caller: Caller, limit: Limit = 50, cursor: Cursor = None
) -> Page[Plan | UnreadablePlan]:
    """Lists all plans of a session. Newest first."""
    before = decode_cursor(cursor, _POSITION)
    async with services.database.read_only() as connection:
        await get_session(connection, caller, session_id)
        found = await store.list_plans(connection, caller, session_id, before=before, limit=limit + 1)
    return page(found, limit, lambda plan: plan.id)


@router.post("/plan/decision", response_model=ChatAnswer, responses={**OR_EVENTS, **problems(*OF_DECISIONS)})
async def decide(
    session_id: SessionId,
    body: PlanDecision,
    services: ServicesDep,
    caller: Caller,
    http: Request,
    origin: OriginDep,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Decides on the step that waits, as a button does. Answers as `chat` does, once the plan has gone on to its next
    wait or its end.
    """
    stream = wants_events(http)
    asked = once(idempotency_key, "decision", *body.asked)
    turn = await services.turns.decide(caller, session_id, body.button, once=asked, stream=stream, origin=origin)
    bind_contextvars(turn_id=turn.turn_id)
    return await answer_or_events(services, turn, stream=stream)
