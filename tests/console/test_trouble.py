"""What goes wrong around an open page, and results that are large, hidden or pictures. `make console` runs it."""

import asyncio
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pydantic import SecretStr

from segue.config import Settings
from tests.support.browsing import DESK, Browsing, Window, console
from tests.support.identity import new_key
from tests.support.provider import Provider, calls, fails, says, streams
from tests.support.proxy import Proxy, proxied
from tests.support.results import use_toolbox
from tests.support.service import running

if TYPE_CHECKING:
    from playwright.async_api import Locator, Route

pytestmark = pytest.mark.sweep


def through(door: Proxy, settings: Settings) -> Settings:
    return settings.model_copy(update={"redis_url": SecretStr(f"redis://127.0.0.1:{door.port}/0")})


async def result_of(window: Window, tool: str) -> "Locator":
    """The card of a call, with its result shown."""
    card = window.page.locator("section.card", has=window.page.get_by_text(tool, exact=True))
    await card.locator(".head").click()
    await card.get_by_role("button", name="Show the result").click()
    await card.locator(".result .paper").wait_for()
    return card


async def test_a_chat_goes_on_while_redis_is_away_and_when_it_is_back_and_nothing_comes_twice(
    browsing: Browsing, settings: Settings, provider: Provider
) -> None:
    assert settings.redis_url is not None
    gate = asyncio.Event()
    provider.will(streams("Half of ", gate, "it."), says("Without it."), says("With it again."))
    redis = Path(settings.redis_url.get_secret_value().removeprefix("unix://"))
    async with proxied(redis) as door, running(through(door, settings)) as client:
        window = await browsing.open(str(client.http.base_url).rstrip("/"))
        await window.say("First")
        await window.sees("Half of")
        await door.begin("refuses")
        gate.set()
        await window.sees("Half of it.")
        await window.button("Answer again").wait_for()
        await window.say("Second")
        await window.sees("Without it.")
        await window.button("Answer again").wait_for()
        await door.open()
        await window.say("Third")
        await window.sees("With it again.")
        await window.button("Answer again").wait_for()
        history = window.page.locator(".history")
        for said in ("First", "Half of it.", "Second", "Without it.", "Third", "With it again."):
            assert await history.get_by_text(said, exact=True).count() == 1
        assert await window.page.get_by_role("alert").count() == 0
        await browsing.close()


async def sessions_of(window: Window) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await (await window.page.request.get(f"{window.url}/sessions")).json())["items"]
    return found


async def said_in(window: Window, session: str) -> list[str]:
    answer = await window.page.request.get(f"{window.url}/sessions/{session}/messages")
    return [each["content"] for each in (await answer.json())["items"] if each["role"] == "user"]


async def test_what_is_written_offline_is_sent_once_in_order_after_the_tab_was_closed(
    browsing: Browsing, settings: Settings, provider: Provider, tmp_path: Path
) -> None:
    provider.will(says("One."), says("Two."), says("There you are."))
    (tmp_path / "costs.csv").write_text("name,amount\nRossi,12\n")
    async with console(browsing, settings) as window:
        context = window.page.context
        box = window.page.get_by_role("textbox", name="Write a message")
        await box.wait_for()
        await context.set_offline(True)
        await window.page.locator("input[type=file]").set_input_files(tmp_path / "costs.csv")
        await window.say("What does Rossi pay?")
        await window.sees("Is sent when the service is back")
        await window.say("And Bianchi?")
        await box.fill("half a thou")
        await window.page.close()
        await context.set_offline(False)
        pages = [await context.new_page() for _ in range(3)]
        for each in pages:
            browsing.watch(each, window.url)
        await asyncio.gather(*(each.goto(window.url) for each in pages))
        again = Window(pages[0], window.url)
        await again.page.get_by_role("link", name=re.compile("^What does Rossi pay")).click()
        await again.sees("Two.")
        [session] = await sessions_of(again)
        assert await said_in(again, session["id"]) == ["What does Rossi pay?", "And Bianchi?"]
        assert await again.page.locator(".history .chip").get_by_text("costs.csv").count() == 1
        await again.go("#/sessions/new")
        await again.page.wait_for_function("() => document.querySelector('.composer textarea').value === 'half a thou'")
        await again.go(f"#/sessions/{session['id']}")
        await again.sees("Two.")
        await context.set_offline(True)
        await again.say("Are you there?")
        await again.sees("Is sent when the service is back")
        await again.page.get_by_role("textbox", name="Write a message").fill("draft of this chat")
        await context.set_offline(False)
        await again.sees("There you are.")
        assert len(await said_in(again, session["id"])) == 3
        await again.page.reload()
        await again.page.wait_for_function(
            "document.querySelector('.composer textarea').value === 'draft of this chat'"
        )


