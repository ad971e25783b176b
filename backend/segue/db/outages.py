"""Why Postgres cannot be used: every cause by name, what a client is told, and what an operator does about it.

A cause is told by its SQLSTATE or by the type of the driver's error, never by a text that may hold a part of the URL
or a user's words. The exceptions are a pooler and a server without TLS, which have none of their own. Each outage is
logged once in a while, with the connection that holds the lock that was waited for.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime
from socket import gaierror
from ssl import SSLError
from typing import Final

import structlog
from asyncpg import ClientConfigurationError, PostgresError
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError, DisconnectionError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.ext.asyncio import AsyncConnection

from segue.domain.errors import AppError

READ_ONLY_STATE: Final = "25006"
DISK_FULL_STATE: Final = "53100"
PROTOCOL_VIOLATION: Final = "08P01"

# What an outage can raise. `cause_of` says whether it is one.
OUTAGES: Final = (OSError, RuntimeError, DisconnectionError, PoolTimeoutError, DBAPIError, PostgresError)


@dataclass(frozen=True, slots=True)
class OutageCause:
    """`name` is in the log and `/health/ready`, `code` in the problem. `why` goes on after "it cannot be used:";
    `mend` is for operators.
    """

    name: str
    code: str
    why: str
    mend: str


_START = "Start it, or correct DATABASE_URL; `segue serve` starts an embedded one again."
_CONNECTIONS = "Run fewer processes, raise max_connections or the role's CONNECTION LIMIT, or put a pooler in front."
REFUSED = OutageCause("refused", "storage_unavailable", "nothing listens there", _START)
UNKNOWN_HOST = OutageCause("unknown_host", "storage_unavailable", "its host name is unknown", "Correct DATABASE_URL.")
NO_ANSWER = OutageCause(
    "no_answer", "storage_unavailable", "it does not answer in time", "See whether its machine and the network live."
)
LOST = OutageCause("lost", "storage_unavailable", "it closed the connection", "See its log for a crash or a restart.")
STARTING = OutageCause(
    "starting", "storage_unavailable", "it is starting or stopping", "Wait. If it stays so, see its log for a recovery."
)
FAILING = OutageCause(
    "failing", "storage_unavailable", "it fails with an error of its own", "See its log for the SQLSTATE in ours."
)
ACCESS_DENIED = OutageCause(
    "access_denied",
    "storage_access_denied",
    "it refuses the user or the password",
    "Correct DATABASE_URL, or the role and pg_hba.conf of the server.",
)
NO_DATABASE = OutageCause(
    "no_database", "storage_access_denied", "it has no database of this name", "Create it, or correct DATABASE_URL."
)
TLS = OutageCause(
    "tls",
    "storage_unavailable",
    "no TLS as DATABASE_URL demands it can be had",
    "See its certificate, and `sslmode` in DATABASE_URL: verify-ca and verify-full need the authority's certificate as "
    "`sslrootcert`, or in ~/.postgresql/root.crt of this account.",
)
TOO_MANY_CONNECTIONS = OutageCause(
    "too_many_connections", "storage_too_many_connections", "it takes no more connections", _CONNECTIONS
)
POOL_BUSY = OutageCause(
    "pool_busy",
    "storage_unavailable",
    "every connection of this process is in use",
    "Look for a lock or slow statements first: they hold the connections. Then run more processes.",
)
STATEMENT_TIMEOUT = OutageCause(
    "statement_timeout",
    "storage_slow",
    "a statement took too long",
    "See its load, its disk, and `ANALYZE`; pg_stat_activity shows what runs.",
)
LOCKED = OutageCause(
    "locked",
    "storage_locked",
    "another connection holds a lock",
    "End the transaction that holds it: `SELECT pg_terminate_backend(<pid>)`.",
)
CONFLICT = OutageCause(
    "conflict",
    "storage_locked",
    "other transactions keep getting in its way",
    "See its log for what deadlocks: a migration, a script. Single ones are repeated, and need nothing.",
)
DISK_FULL = OutageCause("disk_full", "storage_full", "its disk is full", "Free or add disk space. It heals by itself.")
READ_ONLY = OutageCause(
    "read_only",
    "storage_read_only",
    "it only reads",
    "Point DATABASE_URL at the primary, or promote this one. If its host set default_transaction_read_only, free disk "
    "space.",
)
POOLER = OutageCause(
    "pooler",
    "storage_pooler",
    "a pooler in front of it refuses what a session needs, or shares its connections out",
    "Set DATABASE_POOLER=transaction, or let the pooler work in session mode with server_reset_query = DISCARD ALL. "
    "Then RECONNECT it: its connections still have settings of ours.",
)

_BY_STATE: Final[Mapping[str, OutageCause]] = {
    DISK_FULL_STATE: DISK_FULL,
    "25P03": LOST,  # idle in a transaction for too long
    "26000": POOLER,  # no such prepared statement: another client's connection to the server
    "40001": CONFLICT,
    "40P01": CONFLICT,
    "42P05": POOLER,  # such a prepared statement exists
    "53300": TOO_MANY_CONNECTIONS,
    "55P03": LOCKED,
    "57014": STATEMENT_TIMEOUT,
    "57P05": LOST,
}
_BY_CLASS: Final[Mapping[str, OutageCause]] = {
    "08": LOST,
    "28": ACCESS_DENIED,
    "3D": NO_DATABASE,
    "53": FAILING,
    "57": STARTING,
    "58": FAILING,
}
_BY_KIND: Final[Mapping[type[BaseException], OutageCause]] = {
    gaierror: UNKNOWN_HOST,
    SSLError: TLS,
    ConnectionRefusedError: REFUSED,
    FileNotFoundError: REFUSED,  # a server that is starting has no socket yet
    ConnectionError: LOST,
    DisconnectionError: LOST,
    TimeoutError: NO_ANSWER,
    PoolTimeoutError: POOL_BUSY,
}


class StorageUnavailable(AppError):
    """Postgres cannot be used now. Its text holds nothing of the statement."""

    def __init__(self, cause: OutageCause) -> None:
        detail = (
            f"The database cannot be used: {cause.why}. Try again in a moment; with an Idempotency-Key "
            "nothing is done twice."
        )
        super().__init__(cause.code, status=503, title="Storage is unavailable", detail=detail, retry_after_s=2)
        self.cause = cause


def state_of(error: BaseException) -> str:
    """Returns the SQLSTATE of the driver's error, or ""."""
    return getattr(getattr(error, "orig", None) or error, "sqlstate", None) or ""


