"""What both of OpenAI's APIs share: a request of theirs, with what frontends add to it, as one message to an agent, and
the stream or the answer of its turn.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from typing import Annotated, Any, Final, Protocol

import orjson
from pydantic import BaseModel, Field
from starlette.requests import Request

from segue.api.chat import ClientRequest
from segue.api.doors.client_turns import SentMessage, is_file, parts_unsupported, sent_files
from segue.api.doors.clients import on_disconnect
from segue.api.doors.turn_reader import Piece, TurnReader
from segue.api.event_streams import EventStream
from segue.api.schemas import MAX_MESSAGE_CHARS
from segue.domain.errors import AppError, InvalidRequest
from segue.domain.field_types import doc
from segue.domain.session import TurnKey
from segue.events.event_buffer import Entry
from segue.history.imports import Said

MAX_MESSAGES: Final = 5000
# Where a client says which conversation it is in: the first that is there counts.
CONVERSATION_HEADERS: Final = ("x-session-id", "x-openwebui-chat-id", "x-conversation-id")
CONVERSATION_METADATA: Final = ("session_id", "thread_id", "conversation_id")
NO_CONVERSATION: Final = frozenset({"", "new", "null"})
NO_CONVERSATION_PREFIX: Final = "local:"  # Open WebUI's temporary chats, all those of one tab
MESSAGE_ID_HEADER: Final = "x-openwebui-message-id"
PARENT_ID_HEADER: Final = "x-openwebui-user-message-parent-id"
RETRY_HEADER: Final = "x-stainless-retry-count"
_ROLES: Final = frozenset({"user", "assistant", "system", "developer", "tool", "function"})
_TEXTS: Final = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}
_RESPONSE: Final = "resp_"

Model = Annotated[str, Field(max_length=200), doc("An agent: one of `GET /v1/models`.")]
MetadataField = Annotated[
    dict[str, Any] | None, doc("`session_id`, `thread_id` or `conversation_id` in it names the conversation.")
]
ConversationField = Annotated[
    str | dict[str, Any] | None, doc("The conversation's id, or an object that has it as `id`.")
]
StreamField = Annotated[bool | None, doc("Answer with events.")]


class CompletionBody(BaseModel):
    """A conversation whose last message is new. Other fields of OpenAI's are taken, and change nothing."""

    model: Model
    messages: Annotated[
        list[dict[str, Any]], Field(min_length=1, max_length=MAX_MESSAGES), doc("The last one is the user's.")
    ]
    stream: StreamField = None
    stream_options: Annotated[
        dict[str, Any] | None, doc("With `include_usage` the last chunk says what the turn took.")
    ] = None
    conversation: ConversationField = None
    metadata: MetadataField = None


class ResponseBody(BaseModel):
    """A message, or a conversation whose last one is new. Other fields of OpenAI's are taken, and change nothing."""

    model: Model
    input: Annotated[
        str | Annotated[list[dict[str, Any]], Field(min_length=1, max_length=MAX_MESSAGES)],
        doc("What the user says, or items of which the last is the user's message."),
    ]
    stream: StreamField = None
    conversation: ConversationField = None
    previous_response_id: Annotated[str | None, doc("The `id` of the response that this goes on from.")] = None
    metadata: MetadataField = None


async def message_of(
    http: Request, messages: Sequence[Mapping[str, Any]], *, agent: str, body: Mapping[str, Any]
) -> SentMessage:
    """`body` may name the conversation. Raises AppError `invalid_request`, `parts_unsupported`, NotFound for a
    `previous_response_id` that is none of ours.
    """
    for message in messages:
        role = message.get("role", "tool")  # items of `input` without a role are a tool's
        if not isinstance(role, str) or role not in _ROLES:
            raise InvalidRequest(f"There is no role {str(role)[:50]!r}: there are {', '.join(sorted(_ROLES))}.")
    spoken = [message for message in messages if message.get("role") in ("user", "assistant")]
    if not spoken or spoken[-1]["role"] != "user":
        raise InvalidRequest("The last message has to be the user's: an answer is not continued, and tools run here.")
    text, files = _text(spoken[-1].get("content"), is_new=True), await sent_files(spoken[-1].get("content"))
    if not text.strip() or len(text) > MAX_MESSAGE_CHARS:
        raise InvalidRequest(f"The last message has to have 1 to {MAX_MESSAGE_CHARS} characters of text.")
    client_id, after = conversation_of(http, body)
    return SentMessage(
        text=text.strip(),
        files=files,
        count=sum(message["role"] == "user" for message in spoken),
        earlier=lambda: [Said(each["role"], _text(each.get("content"))) for each in spoken[:-1]],
        agent=agent,
        client_id=client_id,
        after=after,
        message_id=http.headers.get(MESSAGE_ID_HEADER) or None,
        parent_id=http.headers.get(PARENT_ID_HEADER),
        is_retry=http.headers.get(RETRY_HEADER, "0") != "0",
        stream=bool(body.get("stream")),
    )


