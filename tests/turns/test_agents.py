"""Agents over HTTP: each with its own instructions, model and tools, loaded anew while the service runs."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from segue import Agent, create_app
from segue.agent.prompts import TEXTS
from segue.config import Settings
from segue.domain.errors import AppError
from segue.domain.ids import UNKNOWN_ZONE
from segue.tools.builtin import BUILTIN
from tests.support.identity import new_key, speaking
from tests.support.plans import deletion, planned
from tests.support.provider import Provider, calls, completion, says
from tests.support.service import Client, running
from tests.support.shelf import Shelf

DECLARED = """
[agents.travel]
name = "Marco"
instructions = '''
Speak of trains to {user}.
Today is {date} in {time_zone}.
'''
model = "wagon"
small_model = "cart"
temperature = 0.5
tools = ["mcp_find_*", "mcp_delete_item"]
confirm = "never"
greeting = "Where to?"
examples = ["To Trieste"]

[agents.quiet]
not_tools = ["mcp_*"]
web_search = false
"""


@pytest.fixture
def agents(settings: Settings, shelf: Shelf) -> Path:
    settings.mcp_config.write_text(json.dumps({"mcpServers": {"shelf": {"url": shelf.url}}}))
    path = settings.mcp_config.with_name("agents.toml")
    path.write_text(DECLARED)
    return path


@pytest.fixture
async def client(settings: Settings, agents: Path) -> AsyncIterator[Client]:
    async with running(settings.model_copy(update={"agents_config": agents})) as served:
        yield served


def offered(request: dict[str, Any]) -> set[str]:
    return {tool["function"]["name"] for tool in request["tools"]}


async def patch(client: Client, session: str, agent: str) -> None:
    assert (await client.http.patch(f"/sessions/{session}", json={"agent": agent})).status_code == 200


def declare(path: Path, text: str) -> None:
    path.write_text(text)


async def reload(client: Client) -> tuple[int, dict[str, Any]]:
    response = await client.http.post("/agents/reload")
    return response.status_code, response.json()


async def test_each_session_has_the_instructions_model_and_tools_of_its_agent(
    client: Client, provider: Provider, shelf: Shelf
) -> None:
    provider.will(says("Plain."), calls(("mcp_delete_item", {"item_id": "itm-1"})), says("By train."), says("Hush."))
    for agent in ("segue", "travel", "quiet"):
        answer = await client.chat(await client.new_session(agent=agent), "What is new?")
        assert answer["message"]["metadata"].get("agent", "segue") == agent
    plain, travel, _, quiet = provider.requests
    assert [plain["model"], travel["model"], quiet["model"]] == ["scripted", "wagon", "scripted"]
    assert [each.get("temperature") for each in (plain, travel, quiet)] == [None, 0.5, None]
    assert plain["messages"][0]["content"].startswith(f"{TEXTS['system']}\n- Calls of mcp_burn_item, mcp_delete_item, ")
    assert (
        travel["messages"][0]["content"]
        == f"{TEXTS['system'].replace('Segue', 'Marco', 1)}\n\nSpeak of trains to local."
    )
    assert offered(travel) == {"mcp_find_items", "mcp_delete_item", "get_tool_result"}
    assert offered(quiet) == {
        "current_time",
        "get_tool_result",
        "remember",
        "search_memory",
        "web_fetch",
        "forget",
        "promise",
    }
    assert offered(plain) > offered(travel) | offered(quiet)
    time, told, *_ = provider.notes(1).split("\n\n")
    assert told == f"Today is {time.split(', ')[1]} in {UNKNOWN_ZONE}."  # where it changes nothing that providers cache
    assert shelf.effects == ["delete itm-1"]  # which this agent does without asking


CHOOSING = """
[agents.segue]
models = ["express", "freight"]
"""


@pytest.fixture
def choosing(settings: Settings, agents: Path) -> Settings:
    declare(agents, CHOOSING)
    return settings.model_copy(update={"agents_config": agents})


async def test_a_request_names_its_model_among_those_that_the_agent_allows(
    choosing: Settings, provider: Provider
) -> None:
    provider.will(says("One."), says("Two."), says("Three."), says("Four."), says("Five."))
    async with running(choosing) as client:
        assert (await client.get("/agents/segue"))["models"] == ["scripted", "express", "freight"]
        session = await client.new_session()
        first = await client.chat(session, "Hello", model="express")
        await client.chat(session, "And now?")
        refused = await client.send(session, "And now?", model="wagon")
        messages = f"/sessions/{session}/messages/"
        said = (await client.messages(session))[-1]["id"]
        again = await client.http.post(f"{messages}{said}/regenerate", json={"model": "freight"})
        same = await client.http.post(f"{messages}{again.json()['message']['id']}/regenerate")
        said = (await client.messages(session))[-2]["id"]
        edited = await client.http.post(f"{messages}{said}/edit", json={"message": "Hm?", "model": "express"})
    assert (first["model"], first["message"]["metadata"]["model"]) == ("express", "express")
    assert (refused.status_code, refused.json()["code"], refused.json()["param"]) == (
        400,
        "option_not_allowed",
        "model",
    )
    assert "scripted, express, freight" in refused.json()["detail"]
    assert [each.json()["model"] for each in (again, same, edited)] == ["freight", "freight", "express"]
    models = [request["model"] for request in provider.requests]
    assert models == ["express", "scripted", "freight", "freight", "express"]


async def test_a_queued_turn_has_its_model_on_another_instance_and_one_key_is_for_one_model(
    choosing: Settings, provider: Provider
) -> None:
    provider.will(says("One."))
    key, chosen = {"Idempotency-Key": "k1"}, {"message": "Hello", "model": "express", "background": True}
    async with running(choosing, takes_turns=False) as client:
        session = await client.new_session()
        sent = [
            await client.http.post(f"/sessions/{session}/chat", json=body, headers=key)
            for body in (chosen, chosen, {**chosen, "model": "freight"})
        ]
    assert [each.status_code for each in sent] == [202, 202, 422]
    async with running(choosing) as client:
        [turn] = await client.ended(session)
    assert (turn["answer"]["model"], [request["model"] for request in provider.requests]) == ("express", ["express"])


@pytest.mark.sweep
async def test_what_the_model_that_was_named_has_thought_goes_back_to_it_in_later_turns_and_to_no_other(
    choosing: Settings, provider: Provider
) -> None:
    noon = {"id": "c1", "type": "function", "function": {"name": "current_time", "arguments": "{}"}}
    thought = {"role": "assistant", "content": "", "reasoning_content": "Hm.", "tool_calls": [noon]}
    provider.will(completion(thought, "tool_calls"), says("Noon."), says("Noon, I said."), says("Noon, it said."))
    async with running(choosing) as client:
        session = await client.new_session()
        for model in ("express", "express", "freight"):
            await client.chat(session, "What time is it?", model=model)
    told = ["reasoning_content" in str(request["messages"]) for request in provider.requests]
    assert told == [False, True, True, False]


@pytest.mark.in_turns(1)
@pytest.mark.parametrize("path", ["/agui", "/api/chat"])
async def test_the_pages_of_doors_name_a_model_too(choosing: Settings, provider: Provider, path: str) -> None:
    provider.will(says("One."))
    words = [{"role": "user", "id": "m1", "content": "Hello", "parts": [{"type": "text", "text": "Hello"}]}]
    empty: dict[str, Any] = {"state": {}, "tools": [], "context": [], "threadId": "t1", "runId": "r1"}
    async with running(choosing) as client:
        for model, status in (("wagon", 400), ("express", 200)):
            of_page = {"model": model} if path == "/api/chat" else {"forwardedProps": {"model": model}, **empty}
            sent = await client.http.post(path, json={"id": "t1", "messages": words, **of_page})
            assert sent.status_code == status, sent.text
    assert [request["model"] for request in provider.requests] == ["express"]


async def test_a_tool_of_another_agent_is_not_planned_nor_called(client: Client, provider: Provider) -> None:
    session = await client.new_session(agent="quiet")
    provider.will(planned([deletion(1), deletion(2)]), calls(("mcp_delete_item", {"item_id": "itm-1"})), says("No."))
    answer = await client.chat(session, "First delete item 1, then delete item 2")
    assert answer["plan"] is None
    [call] = answer["tool_calls"]
    assert (call["status"], call["error"].partition(".")[0]) == ("failed", "There is no tool called 'mcp_delete_item'")


async def test_the_session_keeps_its_agent_until_it_is_given_another(client: Client, provider: Provider) -> None:
    session = await client.new_session(agent="travel")
    provider.will(says("One."), says("Two."))
    await client.chat(session, "Hello")
    await patch(client, session, "quiet")
    assert (await client.get(f"/sessions/{session}"))["agent"] == "quiet"
    await client.chat(session, "And now?")
    assert [request["model"] for request in provider.requests] == ["wagon", "scripted"]
    told = [row["metadata"] for row in await client.messages(session) if row["role"] == "assistant"]
    assert [each["agent"] for each in told] == ["travel", "quiet"]


@pytest.mark.sweep
async def test_an_agent_that_is_not_there_is_refused_by_name(client: Client) -> None:
    session = await client.new_session()
    made = await client.http.post("/sessions", json={"agent": "nobody"})
    changed = await client.http.patch(f"/sessions/{session}", json={"agent": "nobody"})
    read = await client.http.get("/agents/nobody")
    assert [(each.status_code, each.json()["code"]) for each in (made, changed, read)] == [
        (422, "unknown_agent"),
        (422, "unknown_agent"),
        (404, "unknown_agent"),
    ]
    assert (await client.get(f"/sessions/{session}"))["agent"] == "segue"


async def test_only_ops_see_instructions_and_load_agents_and_nobody_gives_anothers_session_one(
    settings: Settings, agents: Path
) -> None:
    guarded = settings.model_copy(update={"agents_config": agents, "auth": "api_key"})
    ada, ops = await new_key(settings, "ada"), await new_key(settings, "ops", ["ops"])
    async with running(guarded) as client, speaking(client, ada) as hers, speaking(client, ops) as theirs:
        told = {agent["id"]: agent for agent in (await hers.get("/agents"))["items"]}
        assert list(told) == ["segue", "travel", "quiet"]
        assert {agent["instructions"] for agent in told.values()} == {None}
        assert (told["travel"]["model"], told["travel"]["examples"]) == ("wagon", ["To Trieste"])
        assert (await theirs.get("/agents/travel"))["instructions"].startswith("Speak of trains")
        assert (await reload(hers))[0] == 403
        session = await hers.new_session(agent="travel")
        foreign = await theirs.http.patch(f"/sessions/{session}", json={"agent": "quiet"})
        assert foreign.json()["code"] == "session_not_found"
        assert (await hers.get(f"/sessions/{session}"))["agent"] == "travel"


@pytest.mark.sweep
async def test_a_file_is_loaded_whole_or_refused_whole(client: Client, provider: Provider, agents: Path) -> None:
    session = await client.new_session(agent="travel")
    declare(agents, DECLARED.replace("wagon", "coach") + '\n[agents.late]\ntools = ["mcp_nothing"]\n')
    status, problem = await reload(client)
    assert (status, problem["code"]) == (422, "agents_invalid")
    assert "line 21: agents.late.tools names mcp_nothing" in problem["detail"]
    provider.will(says("One."), says("Two."))
    await client.chat(session, "Hello")
    declare(agents, DECLARED.replace("wagon", "coach"))
    assert (await reload(client))[0] == 200
    await client.chat(session, "And now?")
    assert [request["model"] for request in provider.requests] == ["wagon", "coach"]


async def test_a_session_whose_agent_has_gone_is_answered_by_segue_which_says_so(
    client: Client, provider: Provider, agents: Path
) -> None:
    session = await client.new_session(agent="travel")
    declare(agents, "")
    await reload(client)
    provider.will(says("I am Segue."))
    answer = await client.chat(session, "Hello")
    assert answer["message"]["metadata"] == {"model": "scripted", "agent_gone": "travel"}
    assert provider.requests[0]["messages"][0]["content"].startswith(TEXTS["system"])
    assert "is no longer there" in provider.notes(0)
    assert (await client.messages(session))[-1]["metadata"] == answer["message"]["metadata"]


async def test_a_turn_that_runs_keeps_the_agent_it_began_with(client: Client, provider: Provider, agents: Path) -> None:
    session = await client.new_session(agent="travel")

    async def changes_everything(_: dict[str, Any]) -> Any:
        await patch(client, session, "quiet")
        declare(agents, DECLARED.replace("wagon", "coach").replace("trains", "ships"))
        assert (await reload(client))[0] == 200
        return calls(("mcp_find_items", {"query": "x"}))

    provider.will(changes_everything, says("Found."))
    await client.chat(session, "Find x")
    first, second = provider.requests
    assert [first["model"], second["model"]] == ["wagon", "wagon"]
    assert second["messages"][0] == first["messages"][0]
    assert second["tools"] == first["tools"]


@pytest.mark.in_turns(1)
@pytest.mark.parametrize("change", ["file", "session"])
async def test_a_yes_after_the_agent_has_changed_asks_again(
    change: str, client: Client, provider: Provider, agents: Path, shelf: Shelf
) -> None:
    session = await client.new_session()
    provider.will(calls(("mcp_delete_item", {"item_id": "itm-1"})), says("Gone."))
    await client.chat(session, "Delete item 1")
    if change == "file":
        declare(agents, DECLARED + '\n[agents.segue]\ninstructions = "Be kind."\n')
    else:
        declare(agents, DECLARED + '\n[agents.other]\ninstructions = "Be kind."\n')
    await reload(client)
    if change == "session":
        await patch(client, session, "other")
    asked = await client.chat(session, "yes")
    assert (asked["plan"]["status"], shelf.effects) == ("waiting", [])
    assert asked["message"]["metadata"]["asked_again"] == "agent_changed"
    assert "has changed in the meantime" in asked["message"]["content"]
    await client.chat(session, "yes")
    assert shelf.effects == ["delete itm-1"]


async def test_an_approved_step_fails_if_the_agent_may_not_use_its_tool_any_more(
    client: Client, provider: Provider, shelf: Shelf
) -> None:
    session = await client.new_session()
    provider.will(calls(("mcp_delete_item", {"item_id": "itm-1"})), says("I cannot."))
    await client.chat(session, "Delete item 1")
    await patch(client, session, "quiet")
    answer = await client.chat(session, "yes")
    assert (answer["plan"]["status"], shelf.effects) == ("failed", [])


@pytest.mark.sweep
async def test_the_instructions_of_a_file_are_added_to_those_of_segue(
    settings: Settings, provider: Provider, tmp_path: Path
) -> None:
    (tmp_path / "house.md").write_text("We are a library.\n")
    provider.will(says("Good."))
    given = {"instructions_file": tmp_path / "house.md", "web_search_provider": "ddgs"}
    async with running(settings.model_copy(update=given)) as client:
        await client.chat(await client.new_session(), "Hello")
        names = {tool["name"] for tool in (await client.get("/tools"))["items"]}
    assert names == BUILTIN  # the names that a file is checked against
    assert provider.requests[0]["messages"][0]["content"] == f"{TEXTS['system']}\n\nWe are a library."


async def test_the_agents_of_a_program_stand_beside_those_of_the_file(settings: Settings, agents: Path) -> None:
    file = settings.model_copy(update={"agents_config": agents})
    async with running(file, agents={"clerk": Agent(name="Ada")}) as client:
        await client.http.post("/agents/reload")
        listed = [each["id"] for each in (await client.get("/agents"))["items"]]
    assert listed == ["segue", "travel", "quiet", "clerk"]
    for given, why in (
        ({"quiet": Agent()}, "agents.quiet is given to create_app too"),
        ({"a clerk": Agent()}, "is no id of an agent"),
        ({"clerk": Agent(tools=("mcp_nothing",))}, "there is no such tool"),
    ):
        app = create_app(file, agents=given)
        with pytest.raises(AppError, match=why):
            async with app.router.lifespan_context(app):
                pass
