"""A server or a tool for some groups: for all others it does not exist, in the API and in a turn, attended or not."""

import base64
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest
from pydantic import SecretStr

from segue import ToolContext, tool
from segue.config import Settings
from segue.domain.tool import Audience
from tests.support.identity import new_key, speaking
from tests.support.plans import deletion, planned
from tests.support.provider import Provider, calls, says
from tests.support.service import Client, running
from tests.support.shelf import Shelf

DELETES, OF_CHOIR, NATIVE = "mcp_delete_item", "b_find_items", "open_safe"
SEALING = base64.urlsafe_b64encode(bytes(range(32))).decode()
CLOSED = {"ada": set(), "bob": {DELETES, NATIVE}, "eve": {OF_CHOIR}}
OPENED: list[tuple[str, ...]] = []


@tool(effect="read_only", groups=["staff"])
async def open_safe(context: ToolContext) -> str:
    """Opens the safe."""
    OPENED.append(context.groups)
    return "It is open."


@pytest.fixture
def guarded(settings: Settings, shelf: Shelf) -> Settings:
    servers = {
        "shelf": {"url": shelf.url, "tool_groups": {"delete_item": ["staff"]}},
        "b": {"url": shelf.url, "prefix": "b_", "groups": ["choir"]},
    }
    settings.mcp_config.write_text(json.dumps({"mcpServers": servers}))
    return settings.model_copy(update={"auth": "api_key", "llm_max_tools": 100})


@pytest.fixture
async def callers(guarded: Settings) -> AsyncIterator[dict[str, Client]]:
    """A user of no group, two of one each, and the first of these with a key that is of none."""
    groups = {"ada": (), "bob": ("staff", "others"), "eve": ("choir",)}
    async with running(guarded, tools=[open_safe]) as service, AsyncExitStack() as stack:
        for server in ("shelf", "b"):
            await service.connected(server)
        keys = {user: await new_key(guarded, user, groups=names) for user, names in groups.items()}
        keys["bob alone"] = await new_key(guarded, "bob")
        yield {name: await stack.enter_async_context(speaking(service, key)) for name, key in keys.items()}


def test_a_tool_for_groups_of_a_server_for_users_needs_both() -> None:
    audience = Audience(users=frozenset({"ada"}), groups=frozenset({"staff"}), within=frozenset({"leads"}))
    admitted = {("ada", "leads"): True, ("ada", ""): False, ("bob", "leads"): False, ("bob", "staff leads"): True}
    assert {who: audience.admits(who[0], who[1].split(), None) for who in admitted} == admitted


async def test_for_users_of_other_groups_there_is_no_such_tool_in_any_route(callers: dict[str, Client]) -> None:
    everything = {DELETES, OF_CHOIR, NATIVE}
    for name, has in CLOSED.items():
        client = callers[name]
        session = await client.new_session()
        states = (await client.get(f"/sessions/{session}/tool-states"))["tool_states"]
        listed = {each["name"] for each in (await client.get("/tools"))["items"]}
        assert everything & listed == everything & states.keys() == has, name
        for tool_name in everything | {"nothing"}:
            expected = "fine" if tool_name in has else "unknown_tool"
            assert set(await told_of(client, session, tool_name)) == {expected}, (name, tool_name)


async def told_of(client: Client, session: str, tool_name: str) -> list[str]:
    """The code of every route that takes a tool."""
    path, codes = f"/sessions/{session}/tool-states", []
    for method, to, body in (
        ("PUT", f"{path}/{tool_name}", {"status": "maintenance"}),
        ("POST", f"{path}/reset", {"tool_name": tool_name}),
        ("POST", "/mandates", {"tool": tool_name, "scope": "user", "args": {}}),
    ):
        answer = await client.http.request(method, to, json=body)
        codes.append("fine" if answer.is_success else answer.json()["code"])
    return codes


async def test_a_turn_has_the_tools_of_its_users_groups_and_runs_no_other(
    callers: dict[str, Client], provider: Provider
) -> None:
    OPENED.clear()
    for name, has in CLOSED.items():
        provider.will(calls((NATIVE, {})), calls((OF_CHOIR, {"query": "Rossi"})), says("That is all."))
        answer = await callers[name].chat(await callers[name].new_session(), "What is in the safe?")
        assert {DELETES, OF_CHOIR, NATIVE} & offered(provider) == has
        ran = {call["tool_name"] for call in answer["tool_calls"] if call["status"] == "succeeded"}
        assert ran == has - {DELETES}
    assert OPENED == [("staff",)]  # and not those that nothing is for


async def test_where_schedules_are_for_some_no_other_makes_or_promises_one(
    guarded: Settings, provider: Provider
) -> None:
    limited = guarded.model_copy(update={"schedule_groups": ("staff",), "mcp_token_key": SecretStr(SEALING)})
    async with running(limited) as service:
        for groups, is_let_in in (["staff"], True), (["choir"], False):
            async with speaking(service, await new_key(guarded, "bob", groups=groups)) as bob:
                said = {"session_id": await bob.new_session(), "message": "Report"}
                made = await bob.http.post("/schedules", json={**said, "cron": "0 3 * * *"})
                heard = await bob.http.post("/triggers", json=said)
                codes = [each.json().get("code") for each in (made, heard)]
                assert codes == ([None, None] if is_let_in else ["schedule_not_found", "trigger_not_found"])
                provider.will(says("Hello."))
                await bob.chat(said["session_id"], "Hello")
                assert ("promise" in offered(provider, -1)) == is_let_in


def offered(provider: Provider, request: int = -2) -> set[str]:
    return {each["function"]["name"] for each in provider.requests[request]["tools"]}


async def test_a_yes_of_a_key_without_the_group_runs_nothing(
    callers: dict[str, Client], provider: Provider, shelf: Shelf
) -> None:
    bob, alone = callers["bob"], callers["bob alone"]
    session = await bob.new_session()
    provider.will(planned([deletion(1), deletion(2)]))
    version = (await bob.chat(session, "First delete item 1, then delete item 2"))["plan"]["version"]
    provider.will(says("I cannot."))
    await alone.http.post(f"/sessions/{session}/plan/decision", json={"decision": "confirm", "version": version})
    assert shelf.effects == []


async def test_a_schedule_has_the_groups_it_was_made_with_whatever_the_key(
    callers: dict[str, Client], provider: Provider
) -> None:
    for name, has in (("bob", True), ("bob alone", False)):
        session = await callers[name].new_session()
        given: dict[str, Any] = {"session_id": session, "message": "Look into the safe", "cron": "0 3 * * *"}
        made = await callers[name].http.post("/schedules", json=given)
        provider.will(says("It is full."))
        assert (await callers["bob"].http.post(f"/schedules/{made.json()['id']}/run")).is_success
        await callers["bob"].ended(session)
        assert (NATIVE in offered(provider, -1)) == has
