"""Marks facts as used and embeds facts that have no embedding, at every interval: off the way of every message."""

import asyncio
from collections import defaultdict
from collections.abc import Iterable
from typing import Self

from segue.db.engine import Database
from segue.domain.clock import Clock
from segue.domain.memory import Memory
from segue.jobs.leased_loop import repeat
from segue.memory import facts
from segue.memory.long_term import LongTermMemory


class FactUpkeep:
    """Works while it is entered. Marks that were not written when the process stops are lost: they only rank."""

    def __init__(self, database: Database, long_term: LongTermMemory, clock: Clock, *, interval_s: float) -> None:
        self._database = database
        self._long_term = long_term
        self._clock = clock
        self._interval_s = interval_s
        self._used: dict[str, set[str]] = defaultdict(set)

    async def __aenter__(self) -> Self:
        working = repeat(self._work, every_s=self._interval_s, woken=asyncio.Event(), log_failed="afterwards_failed")
        self._task = asyncio.create_task(working, name="upkeep of facts")
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    def mark_used(self, owner: str, memories: Iterable[Memory]) -> None:
        if ids := {memory.id for memory in memories}:
            self._used[owner] |= ids

    async def _work(self) -> None:
        used, self._used = self._used, defaultdict(set)
        for owner, memory_ids in used.items():
            async with self._database.autocommit() as connection:
                await facts.mark_used(connection, owner, sorted(memory_ids), now=self._clock())
        await self._long_term.embed_missing()
