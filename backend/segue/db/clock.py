"""The time of day that every process of a store agrees on: PostgreSQL's.

A machine's clock may be wrong or be set while it runs. What one process writes and another compares, such as when a
plan expires or a tool failed, is told by this one. Between two answers of PostgreSQL it counts monotonic seconds.
"""

import time
from datetime import datetime, timedelta
from typing import Final, Self

import structlog

from segue.db.engine import Database
from segue.domain.clock import Clock, utc_now
from segue.domain.errors import AppError
from segue.watch import Watch

ASK_EVERY_S: Final = 10.0
WRONG_S: Final = 1.0  # a difference worth a line in the log

log = structlog.get_logger()


class StoreClock(Watch):
    """A Clock that follows PostgreSQL's while it is entered. Until PostgreSQL answers it is the machine's."""

    def __init__(self, database: Database, machine: Clock = utc_now) -> None:
        super().__init__("the clock of PostgreSQL", self._ask, every_s=ASK_EVERY_S)
        self._database = database
        self._zero = machine() - _elapsed()

    def __call__(self) -> datetime:
        return self._zero + _elapsed()

    async def __aenter__(self) -> Self:
        await self._ask()
        return await super().__aenter__()

    async def _ask(self) -> None:
        """Moves this clock only if it cannot be right: PostgreSQL read its own between question and answer."""
        asked = _elapsed()
        try:
            told = await self._database.time()
        except AppError as error:
            log.warning("clock_not_read", code=error.code)
            return
        right = min(max(self._zero, told - _elapsed()), told - asked)
        off_s = (self._zero - right).total_seconds()
        if abs(off_s) > WRONG_S:
            log.warning("clock_differs_from_postgres", ahead_s=round(off_s, 1))
        self._zero = right


def _elapsed() -> timedelta:
    return timedelta(seconds=time.monotonic())
