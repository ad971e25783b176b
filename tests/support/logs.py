"""Waits for what a service in this process logs, and for what shows after it."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeVar

from tests.support.patience import PATIENCE_S

PAUSE_S = 0.1

Found = TypeVar("Found")

_awaited: dict[str, list[tuple[asyncio.AbstractEventLoop, asyncio.Event]]] = {}


def notify_waiting(_: object, __: str, entry: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Is a processor of structlog's."""
    for loop, event in _awaited.get(entry["event"], ()):
        loop.call_soon_threadsafe(event.set)
    return entry


@asynccontextmanager
async def awaiting(name: str) -> AsyncIterator[asyncio.Event]:
    """Yields what is set once an event of this name is logged within the block."""
    waiting = asyncio.get_running_loop(), asyncio.Event()
    _awaited.setdefault(name, []).append(waiting)
    try:
        yield waiting[1]
    finally:
        _awaited[name].remove(waiting)


async def until(find: Callable[[], Awaitable[Found]], *, logged: str = "") -> Found:
    """What `find` returns once it is true. Asks whenever an event of this name is logged, and ten times a second
    for what happens elsewhere or is not logged.
    """
    async with asyncio.timeout(PATIENCE_S), awaiting(logged) as event:
        while not (found := await find()):
            with suppress(TimeoutError):
                async with asyncio.timeout(PAUSE_S):
                    await event.wait()
            event.clear()
    return found
