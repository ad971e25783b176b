"""The stored conversation: messages in, a window of them out that every model provider accepts. Owns the table
`messages`. A tool message holds the reference to its result, so the window of a turn is one range of one index.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from itertools import accumulate, groupby
from typing import Any, Final, Literal, get_args

import orjson
import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY, distinct_on

from segue.db.engine import Connection
from segue.db.models import QUEUED, messages, sessions, turns
from segue.db.rows import opaque_of, readable, reader, without_defaults
from segue.domain.errors import existing
from segue.domain.ids import is_id, new_id, read_json
from segue.domain.session import WRITTEN_BY, Attached, Message, RequestedCall, Role, TurnKey, UnreadableMessage
from segue.domain.tool import CallStatus
from segue.language.utterance import own_words
from segue.memory.history_window import provider_valid

_SPEAKERS: Final[tuple[Role, ...]] = ("user", "assistant")
MAX_SEQ = 2**63 - 1
STEERED = "steered"  # in the metadata of a message that came while its turn ran
BY_PROGRAM = "by_program"  # in that of one in which a program speaks in the user's place
IN_HISTORY = messages.c.branch.is_(None)
SHOWN = [column for column in messages.c if column.name != "opaque"]
NEW_MESSAGE_COLUMNS = {
    column.name: sa.bindparam(f"new_{column.name}", type_=column.type)
    for column in messages.c
    if column.name not in ("seq", "branch", "left_at")
}


def next_seq(session_id: sa.ColumnElement[str], **values: Any) -> sa.CTE:
    """Returns a part of a statement that takes the next `seq` of a session, and sets `values` in its row."""
    taken = sa.update(sessions).where(sessions.c.id == session_id).values(next_seq=sessions.c.next_seq + 1, **values)
    return taken.returning((sessions.c.next_seq - 1).label("seq")).cte("allocated")


def insert_message(allocated: sa.CTE, *, opens_turn: bool = False) -> sa.Insert:
    """Returns a statement that stores NEW_MESSAGE_COLUMNS under the `seq` of `allocated`. To be built once."""
    columns: dict[str, sa.ColumnElement[Any]] = dict(NEW_MESSAGE_COLUMNS)
    if opens_turn:
        columns["turn_seq"] = allocated.c.seq
    return sa.insert(messages).from_select(["seq", *columns], sa.select(allocated.c.seq, *columns.values()))


@dataclass(frozen=True, slots=True)
class NewMessage:
    """A message to store. It has an `id` if it has been shown under one already.

    `opaque` has the parts that the provider wants back with the message: `by` names the endpoint and model that made
    them. `note` goes to the model with it: of an answer, that the service wrote it. `attachments` are the files that it
    carries. One `by_program` is none of the user's.
    """

    role: Role
    content: str | dict[str, Any]
    created_at: datetime
    id: str | None = None
    tool_calls: Sequence[RequestedCall] = ()
    tool_call_id: str | None = None
    opaque: Mapping[str, Any] | None = None
    cut_off: bool = False
    note: str | None = None
    attachments: Sequence[Attached] = ()
    by_program: bool = False


def message_values(turn: TurnKey, message: NewMessage) -> dict[str, Any]:
    """Returns the parameters of a statement of `insert_message`."""
    ids = {"session_id": turn.session_id, "turn_id": turn.turn_id, "turn_seq": turn.turn_seq}
    values = ids | {name: getattr(message, name) for name in NewMessage.__slots__}
    values["id"] = message.id or new_id("msg", message.created_at)
    values["tool_calls"] = message.tool_calls or None
    values["attachments"] = message.attachments or None
    if not isinstance(message.content, str):
        values["content"] = orjson.dumps(message.content).decode()
    return {NEW_MESSAGE_COLUMNS[name].key: value for name, value in values.items()}


_APPEND = insert_message(next_seq(NEW_MESSAGE_COLUMNS["session_id"]))


async def append_message(connection: Connection, turn: TurnKey, message: NewMessage) -> str:
    """Stores a message under the session's next seq and returns its id."""
    values = message_values(turn, message)
    await connection.execute(_APPEND, values)
    message_id: str = values[NEW_MESSAGE_COLUMNS["id"].key]
    return message_id


async def replace_result(connection: Connection, tool_call_id: str, reference: Mapping[str, Any]) -> None:
    """Stores another reference in the message that answers a call: its outcome is known now."""
    content = orjson.dumps(reference).decode()
    await connection.execute(sa.update(messages).where(messages.c.tool_call_id == tool_call_id).values(content=content))


