"""The chat by clicks, with a scripted model: what CI does not take the time for. `make console` runs it."""

import asyncio
import base64
import itertools
import json
import os
import re
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest

from segue import tool
from segue.config import Settings
from tests.support.browsing import DOT, PHONE, Browsing, Window, console
from tests.support.commands import ROOT
from tests.support.identity import new_key
from tests.support.plans import deletion, planned
from tests.support.provider import Provider, calls, fails, says, streams
from tests.support.results import use_toolbox
from tests.support.service import Client, Process, running
from tests.support.shelf import Shelf, serving_shelf
from tests.support.stores import looking_into, urls_of

if TYPE_CHECKING:
    from playwright.async_api import Route

pytestmark = pytest.mark.sweep

PROTOCOL_SERVER = Path(__file__).parents[1] / "mcp" / "mcp_protocol_server.py"
BELOW = "(box => box.scrollHeight - box.scrollTop - box.clientHeight)(document.querySelector('.history'))"
KEEP_SHOWN = """() => {
  const list = document.querySelector('#messages')
  window.shown = []
  new MutationObserver(() => shown.push(list.textContent)).observe(list, {childList: true, subtree: true})
}"""
DELETE = calls(("mcp_delete_item", {"item_id": "itm-1"}))


@pytest.fixture
async def shelf(settings: Settings) -> AsyncIterator[Shelf]:
    async with serving_shelf() as served:
        settings.mcp_config.write_text(json.dumps({"mcpServers": {"shelf": {"url": served.url}}}))
        yield served


def question(window: Window) -> Any:
    return window.page.get_by_role("region", name="Waits for you")


async def test_a_call_is_approved_with_other_arguments(
    browsing: Browsing, settings: Settings, provider: Provider, shelf: Shelf
) -> None:
    provider.will(DELETE, says("itm-2 is gone."))
    async with console(browsing, settings) as window:
        await window.say("Delete item 1")
        await question(window).get_by_role("button", name="Change arguments").click()
        await question(window).get_by_role("textbox", name="item_id").fill("itm-2")
        await window.press("Approve with these")
        await window.sees("itm-2 is gone.")
        await window.sees("Changed: delete_item")
    assert shelf.effects == ["delete itm-2"]


async def test_what_was_typed_for_a_decision_stays_when_the_service_refuses_it(
    browsing: Browsing, settings: Settings, provider: Provider, shelf: Shelf
) -> None:
    provider.will(DELETE, says("itm-2 is gone."))

    async def refuse(route: "Route") -> None:
        await route.fulfill(status=422, body='{"code": "invalid_args", "title": "No", "detail": "Not so."}')

    async with console(browsing, settings) as window:
        await window.say("Delete item 1")
        await question(window).get_by_role("button", name="Change arguments").click()
        box = question(window).get_by_role("textbox", name="item_id")
        await box.fill("itm-2")
        await window.page.route("**/plan/decision", refuse)
        await window.press("Approve with these")
        await window.page.locator(".toast.bad").get_by_text("These values do not fit.").wait_for()
        await window.page.unroute_all(behavior="wait")
        assert await box.input_value() == "itm-2"
        await window.press("Approve with these")
        await window.sees("itm-2 is gone.")
    assert shelf.effects == ["delete itm-2"]


async def test_a_number_that_no_double_holds_is_shown_and_approved_to_the_digit(
    browsing: Browsing, settings: Settings, provider: Provider
) -> None:
    account, other = 2**53 + 1, 2**63 - 1
    paid: list[int] = []

    @tool(effect="destructive")
    async def pay(account: int) -> str:
        """Pays an account."""
        paid.append(account)
        return "paid"

    provider.will(calls(("pay", {"account": account})), calls(("pay", {"account": account})), says("Paid twice."))
    async with running(settings, tools=[pay]) as client:
        window = await browsing.open(str(client.http.base_url).rstrip("/"))
        await window.say(f"Pay account {account}")
        await question(window).get_by_text(str(account), exact=True).wait_for()
        await question(window).get_by_role("button", name="Change arguments").click()
        box = question(window).get_by_role("textbox", name="account")
        assert await box.input_value() == str(account)
        await box.fill(str(other))
        await window.press("Approve with these")
        await question(window).get_by_text(str(account), exact=True).wait_for()
        await question(window).get_by_role("button", name="Approve").click()
        await window.sees("Paid twice.")
        await browsing.close()
    assert paid == [other, account]


async def test_a_call_is_rejected_and_changed_in_words(
    browsing: Browsing, settings: Settings, provider: Provider, shelf: Shelf
) -> None:
    provider.will(DELETE, planned([deletion(3)]))
    async with console(browsing, settings) as window:
        await window.say("Delete item 1")
        await question(window).get_by_role("button", name="Change in words").click()
        await window.page.get_by_role("textbox", name="What should be different?").fill("No: item 3")
        await question(window).get_by_role("button", name="Send").click()
        await question(window).get_by_text("itm-3").wait_for()
        await window.sees("Read as a change of the plan")
        await question(window).get_by_role("button", name="Reject").click()
        await window.sees("Read as a no")
        await question(window).wait_for(state="detached")
    assert shelf.effects == []


async def test_a_long_call_that_waits_opens_at_its_head_and_says_each_value_once(
    browsing: Browsing, settings: Settings, provider: Provider, shelf: Shelf
) -> None:
    letter = "\n".join(f"Line {number} of the letter to Marco Rossi about his order" for number in range(1, 61))
    provider.will(calls(("mcp_delete_item", {"item_id": letter})), says("Gone."))
    async with console(browsing, settings, viewport=PHONE, has_touch=True) as window:
        await window.say("Delete the item")
        await question(window).wait_for()
        await window.page.reload()
        await question(window).get_by_text("1 of 1 values not yours: item_id").wait_for()
        head = "() => Math.abs(document.querySelector('.card').getBoundingClientRect().top - 70) < 40"
        await window.page.wait_for_function(head)
        assert await window.page.get_by_text("Line 1 of the letter").count() == 1
        assert await window.page.get_by_text("Line 60 of the letter").count() == 0
        await question(window).get_by_role("button", name="Show all: 60 lines").press("Enter")
        await question(window).get_by_text("Line 60 of the letter").wait_for()
        assert not await window.axe()
        await window.page.context.set_offline(True)
        await window.say("Which item?")
        await window.page.wait_for_function(
            "() => document.querySelector('.mine[data-state]')?.getBoundingClientRect().top < 600"
        )
        await window.press("Discard this message")
        await window.page.context.set_offline(False)
        await question(window).get_by_role("button", name="Approve").click()
        await window.sees("Gone.")
    assert shelf.effects == [f"delete {letter}"]


