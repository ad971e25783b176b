"""Every connection to Postgres: short transactions, and a time limit on every wait.

Knows no table. A server that is lost, frozen or refuses to write raises AppError `storage_unavailable`, for every error
the driver has for it.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager, suppress
from contextvars import ContextVar
from datetime import datetime
from typing import Any, TypeVar, cast

import orjson
import structlog
from sqlalchemy import event, text
from sqlalchemy.engine import ExceptionContext
from sqlalchemy.exc import DBAPIError, DisconnectionError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from sqlalchemy.pool import ConnectionPoolEntry, QueuePool

from segue.db.reading import read_json
from segue.domain.errors import AppError

CONNECT_TIMEOUT_S = 2.0
POOL_TIMEOUT_S = 2.0
STATEMENT_TIMEOUT_S = 4.0
PING_TIMEOUT_S = 1.0
RETRY_S = 0.25
READ_ONLY = "25006"
DISK_FULL = "53100"
UNAVAILABLE = "storage_unavailable"
# What does not fit into this little memory goes to a file, which is gone with the statement.
_WRITES_TO_DISK = """DO $$ BEGIN
    PERFORM set_config('work_mem', '64kB', true);
    PERFORM count(*) FROM generate_series(1, 20000);
END $$"""
# The budget of a process; docs/deployment.md adds it up.
WRITING_CONNECTIONS = 5
READING_CONNECTIONS = 5

Result = TypeVar("Result")

_outage_s: ContextVar[float] = ContextVar("outage_s", default=0.0)

log = structlog.get_logger()


class Database:
    """Two pools of connections: one that may write, and one whose every transaction PostgreSQL keeps to reading."""

    def __init__(self, url: str, *, writing: int = WRITING_CONNECTIONS, reading: int = READING_CONNECTIONS) -> None:
        self._stale_before = 0.0
        self._is_full = False
        self._writing = self._engine(url, pool_size=writing)
        event.listen(self._writing.sync_engine, "handle_error", self._note_refusal)
        self._autocommit = self._writing.execution_options(isolation_level="AUTOCOMMIT")
        # A setting of the connection, because BEGIN READ ONLY and COMMIT would cost two round trips for each reading.
        reading_engine = self._engine(url, pool_size=reading, default_transaction_read_only="on")
        self._reading = reading_engine.execution_options(isolation_level="AUTOCOMMIT")

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[AsyncConnection]:
        """For several statements that hold together."""
        async with _opened(self._writing.begin) as connection:
            yield connection

    @asynccontextmanager
    async def autocommit(self) -> AsyncIterator[AsyncConnection]:
        """For single guarded writes: each statement is a transaction of its own."""
        async with _opened(self._autocommit.connect) as connection:
            yield connection

    @asynccontextmanager
    async def read_only(self) -> AsyncIterator[AsyncConnection]:
        """For statements that only read, each for itself. PostgreSQL refuses a write, and a lock of rows."""
        async with _opened(self._reading.connect) as connection:
            yield connection

    async def ping(self) -> None:
        """Raises `storage_unavailable` sooner than a statement would, because a health check does not wait long, and
        if Postgres only reads: a standby, or a host that has set `default_transaction_read_only` as the disk is full.
        Once its disk was full, it is asked to write until it can.
        """
        async with _storage_errors(), asyncio.timeout(PING_TIMEOUT_S), self.autocommit() as connection:
            if await connection.scalar(text("SELECT current_setting('transaction_read_only')::boolean")):
                self._drop_connections()
                raise storage_unavailable()
            if self._is_full:
                await connection.exec_driver_sql(_WRITES_TO_DISK)
                self._is_full = False

    async def time(self) -> datetime:
        """Returns PostgreSQL's time of day."""
        async with self.read_only() as connection:
            told: datetime = (await connection.execute(text("SELECT clock_timestamp()"))).scalar_one()
        return told

    async def has_vectors(self) -> bool:
        """Whether the database has pgvector. Installs it first if the server offers it and this role may."""
        with suppress(DBAPIError, AppError):  # no such extension, no such right, or another process installs it
            async with self.transaction() as connection:
                await connection.exec_driver_sql("CREATE EXTENSION IF NOT EXISTS vector")
        async with self.read_only() as connection:
            return bool(await connection.scalar(text("SELECT to_regtype('vector') IS NOT NULL")))

    @property
    def connections(self) -> tuple[int, int]:
        """How many are in use, and how many there may be."""
        pools = [cast(QueuePool, engine.pool) for engine in (self._writing, self._reading)]
        return sum(pool.checkedout() for pool in pools), sum(pool.size() for pool in pools)

    async def close(self) -> None:
        await self._writing.dispose()
        await self._reading.dispose()

    def _engine(self, url: str, *, pool_size: int, **server_settings: str) -> AsyncEngine:
        engine = _make_engine(url, pool_size=pool_size, **server_settings)
        event.listen(engine.sync_engine, "connect", _remember_age)
        event.listen(engine.sync_engine, "checkout", self._refuse_stale)
        return engine

    def _note_refusal(self, context: ExceptionContext) -> None:
        """If it only reads, the other connections may lead to the same server, which was the primary until now."""
        state = getattr(context.original_exception, "sqlstate", None)
        self._is_full |= state == DISK_FULL
        if state == READ_ONLY:
            context.is_disconnect = True
            self._drop_connections()

    def _drop_connections(self) -> None:
        """Those that are open are not used again, to read neither: a failover may have left them at a standby."""
        self._stale_before = time.monotonic()

    def _refuse_stale(self, connection: Any, record: ConnectionPoolEntry, _proxy: object) -> None:
        """After a restart of the server asyncpg knows that the socket is closed. The pool opens a new connection."""
        if connection.driver_connection.is_closed() or record.info["since"] <= self._stale_before:
            raise DisconnectionError("the server has closed this connection, or does not write any more")