async def test_a_first_message_that_is_refused_stays_and_is_sent_when_tried_again(
    browsing: Browsing, settings: Settings, provider: Provider
) -> None:
    provider.will(says("Now it works."))

    async def refuse(route: "Route") -> None:
        if route.request.method != "POST":
            await route.fallback()
        else:
            await route.fulfill(
                status=429, body='{"code": "rate_limited", "title": "Too much", "detail": "Wait a little."}'
            )

    async with console(browsing, settings) as window:
        await window.page.route("**/sessions", refuse)
        await window.say("Hello there")
        await window.page.get_by_role("alert").get_by_text("Wait a little.").wait_for()
        await window.page.reload()
        await window.page.get_by_role("alert").get_by_text("Wait a little.").wait_for()
        assert not await window.axe()
        await window.page.unroute_all(behavior="wait")
        assert await sessions_of(window) == []
        await window.press("Try again")
        await window.sees("Now it works.")
        [session] = await sessions_of(window)
        assert await said_in(window, session["id"]) == ["Hello there"]


async def test_a_message_is_sent_although_the_service_first_refused_to_say_who_calls(
    browsing: Browsing, settings: Settings, provider: Provider
) -> None:
    provider.will(says("Here I am."))
    refused: list[str] = []

    async def refuse_once(route: "Route") -> None:
        if refused:
            return await route.fallback()
        refused.append(route.request.url)
        await route.fulfill(status=503, body='{"code": "storage_slow", "title": "Slow", "detail": ""}')
        return None

    async with console(browsing, settings) as window:
        await window.page.route("**/me", refuse_once)
        await window.page.reload()
        await window.say("Is anybody there?")
        await window.sees("Here I am.")
        assert refused


async def test_what_one_user_left_unsent_is_not_sent_or_shown_for_another(
    browsing: Browsing, settings: Settings, provider: Provider
) -> None:
    guarded = settings.model_copy(update={"auth": "api_key"})
    keys = {user: await new_key(guarded, user) for user in ("ada", "mallory")}
    provider.will(says("Hello, Ada."))
    async with console(browsing, guarded) as window:

        async def come_as(user: str) -> None:
            await window.page.get_by_role("textbox", name="API key").fill(keys[user])
            await window.page.keyboard.press("Enter")
            await window.page.locator(".place").first.wait_for()

        async def forget_key() -> None:
            await window.press("Settings")
            await window.page.get_by_role("menuitem", name="Forget the key").click()

        await come_as("ada")
        await window.page.wait_for_function("() => sessionStorage.getItem('segue.user') === 'ada'")
        await window.page.context.set_offline(True)
        await window.say("The secret plan")
        await window.sees("Is sent when the service is back")
        await window.page.get_by_role("textbox", name="Write a message").fill("more of it")
        await window.page.evaluate("sessionStorage.clear()")
        await window.page.context.set_offline(False)
        await window.page.goto("about:blank")
        await window.page.goto(window.url)
        await come_as("mallory")
        await window.sees("No chats yet")
        assert await window.page.get_by_text("The secret plan").count() == 0
        assert await window.page.get_by_role("textbox", name="Write a message").input_value() == ""
        await forget_key()
        await come_as("ada")
        await window.page.get_by_role("link", name=re.compile("^The secret plan")).wait_for()


async def test_a_page_older_than_the_service_says_so_and_is_loaded_again(page: Window) -> None:
    async def newer(route: "Route") -> None:
        if route.request.url.endswith("/events"):
            await route.fulfill(status=204, headers={"X-Segue-Version": "99.0.0"})
            return
        answer = await route.fetch()
        await route.fulfill(response=answer, headers={**answer.headers, "x-segue-version": "99.0.0"})

    before = await page.page.evaluate("performance.timeOrigin")
    await page.page.route("**/*", newer)
    await page.go("#/memory")
    await page.sees("Version 99.0.0 runs here")
    await page.press("Reload")
    await page.page.wait_for_function("before => performance.timeOrigin !== before", arg=before)
    await page.page.unroute_all(behavior="wait")
    await page.go("#/ops")
    await page.page.get_by_text("Version 99.0.0").wait_for(state="detached")


