"""One HTTP connection, with an end to uvicorn's patience: a request has to arrive, head and body, within a time.

A head is bounded in size here, a body by `BodyLimit`. What has arrived may be answered for as long as it takes.
"""

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEAD_BYTES = 65_536

_ENDS = {
    408: b"408 Request Timeout",
    431: b"431 Request Header Fields Too Large",
    503: b"503 Service Unavailable",
}


class TimedConnection(HttpToolsProtocol):
    """Beyond `most` connections of its server a new one is closed at once, before it can cost anything."""

    def __init__(self, *args: Any, read_timeout_s: float, most: int, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._read_timeout_s = read_timeout_s
        self._most = most
        self._deadline: asyncio.TimerHandle | None = None
        self._in_head = True
        self._bytes_beside_body = 0
        self._got_body = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self._most:
            self._end(503)
        else:
            self._expect()

    def connection_lost(self, exc: Exception | None) -> None:
        self._arrived()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._deadline is None:
            self._expect()
        self._got_body = False
        super().data_received(data)
        if self._deadline is not None and not self._got_body:  # a head that does not end, or what follows a body
            self._bytes_beside_body += len(data)
            if self._bytes_beside_body > MAX_HEAD_BYTES and not self.transport.is_closing():
                self._end(431)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._expect()
        self._in_head, self._bytes_beside_body = True, 0

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_head:  # not what may follow a body
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._in_head = False
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._got_body, self._bytes_beside_body = True, 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._arrived()
        self._in_head, self._bytes_beside_body = True, 0

    @property
    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _expect(self) -> None:
        self._arrived()
        self._deadline = self.loop.call_later(self._read_timeout_s, self._too_slow)

    def _arrived(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _too_slow(self) -> None:
        self._deadline = None
        if self.transport.is_closing():
            return
        match self._is_answering, self._in_head:
            case (True, True):  # an earlier request is being answered
                self._expect()
            case (True, False) if self.pipeline:  # the same
                self._expect()
            case (True, False) if self.cycle.response_started:
                self.transport.close()
            case (False, False):  # answered before it had arrived
                self.transport.close()
            case _:
                self._end(408)

    def _end(self, status: int) -> None:
        """In bare HTTP: there is no request to give to the application."""
        self.transport.write(b"HTTP/1.1 %s\r\ncontent-length: 0\r\nconnection: close\r\n\r\n" % _ENDS[status])
        self.transport.close()
