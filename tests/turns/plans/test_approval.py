"""A yes is for the question that stood when it was sent."""

import asyncio
import json
from typing import Any

import pytest

from segue.config import Settings
from tests.support.logs import until
from tests.support.plans import ASK, THREE_STEPS, deletion, offered, planned
from tests.support.provider import Provider, calls, completion, says
from tests.support.service import Client, running
from tests.support.shelf import Shelf
from tests.support.stores import looking_into
from tests.support.streams import chatting


@pytest.mark.sweep
async def test_two_spoken_yeses_at_once_approve_one_step(
    client: Client,
    provider: Provider,
    effects: list[str],
) -> None:
    session, _ = await offered(client, provider, [deletion(1), deletion(2)])
    both = await asyncio.gather(client.chat(session, "ok"), client.chat(session, "ok"))
    assert effects == ["delete itm-1"]
    assert {answer["plan"]["status"] for answer in both} == {"waiting"}
    provider.will(says("Both are gone."))
    await client.chat(session, "ok")
    assert effects == ["delete itm-1", "delete itm-2"]


async def test_a_yes_sent_before_the_question_approves_nothing(
    client: Client,
    provider: Provider,
    effects: list[str],
) -> None:
    session, go = await client.new_session(), asyncio.Event()

    async def held(_: dict[str, Any]) -> Any:
        await go.wait()
        return planned([deletion(1), deletion(2)])

    provider.will(held)
    asking = asyncio.create_task(client.chat(session, ASK))
    await provider.wait_for_requests(1)
    async with chatting(client, session, "ok") as accepted:
        go.set()
        await asking
        await accepted.rest()
    assert (await client.turns(session))[-1]["answer"]["plan"]["status"] == "waiting"
    assert effects == []


async def test_a_second_yes_to_a_plan_that_is_over_is_no_order_to_do_it_again(
    client: Client,
    provider: Provider,
    effects: list[str],
) -> None:
    tell = {"id": 2, "description": "Tell", "tool": None}
    session, _ = await offered(client, provider, [deletion(1), tell, THREE_STEPS[0] | {"id": 3}])
    provider.will(says("told"), says("Gone."), says("It is gone already."))
    await asyncio.gather(client.chat(session, "ok"), client.chat(session, "ok"))
    assert effects == ["delete itm-1"]
    assert "Do now what you last proposed" not in provider.notes()


async def test_a_yes_to_a_later_question_does_not_approve_what_waits(
    client: Client, provider: Provider, effects: list[str]
) -> None:
    session, _ = await offered(client, provider, [deletion(1), deletion(2)])
    provider.will(says("Twelve."), says("Thirteen. Shall I list their names?"))
    question = "How many items would you say there are altogether on the shelf in the hall downstairs?"
    await client.chat(session, question)
    await client.chat(session, question + " And the day before?")
    answer = await client.chat(session, "yes")
    assert answer["plan"]["status"] == "waiting"
    assert "itm-1" in answer["message"]["content"]
    assert effects == []
    await client.chat(session, "yes")
    assert effects == ["delete itm-1"]


@pytest.mark.parametrize("before", [1, 2])
async def test_a_yes_to_what_the_model_offers_beside_a_plan_that_waits_is_no_change_of_the_plan(
    client: Client, provider: Provider, effects: list[str], before: int
) -> None:
    session, _ = await offered(client, provider, [deletion(1), deletion(2)])
    question = "How many items would you say there are altogether on the shelf in the hall downstairs?"
    for _ in range(before):
        provider.will(says("Twelve. Shall I show you the lamps?"))
        await client.chat(session, question)
    provider.will(calls(("mcp_find_items", {"query": "lamps"})), says("Here they are."))
    answer = await client.chat(session, "yes, please show me the lamps")
    assert answer["message"]["content"].startswith("Here they are.")
    assert (await client.get(f"/sessions/{session}/plan"))["status"] == "waiting"
    assert effects == []


@pytest.mark.sweep
async def test_a_yes_while_the_tool_is_away_waits_for_its_return(
    settings: Settings, provider: Provider, shelf: Shelf
) -> None:
    config = settings.mcp_config
    config.write_text(json.dumps({"mcpServers": {"shelf": {"url": shelf.url}}}))
    async with running(settings) as client:
        session, _ = await offered(client, provider, [deletion(1), deletion(2)])
    with_shelf = config.read_text()
    config.write_text(json.dumps({"mcpServers": {}}))
    async with running(settings) as client:
        answer = await client.chat(session, "yes")
        assert answer["plan"]["status"] == "waiting"
    config.write_text(with_shelf)
    async with running(settings) as client:
        await client.chat(session, "yes")
    assert shelf.effects == ["delete itm-1"]


