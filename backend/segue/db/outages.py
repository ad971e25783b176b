"""Names each outage of Postgres, logs it once in a while, and looks up who holds the lock that was waited for. What
fails for as long as it lasts is logged at its beginning and at its end.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Final

import structlog
from asyncpg import PostgresError
from sqlalchemy import text
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection

from segue.db.causes import LOCKED, OUTAGES, OutageCause, StorageUnavailable, cause_of, state_of

LOG_EVERY_S: Final = 10.0
LOOK_S: Final = 2.0
# Whom others wait for comes first, then who keeps others from a whole table, then the oldest that has written. A
# waiter comes last: whom it waits for is the cause.
_BLOCKER = text("""
WITH waited_for AS (
    SELECT unnest(pg_blocking_pids(pid)) AS pid FROM pg_stat_activity
    WHERE datname = current_database() AND wait_event_type = 'Lock'
), holding AS (
    SELECT pid FROM pg_locks WHERE granted AND locktype = 'relation'
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND mode IN ('ShareLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')
), others AS (
    SELECT *, pid IN (SELECT pid FROM waited_for) AS is_waited_for, pid IN (SELECT pid FROM holding) AS is_holding
    FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()
)
SELECT pid AS blocking_pid, application_name AS blocking_application, state AS blocking_state,
       query_start AS blocking_query_start, is_waited_for AS is_certain,
       round(extract(epoch FROM clock_timestamp() - coalesce(xact_start, query_start)))::int AS blocking_for_s
FROM others WHERE is_waited_for OR is_holding OR backend_xid IS NOT NULL
ORDER BY coalesce(wait_event_type, '') = 'Lock', is_waited_for DESC, is_holding DESC, xact_start LIMIT 1
""")

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Blocker:
    """A connection that holds a lock. It `is_certain` if another one waits for it at the moment; else it is the one
    that looks most like it. Without the text of its query: one that this service did not send may hold a user's words.
    """

    blocking_pid: int
    blocking_application: str | None
    blocking_state: str | None
    blocking_query_start: datetime | None
    blocking_for_s: int | None
    is_certain: bool

    def __str__(self) -> str:
        since = f"{self.blocking_query_start:%H:%M:%S} UTC" if self.blocking_query_start else "unknown"
        certainty = "blocked by" if self.is_certain else "probably blocked by"
        application = self.blocking_application or "unnamed"
        return (
            f"{certainty} pid {self.blocking_pid} ({application}, {self.blocking_state}), whose "
            f"transaction is {self.blocking_for_s} s old and whose last query began at {since}"
        )


class OutageLog:
    """Logs what goes wrong again and again once, as `failed` with its reason, and its end as `over`."""

    def __init__(self, failed: str, over: str) -> None:
        self._failed, self._over = failed, over
        self._said: Mapping[str, str] = {}

    def fails(self, **reason: str) -> None:
        if reason != self._said:
            log.warning(self._failed, **reason)
        self._said = reason

    def works(self) -> None:
        if self._said:
            log.info(self._over)
        self._said = {}


class Outages:
    def __init__(self, connect: Callable[[], AbstractAsyncContextManager[AsyncConnection]]) -> None:
        """`connect` opens a connection that no pool keeps: those of the pools may all wait for the lock."""
        self._connect = connect
        self._logged_at: dict[OutageCause, float] = {}
        self._lookups: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def named(self, *, otherwise: OutageCause | None = None) -> AsyncIterator[None]:
        """Raises StorageUnavailable for every error that is an outage; for others too, if they have a cause."""
        try:
            yield
        except OUTAGES as error:
            cause = cause_of(error) or otherwise
            if cause is None:
                raise
            self._log(cause, error)
            raise StorageUnavailable(cause) from error

    async def blocker(self) -> Blocker | None:
        """Returns the connection that others wait for, or None if there is none or Postgres does not say in time."""
        try:
            async with asyncio.timeout(LOOK_S), self._connect() as connection:
                found = (await connection.execute(_BLOCKER)).mappings().one_or_none()
        except (OSError, SQLAlchemyError, PostgresError):
            return None
        return Blocker(**found) if found else None

    async def close(self) -> None:
        for lookup in self._lookups:
            lookup.cancel()
        if self._lookups:
            await asyncio.wait(self._lookups)

    def _log(self, cause: OutageCause, error: BaseException) -> None:
        now = time.monotonic()
        if now - self._logged_at.get(cause, -LOG_EVERY_S) < LOG_EVERY_S:
            return
        self._logged_at[cause] = now
        kind = type(error).__name__
        log.warning("storage_failed", cause=cause.name, sqlstate=state_of(error), error=kind, advice=cause.mend)
        if cause is LOCKED:
            lookup = asyncio.create_task(self._log_blocker(), name="who holds the lock")
            self._lookups.add(lookup)
            lookup.add_done_callback(self._lookups.discard)

    async def _log_blocker(self) -> None:
        if found := await self.blocker():
            log.warning("storage_locked", **asdict(found))
