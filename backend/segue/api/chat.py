"""The chat route. A turn does not depend on its request: a client that disconnects does not stop it."""

from dataclasses import asdict, dataclass
from typing import Annotated, Any

from fastapi import Depends, Request, Response
from fastapi.responses import JSONResponse
from structlog.contextvars import bind_contextvars

from segue.api.deps import Caller, IdempotencyKey, OriginDep, Services, ServicesDep, SessionId, router_of
from segue.api.events import OR_EVENTS, answer_or_events, wants_events
from segue.api.problem_codes import problems
from segue.api.schemas import ChatBody, Delivery
from segue.domain.doc import doc
from segue.domain.session import ChatAnswer, TurnKey, TurnStatus
from segue.turns.admission import Admitted
from segue.turns.claims import Origin
from segue.turns.store import ChatRequest, once

router = router_of("chat", "/sessions")


@dataclass(frozen=True, slots=True)
class AcceptedTurn:
    """A turn whose client does not wait for the answer: `background`."""

    turn_id: Annotated[str, doc("Begins with `turn_`.")]
    status: Annotated[TurnStatus, doc("How it stands.")]
    events_url: Annotated[str, doc("The path of its events.")]


ACCEPTED: dict[int | str, dict[str, Any]] = {
    202: {"model": AcceptedTurn, "description": "Accepted: with `background` the request does not wait for the answer"}
}


def events_url(http: Request, turn: TurnKey) -> str:
    return f"{http.scope.get('root_path', '')}/sessions/{turn.session_id}/turns/{turn.turn_id}/events"


@dataclass(frozen=True, slots=True)
class Asking:
    """A client that asks for a turn: what every route takes that answers as `chat` does."""

    caller: str
    services: Services
    http: Request
    origin: Origin
    idempotency_key: str | None = None

    def request(self, message: str, how: Delivery, *asked: str | int, **more: Any) -> ChatRequest:
        """`asked` is what a second request with the same key has to ask too, `more` the other fields of the request."""
        key = once(self.idempotency_key, *asked)
        return ChatRequest(message, once=key, stream=self._streams(how), origin=self.origin, **more)

    async def answered(self, session_id: str, request: ChatRequest, how: Delivery) -> Response:
        return await self.answer(await self.services.turns.accept(self.caller, session_id, request), how)

    async def answer(self, admitted: Admitted, how: Delivery) -> Response:
        """Answers with a turn as it was asked for: its answer, its events, or where to find them."""
        bind_contextvars(turn_id=admitted.turn.turn_id)
        if how.background:
            accepted = AcceptedTurn(admitted.turn.turn_id, admitted.status, events_url(self.http, admitted.turn))
            return JSONResponse(asdict(accepted), status_code=202)
        return await answer_or_events(self.services, admitted.turn, stream=self._streams(how))

    def _streams(self, how: Delivery) -> bool:
        return how.stream or wants_events(self.http)


async def _asking(
    services: ServicesDep,
    caller: Caller,
    http: Request,
    origin: OriginDep,
    idempotency_key: IdempotencyKey = None,
) -> Asking:
    return Asking(caller, services, http, origin, idempotency_key)


AskingDep = Annotated[Asking, Depends(_asking)]


def as_chat(*codes: str) -> dict[str, Any]:
    """The options of a route that answers as `chat` does."""
    responses = {**OR_EVENTS, **ACCEPTED, **problems("turn_in_progress", *codes)}
    return {"response_model": ChatAnswer, "responses": responses}


@router.post("/{session_id}/chat", **as_chat("too_many_queued", "unknown_attachment"))
async def chat(session_id: SessionId, body: ChatBody, asking: AskingDep) -> Response:
    """Sends a message to the agent. The answer is a ChatAnswer, or with `"stream": true` or `Accept: text/event-stream`
    the events of the turn as they happen, or with `background` a 202 at once. A client that goes away stops nothing.
    """
    files = tuple(body.attachments)
    asked: tuple[str | int, ...] = (body.message, body.force_web_search, body.on_busy, *files)
    more: dict[str, Any] = {"force_web_search": body.force_web_search, "on_busy": body.on_busy, "attachment_ids": files}
    if not body.approves:
        asked, more = (*asked, "approves_nothing"), {**more, "approves": False}
    request = asking.request(body.message, body, *asked, **more)
    return await asking.answered(session_id, request, body)