_MOVE = (
    sa.update(messages)
    .where(messages.c.turn_id == sa.bindparam("of_turn"), messages.c.role == "user")
    .values(
        seq=next_seq(sa.bindparam("at_session"), gaps=sessions.c.gaps + 1).select().scalar_subquery(),
        turn_id=sa.bindparam("to_turn"),
        turn_seq=sa.bindparam("to_turn_seq"),
    )
    .returning(*SHOWN)
)


async def move_message(connection: Connection, turn_id: str, to: TurnKey) -> Message:
    """Makes the user's message of a turn the newest message of another turn of its session, and returns it."""
    values = {"at_session": to.session_id, "of_turn": turn_id, "to_turn": to.turn_id, "to_turn_seq": to.turn_seq}
    [moved] = await _read(connection, _MOVE, values)
    return moved


_OPAQUE_BYTES = sa.func.octet_length(sa.cast(messages.c.opaque, sa.Text))
_IS_OWN = messages.c.opaque["by"].astext == sa.any_(sa.bindparam("made_by", type_=ARRAY(sa.Text)))
_WINDOW = (
    sa.select(*SHOWN, sa.case((_IS_OWN, _OPAQUE_BYTES)).label("opaque_bytes"))
    .where(messages.c.session_id == sa.bindparam("at_session"), IN_HISTORY)
    .where(messages.c.turn_seq > sa.bindparam("after"), messages.c.turn_seq <= sa.bindparam("up_to"))
    .order_by(messages.c.turn_seq.desc(), messages.c.seq.desc())
    .limit(sa.bindparam("at_most"))
)


async def forget_opaque(connection: Connection, session_id: str) -> None:
    """Drops the opaque parts of a session's messages, since they can no longer be verified."""
    conditions = (messages.c.session_id == session_id, messages.c.opaque.is_not(None))
    await connection.execute(sa.update(messages).where(*conditions).values(opaque=sa.null()))


@dataclass(frozen=True, slots=True)
class StoredWindow:
    """`opaque` is by message id. `is_whole` says that no message was left out for the `limit`."""

    messages: list[Message]
    opaque: Mapping[str, Mapping[str, Any]]
    is_whole: bool


async def load_window(
    connection: Connection, turn: TurnKey, *, after: int, limit: int, made_by: Sequence[str], opaque_bytes: int
) -> StoredWindow:
    """Returns the last `limit` messages of the turns from behind `after` to this one, in the order of `provider_valid`.
    They are in the order of turns, not of arrival: a question that came while another ran follows the other's answer.
    Opaque parts come with them if `made_by` made them, the newest first, up to `opaque_bytes` together.
    """
    bounds = {"at_session": turn.session_id, "after": after, "up_to": turn.turn_seq, "at_most": limit}
    newest_first = (await connection.execute(_WINDOW, {**bounds, "made_by": list(made_by)})).mappings().all()
    sizes = [row["opaque_bytes"] or 0 for row in newest_first]
    these = zip(newest_first, sizes, accumulate(sizes), strict=True)
    ids = [row["id"] for row, size, so_far in these if size and so_far <= opaque_bytes]
    opaque: dict[str, Mapping[str, Any]] = {}
    if ids:
        kept = sa.select(messages.c.id, messages.c.opaque).where(messages.c.id.in_(ids))
        parts = ((row.id, opaque_of(row.opaque, "messages", row.id)) for row in await connection.execute(kept))
        opaque = {message_id: read for message_id, read in parts if read}
    rows = await _with_opening(connection, turn.session_id, newest_first[::-1])
    return StoredWindow(provider_valid(list(map(_message, rows))), opaque, is_whole=len(newest_first) < limit)


async def _with_opening(
    connection: Connection, session_id: str, rows: Sequence[sa.RowMapping]
) -> Sequence[sa.RowMapping]:
    """A window that starts inside a turn gets the user's message of that turn, or starts at the next turn."""
    if not rows or rows[0]["seq"] == rows[0]["turn_seq"]:
        return rows
    first, rest = rows[0], rows[1:]
    if rest and rest[0]["turn_seq"] != first["turn_seq"]:
        return rest
    opening = sa.select(*SHOWN).where(messages.c.session_id == session_id, messages.c.seq == first["turn_seq"])
    return [(await connection.execute(opening)).mappings().one(), *rest]


