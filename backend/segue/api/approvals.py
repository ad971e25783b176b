"""Routes to what waits for the caller's yes in all their sessions, and to decide on several at once."""

from fastapi import Request

from segue.api.chat import AcceptedTurn, events_url
from segue.api.deps import Caller, OriginDep, ServicesDep, router_of
from segue.api.problem_codes import OF_DECISIONS, problems
from segue.api.schemas import Cursor, Decisions, Limit, Page, decode_cursor, id_position, page
from segue.domain.errors import InvalidRequest
from segue.plans.approvals import Approval, list_approvals

router = router_of("plans", "/approvals")

_POSITION = id_position("plan")


@router.get("")
async def get_approvals(
    services: ServicesDep, caller: Caller, limit: Limit = 50, cursor: Cursor = None
) -> Page[Approval]:
    """Lists what waits for the caller's yes in all sessions. The newest plan first."""
    before = decode_cursor(cursor, _POSITION)
    async with services.database.read_only() as connection:
        found = await list_approvals(connection, caller, before=before, limit=limit + 1, now=services.clock())
    return page(found, limit, lambda each: each.plan_id)


@router.post("/decisions", status_code=202, responses=problems("session_not_found", *OF_DECISIONS))
async def decide_several(
    body: Decisions, services: ServicesDep, caller: Caller, http: Request, origin: OriginDep
) -> Page[AcceptedTurn]:
    """Decides on plans of several sessions. All are accepted, or none: then the problem's `session_id` says which could
    not be. The turns are those of `items`, in their order.
    """
    wanted = {each.session_id: each.button for each in body.items}
    if len(wanted) < len(body.items):
        detail = "A session is named twice. It has one plan at most, and a decision is made once."
        raise InvalidRequest(detail)
    admitted = await services.turns.decide_several(caller, wanted, origin=origin)
    turns = [admitted[each.session_id] for each in body.items]
    return Page([AcceptedTurn(each.turn.turn_id, each.status, events_url(http, each.turn)) for each in turns], None)
