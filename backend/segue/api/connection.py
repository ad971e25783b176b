"""One HTTP connection, with bounds that uvicorn has no option for: on the time a request takes to arrive, on its head,
on what is read after the answer, on waiting requests and connections, and on the time a client may take nothing.

The only file that builds on uvicorn's protocol class, which is no stable API: tests/api/test_connection.py fails if it
changes. `BodyLimit` bounds the size of a body; an answer may take as long as it needs.
"""

import asyncio
import re
import socket
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from segue.api.problems import refusal
from segue.log import log

MAX_HEAD_BYTES = 65_536
HEADER_BYTES = 32  # that a header counts beside its name and value, as in HTTP/2: a Python object is larger than "a: b"
BYTES_PER_BODY_BYTE = 8  # a chunk of one byte has six
MAX_PIPELINED = 16  # requests that wait for the answer to an earlier one
MAX_UNREAD_BYTES = 65_536  # of a body that goes on after its answer
LINGER_S = 1.0  # for the client to read that answer: closing with bytes unread resets the connection
SEND_BUFFER_BYTES = 131_072  # the system's own, beside the 64 kB of the event loop's: by default it grows to megabytes
TURNED_AWAY_S = 2  # until a client that found no place asks again

_UPGRADE = re.compile(rb"\r\nupgrade:", re.IGNORECASE)
_BODY_HEADERS = (b"content-length", b"transfer-encoding")
_LONG_HEAD = f"The target and headers of a request, and its trailers, have more than {MAX_HEAD_BYTES} bytes."
_UNREADABLE = "This cannot be read as HTTP/1.1. In a path or query, percent-encode what is not ASCII."
_NO_PLACE = "This process has as many connections as it can. Try again soon."


class _Refused(Exception):
    """Stops the parser in the middle of what was read."""


class TimedConnection(HttpToolsProtocol):
    """A request must arrive within `read_timeout_s` seconds. Above `max_connections` a new connection gets a 503. A
    client that takes nothing of what is sent for `write_stall_s` seconds, at most twice that, is cut off.
    """

    def __init__(
        self, *args: Any, read_timeout_s: float, max_connections: int, write_stall_s: float = 15.0, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self._read_timeout_s = read_timeout_s
        self._max_connections = max_connections
        self._write_stall_s = write_stall_s
        self._timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None
        self._in_head = True
        self._is_between_requests = True
        self._head_bytes = 0  # of the fields that the parser has passed on
        self._other_bytes = 0  # read so far, but for the body: part of a field, chunk extensions, line ends
        self._body_bytes = 0  # within one read
        self._unread_bytes = 0
        self._unsent_bytes = 0  # when last looked at; 0 if it may have grown since

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        self._write_timer = self.loop.call_later(self._write_stall_s, self._check_writing)
        if len(self.connections) > self._max_connections:
            # uvicorn's limit_concurrency counts idle connections only when another one asks.
            self._refuse(503, _NO_PLACE, retry_after_s=TURNED_AWAY_S)
        else:
            self._start_timer(self._read_timeout_s)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        if self._write_timer is not None:
            self._write_timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._timer is None:
            self._start_timer(self._read_timeout_s)
        self._body_bytes = 0
        if self._is_between_requests:  # a client may ask for HTTP/2: the parser would lose its body
            head, end, rest = data.partition(b"\r\n\r\n")
            data = _UPGRADE.sub(b"\r\nx-upgrade:", head) + end + rest
        super().data_received(data)
        if self._timer is None or self.transport.is_closing():
            return
        self._other_bytes = max(self._other_bytes + len(data) - BYTES_PER_BODY_BYTE * self._body_bytes, 0)
        if self._other_bytes > MAX_HEAD_BYTES:
            self._refuse(431, _LONG_HEAD)
        elif not self._in_head and self.cycle.response_complete:
            self._unread_bytes += len(data)
            if self._unread_bytes > MAX_UNREAD_BYTES:
                self.flow.pause_reading()
                self._start_timer(LINGER_S)

    def on_message_begin(self) -> None:
        if len(self.pipeline) >= MAX_PIPELINED:
            self.transport.close()
            raise _Refused
        super().on_message_begin()
        self._is_between_requests = False
        self._start_timer(self._read_timeout_s)
        self._in_head, self._head_bytes, self._other_bytes, self._unread_bytes = True, 0, 0, 0

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        self._count(len(url))

    def _count(self, size: int) -> None:
        self._head_bytes += size
        if self._head_bytes > MAX_HEAD_BYTES:
            self._refuse(431, _LONG_HEAD)
            raise _Refused

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value) + HEADER_BYTES)
        if self._in_head:  # trailers after a body are dropped
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if self.parser.should_upgrade() and any(name in _BODY_HEADERS for name, _ in self.headers):
            self._refuse(400, "Send a body without Upgrade.")  # its head came in parts, or behind another request
            raise _Refused
        self._in_head = False
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._stop_timer()
        self._in_head, self._is_between_requests, self._other_bytes = True, True, 0

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._unsent_bytes = 0

    def resume_writing(self) -> None:
        super().resume_writing()
        self._unsent_bytes = 0

    def send_400_response(self, _msg: str) -> None:
        if not self.transport.is_closing():  # uvicorn also calls this after _Refused
            self._refuse(400, _UNREADABLE)

    @property
    def _is_responding(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _start_timer(self, after_s: float) -> None:
        self._stop_timer()
        self._timer = self.loop.call_later(after_s, self._time_out)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _time_out(self) -> None:
        self._timer = None
        if self.transport.is_closing():
            return
        if self._is_responding and (self._in_head or self.pipeline):
            self._start_timer(self._read_timeout_s)  # it belongs to the next request; an earlier one is being answered
        elif self._is_between_requests and not self._other_bytes:
            self.transport.close()  # nothing was sent, as on one that a browser opens early
        elif not self._in_head and self.cycle.response_started:  # before its body had arrived
            self.transport.close()
        else:
            self._refuse(408, f"The request did not arrive whole within {self._read_timeout_s:g} seconds.")

    def _check_writing(self) -> None:
        """Compares what waits to be sent with the last time, if nothing was added since."""
        size = self.transport.get_write_buffer_size()
        if 0 < self._unsent_bytes <= size:
            log.info("slow_reader_dropped", unsent_bytes=size)
            self.transport.abort()
            return
        is_fixed = self.flow.write_paused or self.transport.is_closing() or not self._is_responding
        self._unsent_bytes = size if is_fixed else 0
        self._write_timer = self.loop.call_later(self._write_stall_s, self._check_writing)

    def _refuse(self, status: int, detail: str, *, retry_after_s: int | None = None) -> None:
        """Writes the response directly, for no request is complete; none if it would fall into another response."""
        is_within_another = self._in_head or self.pipeline or (self.cycle is not None and self.cycle.response_started)
        if not (self._is_responding and is_within_another):
            scope = {} if self._in_head else dict(self.scope)
            self.transport.write(refusal(scope, status, detail, retry_after_s=retry_after_s))
        self.transport.close()
