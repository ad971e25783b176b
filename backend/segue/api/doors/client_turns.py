"""The turn that a client's request stands for, of clients that send the conversation with every message, and retry.

A conversation that the client names is its session; without a name its earlier messages find it. A turn that begins
here has an idempotency key made of what was asked, and the names of a session lead to it: of the client's, and of all
that was said. So the same request is the same turn until the session's next one begins, and nothing else is kept.

Files that come as parts of a message: each is stored as a file of the session, as an upload is.

Only what is in the request is read; nothing is fetched.
"""

import asyncio
import binascii
import hashlib
from base64 import b64decode
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final
from urllib.parse import unquote_to_bytes

from sqlalchemy import Row
from sqlalchemy.ext.asyncio import AsyncConnection
from starlette.exceptions import HTTPException

from segue.api.chat import Asking
from segue.api.doors.clients import NameTaken, find_session, make_session, with_agent
from segue.domain.errors import AppError, InvalidRequest
from segue.domain.session import MAX_ATTACHMENTS, Message, Session
from segue.history.imports import Said
from segue.memory.history import final_messages
from segue.memory.session_store import find_named, name_session
from segue.turns.admission import Admitted
from segue.turns.branches import opening_after
from segue.turns.queries import find_turn, last_in_history, turn_after, turn_of_key
from segue.turns.store import ChatRequest, once

_KINDS: Final = frozenset(
    {"image_url", "input_image", "file", "input_file", "binary", "image", "document", "audio", "video"}
)


@dataclass(frozen=True, slots=True)
class SentFile:
    """`digest` is of its name and content."""

    name: str
    content: bytes
    digest: str


def is_file(part: object) -> bool:
    return isinstance(part, dict) and isinstance(kind := part.get("type"), str) and kind in _KINDS


async def sent_files(content: object) -> tuple[SentFile, ...]:
    """Returns the files among the parts of a message. Raises AppError `invalid_request`, `parts_unsupported`."""
    parts = [part for part in content if is_file(part)] if isinstance(content, list) else []
    if len(parts) > MAX_ATTACHMENTS:
        raise InvalidRequest(f"A message has at most {MAX_ATTACHMENTS} files.")
    return await asyncio.to_thread(_read, parts) if parts else ()


async def with_files(asking: Asking, session_id: str, request: ChatRequest, files: Sequence[SentFile]) -> ChatRequest:
    """Stores the files with the message, unless its turn has been accepted before: a request that comes again stores
    none twice. Raises what an upload raises.
    """
    if not files:
        return request
    services, caller = asking.services, asking.caller
    if request.once is not None:
        async with services.database.read_only() as connection:
            if await turn_of_key(connection, caller, session_id, request.once.key) is not None:
                return request
    stored, attachments = [], services.attachments
    for file in files:
        if len(file.content) > services.settings.attachment_max_bytes:
            raise HTTPException(413, f"A file is larger than {services.settings.attachment_max_bytes} bytes.")
        async with attachments.places:
            stored.append(await attachments.add(caller, session_id, file.name, file.content, again=True))
    return replace(request, attachment_ids=tuple(each.id for each in stored))


def _read(parts: Sequence[dict[str, Any]]) -> tuple[SentFile, ...]:
    files = []
    for part in parts:
        name, content = _file_name(part), _content(part)
        digest = hashlib.sha256(b"%d:%b%b" % (len(name), name.encode(), content)).hexdigest()
        files.append(SentFile(name, content, digest))
    return tuple(files)


def _file_name(part: dict[str, Any]) -> str:
    about = part["file"] if isinstance(part.get("file"), dict) else part
    name = about.get("filename")
    return name if isinstance(name, str) else ""


def _content(part: dict[str, Any]) -> bytes:
    match part:
        case (
            {"type": "image_url", "image_url": {"url": str(given)}}
            | {"type": "input_image", "image_url": str(given)}
            | {"type": "file", "file": {"file_data": str(given)}}
            | {"type": "input_file", "file_data": str(given)}
            | {"type": "file", "url": str(given)}
            | {"type": "binary", "data": str(given)}
            | {"source": {"type": "data", "value": str(given)}}
        ):
            return _decoded(given)
    raise parts_unsupported(f"The part of the type {part['type']!r} has no file in it.")


def _decoded(given: str) -> bytes:
    """`given` is a `data:` URL, or base64."""
    head, comma, rest = given.partition(",")
    if comma and head.lower().startswith("data:"):
        if not head.lower().endswith(";base64"):
            return unquote_to_bytes(rest)
    elif ":" in head:
        raise parts_unsupported("A part names a file elsewhere.")
    try:
        return b64decode(rest if comma else given, validate=True)
    except (binascii.Error, ValueError):
        raise InvalidRequest("The content of a file is not valid base64.") from None