async def test_a_question_that_is_asked_again_says_what_changed(
    browsing: Browsing, settings: Settings, provider: Provider, shelf: Shelf
) -> None:
    assert shelf.url
    provider.will(DELETE, planned([deletion(3)]))
    async with console(browsing, settings) as window:
        await window.say("Delete item 1")
        await question(window).get_by_role("button", name="Change in words").click()
        await window.page.get_by_role("textbox", name="What should be different?").fill("No: item 3")
        await question(window).get_by_role("button", name="Send").click()
        await question(window).get_by_text("changed since it was last asked").wait_for()
        assert await question(window).locator("del").all_text_contents() == ["itm-1"]
        assert await question(window).locator("ins").all_text_contents() == ["itm-3"]


async def test_stop_also_stops_what_was_said_into_the_answer(
    browsing: Browsing, settings: Settings, provider: Provider
) -> None:
    never = asyncio.Event()
    provider.will(streams("Half of ", "an answer", never))
    async with console(browsing, settings) as window:
        await window.say("Tell me")
        await window.sees("Half of an answer")
        await window.say("In verse")
        await window.sees("Will be read before the next step")
        await window.press("Stop")
        await window.page.get_by_text("You stopped this.").nth(1).wait_for()
        assert await window.button("Stop", exact=True).count() == 0
    never.set()
    assert len(provider.requests) == 1


async def test_pictures_of_messages_and_of_results_are_shown(
    browsing: Browsing, settings: Settings, provider: Provider, shelf: Shelf, tmp_path: Path
) -> None:
    shelf.texts["itm-1"] = f"A dot: data:image/png;base64,{DOT}"
    provider.will(calls(("mcp_get_item", {"item_id": "itm-1"})), says("Two dots."))
    (tmp_path / "dot.png").write_bytes(base64.b64decode(DOT))
    async with console(browsing, settings) as window:
        await window.page.locator("input[type=file]").set_input_files(tmp_path / "dot.png")
        await window.page.locator(".composer .chip[data-busy=false]").get_by_text("dot.png").wait_for()
        await window.say("What is this?")
        await window.sees("Two dots.")
        await window.page.get_by_role("img", name="Part 0 · image/png").wait_for()
        await window.page.locator("button.picture").first.click()
        await window.page.get_by_role("dialog").get_by_role("img", name="dot.png").wait_for()


async def test_notes_lists_and_sources_lead_to_what_they_name(
    browsing: Browsing, settings: Settings, provider: Provider, shelf: Shelf
) -> None:
    shelf.go.set()
    said = "Rossi pays [1], and late [2].[^why]\n\n- [x] asked\n- [ ] paid\n\n[^why]: He always does."
    provider.will(calls(("mcp_look_up", {"item_id": "itm-1"})), says(said))
    sources = [{"id": "s1", "title": "Orders", "url": "https://orders.example/1"}, {"id": "s2", "title": "The shelf"}]

    async def with_sources(route: "Route") -> None:
        response = await route.fetch()
        page = await response.json()
        for each in page["items"]:
            if each["role"] == "assistant" and each["content"] == said:
                each["sources"] = [sources[0], {**sources[1], "tool_call_id": page["items"][1]["tool_call_id"]}]
        await route.fulfill(response=response, json=page)

    async with console(browsing, settings) as window:
        await window.page.route("**/messages?*", with_sources)
        await window.say("\n".join(["Who pays?", *(f"and {number}" for number in range(40))]))
        await window.page.get_by_role("list", name="Sources").wait_for()
        assert await window.page.get_by_text("and 39").count() == 0
        await window.press("Show all: 41 lines")
        assert await window.page.get_by_text("and 39").count() == 1
        link = window.page.get_by_role("link", name="1: Orders")
        assert await link.get_attribute("href") == "https://orders.example/1"
        await window.press("2: The shelf")
        focused = "document.activeElement.closest('.call')?.id"
        assert await window.page.evaluate(focused) is not None
        await window.press("Note 1")
        assert (
            await window.page.evaluate("document.activeElement.closest('.footnote')?.textContent")
            == "1 He always does."
        )
        boxes = window.page.get_by_role("checkbox")
        assert [await box.is_checked() for box in await boxes.all()] == [True, False]
        assert not await window.axe()


async def test_the_palette_finds_pages_acts_and_chats_from_every_page(
    browsing: Browsing, settings: Settings, provider: Provider
) -> None:
    provider.will(says("The lamp is in the cellar."))
    async with console(browsing, settings) as window:
        await window.say("Where is it?")
        await window.sees("The lamp is in the cellar.")
        for page, words, found, there in (
            ("#/memory", "webhooks", "Webhooks", "#/ops/webhooks"),
            ("#/ops/audit", "lamp cellar", "Where is it?", "#/sessions/ses_"),
            ("#/ops/keys", "add a fact", "Add a fact", "#/memory"),
        ):
            await window.go(page)
            await window.page.keyboard.press("Control+k")
            await window.page.get_by_role("combobox", name="Commands").fill(words)
            await window.page.get_by_role("option", name=found, selected=True).wait_for()
            await window.page.keyboard.press("Enter")
            await window.page.wait_for_function("there => location.hash.startsWith(there)", arg=there)
        await window.page.get_by_role("dialog", name="Add a fact").wait_for()


async def test_a_form_of_a_tool_is_filled_in(
    browsing: Browsing, settings: Settings, provider: Provider, tmp_path: Path
) -> None:
    program = Path(__file__).parents[1] / "mcp" / "mcp_asking_server.py"
    asking = {"command": "python", "args": [str(program), str(tmp_path / "effects")]}
    settings.mcp_config.write_text(json.dumps({"mcpServers": {"asking": asking}}))
    read = {"reading": "answer", "values": json.dumps({"guests": 2})}
    provider.will(calls(("mcp_deliver", {"what": "pizza"})), says(json.dumps(read)), says("It is on its way."))
    async with console(browsing, settings) as window:
        await window.say("Bring me a pizza")
        await question(window).get_by_text("Where to, and for how many?").wait_for()
        await window.say("There are 2 of us")
        await question(window).get_by_text("from you").wait_for()
        assert await question(window).get_by_role("textbox", name="guests").input_value() == "2"
        await question(window).get_by_role("textbox", name="address").fill("via Roma 3")
        await question(window).get_by_role("button", name="Send").click()
        await window.sees("It is on its way.")
    assert (tmp_path / "effects").read_text() == "pizza to via Roma 3\n"


