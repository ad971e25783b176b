"""What a turn changed: in its answer, in the history, and after it was cut off; who said yes, and how."""

import asyncio
import json
from typing import Any

import pytest

from segue.config import Settings
from tests.support.plans import deletion, offered, press
from tests.support.provider import Provider, calls, says, streams
from tests.support.service import Client, process, running
from tests.support.shelf import Shelf

LOOK = {"id": 1, "description": "Look", "tool": "mcp_get_item", "args": {"item_id": "itm-1"}}


async def held(client: Client, provider: Provider, number: int = 1) -> tuple[str, dict[str, Any]]:
    """A session in which a deletion waits for a yes."""
    session = await client.new_session()
    provider.will(calls(("mcp_delete_item", {"item_id": f"itm-{number}"})))
    return session, await client.chat(session, "Tidy the shelf up, please")


async def last_message(client: Client, session: str) -> dict[str, Any]:
    return (await client.messages(session))[-1]


def outcomes(answer: dict[str, Any]) -> list[tuple[str, str]]:
    return [(each["tool"], each["outcome"]) for each in answer["effects"]]


async def test_an_answer_lists_what_was_changed_with_who_said_yes_in_which_way(
    client: Client, provider: Provider
) -> None:
    session, asked = await offered(client, provider, [LOOK, deletion(2)])
    waits = {"tool_call_id": None, "tool": "mcp_delete_item", "title": "delete_item", "args": {"item_id": "itm-2"}}
    assert asked["effects"] == asked["message"]["effects"] == [{**waits, "outcome": "waits", "approved_by": None}]
    provider.will(says("itm-2 is gone."))
    answer = await client.chat(session, "Sì, grazie")
    [effect] = answer["effects"]
    [said] = [each for each in await client.messages(session) if each["content"] == "Sì, grazie"]
    yes = {"how": "words", "by": "local", "message_id": said["id"], "mandate_id": None}
    [call] = answer["tool_calls"]
    assert effect == {**waits, "tool_call_id": call["tool_call_id"], "outcome": "done", "approved_by": yes}
    assert answer["message"] == await last_message(client, session)
    [_, turn] = await client.turns(session)
    assert turn["answer"] == answer


async def test_a_button_is_told_from_words_and_a_mandate_from_both(client: Client, provider: Provider) -> None:
    session, asked = await held(client, provider)
    provider.will(says("It is gone."))
    pressed = (await press(client, session, asked)).json()
    provider.will(calls(("mcp_delete_item", {"item_id": "itm-7"})), says("So is that."))
    unasked = await client.chat(session, "Delete itm-7 too")
    [by_button], [by_mandate] = pressed["effects"], unasked["effects"]
    [mandate] = (await client.get("/mandates"))["items"]
    assert (by_button["approved_by"]["how"], by_button["approved_by"]["mandate_id"]) == ("button", None)
    assert by_mandate["approved_by"] == {
        "how": "mandate",
        "by": "local",
        "message_id": None,
        "mandate_id": mandate["id"],
    }
    assert outcomes(unasked) == [("mcp_delete_item", "done")]


async def test_a_no_is_listed_as_denied_and_what_only_reads_not_at_all(client: Client, provider: Provider) -> None:
    session, _ = await offered(client, provider, [LOOK, deletion(2)])
    answer = await client.chat(session, "no")
    assert outcomes(answer) == [("mcp_delete_item", "denied")]
    provider.will(calls(("mcp_get_item", {"item_id": "itm-3"})), says("Here it is."))
    assert (await client.chat(session, "Show me itm-3"))["effects"] == []
    provider.will(says("Hello."))
    assert (await client.chat(session, "Hello"))["effects"] == []


async def test_what_failed_and_what_no_yes_was_needed_for_is_listed_by_its_outcome(
    client: Client, provider: Provider, shelf: Shelf
) -> None:
    session = await client.new_session()
    provider.will(
        calls(("mcp_set_aside", {"item_id": "itm-1"}), ("mcp_set_aside", {"wrong": 1}), ("mcp_no_such", {})),
        says("Done."),
    )
    answer = await client.chat(session, "Put itm-1 aside")
    [effect] = answer["effects"]
    assert (effect["title"], effect["outcome"], effect["approved_by"]) == ("Metti da parte", "done", None)
    shelf.trouble = "no ink"
    provider.will(calls(("mcp_moody_writer", {"word": "hello"})))
    asked = await client.chat(session, "Write hello")
    assert outcomes(asked) == [("mcp_moody_writer", "waits")]
    provider.will(says("It could not be written."))
    assert outcomes(await client.chat(session, "yes")) == [("mcp_moody_writer", "failed")]


async def test_a_yes_to_what_the_model_offered_in_words_is_kept_with_its_message(
    client: Client, provider: Provider
) -> None:
    session = await client.new_session()
    provider.will(says("Shall I delete itm-5?"))
    await client.chat(session, "What about itm-5?")
    provider.will(calls(("mcp_delete_item", {"item_id": "itm-5"})), says("It is gone."))
    answer = await client.chat(session, "yes, delete it")
    [said] = [each for each in await client.messages(session) if each["content"] == "yes, delete it"]
    assert answer["effects"][0]["approved_by"] | {"by": ""} == {
        "how": "words",
        "by": "",
        "message_id": said["id"],
        "mandate_id": None,
    }


async def test_effects_survive_a_restart(client: Client, provider: Provider, settings: Settings) -> None:
    session, _ = await held(client, provider)
    provider.will(says("It is gone."))
    answer = await client.chat(session, "yes")
    async with running(settings) as other:
        assert await last_message(other, session) == answer["message"]
        assert [turn["answer"]["effects"] for turn in await other.turns(session)][1] == answer["effects"]


@pytest.mark.sweep
async def test_what_was_done_before_kill_nine_and_what_may_have_been_is_still_listed_with_its_yes(
    settings: Settings, provider: Provider, shelf: Shelf
) -> None:
    settings.mcp_config.write_text(json.dumps({"mcpServers": {"shelf": {"url": shelf.url}}}))
    provider.will(calls(("mcp_burn_item", {"item_id": "itm-1"})), calls(("mcp_set_aside", {"item_id": "itm-2"})))
    for_ever = asyncio.Event()
    async with process(settings) as (killed, client):
        burnt, aside = await client.new_session(), await client.new_session()
        await client.chat(burnt, "Burn itm-1")
        sending = [asyncio.create_task(client.send(burnt, "yes"))]
        await shelf.wait_for("burn itm-1")
        provider.will(streams("It is ", for_ever))
        sending.append(asyncio.create_task(client.send(aside, "Put itm-2 aside")))
        await provider.wait_for_requests(3)
        await shelf.wait_for("set aside itm-2")
        killed.kill()
        await asyncio.gather(*sending, return_exceptions=True)
    provider.always("Put itm-2 aside", says("It is aside."))
    provider.always("Burn itm-1", says("It may be burnt."))
    async with process(settings) as (_, client):
        [*_, burn], [put] = await client.ended(burnt, 2), await client.ended(aside)
        receipts = (await client.get(f"/sessions/{burnt}/receipts"))["items"]
    for_ever.set()
    assert outcomes(burn["answer"]) == [("mcp_burn_item", "unknown")]
    assert burn["answer"]["effects"][0]["approved_by"]["how"] == "words"
    assert outcomes(put["answer"]) == [("mcp_set_aside", "done")]
    assert [each["content"]["outcome"] for each in receipts] == ["unknown"]
    assert shelf.effects == ["burn itm-1", "set aside itm-2"]