def parts_unsupported(why: str) -> AppError:
    detail = f"Nothing was accepted: {why} Send text, and files in the message as `data:` URLs: nothing is fetched."
    return AppError("parts_unsupported", status=422, title="A part of the message cannot be read", detail=detail)


_BEGINNING = 0


@dataclass(frozen=True, slots=True)
class AskedTurn:
    """A message as a client sent it, which is the `count`-th of the user's. `earlier` returns what was said before.

    `client_id` is what the client calls the conversation. `after` is the turn it goes on after; `parent_id` is the
    same, as the `message_id` that the client gave that turn, empty for the beginning. None if the client does not say.
    `is_retry`: the client says that it has asked this before.
    """

    text: str
    count: int
    earlier: Callable[[], Sequence[Said]]
    agent: str
    client_id: str | None = None
    after: str | None = None
    message_id: str | None = None
    parent_id: str | None = None
    is_retry: bool = False
    files: tuple[SentFile, ...] = ()
    stream: bool = False

    @property
    def digests(self) -> tuple[str, ...]:
        return tuple(file.digest for file in self.files)


async def begin(asking: Asking, asked: AskedTurn) -> Admitted:
    """Accepts the message as a turn, or returns the one it was accepted as before. Raises what `accept` and
    `with_files` raise.
    """
    services, caller = asking.services, asking.caller
    services.agents.check(asked.agent, caller, asking.origin.groups, status=404)
    while True:
        try:
            if asked.client_id is None:
                session, request = await _by_history(asking, asked)
            else:
                found = await find_session(services, caller, asked.client_id)
                found = found or await _named_now(asking, asked, asked.client_id)
                session, request = await _in_session(asking, found, asked)
            break
        except NameTaken:  # by the same request, just now: it is found
            continue
    await with_agent(services, caller, session, asked.agent)
    request = await with_files(asking, session.id, request, asked.files)
    return await services.turns.accept(caller, session.id, request)


async def _named_now(asking: Asking, asked: AskedTurn, client_id: str) -> Session:
    """The client names a conversation for the first time, which may have begun without a name."""
    services, caller = asking.services, asking.caller
    history = await _history(asked)
    async with services.database.read_only() as connection:
        found = await find_named(connection, caller, history.was_asked) if history.said else None
        if found is not None and not await _ends_with(connection, found, history):
            found = None
    if found is None:
        return await make_session(
            services, caller, {client_id: None}, agent=asked.agent, said=history.said, key=history.was_asked
        )
    async with services.database.autocommit() as connection:
        if not await name_session(connection, caller, client_id, found.id):
            raise NameTaken
    return found


async def _in_session(asking: Asking, session: Session, asked: AskedTurn) -> tuple[Session, ChatRequest]:
    """The client has named the session: only the last message is new."""
    caller = asking.caller
    given = (str(asked.count), asked.agent, asked.after or "", asked.parent_id or "", asked.text, *asked.digests)
    key = f"door:message:{_digest(asked.message_id)}" if asked.message_id else f"door:asked:{_digest(*given)}:"
    async with asking.services.database.read_only() as connection:
        if not asked.message_id:
            last = await last_in_history(connection, session.id)
            is_same = last is not None and str(last.idempotency_key).startswith(key)
            key = last.idempotency_key if last is not None and is_same else f"{key}{last.id if last else ''}"
        request = _request(asking, asked, key)
        if await turn_of_key(connection, caller, session.id, key) is not None:
            return session, request
        place = await _place(connection, caller, session.id, asked)
        if place is not None and place.branch is None:
            instead_of = await opening_after(connection, session.id, place.seq)
            if instead_of is not None and (
                answered := await _answer_shown(connection, caller, session.id, asked, place)
            ):
                instead_of = await opening_after(connection, session.id, answered)
            return session, _request(asking, asked, key, instead_of=instead_of)
    if place is None or asked.client_id is None:
        return session, request
    # The client shows what has left the history here: that conversation goes on in a session of its own.
    history = await _history(asked)
    names = {asked.client_id: session.id}
    made = await make_session(
        asking.services, caller, names, agent=asked.agent, said=history.said, key=history.was_asked
    )
    return made, request


@dataclass(frozen=True, slots=True)
class _Place:
    seq: int
    turn_id: str | None = None
    branch: str | None = None


async def _place(connection: AsyncConnection, caller: str, session_id: str, asked: AskedTurn) -> _Place | None:
    """Returns the turn that the message goes on after; None if the client does not say, or names none of ours."""
    if asked.after is not None:
        return _Place((await find_turn(connection, caller, session_id, asked.after)).turn_seq, asked.after)
    if not asked.parent_id:
        return _Place(_BEGINNING) if asked.parent_id == "" else None
    key = f"door:message:{_digest(asked.parent_id)}"
    found = await turn_of_key(connection, caller, session_id, key)
    return _Place(found.seq, found.id, found.branch) if found is not None else None