async def test_what_is_approved_for_the_chat_asks_no_more_until_it_is_revoked(
    browsing: Browsing, settings: Settings, provider: Provider, shelf: Shelf
) -> None:
    provider.will(DELETE, says("Gone."), calls(("mcp_delete_item", {"item_id": "itm-2"})), says("That one too."))
    async with console(browsing, settings) as window:
        await window.say("Delete item 1")
        await window.page.get_by_label("Do not ask again for this tool").check()
        await question(window).get_by_role("button", name="Approve").click()
        await window.sees("Gone.")
        await window.say("Delete itm-2")
        await window.sees("That one too.")
        await window.sees("approved in advance")
        await window.say("/grants")
        dialog = window.page.get_by_role("dialog")
        await dialog.get_by_text("mcp_delete_item").wait_for()
        await dialog.get_by_role("button", name="Revoke").click()
        await window.sees("Every call that changes something asks")
    assert shelf.effects == ["delete itm-1", "delete itm-2"]


async def test_a_prompt_of_a_server_goes_into_the_draft_and_a_call_shows_how_far_it_is(
    browsing: Browsing, settings: Settings, provider: Provider
) -> None:
    server = {"command": "python", "args": [str(PROTOCOL_SERVER)], "timeout_s": 3}
    settings.mcp_config.write_text(json.dumps({"mcpServers": {"ours": server}}))
    async with console(browsing, settings) as window:
        provider.will(says("Good day."), calls(("mcp_stall", {})), says("That took too long."))
        await window.say("Hello")
        await window.sees("Good day.")
        draft = window.page.get_by_role("textbox", name="Write a message")
        await draft.fill("/review")
        await window.page.get_by_role("option", name="/review/mail").click()
        await window.page.get_by_role("textbox", name="id").fill("eml-1")
        await window.press("Insert")
        await window.page.wait_for_function("() => document.querySelector('textarea').value.includes('eml-1')")
        await draft.press("Enter")
        await window.sees("half of it")
        await window.sees("That took too long.")


async def test_a_reader_who_went_up_a_little_is_led_back_once_the_answer_has_grown_below(
    browsing: Browsing, settings: Settings, provider: Provider
) -> None:
    gate, never = asyncio.Event(), asyncio.Event()
    provider.will(streams("A line.\n\n" * 60, gate, "More.\n\n" * 60, never))
    async with console(browsing, settings) as window:
        await window.say("Write at length")
        await window.page.wait_for_function("() => document.querySelectorAll('.live p').length > 55")
        await window.page.get_by_role("log").hover()
        await window.page.mouse.wheel(0, -300)
        await window.page.wait_for_function(f"() => {BELOW} > 200")
        to_end = window.button("To the newest message")
        assert await to_end.count() == 0
        gate.set()
        await to_end.click()
        await window.page.wait_for_function(f"() => {BELOW} < 20")
        await to_end.wait_for(state="detached")
        never.set()


async def test_the_page_to_copy_shows_no_answer_of_one_chat_in_another(
    browsing: Browsing, settings: Settings, provider: Provider
) -> None:
    gate = asyncio.Event()
    provider.will(streams(gate, "For the first."), streams("For the second."))

    async def of_the_docs(route: "Route") -> None:
        await route.fulfill(path=ROOT / "docs" / "page" / Path(urlsplit(route.request.url).path).name)

    async with running(settings) as client:
        url = str(client.http.base_url).rstrip("/")
        first, _ = [(await client.http.post("/sessions", json={"title": each})).json()["id"] for each in ("One", "Two")]
        window = await browsing.open(url)
        await window.page.route("**/page/**", of_the_docs)
        await window.page.goto(f"{url}/page/index.html?segue={url}")
        await window.page.get_by_text("One").click()
        await window.page.locator("#message").fill("Begin")
        await window.press("Send")
        await window.button("Stop").wait_for()
        await window.page.get_by_text("Two").click()
        await window.button("Stop").wait_for(state="hidden")
        await window.page.evaluate(KEEP_SHOWN)
        gate.set()
        await client.ended(first, 1)
        await window.page.locator("#message").fill("Begin")
        await window.press("Send")
        await window.sees("For the second.")
        assert not any("For the first." in each for each in await window.page.evaluate("() => shown"))
        await browsing.close()


async def test_a_menu_stays_open_while_the_answer_below_it_grows(
    browsing: Browsing, settings: Settings, provider: Provider
) -> None:
    gate, more = asyncio.Event(), [f"Line {number}.\n\n" for number in range(60)]
    provider.will(streams("It begins.\n\n", gate, *more, "It ends."))
    async with console(browsing, settings) as window:
        await window.say("Tell me")
        await window.sees("It begins.")
        await window.press("Settings")
        gate.set()
        await window.sees("It ends.")
        await window.page.wait_for_function("() => document.querySelector('.history').scrollTop > 0")
        await window.page.get_by_role("menuitem", name="Keyboard").click()
        await window.page.get_by_role("dialog", name="Keyboard").wait_for()


async def test_a_prompt_of_a_server_stands_behind_what_is_written(
    browsing: Browsing, settings: Settings, provider: Provider
) -> None:
    server = {"command": "python", "args": [str(PROTOCOL_SERVER)], "timeout_s": 3}
    settings.mcp_config.write_text(json.dumps({"mcpServers": {"ours": server}}))
    async with console(browsing, settings) as window:
        provider.will(says("Good day."))
        await window.say("Hello")
        await window.button("Answer again").wait_for()
        draft = window.page.get_by_role("textbox", name="Write a message")
        await draft.fill("Be quick.")
        await window.page.keyboard.press("Control+k")
        await window.page.get_by_role("combobox", name="Commands").fill("what is wrong")
        await window.page.get_by_role("option", name=re.compile("Says what is wrong")).click()
        await window.page.get_by_role("textbox", name="id").fill("eml-1")
        await window.press("Insert")
        await window.page.wait_for_function("() => document.querySelector('textarea').value.includes('eml-1')")
        assert (await draft.input_value()).startswith("Be quick.\n")


async def test_esc_stops_and_what_was_said_is_kept(browsing: Browsing, settings: Settings, provider: Provider) -> None:
    never = asyncio.Event()
    provider.will(streams("Half of ", "an answer", never), says("All of it."))
    async with console(browsing, settings) as window:
        await window.say("Tell me")
        await window.sees("Half of an answer")
        await window.page.keyboard.press("Escape")
        await window.sees("You stopped this. What was said until then is kept.")
        assert await window.page.get_by_text("Half of an answer").count() == 1
        await window.press("Run again")
        await window.sees("All of it.")
    never.set()