def cause_of(error: BaseException) -> OutageCause | None:
    """Returns None if it is no outage, but a fault of ours or an answer to what was asked."""
    state = state_of(error)
    if unsaid := _without_state(error, state):
        return unsaid
    if state == READ_ONLY_STATE:  # else it is a write where only reading is meant
        return READ_ONLY if getattr(error, "connection_invalidated", False) else None
    if known := _BY_STATE.get(state) or _BY_CLASS.get(state[:2]):
        return known
    if isinstance(error, DBAPIError):
        return LOST if error.connection_invalidated or not state else None
    if isinstance(error, RuntimeError):
        # uvloop raises it for a connection that the server has just closed
        return LOST if "handler is closed" in str(error) else None
    # asyncio's, if a name has several addresses, has no number
    several = REFUSED if type(error) is OSError and error.errno is None else None
    return next((cause for kind, cause in _BY_KIND.items() if isinstance(error, kind)), several)


def _without_state(error: BaseException, state: str) -> OutageCause | None:
    """Returns a cause that has neither an SQLSTATE nor a type to itself. `ssl` is the only setting of the URL that the
    driver can find wrong.
    """
    if state == PROTOCOL_VIOLATION and "startup parameter" in str(error):
        return POOLER
    if isinstance(getattr(getattr(error, "orig", None), "__cause__", None), ClientConfigurationError):
        return TLS
    return TLS if type(error) is ConnectionError and "rejected SSL upgrade" in str(error) else None


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

    @contextmanager
    def logged(self) -> Iterator[None]:
        """Logs an AppError of the block in the place of raising it."""
        try:
            yield
        except AppError as error:
            self.fails(code=error.code)
        else:
            self.works()


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