async def _answer_shown(
    connection: AsyncConnection, caller: str, session_id: str, asked: AskedTurn, place: _Place
) -> int | None:
    """Returns the seq of the turn after this place if the client shows its answer, None if it is to be said anew.

    Asked for another version of an answer («More Concise»), Open WebUI shows it with what the user wants of it behind
    it, but names the turn before that answer.
    """
    if asked.parent_id is None or not (shown := (await _history(asked)).answer):
        return None
    following = await turn_after(connection, session_id, place.turn_id)
    answers = await final_messages(connection, [each for each in (place.turn_id, following) if each is not None])
    is_of = [turn_id for turn_id, answer in answers.items() if _is_told(shown, answer)]
    if following is None or is_of != [following]:
        return None
    return (await find_turn(connection, caller, session_id, following)).turn_seq


async def _by_history(asking: Asking, asked: AskedTurn) -> tuple[Session, ChatRequest]:
    """The conversation is what was said before: the session that has just that, else a new one that begins with it."""
    services, caller = asking.services, asking.caller
    history = await _history(asked)
    key = ":".join((history.is_asked, asked.agent, *asked.digests))
    async with services.database.read_only() as connection:
        known = await find_named(connection, caller, history.is_asked)
        found = known
        if found is None and history.said:
            found = await find_named(connection, caller, history.was_asked)
        if found is not None and not await _goes_on(connection, found, asked, history, key):
            found = None
    names = {history.is_asked: known.id if known is not None else None}
    if found is None:
        found = await make_session(services, caller, names, agent=asked.agent, said=history.said, key=history.was_asked)
    elif found is not known:
        async with services.database.autocommit() as connection:
            if not await name_session(connection, caller, history.is_asked, found.id):
                raise NameTaken
    return found, _request(asking, asked, key)


async def _goes_on(
    connection: AsyncConnection, session: Session, asked: AskedTurn, history: "_History", key: str
) -> bool:
    """Whether the session has what was said and nothing more, or its last turn is this very request."""
    last = await last_in_history(connection, session.id)
    if last is None:
        return not history.said
    if last.idempotency_key == key:
        return bool(history.said) or asked.is_retry or _may_be_retried(last)
    return await _ends_with(connection, session, history)


async def _ends_with(connection: AsyncConnection, session: Session, history: "_History") -> bool:
    """Whether the last turn of the session is the one that was answered last in what was said."""
    last = await last_in_history(connection, session.id)
    if last is None or not str(last.idempotency_key).startswith(history.was_asked):
        return False
    stored = (await final_messages(connection, [last.id])).get(last.id)
    return stored is None or _is_told(history.answer, stored)


def _is_told(answer: str, stored: Message) -> bool:
    """Whether this is the stored answer, with what was said before the tools, or not read to its end."""
    told, kept = _plain(answer), _plain(str(stored.content))
    return told.endswith(kept) or kept.startswith(told)


def _may_be_retried(turn: Row[Any]) -> bool:
    """A conversation of one message that has its answer may also be another that begins alike."""
    return turn.status in ("queued", "running") or (turn.status == "failed" and bool(turn.error["retryable"]))


def _request(asking: Asking, asked: AskedTurn, key: str, *, instead_of: str | None = None) -> ChatRequest:
    return ChatRequest(
        asked.text,
        once=once(key, asked.text, *asked.digests),
        stream=asked.stream,
        origin=asking.origin,
        instead_of=instead_of,
    )


@dataclass(frozen=True, slots=True)
class _History:
    """What was `said` before, and its last `answer`. `is_asked` is a name of the conversation as it is with the new
    message, `was_asked` as it was when the last answer was asked for.
    """

    said: Sequence[Said]
    answer: str
    is_asked: str
    was_asked: str


async def _history(asked: AskedTurn) -> _History:
    return await asyncio.to_thread(_read_history, asked)  # it can have megabytes


def _read_history(asked: AskedTurn) -> _History:
    said = [each for each in asked.earlier() if each.text.strip()]
    digest = hashlib.sha256()
    was_asked, answers = _history_name(digest), list[str]()
    for each in said:
        _add(digest, each.role, _plain(each.text))
        answers.append(each.text)
        if each.role == "user":
            was_asked, answers = _history_name(digest), []
    _add(digest, "user", _plain(asked.text))
    return _History(said, "\n\n".join(answers), is_asked=_history_name(digest), was_asked=was_asked)


def _history_name(digest: "hashlib._Hash") -> str:
    return f"history:{digest.hexdigest()}"


def _plain(text: str) -> str:
    return " ".join(text.split())


def _digest(*parts: str) -> str:
    digest = hashlib.sha256()
    _add(digest, *parts)
    return digest.hexdigest()


def _add(digest: "hashlib._Hash", *parts: str) -> None:
    for part in parts:
        encoded = part.encode()
        digest.update(b"%d:%b" % (len(encoded), encoded))
