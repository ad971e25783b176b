"""Sends the events of a turn, or of all the caller's sessions, as Server-Sent Events, from the client's last position.

Everything that can be refused is refused before the stream starts; a stream holds no database connection. Tests compare
every event that they read with event_types.toml.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from typing import Annotated, Any, Final

from fastapi import Depends, Header, Query, Request, Response
from pydantic import BeforeValidator, Field
from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.types import Receive, Scope, Send

from segue.api.deps import Caller, Parts, SessionId, TurnId, router_of
from segue.api.middleware import identify
from segue.domain.errors import AppError
from segue.events.event_buffer import Entry, end_of
from segue.language.lexicon import load_toml
from segue.turns.queries import find_turn
from segue.users.api_keys import StreamToken, create_token

_DESCRIBED: Final = load_toml("event_types.toml", package="segue.api")
EVENT_TYPES: Final[Mapping[str, Sequence[str]]] = _DESCRIBED["types"]
CUSTOM_EVENTS: Final[Mapping[str, Sequence[str]]] = _DESCRIBED["custom"]


def tables() -> str:
    """Returns both in Markdown."""
    types = (f"| {kind} | {members.replace(' ', ', ')} | {says} |" for kind, (members, says) in EVENT_TYPES.items())
    custom = (f"| {name} | {value} | {says} |" for name, (value, says) in CUSTOM_EVENTS.items())
    rows = ("| type | members | |", "|---|---|---|", *types, "", "| name | value | |", "|---|---|---|", *custom)
    return "\n".join(rows)


HEARTBEAT_S = 10
PART_BYTES = 16_384  # sent at once: beside the socket's buffer, what a reader that does not read can hold
MEDIA_TYPE = "text/event-stream"
# One event. OpenAPI 3.2 calls this `itemSchema`, and some tools read it in 3.1 too: they take the stream for a list of
# these. Generators of types take it for a text.
_MEMBERS: Final = {name: {"type": "string"} for name in ("id", "event", "data")}
_EVENT: Final = {"type": "object", "properties": _MEMBERS, "required": ["data"]}


def described_stream(description: str, example: str) -> dict[str, Any]:
    """Returns the `content` of a response that is a stream of events, for openapi.json."""
    stream = {"type": ["string", "array"], "items": {"type": "object"}, "description": description}
    return {MEDIA_TYPE: {"schema": stream, "itemSchema": _EVENT, "example": example}}


EVENTS = described_stream(
    f"The turn's events (AG-UI 1.0): `data:` has one JSON object, `id:` its position in the turn's log.\n\n{tables()}",
    'id: 1\ndata: {"type":"RUN_STARTED","threadId":"ses_…","runId":"turn_…"}\n\n',
)
OR_EVENTS: dict[int | str, dict[str, Any]] = {200: {"content": EVENTS}}

router = router_of("chat", "/sessions")
feed_router = router_of("events")

MAX_POSITION = 2**53  # beyond it JavaScript's numbers have gaps
_Position = Annotated[int, Field(ge=0, le=MAX_POSITION)]
LastPosition = Annotated[_Position, Query(description="The `id` of the last event received.")]
_IN_HEADER = Header(description="The same as `after`, and overrides it.")
LastEventId = Annotated[_Position | None, BeforeValidator(lambda sent: sent or None), _IN_HEADER]  # may be sent empty


async def _after(after: LastPosition = 0, last_event_id: LastEventId = None) -> int:
    return after if last_event_id is None else last_event_id


After = Annotated[int, Depends(_after)]
TokenInQuery = Annotated[str | None, Query(alias="token", description="A token of `stream-token`, in place of a key.")]


class EventStream(EventSourceResponse):
    """LF framing and a heartbeat. `TimedConnection` ends it for a client that no longer reads. `farewell` are the last
    bytes of a stream that the end of this process cuts off; `options` are of sse_starlette.
    """

    def __init__(self, content: AsyncIterator[bytes], *, farewell: bytes = b"", **options: Any) -> None:
        self._farewell = farewell
        super().__init__(
            content,
            **options,
            ping=HEARTBEAT_S,
            ping_message_factory=lambda: ServerSentEvent(comment="heartbeat", sep="\n"),
            sep="\n",  # the default is CRLF
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await super().__call__(scope, receive, send)
        if self.active:  # the process shuts down: the client should see an end, not a broken connection
            await send({"type": "http.response.body", "body": self._farewell})


@router.get(
    "/{session_id}/turns/{turn_id}/events",
    response_class=Response,
    responses={200: {"description": "The turn's events", "content": EVENTS}, 204: {"description": "No event is left."}},
)
async def follow_turn(
    session_id: SessionId, turn_id: TurnId, services: Parts, caller: Caller, after: After, _token: TokenInQuery = None
) -> Response:
    """Streams the events of a turn. Begins at the start, or after the last event that the client received. After the
    turn's last event the answer is a 204, which tells a browser to stop reconnecting.
    """
    turn = await services.read(find_turn, caller, session_id, turn_id)
    if after >= end_of(turn):
        return Response(status_code=204)
    return EventStream(framed(services.events.follow(turn, after=after)))


@router.post("/{session_id}/turns/{turn_id}/stream-token", status_code=201)
async def create_stream_token(session_id: SessionId, turn_id: TurnId, services: Parts, caller: Caller) -> StreamToken:
    """Creates a token that opens the events of a turn, for a minute. Send it as `?token=` in a browser's EventSource,
    which sends no headers.
    """
    async with services.database.transaction() as connection:
        await find_turn(connection, caller, session_id, turn_id)
        return await create_token(connection, caller, turn_id)


def frame(entry: Entry) -> bytes:
    return b"id: %d\ndata: %b\n\n" % entry


async def framed(parts: AsyncGenerator[Sequence[Entry]]) -> AsyncIterator[bytes]:
    async with aclosing(parts):
        async for entries in parts:
            frames = bytearray()
            for entry in entries:
                frames += frame(entry)
                if len(frames) >= PART_BYTES:
                    yield bytes(frames)
                    frames.clear()
            if frames:
                yield bytes(frames)


_FEED = {"description": "The events, as they happen", "content": described_stream(*_DESCRIBED["feed"])}


@feed_router.get("/events", response_class=Response, responses={200: _FEED})
async def follow_events(request: Request, services: Parts, caller: Caller, after: After) -> Response:
    """Streams what happens in all of the caller's sessions. The stream begins with `replay_gap`, which tells a page to
    read its lists, unless it goes on after a known position. It ends after 15 minutes, or at the next event once the
    key or token is revoked or has expired. Connect again with the last id; a 401 then means that the key has ended.
    """
    return EventStream(framed(_while_let_in(request, services.feeds.follow(caller, after=after))))


async def _while_let_in(request: Request, parts: AsyncGenerator[Sequence[Entry]]) -> AsyncGenerator[Sequence[Entry]]:
    """Ends at the first event after the key or token was revoked or expired."""
    async with aclosing(parts):
        async for entries in parts:
            try:
                await identify(request)
            except AppError:
                return
            yield entries