def texts(messages: Sequence[Mapping[str, Any]], *roles: str) -> str:
    return "\n\n".join(_text(each.get("content")) for each in messages if each.get("role") in roles)


class Writer(Protocol):
    """Writes an answer, piece by piece, in the events of one of the APIs.

    `interrupted` are the last bytes if this process ends before the turn, `end` those of a stream that is complete.
    """

    interrupted: bytes
    end: bytes

    def begin(self) -> bytes: ...

    def frame(self, piece: Piece) -> bytes: ...


def stream(client: ClientRequest, turn: TurnKey, writer: Writer) -> EventStream:
    """Returns the events of a turn as they happen."""
    frames, options = _frames(client.services.events.follow(turn), writer), on_disconnect(client, turn)
    return EventStream(frames, headers=turn_headers(turn), farewell=writer.interrupted, **options)


async def _frames(parts: AsyncGenerator[Sequence[Entry]], writer: Writer) -> AsyncIterator[bytes]:
    yield writer.begin()
    reader = TurnReader()
    async with aclosing(parts):
        async for entries in parts:
            if frames := b"".join(writer.frame(piece) for entry in entries for piece in reader.read(entry.event)):
                yield frames
    if writer.end:
        yield writer.end


async def answer_of(client: ClientRequest, turn: TurnKey) -> dict[str, Any]:
    """Waits for the end of a turn and returns its ChatAnswer. Raises the AppError the turn ended with."""
    try:
        answer: dict[str, Any] = orjson.loads(await client.services.events.answer(turn))
    except AppError as error:
        raise error.with_extra(session_id=turn.session_id) from None
    return answer


def turn_headers(turn: TurnKey) -> dict[str, str]:
    return {"X-Session-Id": turn.session_id, "X-Turn-Id": turn.turn_id}


def response_id(turn: TurnKey) -> str:
    """Says which session and turn it is of, so that nothing has to be kept to find them."""
    return _RESPONSE + turn.session_id.partition("_")[2] + turn.turn_id.partition("_")[2]


def conversation_of(http: Request, body: Mapping[str, Any]) -> tuple[str | None, str | None]:
    """Returns the id of the conversation, and the turn to go on after if the client says which."""
    given: list[tuple[object, str | None]] = [(http.headers.get(name), None) for name in CONVERSATION_HEADERS]
    conversation = body.get("conversation")
    given.append((conversation.get("id") if isinstance(conversation, dict) else conversation, None))
    if isinstance(previous := body.get("previous_response_id"), str) and previous not in NO_CONVERSATION:
        names = previous.removeprefix(_RESPONSE)
        given.append((f"ses_{names[:26]}", f"turn_{names[26:]}"))
    metadata = body.get("metadata") or {}
    given += [(metadata.get(name), None) for name in CONVERSATION_METADATA]
    for client_id, after in given:
        if client_id is None:
            continue
        if not isinstance(client_id, str):
            raise InvalidRequest("The id of a conversation is a text.")
        if client_id in NO_CONVERSATION:
            continue
        if not client_id.startswith(NO_CONVERSATION_PREFIX):
            return client_id, after
    return None, None


def _text(content: object, *, is_new: bool = False) -> str:
    """Returns the text of a message's content. Of a new message every part has to be text or a file."""
    match content:
        case str():
            return content
        case None:
            return ""
        case list():
            return "\n".join(filter(None, (_part(part, is_new=is_new) for part in content)))
        case _:
            raise InvalidRequest("The content of a message is a text or a list of parts.")


def _part(part: object, *, is_new: bool) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    if isinstance(part, dict) and isinstance(kind, str) and kind in _TEXTS and isinstance(part.get(_TEXTS[kind]), str):
        return str(part[_TEXTS[kind]])
    if not is_new or is_file(part):
        return ""
    raise parts_unsupported(f"A part of the type {str(kind)[:50]!r} cannot be read.")
