"""The pages for operators by clicks: what waits, what hangs, which tool is held, and who may see it."""

import asyncio
import json
import re

import pytest
from pydantic import SecretStr
from starlette.responses import Response

from segue.config import Settings
from segue.tools.native import tool
from tests.support.browsing import Browsing, Window
from tests.support.commands import ROOT
from tests.support.health import MOODY, QUESTION
from tests.support.identity import new_key, speaking
from tests.support.operators import hanging_turn, seen_running
from tests.support.provider import Provider, calls, says
from tests.support.receiver import SECRET, receiving
from tests.support.service import Client, running
from tests.support.shelf import Shelf

HOSTILE = '<img src=x onerror="document.title=1"> \u202eimport \u001b[31mred'
HARMLESS = '<img src=x onerror="document.title=1"> ‹U+202E›import red'


async def signed_in(browsing: Browsing, service: Client, key: str, path: str) -> Window:
    window = await browsing.open(str(service.http.base_url).rstrip("/"), path)
    await window.page.get_by_role("textbox", name="API key").fill(key)
    await window.press("Continue")
    return window


@pytest.mark.sweep
async def test_an_operator_holds_a_tool_for_everyone_and_what_others_wrote_stays_text(page: Window) -> None:
    await page.go("#/tools")
    await page.page.get_by_role("link", name="mcp_delete_email").click()
    await page.press("Set for everyone")
    await page.page.get_by_role("textbox", name="Reason").fill(HOSTILE)
    await page.press("Set", exact=True)
    await page.sees(HARMLESS)
    await page.sees("No session has a status of its own: the one for everyone holds")
    await page.go("#/ops")
    await page.page.get_by_role("link", name="mcp_delete_email: Maintenance for everyone").click()
    await page.press("Set for everyone")
    await page.press("Set", exact=True)
    await page.page.get_by_text(HARMLESS).wait_for(state="detached")
    await page.sees("It is available in every session")
    await page.go("#/ops/audit")
    await page.sees(HARMLESS)
    assert await page.page.title() != "1"
    assert not await page.axe()


@pytest.mark.sweep
async def test_a_turn_that_hangs_is_found_and_cancelled_with_the_keyboard(
    browsing: Browsing, service: Client, guarded: Settings, provider: Provider, shelf: Shelf
) -> None:
    async with (
        speaking(service, await new_key(guarded, "ada")) as ada,
        speaking(service, key := await new_key(guarded, "root", ["ops"])) as ops,
    ):
        _, turn = await hanging_turn(ada, provider, shelf)
        await seen_running(ops, turn, "tool")
        window = await signed_in(browsing, service, key, "#/ops/turns?owner=ada")
        await window.sees(MOODY)
        await window.button("Cancel the turn").focus()
        await window.page.keyboard.press("Enter")
        await window.sees("Cancel this turn?")
        await window.page.keyboard.press("Escape")
        await window.button("Cancel the turn").press("Enter")
        await window.page.keyboard.press("Enter")
        await window.sees("The turn has ended")
        await window.page.get_by_label("Status").select_option("cancelled")
        await window.sees("turn_cancelled")
        assert [each["status"] for each in (await ops.get("/ops/turns", status="cancelled"))["items"]] == ["cancelled"]


