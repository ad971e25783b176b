"""Routes to say a message anew, to have another answer, to run a turn again, to read what left the history, and to go
on from a message in another session.
"""

from fastapi import Response

from segue.api.chat import AskingDep, as_chat
from segue.api.deps import Caller, MessageId, ServicesDep, SessionId, TurnId, router_of
from segue.api.problem_codes import problems
from segue.api.schemas import (
    BY_SEQ,
    Cursor,
    Delivery,
    EditedMessage,
    Limit,
    NewFork,
    Page,
    decode_cursor,
    page_of_placed,
)
from segue.domain.session import Session
from segue.events import user_feed
from segue.memory.sessions import check_session
from segue.turns.branches import Branch, list_branches
from segue.turns.fork import fork_session

router = router_of("chat", "/sessions/{session_id}")


WAIT = Delivery()


@router.post(
    "/messages/{message_id}/edit",
    **as_chat("not_in_history", "not_the_users", "cannot_edit_steer", "unknown_attachment"),
)
async def edit_message(
    session_id: SessionId, message_id: MessageId, body: EditedMessage, asking: AskingDep
) -> Response:
    """Says something in the place of a message of the user's. Answers as `chat` does; what came after the message stays
    readable as a branch. It carries the files that are named anew. Cancels the open plan. What tools had done stands,
    and the model is told of it.
    """
    files = tuple(body.attachments)
    more = {"instead_of": message_id, "attachment_ids": files}
    request = asking.request(body.message, body, "edit", message_id, body.message, *files, **more)
    return await asking.answered(session_id, request, body)


@router.post("/messages/{message_id}/regenerate", **as_chat("not_in_history"))
async def regenerate(
    session_id: SessionId, message_id: MessageId, asking: AskingDep, body: Delivery = WAIT
) -> Response:
    """Has another answer to the same message. As `edit_message`, with the turn's own message as it was."""
    request = asking.request("", body, "regenerate", message_id, instead_of=message_id)
    return await asking.answered(session_id, request, body)


@router.post("/turns/{turn_id}/retry", **as_chat("cannot_retry"))
async def retry_turn(session_id: SessionId, turn_id: TurnId, asking: AskingDep, body: Delivery = WAIT) -> Response:
    """Runs the last turn again, which failed or was cancelled. Answers as `chat` does. It goes on as after a crash:
    what its tools had done stands, and so does its plan.
    """
    request = asking.request("", body, "retry", turn_id)
    admitted = await asking.services.turns.retry(asking.caller, session_id, turn_id, request)
    return await asking.answer(admitted, body)


@router.post("/fork", status_code=201, responses=problems("message_not_found", "not_in_history", "turn_in_progress"))
async def fork(session_id: SessionId, body: NewFork, services: ServicesDep, caller: Caller) -> Session:
    """Makes a session that begins with the history up to and with a message. It has copies of the messages, their turns
    and the results of tools under ids of its own, and in `metadata` where it is `forked_from`; no plan is open in it. A
    turn that the message divides is cancelled there, and may be run again with `retry`.
    """
    async with services.database.transaction() as connection:
        session = await fork_session(connection, caller, session_id, body.message_id, now=services.clock())
    services.events.tell(caller, user_feed.session_created(session))
    return session


@router.get("/branches")
async def get_branches(
    session_id: SessionId, services: ServicesDep, caller: Caller, limit: Limit = 50, cursor: Cursor = None
) -> Page[Branch]:
    """Lists what left the history. Newest first. The messages are read with `GET …/messages?branch=`."""
    before = decode_cursor(cursor, BY_SEQ)
    async with services.database.read_only() as connection:
        await check_session(connection, caller, session_id)
        found = await list_branches(connection, session_id, before=before, limit=limit + 1)
    return page_of_placed(found, limit)
