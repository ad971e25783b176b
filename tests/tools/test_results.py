"""What of the store shows only from behind: which tables a list reads, and which payloads are loaded."""

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import pytest
from sqlalchemy import Engine, event

from segue.config import Settings
from segue.db.engine import Database
from segue.tools.results import load_results
from tests.support.provider import Provider, says
from tests.support.results import loaded, ran, use_toolbox
from tests.support.service import running
from tests.support.stores import looking_into

MORE_OF = """
INSERT INTO {table} OVERRIDING SYSTEM VALUE SELECT copy.* FROM {table} AS one, generate_series(1, 3000) AS n,
LATERAL jsonb_populate_record(one, jsonb_build_object('{key}', 'call_' || n, 'seq', 1000 + n)) AS copy;
ANALYZE {table}
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


@contextmanager
def statements() -> Iterator[list[tuple[str, tuple[Any, ...]]]]:
    """Every statement sent to Postgres inside the block, with its parameters."""
    seen: list[tuple[str, tuple[Any, ...]]] = []

    def keep(_: object, __: object, statement: str, parameters: tuple[Any, ...], *___: object) -> None:
        seen.append((statement, parameters))

    event.listen(Engine, "before_cursor_execute", keep)
    yield seen
    event.remove(Engine, "before_cursor_execute", keep)


async def test_lists_and_messages_do_not_touch_the_payloads(settings: Settings, provider: Provider) -> None:
    async with running(settings) as client, looking_into(settings) as stores:
        session = await client.new_session()
        [call] = await ran(client, provider, session, ("big", {"n_bytes": 1_000_000}))
        with statements() as sent:
            for path in ("tool-results", "tool-results?tool=big&status=succeeded", "messages", "memory", "plans"):
                assert (await client.http.get(f"/sessions/{session}/{path}")).status_code in (200, 404)
        with statements() as reading:
            await loaded(client, session, call)

        async def explained(queries: list[tuple[str, tuple[Any, ...]]]) -> str:
            plans = [await stores.database.fetchval(f"EXPLAIN (FORMAT JSON) {sql}", *with_) for sql, with_ in queries]
            return json.dumps(plans)

        assert sent
        assert "tool_calls" in await explained(sent)
        assert "tool_results" not in await explained(sent)
        assert "tool_results" in await explained(reading)


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
        [(reading, values)] = [each for each in sent if each[0].startswith("SELECT tool_calls.id, tool_results.kind")]
        async with stores.database.transaction():
            await stores.database.execute("SET LOCAL plan_cache_mode = force_generic_plan")
            before = await stores.database.fetchval(RESULTS_READ)
            await stores.database.fetch(reading, *values)
            assert await stores.database.fetchval(RESULTS_READ) < before + 10  # to plan reads some, too


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
