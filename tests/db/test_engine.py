"""What each way to Postgres allows."""

from collections.abc import AsyncIterator

import pytest
from sqlalchemy import delete, select
from sqlalchemy.exc import DBAPIError

from segue.db.engine import Database
from segue.db.models import sessions
from segue.domain.clock import utc_now
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