async def test_messages_are_edited_answered_anew_and_forked_and_old_versions_stay_readable(
    browsing: Browsing, settings: Settings, provider: Provider
) -> None:
    provider.will(says("First."), says("Second."), says("Third."))
    async with console(browsing, settings) as window:
        await window.say("One")
        await window.sees("First.")
        await window.press("Answer again")
        await window.sees("Second.")
        assert await window.page.get_by_text("First.").count() == 0
        await window.press("Edit")
        box = window.page.get_by_role("textbox", name="Edit")
        await box.fill("Two")
        await box.press("Enter")
        await window.sees("Third.")
        versions = window.page.get_by_role("group", name="Version 3 of 3")
        await versions.get_by_role("button", name="Previous version").click()
        await window.sees("Second.")
        await window.press("Previous version")
        await window.sees("First.")
        await window.press("Back to the chat")
        await window.say("/branches")
        await window.page.get_by_role("dialog").get_by_role("button", name="Read").last.click()
        await window.sees("First.")
        await window.press("Back to the chat")
        await window.sees("Third.")
        before = window.page.url
        await window.press("Continue in a new chat from here")
        await window.page.wait_for_function("before => location.href !== before", arg=before)
        await window.sees("Third.")


async def test_an_answer_is_rated_and_commented_on_until_both_are_taken_back(
    browsing: Browsing, settings: Settings, provider: Provider
) -> None:
    provider.will(says("Forty-two."))
    async with console(browsing, settings) as window:

        async def rated() -> list[tuple[str, str | None]]:
            said = await (await window.page.request.get(f"{window.url}/feedback")).json()
            return [(each["rating"], each["comment"]) for each in said["items"]]

        await window.say("How many?")
        await window.press("Good answer")
        await window.button("Good answer", pressed=True).wait_for()
        await window.button("Bad answer").press("Enter")
        await window.button("Bad answer", pressed=True).wait_for()
        assert await window.button("Good answer", pressed=True).count() == 0
        await window.press("Comment")
        await window.page.get_by_role("dialog").get_by_role("textbox", name="Comment").fill("<b>Too short</b>")
        await window.page.keyboard.press("Enter")
        await window.sees("<b>Too short</b>")
        assert not await window.axe()
        await window.page.reload()
        await window.button("Bad answer", pressed=True).wait_for()
        assert await rated() == [("down", "<b>Too short</b>")]
        await window.press("Bad answer")
        await window.button("Comment").wait_for(state="detached")
        assert await rated() == []


async def test_a_message_while_it_answers_goes_into_the_answer_or_waits(
    browsing: Browsing, settings: Settings, provider: Provider, shelf: Shelf
) -> None:
    provider.will(calls(("mcp_look_up", {"item_id": "itm-1"})), says("Both then."), says("Later."))
    async with console(browsing, settings) as window:
        await window.say("Look it up")
        await shelf.wait_for("look itm-1")
        await window.say("And the lamp")
        await window.sees("Will be read before the next step")
        await window.page.get_by_label("While it answers, a message goes").select_option("After this answer")
        await window.say("Then something else")
        await window.sees("Waits for its turn")
        shelf.go.set()
        await window.sees("Read while it was answering")
        await window.sees("Later.")
        for said in ("And the lamp", "Then something else", "Both then."):
            assert await window.page.locator(".history").get_by_text(said, exact=True).count() == 1


async def test_what_waits_behind_an_answer_stands_below_it_and_can_be_taken_back(
    browsing: Browsing, settings: Settings, provider: Provider
) -> None:
    gate = asyncio.Event()
    provider.will(streams("Half of ", gate, "it."), says("Later."))
    async with console(browsing, settings) as window:
        history = window.page.locator(".history")
        waiting = history.locator(".note.waits")
        await window.say("Tell me all")
        await window.sees("Half of")
        await window.page.get_by_label("While it answers, a message goes").select_option("After this answer")
        for count, said in enumerate(("Then this", "Then that", "Not this"), start=1):
            await window.say(said)
            await waiting.nth(count - 1).wait_for()
        await waiting.nth(2).get_by_role("button", name="Discard this message").click()
        await waiting.nth(2).wait_for(state="detached")
        await window.page.reload()
        await waiting.nth(1).wait_for()
        await window.sees("Half of")
        assert await stand_in_order(window, "Tell me all", "Half of", "Then this", "Then that")
        await waiting.nth(1).get_by_role("button", name="Edit").click()
        await waiting.nth(1).wait_for(state="detached")
        assert await window.page.get_by_role("textbox", name="Write a message").input_value() == "Then that"
        gate.set()
        await window.sees("Later.")
        await window.button("Stop", exact=True).wait_for(state="detached")
        assert await stand_in_order(window, "Tell me all", "Half of it.", "Then this", "Later.", "Then that")
    assert len(provider.requests) == 2


async def stand_in_order(window: Window, *said: str) -> bool:
    """Whether the history shows them below each other."""
    shown = await window.page.locator(".history").inner_text()
    places = [shown.index(each) for each in said]
    return places == sorted(places)


async def test_a_turn_that_ends_while_the_one_before_it_is_read_is_shown(
    browsing: Browsing, settings: Settings, provider: Provider
) -> None:
    first, second, read = asyncio.Event(), asyncio.Event(), asyncio.Event()
    provider.will(streams("One ", first, "done."), streams("Two ", second, "done."))

    async def messages(route: "Route") -> None:
        await route.fulfill(response=await route.fetch())
        read.set()

    async def plans(route: "Route") -> None:
        await read.wait()
        second.set()
        await window.page.locator(".session .dot.busy").wait_for(state="detached")
        await route.continue_()

    async with console(browsing, settings) as window:
        await window.say("First")
        await window.sees("One")
        await window.page.get_by_label("While it answers, a message goes").select_option("After this answer")
        await window.say("Second")
        await window.sees("Waits for its turn")
        await window.page.route("**/messages?*", messages)
        await window.page.route("**/plans?*", plans)
        first.set()
        await window.sees("Two done.")
        await window.page.unroute_all(behavior="wait")


async def test_what_failed_says_why_and_is_run_again(
    browsing: Browsing, settings: Settings, provider: Provider
) -> None:
    provider.will(fails(400), says("Now it works."))
    async with console(browsing, settings) as window:
        await window.say("Hello")
        await window.sees("model_unavailable")
        await window.press("Run again")
        await window.sees("Now it works.")
        assert await window.page.get_by_text("model_unavailable").count() == 0


