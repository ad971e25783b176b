"""What a connection to an MCP server may cost beyond the answers to what the server was asked.

The transports count the bytes they read, the filter counts messages. A server that overspends is disconnected: the SDK
starts a task for every message, and keeps those whose answer the server does not read.
"""

from typing import Final

import anyio
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCError, JSONRPCRequest, JSONRPCResponse

MESSAGE_LIMIT_BYTES: Final = 32 * 1024 * 1024
_MESSAGES: Final = 1000
_MESSAGES_PER_S: Final = 100
_UNREADABLE: Final = 10  # messages that one costs which is none: the SDK logs each with a traceback
_BYTES: Final = 4 * 1024 * 1024
_BYTES_PER_S: Final = 1024 * 1024
_BYTES_OF_AN_ANSWER: Final = 1024 * 1024  # but for the result of a tool
_ASKED: Final = 1000  # requests that are remembered: not all are answered
_ASKED_AT_ONCE: Final = 16  # whose answers may be as large as that
_UNREAD_ANSWERS: Final = 100


class McpServerGone(Exception):
    """The connection is over; the message says why and never quotes the server."""


class _Bucket:
    """Fills with time."""

    def __init__(self, capacity: float, per_s: float) -> None:
        self._capacity = self._level = capacity
        self._per_s = per_s
        self._filled_at = anyio.current_time()

    def add(self, amount: int) -> None:
        """Lets it hold `amount` more, which is there at once; a negative one takes that back, spent or not."""
        self._capacity += amount
        self._level = min(self._level + max(amount, 0), self._capacity)

    def take(self, amount: int) -> bool:
        now = anyio.current_time()
        filled = self._level + (now - self._filled_at) * self._per_s
        self._level = min(filled, self._capacity) - amount
        self._filled_at = now
        return self._level >= 0


class Budget:
    """Of one connection. Whatever overspends it raises McpServerGone, and so does `watch`."""

    def __init__(self) -> None:
        self._bytes = _Bucket(_BYTES, _BYTES_PER_S)
        self._messages = _Bucket(_MESSAGES, _MESSAGES_PER_S)
        self._asked: dict[str, int] = {}
        self._unread = 0
        self._overspent = anyio.Event()
        self._reason = ""

    async def watch(self) -> None:
        """Waits until the budget is overspent, for readers in which the SDK swallows the error."""
        await self._overspent.wait()
        raise McpServerGone(self._reason)

    def read(self, size: int) -> None:
        if not self._bytes.take(size):
            self._end("it sends more bytes than were asked for")

    def asks(self, message: object) -> None:
        """A request of ours entitles the server to an answer, also to a late one after it was cancelled."""
        if not isinstance(message, JSONRPCRequest):
            return
        if len(self._asked) >= _ASKED:
            self._settle(next(iter(self._asked)))
        size = MESSAGE_LIMIT_BYTES if message.method == "tools/call" else _BYTES_OF_AN_ANSWER
        self._asked[str(message.id)] = size if len(self._asked) < _ASKED_AT_ONCE else 0
        self._bytes.add(self._asked[str(message.id)])

    def sent(self, message: object) -> None:
        self._unread -= isinstance(message, JSONRPCResponse | JSONRPCError)

    def heard(self, item: SessionMessage | Exception) -> None:
        """Counts what comes from the server. The answer to a request of ours is free."""
        message = item.message if isinstance(item, SessionMessage) else None
        if isinstance(message, JSONRPCResponse | JSONRPCError) and self._settle(message.id):
            return
        if isinstance(message, JSONRPCRequest):
            self._unread += 1
        if not self._messages.take(1 if message else _UNREADABLE):
            self._end("it sends more messages than were asked for")
        if self._unread > _UNREAD_ANSWERS:
            self._end("it asks on without reading the answers")

    def _settle(self, asked: object) -> bool:
        allowed = self._asked.pop(str(asked), None)
        self._bytes.add(-(allowed or 0))
        return allowed is not None

    def _end(self, reason: str) -> None:
        self._reason = reason
        self._overspent.set()
        raise McpServerGone(reason)