@pytest.mark.sweep
async def test_what_waits_is_decided_by_its_user_and_read_by_who_may_with_a_mark_in_the_audit(
    browsing: Browsing, service: Client, guarded: Settings, provider: Provider
) -> None:
    root = await new_key(guarded, "root", ["ops", "ops:content"])
    for key, item in ((await new_key(guarded, "ada"), "itm-secret"), (root, "itm-mine")):
        provider.will(calls(("mcp_delete_item", {"item_id": item})))
        async with speaking(service, key) as user:
            await user.chat(await user.new_session(), "Delete it")
    window = await signed_in(browsing, service, root, "#/ops/approvals")
    asked = window.page.get_by_role("list", name="Approvals").get_by_role("article")
    mine, others = asked.filter(has_text="root"), asked.filter(has_text="ada")
    await mine.get_by_text("itm-mine").first.wait_for()
    await mine.get_by_text("1 of 1 values not yours: item_id").wait_for()
    assert await others.get_by_role("button", name="Approve").count() == 0
    assert await others.get_by_role("link", name="Open the chat").count() == 0
    assert "itm-secret" not in await window.page.content()
    assert not await window.axe()
    await others.get_by_role("button").click()
    await others.get_by_text("itm-secret").first.wait_for()
    provider.will(says("It is gone."))
    await mine.get_by_role("button", name="Approve").click()
    await window.sees("Approved: it runs now")
    await mine.wait_for(state="detached")
    async with speaking(service, root) as ops:
        assert [act["action"] for act in (await ops.get("/ops/audit"))["items"]] == ["read_session"]
        assert [each["user"] for each in (await ops.get("/ops/approvals"))["items"]] == ["ada"]


@pytest.mark.sweep
async def test_what_is_wrong_with_mcp_json_and_which_tools_were_redefined_is_seen(
    browsing: Browsing, service: Client, guarded: Settings, provider: Provider
) -> None:
    said = "Delete an item, and everything like it."
    provider.will(calls(("mcp_relabel", {"description": said})), says("Relabelled."))
    root = await new_key(guarded, "root", ["ops"])
    async with speaking(service, root) as user:
        await user.chat(await user.new_session(), QUESTION)
    window = await signed_in(browsing, service, root, "#/ops/mcp")
    await window.sees("Tools that were defined otherwise before")
    await window.page.get_by_text("Before and after").click()
    await window.sees(said)
    runs = json.loads(guarded.mcp_config.read_text())
    guarded.mcp_config.write_text(json.dumps({**runs, "globalShortcut": "Ctrl+Space"}))
    await window.sees("Keys of mcp.json that mean nothing here")
    await window.sees("globalShortcut")
    guarded.mcp_config.write_text('{"mcpServers": {"shelf": {"comand": "x"}}}')
    await window.sees("The change of mcp.json was refused")
    await window.sees("did you mean command?")
    assert not await window.axe()


@pytest.mark.sweep
async def test_a_tool_whose_effect_was_guessed_is_marked_with_what_to_do_about_it(
    browsing: Browsing, settings: Settings
) -> None:
    small = {"command": "python", "args": [str(ROOT / "tests" / "mcp" / "mcp_small_server.py")]}  # annotates nothing
    settings.mcp_config.write_text(json.dumps({"mcpServers": {"small": small}}))
    async with running(settings) as client:
        window = await browsing.open(str(client.http.base_url).rstrip("/"), "#/tools")
        row = window.page.get_by_role("row").filter(has_text="mcp_hold")
        await row.get_by_text("guessed").wait_for()
        assert await window.page.get_by_text("guessed").count() == 3
        assert not await window.axe()
        await row.get_by_role("link", name="mcp_hold").click()
        await window.page.get_by_text("As the model sees it").click()
        await window.sees("Annotate the tool, or set `unannotated` in mcp.json")


@pytest.mark.sweep
async def test_five_hundred_tools_are_listed_a_window_at_a_time(browsing: Browsing, settings: Settings) -> None:
    def named(name: str) -> object:
        @tool(effect="read_only", name=name, title=name.replace("_", " ").capitalize())
        async def nothing() -> None:
            """Do nothing."""

        return nothing

    many = [named(f"tool_{number:03}") for number in range(500)]
    async with running(settings, tools=many) as client:
        window = await browsing.open(str(client.http.base_url).rstrip("/"), "#/tools")
        table = window.page.get_by_role("table", name="Tools")
        await table.get_by_role("link", name="tool_000").wait_for()
        rows = table.get_by_role("row")
        assert await rows.count() < 60
        head = await rows.first.bounding_box()
        assert int(await table.get_attribute("aria-rowcount") or 0) > 500
        await table.locator(".windowed").evaluate("box => box.scrollTo(0, box.scrollHeight)")
        await table.get_by_role("link", name="tool_499").wait_for()
        assert await rows.count() < 60
        assert await rows.first.bounding_box() == head
        assert not await window.axe()
        await window.page.get_by_role("searchbox", name="Search tools").fill("tool_321")
        link = table.get_by_role("link", name="tool_321")
        assert (await link.inner_text()).split("\n") == ["Tool 321", "tool_321"]
        assert await rows.count() == 2
        await browsing.close()


