"""Routes to say a message anew, to have another answer, to run a turn again, and to read what left the history."""

from typing import Annotated, Any

from fastapi import APIRouter, Request, Response
from pydantic import Field, TypeAdapter

from segue.api.chat import ACCEPTED, delivered
from segue.api.deps import (
    Caller,
    IdempotencyKey,
    MessageId,
    OriginDep,
    ServicesDep,
    SessionId,
    StrictJsonRoute,
    TurnId,
)
from segue.api.events import OR_EVENTS, wants_events
from segue.api.problems import PROBLEMS
from segue.api.schemas import Cursor, Delivery, EditedMessage, Limit, Page, decode_cursor, page
from segue.domain.session import ChatAnswer
from segue.memory.sessions import get_session
from segue.turns.branches import Branch, list_branches
from segue.turns.store import ChatRequest, once

router = APIRouter(prefix="/sessions/{session_id}", tags=["chat"], route_class=StrictJsonRoute, responses=PROBLEMS)

AS_CHAT: dict[str, Any] = {"response_model": ChatAnswer, "responses": {**OR_EVENTS, **ACCEPTED}}
WAIT = Delivery()
_SEQ = TypeAdapter(Annotated[int, Field(strict=True, ge=0, lt=2**63)])


@router.post("/messages/{message_id}/edit", **AS_CHAT)
async def edit_message(
    session_id: SessionId,
    message_id: MessageId,
    body: EditedMessage,
    services: ServicesDep,
    caller: Caller,
    http: Request,
    origin: OriginDep,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Answers as chat does, to this message in the place of one of the user's and of all that came after it, which
    stays readable as a branch. Cancels the open plan. What tools had done stands, and the model is told of it.
    """
    stream = body.stream or wants_events(http)
    asked = once(idempotency_key, "edit", message_id, body.message)
    request = ChatRequest(body.message, instead_of=message_id, once=asked, stream=stream, origin=origin)
    admitted = await services.turns.accept(caller, session_id, request)
    return await delivered(services, http, admitted, stream=stream, background=body.background)


@router.post("/messages/{message_id}/regenerate", **AS_CHAT)
async def regenerate(
    session_id: SessionId,
    message_id: MessageId,
    services: ServicesDep,
    caller: Caller,
    http: Request,
    origin: OriginDep,
    body: Delivery = WAIT,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """As `edit`, with the user's message that opened the turn of this message as it was."""
    stream = body.stream or wants_events(http)
    asked = once(idempotency_key, "regenerate", message_id)
    request = ChatRequest("", instead_of=message_id, once=asked, stream=stream, origin=origin)
    admitted = await services.turns.accept(caller, session_id, request)
    return await delivered(services, http, admitted, stream=stream, background=body.background)


@router.post("/turns/{turn_id}/retry", **AS_CHAT)
async def retry_turn(
    session_id: SessionId,
    turn_id: TurnId,
    services: ServicesDep,
    caller: Caller,
    http: Request,
    origin: OriginDep,
    body: Delivery = WAIT,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Answers as chat does, with the session's last turn, which failed or was cancelled. It goes on as after a crash:
    what its tools had done stands, and so does its plan.
    """
    stream = body.stream or wants_events(http)
    request = ChatRequest("", once=once(idempotency_key, "retry", turn_id), stream=stream, origin=origin)
    admitted = await services.turns.retry(caller, session_id, turn_id, request)
    return await delivered(services, http, admitted, stream=stream, background=body.background)


@router.get("/branches")
async def get_branches(
    session_id: SessionId, services: ServicesDep, caller: Caller, limit: Limit = 50, cursor: Cursor = None
) -> Page[Branch]:
    """What left the history, newest first. The messages are read with `GET …/messages?branch=`."""
    before = decode_cursor(cursor, _SEQ)
    async with services.database.read_only() as connection:
        await get_session(connection, caller, session_id)
        found = await list_branches(connection, session_id, before=before, limit=limit + 1)
    listed = page(found, limit, lambda each: each[1])
    return Page([branch for branch, _ in listed.items], listed.next_cursor)