async def test_what_a_step_wrote_is_whole_after_a_wait(client: Client, provider: Provider, effects: list[str]) -> None:
    letter = "Dear Ada, " + "all is well and " * 60 + "goodbye."
    steps = [
        {"id": 1, "description": "Write a note", "tool": None},
        deletion(2),
        {"id": 3, "description": "Send", "tool": "mcp_send_note", "args": {"to": "Ada", "text": {"$from": 1}}},
    ]
    provider.will(planned(steps), says(letter))
    session = await client.new_session()
    await client.chat(session, ASK)
    answer = await client.chat(session, "ok")
    assert answer["plan"]["steps"][2]["args"] == {"to": "Ada", "text": letter}
    assert effects == ["delete itm-2"]


async def test_a_yes_to_a_question_that_never_arrived_does_not_approve(
    client: Client, provider: Provider, effects: list[str], settings: Settings
) -> None:
    session, _ = await offered(client, provider, [deletion(1), deletion(2)])
    async with looking_into(settings) as stores:
        await stores.database.execute("UPDATE turns SET status = 'failed'")
        await stores.database.execute("UPDATE sessions SET last_turn_id = NULL")
    answer = await client.chat(session, "yes")
    assert answer["plan"]["status"] == "waiting"
    assert effects == []
    await client.chat(session, "yes")
    assert effects == ["delete itm-1"]


async def test_a_yes_to_a_tool_that_was_redefined_since_is_asked_for_again(
    client: Client, provider: Provider, effects: list[str]
) -> None:
    session, _ = await offered(client, provider, [deletion(1), deletion(2)])
    other = "Delete an item, and everything like it."
    provider.will(calls(("mcp_relabel", {"description": other})), says("Relabelled."))
    await client.chat(
        session, "Relabel the tool that deletes, every list that I have seen so far calls it by a wrong name"
    )

    async def what_changed() -> list[dict[str, Any]]:
        [server] = (await client.get("/mcp/servers"))["items"]
        return list(server["changes"])

    [change] = await until(what_changed, logged="tool_changed")
    assert (change["tool"], change["changed"]) == ("mcp_delete_item", ["description"])
    assert (change["before"]["description"], change["now"]["description"]) == ("Delete an item for good.", other)
    changed_at = {tool["name"]: tool["changed_at"] for tool in (await client.get("/tools"))["items"]}
    assert (changed_at["mcp_delete_item"], changed_at["mcp_relabel"]) == (change["changed_at"], None)
    answer = await client.chat(session, "yes")
    assert (answer["plan"]["status"], effects) == ("waiting", [])
    assert "so I have to ask again. `mcp_delete_item`: `description`." in answer["message"]["content"]
    await client.chat(session, "yes")
    assert effects == ["delete itm-1"]


async def test_an_approved_call_goes_back_to_the_model_with_what_came_with_it_a_turn_earlier(
    client: Client, provider: Provider, effects: list[str]
) -> None:
    def asked(number: int) -> dict[str, Any]:
        function = {"name": "mcp_delete_item", "arguments": json.dumps({"item_id": f"itm-{number}"})}
        return {"id": f"c{number}", "type": "function", "function": function, "signature": f"of {number}"}

    made = {"role": "assistant", "content": "", "reasoning_content": "Hm.", "tool_calls": [asked(1), asked(2)]}
    provider.will(completion(made, "tool_calls"), says("Both are gone."), says("Bye."))
    session = await client.new_session()
    for message in ("Delete itm-1 and itm-2", "yes", "Thanks"):
        await client.chat(session, message)
    assert effects == ["delete itm-1", "delete itm-2"]
    for request in (1, 2):
        sent = [each for each in provider.messages(request, role="assistant") if each.get("tool_calls")]
        assert [each["reasoning_content"] for each in sent] == ["Hm.", "Hm."]
        assert [made["signature"] for each in sent for made in each["tool_calls"]] == ["of 1", "of 2"]
