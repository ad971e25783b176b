"""What PostgreSQL gives up for another transaction is done again, or told as something to try again."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg
import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection
from structlog.testing import capture_logs

from segue.config import Settings
from segue.db.engine import Database
from segue.db.outages import StorageUnavailable
from segue.domain.ids import utc_now
from segue.memory.session_store import create_session
from tests.support.logs import until
from tests.support.provider import Provider, calls, says
from tests.support.service import running
from tests.support.shelf import serving_shelf
from tests.support.stores import plain

RENAME = text("UPDATE sessions SET title = :title WHERE id = :id RETURNING title")
COUNT = text("UPDATE sessions SET next_seq = next_seq + 1 WHERE id = :id RETURNING next_seq")
RIVALS = "UPDATE sessions SET next_seq = next_seq + 1 WHERE id = $1"
WAITS = "SELECT count(*) FROM pg_stat_activity WHERE pid = $1 AND wait_event_type = 'Lock'"
TABLES = ("sessions", "turns", "messages", "tool_calls", "tool_results", "tool_states")
GIVES_UP = """
CREATE SEQUENCE tries;
GRANT ALL ON SEQUENCE tries TO PUBLIC;
CREATE FUNCTION gives_up() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    IF nextval('tries') % {every} = 0 THEN RAISE SQLSTATE '{state}'; END IF;
    RETURN NULL;
END $$;
"""
AT = "CREATE TRIGGER gives_up AFTER INSERT OR UPDATE ON {table} FOR EACH STATEMENT EXECUTE FUNCTION gives_up();"


@pytest.fixture
def database_url(own_database_url: str) -> str:
    return own_database_url


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    """A connection that looks for a deadlock soon, which only an administrator may ask for."""
    opened = Database(database_url.replace("segue@", "postgres@"), writing=1)
    async with opened.autocommit() as connection:
        await connection.exec_driver_sql("SET deadlock_timeout = '20ms'")
    yield opened
    await opened.close()


@pytest.fixture
async def both(database: Database) -> tuple[str, str]:
    """Two sessions."""
    async with database.autocommit() as connection:
        made = [await create_session(connection, "ada", title=None, metadata={}, now=utc_now()) for _ in range(2)]
    return made[0].id, made[1].id


@asynccontextmanager
async def rivalled(database: Database, database_url: str, both: tuple[str, str]) -> AsyncIterator[AsyncConnection]:
    """A transaction that is to hold the first session within the block, and to ask for the second one at its end. That
    is held by another, which then waits for the first and never looks for a deadlock.
    """
    first, second = both
    rival = await asyncpg.connect(plain(database_url.replace("segue@", "postgres@")))
    await rival.execute("SET deadlock_timeout = '10min'")

    async def waits() -> bool:
        async with database.read_only() as reading:
            return bool((await reading.exec_driver_sql(WAITS, (rival.get_server_pid(),))).scalar())

    async def embrace() -> None:
        await rival.execute(RIVALS, first)
        await rival.execute("COMMIT")

    try:
        async with database.transaction() as connection:
            await rival.execute("BEGIN")
            await rival.execute(RIVALS, second)
            yield connection
            embracing = asyncio.create_task(embrace())
            await until(waits)
            await connection.execute(RENAME, {"id": second, "title": "last"})
    finally:
        await embracing
        await rival.close()


async def titles(database: Database) -> list[str | None]:
    async with database.read_only() as connection:
        return list(await connection.scalars(text("SELECT title FROM sessions ORDER BY id")))


async def test_a_transaction_that_lost_a_deadlock_is_done_again(
    database: Database, database_url: str, both: tuple[str, str]
) -> None:
    with capture_logs() as logs:
        async with rivalled(database, database_url, both) as connection:
            assert await connection.scalar(RENAME, {"id": both[0], "title": "first"}) == "first"
    assert await titles(database) == ["first", "last"]
    assert [line["sqlstate"] for line in logs if line["event"] == "transaction_repeated"] == ["40P01"]


async def test_a_transaction_that_would_be_answered_otherwise_the_second_time_is_not_done_again(
    database: Database, database_url: str, both: tuple[str, str]
) -> None:
    with pytest.raises(StorageUnavailable) as refused:
        async with rivalled(database, database_url, both) as connection:
            assert await connection.scalar(COUNT, {"id": both[0]}) == 2
    assert (refused.value.code, refused.value.cause.name, refused.value.retryable) == (
        "storage_locked",
        "conflict",
        True,
    )
    assert await titles(database) == [None, None]
    async with database.read_only() as connection:
        assert set(await connection.scalars(text("SELECT next_seq FROM sessions"))) == {2}  # the rival's


@pytest.mark.in_turns(1)
@pytest.mark.parametrize("way", ["transaction", "autocommit"])
async def test_it_is_done_again_three_times_and_then_told_as_something_to_try_again(
    database: Database, way: str, both: tuple[str, str]
) -> None:
    async with database.autocommit() as connection:
        for statement in GIVES_UP.format(every=1, state="40001").split(";\n", 2):
            await connection.exec_driver_sql(statement)
        await connection.exec_driver_sql(AT.format(table="sessions"))
    with pytest.raises(StorageUnavailable) as refused:
        async with getattr(database, way)() as connection:
            await connection.execute(RENAME, {"id": both[0], "title": "first"})
    assert refused.value.cause.name == "conflict"
    async with database.read_only() as connection:
        assert await connection.scalar(text("SELECT last_value FROM tries")) == 4
    assert await titles(database) == [None, None]


@pytest.mark.sweep
async def test_no_request_and_no_turn_fails_when_one_write_in_eleven_is_given_up(
    settings: Settings, database_url: str, provider: Provider
) -> None:
    admin = await asyncpg.connect(plain(database_url))
    await admin.execute(GIVES_UP.format(every=11, state="40P01") + "".join(AT.format(table=each) for each in TABLES))
    stamp = calls(("mcp_stamp_item", {"item_id": "itm-1"}))
    async with serving_shelf() as shelf:
        shelf.go.set()
        settings.mcp_config.write_text(json.dumps({"mcpServers": {"shelf": {"url": shelf.url}}}))
        async with running(settings.model_copy(update={"confirm": "never"})) as client:
            await client.connected("shelf")
            for _ in range(5):
                provider.will(stamp, says("Stamped."))
                session = await client.new_session()
                answer = await client.chat(session, "Stamp it.")
                assert [call["status"] for call in answer["tool_calls"]] == ["succeeded"]
                [turn] = await client.turns(session)
                assert (turn["status"], turn["attempts"]) == ("completed", 1)
                assert len(await client.messages(session)) == 4
        assert shelf.effects == ["stamp itm-1"] * 5
    assert await admin.fetchval("SELECT last_value FROM tries") > 50
    await admin.close()


@pytest.mark.parametrize("way", ["transaction", "autocommit"])
async def test_a_connection_that_is_gone_is_an_outage_and_nothing_is_done_again(database: Database, way: str) -> None:
    async def loses_its_connection() -> None:
        async with getattr(database, way)() as connection:
            (await connection.get_raw_connection()).driver_connection.terminate()
            await connection.execute(text("SELECT 1"))

    with pytest.raises(StorageUnavailable) as refused:
        await loses_its_connection()
    assert refused.value.cause.name == "lost"