async def test_files_are_sent_with_a_message_and_a_refused_one_says_why(
    browsing: Browsing, settings: Settings, provider: Provider, tmp_path: Path
) -> None:
    provider.will(says("Rossi pays 12."))
    (tmp_path / "costs.csv").write_text("name,amount\nRossi,12\n")
    (tmp_path / "evil.sh").write_text("#!/bin/sh\n")
    (tmp_path / "film.txt").write_text("a" * 200_000)
    async with console(browsing, settings.model_copy(update={"attachment_max_bytes": 100_000})) as window:
        files = window.page.locator("input[type=file]")
        await files.set_input_files(tmp_path / "film.txt")
        await window.say("What does Rossi pay?")
        refused = window.page.locator(".chip[data-bad=true]")
        await refused.get_by_text("This is too large to send.").wait_for()
        assert await window.page.get_by_text("This is too large to send.").count() == 1
        await window.button("Try again").wait_for()
        assert (await (await window.page.request.get(f"{window.url}/sessions")).json())["items"] == []
        await window.press("Edit")
        await window.press("Remove film.txt")
        await files.set_input_files(tmp_path / "costs.csv")
        await window.page.get_by_role("textbox", name="Write a message").press("Enter")
        await window.sees("Rossi pays 12.")
        assert await window.page.locator(".history .chip").get_by_text("costs.csv").count() == 1
        await files.set_input_files(tmp_path / "evil.sh")
        await refused.get_by_text("evil.sh").wait_for()
        assert await window.page.get_by_role("textbox", name="Write a message").input_value() == ""


async def test_enter_while_a_file_is_sent_waits_for_it(
    browsing: Browsing, settings: Settings, provider: Provider, tmp_path: Path
) -> None:
    provider.will(says("Good day."), says("Rossi pays 12."))
    (tmp_path / "costs.csv").write_text("name,amount\nRossi,12\n")
    arrived, go = asyncio.Event(), asyncio.Event()

    async def later(route: "Route") -> None:
        arrived.set()
        await go.wait()
        await route.continue_()

    async with console(browsing, settings) as window:
        await window.say("Hello")
        await window.button("Answer again").wait_for()
        await window.page.route("**/attachments", later)
        await window.page.locator("input[type=file]").set_input_files(tmp_path / "costs.csv")
        await arrived.wait()
        await window.say("What does Rossi pay?")
        await window.page.locator(".history .chip[data-busy=true]").get_by_text("costs.csv").wait_for()
        assert await window.page.get_by_role("textbox", name="Write a message").input_value() == ""
        assert len(provider.requests) == 1
        go.set()
        await window.sees("Rossi pays 12.")
        assert await window.page.locator(".history .chip").get_by_text("costs.csv").count() == 1


async def test_thoughts_are_folded(browsing: Browsing, settings: Settings, provider: Provider) -> None:
    gate = asyncio.Event()
    provider.will(streams({"reasoning_content": "The lamp is red."}, "Red", gate, "."))
    async with console(browsing, settings.model_copy(update={"show_reasoning": True})) as window:
        await window.say("Which colour?")
        thoughts = window.page.get_by_text("Thoughts")
        await thoughts.wait_for()
        assert not await window.page.get_by_text("The lamp is red.").is_visible()
        await thoughts.click()
        await window.sees("The lamp is red.")
        gate.set()
        await window.button("Answer again").wait_for()


async def test_a_killed_service_is_waited_for_and_its_turn_goes_on_once(
    browsing: Browsing, settings: Settings, provider: Provider
) -> None:
    never = asyncio.Event()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    environment = {
        **urls_of(settings),
        "OPENAI_BASE_URL": str(settings.openai_base_url),
        "LLM_MODEL": "scripted",
        "MCP_CONFIG": str(settings.mcp_config),
        "MIGRATE_ON_START": "false",
        "TURN_LEASE_S": "3",
    }
    served = Process(environment, command=("serve", "--port", port))
    provider.will(streams("Once upon a", never), says("The whole story."))
    url = await asyncio.to_thread(served.start)
    try:
        window = await browsing.open(url)
        await window.say("Tell me a story")
        await window.sees("Once upon a")
        served.kill()
        await window.sees("The service cannot be reached.")
        await asyncio.to_thread(served.start)
        await window.sees("The whole story.")
        await window.sees("another took this over (attempt 2)")
        await window.button("Answer again").wait_for()
        assert await window.page.get_by_text("The service cannot be reached.").count() == 0
        assert await window.page.locator(".history").get_by_text("Tell me a story").count() == 1
        assert await window.page.get_by_text("The whole story.").count() == 1
        assert await window.page.get_by_text("Once upon a").count() == 0
        await browsing.close()
    finally:
        never.set()
        served.kill()


async def test_two_windows_show_the_same_answer_while_it_is_written(
    browsing: Browsing, settings: Settings, provider: Provider
) -> None:
    gate = asyncio.Event()
    provider.will(streams("To be", gate, " continued."))
    async with console(browsing, settings) as window:
        other = await browsing.open(window.url)
        await window.say("Both of you")
        await other.page.get_by_role("link", name=re.compile("^Both of you")).click()
        await other.sees("To be")
        assert await other.button("Stop").count() == 1
        gate.set()
        for each in (window, other):
            await each.sees("To be continued.")
            await each.button("Answer again").wait_for()
            assert await each.page.locator(".history").get_by_text("Both of you").count() == 1


async def revoke_key_of(user: str, window: Window, ops: str) -> None:
    """By the process that the window speaks to, which refuses the key at once; others take up to a second."""
    headers, path = {"X-Api-Key": ops}, f"{window.url}/ops/keys"
    [key] = (await (await window.page.request.get(f"{path}?user={user}", headers=headers)).json())["items"]
    assert (await window.page.request.delete(f"{path}/{key['id']}", headers=headers)).ok