async def test_what_went_wrong_stands_once_beside_the_composer_and_goes_when_something_works(page: Window) -> None:
    async def refused(route: "Route") -> None:
        if route.request.method != "POST":
            return await route.fallback()
        problem = {"title": "No", "status": 503, "code": "storage_slow", "detail": "the database is slow"}
        await route.fulfill(status=503, content_type="application/problem+json", body=json.dumps(problem))
        return None

    await page.go("#/memory")
    await page.press("Add a fact")
    await page.page.get_by_role("textbox").last.fill("Tea, not coffee")
    await page.page.route("**/memories", refused)
    toast = page.page.locator(".toast.bad")
    for _ in range(3):
        async with page.page.expect_response(lambda response: response.status == 503):  # the toast stands already
            await page.press("Save", exact=True)
        await toast.get_by_text("The service cannot store anything at the moment.").wait_for()
    assert await toast.count() == 1
    box = await toast.bounding_box()
    assert box is not None
    assert box["y"] + box["height"] < DESK["height"] / 2  # a message is written at the foot
    await page.page.unroute_all(behavior="wait")
    await page.press("Save", exact=True)
    await page.sees("Tea, not coffee")
    await toast.wait_for(state="detached")


@pytest.mark.sweep
async def test_an_act_without_an_answer_is_said_to_have_none_and_figures_that_were_not_read_are_not_nought(
    page: Window,
) -> None:
    await page.page.route("**/usage?*", lambda route: route.abort())
    await page.page.route("**/memories", lambda route: route.abort())
    await page.go("#/memory")
    usage = page.page.get_by_role("region", name="You, in the last 30 days")
    await usage.locator("dd").filter(has_text="–").nth(1).wait_for()
    await page.press("Add a fact")
    await page.page.get_by_role("textbox").last.fill("Tea at five")
    await page.press("Save", exact=True)
    told = page.page.locator(".toast.bad")
    await told.get_by_text("The service did not answer. Once it is back, look whether this was done.").wait_for()
    await page.page.unroute_all(behavior="wait")
    await page.press("Save", exact=True)
    await page.sees("Tea at five")
    await told.wait_for(state="detached")


async def test_who_only_chats_is_told_in_words_and_not_in_those_of_the_api(
    browsing: Browsing, settings: Settings, provider: Provider
) -> None:
    provider.will(fails(401), fails(401))
    guarded = settings.model_copy(update={"auth": "api_key"})
    async with running(guarded) as client:
        keys = (await new_key(guarded, "ada"), False), (await new_key(guarded, "root", ["ops"]), True)
        for key, shown in keys:
            window = await browsing.open(str(client.http.base_url).rstrip("/"))
            await window.page.get_by_role("textbox", name="API key").fill(key)
            await window.press("Continue")
            await window.say("Hello")
            note = window.page.get_by_role("alert").filter(has_text="The model does not answer now.")
            await note.wait_for()
            assert ("model_unavailable" in await note.inner_text()) is shown
            assert ("OPENAI_API_KEY" in await note.inner_text()) is shown
        await browsing.close()


async def test_nothing_that_a_terminal_obeys_or_nobody_sees_is_left_in_answers_and_results(
    browsing: Browsing, settings: Settings, provider: Provider
) -> None:
    use_toolbox(settings)
    hidden = "\u001b[31mred\u001b[0m \u001b]0;title\u0007 zero\u200bwidth \u202eback"
    provider.will(calls(("echo", {"note": hidden})), says(hidden))
    async with console(browsing, settings) as window:
        await window.say("Echo it")
        await window.button("Answer again").wait_for()
        card = await result_of(window, "echo")
        shown = "zero‹U+200B›width ‹U+202E›back"
        await card.locator(".result").get_by_text(shown).wait_for()
        assert await window.page.locator(".answer").get_by_text(shown).count() == 1
        assert not {"\u001b", "\u0007", "\u200b", "\u202e"} & set(await window.page.locator("body").inner_text())


async def test_ten_megabytes_are_read_a_page_at_a_time(
    browsing: Browsing, settings: Settings, provider: Provider
) -> None:
    use_toolbox(settings)
    provider.will(calls(("plain_text", {"lines": 400_000})), says("Much."))
    async with console(browsing, settings) as window:
        await window.say("All of it")
        await window.sees("Much.")
        await window.button("Answer again").wait_for()
        card = await result_of(window, "plain_text")
        shown = card.locator(".result pre")
        assert len(await shown.inner_text()) <= 20_000
        await card.get_by_role("button", name="Show more (20,000 of 6,400,000)").click()
        await card.get_by_role("button", name="Show more (40,000 of 6,400,000)").wait_for()
        text = await shown.inner_text()
        assert 30_000 < len(text) <= 40_000
        assert text.count("000000 «") == 1


