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
from segue.api.problem_codes import problems
from segue.api.problems import PROBLEMS
from segue.api.schemas import Cursor, Delivery, EditedMessage, Limit, Page, decode_cursor, page
from segue.domain.session import ChatAnswer
from segue.memory.sessions import get_session
from segue.turns.branches import Branch, list_branches
from segue.turns.store import ChatRequest, once

router = APIRouter(prefix="/sessions/{session_id}", tags=["chat"], route_class=StrictJsonRoute, responses=PROBLEMS)


def as_chat(*codes: str) -> dict[str, Any]:
    """The options of a route that answers as chat does."""
    responses = {**OR_EVENTS, **ACCEPTED, **problems("turn_in_progress", *codes)}
    return {"response_model": ChatAnswer, "responses": responses}


WAIT = Delivery()
_SEQ = TypeAdapter(Annotated[int, Field(strict=True, ge=0, lt=2**63)])


@router.post("/messages/{message_id}/edit", **as_chat("not_in_history", "not_the_users"))
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
    """Says something in the place of a message of the user's. Answers as `chat` does; what came after the message stays
    readable as a branch. Cancels the open plan. What tools had done stands, and the model is told of it.
    """
    stream = body.stream or wants_events(http)
    asked = once(idempotency_key, "edit", message_id, body.message)
    request = ChatRequest(body.message, instead_of=message_id, once=asked, stream=stream, origin=origin)
    admitted = await services.turns.accept(caller, session_id, request)
    return await delivered(services, http, admitted, stream=stream, background=body.background)


@router.post("/messages/{message_id}/regenerate", **as_chat("not_in_history"))
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
    """Has another answer to the same message. As `edit_message`, with the turn's own message as it was."""
    stream = body.stream or wants_events(http)
    asked = once(idempotency_key, "regenerate", message_id)
    request = ChatRequest("", instead_of=message_id, once=asked, stream=stream, origin=origin)
    admitted = await services.turns.accept(caller, session_id, request)
    return await delivered(services, http, admitted, stream=stream, background=body.background)


@router.post("/turns/{turn_id}/retry", **as_chat("cannot_retry"))
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
    """Runs the last turn again, which failed or was cancelled. Answers as `chat` does. It goes on as after a crash:
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
    """Lists what left the history. Newest first. The messages are read with `GET …/messages?branch=`."""
    before = decode_cursor(cursor, _SEQ)
    async with services.database.read_only() as connection:
        await get_session(connection, caller, session_id)
        found = await list_branches(connection, session_id, before=before, limit=limit + 1)
    listed = page(found, limit, lambda each: each[1])
    return Page([branch for branch, _ in listed.items], listed.next_cursor)
