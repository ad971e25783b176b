"""Routes to say what one thinks of an answer, and for operators to read it."""

from typing import Annotated

from fastapi import Query

from segue.api.deps import Caller, MessageId, Ops, ServicesDep, SessionId, router_of
from segue.api.problem_codes import problems
from segue.api.schemas import BY_SEQ, Cursor, Limit, MessageFeedback, Page, decode_cursor, page_of_placed
from segue.domain.errors import AppError
from segue.domain.session import Feedback, Message, Rating, UnreadableMessage
from segue.memory.feedback import list_feedback, set_feedback
from segue.memory.history import get_message
from segue.turns.queries import with_metadata

router = router_of("feedback")

Rated = Annotated[Rating | None, Query(description="Only those.")]


@router.put("/sessions/{session_id}/messages/{message_id}/feedback", responses=problems("not_an_answer"))
async def rate_message(
    session_id: SessionId, message_id: MessageId, body: MessageFeedback, services: ServicesDep, caller: Caller
) -> Message | UnreadableMessage:
    """Rates an answer. Replaces what was said of it before, which `rating: null` takes back; `metadata` has it."""
    async with services.database.transaction() as connection:
        message = await get_message(connection, caller, session_id, message_id)
        if message.role != "assistant":
            detail = "Only what the assistant said can be rated: this message is the user's own, or a tool's result."
            raise AppError("not_an_answer", status=422, title="Not an answer", detail=detail)
        await set_feedback(connection, message_id, rating=body.rating, comment=body.comment)
        [rated] = await with_metadata(connection, [message])
    return rated


@router.get("/feedback", responses=problems("forbidden"))
async def get_feedback(
    services: ServicesDep, _: Ops, rating: Rated = None, limit: Limit = 50, cursor: Cursor = None
) -> Page[Feedback]:
    """Lists what all users said of answers. Newest first, without the messages. For the scope `ops`."""
    before = decode_cursor(cursor, BY_SEQ)
    async with services.database.read_only() as connection:
        found = await list_feedback(connection, rating=rating, before=before, limit=limit + 1)
    return page_of_placed(found, limit)
