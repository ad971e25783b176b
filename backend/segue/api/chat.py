"""The chat route. A turn does not depend on its request: a client that disconnects does not stop it."""

from dataclasses import asdict, dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse
from structlog.contextvars import bind_contextvars

from segue.api.deps import Caller, IdempotencyKey, OriginDep, Services, ServicesDep, SessionId, StrictJsonRoute
from segue.api.events import OR_EVENTS, answer_or_events, wants_events
from segue.api.problem_codes import problems
from segue.api.problems import PROBLEMS
from segue.api.schemas import ChatBody
from segue.domain.doc import doc
from segue.domain.session import ChatAnswer, TurnKey, TurnStatus
from segue.turns.admission import Admitted
from segue.turns.store import ChatRequest, once

router = APIRouter(prefix="/sessions", tags=["chat"], route_class=StrictJsonRoute, responses=PROBLEMS)


@dataclass(frozen=True, slots=True)
class AcceptedTurn:
    """A turn that nobody waits for: `background`."""

    turn_id: Annotated[str, doc("Begins with `turn_`.")]
    status: Annotated[TurnStatus, doc("How it stands.")]
    events_url: Annotated[str, doc("The path of its events.")]


ACCEPTED: dict[int | str, dict[str, Any]] = {
    202: {"model": AcceptedTurn, "description": "Accepted: with `background` nobody waits for the answer"}
}


def events_url(http: Request, turn: TurnKey) -> str:
    return f"{http.scope.get('root_path', '')}/sessions/{turn.session_id}/turns/{turn.turn_id}/events"


@router.post(
    "/{session_id}/chat",
    response_model=ChatAnswer,
    responses={**OR_EVENTS, **ACCEPTED, **problems("turn_in_progress", "too_many_queued")},
)
async def chat(
    session_id: SessionId,
    body: ChatBody,
    services: ServicesDep,
    caller: Caller,
    http: Request,
    origin: OriginDep,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Sends a message to the agent. The answer is a ChatAnswer, or with `"stream": true` or `Accept: text/event-stream`
    the events of the turn as they happen, or with `background` a 202 at once. A client that goes away stops nothing.
    """
    stream = body.stream or wants_events(http)
    request = ChatRequest(
        message=body.message,
        force_web_search=body.force_web_search,
        on_busy=body.on_busy,
        once=once(idempotency_key, body.message, body.force_web_search, body.on_busy),
        stream=stream,
        origin=origin,
    )
    admitted = await services.turns.accept(caller, session_id, request)
    return await delivered(services, http, admitted, stream=stream, background=body.background)


async def delivered(
    services: Services, http: Request, admitted: Admitted, *, stream: bool, background: bool
) -> Response:
    """Answers with a turn as it was asked for: its answer, its events, or where to find them."""
    bind_contextvars(turn_id=admitted.turn.turn_id)
    if background:
        accepted = AcceptedTurn(admitted.turn.turn_id, admitted.status, events_url(http, admitted.turn))
        return JSONResponse(asdict(accepted), status_code=202)
    return await answer_or_events(services, admitted.turn, stream=stream)
