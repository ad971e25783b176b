"""Migrations over asyncpg, under an advisory lock so that processes that start together migrate once."""

import asyncio

from sqlalchemy import Connection
from sqlalchemy.ext.asyncio import create_async_engine

from alembic import context
from segue.config import Settings
from segue.db.engine import asyncpg_url
from segue.db.models import metadata

MIGRATION_LOCK = 0x5E60E
LOCK_TIMEOUT = "60s"
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
    connection.exec_driver_sql(f"SELECT pg_advisory_lock({MIGRATION_LOCK})")
    try:
        context.configure(
            connection=connection,
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


async def run() -> None:
    engine = create_async_engine(asyncpg_url(database_url()))
    try:
        async with engine.connect() as connection:
            await connection.run_sync(migrate)
    finally:
        await engine.dispose()


asyncio.run(run())
