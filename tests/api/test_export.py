"""The export of a session: everything a replay needs, nothing that is secret, nothing of somebody else's."""

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest
from starlette.responses import Response

from segue.config import Settings
from segue.domain.ids import new_id, utc_now
from tests.support.commands import ROOT
from tests.support.conversations import changes_of_mind, export, lamps, shelf_service, troubles
from tests.support.plans import Frozen
from tests.support.provider import Provider, calls, says
from tests.support.service import Client, running
from tests.support.stores import looking_into


@pytest.fixture
async def shelf(settings: Settings) -> AsyncIterator[Client]:
    async with shelf_service(settings) as client:
        yield client


@pytest.fixture
def toolbox(settings: Settings) -> Settings:
    """Settings of a service whose tools return what a test asks of them."""
    server = {"command": "python", "args": [str(ROOT / "tests" / "support" / "toolbox.py")]}
    settings.mcp_config.write_text(json.dumps({"mcpServers": {"toolbox": server}}))
    return settings


async def exported(client: Client, session: str, **options: Any) -> dict[str, Any]:
    recording: dict[str, Any] = json.loads(await export(client, session, **options))
    return recording


async def test_a_conversation_comes_out_with_its_calls_its_plans_and_its_decisions(
    shelf: Client, provider: Provider
) -> None:
    recording = await exported(shelf, await lamps(shelf, provider))
    assert (recording["title"], recording["metadata"]) == ("Inventory", {"team": "hall"})
    assert [tool["name"] for tool in recording["tools"]] == ["mcp_delete_item", "mcp_find_items", "mcp_get_item"]
    assert recording["tools"][0]["effect"] == "destructive"
    looked, planned, _, approved, asked, pressed = recording["turns"]
    assert [[call["args"] for call in each["calls"]] for each in looked["rounds"]] == [
        [{"query": "lamps"}],
        [{"item_id": "itm-1"}, {"item_id": "itm-2"}],
    ]
    assert looked["rounds"][0]["text"] == "Looking."
    assert looked["rounds"][0]["calls"][0]["result"]["items"][2] == {"id": "itm-3", "name": "lamps 3"}
    assert planned["plan"]["status"] == "waiting"
    assert planned["said"] == ""
    assert approved["plan"]["number"] == planned["plan"]["number"]
    assert approved["rounds"][0]["by"] == "plan"
    assert asked["said"] == "I would rather ask."
    assert pressed["decision"] == "confirm"


@pytest.mark.sweep
async def test_what_the_model_made_of_a_reply_and_how_a_turn_failed_come_out_too(
    shelf: Client, provider: Provider
) -> None:
    minds = (await exported(shelf, await changes_of_mind(shelf, provider)))["turns"]
    assert minds[2]["reading"] == "question"
    assert [turn["decision"] for turn in minds if "decision" in turn] == ["reject"]
    turns = (await exported(shelf, await troubles(shelf, provider)))["turns"]
    assert [call.get("error", "")[:30] for call in turns[2]["rounds"][0]["calls"]] == [
        "the shelf of itm-1 is closed",
        "There is no tool called 'mcp_f",
        "Invalid arguments for mcp_get_",
    ]
    assert [turn.get("status", "completed") for turn in turns] == [*["completed"] * 4, "failed", "completed"]


async def test_secrets_do_not_come_out_of_arguments_results_metadata_or_talk(
    toolbox: Settings, provider: Provider
) -> None:
    async with running(toolbox) as client:
        metadata = {"customer": {"api_key": "canary-metadata-1"}, "team": "hall"}
        session = await client.new_session(title="with Bearer canary1234567", metadata=metadata)
        provider.will(
            calls(("mcp_echo", {"password": "canary-args-1", "user": "ada", "nested": [{"clientSecret": "canary2"}]})),
            calls(("mcp_echo", {"text": "postgres://ada:canary3@db/x and ghp_canary4567890123456789012"})),
            says("It is canary-args-1, she says."),
        )
        await client.chat(session, "My password is canary-args-1, log me in as ada")
        text = await export(client, session)
    assert "canary" not in text
    [turn] = json.loads(text)["turns"]
    assert turn["message"] == "My password is [redacted], log me in as ada"
    assert turn["answer"] == "It is [redacted], she says."
    [[first], [second]] = [each["calls"] for each in turn["rounds"]]
    assert first["args"] == first["result"]
    assert first["args"] == {"password": "[redacted]", "user": "ada", "nested": [{"clientSecret": "[redacted]"}]}
    assert second["result"] == {"text": "postgres://ada:[redacted]@db/x and [redacted]"}