async def test_a_key_is_asked_for_once_and_again_when_it_is_revoked(
    browsing: Browsing, settings: Settings, provider: Provider
) -> None:
    provider.will(says("Hello, Ada."), says("Still there."))
    guarded = settings.model_copy(update={"auth": "api_key"})
    first, foreign = [await new_key(guarded, user) for user in ("ada", "mallory")]
    ops = await new_key(guarded, "root", ["ops"])
    async with console(browsing, guarded) as window:
        field = window.page.get_by_role("textbox", name="API key")
        await field.fill(first)
        await field.press("Enter")
        await window.say("Hello")
        await window.sees("Hello, Ada.")
        await window.page.route("**/sessions?*", lambda _: None)  # so that no other reading meets the refusal first
        await revoke_key_of("ada", window, ops)
        await window.say("Are you there?")
        await window.sees("The key was refused")
        await field.fill(await new_key(guarded, "ada"))
        await field.press("Enter")
        await window.sees("Still there.")
        await window.page.unroute_all()
        other = await browsing.open(
            window.url, window.page.url.partition("/#")[0] and "#" + window.page.url.partition("#")[2]
        )
        await other.page.get_by_role("textbox", name="API key").fill(foreign)
        await other.page.keyboard.press("Enter")
        await other.sees("There is no such chat, or it is not yours")


async def test_all_of_it_works_with_the_keyboard_alone(
    browsing: Browsing, settings: Settings, provider: Provider, shelf: Shelf
) -> None:
    assert shelf.url
    provider.will(DELETE, says("Gone."))
    async with console(browsing, settings) as window:
        keyboard = window.page.keyboard
        await window.page.get_by_role("textbox", name="Write a message").wait_for()
        await keyboard.type("Delete item 1")
        await keyboard.press("Shift+Enter")
        await keyboard.type("please")
        await keyboard.press("Enter")
        approve = question(window).get_by_role("button", name="Approve")
        await approve.wait_for()
        for _ in range(40):
            if await approve.evaluate("button => button === document.activeElement"):
                break
            await keyboard.press("Shift+Tab")
        await keyboard.press("Enter")
        await window.sees("Gone.")
        await keyboard.press("Control+k")
        await keyboard.type("dark")
        await window.page.get_by_role("option", name=re.compile("Dark"), selected=True).wait_for()
        await keyboard.press("Enter")
        assert await window.page.evaluate("document.documentElement.dataset.theme") == "dark"
        await window.page.get_by_role("textbox", name="Write a message").focus()
        await keyboard.type("/ren")
        await keyboard.press("Enter")
        await window.page.get_by_role("dialog").get_by_label("Title").fill("Shelves")
        await keyboard.press("Enter")
        await window.page.get_by_role("heading", name="Shelves").wait_for()
        assert not await window.axe()


async def test_the_focus_is_not_lost_with_a_button_that_goes(
    browsing: Browsing, settings: Settings, provider: Provider, shelf: Shelf
) -> None:
    provider.will(DELETE, says("itm-1 is gone."))
    async with console(browsing, settings) as window:

        async def press(name: str, *, then: str) -> None:
            await window.button(name, exact=True).press("Enter")
            focused = "name => [document.activeElement.ariaLabel, document.activeElement.innerText].includes(name)"
            await window.page.wait_for_function(focused, arg=then)

        await window.say("Delete item 1")
        await press("Change in words", then="What should be different?")
        await press("Cancel", then="Change in words")
        await window.button("Change arguments").press("Enter")
        await window.page.keyboard.type("9")
        assert "9" in await question(window).get_by_role("textbox", name="item_id").input_value()
        await press("Cancel", then="Change arguments")
        await press("Edit", then="Edit")
        await window.page.keyboard.press("Escape")
        assert await window.button("Edit").evaluate("each => each === document.activeElement")
        await press("Approve", then="Write a message")
        await window.sees("itm-1 is gone.")
    assert shelf.effects == ["delete itm-1"]


BEHIND = "['.main', '.rail'].map(name => document.querySelector(name).inert)"


async def test_esc_closes_the_list_on_a_phone_and_leaves_the_answer_that_runs(
    browsing: Browsing, settings: Settings, provider: Provider
) -> None:
    gate = asyncio.Event()
    provider.will(streams("Half of ", gate, "it."))
    async with console(browsing, settings, viewport=PHONE, reduced_motion="no-preference") as window:
        await window.say("Tell me all")
        await window.sees("Half of")
        await window.press("Open the list")
        await window.page.wait_for_function("() => document.activeElement.closest('.side.open') !== null")
        assert await window.page.evaluate(BEHIND) == [True, True]
        await window.page.keyboard.press("Escape")
        await window.page.locator(".side.open").wait_for(state="detached")
        assert await window.page.evaluate(BEHIND) == [False, False]
        assert await window.page.evaluate("document.activeElement.getAttribute('aria-label')") == "Open the list"
        await window.press("Open the list")
        await window.page.wait_for_function(f"() => ({BEHIND}).every(Boolean)")
        await window.page.set_viewport_size({"width": 1280, "height": 800})
        await window.page.wait_for_function(f"() => !({BEHIND}).some(Boolean)")
        gate.set()
        await window.sees("Half of it.")


async def test_enter_begins_a_line_on_a_screen_keyboard_where_the_button_sends(
    browsing: Browsing, settings: Settings, provider: Provider
) -> None:
    provider.will(says("Two lines."))
    async with console(browsing, settings, viewport=PHONE, has_touch=True, is_mobile=True) as window:
        box = window.page.get_by_role("textbox", name="Write a message")
        await box.press_sequentially("One\nTwo")
        assert await box.input_value() == "One\nTwo"
        await window.press("Send")
        await window.sees("Two lines.")
        assert await window.page.locator(".bubble").first.inner_text() == "One\nTwo"


async def test_arabic_on_a_phone_runs_from_the_right(
    browsing: Browsing, settings: Settings, provider: Provider
) -> None:
    provider.will(says("أهلاً بك يا سارة."))
    async with console(browsing, settings, viewport=PHONE, locale="ar", has_touch=True) as window:
        assert await window.page.evaluate("document.documentElement.dir") == "rtl"
        box = window.page.get_by_role("textbox", name="اكتب رسالة")
        await box.fill("مرحبا")
        await box.press("Control+Enter")
        await window.sees("أهلاً بك يا سارة.")
        await window.press("فتح القائمة")
        await window.page.get_by_role("link", name=re.compile("مرحبا")).click()
        assert await window.page.evaluate("document.scrollingElement.scrollWidth <= innerWidth")
        assert not await window.axe()


LISTED = """- عنصر أول
- item two

> اقتباس

| الصنف | السعر |
|---|---|
| عدسات | https://example.com/a/very/long/path/that/does/not/break/anywhere/at/all/and/goes/on |
| إطار | ok |
"""


