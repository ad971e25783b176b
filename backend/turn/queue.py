"""Hands turns to tasks the process owns: one line per session, as many lines side by side as the process may run.

The queue delivers, Postgres decides: a line asks for the session's next turn until none can be waiting, and a turn
that another process has claimed is simply not given to it.
"""

import asyncio
from collections.abc import Awaitable, Callable

RunNext = Callable[[str], Awaitable[bool]]


class TurnQueue:
    """`run_next(session_id)` claims and runs one turn if there is one, and answers whether another may be waiting."""

    def __init__(self, run_next: RunNext, *, concurrency: int = 64) -> None:
        self._run_next = run_next
        self._places = asyncio.Semaphore(concurrency)
        self._lines: dict[str, asyncio.Task[None]] = {}
        self._woken: set[str] = set()
        self._closed = False

    def wake(self, session_id: str) -> None:
        """Something may be waiting in this session. Cheap, and right however often it is called."""
        if self._closed:
            return
        self._woken.add(session_id)
        if session_id not in self._lines:
            self._lines[session_id] = asyncio.create_task(self._drain(session_id), name=f"turns of {session_id}")

    async def close(self, *, grace_s: float) -> None:
        """Takes no more turns, gives those that run `grace_s` to end, then cancels them."""
        self._closed = True
        self._woken.clear()
        lines = list(self._lines.values())
        if not lines:
            return
        _, late = await asyncio.wait(lines, timeout=grace_s)
        for line in late:
            line.cancel()
        await asyncio.gather(*late, return_exceptions=True)

    async def _drain(self, session_id: str) -> None:
        try:
            async with self._places:
                while session_id in self._woken:
                    self._woken.discard(session_id)
                    while not self._closed and await self._run_next(session_id):
                        pass
        finally:  # in the same step as the last look at _woken, so that no wake falls between
            del self._lines[session_id]
