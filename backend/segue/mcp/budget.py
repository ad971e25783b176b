"""The cost that a connection to an MCP server may have beyond answers to our requests; how large answers are read.

Transports count bytes and the filter counts messages, since the SDK starts a task for each and keeps those whose answer
the server does not read. A server that overspends is disconnected. A large result travels packed, as one short text.
"""

import re
import time
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Final

import anyio
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCError, JSONRPCNotification, JSONRPCRequest, JSONRPCResponse

from segue.domain.ids import utc_now
from segue.domain.tool import ToolRetry
from segue.mcp.large_messages import packed_message, with_whole_characters
from segue.tools.child_process import LARGE, READ_S, TooMuch, in_child_process
from segue.tools.tool_health import TO_THE_SECOND, ServerAway

MESSAGE_LIMIT_BYTES: Final = 32 * 1024 * 1024
_MESSAGES: Final = 1000
_MESSAGES_PER_S: Final = 100
_UNREADABLE: Final = 10  # messages that one costs which is none: the SDK logs each with a traceback
_BYTES: Final = 4 * 1024 * 1024
_BYTES_PER_S: Final = 1024 * 1024
_BYTES_OF_AN_ANSWER: Final = 1024 * 1024
_LARGE: Final = ("tools/call", "resources/read")  # whose answers may be as large as a message
_ASKED: Final = 1000  # requests that are remembered: not all are answered
_ASKED_AT_ONCE: Final = 16  # whose answers may be as large as that
_UNREAD_ANSWERS: Final = 100
_PROGRESS: Final = 20  # notifications of a call that are read
_PROGRESS_PER_S: Final = 5
_LARGEST: Final = 1e15  # a number of progress
_OF_PROGRESS: Final = "notifications/progress"
IN_PROGRESS: Final = f'"{_OF_PROGRESS}"'.encode()
_IN_ANSWER: Final = b'"id"'
_TOKEN: Final = re.compile(rb'"progressToken"\s*:\s*"?([A-Za-z0-9_-]{1,64})')
_EVENT_END: Final = re.compile(rb"\r\n\r\n|\n\n|\r\r")
_LONGEST_END: Final = 4
_SHORTEST_REST_S: Final = 1.0
_LONGEST_REST_S: Final = 3600.0


class McpServerGone(Exception):
    """The connection is over; the message says why and never quotes the server. `status` is that of its HTTP answer, or
    of its process if that closed the connection.
    """

    def __init__(self, reason: str, status: int | None = None) -> None:
        super().__init__(reason)
        self.status = status


class MustWait(ToolRetry):
    """A call did not run: its server has asked to be left alone."""


class _Bucket:
    """Fills with time."""

    def __init__(self, capacity: float, per_s: float) -> None:
        self._capacity = self._level = capacity
        self._per_s = per_s
        self._filled_at = time.monotonic()

    def add(self, amount: int) -> None:
        """Lets it hold `amount` more, which is there at once; a negative one takes that back, spent or not."""
        self._capacity += amount
        self._level = min(self._level + max(amount, 0), self._capacity)

    def take(self, amount: int) -> bool:
        now = time.monotonic()
        self._level = min(self._level + (now - self._filled_at) * self._per_s, self._capacity) - amount
        self._filled_at = now
        return self._level >= 0

    def has(self, amount: int) -> bool:
        is_there = self.take(amount)
        self._level += amount
        return is_there


