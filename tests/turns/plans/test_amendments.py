"""An amended plan keeps its references and its confirmations."""

import asyncio
import json
from typing import Any

import pytest

from segue.config import Settings
from segue.plans.plan_parser import parse_plan
from tests.support.plans import THREE_STEPS, deletion, offered, planned, reads
from tests.support.provider import Provider
from tests.support.service import Client
from tests.support.stores import looking_into


@pytest.mark.sweep
async def test_an_amendment_refers_to_its_own_new_step(client: Client, provider: Provider) -> None:
    session, _ = await offered(client, provider, THREE_STEPS)
    search = {"id": 3, "description": "Cerca", "tool": "mcp_find_items", "args": {"query": "Bianchi"}}
    args = {"to": "Ada", "text": {"$from": 3, "path": "items[0].name"}}
    send = {"id": 4, "description": "Manda", "tool": "mcp_send_note", "args": args}
    provider.will(reads("amend"), planned([search, send]))
    answer = await client.chat(session, "sì, ma cerca Bianchi e mandalo ad Ada")
    assert answer["plan"]["steps"][3]["args"] == {"to": "Ada", "text": "Bianchi 1"}


@pytest.mark.sweep
async def test_an_amendment_refers_to_a_step_that_is_done(client: Client, provider: Provider) -> None:
    session, _ = await offered(client, provider, THREE_STEPS)
    args = {"item_id": {"$from": 1, "path": "items[1].id"}}
    provider.will(
        reads("amend"), planned([{"id": 3, "description": "Cancella", "tool": "mcp_delete_item", "args": args}])
    )
    answer = await client.chat(session, "sì, ma la seconda")
    assert answer["plan"]["steps"][2]["args"] == {"item_id": "itm-2"}


async def test_an_amendment_does_not_lift_the_confirmation_of_a_later_step(
    client: Client,
    provider: Provider,
    effects: list[str],
) -> None:
    read = {"id": 2, "description": "Read", "tool": "mcp_get_item", "args": {"item_id": "itm-9"}}
    session, _ = await offered(client, provider, [deletion(1), {**read, "requires_confirmation": True}])
    provider.will(reads("amend"), planned([read]))
    answer = await client.chat(session, "sì, ma solo la seconda")
    assert answer["plan"]["status"] == "waiting"
    assert effects == []


async def test_an_amendment_that_a_button_overtakes_leaves_what_the_button_decided(
    client: Client, provider: Provider, effects: list[str], settings: Settings
) -> None:
    session, asked = await offered(client, provider, [deletion(1), deletion(2)])
    go = asyncio.Event()

    async def held(_: dict[str, Any]) -> Any:
        await go.wait()
        return planned([deletion(2)])

    provider.will(reads("amend"), held)
    amending = asyncio.create_task(client.send(session, "sì, ma solo la seconda"))
    await provider.wait_for_requests(3)
    body = {"decision": "confirm", "version": asked["plan"]["version"]}
    button = asyncio.create_task(client.http.post(f"/sessions/{session}/plan/decision", json=body))
    async with looking_into(settings) as stores:
        await stores.until_messages(session, 4)
    go.set()
    refused = await amending
    assert (refused.status_code, refused.json()["code"]) == (409, "plan_changed")
    decided = (await button).json()
    assert [step["status"] for step in decided["plan"]["steps"]] == ["complete", "waiting"]
    assert effects == ["delete itm-1"]


@pytest.mark.parametrize("target", [1, "1"])
def test_a_reference_to_an_id_given_twice_is_no_plan(target: object) -> None:
    steps = [{"id": 1, "description": "a", "tool": "x"}, {"id": 1, "description": "b", "tool": "x"}]
    steps.append({"id": 2, "description": "c", "tool": "x", "args": {"y": {"$from": target}}})
    assert parse_plan(json.dumps({"steps": steps}), tools=["x"]) == ()
