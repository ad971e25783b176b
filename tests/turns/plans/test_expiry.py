"""A plan whose time passes while nobody is there."""

import asyncio
from datetime import timedelta

import pytest

from segue.config import Settings
from segue.db.engine import Database
from segue.domain.plan import end
from segue.plans import store
from tests.support.plans import THREE_STEPS, Frozen, offered
from tests.support.provider import Provider, calls, says
from tests.support.service import Client
from tests.support.shelf import Shelf
from tests.support.stores import looking_into

pytestmark = pytest.mark.usefixtures("long_leases")


@pytest.fixture
def settings(settings: Settings) -> Settings:
    """Upkeep comes by every few milliseconds."""
    return settings.model_copy(update={"turn_lease_s": 0.2})


async def test_a_plan_nobody_answered_expires_by_itself_and_a_late_yes_runs_nothing_and_is_told_so_once(
    client: Client, provider: Provider, clock: Frozen, effects: list[str], settings: Settings
) -> None:
    session, asked = await offered(client, provider, THREE_STEPS)
    clock.now += timedelta(days=2)
    async with looking_into(settings) as stores:
        await stores.until("SELECT status = 'expired' FROM plans")
    button = {"decision": "confirm", "version": asked["plan"]["version"]}
    refused = await client.http.post(f"/sessions/{session}/plan/decision", json=button)
    assert (refused.status_code, refused.json()["code"]) == (409, "plan_expired")
    late = await client.chat(session, "sì, grazie")
    assert late["plan"]["status"] == "expired"
    provider.will(says("Yes to what?"))
    again = await client.chat(session, "sì")
    assert (again["plan"], again["message"]["content"]) == (None, "Yes to what?")
    assert effects == ["get itm-1"]


async def test_a_plan_that_is_found_overdue_just_before_it_is_asked_about_again_is_told_of_after_that_question(
    client: Client, provider: Provider, database_url: str
) -> None:
    session, _ = await offered(client, provider, THREE_STEPS)
    database = Database(database_url)
    found = await database.read(store.open_plan, session)
    assert found is not None
    provider.always("What day is it?", says("It is Friday."))
    assert "It is Friday." in (await client.chat(session, "What day is it?"))["message"]["content"]
    await database.write(store.swap, found, end(found.plan, "expired"))
    await database.close()
    assert (await client.chat(session, "sì, grazie"))["plan"]["status"] == "expired"


async def test_a_turn_that_goes_on_after_its_plan_has_expired_runs_no_step_that_it_had_a_yes_for(
    client: Client, provider: Provider, clock: Frozen, shelf: Shelf
) -> None:
    session = await client.new_session()
    provider.will(calls(("mcp_paint_item", {"item_id": "itm-1"}), ("mcp_delete_item", {"item_id": "itm-2"})))
    await client.chat(session, "Tidy the shelf up, please")
    cut_off = asyncio.create_task(client.send(session, "yes"))
    await shelf.wait_for("paint itm-1")
    turn = (await client.turns(session))[-1]["turn_id"]
    await client.http.post(f"/sessions/{session}/turns/{turn}/cancel")
    assert (await cut_off).json()["code"] == "turn_cancelled"
    clock.now += timedelta(days=2)
    shelf.go.set()
    again = (await client.http.post(f"/sessions/{session}/turns/{turn}/retry")).json()
    assert (again["turn_id"], again["plan"]["status"]) == (turn, "expired")
    assert "delete itm-2" not in shelf.effects


async def test_an_offer_in_words_lapses_as_a_plan_that_waits_does(
    client: Client, provider: Provider, clock: Frozen, effects: list[str]
) -> None:
    late, soon = await client.new_session(), await client.new_session()
    provider.will(says("Shall I delete itm-2?"), says("Shall I delete itm-1?"))
    await client.chat(late, "What of itm-2?")
    clock.now += timedelta(hours=23)
    await client.chat(soon, "What of itm-1?")
    clock.now += timedelta(hours=2)
    provider.will(calls(("mcp_delete_item", {"item_id": "itm-1"})), says("Gone."))
    await client.chat(soon, "sì, grazie")
    provider.will(calls(("mcp_delete_item", {"item_id": "itm-2"})))
    answer = await client.chat(late, "sì, grazie")
    assert (effects, [step["status"] for step in answer["plan"]["steps"]]) == (["delete itm-1"], ["waiting"])


async def test_an_offer_that_is_made_again_is_new_though_an_old_one_had_the_same_words(
    client: Client, provider: Provider, clock: Frozen, effects: list[str]
) -> None:
    session = await client.new_session()
    for _ in range(2):
        provider.will(says("Shall I delete itm-2?"))
        await client.chat(session, "What of itm-2?")
        clock.now += timedelta(hours=23)
    provider.will(calls(("mcp_delete_item", {"item_id": "itm-2"})), says("Gone."))
    await client.chat(session, "sì, grazie")
    assert effects == ["delete itm-2"]
