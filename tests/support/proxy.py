"""A TCP door in front of a server on a Unix socket, or on a port, that a test can shut, freeze and open again."""

import asyncio
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any, Literal

Outage = Literal["refuses", "hangs_up", "freezes"]


class Proxy:
    """`port` on 127.0.0.1 leads to `upstream` until an outage begins."""

    def __init__(self, upstream: Path | int) -> None:
        self._upstream = upstream
        self._links: set[asyncio.Task[Any]] = set()
        self._ends: set[StreamWriter] = set()
        self._flowing = asyncio.Event()
        self._hangs_up = False
        self._server: asyncio.Server | None = None
        self.port = 0

    async def open(self) -> None:
        """Lets everyone through, from the start or after an outage."""
        self._hangs_up = False
        self._flowing.set()
        if self._server is None:
            self._server = await asyncio.start_server(self._link, "127.0.0.1", self.port)
            self.port = self._server.sockets[0].getsockname()[1]

    async def begin(self, outage: Outage) -> None:
        """`refuses`: no port. `hangs_up`: accepts and closes at once. `freezes`: connections stay, nothing passes."""
        if outage == "freezes":
            self._flowing.clear()
            return
        if outage == "refuses" and self._server is not None:
            self._server.close()
            self._server = None
        self._hangs_up = True
        self._flowing.set()
        for end in self._ends:
            end.transport.abort()
        await asyncio.gather(*self._links)

    async def _link(self, reader: StreamReader, writer: StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._links.add(task)
        with self._end(writer):
            if not self._hangs_up:
                server_reader, server_writer = await self._connect()
                with self._end(server_writer):
                    await asyncio.gather(self._pass_on(reader, server_writer), self._pass_on(server_reader, writer))
        self._links.discard(task)

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

    async def _pass_on(self, reader: StreamReader, writer: StreamWriter) -> None:
        with suppress(OSError):
            while chunk := await reader.read(65536):
                await self._flowing.wait()
                writer.write(chunk)
                await writer.drain()
        writer.close()


@asynccontextmanager
async def proxied(upstream: Path | int) -> AsyncIterator[Proxy]:
    proxy = Proxy(upstream)
    await proxy.open()
    try:
        yield proxy
    finally:
        await proxy.begin("refuses")
