"""Every connection to Postgres: short transactions, and a time limit on every wait.

A server that is lost, frozen, locked or refuses to write raises StorageUnavailable with the cause (outages.toml). What
PostgreSQL gave up in a deadlock or for a serialization failure is repeated (RepeatingConnection).
"""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager, suppress
from contextvars import ContextVar
from functools import partial
from itertools import count
from secrets import token_hex
from types import MappingProxyType
from typing import Any, Concatenate, Final, Literal, ParamSpec, TypeAlias, TypeVar, cast

import asyncpg
import orjson
from sqlalchemy import event, text
from sqlalchemy.engine import Connection as BlockingConnection
from sqlalchemy.engine import ExceptionContext
from sqlalchemy.exc import DBAPIError, DisconnectionError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from sqlalchemy.pool import ConnectionPoolEntry, NullPool, QueuePool
from sqlalchemy.sql.base import Executable

from segue.db.outages import DISK_FULL_STATE, FAILING, LOCKED, OUTAGES, READ_ONLY_STATE, Outages, StorageUnavailable
from segue.db.urls import address
from segue.domain.errors import AppError
from segue.domain.ids import read_json
from segue.log import log

Connection: TypeAlias = AsyncConnection  # what every statement is sent on

CONNECT_TIMEOUT_S = 2.0
POOL_TIMEOUT_S = 2.0
STATEMENT_TIMEOUT_S = 4.0
GOODBYE_S = 0.3  # of each connection, one after the other, when a process ends
# More than the 2 s that a turn waits for a connection, and less than the 4 s of docker-compose.yml, with 1 s for Redis.
PING_TIMEOUT_S = 2.5
# Set after connecting, as a pooler refuses such parameters. The server gives up first: it knows what was waited for.
SESSION_SETTINGS = {
    "jit": "off",
    "lock_timeout": "3000",
    "statement_timeout": "3500",
    "idle_in_transaction_session_timeout": "15000",
}
# Settings of a connection would reach others through a pooler that shares it out: no other client has used this one.
_NOT_SHARED = """DO $$ BEGIN
    IF current_setting('segue.taken', true) <> '' THEN
        RAISE SQLSTATE '26000' USING MESSAGE = 'a pooler has given this connection to several clients';
    END IF;
    PERFORM set_config('segue.taken', 'yes', false);
END $$; """
# Statements without a name are sent whole each time, so that it does not matter which connection has seen them before.
UNNAMED: Final[Mapping[str, Any]] = {"statement_cache_size": 0, "prepared_statement_cache_size": 0}
IN_TRANSACTIONS: Final = "READ COMMITTED"
RETRY_S = 0.25
# What does not fit into this little memory goes to a file, which is gone with the statement.
_WRITES_TO_DISK = """DO $$ BEGIN
    PERFORM set_config('work_mem', '64kB', true);
    PERFORM count(*) FROM generate_series(1, 20000);
END $$"""
# To be asked last in a transaction: if that is repeated, it has another id.
TRANSACTION_ID: Final = text("SELECT CAST(pg_current_xact_id() AS text)")
# One in the future is of a server whose standby took over, and had not come as far.
_STATUS = text("""
SELECT CASE WHEN id < pg_snapshot_xmax(pg_current_snapshot()) THEN pg_xact_status(id) ELSE 'in progress' END
FROM (SELECT CAST(CAST(:transaction AS text) AS xid8)) AS asked (id)
""")
_SHORT_WAITS = text("SELECT set_config('lock_timeout', '1000', true), set_config('statement_timeout', '2000', true)")
# The budget of a process, and one `alone`; docs/deployment.md adds it up.
WRITING_CONNECTIONS = 5
READING_CONNECTIONS = 5

REPEATS: Final = 3
PAUSE_S: Final = 0.05
_GIVEN_UP: Final = (asyncpg.DeadlockDetectedError, asyncpg.SerializationError)

Scoped = TypeVar("Scoped")
Asked = ParamSpec("Asked")
Loaded = TypeVar("Loaded")
Statements = Callable[Concatenate[Connection, Asked], Awaitable[Loaded]]  # with what they take and give
SendStatement = Callable[[], Awaitable[Any]]
Pooler = Literal["none", "session", "transaction"]

_outage_s: ContextVar[float] = ContextVar("outage_s", default=0.0)


