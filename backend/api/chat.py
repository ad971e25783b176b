"""Chat: a message in, the answer out. The turn is not the request's: a client that leaves does not stop it."""

from dataclasses import asdict, dataclass

from fastapi import APIRouter, Response
from fastapi.responses import JSONResponse

from backend.api.deps import Caller, IdempotencyKey, ServicesDep, SessionId, StrictJsonRoute
from backend.api.problems import PROBLEMS
from backend.api.schemas import ChatBody
from backend.domain.session import ChatAnswer, TurnStatus
from backend.turn.store import ChatRequest, once

router = APIRouter(prefix="/sessions", tags=["chat"], route_class=StrictJsonRoute, responses=PROBLEMS)


@dataclass(frozen=True, slots=True)
class AcceptedTurn:
    """A turn that nobody waits for: `background`."""

    turn_id: str
    status: TurnStatus
    events_url: str


@router.post(
    "/{session_id}/chat",
    response_model=ChatAnswer,
    responses={202: {"model": AcceptedTurn, "description": "Accepted: with `background` nobody waits for the answer"}},
)
async def chat(
    session_id: SessionId,
    body: ChatBody,
    services: ServicesDep,
    caller: Caller,
    idempotency_key: IdempotencyKey = None,
) -> ChatAnswer | Response:
    request = ChatRequest(
        message=body.message,
        force_web_search=body.force_web_search,
        on_busy=body.on_busy,
        once=once(idempotency_key, body.message, body.force_web_search, body.on_busy),
    )
    if not body.background:
        return await services.turns.chat(caller, session_id, request)
    admitted = await services.turns.accept(caller, session_id, request)
    turn_id = admitted.turn.turn_id
    accepted = AcceptedTurn(turn_id, admitted.status, f"/sessions/{session_id}/turns/{turn_id}/events")
    return JSONResponse(asdict(accepted), status_code=202)
