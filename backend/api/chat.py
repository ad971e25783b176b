"""Chat: a message in, the answer out. The turn is not the request's: a client that leaves does not stop it."""

from fastapi import APIRouter

from backend.api.deps import Caller, ServicesDep, SessionId, StrictJsonRoute
from backend.api.problems import PROBLEMS
from backend.api.schemas import ChatBody
from backend.domain.session import ChatAnswer
from backend.turn.store import ChatRequest

router = APIRouter(prefix="/sessions", tags=["chat"], route_class=StrictJsonRoute, responses=PROBLEMS)


@router.post("/{session_id}/chat")
async def chat(session_id: SessionId, body: ChatBody, services: ServicesDep, caller: Caller) -> ChatAnswer:
    request = ChatRequest(message=body.message, force_web_search=body.force_web_search)
    return await services.turns.chat(caller, session_id, request)
