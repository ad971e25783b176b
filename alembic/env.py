"""Migrations over asyncpg, under an advisory lock so that processes that start together migrate once."""

import asyncio
import time

from sqlalchemy import Connection, event
from sqlalchemy.ext.asyncio import create_async_engine

from alembic import context
from segue.config import Settings
from segue.db.engine import UNNAMED, asyncpg_url
from segue.db.migrations import MIGRATION_LOCK
from segue.db.models import metadata

LOCK_TIMEOUT = "60s"
WAIT_S = 600
ASK_AGAIN_S = 0.2
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


def take_turns(holder: Connection) -> None:
    """Asks again and again for the lock that keeps others out: a statement that waited for it would be waited for by an
    index that is built concurrently. The lock is that of a transaction, for which a pooler in any mode keeps a
    connection. It stays open, idle, while another connection migrates.
    """
    for _ in range(round(WAIT_S / ASK_AGAIN_S)):
        if holder.exec_driver_sql(f"SELECT pg_try_advisory_xact_lock({MIGRATION_LOCK})").scalar():
            # this also closes the SELECT before it, for whose snapshot an index that is built concurrently would wait
            holder.exec_driver_sql("SET LOCAL idle_in_transaction_session_timeout = 0")
            return
        holder.rollback()
        time.sleep(ASK_AGAIN_S)
    raise TimeoutError(f"another process has been migrating it for {WAIT_S} s")


def _limit_transaction(connection: Connection) -> None:
    connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT}'")


async def run() -> None:
    engine = create_async_engine(asyncpg_url(database_url()), connect_args=UNNAMED)
    event.listen(engine.sync_engine, "begin", _limit_transaction)
    try:
        async with engine.connect() as holder, engine.connect() as connection:
            await holder.run_sync(take_turns)
            await connection.run_sync(migrate)
    finally:
        await engine.dispose()


asyncio.run(run())
