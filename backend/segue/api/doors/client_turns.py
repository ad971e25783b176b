"""The turn that a client's request stands for, of clients that send the conversation with every message, and retry.

A conversation is found by its name, or else by its earlier messages. A turn's idempotency key says what was asked.
"""

import asyncio
import hashlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from sqlalchemy import Row

from segue.api.attachments import SentFile
from segue.api.chat import Client
from segue.api.doors.every_door import agent_of, find_session, say, with_agent
from segue.api.sessions import NameTaken, make_session
from segue.db.engine import Connection
from segue.db.redis_keys import turn_heard_key
from segue.domain.session import NO_OPTIONS, Message, Session, TurnKey, TurnOptions
from segue.history.fork_and_import import Said
from segue.memory.history import final_messages
from segue.memory.session_store import find_named, name_session
from segue.turns.admission import Admitted
from segue.turns.branches import opening_after
from segue.turns.chat_request import ChatRequest, once
from segue.turns.queries import find_turn, last_in_history, turn_after, turn_of_key

# What a client says of a request: its own id of the message, and how often it has sent it before.
MESSAGE_ID_HEADER: Final = "x-openwebui-message-id"
RETRY_HEADER: Final = "x-stainless-retry-count"
RETRIED_S: Final = 60  # how long after its answer a request that says nothing may be one that comes again


@dataclass(frozen=True, slots=True)
class SentMessage:
    """A message as a client sent it, which is the `count`-th of the user's. `earlier` returns what was said before.

    `client_id` is what the client calls the conversation. `after` is the turn it goes on after; `parent_id` is the
    same, as the `message_id` that the client gave that turn, empty for the beginning. `is_retry`: whether it has asked
    this before. None if the client does not say.
    """

    text: str
    count: int
    earlier: Callable[[], Sequence[Said]]
    agent: str
    client_id: str | None = None
    after: str | None = None
    message_id: str | None = None
    parent_id: str | None = None
    is_retry: bool | None = None
    files: tuple[SentFile, ...] = ()
    stream: bool = False
    options: TurnOptions = NO_OPTIONS

    @property
    def digests(self) -> tuple[str, ...]:
        """Of what is sent with the text, but what a frontend found, which may be another thing each time. A client that
        names its messages may ask the same with other options.
        """
        options = () if self.message_id else self.options.fingerprint
        return (*(file.digest for file in self.files if file.digest), *map(_digest, options))


@dataclass(frozen=True, slots=True)
class _History:
    """What was `said` before, and its last `answer`. `name` is one of the conversation as it is with the new message,
    `name_before` as it was with the message before.
    """

    said: Sequence[Said]
    answer: str
    name: str
    name_before: str


async def begin(client: Client, sent: SentMessage) -> Admitted:
    """Accepts the message as a turn, or returns the one it was accepted as before. Raises what `say` raises."""
    agent_of(client, sent.agent)
    while True:
        with suppress(NameTaken):  # by the same request, just now: it is found
            if sent.client_id is None:
                session, request = await _by_history(client, sent)
            else:
                found = await find_session(client, sent.client_id) or await _named_now(client, sent, sent.client_id)
                session, request = await _in_session(client, found, sent)
            await with_agent(client, session, sent.agent)
            return await say(client, session.id, request, sent.files)


async def _named_now(client: Client, sent: SentMessage, client_id: str) -> Session:
    """The client names a conversation for the first time, which may have begun without a name."""
    services, caller = client.services, client.caller
    history = await _history(sent)
    async with services.database.read_only() as connection:
        found = await find_named(connection, caller, history.name_before) if history.said else None
        last = await last_in_history(connection, found.id) if found is not None else None
        if last is None or not await _ends_with(connection, last, history):
            found = None
    return await _named(client, sent, history, found, client_id, instead_of=None)


async def _in_session(client: Client, session: Session, sent: SentMessage) -> tuple[Session, ChatRequest]:
    """The client has named the session: only the last message is new."""
    caller = client.caller
    key = await _key_in(client, session, sent)
    request = _request(sent, key)
    async with client.services.database.read_only() as connection:
        if await turn_of_key(connection, caller, session.id, key) is not None:
            return session, request
        place = await _place(connection, caller, session.id, sent)
        if place is not None and place.branch is None:
            instead_of = await opening_after(connection, session.id, place.seq)
            if instead_of is not None and (shown := await _answer_shown(connection, caller, session.id, sent, place)):
                instead_of = await opening_after(connection, session.id, shown)
            return session, _request(sent, key, instead_of=instead_of)
    if place is None or sent.client_id in (None, session.id):  # a session's own id cannot become another's name
        return session, request
    # The client shows what has left the history here: that conversation goes on in a session of its own.
    return await _named(client, sent, await _history(sent), None, sent.client_id, instead_of=session.id), request


async def _key_in(client: Client, session: Session, sent: SentMessage) -> str:
    """Returns the key of the turn that the message is: of the last one, if it is that one's and comes again."""
    if client.idempotency_key is not None:
        return client.idempotency_key
    if sent.message_id:
        return f"door:message:{_digest(sent.message_id)}"
    given = (str(sent.count), sent.agent, sent.after or "", sent.parent_id or "", sent.text, *sent.digests)
    prefix = f"door:asked:{_digest(*given)}:"
    last = await client.services.read(last_in_history, session.id)
    if last is None:
        return prefix
    key = str(last.idempotency_key)
    return key if key.startswith(prefix) and await _comes_again(client, sent, last) else f"{prefix}{last.id}"


