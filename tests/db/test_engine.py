"""What each way to Postgres allows."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from sqlalchemy import delete, select, text
from sqlalchemy.exc import DBAPIError

from segue.db.engine import Database
from segue.db.models import sessions
from segue.domain.clock import utc_now
from segue.domain.errors import AppError
from segue.memory.sessions import create_session

READ_ONLY_TRANSACTION = "25006"


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    opened = Database(database_url)
    yield opened
    await opened.close()


async def test_postgres_refuses_a_write_and_a_lock_where_only_reading_is_meant(database: Database) -> None:
    async with database.autocommit() as connection:
        session = await create_session(connection, "ada", title=None, metadata={}, now=utc_now())
    mine = select(sessions.c.id).where(sessions.c.owner == "ada")
    for write in (delete(sessions), mine.with_for_update()):
        with pytest.raises(DBAPIError) as refused:
            async with database.read_only() as connection:
                await connection.execute(write)
        assert getattr(refused.value.orig, "sqlstate", None) == READ_ONLY_TRANSACTION
    async with database.read_only() as connection:
        assert await connection.scalar(mine) == session.id


async def test_reading_takes_no_connection_from_writing(database_url: str) -> None:
    database = Database(database_url, writing=1, reading=1)
    async with database.read_only() as reading, database.transaction() as writing:
        assert await reading.scalar(select(1)) == await writing.scalar(select(1))
        assert database.connections == (2, 2)
    await database.close()


async def test_a_socket_that_is_not_there_yet_is_an_outage(tmp_path: Path) -> None:
    database = Database(f"postgresql://segue@/segue?host={tmp_path}")
    for opened in (database.autocommit, database.transaction, database.read_only):
        with pytest.raises(AppError, match="storage_unavailable"):
            async with opened():
                pass
    await database.close()


async def test_a_connection_that_no_longer_writes_is_an_outage_once_and_then_gone(database_url: str) -> None:
    database = Database(database_url, writing=1, reading=1)
    async with database.read_only() as connection:
        reader = await connection.scalar(text("SELECT pg_backend_pid()"))
    async with database.autocommit() as connection:
        await connection.exec_driver_sql("SET default_transaction_read_only = on")
    with pytest.raises(AppError, match="storage_unavailable"):
        async with database.transaction() as connection:
            await connection.execute(delete(sessions))
    async with database.transaction() as connection:
        await connection.execute(delete(sessions))
    async with database.read_only() as connection:
        assert await connection.scalar(text("SELECT pg_backend_pid()")) != reader
    await database.close()


@pytest.mark.parametrize("state", ["08006", "53100", "53300", "57P01", "57P03", "58030"])
async def test_what_the_server_has_run_out_of_is_an_outage(database: Database, state: str) -> None:
    with pytest.raises(AppError, match="storage_unavailable"):
        async with database.read_only() as connection:
            await connection.exec_driver_sql(f"DO $$ BEGIN RAISE SQLSTATE '{state}'; END $$")


async def test_a_server_whose_disk_is_full_is_down_until_it_takes_a_file(database_url: str) -> None:
    database = Database(database_url.replace("segue@", "postgres@"), writing=1)
    async with database.autocommit() as connection:
        await connection.exec_driver_sql("SET temp_file_limit = 0")
    await database.ping()
    with pytest.raises(AppError, match="storage_unavailable"):
        async with database.autocommit() as connection:
            await connection.exec_driver_sql("DO $$ BEGIN RAISE SQLSTATE '53100'; END $$")
    for _ in range(2):
        with pytest.raises(AppError, match="storage_unavailable"):
            await database.ping()
    async with database.autocommit() as connection:
        await connection.exec_driver_sql("SET temp_file_limit = -1")
    await database.ping()
    await database.close()