async def load_turns(
    connection: Connection, session_id: str, *, after: int, up_to: int, limit: int
) -> list[list[Message]]:
    """Returns the oldest turns behind `after` up to `up_to`, whole unless the first alone exceeds `limit` messages."""
    history = sa.select(*SHOWN).where(messages.c.session_id == session_id, IN_HISTORY)
    between = history.where(messages.c.turn_seq > after, messages.c.turn_seq <= up_to)
    statement = between.order_by(messages.c.turn_seq, messages.c.seq).limit(limit)
    rows = (await connection.execute(statement)).mappings().all()
    turns = [provider_valid(list(map(_message, turn))) for _, turn in groupby(rows, key=lambda row: row["turn_seq"])]
    return list(filter(None, turns[:-1] if len(rows) == limit and len(turns) > 1 else turns))


async def list_messages(
    connection: Connection,
    owner: str,
    session_id: str,
    *,
    after: int = 0,
    before: int = MAX_SEQ,
    limit: int,
    newest_first: bool = False,
    branch: str | None = None,
) -> list[Message]:
    """Returns the messages between two seqs, of the history or a `branch`; none if another owner's."""
    between = _owned(owner, session_id).where(messages.c.seq > after, messages.c.seq < before)
    between = between.where(messages.c.branch.is_not_distinct_from(branch))
    ordered = between.order_by(messages.c.seq.desc() if newest_first else messages.c.seq)
    return await _read(connection, ordered.limit(limit))


async def messages_around(
    connection: Connection,
    owner: str,
    session_id: str,
    named: str,
    *,
    limit: int,
    newest_first: bool,
    branch: str | None,
) -> tuple[list[Message], bool, bool]:
    """Returns the messages around one, or around the first of a turn, and whether there are more before and behind them
    in this order. Raises NotFound if the history, or the `branch`, has neither message nor turn of this id.
    """
    place = _owned(owner, session_id).with_only_columns(sa.func.min(messages.c.seq))
    place = place.where((messages.c.turn_id if is_id("turn", named) else messages.c.id) == named)
    seq = existing("message", await connection.scalar(place.where(messages.c.branch.is_not_distinct_from(branch))))
    above, below = limit // 2, limit - limit // 2
    listed = partial(list_messages, connection, owner, session_id, branch=branch)
    older = await listed(before=seq, limit=above + 1, newest_first=True)
    newer = await listed(after=seq - 1, limit=below + 1)
    found, has_older, has_newer = [*older[:above][::-1], *newer[:below]], len(older) > above, len(newer) > below
    return (found[::-1], has_newer, has_older) if newest_first else (found, has_older, has_newer)


async def check_branch(connection: Connection, session_id: str, branch: str) -> None:
    """Raises NotFound if the session has no such branch."""
    of_branch = sa.select(messages.c.id).where(messages.c.session_id == session_id, messages.c.branch == branch)
    existing("branch", await connection.scalar(of_branch.limit(1)))


async def get_message(connection: Connection, owner: str, session_id: str, message_id: str) -> Message:
    """Raises NotFound if the message is missing, in another session or another owner's."""
    statement = _owned(owner, session_id).where(messages.c.id == message_id)
    return _message(existing("message", (await connection.execute(statement)).mappings().one_or_none()))


def said_by_user(message: Message) -> str:
    """Returns the user's own words in a message, to the letter: not a program's, and none that they quote."""
    return own_words(str(message.content)) if message.role == "user" and BY_PROGRAM not in message.metadata else ""


async def recent_texts(
    connection: Connection, owner: str, session_id: str, *, limit: int, roles: Sequence[Role] = _SPEAKERS
) -> list[Message]:
    """Returns the last messages of the user and the assistant in a session, newest first. A message whose turn still
    waits does not count yet: nothing in it agrees to, or asks for, an act of the turn before it.
    """
    waits = sa.exists().where(turns.c.id == messages.c.turn_id, turns.c.status == QUEUED)
    statement = _owned(owner, session_id).where(IN_HISTORY, messages.c.role.in_(roles), ~waits)
    return await _read(connection, statement.order_by(messages.c.seq.desc()).limit(limit))


recent_user_messages = partial(recent_texts, limit=10, roles=("user",))


def _owned(owner: str, session_id: str) -> sa.Select[Any]:
    session = sessions.c.id == messages.c.session_id
    return sa.select(*SHOWN).join(sessions, session).where(sessions.c.id == session_id, sessions.c.owner == owner)


async def user_messages_of(connection: Connection, turn_id: str) -> list[Message]:
    """Returns the user's messages in a turn, the one that opened it first; empty if the turn is gone."""
    statement = sa.select(*SHOWN).where(messages.c.turn_id == turn_id, messages.c.role == "user")
    return await _read(connection, statement.order_by(messages.c.seq))