async def test_an_image_in_a_result_is_shown_from_its_bytes(
    browsing: Browsing, settings: Settings, provider: Provider
) -> None:
    use_toolbox(settings)
    provider.will(calls(("photo", {"of": "Rossi"})), says("There."))
    async with console(browsing, settings) as window:
        await window.say("Show it")
        await window.sees("There.")
        await window.button("Answer again").wait_for()
        image = (await result_of(window, "photo")).locator(".part img")
        await image.wait_for()
        assert (await image.get_attribute("src") or "").startswith("blob:")
        await window.page.wait_for_function("() => document.querySelector('.part img').naturalWidth === 1")


async def test_a_browser_with_many_tabs_opens_the_next_one_and_all_hear_what_happens(
    browsing: Browsing, settings: Settings
) -> None:
    """A browser opens six connections to a host, which the streams of six tabs held."""
    hide = "is => { Object.defineProperty(document, 'hidden', {value: is, configurable: true}) }"
    async with console(browsing, settings) as first:
        tabs = [first]
        for _ in range(8):
            await tabs[-1].page.evaluate(hide, arg=True)
            tab = Window(await first.page.context.new_page(), first.url)
            browsing.watch(tab.page, first.url)
            await tab.page.goto(first.url)
            await tab.sees("What shall we do?")
            tabs.append(tab)
        await first.page.request.post(f"{first.url}/sessions", data={"title": "Told to all"})
        for tab in tabs:
            await tab.sees("Told to all")
        await tabs.pop().page.close()
        await first.page.request.post(f"{first.url}/sessions", data={"title": "Told by the next in line"})
        for tab in tabs:
            await tab.sees("Told by the next in line")
        await first.page.evaluate(hide, arg=False)
        await first.page.evaluate("dispatchEvent(new Event('visibilitychange'))")
        await first.page.request.post(f"{first.url}/sessions", data={"title": "Told by the first"})
        for tab in tabs:
            await tab.sees("Told by the first")


async def test_tabs_of_one_chat_show_the_same_draft_and_it_outlasts_the_chat(
    browsing: Browsing, settings: Settings, provider: Provider
) -> None:
    provider.will(says("Good day."))
    async with console(browsing, settings) as window:
        await window.say("Hello")
        await window.button("Answer again").wait_for()
        other = await window.page.context.new_page()
        await other.goto(window.page.url)
        box, others = (each.get_by_role("textbox", name="Write a message") for each in (window.page, other))
        await others.wait_for()
        await box.fill("A long thought")
        await other.wait_for_function("() => document.querySelector('textarea').value === 'A long thought'")
        await others.press("End")
        await others.press_sequentially(", and more")
        await window.page.reload()
        await window.page.wait_for_function(
            "() => document.querySelector('textarea')?.value === 'A long thought, and more'"
        )
        await other.close()
        gone = "id => fetch(`sessions/${id}`, {method: 'DELETE'})"
        await window.page.evaluate(gone, window.page.url.rpartition("/")[2])
        await window.press("Write it in a new chat")
        await window.page.wait_for_url("**#/sessions/new")
        assert await box.input_value() == "A long thought, and more"


async def test_a_message_that_is_too_long_is_in_sight_and_said_to_be_and_can_go_as_a_file(
    browsing: Browsing, settings: Settings, provider: Provider
) -> None:
    provider.will(says("Good day.\n\n" * 30), says("It has many lines."))
    async with console(browsing, settings, viewport={"width": 360, "height": 640}) as window:
        await window.say("Hello")
        await window.button("Answer again").wait_for()
        await window.say("A line of it. " * 3000)
        await window.sees("This message has 42,000 characters and was not taken. Send a long text as a file.")
        await window.page.wait_for_function(
            "() => document.querySelector('.note.bad').getBoundingClientRect().bottom < innerHeight"
        )
        await window.press("Attach it as a file")
        await window.page.locator(".composer .chip[data-busy='false']", has_text="text.txt").wait_for()
        await window.say("What is in it?")
        await window.sees("It has many lines.")
    assert "A line of it." in str(provider.requests[-1])
