"""Looks every few seconds whether something has changed. Does not know what."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Self

import anyio

LOOK_EVERY_S = 2.0


class Watch:
    """Calls `look` every `every_s` or LOOK_EVERY_S while it is entered, at once after `hurry`. One call at a time."""

    def __init__(self, name: str, look: Callable[[], Awaitable[None]], *, every_s: float | None = None) -> None:
        self._name = name
        self._look = look
        self._every_s = every_s
        self._due = asyncio.Event()
        self._looking: asyncio.Task[None] | None = None

    def hurry(self) -> None:
        self._due.set()

    async def __aenter__(self) -> Self:
        self._looking = asyncio.create_task(self._look_forever(), name=self._name)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.wait({self._looking})

    async def _look_forever(self) -> None:
        while True:
            with anyio.move_on_after(self._every_s or LOOK_EVERY_S):
                await self._due.wait()
            self._due.clear()
            await self._look()
