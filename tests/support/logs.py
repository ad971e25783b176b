"""Waits for what a service in this process logs."""

import asyncio
from collections.abc import AsyncIterator, MutableMapping
from contextlib import asynccontextmanager
from typing import Any

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
