"""Carries on the summaries of sessions whose windows are about to be full. Never on a user's time.

What is due stands in the session's row (`memory/summary.py`), so what a process that dies has left to do, another does.
A summary that fails costs nothing but itself: the window is trimmed, the stored history stays whole.
"""

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate
from typing import Self

import orjson
import structlog

from segue.agent.model import ChatModel
from segue.agent.summarizer import summarise, told
from segue.db.engine import Database
from segue.domain.errors import AppError
from segue.domain.session import Message
from segue.memory.history import load_turns
from segue.memory.summary import DueSummary, claim_due, store_summary
from segue.memory.tokens import Count

AT_ONCE = 2
MOST_MESSAGES = 200

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class SummaryDeps:
    """A call to the model is given turns of about `max_tokens`. `lease_s` is how long a summary stays with a process
    that has gone silent, `look_s` how often one looks for what others have left.
    """

    database: Database
    model: ChatModel
    count: Count
    max_tokens: int
    lease_s: float
    look_s: float


async def carry_on(deps: SummaryDeps, due: DueSummary) -> bool:
    """One step towards `due.until`, and whether more are to come. Raises AppError where it has to be tried again."""
    async with deps.database.read_only() as connection:
        turns = await load_turns(connection, due.session_id, after=due.after, up_to=due.until, limit=MOST_MESSAGES)
    taken = _step(turns, deps)
    summary = due.summary
    if taken:
        summary = await summarise(deps.model, summary, [message for turn in taken for message in turn])
    covers = taken[-1][0].seq if taken else due.until
    async with deps.database.autocommit() as connection:
        stored = await store_summary(connection, due, summary, covers=covers)
    log.info("summary_written", session_id=due.session_id, covers=covers, chars=len(summary or ""), stored=stored)
    return covers < due.until


def _step(turns: list[list[Message]], deps: SummaryDeps) -> list[list[Message]]:
    """The oldest turns that one call can take; at least one."""
    sizes = accumulate(sum(deps.count(orjson.dumps(told(message)).decode()) for message in turn) for turn in turns)
    fitting = sum(size <= deps.max_tokens for size in sizes)
    return turns[: max(fitting, 1)]


class Summaries:
    """Works for as long as it is entered."""

    def __init__(self, deps: SummaryDeps) -> None:
        self._deps = deps
        self._woken = asyncio.Event()
        self._places = asyncio.Semaphore(AT_ONCE)
        self._running: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._looking = asyncio.create_task(self._look(), name="summaries that are due")
        return self

    async def __aexit__(self, *_: object) -> None:
        tasks = (self._looking, *self._running)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def wake(self) -> None:
        """A turn has left a summary due."""
        self._woken.set()

    async def _look(self) -> None:
        while True:
            self._woken.clear()
            try:
                while await self._start_next():
                    pass
            except AppError as error:
                log.warning("summaries_not_found", code=error.code)
            with suppress(TimeoutError):
                async with asyncio.timeout(self._deps.look_s):
                    await self._woken.wait()

    async def _start_next(self) -> bool:
        """Waits for a place first: what cannot be begun now is better claimed by another process."""
        await self._places.acquire()
        due = None
        try:
            async with self._deps.database.autocommit() as connection:
                due = await claim_due(connection, lease_s=self._deps.lease_s)
        finally:
            if due is None:
                self._places.release()
        if due is None:
            return False
        task = asyncio.create_task(self._carry_on(due), name=f"summary of {due.session_id}")
        self._running.add(task)
        task.add_done_callback(self._ended)
        return True

    async def _carry_on(self, due: DueSummary) -> None:
        try:
            if await carry_on(self._deps, due):
                self._woken.set()
        except AppError as error:
            log.warning("summary_failed", session_id=due.session_id, code=error.code)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        self._places.release()
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("summary_raised", error=type(error).__name__, exc_info=error)