@pytest.mark.sweep  # test_ownership.py holds it of every route
async def test_a_missing_session_and_somebody_elses_look_alike(
    client: Client, provider: Provider, settings: Settings
) -> None:
    provider.will(says("Hello."))
    session = await client.new_session()
    await client.chat(session, "Hello")
    async with looking_into(settings) as stores:
        await stores.database.execute("UPDATE sessions SET owner = 'mallory'")
    answers = [await client.http.get(f"/sessions/{each}/export") for each in (session, new_id("ses", utc_now()))]
    assert [answer.status_code for answer in answers] == [404, 404]
    assert [answer.json()["code"] for answer in answers] == ["session_not_found"] * 2


async def test_a_result_too_large_is_stood_in_for_by_its_reference(toolbox: Settings, provider: Provider) -> None:
    async with running(toolbox) as client:
        session = await client.new_session()
        provider.will(calls(("mcp_table", {"rows": 500})), says("Many rows."))
        await client.chat(session, "List them")
        whole = (await exported(client, session))["turns"][0]["rounds"][0]["calls"][0]
        short = (await exported(client, session, max_result_bytes=1000))["turns"][0]["rounds"][0]["calls"][0]
    assert (len(whole["result"]["rows"]), whole.get("omitted")) == (500, None)
    assert short["omitted"] == "too_large"
    assert "row-000000" in short["result"]["identifiers"]
    assert len(json.dumps(short)) < 3000


@pytest.mark.sweep
async def test_a_result_that_has_expired_is_stood_in_for_by_its_reference(
    toolbox: Settings, provider: Provider
) -> None:
    clock = Frozen()
    async with running(toolbox, clock=clock) as client:
        session = await client.new_session()
        provider.will(calls(("mcp_table", {"rows": 5})), says("Five rows."))
        await client.chat(session, "List them")
        clock.now += timedelta(days=31)
        [call] = (await exported(client, session))["turns"][0]["rounds"][0]["calls"]
    assert call["omitted"] == "expired"
    assert "row-000004" in call["result"]["identifiers"]


@pytest.mark.sweep
async def test_a_turn_that_still_runs_is_left_out(client: Client, provider: Provider) -> None:
    go_on = asyncio.Event()

    async def later(_: dict[str, Any]) -> Response:
        await go_on.wait()
        return says("Good evening.")

    provider.will(says("Good morning."), later)
    session = await client.new_session()
    await client.chat(session, "Good morning")
    running_turn = asyncio.create_task(client.chat(session, "Good evening"))
    await provider.wait_for_requests(2)
    assert [turn["message"] for turn in (await exported(client, session))["turns"]] == ["Good morning"]
    go_on.set()
    await running_turn
    assert len((await exported(client, session))["turns"]) == 2


async def test_a_turn_that_leaves_the_history_while_it_is_read_is_left_out(
    client: Client, provider: Provider, settings: Settings
) -> None:
    provider.will(says("one"), says("two"))
    session = await client.new_session()
    await client.chat(session, "Hello")
    left = await client.chat(session, "Hello?")
    async with looking_into(settings) as stores:
        await stores.database.execute("UPDATE messages SET branch = 'br_1' WHERE turn_id = $1", left["turn_id"])
    assert [turn["answer"] for turn in (await exported(client, session))["turns"]] == ["one"]


async def test_a_session_without_a_turn_has_nothing_to_export(client: Client) -> None:
    response = await client.http.get(f"/sessions/{await client.new_session()}/export")
    assert (response.status_code, response.json()["code"]) == (409, "nothing_to_export")


async def test_a_conversation_is_read_as_markdown_without_its_secrets(shelf: Client, provider: Provider) -> None:
    session = await lamps(shelf, provider)
    response = await shelf.http.get(f"/sessions/{session}/export", params={"format": "markdown"})
    assert response.headers["content-type"] == "text/markdown; charset=utf-8"
    text = response.text
    assert text.startswith("# Inventory\n\n")
    assert '- `` mcp_find_items {"query":"lamps"}: succeeded. ' in text
    messages = await shelf.messages(session)
    said = [str(message["content"]) for message in messages if message["role"] == "assistant" and message["content"]]
    assert all(each in text for each in said)
    assert text.count("## User, ") == sum(message["role"] == "user" for message in messages)
    provider.will(says("Noted."))
    await shelf.chat(session, "My key is sk-proj-abcdefghijklmnopqrstuvwxyz0123456789ABCD")
    response = await shelf.http.get(f"/sessions/{session}/export", params={"format": "markdown"})
    assert "sk-proj-abcdef" not in response.text