MANY = """
from mcp.server.mcpserver import MCPServer
server = MCPServer("many")
for number in range(500):
    server.add_tool(lambda: "", name=f"find_{number:03}", title=f"Find in store {number}", description="Find.")
server.run()
"""


@pytest.mark.sweep
async def test_a_server_with_five_hundred_tools_takes_a_line_until_they_are_searched(
    browsing: Browsing, settings: Settings
) -> None:
    settings.mcp_config.write_text(json.dumps({"mcpServers": {"many": {"command": "python", "args": ["-c", MANY]}}}))
    async with running(settings) as client:
        await client.connected("many")
        window = await browsing.open(str(client.http.base_url).rstrip("/"), "#/ops/mcp")
        tools = window.page.get_by_role("list", name="Tools").get_by_role("link")
        await window.sees("Tools (500)")
        assert await tools.count() == 0
        await window.page.get_by_text("Tools (500)").click()
        await window.page.get_by_role("searchbox", name="Search tools").fill("store 49")
        await window.page.wait_for_function("() => document.querySelectorAll('.tools-of a').length === 11")
        assert await tools.first.inner_text() == "Find in store 49\nmcp_find_049"
        assert not await window.axe()
        await browsing.close()


@pytest.mark.sweep
async def test_ended_turns_are_listed_with_what_they_took_and_a_bar_of_a_chart_leads_to_its_own(page: Window) -> None:
    await page.say("Cerca le mail di Rossi")
    await page.sees("Rossi")
    await page.button("Details of this answer").last.wait_for()
    await page.go("#/ops/turns")
    row = page.page.get_by_role("table", name="Turns").get_by_role("row").nth(1)
    await row.get_by_text("Completed").wait_for()
    assert "Cerca" not in await row.inner_text()
    await page.press("First words")
    await row.get_by_role("link", name="Cerca le mail di Rossi").wait_for()
    await page.go("#/ops/audit")
    await page.page.get_by_role("cell", name="Read what was said").wait_for()
    await page.go("#/ops")
    chart = page.page.get_by_role("img", name="Turns per minute")
    await chart.focus()
    await page.page.keyboard.press("End")
    await page.page.keyboard.press("Enter")
    await page.page.wait_for_function("() => location.hash.includes('since=') && location.hash.includes('until=')")
    await row.get_by_text("Completed").wait_for()
    await page.page.get_by_label("Time").select_option("week")
    await page.page.wait_for_function("() => !location.hash.includes('until=')")


@pytest.mark.sweep
async def test_usage_is_drawn_by_day_and_taken_along_as_csv_that_is_no_formula(
    browsing: Browsing, service: Client, guarded: Settings, provider: Provider
) -> None:
    root = await new_key(guarded, "root", ["ops"])
    async with speaking(service, await new_key(guarded, '=1+"1"')) as user:
        provider.will(says("Here."))
        await user.chat(await user.new_session(), "Hello")
    window = await signed_in(browsing, service, root, "#/ops/usage")
    await window.page.get_by_role("img", name="Tokens").wait_for()
    table = window.page.get_by_role("table", name="Usage")
    await table.get_by_role("link", name='=1+"1"').wait_for()
    async with window.page.expect_download() as saved:
        await window.press("CSV")
    file = await (await saved.value).path()
    lines = (await asyncio.to_thread(file.read_text, "utf-8-sig")).splitlines()
    assert lines[1].startswith('"\'=1+""1""",1,11,')
    for group, key in (("agent", "segue"), ("model", "scripted")):
        await window.page.get_by_label("By", exact=True).select_option(group)
        await table.get_by_role("cell", name=key).wait_for()
    await window.page.get_by_label("By", exact=True).select_option("day")
    await table.get_by_role("cell", name=re.compile(r"^\d+ \w+ 20\d\d$")).wait_for()
    assert not await window.axe()


