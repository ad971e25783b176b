"""Migrations over asyncpg, under an advisory lock so that processes that start together migrate once."""

import asyncio
import time

from sqlalchemy import Connection
from sqlalchemy.ext.asyncio import create_async_engine

from alembic import context
from segue.config import Settings
from segue.db.engine import asyncpg_url
from segue.db.models import metadata

MIGRATION_LOCK = 0x5E60E
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
    connection.exec_driver_sql(f"SET lock_timeout = '{LOCK_TIMEOUT}'")
    _take_turns(connection)
    try:
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
    finally:
        connection.exec_driver_sql(f"SELECT pg_advisory_unlock({MIGRATION_LOCK})")
        connection.commit()


def _take_turns(connection: Connection) -> None:
    """Asks again and again for the lock that keeps others out. A statement that waited for it would be waited for by an
    index that is built concurrently. Ends its transactions, since a migration may commit in between.
    """
    for _ in range(round(WAIT_S / ASK_AGAIN_S)):
        taken = connection.exec_driver_sql(f"SELECT pg_try_advisory_lock({MIGRATION_LOCK})").scalar()
        connection.commit()
        if taken:
            return
        time.sleep(ASK_AGAIN_S)
    raise TimeoutError(f"another process has been migrating it for {WAIT_S} s")


async def run() -> None:
    engine = create_async_engine(asyncpg_url(database_url()))
    try:
        async with engine.connect() as connection:
            await connection.run_sync(migrate)
    finally:
        await engine.dispose()


asyncio.run(run())