async def opening_messages(connection: Connection, session_ids: Sequence[str]) -> dict[str, list[Message]]:
    """Returns the first message in the history of each of these sessions, if it has one."""
    first = sa.select(*SHOWN).where(messages.c.session_id == sessions.c.id, IN_HISTORY)
    found = first.order_by(messages.c.seq).limit(1).correlate(sessions).lateral()
    of_these = sa.select(*found.c).select_from(sessions.join(found, sa.true())).where(sessions.c.id.in_(session_ids))
    return {row["session_id"]: [_message(row)] for row in (await connection.execute(of_these)).mappings()}


async def answer_before(connection: Connection, session_id: str, turn_seq: int) -> str | None:
    """Returns the assistant's last message to the user before a turn."""
    statement = sa.select(messages.c.content).where(messages.c.session_id == session_id, IN_HISTORY)
    before = statement.where(messages.c.role == "assistant", messages.c.turn_seq < turn_seq)
    newest = before.order_by(messages.c.turn_seq.desc(), messages.c.seq.desc()).limit(1)
    return (await connection.execute(newest)).scalar_one_or_none()


async def final_messages(connection: Connection, turn_ids: Sequence[str]) -> dict[str, Message]:
    """Returns the last assistant message of completed turns, by turn id; none that a later run has replaced."""
    conditions = (messages.c.turn_id.in_(turn_ids), messages.c.role == "assistant", IN_HISTORY | ~messages.c.cut_off)
    last = sa.select(*SHOWN).ext(distinct_on(messages.c.turn_id)).where(*conditions)
    statement = last.order_by(messages.c.turn_id, messages.c.seq.desc())
    return {row["turn_id"]: _message(row) for row in (await connection.execute(statement)).mappings()}


async def last_exchange(connection: Connection, session_id: str) -> tuple[str, str] | None:
    """Returns the user's message and the assistant's answer of the session's last completed turn."""
    last = sa.select(messages.c.content).join(sessions, sessions.c.last_turn_id == messages.c.turn_id)
    statement = last.where(sessions.c.id == session_id, IN_HISTORY).order_by(messages.c.seq)
    contents = (await connection.execute(statement)).scalars().all()
    return (contents[0], contents[-1]) if contents else None


@dataclass(frozen=True, slots=True)
class _Reference:
    """The fields of every reference; INTERRUPTED ones have no more."""

    tool_call_id: str
    tool_name: str
    status: CallStatus
    summary: str
    size_bytes: int = 0
    preview: str = ""
    args: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Said:
    role: Literal["user", "assistant"]
    content: str
    tool_calls: tuple[RequestedCall, ...]
    attachments: tuple[Attached, ...] = ()


@dataclass(frozen=True, slots=True)
class _Told:
    role: Literal["tool"]
    content: _Reference
    tool_calls: tuple[()]


async def _read(
    connection: Connection, statement: sa.Executable, values: Mapping[str, Any] | None = None
) -> list[Message]:
    return list(map(_message, (await connection.execute(statement, values)).mappings().all()))


def _message(row: sa.RowMapping) -> Message:
    """Returns an UnreadableMessage, with its text if it is one, for a row that cannot be read."""
    role, content, calls = row["role"], row["content"], row["tool_calls"] or ()
    metadata: dict[str, Any] = {}
    if row["note"] and role == "user":
        metadata["note"] = row["note"]
    elif row["note"]:
        metadata[WRITTEN_BY] = "service"
    if role == "user" and row["seq"] != row["turn_seq"]:  # it did not open its turn
        metadata[STEERED] = True
    if row["by_program"]:
        metadata[BY_PROGRAM] = True
    make: Callable[..., Message] = Message
    if role not in _SPEAKERS or calls or row["attachments"]:  # else a text, as most are: it can be read
        content = read_json(content) if role == "tool" else content
        columns = {"role": role, "content": content, "tool_calls": calls}
        columns |= {"attachments": row["attachments"]} if row["attachments"] else {}
        kind: type[_Told | _Said] = _Told if role == "tool" else _Said
        read = readable(reader(kind), columns, "messages", row["id"])
        if read is None:
            make = partial(UnreadableMessage, unreadable=True)
            content, calls = "" if role == "tool" else content, ()
            role = role if role in get_args(Role) else "assistant"
        else:
            calls = read.tool_calls
            if isinstance(read, _Said) and read.attachments:
                metadata["attachments"] = [without_defaults(each) for each in read.attachments]
    stored = {name: row[name] for name in ("id", "seq", "turn_id", "created_at", "tool_call_id", "cut_off", "branch")}
    return make(role=role, content=content, tool_calls=calls, metadata=metadata, **stored)
