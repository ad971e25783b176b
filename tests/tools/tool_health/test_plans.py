"""Plans and tools that cannot run: what is asked again, what waits, what fails, and that nothing runs by mistake."""

from typing import Any

import pytest

from tests.support.health import MOODY, called, fails_for_all, fails_out, put, uses
from tests.support.plans import ASK, Frozen, deletion, offered, planned
from tests.support.provider import Provider, calls, says
from tests.support.service import Client
from tests.support.shelf import Shelf

WRITER = "mcp_moody_writer"
READ = {"id": 1, "description": "Leggi", "tool": "mcp_get_item", "args": {"item_id": "itm-1"}}


def moody(number: int) -> dict[str, Any]:
    return {"id": number, "description": "Ripeti", "tool": MOODY, "args": {"word": "ciao"}}


async def test_a_tool_that_failed_between_the_question_and_the_yes_is_named_and_asked_about_again(
    client: Client, provider: Provider, shelf: Shelf
) -> None:
    session, asked = await offered(client, provider, [deletion(1), moody(2)])
    await fails_for_all(client, provider, shelf)
    effects = list(shelf.effects)
    answer = await client.chat(session, "sì")
    assert (answer["plan"]["status"], answer["plan"]["id"]) == ("waiting", asked["plan"]["id"])
    said = answer["message"]["content"]
    assert f"`{MOODY}` al momento non può essere eseguito: It has failed in several sessions." in said
    assert "devo chiedertelo di nuovo" in said
    assert "item_id: itm-1" in said
    assert shelf.effects == effects
    await client.http.post("/tool-states/reset", json={"tool_name": MOODY})
    provider.will(says("Fatto."))
    answer = await client.chat(session, "sì")
    assert answer["plan"]["status"] == "completed"
    assert shelf.effects == [*effects, "delete itm-1", "moody ciao"]


@pytest.mark.sweep
async def test_a_yes_to_a_question_that_named_the_failed_tool_goes_on_up_to_it_and_waits(
    client: Client, provider: Provider, shelf: Shelf, clock: Frozen
) -> None:
    session, _ = await offered(client, provider, [deletion(1), moody(2)])
    await fails_for_all(client, provider, shelf)
    effects = list(shelf.effects)
    await client.chat(session, "sì")
    answer = await client.chat(session, "sì")
    assert [step["status"] for step in answer["plan"]["steps"]] == ["complete", "waiting"]
    assert f"`{MOODY}` al momento" in answer["message"]["content"]
    assert shelf.effects == [*effects, "delete itm-1"]
    assert (await client.chat(session, "sì"))["plan"]["status"] == "waiting"
    clock.now = clock.now.replace(minute=6)
    provider.will(says("Fatto."))
    assert (await client.chat(session, "sì"))["plan"]["status"] == "completed"
    assert shelf.effects == [*effects, "delete itm-1", "moody ciao"]


@pytest.mark.sweep
async def test_the_button_asks_again_too(client: Client, provider: Provider, shelf: Shelf) -> None:
    session, asked = await offered(client, provider, [deletion(1), deletion(2)])
    await put(client, session, "mcp_delete_item", "maintenance", reason="Trasloco")
    pressed = {"decision": "confirm", "version": asked["plan"]["version"]}
    answer = (await client.http.post(f"/sessions/{session}/plan/decision", json=pressed)).json()
    assert answer["plan"]["status"] == "waiting"
    assert "`mcp_delete_item` al momento non può essere eseguito: Trasloco" in answer["message"]["content"]
    assert shelf.effects == []