async def _comes_again(client: Client, sent: SentMessage, last: Row[Any]) -> bool:
    """Whether a message that says what the last turn was asked is the same request. If the client does not tell, it is
    while the turn runs, and for RETRIED_S after one whose answer no client has read.
    """
    if client.idempotency_key is not None:
        return True
    if sent.is_retry is not None or last.finished_at is None:
        return sent.is_retry is not False
    services = client.services
    if last.status == "cancelled" or services.clock() - last.finished_at > timedelta(seconds=RETRIED_S):
        return False
    failed_for_now = last.status == "failed" and bool(last.error["retryable"])
    return failed_for_now or await services.cache.get_json(turn_heard_key(last.id)) is None


async def note_heard(client: Client, turn: TurnKey) -> None:
    """Remembers for a while that the client has the answer, unless it will tell itself what it asks again."""
    is_told = client.idempotency_key or any(client.http.headers.get(name) for name in (RETRY_HEADER, MESSAGE_ID_HEADER))
    if not is_told:
        await client.services.cache.set_json(turn_heard_key(turn.turn_id), 1, ttl_s=RETRIED_S)


async def _named(
    client: Client, sent: SentMessage, history: _History, found: Session | None, name: str, *, instead_of: str | None
) -> Session:
    """Returns the session found, now of this name, or a new one that takes it from `instead_of`. Raises NameTaken."""
    if found is None:
        names = {name: instead_of}
        return await make_session(client, names, agent=sent.agent, said=history.said, key=history.name_before)
    if not await client.services.database.write(name_session, client.caller, name, found.id):
        raise NameTaken
    return found


@dataclass(frozen=True, slots=True)
class _Place:
    seq: int
    turn_id: str | None = None
    branch: str | None = None


async def _place(connection: Connection, caller: str, session_id: str, sent: SentMessage) -> _Place | None:
    """Returns the turn that the message goes on after; None if the client does not say, or names none of ours."""
    if sent.after is not None:
        turn = await find_turn(connection, caller, session_id, sent.after, goes_on=True)
        return _Place(turn.turn_seq, sent.after)
    if not sent.parent_id:
        return _Place(0) if sent.parent_id == "" else None  # the beginning
    found = await turn_of_key(connection, caller, session_id, f"door:message:{_digest(sent.parent_id)}")
    return _Place(found.seq, found.id, found.branch) if found is not None else None


async def _answer_shown(
    connection: Connection, caller: str, session_id: str, sent: SentMessage, place: _Place
) -> int | None:
    """Returns the seq of the turn after this place if the client shows its answer, None if it is to be said anew. Asked
    for another version of an answer («More Concise»), Open WebUI shows it with what the user wants of it behind it, but
    names the turn before that answer.
    """
    if sent.parent_id is None or not (shown := (await _history(sent)).answer):
        return None
    following = await turn_after(connection, session_id, place.turn_id)
    answers = await final_messages(connection, [each for each in (place.turn_id, following) if each is not None])
    is_of = [turn_id for turn_id, answer in answers.items() if _is_same_answer(shown, answer)]
    if following is None or is_of != [following]:
        return None
    return (await find_turn(connection, caller, session_id, following)).turn_seq


async def _by_history(client: Client, sent: SentMessage) -> tuple[Session, ChatRequest]:
    """The conversation is what was said before: the session that has just that, else a new one that begins with it."""
    services, caller = client.services, client.caller
    history = await _history(sent)
    key = ":".join((history.name, sent.agent, *sent.digests))
    if client.idempotency_key is not None:
        key = f"{key}:{_digest(client.idempotency_key)}"
    async with services.database.read_only() as connection:
        known = await find_named(connection, caller, history.name)
        found = known
        if found is None and history.said:
            found = await find_named(connection, caller, history.name_before)
        last = await last_in_history(connection, found.id) if found is not None else None
        goes_on = last is not None and await _ends_with(connection, last, history)
    if last is None:
        goes_on = not history.said and sent.is_retry is not False
    elif last.idempotency_key == key:
        goes_on = await _comes_again(client, sent, last)
    if found is None or not goes_on or found is not known:
        before = known.id if known is not None else None
        found = await _named(client, sent, history, found if goes_on else None, history.name, instead_of=before)
    return found, _request(sent, key)


async def _ends_with(connection: Connection, last: Row[Any], history: _History) -> bool:
    """Whether the last turn of a session is the one that was answered last in what was said."""
    if not str(last.idempotency_key).startswith(history.name_before):
        return False
    stored = (await final_messages(connection, [last.id])).get(last.id)
    return stored is None or _is_same_answer(history.answer, stored)


def _is_same_answer(answer: str, stored: Message) -> bool:
    """Whether this is the stored answer, with what was said before the tools, or not read to its end."""
    shown, kept = _plain(answer), _plain(str(stored.content))
    return shown.endswith(kept) or kept.startswith(shown)


def _request(sent: SentMessage, key: str, *, instead_of: str | None = None) -> ChatRequest:
    known = once(key, sent.text, *sent.digests)
    return ChatRequest(sent.text, once=known, stream=sent.stream, instead_of=instead_of, options=sent.options)


async def _history(sent: SentMessage) -> _History:
    return await asyncio.to_thread(_read_history, sent)  # it can have megabytes


def _read_history(sent: SentMessage) -> _History:
    messages = [each for each in sent.earlier() if each.text.strip()]
    digest = hashlib.sha256()
    name_before, answers = _history_name(digest), list[str]()
    for each in messages:
        _add(digest, each.role, _plain(each.text))
        answers.append(each.text)
        if each.role == "user":
            name_before, answers = _history_name(digest), []
    _add(digest, "user", _plain(sent.text))
    return _History(messages, "\n\n".join(answers), name=_history_name(digest), name_before=name_before)


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
