"""An agent for some users or groups: for all others there is no such agent, in the API and at every door."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest

from segue.config import Settings
from segue.domain.agent import Agent
from tests.support.identity import new_key, speaking
from tests.support.plans import deletion, planned
from tests.support.provider import Provider, calls, fails, says
from tests.support.service import Client, running
from tests.support.shelf import Shelf

DECLARED = """
[agents.librarian]
users = ["ada", "webui⇢eve"]
groups = ["staff"]

[agents.all]
"""
OPEN, CLOSED = ["segue", "all"], ["segue", "librarian", "all"]


@pytest.fixture
def guarded(settings: Settings, shelf: Shelf) -> Settings:
    settings.mcp_config.write_text(f'{{"mcpServers": {{"shelf": {{"url": "{shelf.url}"}}}}}}')
    path = settings.mcp_config.with_name("agents.toml")
    path.write_text(DECLARED)
    return settings.model_copy(update={"agents_config": path, "auth": "api_key"})


@pytest.fixture
async def service(guarded: Settings) -> AsyncIterator[Client]:
    async with running(guarded) as served:
        yield served


@pytest.fixture
async def callers(service: Client, guarded: Settings) -> AsyncIterator[dict[str, Client]]:
    """A user of the list, one of a group, the same one without it, one of another group, and an operator."""
    keys = {
        "ada": await new_key(guarded, "ada"),
        "bob": await new_key(guarded, "bob", groups=["staff", "choir"]),
        "bob alone": await new_key(guarded, "bob"),
        "eve": await new_key(guarded, "eve", groups=["choir"]),
        "root": await new_key(guarded, "root", ["ops", "ops:content"]),
    }
    async with AsyncExitStack() as stack:
        yield {name: await stack.enter_async_context(speaking(service, key)) for name, key in keys.items()}


async def ids(client: Client, path: str = "/agents", items: str = "items") -> list[str]:
    return [each["id"] for each in (await client.get(path))[items]]


@pytest.mark.in_turns(2)
@pytest.mark.parametrize(("name", "seen"), [("ada", CLOSED), ("bob", CLOSED), ("bob alone", OPEN), ("eve", OPEN)])
async def test_for_a_user_outside_of_its_audience_there_is_no_such_agent(
    callers: dict[str, Client], name: str, seen: list[str], provider: Provider
) -> None:
    client, is_there = callers[name], seen == CLOSED
    assert await ids(client) == await ids(client, "/v1/models", "data") == seen
    if is_there:
        provider.will(*(says("Hello.") for _ in range(5)))
    session = await client.new_session()
    told, of_nobody = [await asked_for(client, agent, session) for agent in ("librarian", "nobody")]
    assert [status < 400 for status, _ in told] == [is_there] * 9
    assert is_there or told == of_nobody
    assert {"unknown_agent", "model_not_found"} == {code for _, code in of_nobody}
    assert (await client.get(f"/sessions/{session}"))["agent"] == ("librarian" if is_there else "segue")


async def asked_for(client: Client, agent: str, session: str) -> list[tuple[int, str | None]]:
    """The status and code of every route that takes an agent."""
    said, answers = [{"role": "user", "content": f"Hello, {agent}"}], []
    for method, path, body in (
        ("GET", f"/agents/{agent}", None),
        ("GET", f"/v1/models/{agent}", None),
        ("POST", "/sessions", {"agent": agent}),
        ("PATCH", f"/sessions/{session}", {"agent": agent}),
        ("POST", "/v1/chat/completions", {"model": agent, "messages": said}),
        ("POST", "/v1/chat/completions", {"model": f"{agent}-title", "messages": said}),
        ("POST", "/v1/responses", {"model": agent, "input": f"Good day, {agent}"}),
        ("POST", f"/agents/{agent}/agui", run(f"Hi, {agent}")),
        ("POST", "/api/chat", {"id": agent, "agent": agent, "messages": [ui_message("Good day")]}),
    ):
        answer = await client.http.request(method, path, json=body)
        problem = answer.json() if answer.status_code >= 400 else {}
        answers.append((answer.status_code, problem.get("error", problem).get("code")))
    return answers


def run(text: str) -> dict[str, Any]:
    message = {"id": "m", "role": "user", "content": text}
    return {"threadId": "t", "runId": "r", "messages": [message], "state": {}, "tools": [], "context": []}


def ui_message(text: str) -> dict[str, Any]:
    return {"id": "m", "role": "user", "parts": [{"type": "text", "text": text}]}


async def test_a_session_whose_agent_is_not_for_the_user_any_more_is_answered_as_one_whose_agent_has_gone(
    callers: dict[str, Client], provider: Provider
) -> None:
    bob, alone = callers["bob"], callers["bob alone"]
    session = await bob.new_session(agent="librarian")
    provider.will(*(says("Hello.") for _ in range(3)))
    told = [(await client.chat(session, "Hello"))["message"]["metadata"] for client in (bob, alone, bob)]
    here, gone = {"model": "scripted", "agent": "librarian"}, {"model": "scripted", "agent_gone": "librarian"}
    assert told == [here, gone, here]
    assert "is no longer there" in provider.notes(1)


@pytest.mark.sweep
async def test_a_message_that_waits_for_its_turn_has_the_groups_it_came_with(
    callers: dict[str, Client], provider: Provider, shelf: Shelf
) -> None:
    bob = callers["bob"]
    session = await bob.new_session(agent="librarian")
    provider.will(calls(("mcp_look_up", {"item_id": "itm-1"})), says("First."), says("Second."), says("Third."))
    await bob.send(session, "Look it up", background=True)
    await shelf.wait_for_effects(1)
    for client in (callers["bob alone"], bob):
        assert (await client.send(session, "And then?", background=True)).status_code == 202
    shelf.go.set()
    told = [turn["answer"]["message"]["metadata"] for turn in await bob.ended(session, 3)]
    assert [each.get("agent") for each in told] == ["librarian", None, "librarian"]
    assert [each.get("agent_gone") for each in told] == [None, "librarian", None]


async def test_a_turn_that_is_run_again_has_the_groups_of_who_runs_it_again(
    callers: dict[str, Client], provider: Provider
) -> None:
    session = await callers["bob"].new_session(agent="librarian")
    provider.will(fails(401), says("Hello."))
    assert (await callers["bob"].send(session, "Hello")).status_code == 502
    [turn] = await callers["bob"].turns(session)
    again = await callers["bob alone"].http.post(f"/sessions/{session}/turns/{turn['turn_id']}/retry", json={})
    assert again.json()["message"]["metadata"]["agent_gone"] == "librarian"


async def test_a_yes_of_another_key_runs_no_step_of_an_agent_that_its_caller_has_not(
    callers: dict[str, Client], provider: Provider, shelf: Shelf
) -> None:
    bob, alone = callers["bob"], callers["bob alone"]
    session = await bob.new_session(agent="librarian")
    provider.will(planned([deletion(1), deletion(2)]))
    version = (await bob.chat(session, "First delete item 1, then delete item 2"))["plan"]["version"]
    decided = await alone.http.post(
        f"/sessions/{session}/plan/decision", json={"decision": "confirm", "version": version}
    )
    assert decided.json()["message"]["metadata"] == {
        "model": "scripted",
        "agent_gone": "librarian",
        "asked_again": "agent_changed",
    }
    assert shelf.effects == []


@pytest.mark.sweep
async def test_the_prompt_of_a_session_is_that_of_its_agent_for_who_has_it_and_for_operators(
    callers: dict[str, Client], guarded: Settings, provider: Provider
) -> None:
    assert guarded.agents_config is not None
    guarded.agents_config.write_text(DECLARED.replace("groups =", f"instructions = '{'Be kind. ' * 200}'\ngroups ="))
    assert (await callers["root"].http.post("/agents/reload")).status_code == 200
    session = await callers["bob"].new_session(agent="librarian")
    provider.will(says("Hello."))
    await callers["bob"].chat(session, "Hello")
    tokens = {}
    for name in ("bob", "root", "bob alone"):
        tokens[name] = (await callers[name].get(f"/sessions/{session}/prompt"))["tokens"]
    assert tokens["bob"] == tokens["root"] > tokens["bob alone"] + 300


@pytest.mark.sweep
async def test_an_operator_sees_all_agents_where_they_are_loaded_and_has_those_of_the_audience_only(
    callers: dict[str, Client],
) -> None:
    root = callers["root"]
    assert await ids(root) == OPEN
    loaded = await root.http.post("/agents/reload")
    assert [each["id"] for each in loaded.json()["items"]] == CLOSED


async def test_a_user_of_a_gateway_has_no_groups_of_the_gateways_and_may_be_named(
    guarded: Settings, service: Client
) -> None:
    gateway = await new_key(guarded, "webui", ["act_as"], groups=["staff"])
    async with speaking(service, gateway) as client:
        for user, seen in ((None, CLOSED), ("bob", OPEN), ("eve", CLOSED)):
            headers = {"X-OpenWebUI-User-Id": user} if user else {}
            models = await client.http.get("/v1/models", headers=headers)
            assert [each["id"] for each in models.json()["data"]] == seen


async def test_who_an_agent_is_for_is_nothing_that_a_yes_relies_on() -> None:
    assert Agent(name="A", users=("ada",), groups=("staff",)).digest == Agent(name="A").digest
