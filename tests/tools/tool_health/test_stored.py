"""Stored states: rows that cannot be read, tools that are gone, and what a turn asks the database."""

import json

import pytest
from structlog.testing import capture_logs

from segue.config import Settings
from tests.support.commands import ROOT
from tests.support.explained import statements
from tests.support.health import MOODY, called, fails_out, put, reset, state, states
from tests.support.plans import Frozen
from tests.support.provider import Provider, says
from tests.support.service import Client, running
from tests.support.shelf import Shelf
from tests.support.stores import looking_into
from tests.support.sweeps import first

BROKEN = ["null", "[]", '"failed"', '{"x": 1}', '{"status": "asleep"}', '{"marks": 7}', '{"failed_at": "yesterday"}']


async def store(settings: Settings, session: str, tool: str, health: str) -> None:
    async with looking_into(settings) as stores:
        await stores.database.execute(
            "INSERT INTO tool_states VALUES ($1, $2, 3, 'failed', $3::jsonb, now()) "
            "ON CONFLICT (session_id, tool) DO UPDATE SET health = $3::jsonb",
            session,
            tool,
            health,
        )


@pytest.mark.parametrize("health", first(2, BROKEN))
async def test_a_state_that_cannot_be_read_starts_anew_and_leaves_the_others_alone(
    health: str, client: Client, provider: Provider, shelf: Shelf, settings: Settings
) -> None:
    session = await fails_out(client, provider, shelf)
    await put(client, session, "mcp_get_item", "maintenance")
    await store(settings, session, MOODY, health)
    with capture_logs() as logs:
        now = await states(client, session)
    assert [(entry["table"], entry["id"]) for entry in logs if entry["event"] == "row_unreadable"] == [
        ("tool_states", MOODY)
    ]
    moody = now[MOODY]
    assert (moody["status"], moody["available"], moody["reason_code"]) == ("available", True, "state_unreadable")
    assert (moody["consecutive_failures"], moody["execution_count"]) == (0, 0)
    assert now["mcp_get_item"]["status"] == "maintenance"
    [call] = await called(client, provider, session, (MOODY, {"word": "x"}))
    assert call["status"] == "succeeded"
    after = await state(client, session)
    assert (after["reason_code"], after["execution_count"]) == (None, 1)


async def test_an_unreadable_state_is_lifted_by_a_reset_and_shown_to_ops_until_then(
    client: Client, settings: Settings
) -> None:
    session = await client.new_session()
    await store(settings, session, MOODY, '{"status": "asleep"}')
    [item] = (await client.get("/tool-states"))["items"]
    assert (item["session_id"], item["tool"], item["reason_code"]) == (session, MOODY, "state_unreadable")
    assert (await reset(client, session))[MOODY]["reason_code"] == "reset"
    assert (await client.get("/tool-states"))["items"] == []


@pytest.mark.sweep
async def test_a_state_of_a_newer_version_is_read_as_far_as_it_is_known(client: Client, settings: Settings) -> None:
    session = await client.new_session()
    await store(settings, session, MOODY, json.dumps({"status": "available", "execution_count": 7, "mood": "fine"}))
    assert (await state(client, session))["execution_count"] == 7


@pytest.mark.sweep
async def test_tools_that_are_gone_are_not_told_of(client: Client, provider: Provider, settings: Settings) -> None:
    session = await client.new_session()
    await store(settings, session, "mcp_gone", '{"status": "failed", "failed_at": "2026-11-20T09:00:00Z"}')
    assert "mcp_gone" not in await states(client, session)
    overview = await client.get("/tool-states")
    assert "mcp_gone" not in overview["tools"]
    assert overview["items"] == []
    await reset(client, session)
    provider.will(says("hello"))
    await client.chat(session, "Hello there.")
    assert "mcp_gone" not in str(provider.requests[-1])
    assert (await client.http.put(f"/sessions/{session}/tool-states/mcp_gone", json={"status": "available"})).json()[
        "code"
    ] == "unknown_tool"


async def test_states_go_with_their_session(
    client: Client, provider: Provider, shelf: Shelf, settings: Settings
) -> None:
    session = await fails_out(client, provider, shelf)
    await client.http.delete(f"/sessions/{session}")
    async with looking_into(settings) as stores:
        for table in ("tool_states", "tool_state_changes"):
            assert await stores.database.fetchval(f"SELECT count(*) FROM {table}") == 0  # noqa: S608 (one of the two above)


@pytest.mark.sweep
async def test_a_turn_asks_for_all_states_at_once_however_many_tools_there_are(
    settings: Settings, provider: Provider, clock: Frozen
) -> None:
    toolbox = {"command": "python", "args": [str(ROOT / "tests" / "support" / "toolbox.py")]}
    servers = {f"box{number}": {**toolbox, "prefix": f"b{number}_"} for number in range(5)}
    settings.mcp_config.write_text(json.dumps({"mcpServers": servers}))
    provider.will(says("hello"), says("hello"))
    all_shown = settings.model_copy(update={"llm_max_tools": 128})
    async with running(all_shown, clock=clock) as client:
        session, other = await client.new_session(), await client.new_session()
        with statements() as few:
            await client.chat(session, "Hello there.")
        tools = await states(client, other)
        for tool in tools:
            await put(client, other, tool, "maintenance")
        with statements() as many:
            await client.chat(other, "Hello there.")
    assert len(tools) > 40
    asked = [[statement for statement, _ in sent if "tool_states" in statement] for sent in (few, many)]
    assert asked[0] == asked[1]
    assert len(asked[1]) == 1
    assert not provider.requests[-1].get("tools")
