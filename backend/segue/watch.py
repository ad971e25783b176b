"""Looks at files again and again: one way for the secrets and for mcp.json. Knows neither."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Self

LOOK_EVERY_S = 2.0


class Watch:
    """Calls `look` every LOOK_EVERY_S while it is entered, and at once after `hurry`. One call at a time."""

    def __init__(self, name: str, look: Callable[[], Awaitable[None]]) -> None:
        self._name = name
        self._look = look
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
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_EVERY_S):
                    await self._due.wait()
            self._due.clear()
            await self._look()
