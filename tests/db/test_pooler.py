"""A turn through PgBouncer, and what is told of one that cannot be used."""

import asyncio

import pytest
from pydantic import SecretStr

from segue.config import Settings
from segue.db.engine import Database
from segue.db.migrations import upgrade
from segue.db.outages import StorageUnavailable
from tests.support.pooler import needs_pgbouncer, pooled
from tests.support.provider import Provider, calls, says
from tests.support.service import running

pytestmark = needs_pgbouncer


async def test_sessions_share_the_connections_of_a_pooler_that_is_named(
    settings: Settings, database_url: str, provider: Provider
) -> None:
    async with pooled(database_url, "transaction") as url:
        await asyncio.to_thread(upgrade, url)
        changes = {"database_url": SecretStr(url), "database_pooler": "transaction"}
        async with running(settings.model_copy(update=changes)) as client:
            sessions = [await client.new_session() for _ in range(8)]
            provider.will(calls(("current_time", {})), says("It is noon."))
            assert (await client.chat(sessions[0], "What time is it?"))["message"]["content"] == "It is noon."
            provider.always("Hello", says("Good day."))
            answers = await asyncio.gather(*(client.chat(session, "Hello") for session in sessions))
            assert {answer["message"]["content"] for answer in answers} == {"Good day."}
            assert (await client.get("/health/ready"))["postgres"] == "ok"


async def test_a_pooler_that_shares_connections_out_and_is_not_named_is_told(database_url: str) -> None:
    async with pooled(database_url, "transaction") as url:
        database = Database(url)
        async with database.autocommit():
            pass
        with pytest.raises(StorageUnavailable) as refused:
            async with database.read_only() as connection:
                await connection.exec_driver_sql("SELECT 1")
        assert refused.value.code == "storage_pooler"
        await database.close()
