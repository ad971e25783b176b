"""What of the store shows only from behind: which tables a list reads, and which payloads are loaded."""

import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import pytest

from segue.config import Settings
from segue.db.engine import Database
from segue.tools.results import load_results, recent_references
from tests.support.explained import explained, statements
from tests.support.provider import Provider, says
from tests.support.results import loaded, ran, use_toolbox
from tests.support.service import running
from tests.support.stores import looking_into

MORE_OF = """
INSERT INTO {table} OVERRIDING SYSTEM VALUE SELECT copy.* FROM {table} AS one, generate_series(1, 3000) AS n,
LATERAL jsonb_populate_record(one, jsonb_build_object('{key}', 'call_' || n, 'seq', 1000 + n)) AS copy;
ANALYZE {table}
"""
CALLS_OF_A_LONG_SESSION = """
WITH one AS (
    INSERT INTO sessions (id, owner, metadata, created_at, updated_at, next_seq)
    VALUES ('ses_' || repeat('0', 26), 'local', '{}', now(), now(), 8001) RETURNING id
), of AS (
    INSERT INTO turns (id, session_id, seq, status, request, created_at)
    SELECT 'turn_' || lpad(n::text, 26, '0'), id, n * 4 - 3, 'completed', '{}', now()
    FROM one, generate_series(1, 2000) AS n RETURNING *
), said AS (
    INSERT INTO messages (id, session_id, seq, turn_id, turn_seq, role, content, created_at)
    SELECT 'msg_' || right(id, 26), session_id, seq, id, seq, 'assistant', '', now() FROM of RETURNING *
)
INSERT INTO tool_calls (id, session_id, turn_id, message_id, tool_name, args, status, started_at)
SELECT 'call_' || lpad(seq::text, 26, '0'), session_id, turn_id, id, 'echo', '{}', 'succeeded', now()
FROM said WHERE seq % 3 > 0 ORDER BY seq
"""
RESULTS_READ = """
SELECT seq_tup_read + idx_tup_fetch FROM pg_stat_xact_user_tables WHERE relname = 'tool_results'
"""


@pytest.fixture
def settings(settings: Settings) -> Settings:
    use_toolbox(settings)
    return settings


@pytest.fixture
async def database(settings: Settings) -> AsyncIterator[Database]:
    assert settings.database_url is not None
    opened = Database(settings.database_url.get_secret_value())
    yield opened
    await opened.close()


@pytest.mark.sweep
async def test_lists_and_messages_do_not_touch_the_payloads(settings: Settings, provider: Provider) -> None:
    async with running(settings) as client, looking_into(settings) as stores:
        session = await client.new_session()
        [call] = await ran(client, provider, session, ("big", {"n_bytes": 1_000_000}))
        with statements() as sent:
            for path in ("tool-results", "tool-results?tool=big&status=succeeded", "messages", "memory", "plans"):
                assert (await client.http.get(f"/sessions/{session}/{path}")).status_code in (200, 404)
        with statements() as reading:
            await loaded(client, session, call)

        async def plans_of(queries: list[tuple[str, tuple[Any, ...]]]) -> str:
            plans = [await stores.database.fetchval(f"EXPLAIN (FORMAT JSON) {sql}", *with_) for sql, with_ in queries]
            return json.dumps(plans)

        assert sent
        assert "tool_calls" in await plans_of(sent)
        assert "tool_results" not in await plans_of(sent)
        assert "tool_results" in await plans_of(reading)


@pytest.mark.sweep
async def test_a_turn_after_a_large_result_does_not_read_it(settings: Settings, provider: Provider) -> None:
    """Its payload is replaced by something no one could miss."""
    async with running(settings) as client, looking_into(settings) as stores:
        session = await client.new_session()
        await ran(client, provider, session, ("table", {"rows": 1}), ("big", {"n_bytes": 1_000_000}))
        await stores.database.execute("UPDATE tool_results SET payload = 'replaced'")
        provider.will(says("done"))
        await client.chat(session, "Go on.")
    small, large = (message["content"] for message in provider.messages(role="tool"))
    assert small == "replaced"
    assert "replaced" not in large


async def test_a_turn_reads_no_results_but_those_in_its_view(settings: Settings, provider: Provider) -> None:
    async with running(settings) as client, looking_into(settings) as stores:
        session = await client.new_session()
        await ran(client, provider, session, ("echo", {"n": 1}))
        for table, key in (("tool_calls", "id"), ("tool_results", "tool_call_id")):
            await stores.database.execute(MORE_OF.format(table=table, key=key))
        provider.will(says("done"))
        with statements() as sent:
            await client.chat(session, "Go on.")
        [(reading, values)] = [
            each for each in sent if each[0].startswith("SELECT tool_calls.id, coalesce(tool_results.kind")
        ]
        async with stores.database.transaction():
            await stores.database.execute("SET LOCAL plan_cache_mode = force_generic_plan")
            before = await stores.database.fetchval(RESULTS_READ)
            await stores.database.fetch(reading, *values)
            assert await stores.database.fetchval(RESULTS_READ) < before + 10  # to plan reads some, too


@pytest.mark.sweep
async def test_of_a_sessions_results_those_asked_for_are_loaded(
    settings: Settings, database: Database, provider: Provider
) -> None:
    async with running(settings) as client:
        session, other = await client.new_session(), await client.new_session()
        [first, second, empty] = await ran(
            client, provider, session, ("echo", {"n": 1}), ("big", {"n_bytes": 5000}), ("fails", {"message": "no"})
        )
        [foreign] = await ran(client, provider, other, ("echo", {"n": 1}))
    one, two, nothing, theirs = (call["tool_call_id"] for call in (first, second, empty, foreign))
    now = datetime.now(UTC)
    async with database.read_only() as connection:
        assert await load_results(connection, session, [], now=now) == {}
        everything = await load_results(connection, session, [one, two], now=now)
        assert {call: result.value() for call, result in everything.items()} == {one: {"n": 1}, two: "x" * 5000}
        asked = await load_results(connection, session, [two, nothing, theirs], now=now)
        assert {call: result.value() for call, result in asked.items()} == {two: "x" * 5000}
        small = await load_results(connection, session, [one, two], now=now, max_bytes=100)
        assert {call: result.content for call, result in small.items()} == {one: '{"n":1}', two: None}


@pytest.mark.in_turns(1)
@pytest.mark.parametrize("up_to", [2001, 7997])
async def test_results_of_a_sessions_first_turns_are_listed_without_reading_those_of_all_later_ones(
    settings: Settings, database: Database, up_to: int
) -> None:
    async with looking_into(settings) as stores:
        await stores.database.execute(CALLS_OF_A_LONG_SESSION)
        await stores.database.execute("VACUUM ANALYZE sessions, turns, messages, tool_calls")
    async with database.read_only() as connection, explained(connection) as reading:
        found = await recent_references(connection, f"ses_{0:026}", up_to=up_to)
    newest = [seq for seq in range(up_to, 0, -4) if seq % 3 > 0][:50]
    assert [each.tool_call_id for each in found] == [f"call_{seq:026}" for seq in newest]
    assert reading.rows < 500
