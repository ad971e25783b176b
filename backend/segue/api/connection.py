"""One HTTP connection, with bounds that uvicorn lacks: how long a request may take to arrive and how large its head is.

The only file that builds on uvicorn's protocol class, which is no stable API: tests/api/test_connection.py fails if it
changes. The size of a body is bounded by `BodyLimit`; an answer may take as long as it needs.
"""

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEAD_BYTES = 65_536

_STATUS_LINES = {
    408: b"408 Request Timeout",
    431: b"431 Request Header Fields Too Large",
    503: b"503 Service Unavailable",
}


class TimedConnection(HttpToolsProtocol):
    """A request must arrive within `read_timeout_s` seconds. Above `max_connections` a new connection gets a 503."""

    def __init__(self, *args: Any, read_timeout_s: float, max_connections: int, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._read_timeout_s = read_timeout_s
        self._max_connections = max_connections
        self._timer: asyncio.TimerHandle | None = None
        self._in_head = True
        self._head_bytes = 0
        self._received_body = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self._max_connections:
            self._refuse(503)  # uvicorn's limit_concurrency counts idle connections only when another one asks
        else:
            self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._timer is None:
            self._start_timer()
        self._received_body = False
        super().data_received(data)
        if self._timer is not None and not self._received_body:  # a head that does not end, or trailers after a body
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
                self._refuse(431)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._start_timer()
        self._in_head, self._head_bytes = True, 0

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_head:  # trailers after a body are dropped
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._in_head = False
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._received_body, self._head_bytes = True, 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._stop_timer()
        self._in_head, self._head_bytes = True, 0

    @property
    def _is_responding(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _start_timer(self) -> None:
        self._stop_timer()
        self._timer = self.loop.call_later(self._read_timeout_s, self._time_out)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _time_out(self) -> None:
        self._timer = None
        if self.transport.is_closing():
            return
        match self._is_responding, self._in_head:
            case (True, True):  # it belongs to the next request; an earlier one is being answered
                self._start_timer()
            case (True, False) if self.pipeline:  # the same
                self._start_timer()
            case (True, False) if self.cycle.response_started:
                self.transport.close()
            case (False, False):  # answered before its body had arrived
                self.transport.close()
            case _:
                self._refuse(408)

    def _refuse(self, status: int) -> None:
        """Writes the response directly: there is no complete request to pass to the application."""
        self.transport.write(b"HTTP/1.1 %s\r\ncontent-length: 0\r\nconnection: close\r\n\r\n" % _STATUS_LINES[status])
        self.transport.close()