class Database:
    """Two pools of connections: one that may write, and one whose every transaction PostgreSQL keeps to reading.

    A pooler in transaction mode shares its connections out, so that a setting of one would reach others. Then limits
    are set for each `transaction`, a single statement has only the driver's, and no write is refused while reading.
    `refuses_writes` since a write found the disk full, or a server that only reads, until `ping` finds otherwise.
    """

    def __init__(
        self,
        url: str,
        *,
        pooler: Pooler = "none",
        writing: int = WRITING_CONNECTIONS,
        reading: int = READING_CONNECTIONS,
        options: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        """`options` are read by those that write, from `connection.engine.get_execution_options()`."""
        self._stale_before = 0.0
        self.refuses_writes = False
        self._is_shared = pooler == "transaction"
        writing_engine = self._engine(url, pool_size=writing)
        self.outages = Outages(lambda: _make_engine(url, is_shared=self._is_shared, poolclass=NullPool).connect())
        event.listen(writing_engine.sync_engine, "handle_error", self._note_refusal)
        self._autocommit = writing_engine.execution_options(**options)
        self._writing = self._autocommit.execution_options(isolation_level=IN_TRANSACTIONS)
        # A setting of the connection, because BEGIN READ ONLY and COMMIT would cost two round trips for each reading.
        self._reading = self._engine(url, pool_size=reading, default_transaction_read_only="on")

    def transaction(self) -> AbstractAsyncContextManager[Connection]:
        """For several statements that hold together."""
        return self._opened(self._writing.begin)

    def autocommit(self) -> AbstractAsyncContextManager[Connection]:
        """For single guarded writes: each statement is a transaction of its own."""
        return self._opened(self._autocommit.connect)

    async def read(self, load: Statements[Asked, Loaded], *args: Asked.args, **named: Asked.kwargs) -> Loaded:
        """Returns what `load` reads, which gets a connection that is `read_only` before its other arguments."""
        async with self.read_only() as connection:
            return await load(connection, *args, **named)

    async def write(self, act: Statements[Asked, Loaded], *args: Asked.args, **named: Asked.kwargs) -> Loaded:
        """The same for one guarded write, under `autocommit`."""
        async with self.autocommit() as connection:
            return await act(connection, *args, **named)

    async def transact(self, act: Statements[Asked, Loaded], *args: Asked.args, **named: Asked.kwargs) -> Loaded:
        """The same for statements that hold together, in one `transaction`."""
        async with self.transaction() as connection:
            return await act(connection, *args, **named)

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[Connection]:
        """A connection that belongs to no pool and is closed at the end, for what PostgreSQL ties to a connection."""
        async with self.autocommit() as connection:
            driver: Any = (await connection.get_raw_connection()).driver_connection
            await connection.run_sync(BlockingConnection.detach)
            try:
                yield connection
            finally:
                if connection.invalidated:  # SQLAlchemy forgets a detached connection that is lost, and leaves it open
                    driver.terminate()

    def read_only(self) -> AbstractAsyncContextManager[Connection]:
        """For statements that only read, each for itself. PostgreSQL refuses a write, and a lock of rows."""
        return self._opened(self._reading.connect)

    async def ping(self, probe: Executable) -> None:
        """Raises StorageUnavailable sooner than a statement would, because a health check does not wait long. `probe`
        writes what turns write, and changes nothing. If Postgres `refuses_writes`, it is asked to write until it can.
        """
        try:
            async with asyncio.timeout(PING_TIMEOUT_S), self.transaction() as connection:
                await connection.execute(_SHORT_WAITS)
                await connection.execute(probe)
                if self.refuses_writes:
                    await connection.exec_driver_sql(_WRITES_TO_DISK)
                    self.refuses_writes = False
        except OUTAGES as error:
            self.outages.refuse(error, otherwise=FAILING)

    async def has_vectors(self) -> bool:
        """Whether the database has pgvector. Installs it first if the server offers it and this role may."""
        with suppress(DBAPIError, AppError):  # no such extension, no such right, or another process installs it
            await self.transact(Connection.exec_driver_sql, "CREATE EXTENSION IF NOT EXISTS vector")
        return bool(await self.read(Connection.scalar, text("SELECT to_regtype('vector') IS NOT NULL")))

    @property
    def connections(self) -> tuple[int, int]:
        """How many are in use, and how many there may be."""
        pools = [cast(QueuePool, engine.pool) for engine in (self._writing, self._reading)]
        return sum(pool.checkedout() for pool in pools), sum(pool.size() for pool in pools)

    async def close(self) -> None:
        await self._writing.dispose()
        await self._reading.dispose()
        await self.outages.close()

    @asynccontextmanager
    async def _opened(
        self, connect: Callable[[], AbstractAsyncContextManager[Connection]]
    ) -> AsyncIterator[Connection]:
        async def enter() -> Connection:
            try:
                return await stack.enter_async_context(connect())
            except OUTAGES as error:
                self.outages.refuse(error)

        try:
            async with AsyncExitStack() as stack:
                yield await outlast(enter)
        except OUTAGES as error:
            self.outages.refuse(error)

    def _engine(self, url: str, *, pool_size: int, **session_settings: str) -> AsyncEngine:
        engine = _make_engine(
            url,
            is_shared=self._is_shared,
            isolation_level="AUTOCOMMIT",  # in each connection once: as an option it is set for each use, and unset
            pool_size=pool_size,
            max_overflow=0,
            pool_timeout=POOL_TIMEOUT_S,
            pool_use_lifo=True,  # each connection prepares its own statements: the one used last knows most of them
            pool_recycle=1800,
        )
        event.listen(engine.sync_engine, "begin", self._begin)
        event.listen(engine.sync_engine, "checkin", _forget_statements)
        if not self._is_shared:
            event.listen(engine.sync_engine, "connect", partial(_set, SESSION_SETTINGS | session_settings))
        event.listen(engine.sync_engine, "connect", lambda _, record: record.info.update(since=time.monotonic()))
        event.listen(engine.sync_engine, "checkout", self._refuse_stale)
        return engine

    def _begin(self, connection: BlockingConnection) -> None:
        if connection.get_execution_options().get("isolation_level") != IN_TRANSACTIONS:
            return
        cast(RepeatingConnection, connection.connection.driver_connection).remember()
        if self._is_shared:
            limits = ", ".join(f"set_config('{name}', '{value}', true)" for name, value in SESSION_SETTINGS.items())
            connection.exec_driver_sql(f"SELECT {limits}")

    def _note_refusal(self, context: ExceptionContext) -> None:
        """If it only reads, the other connections may lead to the same server, which was the primary until now."""
        state = getattr(context.original_exception, "sqlstate", None)
        self.refuses_writes |= state in (DISK_FULL_STATE, READ_ONLY_STATE)
        if state == READ_ONLY_STATE:
            context.is_disconnect = True
            self._stale_before = time.monotonic()  # to read neither: a failover may have left them at a standby

    def _refuse_stale(self, connection: Any, record: ConnectionPoolEntry, _proxy: object) -> None:
        """After a restart of the server asyncpg knows that the socket is closed. The pool opens a new connection."""
        if connection.driver_connection.is_closed() or record.info["since"] <= self._stale_before:
            raise DisconnectionError("the server has closed this connection, or does not write any more")


def _set(session_settings: Mapping[str, str], connection: Any, _: object) -> None:
    statements = _NOT_SHARED + "; ".join(f"SET {name} = '{value}'" for name, value in session_settings.items())
    connection.run_async(lambda driver: driver.execute(statements))


def _forget_statements(connection: Any, _: object) -> None:
    if connection is not None:  # it was lost
        connection.driver_connection.forget()


def _make_engine(url: str, *, is_shared: bool, **pool: Any) -> AsyncEngine:
    """No other process gives a statement the same name, which a pooler might take for ours."""
    process, numbers = token_hex(8), count()
    bare, said = address(url)
    return create_async_engine(
        bare,
        json_serializer=lambda value: orjson.dumps(value, default=tuple).decode(),
        hide_parameters=True,  # an error shows the statement without its values, which hold users' messages
        json_deserializer=read_json,
        connect_args={
            **said,
            "timeout": CONNECT_TIMEOUT_S,
            "command_timeout": STATEMENT_TIMEOUT_S,
            "connection_class": RepeatingConnection,
            "server_settings": {"application_name": "segue", "timezone": "UTC"},
            **(UNNAMED if is_shared else {"prepared_statement_name_func": lambda: f"segue_{process}_{next(numbers)}"}),
        },
        **pool,
    )


async def has_committed(connection: Connection, transaction: str) -> bool:
    """Whether a transaction has committed whose COMMIT was not answered. Raises StorageUnavailable while it may."""
    status = await connection.scalar(_STATUS, {"transaction": transaction})
    if status == "in progress":
        raise StorageUnavailable(LOCKED)
    return bool(status == "committed")


async def is_pooled(connection: Connection) -> bool:
    """Whether a pooler answers, whose clients have no session of PostgreSQL to themselves."""
    adapted: Any = (await connection.get_raw_connection()).dbapi_connection
    return bool(adapted.driver_connection.get_server_pid() != await connection.scalar(text("SELECT pg_backend_pid()")))


@contextmanager
def outlasting(outage_s: float) -> Iterator[None]:
    """Within the block a connection is waited for as long as this; elsewhere a client waits, and is told at once."""
    before = _outage_s.set(outage_s)
    try:
        yield
    finally:
        _outage_s.reset(before)


async def outlast(attempt: Callable[[], Awaitable[Scoped]]) -> Scoped:
    """Attempts what may be repeated until Postgres answers, as long as `outlasting` says."""
    give_up_at = time.monotonic() + _outage_s.get()
    is_told = False
    while True:
        try:
            return await attempt()
        except StorageUnavailable:
            if time.monotonic() >= give_up_at:
                raise
        if not is_told:
            log.warning("storage_awaited", for_s=_outage_s.get())
        is_told = True
        await asyncio.sleep(RETRY_S)


class RepeatingConnection(asyncpg.Connection):  # type: ignore[misc]  # asyncpg has no types
    """A transaction is repeated only between `remember` and `forget`: all of its statements are SQLAlchemy's then."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._sent: list[tuple[SendStatement, Any]] | None = None
        self._repeats = 0

    async def close(self, **_: object) -> None:
        """Says goodbye, and hangs up if the server does not answer soon."""
        with suppress(TimeoutError):
            await super().close(timeout=GOODBYE_S)

    def remember(self) -> None:
        """Called as a transaction begins."""
        self._sent, self._repeats = [], 0

    def forget(self) -> None:
        self._sent = None

    async def prepare(self, query: str, **options: Any) -> "_Statement":
        return _Statement(self, await self._repeated(partial(super().prepare, query, **options)))

    async def executemany(self, command: str, args: Any, **options: Any) -> None:
        await self.run(partial(super().executemany, command, args, **options))

    async def run(self, send: SendStatement) -> Any:
        """Returns what `send` gives at last, and keeps it to compare if the transaction is repeated later."""
        answer = await self._repeated(send)
        if self._sent is not None:
            self._sent.append((send, answer))
        return answer

    async def _repeated(self, send: SendStatement) -> Any:
        alone = not (self.is_closed() or self.is_in_transaction())
        if alone:
            self._sent, self._repeats = None, 0
        failure = None
        while True:
            try:
                if failure is not None and not alone:
                    await self._send_again(failure)
                return await send()
            except _GIVEN_UP as error:
                failure = error
                if self._repeats == REPEATS or not (alone or self._sent is not None):
                    raise
            self._repeats += 1
            log.warning("transaction_repeated", sqlstate=failure.sqlstate, time=self._repeats)
            await asyncio.sleep(random.uniform(0.5, 1) * PAUSE_S * 2**self._repeats)  # noqa: S311 (no secret)

    async def _send_again(self, failure: Exception) -> None:
        """Raises `failure` if an answer is another one, or none."""
        await self.execute("ROLLBACK; BEGIN ISOLATION LEVEL READ COMMITTED")
        for send, answer in self._sent or ():
            try:
                is_same = await send() == answer
            except _GIVEN_UP:
                raise
            except asyncpg.PostgresError:
                is_same = False
            if not is_same:
                self.forget()
                raise failure


class _Statement:
    """A prepared statement, as much of it as SQLAlchemy uses."""

    def __init__(self, connection: RepeatingConnection, prepared: Any) -> None:
        self._connection, self._prepared = connection, prepared
        self.get_attributes, self.get_statusmsg = prepared.get_attributes, prepared.get_statusmsg

    async def fetch(self, *args: Any) -> Any:
        rows, _ = await self._connection.run(partial(self._answer, args))
        return rows

    async def _answer(self, args: tuple[Any, ...]) -> tuple[Any, str | None]:
        return await self._prepared.fetch(*args), self._prepared.get_statusmsg()