async def test_what_runs_from_the_right_does_so_whole_and_stays_in_its_place(
    browsing: Browsing, settings: Settings, provider: Provider
) -> None:
    provider.will(says(LISTED))
    async with console(browsing, settings, viewport=PHONE) as window:
        await window.say("List them")
        answer = window.page.locator(".answer")
        await answer.get_by_text("ok", exact=True).wait_for()
        for tag in ("ul", "blockquote", "table"):
            assert await answer.locator(tag).evaluate("each => getComputedStyle(each).direction") == "rtl"
        sides = "each => each.getBoundingClientRect()"
        [answered, item] = [await answer.locator(each).first.evaluate(sides) for each in (".markdown", "li")]
        assert item["right"] < answered["right"]  # there is room for the mark before it
        wide = "cells => cells.filter(each => each.scrollWidth > each.clientWidth).length"
        assert await answer.locator("td").evaluate_all(wide) == 0
        arabic = await browsing.open(window.url, locale="ar")
        for box in ("اكتب رسالة", "ابحث في المحادثات"):
            field = arabic.page.get_by_placeholder(box)
            assert await field.evaluate("each => getComputedStyle(each).direction") == "rtl"


@pytest.mark.parametrize("language", ["en", "it", "zh", "ar"])
async def test_the_smallest_phone_has_all_buttons_in_its_window(
    browsing: Browsing, settings: Settings, provider: Provider, language: str
) -> None:
    gate = asyncio.Event()
    provider.will(streams("Half of ", gate, "it."))
    inside = """nodes => nodes.filter(node => node.checkVisibility()).map(node => node.getBoundingClientRect())
        .every(({ left, right }) => left >= 0 && right <= innerWidth)"""
    small = {"width": 320, "height": 640}
    async with console(browsing, settings, viewport=small, locale=language, has_touch=True) as window:
        box = window.page.locator(".composer textarea")
        await box.fill("Tell me all")
        await box.press("Control+Enter")
        await window.sees("Half of")
        await window.page.locator(".composer select").select_option(index=1)
        assert await window.page.locator(".rail a, .rail button, .composer button").evaluate_all(inside)
        await window.page.locator(".bar .actions button").click()
        assert await window.page.get_by_role("menu").evaluate_all(inside)
        gate.set()


async def test_the_tab_has_the_name_of_the_page_and_a_mark_for_what_came_in_the_background(
    browsing: Browsing, settings: Settings, provider: Provider, shelf: Shelf
) -> None:
    assert shelf.url
    provider.will(says("Good day."), DELETE)
    titled = "title => document.title === title"
    async with console(browsing, settings) as window:
        await window.page.wait_for_function(titled, arg="New chat · Segue")
        await window.go("#/memory")
        await window.page.wait_for_function(titled, arg="Memory · Segue")
        await window.go("#/")
        await window.say("Hello")
        await window.button("Answer again").wait_for()
        await window.page.wait_for_function(titled, arg="Hello · Segue")
        session = window.page.url.rpartition("/")[2]
        hide = "is => { Object.defineProperty(document, 'hidden', {value: is, configurable: true}) }"
        for message, mark in (("Delete item 1", "● "), (None, "")):
            await window.page.evaluate(hide, message is not None)
            if message is None:
                await window.page.evaluate("dispatchEvent(new Event('visibilitychange'))")
            else:
                chat = f"{window.url}/sessions/{session}/chat"
                await window.page.request.post(chat, data={"message": message, "background": True})
            await window.page.wait_for_function(titled, arg=f"{mark}Hello · Segue")


async def test_a_file_is_dropped_anywhere_and_one_that_nothing_takes_does_not_replace_the_page(
    browsing: Browsing, settings: Settings
) -> None:
    dropped = """type => {
        const held = new DataTransfer()
        held.items.add(new File(['name,amount'], 'costs.csv', {type: 'text/csv'}))
        const event = new DragEvent(type, {dataTransfer: held, bubbles: true, cancelable: true})
        document.querySelector('.bar').dispatchEvent(event)
        return event.defaultPrevented
    }"""
    async with console(browsing, settings) as window:
        await window.page.get_by_role("textbox", name="Write a message").wait_for()
        assert await window.page.evaluate(dropped, "dragover")
        await window.sees("Drop the files to attach them")
        assert await window.page.evaluate(dropped, "drop")
        await window.page.locator(".composer .chip").get_by_text("costs.csv").wait_for()
        await window.page.reload()
        await window.page.locator(".composer .chip").get_by_text("costs.csv").wait_for()
        await window.go("#/memory")
        await window.page.get_by_role("heading", name="Memory", exact=True).wait_for()
        assert await window.page.evaluate(dropped, "drop")


async def test_what_office_copies_as_text_with_a_picture_is_pasted_as_text_and_a_picture_alone_as_a_file(
    browsing: Browsing, settings: Settings
) -> None:
    pasted = """texts => {
        const held = new DataTransfer()
        held.items.add(new File(['picture'], 'image.png', {type: 'image/png'}))
        for (const [type, text] of Object.entries(texts)) held.setData(type, text)
        const event = new ClipboardEvent('paste', {clipboardData: held, bubbles: true, cancelable: true})
        document.querySelector('.composer textarea').dispatchEvent(event)
        return event.defaultPrevented
    }"""
    async with console(browsing, settings) as window:
        await window.page.get_by_role("textbox", name="Write a message").wait_for()
        cells = {"text/plain": "a\tb", "text/html": "<table><tr><td>a<td>b</table>"}
        assert not await window.page.evaluate(pasted, cells)
        assert await window.page.locator(".composer .chip").count() == 0
        assert await window.page.evaluate(pasted, {"text/plain": "image.png"})
        await window.page.locator(".composer .chip").get_by_text("image.png").wait_for()


async def test_the_frame_stands_in_the_chosen_theme_before_the_script_is_there(
    browsing: Browsing, settings: Settings
) -> None:
    async with console(browsing, settings) as window:
        await window.page.evaluate("localStorage.setItem('segue.theme', 'dark')")
        await window.page.evaluate("localStorage.setItem('segue.language', 'ar')")
        go = asyncio.Event()

        async def later(route: "Route") -> None:
            await go.wait()
            await route.continue_()

        await window.page.route("**/main-*.js", later)
        await window.page.reload(wait_until="commit")
        await window.page.locator(".shell .spinner").wait_for()
        look = "[document.documentElement.dir, getComputedStyle(document.body).backgroundColor]"
        assert await window.page.evaluate(look) == ["rtl", "rgb(22, 23, 21)"]
        go.set()
        await window.page.get_by_role("textbox", name="اكتب رسالة").wait_for()
        assert await window.page.locator(".shell").count() == 0


