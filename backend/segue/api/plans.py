"""Routes to read plans, and to decide on the step that waits for the user, in one session or several at once."""

from fastapi import Request, Response
from structlog.contextvars import bind_contextvars

from segue.api.chat import AcceptedTurn, ClientDep, events_url
from segue.api.deps import Caller, OriginDep, ServicesDep, SessionId, router_of
from segue.api.event_streams import OR_EVENTS, answer_or_events, wants_events
from segue.api.problems import OF_DECISIONS, problems
from segue.api.schemas import Decisions, Page, PagingDep, PlanDecision, id_position
from segue.domain.errors import InvalidRequest
from segue.domain.plan import Plan, UnreadablePlan
from segue.domain.session import ChatAnswer
from segue.memory.session_store import check_session, get_session
from segue.plans import approvals, store
from segue.turns.store import once

router = router_of("plans", "/sessions/{session_id}")
approvals_router = router_of("plans", "/approvals")

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
    session_id: SessionId, services: ServicesDep, caller: Caller, paging: PagingDep
) -> Page[Plan | UnreadablePlan]:
    """Lists all plans of a session. Newest first."""
    before = paging.after(_POSITION)
    async with services.database.read_only() as connection:
        await check_session(connection, caller, session_id)
        found = await store.list_plans(connection, caller, session_id, before=before, limit=paging.limit + 1)
    return paging.page(found, lambda plan: plan.id)


@router.post("/plan/decision", response_model=ChatAnswer, responses={**OR_EVENTS, **problems(*OF_DECISIONS)})
async def decide(session_id: SessionId, body: PlanDecision, client: ClientDep) -> Response:
    """Decides on the step that waits, as a button does. Answers as `chat` does, once the plan has gone on to its next
    wait or its end.
    """
    services, stream = client.services, wants_events(client.http)
    key = once(client.idempotency_key, "decision", *body.fingerprint)
    turn = await services.turns.decide(
        client.caller, session_id, body.button, once=key, stream=stream, origin=client.origin
    )
    bind_contextvars(turn_id=turn.turn_id)
    return await answer_or_events(services, turn, stream=stream)


@approvals_router.get("")
async def get_approvals(services: ServicesDep, caller: Caller, paging: PagingDep) -> Page[approvals.Approval]:
    """Lists what waits for the caller's yes in all sessions. The newest plan first."""
    before = paging.after(_POSITION)
    async with services.database.read_only() as connection:
        found = await approvals.list_approvals(
            connection, caller, before=before, limit=paging.limit + 1, now=services.clock()
        )
    return paging.page(found, lambda each: each.plan_id)


@approvals_router.post("/decisions", status_code=202, responses=problems("session_not_found", *OF_DECISIONS))
async def decide_several(
    body: Decisions, services: ServicesDep, caller: Caller, http: Request, origin: OriginDep
) -> Page[AcceptedTurn]:
    """Decides on plans of several sessions. All are accepted, or none: then the problem's `session_id` says which could
    not be. The turns are those of `items`, in their order.
    """
    wanted = {each.session_id: each.button for each in body.items}
    if len(wanted) < len(body.items):
        raise InvalidRequest("A session is named twice. It has one plan at most, and a decision is made once.")
    admitted = await services.turns.decide_several(caller, wanted, origin=origin)
    turns = [admitted[each.session_id] for each in body.items]
    return Page([AcceptedTurn(each.turn.turn_id, each.status, events_url(http, each.turn)) for each in turns], None)
