"""Routes to list, read and cancel the turns of a session."""

from segue.api.deps import Caller, ServicesDep, SessionId, TurnId, router_of
from segue.api.schemas import Cursor, Limit, Page, decode_cursor, id_position, page
from segue.domain.session import Turn

router = router_of("turns", "/sessions/{session_id}/turns")

_POSITION = id_position("turn")


@router.get("")
async def list_turns(
    session_id: SessionId, services: ServicesDep, caller: Caller, limit: Limit = 50, cursor: Cursor = None
) -> Page[Turn]:
    """Lists the turns of a session. Newest first."""
    before = decode_cursor(cursor, _POSITION)
    found = await services.turns.list(caller, session_id, before=before, limit=limit + 1)
    return page(found, limit, lambda turn: turn.turn_id)


@router.get("/{turn_id}")
async def get_turn(session_id: SessionId, turn_id: TurnId, services: ServicesDep, caller: Caller) -> Turn:
    """Shows how a turn stands."""
    return await services.turns.read(caller, session_id, turn_id)


@router.post("/{turn_id}/cancel")
async def cancel_turn(session_id: SessionId, turn_id: TurnId, services: ServicesDep, caller: Caller) -> Turn:
    """Cancels a turn. Answers once it has ended; one that had ended before stays as it is."""
    return await services.turns.cancel(caller, session_id, turn_id)