def _remember_age(_: object, record: ConnectionPoolEntry) -> None:
    record.info["since"] = time.monotonic()


def _make_engine(url: str, *, pool_size: int, **server_settings: str) -> AsyncEngine:
    """An error shows the statement without its values, which hold users' messages."""
    return create_async_engine(
        asyncpg_url(url),
        pool_size=pool_size,
        max_overflow=0,
        pool_timeout=POOL_TIMEOUT_S,
        pool_use_lifo=True,  # each connection prepares its own statements: the one used last knows most of them
        pool_recycle=1800,
        json_serializer=lambda value: orjson.dumps(value).decode(),
        hide_parameters=True,
        json_deserializer=read_json,
        connect_args={
            "timeout": CONNECT_TIMEOUT_S,
            "command_timeout": STATEMENT_TIMEOUT_S,
            "server_settings": {
                "application_name": "segue",
                "timezone": "UTC",
                "jit": "off",
                "idle_in_transaction_session_timeout": "15000",
                **server_settings,
            },
        },
    )


def asyncpg_url(url: str) -> str:
    """Returns the URL with the asyncpg driver in its scheme; hosts hand out `postgres://` and `postgresql://`."""
    scheme, separator, rest = url.partition("://")
    return f"postgresql+asyncpg{separator}{rest}" if scheme in ("postgres", "postgresql") else url


@contextmanager
def outlasting(outage_s: float) -> Iterator[None]:
    """Within the block a connection is waited for as long as this; elsewhere a client waits, and is told at once."""
    before = _outage_s.set(outage_s)
    try:
        yield
    finally:
        _outage_s.reset(before)


async def outlast(attempt: Callable[[], Awaitable[Result]]) -> Result:
    """Attempts what may be repeated until Postgres answers, as long as `outlasting` says."""
    give_up_at = time.monotonic() + _outage_s.get()
    is_told = False
    while True:
        try:
            return await attempt()
        except AppError as error:
            if error.code != UNAVAILABLE or time.monotonic() >= give_up_at:
                raise
        if not is_told:
            log.warning("storage_awaited", for_s=_outage_s.get())
        is_told = True
        await asyncio.sleep(RETRY_S)


@asynccontextmanager
async def _opened(
    connect: Callable[[], AbstractAsyncContextManager[AsyncConnection]],
) -> AsyncIterator[AsyncConnection]:
    async def enter() -> AsyncConnection:
        async with _storage_errors():
            return await stack.enter_async_context(connect())

    async with _storage_errors(), AsyncExitStack() as stack:
        yield await outlast(enter)


def storage_unavailable() -> AppError:
    return AppError(
        UNAVAILABLE,
        status=503,
        title="Storage is unavailable",
        detail="The database cannot be reached. Try again in a moment; with an Idempotency-Key nothing is done twice.",
        retryable=True,
        extra={"retry_after_s": 2},
    )


_LOST = (DisconnectionError, PoolTimeoutError, ConnectionError, TimeoutError)


@asynccontextmanager
async def _storage_errors() -> AsyncIterator[None]:
    try:
        yield
    except (*_LOST, FileNotFoundError) as error:  # a server that is starting has no socket yet
        raise storage_unavailable() from error
    except RuntimeError as error:
        if "handler is closed" in str(error):  # uvloop raises it for a connection that the server has just closed
            raise storage_unavailable() from error
        raise
    except DBAPIError as error:
        if _is_outage(error):
            raise storage_unavailable() from error
        raise


def _is_outage(error: DBAPIError) -> bool:
    """Whether the server caused it: connection lost or read-only, server starting or stopping, out of disk, memory or
    connections, unable to read its disk, time limit of a statement reached.
    """
    state = getattr(error.orig, "sqlstate", None) or ""
    return error.connection_invalidated or state == "" or state[:2] in ("08", "53", "57", "58") or state == "25P03"
