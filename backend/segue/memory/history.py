"""The stored conversation: messages in, a window of them out, always one a model provider accepts.

The content of a tool message is the reference to its result. Knows nothing of LangChain: `agent/showing.py` turns these
messages into the model's.
"""

from collections.abc import Sequence
from dataclasses import asdict, replace
from datetime import datetime
from itertools import groupby
from typing import Any

import orjson
from sqlalchemy import CTE, ColumnElement, Insert, Row, bindparam, insert, select, update
from sqlalchemy.dialects.postgresql import distinct_on
from sqlalchemy.ext.asyncio import AsyncConnection

from segue.db.models import messages, sessions
from segue.domain.ids import new_id
from segue.domain.session import Message, RequestedCall, Role, TurnKey

INTERRUPTED = "The call was interrupted before its outcome was recorded; whether it took effect is unknown."

NEW_MESSAGE = {
    column.name: bindparam(f"new_{column.name}", type_=column.type) for column in messages.c if column.name != "seq"
}


async def append_message(
    connection: AsyncConnection,
    turn: TurnKey,
    *,
    role: Role,
    content: str | dict[str, Any],
    now: datetime,
    message_id: str | None = None,
    tool_calls: Sequence[RequestedCall] = (),
    tool_call_id: str | None = None,
) -> str:
    """Stores a message under the session's next seq, in the caller's transaction, and gives its id.

    `message_id` is the one it has been shown under already.
    """
    message_id = message_id or new_id("msg", now)
    values = message_values(
        turn,
        message_id=message_id,
        role=role,
        content=content,
        now=now,
        tool_calls=tool_calls,
        tool_call_id=tool_call_id,
    )
    await connection.execute(_APPEND, values)
    return message_id


async def load_window(connection: AsyncConnection, turn: TurnKey, *, after: int, limit: int) -> list[Message]:
    """The last `limit` messages of the turns after `after` up to and with this one, in their order, provider-valid."""
    bounds = {"at_session": turn.session_id, "after": after, "up_to": turn.turn_seq, "at_most": limit}
    rows = list(await connection.execute(_WINDOW, bounds))[::-1]
    return provider_valid([_message(row) for row in await _opened(connection, turn.session_id, rows)])


async def _opened(connection: AsyncConnection, session_id: str, rows: list[Row[Any]]) -> list[Row[Any]]:
    """A window that starts inside a turn begins with what the user said there, or at the next turn if no more fits."""
    if not rows or rows[0].seq == rows[0].turn_seq:
        return rows
    first, rest = rows[0], rows[1:]
    if rest and rest[0].turn_seq != first.turn_seq:
        return rest
    return [await _opening_message(connection, session_id, first.turn_seq), *rest]


async def _opening_message(connection: AsyncConnection, session_id: str, turn_seq: int) -> Row[Any]:
    opening = select(messages).where(messages.c.session_id == session_id, messages.c.seq == turn_seq)
    return (await connection.execute(opening)).one()


async def load_turns(
    connection: AsyncConnection, session_id: str, *, after: int, up_to: int, limit: int
) -> list[list[Message]]:
    """The oldest turns of this stretch, in at most `limit` messages, each whole if it is not the only one."""
    statement = (
        select(messages)
        .where(messages.c.session_id == session_id, messages.c.turn_seq > after, messages.c.turn_seq <= up_to)
        .order_by(messages.c.turn_seq, messages.c.seq)
        .limit(limit)
    )
    rows = list(await connection.execute(statement))
    turns = [provider_valid(list(map(_message, turn))) for _, turn in groupby(rows, key=lambda row: row.turn_seq)]
    return turns[:-1] if len(rows) == limit and len(turns) > 1 else turns


async def list_messages(
    connection: AsyncConnection, owner: str, session_id: str, *, after: int, limit: int
) -> list[Message]:
    statement = (
        select(messages)
        .join(sessions, sessions.c.id == messages.c.session_id)
        .where(sessions.c.id == session_id, sessions.c.owner == owner, messages.c.seq > after)
        .order_by(messages.c.seq)
        .limit(limit)
    )
    return [_message(row) for row in await connection.execute(statement)]


async def recent_user_messages(
    connection: AsyncConnection, owner: str, session_id: str, *, limit: int = 10
) -> list[Message]:
    """What the user said last in a session, newest first."""
    statement = (
        select(messages)
        .join(sessions, sessions.c.id == messages.c.session_id)
        .where(sessions.c.id == session_id, sessions.c.owner == owner, messages.c.role == "user")
        .order_by(messages.c.seq.desc())
        .limit(limit)
    )
    return [_message(row) for row in await connection.execute(statement)]


