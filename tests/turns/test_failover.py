"""PostgreSQL fails over to a standby that lacks the last commits; Redis has all of it."""

import pytest

from segue.config import Settings
from tests.support.provider import Provider, says
from tests.support.service import running
from tests.support.stores import looking_into

TABLES = ("sessions", "turns", "messages")
COLUMNS = """SELECT string_agg(column_name, ', ') FROM information_schema.columns
WHERE table_name = $1 AND is_generated = 'NEVER'"""


@pytest.mark.sweep
async def test_watchers_get_the_answer_that_is_stored_after_a_failover(settings: Settings, provider: Provider) -> None:
    body, key = {"message": "What is it?", "background": True}, {"Idempotency-Key": "k1"}
    async with running(settings, takes_turns=False) as client, looking_into(settings) as stores:
        session = await client.new_session()
        turn = (await client.http.post(f"/sessions/{session}/chat", json=body, headers=key)).json()["turn_id"]
        events, database = f"/sessions/{session}/turns/{turn}/events", stores.database
        for table in TABLES:
            await database.execute(f"CREATE TABLE standby_{table} AS SELECT * FROM {table}")  # noqa: S608 (ours)
        provider.will(says("Answer A, which is lost."))
        async with running(settings):
            assert "Answer A" in (await client.http.get(events)).text
        for table in reversed(TABLES):
            await database.execute(f"DELETE FROM {table}")  # noqa: S608
        for table in TABLES:
            names = await database.fetchval(COLUMNS, table)
            kept = f"SELECT {names} FROM standby_{table}"  # noqa: S608
            await database.execute(f"INSERT INTO {table} ({names}) OVERRIDING SYSTEM VALUE {kept}")
        provider.will(says("Answer B, which is stored."))
        async with running(settings):
            [ended] = await client.ended(session)
            again = (await client.http.post(f"/sessions/{session}/chat", json=body, headers=key)).text
            watched = (await client.http.get(events)).text
        for table in TABLES:
            await database.execute(f"DROP TABLE standby_{table}")
    assert "Answer B" in ended["answer"]["message"]["content"]
    assert "Answer A" not in watched + again
    assert "Answer B" in watched
