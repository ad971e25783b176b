"""Real HTTP servers in the test's own event loop, on a port the system chooses."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext, suppress
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from tests.support.patience import PATIENCE_S

GRACE_S = 5


class _Server(uvicorn.Server):
    """Leaves signals to pytest, and leaves when it is told to: uvicorn looks ten times a second."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.up = asyncio.Event()
        self.left = asyncio.Event()

    def capture_signals(self) -> AbstractContextManager[None]:  # type: ignore[override]
        return nullcontext()

    async def main_loop(self) -> None:
        await self.on_tick(0)
        self.up.set()
        await self.left.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Takes no more, lets every request end, then ends the application, as uvicorn does."""
        for server in self.servers:
            server.close()
        for listener in sockets or ():
            listener.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        if self.server_state.tasks:
            _, late = await asyncio.wait(self.server_state.tasks, timeout=GRACE_S)
            for request in late:
                request.cancel()
        with suppress(TimeoutError):
            async with asyncio.timeout(GRACE_S):
                for server in self.servers:
                    await server.wait_closed()
        await self.lifespan.shutdown()
        for connection in list(self.server_state.connections):  # let in while it closed
            if connection.transport is not None:
                connection.transport.abort()


async def _serve(server: _Server, listener: socket.socket) -> None:
    """A start that fails leaves by SystemExit, which would stop the loop of all the tests to come."""
    with suppress(SystemExit), listener:
        await server.serve(sockets=[listener])


async def _is_up(server: _Server, task: asyncio.Task[None]) -> bool:
    """Returns once it takes requests, or has failed to start."""
    up = asyncio.create_task(server.up.wait())
    try:
        await asyncio.wait({up, task}, timeout=PATIENCE_S, return_when=asyncio.FIRST_COMPLETED)
    finally:
        up.cancel()
    return server.up.is_set()


@asynccontextmanager
async def serving(app: ASGIApp, **options: Any) -> AsyncIterator[str]:
    """The base URL of `app`, its lifespan entered, until the block is left. `options` are uvicorn's."""
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    # A client may use a connection again just when the server closes it: who is quicker is not what is tested.
    options = {"timeout_keep_alive": PATIENCE_S, **options}
    server = _Server(uvicorn.Config(app, log_config=None, access_log=False, ws="none", **options))
    task = asyncio.create_task(_serve(server, listener))
    try:
        if not await _is_up(server, task):
            raise RuntimeError("the server did not start; its log says why")
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.left.set()
        await task
