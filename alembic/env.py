"""Migrations over asyncpg, under an advisory lock so that processes that start together migrate once.

A lock of a table is waited for shorter than PostgreSQL takes to look for a deadlock: so it is never traffic that is
given up, and what waits behind the migration goes on soon. The migration is tried again, from the revision it reached.
"""

import asyncio
import random
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import structlog
from sqlalchemy import Connection, NullPool, event, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from alembic import context
from segue.config import Settings
from segue.db.engine import UNNAMED
from segue.db.migrations import MIGRATION_LOCK
from segue.db.models import metadata
from segue.db.outages import CONFLICT, LOCKED, cause_of
from segue.db.urls import address

LIMIT_LOCKS = """
SELECT set_config('lock_timeout', greatest(extract(epoch FROM current_setting('deadlock_timeout')::interval) * 500, 1)
                                  ::int::text, true)
"""
ANSWER_TIMEOUT_S = 10  # to a connection, to the first question
STATEMENT_TIMEOUT_S = 3600  # to build an index, or to fill a column
WAIT_S = 600
ASK_AGAIN_S = 0.2
TELL_EVERY_S = 10

log = structlog.get_logger()

# Columns that this release does not use and the one before still reads: a later one drops them.
LET_GO = frozenset({("tool_calls", "args_hash")})


def database_url() -> str:
    given = context.config.attributes.get("database_url")
    if given:
        return str(given)
    configured = Settings().database_url
    if configured is None:
        raise SystemExit("Set DATABASE_URL, or run `segue migrate` for the embedded servers.")
    return configured.get_secret_value()


def migrate(connection: Connection) -> None:
    if schema := context.config.attributes.get("schema"):
        connection.exec_driver_sql(f"SET search_path = {schema}")
        connection.commit()
    context.configure(
        connection=connection,
        transaction_per_migration=True,
        target_metadata=metadata,
        compare_server_default=True,
        include_name=lambda name, _, parents: (parents.get("table_name"), name) not in LET_GO,
    )
    with context.begin_transaction():
        context.run_migrations()
    connection.commit()


async def take_turns(holder: AsyncConnection) -> None:
    """Asks again and again for the lock that keeps others out: a statement that waited for it would be waited for by an
    index that is built concurrently. The lock is that of a transaction, for which a pooler in any mode keeps a
    connection. It stays open, idle, while another connection migrates.
    """
    for _ in range(round(WAIT_S / ASK_AGAIN_S)):
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            is_mine = await holder.scalar(text(f"SELECT pg_try_advisory_xact_lock({MIGRATION_LOCK})"))
        if is_mine:
            # this also closes the SELECT before it, for whose snapshot an index that is built concurrently would wait
            await holder.exec_driver_sql("SET LOCAL idle_in_transaction_session_timeout = 0")
            return
        await holder.rollback()
        await asyncio.sleep(ASK_AGAIN_S)
    raise TimeoutError(f"another process has been migrating it for {WAIT_S} s")


async def migrate_between_others(connection: AsyncConnection) -> None:
    give_up_at = time.monotonic() + WAIT_S
    while True:
        try:
            return await connection.run_sync(migrate)
        except DBAPIError as error:
            cause = cause_of(error)
            if cause not in (LOCKED, CONFLICT) or time.monotonic() >= give_up_at:
                raise
        log.info("migration_gave_way", cause=cause.name)
        await connection.rollback()
        await asyncio.sleep(random.uniform(0.5, 1.5))  # noqa: S311 (no secret)


@asynccontextmanager
async def told(waits_for: str) -> AsyncIterator[None]:
    """Logs every TELL_EVERY_S that the block is still not done."""

    async def tell() -> None:
        began = time.monotonic()
        while True:
            await asyncio.sleep(TELL_EVERY_S)
            log.warning("migration_waits", waits_for=waits_for, for_s=round(time.monotonic() - began))

    telling = asyncio.create_task(tell())
    try:
        yield
    finally:
        telling.cancel()


def _limit_locks(connection: Connection) -> None:
    connection.exec_driver_sql(LIMIT_LOCKS)


@asynccontextmanager
async def connected(engine: AsyncEngine) -> AsyncIterator[AsyncConnection]:
    async with AsyncExitStack() as stack:
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            connection = await stack.enter_async_context(engine.connect())
        try:
            yield connection
        finally:
            await connection.invalidate()  # closed normally, it would wait until the server hangs up, however long


async def run() -> None:
    url, said = address(database_url())
    driver = {**said, **UNNAMED, "command_timeout": STATEMENT_TIMEOUT_S}
    engine = create_async_engine(url, connect_args=driver, poolclass=NullPool)
    event.listen(engine.sync_engine, "begin", _limit_locks)
    async with connected(engine) as holder, connected(engine) as connection:
        async with told("another process that migrates"):
            await take_turns(holder)
        async with told("the migration"):
            await migrate_between_others(connection)


asyncio.run(run())
