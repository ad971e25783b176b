"""A TCP door in front of a server that a test can shut, freeze and open again, or let an answer get lost at."""

import asyncio
import re
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from sqlalchemy import make_url

from tests.support.stores import socket_of

Outage = Literal["refuses", "hangs_up", "freezes"]
SESSION_KEY = re.compile(rb"(?s)(?<=K\0\0\0\x0c).{8}")  # PostgreSQL's: the process that serves, and a secret


@dataclass(frozen=True, slots=True, eq=False)
class _Trap:
    sign: bytes
    after: bytes
    sprung: asyncio.Event = field(default_factory=asyncio.Event)


class Proxy:
    """`port` on 127.0.0.1 leads to `upstream`, a Unix socket or a port of this machine, until an outage begins.

    `unheard` is what was sent to it while it was frozen. If it `pools`, it tells a client of PostgreSQL a session key
    of its own, as poolers do. If it `swallows_ends`, clients are not told that the server has hung up.
    """

    def __init__(self, upstream: Path | int) -> None:
        self._upstream = upstream
        self._links: set[asyncio.Task[Any]] = set()
        self._ends: set[StreamWriter] = set()
        self._flowing = asyncio.Event()
        self._hangs_up = False
        self._server: asyncio.Server | None = None
        self._traps: list[_Trap] = []
        self.port = 0
        self.arrivals = 0  # also of those that were not let through
        self.unheard: list[bytes] = []
        self.pools = False
        self.swallows_ends = False
        self._shut = asyncio.Event()

    @property
    def connections(self) -> int:
        """How many are open, whoever holds them."""
        return len(self._links)

    def lead_to(self, upstream: Path | int) -> None:
        """From now on new connections lead there."""
        self._upstream = upstream

    async def open(self) -> None:
        """Lets everyone through, from the start or after an outage."""
        self._hangs_up = False
        self._flowing.set()
        self._shut.clear()
        if self._server is None:
            self._server = await asyncio.start_server(self._link, "127.0.0.1", self.port)
            self.port = self._server.sockets[0].getsockname()[1]

    async def begin(self, outage: Outage) -> None:
        """`refuses`: no port. `hangs_up`: accepts and closes at once. `freezes`: connections stay, nothing passes."""
        if outage == "freezes":
            self._flowing.clear()
            return
        if outage == "refuses" and self._server is not None:
            for listener in self._server.sockets:
                asyncio.get_running_loop().remove_reader(listener)
            await asyncio.sleep(0)  # asyncio leaks a connection that it accepts in the same step as it closes
            self._server.close()
            self._server = None
        self._hangs_up = True
        self._flowing.set()
        self._shut.set()
        for end in self._ends:
            end.transport.abort()
        await asyncio.gather(*self._links)

    def lose(self, sign: bytes, *, after: bytes = b"") -> asyncio.Event:
        """Set once an answer with `sign` was swallowed, on a connection that had answered with `after` by then. Whoever
        asked waits for it in vain, though the server has done what it was asked.
        """
        trap = _Trap(sign, after)
        self._traps.append(trap)
        return trap.sprung

    async def _link(self, reader: StreamReader, writer: StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._links.add(task)
        self.arrivals += 1
        with self._end(writer):
            if not self._hangs_up:
                with suppress(OSError):  # the server itself is away
                    await self._join(reader, writer)
        self._links.discard(task)

    async def _join(self, reader: StreamReader, writer: StreamWriter) -> None:
        server_reader, server_writer = await self._connect()
        with self._end(server_writer):
            there, back = self._pass_on(reader, server_writer), self._pass_on(server_reader, writer, answers=True)
            await asyncio.gather(there, back)

    async def _connect(self) -> tuple[StreamReader, StreamWriter]:
        if isinstance(self._upstream, int):
            return await asyncio.open_connection("127.0.0.1", self._upstream)
        return await asyncio.open_unix_connection(self._upstream)

    @contextmanager
    def _end(self, writer: StreamWriter) -> Iterator[None]:
        self._ends.add(writer)
        try:
            yield
        finally:
            self._ends.discard(writer)
            writer.transport.abort()

    async def _pass_on(self, reader: StreamReader, writer: StreamWriter, *, answers: bool = False) -> None:
        said = b""
        with suppress(OSError):
            while chunk := await reader.read(65536):
                if not (answers or self._flowing.is_set()):
                    self.unheard.append(chunk)
                await self._flowing.wait()
                if answers and self._traps:
                    said += chunk
                    if self._springs_a_trap(said, chunk):
                        continue
                writer.write(SESSION_KEY.sub(bytes(8), chunk) if answers and self.pools else chunk)
                await writer.drain()
            if answers and self.swallows_ends:
                await self._shut.wait()
        writer.close()

    def _springs_a_trap(self, said: bytes, chunk: bytes) -> bool:
        for trap in self._traps:
            if trap.sign in chunk and trap.after in said:
                self._traps.remove(trap)
                trap.sprung.set()
                return True
        return False


@asynccontextmanager
async def proxied(upstream: Path | int) -> AsyncIterator[Proxy]:
    proxy = Proxy(upstream)
    await proxy.open()
    try:
        yield proxy
    finally:
        await proxy.begin("refuses")


@asynccontextmanager
async def door_to(database_url: str) -> AsyncIterator[tuple[Proxy, str]]:
    """A door in front of PostgreSQL, and the URL that leads through it."""
    url = make_url(database_url)
    async with proxied(socket_of(database_url)) as door:
        behind = url.set(host="127.0.0.1", port=door.port, query={})
        yield door, behind.render_as_string(hide_password=False)