async def opening_of(connection: AsyncConnection, turn_id: str) -> Message | None:
    """What the user said in a turn. None where the turn is gone."""
    said = select(messages).where(messages.c.turn_id == turn_id, messages.c.role == "user")
    row = (await connection.execute(said.order_by(messages.c.seq).limit(1))).one_or_none()
    return _message(row) if row else None


async def answer_before(connection: AsyncConnection, session_id: str, turn_seq: int) -> str | None:
    """What the assistant had last said to the user before a turn."""
    statement = (
        select(messages.c.content)
        .where(messages.c.session_id == session_id, messages.c.role == "assistant", messages.c.turn_seq < turn_seq)
        .order_by(messages.c.turn_seq.desc(), messages.c.seq.desc())
        .limit(1)
    )
    return (await connection.execute(statement)).scalar_one_or_none()


async def final_messages(connection: AsyncConnection, turn_ids: Sequence[str]) -> dict[str, Message]:
    """The answers of completed turns, by turn: the last assistant message of each."""
    statement = (
        select(messages)
        .ext(distinct_on(messages.c.turn_id))
        .where(messages.c.turn_id.in_(turn_ids), messages.c.role == "assistant")
        .order_by(messages.c.turn_id, messages.c.seq.desc())
    )
    return {row.turn_id: _message(row) for row in await connection.execute(statement)}


async def last_exchange(connection: AsyncConnection, session_id: str) -> tuple[str, str] | None:
    """The texts the session's last completed turn began and ended with: the user's and the assistant's."""
    statement = (
        select(messages.c.content)
        .join(sessions, sessions.c.last_turn_id == messages.c.turn_id)
        .where(sessions.c.id == session_id)
        .order_by(messages.c.seq)
    )
    contents = (await connection.execute(statement)).scalars().all()
    return (contents[0], contents[-1]) if contents else None


def provider_valid(window: Sequence[Message]) -> list[Message]:
    """Starts with a user message; every call answered right after it was made, every answer called, nothing twice."""
    start = next((index for index, message in enumerate(window) if message.role == "user"), len(window))
    answers = {message.tool_call_id: message for message in window[start:] if message.role == "tool"}
    repaired: list[Message] = []
    for message in window[start:]:
        if message.role == "tool":
            continue
        repaired.append(message)
        repaired.extend(answers.get(call.id) or _interrupted(message, call) for call in message.tool_calls)
    return repaired


def _interrupted(message: Message, call: RequestedCall) -> Message:
    content = {"tool_call_id": call.id, "tool_name": call.name, "status": "unknown", "summary": INTERRUPTED}
    return replace(message, role="tool", content=content, tool_calls=(), tool_call_id=call.id)


def insert_message(place: CTE, *, opens_turn: bool = False) -> Insert:
    """Stores NEW_MESSAGE under the seq that `place` allocates. For statements built once."""
    columns: dict[str, ColumnElement[Any]] = {**NEW_MESSAGE, **({"turn_seq": place.c.seq} if opens_turn else {})}
    return insert(messages).from_select(["seq", *columns], select(place.c.seq, *columns.values()))


def message_values(
    turn: TurnKey,
    *,
    message_id: str,
    role: Role,
    content: str | dict[str, Any],
    now: datetime,
    tool_calls: Sequence[RequestedCall] = (),
    tool_call_id: str | None = None,
) -> dict[str, Any]:
    """What a statement of `insert_message` is executed with."""
    text = content if isinstance(content, str) else orjson.dumps(content).decode()
    calls = [asdict(call) for call in tool_calls] or None
    values: dict[str, Any] = {
        "id": message_id,
        "session_id": turn.session_id,
        "turn_id": turn.turn_id,
        "turn_seq": turn.turn_seq,
        "role": role,
        "content": text,
        "tool_calls": calls,
        "tool_call_id": tool_call_id,
        "created_at": now,
    }
    return {NEW_MESSAGE[name].key: value for name, value in values.items()}


def _message(row: Row[Any]) -> Message:
    return Message(
        id=row.id,
        seq=row.seq,
        turn_id=row.turn_id,
        role=row.role,
        content=orjson.loads(row.content) if row.role == "tool" else row.content,
        created_at=row.created_at,
        tool_calls=tuple(RequestedCall(**call) for call in row.tool_calls or ()),
        tool_call_id=row.tool_call_id,
    )


_APPEND = insert_message(
    update(sessions)
    .where(sessions.c.id == NEW_MESSAGE["session_id"])
    .values(next_seq=sessions.c.next_seq + 1)
    .returning((sessions.c.next_seq - 1).label("seq"))
    .cte("allocated")
)
_WINDOW = (
    select(messages)
    .where(
        messages.c.session_id == bindparam("at_session"),
        messages.c.turn_seq > bindparam("after"),
        messages.c.turn_seq <= bindparam("up_to"),
    )
    .order_by(messages.c.turn_seq.desc(), messages.c.seq.desc())
    .limit(bindparam("at_most"))
)