async def test_a_tool_taken_out_while_a_plan_runs_does_not_run_in_its_next_step(
    client: Client, provider: Provider, shelf: Shelf
) -> None:
    session = await client.new_session()

    async def taken_out(_: dict[str, Any]) -> Any:
        await put(client, session, "mcp_get_item", "maintenance")
        return says("ciao")

    provider.will(planned([moody(1), {"id": 2, "description": "Scrivi", "tool": None}, {**READ, "id": 3}]), taken_out)
    answer = await client.chat(session, ASK)
    assert [step["status"] for step in answer["plan"]["steps"]] == ["complete", "complete", "waiting"]
    assert shelf.effects == ["moody ciao"]
    await put(client, session, "mcp_get_item", "available")
    provider.will(says("Fatto."))
    assert (await client.chat(session, "sì"))["plan"]["status"] == "completed"
    assert shelf.effects == ["moody ciao", "get itm-1"]


@pytest.mark.sweep
async def test_no_plan_is_made_with_a_tool_that_cannot_run(client: Client, provider: Provider, shelf: Shelf) -> None:
    session = await fails_out(client, provider, shelf)
    provider.will(planned([moody(1), READ]), says("Non posso."))
    answer = await client.chat(session, ASK)
    assert answer["plan"] is None
    assert not {MOODY, "mcp_dependent_tool"} & {tool["function"]["name"] for tool in provider.requests[-2]["tools"]}
    assert MOODY not in provider.instruction(-2)
    assert '"name":"mcp_dependent_tool"' in provider.instruction(-2)
    assert f"- {MOODY}: it has failed" in provider.notes()


async def test_a_step_unlocks_the_next_and_one_without_what_it_needs_fails_with_what_would_unlock_it(
    client: Client, provider: Provider, shelf: Shelf
) -> None:
    look = {"id": 1, "description": "Guarda", "tool": "mcp_base_tool", "args": {"topic": "tè"}}
    more = {"id": 2, "description": "Approfondisci", "tool": "mcp_dependent_tool", "args": {"topic": "tè"}}
    provider.will(planned([look, more]), says("Fatto."))
    answer = await client.chat(await client.new_session(), ASK)
    assert [step["status"] for step in answer["plan"]["steps"]] == ["complete", "complete"]
    provider.will(planned([READ, more]), says("Non si può."))
    answer = await client.chat(await client.new_session(), ASK.replace("Rossi", "Bianchi"))
    assert [step["status"] for step in answer["plan"]["steps"]] == ["complete", "failed"]
    assert "run mcp_base_tool first" in answer["plan"]["steps"][1]["error"]
    assert shelf.effects == ["base tè", "dependent tè", "get itm-1"]


@pytest.mark.sweep
async def test_nobody_is_asked_about_a_call_that_could_not_run(
    client: Client, provider: Provider, shelf: Shelf
) -> None:
    session = await client.new_session()
    await put(client, session, WRITER, "unavailable", reason="No ink")
    [call] = await called(client, provider, session, (WRITER, {"word": "x"}))
    assert (call["status"], shelf.effects) == ("failed", [])
    assert "No ink" in call["error"]
    assert (await client.http.get(f"/sessions/{session}/plan")).status_code == 404


@pytest.mark.sweep
async def test_a_call_that_was_held_runs_as_the_one_try_of_a_failed_tool(
    client: Client, provider: Provider, shelf: Shelf, clock: Frozen
) -> None:
    session = await client.new_session()
    shelf.trouble = "no ink"
    for number in range(3):
        provider.will(calls((WRITER, {"word": str(number)})), says("non va"))
        await client.chat(session, "Scrivi.")
        await client.chat(session, "sì")
    assert len(shelf.effects) == 3
    provider.will(calls((WRITER, {"word": "x"})), says("Non posso."))
    assert (await client.chat(session, "Scrivi."))["plan"] is None
    clock.now = clock.now.replace(minute=6)
    provider.will(calls((WRITER, {"word": "x"})))
    asked = await client.chat(session, "Scrivi.")
    assert asked["plan"]["status"] == "waiting"
    shelf.trouble = None
    provider.will(says("Scritto."))
    assert (await client.chat(session, "sì"))["plan"]["status"] == "completed"
    assert shelf.effects[3:] == ["write x"]
    assert await uses(client, provider, session) == "succeeded"