@pytest.mark.sweep
async def test_an_event_that_failed_is_sent_again_alone_and_the_doctor_waits_for_its_button(
    browsing: Browsing, guarded: Settings, provider: Provider
) -> None:
    async with receiving() as receiver:
        receiver.answer = lambda _: Response(status_code=500 if len(receiver.posts) == 1 else 204)
        told = {"auth": "none", "webhook_url": SecretStr(receiver.url), "webhook_secret": SecretStr(SECRET)}
        async with running(guarded.model_copy(update=told)) as client:
            provider.will(says("Here."))
            await client.chat(await client.new_session(), "Hello")
            window = await browsing.open(str(client.http.base_url).rstrip("/"), "#/ops/webhooks")
            row = window.page.get_by_role("row").filter(has_text="HTTP 500")
            await row.get_by_role("button", name="Send again").click()
            await window.sees("Events sent again: 1")
            await receiver.first(2)
            await window.sees("Nothing waits to be sent")
            await window.go("#/ops/doctor")
            await window.sees("Not examined yet")
            asked = len(provider.requests)
            provider.will(says("ok"))
            await window.press("Examine")
            await window.sees("Healthy")
            line = window.page.locator("#main summary").filter(has_text="postgres")
            await line.get_by_text("reachable").wait_for()
            assert len(provider.requests) == asked + 1
            assert not await window.axe()
            await browsing.close()


@pytest.mark.sweep
async def test_one_turn_is_seen_over_time_with_what_its_prompt_was_made_of(page: Window) -> None:
    await page.say("Cerca le mail di Rossi")
    await page.sees("Rossi")
    await page.go("#/ops/turns?status=completed")
    await page.page.locator(".rows a[href^='#/ops/turns/turn_']").first.click()
    await page.page.get_by_role("table", name="Timeline").get_by_role("link", name="mcp_search_emails").wait_for()
    await page.page.get_by_role("table", name="What the last prompt was made of").wait_for()
    assert not await page.axe()


@pytest.mark.sweep
async def test_the_secret_of_a_key_is_shown_once_and_limits_are_set(
    browsing: Browsing, service: Client, guarded: Settings
) -> None:
    root = await new_key(guarded, "root", ["ops", "ops:content"])
    window = await signed_in(browsing, service, root, "#/ops/keys")
    await window.press("New key")
    await window.page.get_by_role("textbox", name="User").last.fill("grace")
    await window.press("Make the key")
    secret = await window.page.locator(".secret code").inner_text()
    for _ in range(3):
        await window.page.keyboard.press("Escape")
    assert await window.page.locator(".secret code").is_visible()
    async with speaking(service, secret) as grace:
        assert (await grace.get("/me"))["user"] == "grace"
    await window.press("I have kept it")
    assert secret not in await window.page.content()
    await window.go("#/ops/users")
    await window.press("Limits of “grace”")
    await window.page.get_by_label("Open turns").fill("3")
    await window.press("Set", exact=True)
    await window.sees("Open turns: 3")
    async with speaking(service, root) as ops:
        assert (await ops.get("/ops/users/grace/limits"))["own"]["concurrent_turns"] == 3


@pytest.mark.sweep
async def test_who_is_no_operator_is_told_so(browsing: Browsing, service: Client, guarded: Settings) -> None:
    window = await signed_in(browsing, service, await new_key(guarded, "ada"), "#/ops")
    await window.sees("These pages are for operators")
    assert await window.page.get_by_role("link", name="Ops", exact=True).count() == 0
