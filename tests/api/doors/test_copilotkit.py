"""CopilotKit, unmodified, in a browser: that of examples/frontends/CopilotKit.tsx, clicked as a user does."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from segue.config import Settings
from tests.support.browsing import chromium
from tests.support.node import CLIENTS
from tests.support.patience import PATIENCE_S
from tests.support.provider import Provider, calls, says
from tests.support.proxy import proxied
from tests.support.service import process, running
from tests.support.shelf import Shelf, serving_shelf

if TYPE_CHECKING:
    from playwright.async_api import Page

BUILT = CLIENTS / "copilotkit" / "build"
HTML = '<link rel="stylesheet" href="/page.css"><div id="page"></div><script type="module" src="/page.js"></script>'

pytestmark = pytest.mark.skipif(not (BUILT / "page.js").exists(), reason="its page is not built: make copilotkit")


@pytest.fixture
async def shelf(settings: Settings) -> AsyncIterator[Shelf]:
    async with serving_shelf() as shelf:
        settings.mcp_config.write_text(json.dumps({"mcpServers": {"shelf": {"url": shelf.url}}}))
        yield shelf


@asynccontextmanager
async def chatting(url: str) -> AsyncIterator["Page"]:
    """A page of the service's own address, as if the service gave it."""
    async with chromium() as browser:
        page = await browser.new_page()
        page.set_default_timeout(PATIENCE_S * 1000)
        await page.route("**/chat-page*", lambda route: route.fulfill(body=HTML, content_type="text/html"))
        await page.route("**/page.*", lambda route: route.fulfill(path=BUILT / Path(route.request.url).name))
        await page.goto(f"{url}/chat-page?thread=my-page")
        yield page


async def say(page: "Page", text: str) -> None:
    await page.get_by_role("textbox").fill(text)
    await page.keyboard.press("Enter")


async def test_an_interrupt_is_answered_by_a_click_and_its_call_runs_once_through_kill_nine(
    settings: Settings, provider: Provider, shelf: Shelf
) -> None:
    provider.will(calls(("mcp_delete_item", {"item_id": "itm-1"})))
    async with proxied(0) as door, chatting(f"http://127.0.0.1:{door.port}") as page:
        async with process(settings) as (first, service):
            door.lead_to(service.http.base_url.port or 0)
            await say(page, "Delete item 1")
            await page.get_by_role("button", name="Yes").wait_for()
            first.kill()
        assert shelf.effects == []
        provider.will(says("Item 1 is gone."))
        async with process(settings) as (_, service):
            door.lead_to(service.http.base_url.port or 0)
            await page.get_by_role("button", name="Yes").click()
            await page.get_by_text("Item 1 is gone.").wait_for()
    assert shelf.effects == ["delete itm-1"]


@pytest.mark.usefixtures("shelf")
async def test_a_tool_of_the_page_runs_there_and_the_model_reads_what_it_gave(
    settings: Settings, provider: Provider
) -> None:
    provider.will(calls(("paint", {"colour": "red"})), says("The page is red."))
    async with running(settings) as service:
        await service.connected("shelf")
        async with chatting(f"{service.http.base_url}".rstrip("/")) as page:
            await say(page, "Paint it red")
            await page.get_by_text("The page is red.").wait_for()
            assert await page.locator("body").get_attribute("data-painted") == "red"
    assert '{"painted":"red"}' in provider.requests[-1]["messages"][-1]["content"]
