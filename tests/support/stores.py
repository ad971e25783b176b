"""Databases of a test's own, and what is left in Postgres and Redis, looked at behind the service's back."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import asyncpg
from redis.asyncio import Redis
from sqlalchemy import make_url

from segue.around.embedded.server_urls import ServerUrls
from segue.config import Settings
from tests.support import kept_connections
from tests.support.logs import until
from tests.support.patience import PATIENCE_S

TABLES = ("sessions", "turns", "messages", "tool_calls", "tool_results")
CHANNEL = "rows"
NOTIFY_CHANGES = """
CREATE FUNCTION notify_test() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN PERFORM pg_notify('rows', TG_TABLE_NAME || ' ' || left(current_query(), 1000)); RETURN NULL; END $$;
DO $$ DECLARE name text; BEGIN
    FOR name IN SELECT table_name FROM information_schema.tables WHERE table_schema = 'public' LOOP
        EXECUTE format('CREATE TRIGGER notify_test AFTER INSERT OR UPDATE OR DELETE ON %I
                        FOR EACH STATEMENT EXECUTE FUNCTION notify_test()', name);
    END LOOP;
END $$
"""
EMPTY = """
CREATE OR REPLACE FUNCTION pg_temp.empty(kept int[]) RETURNS void LANGUAGE plpgsql AS $$ DECLARE
    large boolean := false;
    name text;
BEGIN
    PERFORM pg_terminate_backend(pid, 5000) FROM pg_stat_activity
        WHERE datname = current_database() AND pid <> ALL (pg_backend_pid() || kept);
    SELECT bool_or(pg_table_size(relid) > 1000000) INTO large FROM pg_stat_user_tables;
    FOR name IN SELECT relname FROM pg_stat_user_tables WHERE relname <> 'alembic_version' ORDER BY relid DESC LOOP
        IF large THEN
            EXECUTE format('TRUNCATE %I CASCADE', name);
        ELSE
            EXECUTE format('DELETE FROM %I', name);
        END IF;
    END LOOP;
END $$
"""
# A table that was dropped and made again has another number, and no trigger of `NOTIFY_CHANGES`.
THE_TABLES = """
SELECT string_agg(concat_ws('.', oid, relname, relnatts, relhastriggers), ' ' ORDER BY oid) FROM pg_class
WHERE relnamespace = 'public'::regnamespace AND relkind = 'r'
"""
# The tests' databases share a server: another one's connections wait for locks of their own.
WAITING = """
SELECT count(*) >= $2 FROM pg_stat_activity
WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE $1
"""
_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Stores:
    database: asyncpg.Connection
    redis: Redis

    async def rows(self) -> dict[str, int]:
        """How many rows each table has."""
        return {table: await self.database.fetchval(f"SELECT count(*) FROM {table}") for table in TABLES}  # noqa: S608

    @asynccontextmanager
    async def hidden(self, table: str) -> AsyncIterator[None]:
        """No statement finds this table while the block lasts."""
        await self.database.execute(f"ALTER TABLE {table} RENAME TO hidden")
        try:
            yield
        finally:
            await self.database.execute(f"ALTER TABLE hidden RENAME TO {table}")

    async def until(self, query: str, *values: Any) -> Any:
        """The first value of a query's first row, once a change to some table has made it true. Gives up if nothing
        changes any more: a thousand turns take a busy machine minutes.
        """
        changed = asyncio.Event()
        await self.database.add_listener(CHANNEL, lambda *_: changed.set())
        while not (found := await self.database.fetchval(query, *values)):
            async with asyncio.timeout(PATIENCE_S):
                await changed.wait()
            changed.clear()
        return found

    @asynccontextmanager
    async def writing(self) -> AsyncIterator[list[str]]:
        """Gets a table and the statement for each transaction that writes to it, or would, until the block ends."""
        writes: list[str] = []
        ended = asyncio.Event()

        def note(*notification: Any) -> None:
            if write := notification[-1]:
                writes.append(write)
            else:
                ended.set()

        await self.database.add_listener(CHANNEL, note)
        yield writes
        await self.database.execute("SELECT pg_notify($1, '')", CHANNEL)
        async with asyncio.timeout(PATIENCE_S):
            await ended.wait()
        await self.database.remove_listener(CHANNEL, note)

    async def until_locked(self, statement: str = "%", count: int = 1) -> None:
        """Returns once so many connections wait for a lock in a statement like this. To be asked outside of the
        transaction that holds the lock, which sees the connections as they were.
        """
        await until(partial(self.database.fetchval, WAITING, statement, count))

    async def until_messages(self, session_id: str, count: int) -> None:
        """Returns once a session has at least as many messages."""
        await self.until("SELECT count(*) >= $2 FROM messages WHERE session_id = $1", session_id, count)

    async def until_key(self, condition: Callable[[], Awaitable[Any]]) -> Any:
        """What `condition` gives, once a change to some key of Redis has made it true."""
        await self.redis.config_set("notify-keyspace-events", "KA")
        async with self.redis.pubsub() as changes, asyncio.timeout(PATIENCE_S):
            await changes.psubscribe("__keyspace@*")
            while not (found := await condition()):
                await changes.get_message(timeout=None)
        return found

    async def keys(self, session_id: str = "") -> list[str]:
        """The Redis keys with a session's id in their name, or all."""
        return [key async for key in self.redis.scan_iter(match=f"*{session_id}*")]

    async def everlasting(self) -> list[str]:
        """The Redis keys without a TTL."""
        return [key for key in await self.keys() if await self.redis.ttl(key) == -1]


async def arrived(settings: Settings, session_id: str, count: int) -> None:
    """Returns once a session has at least as many messages."""
    async with looking_into(settings) as stores:
        await stores.until_messages(session_id, count)


def urls_of(settings: Settings) -> dict[str, str]:
    """What a process has in its environment that shares these stores."""
    assert settings.database_url is not None
    assert settings.redis_url is not None
    return {
        "DATABASE_URL": settings.database_url.get_secret_value(),
        "REDIS_URL": settings.redis_url.get_secret_value(),
    }


def socket_of(database_url: str) -> Path:
    """Where the PostgreSQL of the tests listens."""
    query = make_url(database_url).query
    return Path(f"{query['host']}/.s.PGSQL.{query['port']}")


@asynccontextmanager
async def looking_into(settings: Settings) -> AsyncIterator[Stores]:
    """The stores of the service that runs with these settings."""
    urls = urls_of(settings)
    database = await asyncpg.connect(plain(urls["DATABASE_URL"]))
    redis = Redis.from_url(urls["REDIS_URL"], protocol=2, decode_responses=True)
    try:
        yield Stores(database, redis)
    finally:
        await redis.aclose()
        await database.close()


async def notify_changes(url: str) -> None:
    """Makes a database, and every copy of it, announce its changes: what `Stores.until` waits for."""
    connection = await asyncpg.connect(plain(url))
    try:
        await connection.execute(NOTIFY_CHANGES)
    finally:
        await connection.close()


@asynccontextmanager
async def new_database(servers: ServerUrls, template: str) -> AsyncIterator[str]:
    """The URL of a copy of a database, for as long as the block lasts."""

    async def is_dropped() -> bool:
        """Not while a process of PostgreSQL's own, such as its autovacuum, looks at it, which no user may end."""
        with suppress(asyncpg.InsufficientPrivilegeError):
            await connection.execute(f"DROP DATABASE {name} WITH (FORCE)")
            return True
        return False

    name = f"test_{next(_numbers)}"
    connection = await asyncpg.connect(plain(servers.database_url))
    try:
        await connection.execute(f"CREATE DATABASE {name} TEMPLATE {template} STRATEGY FILE_COPY")
        yield named(servers.database_url, name)
        await until(is_dropped)
    finally:
        await connection.close()


@dataclass(slots=True)
class KeptDatabase:
    """A database with one test after the other. A connection stays, because one that has emptied it before does it in a
    tenth of the time; and those of services, once these have closed them.
    """

    url: str
    _connection: asyncpg.Connection | None = None
    _tables: str = ""

    async def empty(self) -> None:
        """Ends all other connections and deletes the rows."""
        kept_connections.keep_those_to(self.url)
        if self._connection is None or self._connection.is_closed():
            self._connection = await asyncpg.connect(plain(self.url))
            await self._connection.execute(EMPTY)
        await self._connection.execute("SELECT pg_temp.empty($1)", kept_connections.processes())
        self._tables = await self._connection.fetchval(THE_TABLES)

    async def is_as_it_was(self) -> bool:
        """Whether the tables are those that were emptied, with as many columns."""
        return self._connection is not None and self._tables == await self._connection.fetchval(THE_TABLES)

    async def close(self) -> None:
        await kept_connections.close_all()
        if self._connection is not None:
            await self._connection.close()


def plain(url: str) -> str:
    """The URL as asyncpg takes it."""
    return url.replace("postgresql+asyncpg://", "postgresql://")


def named(url: str, database: str) -> str:
    """The URL of another database of the same server."""
    return url.replace("/segue?", f"/{database}?")
