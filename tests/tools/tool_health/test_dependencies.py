"""A tool that needs another one first: locked, told how to unlock it, unlocked for good by a success."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx2
import pytest
from redis.asyncio import Redis

from segue.around.embedded.server_urls import ServerUrls
from segue.config import Settings
from tests.support.health import QUESTION, called, connect, offered, put, reset, state
from tests.support.plans import Frozen
from tests.support.provider import Provider, calls, says
from tests.support.service import Client, Process, running
from tests.support.shelf import Shelf

BASE, DEPENDENT = "mcp_base_tool", "mcp_dependent_tool"


async def test_a_locked_tool_is_not_offered_and_the_model_is_told_what_unlocks_it(
    client: Client, provider: Provider, shelf: Shelf
) -> None:
    session = await client.new_session()
    [call] = await called(client, provider, session, (DEPENDENT, {"topic": "tea"}))
    assert call["status"] == "failed"
    unlocking = "To unlock: run mcp_base_tool first (mcp_find_items may help)."
    assert call["error"] == f"{DEPENDENT} cannot run now. {unlocking}"
    assert f"- {DEPENDENT}: {unlocking}" in provider.notes(0)
    assert DEPENDENT not in offered(provider, 0)
    assert BASE in offered(provider, 0)
    assert shelf.effects == []
    locked = await state(client, session, DEPENDENT)
    assert (locked["status"], locked["available"], locked["missing_dependencies"]) == ("available", False, [BASE])
    assert (locked["consecutive_failures"], locked["execution_count"]) == (0, 0)


async def test_a_success_unlocks_it_in_the_next_request_of_the_same_turn(
    client: Client, provider: Provider, shelf: Shelf
) -> None:
    session = await client.new_session()
    provider.will(calls((BASE, {"topic": "tea"})), calls((DEPENDENT, {"topic": "tea"})), says("done"))
    answer = await client.chat(session, QUESTION)
    assert [DEPENDENT in offered(provider, request) for request in range(3)] == [False, True, True]
    assert DEPENDENT not in provider.notes(1)
    assert {call["status"] for call in answer["tool_calls"]} == {"succeeded"}
    assert shelf.effects == ["base tea", "dependent tea"]
    assert (await state(client, session, DEPENDENT))["missing_dependencies"] == []


@pytest.mark.sweep
async def test_in_one_round_with_what_unlocks_it_a_locked_tool_does_not_run_yet(
    client: Client, provider: Provider, shelf: Shelf
) -> None:
    session = await client.new_session()
    await called(client, provider, session, (BASE, {"topic": "tea"}), (DEPENDENT, {"topic": "tea"}))
    assert shelf.effects == ["base tea"]
    assert DEPENDENT in offered(provider)


async def test_a_failed_call_and_another_sessions_success_unlock_nothing(client: Client, provider: Provider) -> None:
    session, other = await client.new_session(), await client.new_session()
    await called(client, provider, session, (BASE, {"topic": 7}))
    await called(client, provider, other, (BASE, {"topic": "tea"}))
    assert not (await state(client, session, DEPENDENT))["available"]
    assert (await state(client, other, DEPENDENT))["available"]


@pytest.mark.sweep
async def test_a_reset_locks_nothing_again(client: Client, provider: Provider) -> None:
    session = await client.new_session()
    await called(client, provider, session, (BASE, {"topic": "tea"}))
    await put(client, session, BASE, "maintenance")
    assert (await reset(client, session))[DEPENDENT]["available"]


@pytest.mark.sweep
async def test_a_sequence_is_followed_in_its_order(
    settings: Settings, provider: Provider, shelf: Shelf, clock: Frozen
) -> None:
    groups = [{"type": "sequence", "tools": ["base_tool", "find_items", "moody"]}]
    connect(settings, shelf, depends_on={"dependent_tool": groups})
    async with running(settings, clock=clock) as client:
        session = await client.new_session()
        steps = {BASE: {"topic": "a"}, "mcp_find_items": {"query": "a"}, "mcp_moody": {"word": "a"}}
        expected = [
            ("mcp_moody", [BASE, "mcp_find_items", "mcp_moody"]),
            (BASE, ["mcp_find_items", "mcp_moody"]),
            ("mcp_moody", ["mcp_find_items", "mcp_moody"]),
            ("mcp_find_items", ["mcp_moody"]),
            ("mcp_moody", []),
        ]
        for tool, missing in expected:
            await called(client, provider, session, (tool, steps[tool]))
            assert (await state(client, session, DEPENDENT))["missing_dependencies"] == missing


@asynccontextmanager
async def process_of(
    settings: Settings, servers: ServerUrls, database_url: str, provider: Provider
) -> AsyncIterator[Client]:
    """A service in a process of its own. Leaving it is kill -9."""
    process = Process(
        {
            "DATABASE_URL": database_url,
            "REDIS_URL": servers.redis_url,
            "MCP_CONFIG": str(settings.mcp_config),
            "OPENAI_BASE_URL": provider.base_url,
            "LLM_MODEL": "scripted",
            "WEB_SEARCH_PROVIDER": "none",
            "MIGRATE_ON_START": "false",
        }
    )
    try:
        url = await asyncio.to_thread(process.start)
        async with httpx2.AsyncClient(base_url=url, timeout=30) as http:
            yield Client(http)
    finally:
        process.kill()


@pytest.mark.sweep  # the same rows as in test_stored.py
async def test_what_was_unlocked_and_what_has_failed_survive_kill_nine_and_the_loss_of_redis(
    settings: Settings, servers: ServerUrls, database_url: str, provider: Provider, shelf: Shelf
) -> None:
    shelf.trouble = "closed"
    async with process_of(settings, servers, database_url, provider) as client:
        session = await client.new_session()
        failing = [("mcp_moody", {"word": str(number)}) for number in range(3)]
        await called(client, provider, session, (BASE, {"topic": "tea"}), *failing)
        await put(client, session, "mcp_get_item", "maintenance", reason="Moving house")
        before = (await client.get(f"/sessions/{session}/tool-states"))["tool_states"]
    async with Redis.from_url(servers.redis_url, protocol=2) as redis:
        await redis.flushall()
    async with process_of(settings, servers, database_url, provider) as client:
        assert (await client.get(f"/sessions/{session}/tool-states"))["tool_states"] == before
        [call] = await called(client, provider, session, (DEPENDENT, {"topic": "tea"}))
    assert call["status"] == "succeeded"
    assert (before["mcp_moody"]["status"], before["mcp_get_item"]["reason"]) == ("failed", "Moving house")
    assert DEPENDENT in offered(provider, 2)
    assert {"mcp_moody", "mcp_get_item"}.isdisjoint(offered(provider, 2))
