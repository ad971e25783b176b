"""Work that is done again and again in the background, such as to look whether something has changed."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Self

import anyio

from segue.domain.errors import AppError
from segue.log import log

LOOK_EVERY_S = 2.0


async def end_tasks(*tasks: asyncio.Task[None] | None) -> None:
    """Cancels those that there are, and waits until they have ended."""
    begun = [task for task in tasks if task is not None]
    for task in begun:
        task.cancel()
    await asyncio.gather(*begun, return_exceptions=True)


class Watch:
    """While entered, calls `look` each `every_s` or LOOK_EVERY_S and after `wake`, one at a time; logs its errors."""

    def __init__(self, name: str, look: Callable[[], Awaitable[object]], *, every_s: float | None = None) -> None:
        self._name = name
        self._look = look
        self._every_s = every_s
        self._woken = asyncio.Event()
        self._looking: asyncio.Task[None] | None = None

    def wake(self) -> None:
        self._woken.set()

    async def __aenter__(self) -> Self:
        self._looking = asyncio.create_task(self._look_forever(), name=self._name)
        return self

    async def __aexit__(self, *_: object) -> None:
        await end_tasks(self._looking)

    async def _look_forever(self) -> None:
        while True:
            with anyio.move_on_after(self._every_s or LOOK_EVERY_S):
                await self._woken.wait()
            self._woken.clear()
            [error] = await asyncio.gather(self._look(), return_exceptions=True)
            if isinstance(error, BaseException):
                fault = None if isinstance(error, AppError) else error
                log.warning("watch_failed", watch=self._name, error=str(error), exc_info=fault)
