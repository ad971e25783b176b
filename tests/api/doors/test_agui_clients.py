"""The door for AG-UI as unmodified clients of it come through, on Node."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import orjson
import pytest

from segue.config import Settings
from tests.support.node import needs_node, node
from tests.support.plans import ASK, THREE_STEPS, planned
from tests.support.provider import Provider, calls, says, streams
from tests.support.service import process, running
from tests.support.shelf import Shelf, serving_shelf

pytestmark = needs_node


@pytest.fixture
async def shelf(settings: Settings) -> AsyncIterator[Shelf]:
    async with serving_shelf() as shelf:
        settings.mcp_config.write_text(json.dumps({"mcpServers": {"shelf": {"url": shelf.url}}}))
        yield shelf


async def page(client: str, url: object, *steps: dict[str, Any]) -> list[dict[str, Any]]:
    done: list[dict[str, Any]] = orjson.loads(await node("agui.mjs", client, f"{url}", json.dumps(steps)))
    for each in done:
        assert each.pop("warnings") == [], done
    return done


def last(step: dict[str, Any]) -> str:
    return str(step["messages"][-1]["content"])


@pytest.mark.in_turns(1)
@pytest.mark.parametrize("client", ["agui-0", "agui-1"])
async def test_a_page_talks_approves_is_refused_and_reloads(
    settings: Settings, provider: Provider, shelf: Shelf, client: str
) -> None:
    provider.will(
        says("Hello."),
        calls(("mcp_delete_item", {"item_id": "itm-1"})),
        says("Item 1 is gone."),
        calls(("mcp_delete_item", {"item_id": "itm-2"})),
    )
    async with running(settings) as service:
        await service.connected("shelf")
        url = f"{service.http.base_url}/agui"
        said, asked, done, other, rejected, reloaded, foreign = await page(
            client,
            url,
            {"open": "my page", "say": "hello"},
            {"say": "Delete item 1"},
            {"resume": {"status": "resolved"}},
            {"say": "Delete item 2"},
            {"resume": {"status": "resolved", "payload": {"approved": False}}},
            {"open": "my page"},
            {"open": "ses_1", "say": "hello"},
        )
    assert (last(said), said["ended"], said["interrupts"]) == ("Hello.", "success", [])
    assert (asked["ended"], asked["plan"]["status"]) == ("interrupt", "waiting")
    assert asked["interrupts"][0]["message"] == last(asked)
    assert (last(done), done["ended"], done["interrupts"]) == ("Item 1 is gone.", "success", [])
    assert done["plan"]["status"] == "completed"
    assert (other["ended"], rejected["ended"], rejected["plan"]["status"]) == ("interrupt", "success", "cancelled")
    assert shelf.effects == ["delete itm-1"]
    assert [each["id"] for each in reloaded["messages"] if each["role"] == "assistant"] == [
        each["id"] for each in rejected["messages"] if each["role"] == "assistant"
    ]
    assert foreign["error"].startswith("HTTP 404: ")
    assert "session_not_found" in foreign["error"]
    assert [each["error"] for each in (said, asked, done, other, rejected, reloaded)] == [None] * 6


@pytest.mark.in_turns(1)
@pytest.mark.parametrize("client", ["agui-0", "agui-1"])
async def test_a_page_keeps_its_state_and_the_order_of_its_messages_and_shows_no_plan_that_has_ended(
    settings: Settings, provider: Provider, shelf: Shelf, client: str
) -> None:
    deletes = calls(("mcp_delete_item", {"item_id": "itm-1"}))
    provider.will(deletes, says("It stays."), deletes)
    async with running(settings) as service:
        await service.connected("shelf")
        url, state = f"{service.http.base_url}/agui", {"document": "a draft"}
        asked, instead, looks, asked_again = await page(
            client,
            url,
            {"open": "my page", "state": state, "say": "Delete item 1"},
            {"say": "No, keep it", "resume": {"status": "cancelled"}},
            {},  # as after a broken connection: nothing is new
            {"say": "Delete item 1 after all"},
        )
        [session] = (await service.get("/sessions"))["items"]
        rejected = {"decision": "reject", "version": asked_again["plan"]["version"]}
        (await service.http.post(f"/sessions/{session['id']}/plan/decision", json=rejected)).raise_for_status()
        [late] = await page(client, url, {"open": "my page", "state": {**state, "plan": asked_again["plan"]}})
    assert [each["state"] for each in (asked, instead, looks, asked_again, late)] == [state] * 5
    assert [each["plan"] and each["plan"]["status"] for each in (asked, instead, asked_again, late)] == [
        "waiting", None, "waiting", None,
    ]  # fmt: skip
    shown = [(each["role"], each["content"]) for each in instead["messages"]]
    assert [(each["role"], each["content"]) for each in looks["messages"]] == shown
    assert [role for role, _ in shown] == ["user", "assistant"] * 2
    assert shelf.effects == []


@pytest.mark.sweep
async def test_what_was_found_is_read_and_deleted_once_after_a_yes_through_kill_nine(
    settings: Settings, provider: Provider, shelf: Shelf
) -> None:
    told = asyncio.Event()
    provider.will(planned(THREE_STEPS), streams("It ", told))
    async with process(settings) as (first, service):
        opened = {"open": "my page", "say": ASK, "runId": "run 1"}
        yes = {"forget": True, "say": "sì, grazie", "runId": "run 2"}
        talking = asyncio.create_task(page("agui-1", f"{service.http.base_url}/agui", opened, yes))
        await shelf.wait_for("delete itm-1")
        await provider.wait_for_requests(2)
        first.kill()
        asked, cut_off = await talking
    assert asked["ended"] == "interrupt"
    assert cut_off["error"] is not None
    assert shelf.effects == ["get itm-1", "delete itm-1"]
    provider.will(says("It is gone."))
    async with process(settings) as (_, service):
        url = f"{service.http.base_url}/agui"
        again, reloaded = await page("agui-1", url, {**yes, "open": "my page"}, {"open": "my page"})
        turns = await service.turns((await service.get("/sessions"))["items"][0]["id"])
    assert (last(again), again["ended"], again["plan"]["status"]) == ("It is gone.", "success", "completed")
    assert [each["content"] for each in reloaded["messages"] if each["role"] == "user"] == [ASK, "sì, grazie"]
    assert shelf.effects == ["get itm-1", "delete itm-1"]
    assert [turn["status"] for turn in turns] == ["completed", "completed"]
    told.set()


PAINT = {
    "name": "paint",
    "description": "Paints the page.",
    "parameters": {"type": "object", "properties": {"colour": {"type": "string"}}, "required": ["colour"]},
}


@pytest.mark.sweep  # test_vercel.py has a page whose tool runs once through kill -9
@pytest.mark.usefixtures("shelf")
async def test_a_tool_of_the_page_is_called_and_its_result_taken_once_through_kill_nine(
    settings: Settings, provider: Provider
) -> None:
    offered = {"tools": [PAINT], "context": [{"description": "The page shows", "value": "a wall"}]}
    provider.will(calls(("paint", {"colour": "red"}), text="I paint it."))
    async with process(settings) as (first, service):
        url, wall = f"{service.http.base_url}/agui", {"open": "wall", "say": "Paint it red", **offered}
        [asked] = await page("agui-1", url, wall)
        provider.will(calls(("paint", {"colour": "red"})))
        [old] = await page("agui-0", url, {**wall, "open": "another wall"})
        both = [(each["error"], each["ended"], each["interrupts"]) for each in (asked, old)]
        told, gives = asyncio.Event(), {"gives": {"paint": {"painted": 3}}, **offered}
        again = {"open": "wall", "messages": asked["messages"], **gives}
        provider.will(streams("It is ", told))
        talking = asyncio.create_task(page("agui-1", url, again))
        await provider.wait_for_requests(3)
        first.kill()
        await talking
    assert both == [(None, "success", [])] * 2
    [call] = asked["messages"][-1]["toolCalls"]
    assert (call["function"]["name"], json.loads(call["function"]["arguments"])) == ("paint", {"colour": "red"})
    provider.will(says("It is red."), says("You are welcome."), says("It is red too."))
    async with process(settings) as (_, service):
        url = f"{service.http.base_url}/agui"
        done, thanked = await page("agui-1", url, again, {"say": "Thanks", **offered})
        [late] = await page("agui-0", url, {"open": "another wall", "messages": old["messages"], **gives})
        sessions = [each["id"] for each in (await service.get("/sessions"))["items"]]
        painted = [(await service.get(f"/sessions/{each}/tool-results"))["items"] for each in sessions]
        turns = [turn["status"] for each in sessions for turn in await service.turns(each)]
    told.set()
    assert (last(done), done["ended"], last(thanked), last(late)) == (
        "It is red.", "success", "You are welcome.", "It is red too.",
    )  # fmt: skip
    assert [[(each["args"], each["status"]) for each in calls] for calls in painted] == [
        [({"colour": "red"}, "succeeded")]
    ] * 2
    assert turns == ["completed"] * 5
