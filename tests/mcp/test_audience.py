"""A server for some agents and users: for all others its tools do not exist, whatever was planned before."""

import json
from typing import Any

import pytest
from structlog.testing import capture_logs

from segue.config import Settings
from tests.support.identity import new_key, speaking
from tests.support.logs import until
from tests.support.plans import deletion, offered
from tests.support.provider import Provider, calls, says
from tests.support.service import Client, running
from tests.support.shelf import Shelf

TOOL = "mcp_delete_item"


def limit(settings: Settings, shelf: Shelf, **to: list[str]) -> None:
    settings.mcp_config.write_text(json.dumps({"mcpServers": {"shelf": {"url": shelf.url, **to}}}))


async def listed(client: Client) -> set[str]:
    return {tool["name"] for tool in (await client.get("/tools"))["items"]}


def tools_of(request: dict[str, Any]) -> set[str]:
    return {tool["function"]["name"] for tool in request["tools"]}


async def test_a_tool_of_other_users_is_not_offered_listed_or_called_not_even_by_an_old_plan(
    settings: Settings, shelf: Shelf, provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("segue.watch.LOOK_EVERY_S", 0.05)
    limit(settings, shelf, users=["ada"])
    ada, eve = await new_key(settings, "ada"), await new_key(settings, "eve")
    async with (
        running(settings.model_copy(update={"auth": "api_key"})) as client,
        speaking(client, ada) as hers,
        speaking(client, eve) as theirs,
    ):
        session, _ = await offered(hers, provider, [deletion(1), deletion(2)])
        assert TOOL in await listed(hers)

        other = await theirs.new_session()
        assert TOOL not in await listed(theirs)
        assert TOOL not in (await theirs.get(f"/sessions/{other}/tool-states"))["tool_states"]
        state = await theirs.http.put(f"/sessions/{other}/tool-states/{TOOL}", json={"status": "available"})
        assert (state.status_code, state.json()["code"]) == (404, "unknown_tool")
        grant = await theirs.http.delete(f"/sessions/{other}/grants/{TOOL}")
        assert (grant.status_code, grant.json()["code"]) == (404, "unknown_tool")
        provider.will(calls((TOOL, {"item_id": "itm-1"})), says("No."))
        [call] = (await theirs.chat(other, "Delete it"))["tool_calls"]
        assert (call["status"], call["error"].partition(".")[0]) == ("failed", f"There is no tool called '{TOOL}'")
        assert TOOL not in tools_of(provider.requests[-1])

        limit(settings, shelf, users=["eve"])

        async def is_taken_away() -> bool:
            return TOOL not in await listed(hers)

        await until(is_taken_away)
        provider.will(says("It is not there any more."))
        answer = await hers.chat(session, "ok")
        assert answer["plan"]["steps"][0]["status"] == "failed"
        assert TOOL in await listed(theirs)
    assert shelf.effects == []


async def test_a_tool_of_another_agent_is_not_offered_and_an_agent_that_is_not_there_is_told(
    settings: Settings, shelf: Shelf, provider: Provider
) -> None:
    limit(settings, shelf, agents=["clerk", "clark"])
    path = settings.mcp_config.with_name("agents.toml")
    path.write_text('[agents.clerk]\nname = "Clerk"\n')
    with capture_logs() as logs:
        async with running(settings.model_copy(update={"agents_config": path})) as client:
            provider.will(says("Hello."), says("Hello."))
            for agent in ("segue", "clerk"):
                await client.chat(await client.new_session(agent=agent), "Hello")
            assert [TOOL in tools_of(request) for request in provider.requests] == [False, True]
    assert [log["agents"] for log in logs if log["event"] == "mcp_config_unknown_agents"] == [["clark"]]
