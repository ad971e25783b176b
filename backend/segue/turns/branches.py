"""Turns that leave a session's history when a message is edited or answered anew, and stay readable as a branch: all
from the user's message of a turn on. Its messages and turns have the branch's id; those of the history have none.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Annotated

from sqlalchemy import func, select, update

from segue.agent.prompts import TEXTS, fenced_lines
from segue.agent.render_messages import listed_reference
from segue.db.engine import Connection
from segue.db.models import messages, sessions, turns
from segue.domain.errors import app_error, existing
from segue.domain.field_types import doc
from segue.domain.ids import new_id
from segue.domain.session import NO_OPTIONS, Attached, first_words
from segue.domain.tool import Tool
from segue.memory import fact_store
from segue.memory.history import BY_PROGRAM, IN_HISTORY, user_messages_of
from segue.memory.summary import columns_before
from segue.plans.store import cancel_open
from segue.tools.results import recent_references
from segue.turns.chat_request import ChatRequest, request_of
from segue.turns.queries import first_open_turn

MAX_TOLD_CALLS = 10
_FIRST_CHARS = 240  # more than a title takes


@dataclass(frozen=True, slots=True)
class Branch:
    """Messages that left the history together when a message was edited or regenerated."""

    id: Annotated[str, doc("The id of the branch, for `branch=` of the session's messages.")]
    from_seq: Annotated[int, doc("The `seq` of the branch's first message.")]
    created_at: Annotated[datetime, doc("When the messages left the history.")]
    message_count: Annotated[int, doc("The number of messages in the branch.")]
    first_words: Annotated[str, doc("How the branch's first message begins.")]


async def put_in_place(
    connection: Connection, session_id: str, request: ChatRequest, tools: Mapping[str, Tool], *, now: datetime
) -> ChatRequest:
    """Takes the turn of the message that a request comes `instead_of`, and all after it, out of the history. Returns
    the request in its place: if it has no message, with all that the user wrote in that turn, else what they told there
    is forgotten. Under the lock of the session. Raises NotFound, AppError `turn_in_progress`, `not_in_history`,
    `not_the_users`, `cannot_edit_steer`.
    """
    named, opening = messages.alias("named"), messages.alias("opening")
    statement = (
        select(named.c.role, named.c.branch, named.c.seq.label("at"), opening.c.seq, turns.c.id, turns.c.request)
        .join(opening, (opening.c.session_id == named.c.session_id) & (opening.c.seq == named.c.turn_seq))
        .join(turns, turns.c.id == named.c.turn_id)
        .where(named.c.session_id == session_id, named.c.id == request.instead_of)
    )
    row = existing("message", (await connection.execute(statement)).one_or_none())
    if (busy := await first_open_turn(connection, session_id)) is not None:
        raise app_error("turn_in_progress", extra={"turn_id": busy})
    if row.branch is not None:
        raise app_error("not_in_history")
    if request.message and row.role != "user":
        raise app_error("not_the_users")
    if request.message and row.at != row.seq:
        raise app_error("cannot_edit_steer")
    await _leave_history(connection, session_id, from_seq=row.seq, now=now)
    old_request, note = request_of(row.request, row.id), await _note_of_calls(connection, session_id, tools)
    request = replace(request, force_web_search=old_request is not None and old_request.force_web_search, note=note)
    if request.message:
        stays = select(func.max(messages.c.turn_seq)).where(messages.c.session_id == session_id, IN_HISTORY)
        behind = messages.c.turn_seq > func.coalesce(stays.scalar_subquery(), 0)
        left = select(messages.c.id).where(messages.c.session_id == session_id, behind)
        await fact_store.delete_facts_told_in(connection, left)
        return request
    user_messages = await user_messages_of(connection, row.id)
    files = [Attached(**file) for each in user_messages for file in each.metadata.get("attachments", ())]
    return replace(
        request,
        message="\n\n".join(str(each.content) for each in user_messages),
        attachments=tuple(dict.fromkeys(files)),
        approves=request.approves and not any(BY_PROGRAM in each.metadata for each in user_messages),
        options=replace(old_request.options if old_request is not None else NO_OPTIONS, **request.options.given),
    )


async def opening_after(connection: Connection, session_id: str, seq: int) -> str | None:
    """Returns the user's message of the first turn in the history behind this seq; None if there is none."""
    behind = select(messages.c.id).where(messages.c.session_id == session_id, messages.c.branch.is_(None))
    opening = behind.where(messages.c.seq == messages.c.turn_seq, messages.c.seq > seq)
    return await connection.scalar(opening.order_by(messages.c.seq).limit(1))


async def _leave_history(connection: Connection, session_id: str, *, from_seq: int, now: datetime) -> None:
    """Makes a branch of the turns from this one on, and of the session what it was before: without the open plan, a
    summary of what leaves, or facts to be noted from it.
    """
    branch = new_id("br", now)
    leaving = (messages.c.session_id == session_id, messages.c.turn_seq >= from_seq, messages.c.branch.is_(None))
    left = await connection.execute(update(messages).where(*leaving).values(branch=branch, left_at=func.now()))
    ended = (turns.c.session_id == session_id, turns.c.seq >= from_seq, turns.c.branch.is_(None))
    await connection.execute(update(turns).where(*ended).values(branch=branch, facts_due_at=None))
    answered = select(turns.c.id).where(turns.c.session_id == session_id, turns.c.status == "completed")
    answered = answered.where(turns.c.branch.is_(None), turns.c.read_by.is_(None))
    last = answered.order_by(turns.c.seq.desc()).limit(1).scalar_subquery()
    before = {"last_turn_id": last, "tool_choice": None, **columns_before(from_seq)}
    before["gaps"] = sessions.c.gaps + left.rowcount
    await connection.execute(update(sessions).where(sessions.c.id == session_id).values(before))
    await cancel_open(connection, session_id)


async def _note_of_calls(connection: Connection, session_id: str, tools: Mapping[str, Tool]) -> str | None:
    """Returns the model's note on calls in branches, if any: those that only read or failed did nothing."""
    read_only = [name for name, tool in tools.items() if tool.spec.effect == "read_only"]
    references = await recent_references(connection, session_id, left=True, but_of=read_only)
    lines = [listed_reference(each, ()) for each in references if each.status != "failed"]
    return fenced_lines(TEXTS["taken_back"], lines[:MAX_TOLD_CALLS]) if lines else None


async def list_branches(
    connection: Connection, session_id: str, *, before: int | None, limit: int
) -> list[tuple[Branch, int]]:
    """Returns the branches of a session with their last seqs, by which they are listed: the newest first."""
    first, last = func.min(messages.c.seq), func.max(messages.c.seq)
    of_branch = (first.label("seq"), last.label("last_seq"), func.count().label("message_count"))
    left = select(messages.c.branch, *of_branch).where(messages.c.session_id == session_id)
    listed = left.where(messages.c.branch.is_not(None)).group_by(messages.c.branch).order_by(last.desc()).limit(limit)
    if before is not None:
        listed = listed.having(last < before)
    found = listed.subquery()
    begins = func.left(messages.c.content, _FIRST_CHARS).label("begins")
    left_at = func.coalesce(messages.c.left_at, messages.c.created_at).label("left_at")
    is_first = (messages.c.session_id == session_id) & (messages.c.seq == found.c.seq)
    statement = select(found, begins, left_at).join(messages, is_first).order_by(found.c.last_seq.desc())
    return [
        (Branch(row.branch, row.seq, row.left_at, row.message_count, first_words(row.begins)), row.last_seq)
        for row in await connection.execute(statement)
    ]
