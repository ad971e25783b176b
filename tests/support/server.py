"""Real HTTP servers in the test's own event loop, on a port the system chooses."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext

import uvicorn
from starlette.types import ASGIApp


class _Server(uvicorn.Server):
    """Leaves signals to pytest."""

    def capture_signals(self) -> AbstractContextManager[None]:  # type: ignore[override]
        return nullcontext()


@asynccontextmanager
async def serving(app: ASGIApp) -> AsyncIterator[str]:
    """The base URL of `app`, its lifespan entered, until the block is left."""
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    server = _Server(uvicorn.Config(app, log_config=None, access_log=False, timeout_graceful_shutdown=5, ws="none"))
    task = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        async with asyncio.timeout(30):
            while not server.started and not task.done():  # noqa: ASYNC110 (uvicorn tells by a flag)
                await asyncio.sleep(0)
        if not server.started:
            raise RuntimeError("the server did not start; its log says why")
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        await task
