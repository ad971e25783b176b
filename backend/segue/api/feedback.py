"""Routes to say what one thinks of an answer, and for operators to read it."""

from typing import Annotated

from fastapi import APIRouter
from pydantic import Field, TypeAdapter

from segue.api.deps import Caller, MessageId, Ops, ServicesDep, SessionId, StrictJsonRoute
from segue.api.problems import PROBLEMS
from segue.api.schemas import Cursor, Limit, MessageFeedback, Page, decode_cursor, page
from segue.domain.errors import AppError
from segue.domain.session import Feedback, Message, Rating, UnreadableMessage
from segue.memory.feedback import list_feedback, set_feedback
from segue.memory.history import get_message
from segue.turns.queries import with_metadata

router = APIRouter(tags=["feedback"], route_class=StrictJsonRoute, responses=PROBLEMS)

_SEQ = TypeAdapter(Annotated[int, Field(strict=True, ge=0, lt=2**63)])


@router.put("/sessions/{session_id}/messages/{message_id}/feedback")
async def rate_message(
    session_id: SessionId, message_id: MessageId, body: MessageFeedback, services: ServicesDep, caller: Caller
) -> Message | UnreadableMessage:
    """Replaces what was said of the answer before, which `rating: null` takes back. It stands in `metadata`."""
    async with services.database.transaction() as connection:
        message = await get_message(connection, caller, session_id, message_id)
        if message.role != "assistant":
            detail = "Only what the assistant said can be rated: this message is the user's own, or a tool's result."
            raise AppError("not_an_answer", status=422, title="Not an answer", detail=detail)
        await set_feedback(connection, message_id, rating=body.rating, comment=body.comment)
        [rated] = await with_metadata(connection, [message])
    return rated


@router.get("/feedback")
async def get_feedback(
    services: ServicesDep, _: Ops, rating: Rating | None = None, limit: Limit = 50, cursor: Cursor = None
) -> Page[Feedback]:
    """What all users said, newest first, without the messages. For callers with the scope `ops`."""
    before = decode_cursor(cursor, _SEQ)
    async with services.database.read_only() as connection:
        found = await list_feedback(connection, rating=rating, before=before, limit=limit + 1)
    listed = page(found, limit, lambda each: each[1])
    return Page([said for said, _ in listed.items], listed.next_cursor)