async def test_ten_thousand_chats_are_listed_a_window_at_a_time(browsing: Browsing, settings: Settings) -> None:
    async with looking_into(settings) as stores:
        await stores.database.execute(
            "INSERT INTO sessions (id, owner, title, metadata, created_at, updated_at) "
            "SELECT 'ses_' || lpad(n::text, 26, '0'), 'local', 'Chat ' || n, '{}', now(), now() - n * interval '1 min' "
            "FROM generate_series(1, 10000) n"
        )
    async with console(browsing, settings) as window:
        await window.page.get_by_role("link", name=re.compile("^Chat 1 ")).wait_for()
        rows = window.page.get_by_role("listitem")
        assert await rows.count() < 60
        shown = window.page.locator(".sessions")
        for last in ("Chat 250 ", "Chat 450 "):
            link = window.page.get_by_role("link", name=re.compile(f"^{last}"))
            for _ in range(400):
                if await link.count():
                    break
                await shown.evaluate("list => list.scrollBy(0, 400)")
                await window.page.wait_for_timeout(20)
            assert await link.count() == 1
        assert await rows.count() < 60
        await window.page.get_by_role("searchbox", name="Search chats").fill("9876")
        await window.page.get_by_role("link", name=re.compile("^Chat 9876")).wait_for()
        await window.page.wait_for_function("() => document.querySelectorAll('[role=listitem]').length === 1")


LONG = """
WITH made AS (
    INSERT INTO turns (id, session_id, seq, status, request, created_at)
    SELECT 'turn_' || lpad(n::text, 26, '0'), $1, 2 * n - 1, 'completed', '{}', now() FROM generate_series(1, $2::int) n
    RETURNING id, seq
)
INSERT INTO messages (id, session_id, seq, turn_id, turn_seq, role, content, created_at)
SELECT 'msg_' || lpad((made.seq + at)::text, 26, '0'), $1, made.seq + at, made.id, made.seq,
       CASE at WHEN 0 THEN 'user' ELSE 'assistant' END,
       CASE at WHEN 0 THEN 'Question ' || (made.seq + 1) / 2 || '?'
               ELSE repeat('Line of the answer. ', made.seq::int % 60) || 'Answer ' || (made.seq + 1) / 2 || '.' END,
       now()
FROM made, generate_series(0, 1) at
"""


async def long_chat(client: Client, settings: Settings, turns: int) -> str:
    """A session with so many turns: `Question 1?` and so on."""
    session = await client.new_session(title="Long")
    async with looking_into(settings) as stores:
        await stores.database.execute(LONG, session, turns)
        await stores.database.execute("UPDATE sessions SET next_seq = $1", 2 * turns + 1)
    return session


async def test_an_address_leads_to_a_turn_far_up_in_one_request_and_on_from_there(
    browsing: Browsing, settings: Settings
) -> None:
    async with running(settings) as client:
        session = await long_chat(client, settings, 5000)
        asked: list[str] = []
        url, turn = str(client.http.base_url).rstrip("/"), f"turn_{70:026}"
        window = await browsing.open(url)
        window.page.on("request", lambda request: asked.extend([request.url] if "/messages" in request.url else []))
        await window.go(f"#/sessions/{session}/turns/{turn}")
        reached = "id => Math.abs(document.getElementById(id)?.getBoundingClientRect().top - 100) < 60"
        await window.page.wait_for_function(reached, arg=turn)
        assert len(asked) <= 3  # it, and what lies above and below
        assert all("around=" in each or "cursor=" in each for each in asked)
        await window.press("To the newest message")
        await window.sees("Answer 5000.")
        await window.page.get_by_role("searchbox", name="Search chats").fill("Question 1234?")
        await window.page.get_by_role("link", name=re.compile("Question 1234")).click()
        await window.page.wait_for_function(reached, arg=f"turn_{1234:026}")
        await browsing.close()


async def test_a_turn_of_more_messages_than_a_page_leaves_no_hole_in_the_chat(
    browsing: Browsing, settings: Settings, provider: Provider
) -> None:
    use_toolbox(settings)
    steps = [calls(("echo", {"note": f"note {number}"})) for number in range(1, 24)]
    provider.will(says("Good day."), *steps, says("All is noted."))
    async with console(browsing, settings) as window:
        await window.say("Hello")
        await window.sees("Good day.")
        await window.button("Answer again").wait_for()
        await window.say("Note it all")
        await window.sees("All is noted.")
        await window.page.locator(".turn.live").wait_for(state="detached")
        history = window.page.locator(".history")
        for said in ("Hello", "Good day.", "Note it all"):
            assert await history.get_by_text(said, exact=True).count() == 1
        assert await history.locator(".call").count() == len(steps)


# The number of the turn in the middle of what is seen; null between two.
SEEN = """() => {
    const at = document.querySelector('.history').getBoundingClientRect()
    const there = document.elementsFromPoint(at.left + at.width / 2, at.top + at.height / 2)
    const seen = there.find(each => each.matches('.turn'))
    return seen ? Number(seen.id.slice(-26)) : null
}"""


IS_AT_EDGE = """id => {
    const [box, turn] = [document.querySelector('.history'), document.getElementById(id)]
    const below = box.scrollHeight - box.scrollTop - box.clientHeight
    return turn !== null && (turn.previousElementSibling === null ? box.scrollTop : below) < 2
}"""


async def test_a_long_chat_is_read_from_its_end_to_its_start_with_the_wheel_and_back(
    browsing: Browsing, settings: Settings
) -> None:
    async with running(settings) as client:
        turns = 5000 if os.environ.get("LONG") else 400
        session = await long_chat(client, settings, turns)
        window = await browsing.open(str(client.http.base_url).rstrip("/"), f"#/sessions/{session}")
        await window.sees(f"Answer {turns}.")
        await window.page.mouse.move(640, 400)
        for wheel, end in ((-2000, 1), (2000, turns)):
            seen: list[int] = []
            while not seen or seen[-1] != end:
                await window.page.mouse.wheel(0, wheel)
                await window.page.evaluate("() => new Promise(done => requestAnimationFrame(() => done()))")
                at = await window.page.evaluate(SEEN)
                edge = await window.page.evaluate(IS_AT_EDGE, f"turn_{end:026}")
                seen += [at] if at is not None else []
                seen += [end] if edge else []
            steps = [later - earlier for earlier, later in itertools.pairwise(seen[:-1])]
            assert all(step * wheel >= 0 for step in steps)  # it never jumps back
            assert max(map(abs, steps)) < 60  # nor over what was not shown
        assert await window.page.locator(".turn").count() <= 130
        await browsing.close()