class Budget:
    """Of one connection. A method that overspends it raises McpServerGone, and so does `watch`. `rest` says until when
    the server has asked to be left alone, if it has.
    """

    def __init__(self) -> None:
        self._bytes = _Bucket(_BYTES, _BYTES_PER_S)
        self._messages = _Bucket(_MESSAGES, _MESSAGES_PER_S)
        self._asked: dict[str, int] = {}
        self._progress: dict[str, _Bucket] = {}
        self._unread = self._read = self._answers = 0
        self._overspent = anyio.Event()
        self._reason = ""
        self.rest: ServerAway | None = None
        self._rests_until = 0.0

    def begin_rest(self, seconds: float) -> ServerAway:
        seconds = min(max(seconds, _SHORTEST_REST_S), _LONGEST_REST_S)
        self._rests_until, until = time.monotonic() + seconds, utc_now() + timedelta(seconds=seconds)
        self.rest = f"Its MCP server asks to be left alone until {until:{TO_THE_SECOND}}.", until
        return self.rest

    @property
    def rest_s(self) -> float:
        return max(self._rests_until - time.monotonic(), 0.0)

    @property
    def came(self) -> str:
        """Describes the data sent so far, for a handshake that does not end."""
        if self._answers:
            return "it answered, but not all that it was asked"
        return f"{self._read} bytes came, no answer among them" if self._read else "nothing came"

    @property
    def is_unanswered(self) -> bool:
        return bool(self._asked) and not self._answers

    async def watch(self) -> None:
        """Waits until the budget is overspent, for readers in which the SDK swallows the error."""
        await self._overspent.wait()
        raise McpServerGone(self._reason)

    def read(self, size: int) -> None:
        self._read += size
        if not self._bytes.take(size):
            self.end("it sends more bytes than were asked for")

    def asks(self, message: object) -> None:
        """A request of ours entitles the server to an answer, also to a late one after it was cancelled."""
        if not isinstance(message, JSONRPCRequest):
            return
        if len(self._asked) >= _ASKED:
            self._settle(next(iter(self._asked)))
        size = MESSAGE_LIMIT_BYTES if message.method in _LARGE else _BYTES_OF_AN_ANSWER
        if message.method == "tools/call":
            self._progress[str(message.id)] = _Bucket(_PROGRESS, _PROGRESS_PER_S)
        self._asked[str(message.id)] = size if len(self._asked) < _ASKED_AT_ONCE else 0
        self._bytes.add(self._asked[str(message.id)])

    def sent(self, message: object) -> None:
        self._unread -= isinstance(message, JSONRPCResponse | JSONRPCError)

    def hears(self, item: SessionMessage | Exception) -> bool:
        """Counts a message, and returns whether to read it. Answers to our requests and some progress are free."""
        message = item.message if isinstance(item, SessionMessage) else None
        if isinstance(message, JSONRPCResponse | JSONRPCError) and self._settle(message.id):
            self._answers += 1
            return True
        if isinstance(message, JSONRPCNotification) and message.method == _OF_PROGRESS:
            params = message.params or {}
            bucket = self._progress.get(str(params.get("progressToken")))
            # The SDK ends the connection over numbers that a float cannot hold.
            counted = params.get("progress"), params.get("total") or 0
            is_progress = all(isinstance(number, int | float) and abs(number) < _LARGEST for number in counted)
            if bucket is not None and bucket.has(1) and is_progress:
                return bucket.take(1)
        if isinstance(message, JSONRPCRequest):
            self._unread += 1
        if not self._messages.take(1 if message else _UNREADABLE):
            self.end("it sends more messages than were asked for")
        if self._unread > _UNREAD_ANSWERS:
            self.end("it asks on without reading the answers")
        return not (isinstance(message, JSONRPCNotification) and message.method == _OF_PROGRESS)

    def skips(self, message: bytes) -> bool:
        """Whether this is progress beyond what is read of a call: to read it costs a hundred times what this takes."""
        if IN_PROGRESS not in message or _IN_ANSWER in message or (found := _TOKEN.search(message)) is None:
            return False
        bucket = self._progress.get(found[1].decode())
        return bucket is not None and not bucket.has(1)

    def _settle(self, request_id: object) -> bool:
        allowed = self._asked.pop(str(request_id), None)
        self._progress.pop(str(request_id), None)
        self._bytes.add(-(allowed or 0))
        return allowed is not None

    def end(self, reason: str) -> None:
        self._reason = reason
        self._overspent.set()
        raise McpServerGone(reason)


async def light(message: bytes) -> bytes:
    """Returns a message that is read in a moment. Raises McpServerGone if that cannot be had."""
    if len(message) <= LARGE:
        return with_whole_characters(message)
    try:
        return await in_child_process(packed_message, message, deadline_s=READ_S)
    except TooMuch as error:
        raise McpServerGone(f"it sent a message that {error} to read") from error


async def light_body(body: AsyncIterator[bytes], budget: Budget, *, is_stream: bool) -> AsyncIterator[bytes]:
    """Yields a body with light messages: JSON whole, a stream event by event without those the budget skips."""
    buffer = bytearray()
    async for chunk in body:
        begin = max(len(buffer) - _LONGEST_END, 0)
        buffer += chunk
        if is_stream and (ends := [end.end() for end in _EVENT_END.finditer(buffer, begin)]):
            events = bytes(buffer[: ends[-1]])
            if IN_PROGRESS in events:
                kept = [event for event in _EVENT_END.split(events) if event and not budget.skips(event)]
                events = b"".join(event + b"\n\n" for event in kept)
            yield await _light_events(events)
            del buffer[: ends[-1]]
    yield await _light_events(bytes(buffer)) if is_stream else await light(bytes(buffer))


async def _light_events(events: bytes) -> bytes:
    if len(events) <= LARGE:
        return with_whole_characters(events)
    light_ones = []
    for event in filter(None, _EVENT_END.split(events)):
        lines = event.splitlines()
        data = b"\n".join(line[5:].removeprefix(b" ") for line in lines if line.startswith(b"data:"))
        others = [line for line in lines if not line.startswith(b"data:")]
        light_ones.append(b"\n".join([*others, b"data: " + await light(data)]) + b"\n\n")
    return b"".join(light_ones)
