"""A browser, and a service with the offline model and the example mailbox that its pages come from.

Chromium is the one of the machine: $CHROMIUM, or one on the PATH. Where there is none, or the pages are not built, the
tests are skipped and say so. Only the paths that CI takes run without SWEEP=1 (`make console`).
"""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from segue.api.pages import FOLDER
from segue.around.embedded.server_urls import ServerUrls
from segue.config import Settings
from tests.support.browsing import ASK, Browsing, Window, chromium
from tests.support.health import connect
from tests.support.mailbox import write_mailbox_config
from tests.support.service import Client, Process, running
from tests.support.shelf import Shelf
from tests.support.stores import new_database

if TYPE_CHECKING:
    from playwright.async_api import Browser


@pytest.fixture(scope="session")
async def browser() -> "AsyncIterator[Browser]":
    if not (FOLDER / "index.html.gz").exists():
        pytest.skip("the console is not built: python console/build.py")
    async with chromium() as launched:
        yield launched


@pytest.fixture
async def browsing(browser: "Browser") -> AsyncIterator[Browsing]:
    """Opens windows, and fails the test if one of them asked elsewhere or something in it went wrong unseen."""
    opened = Browsing(browser)
    yield opened
    await opened.close()
    assert not opened.faults


@pytest.fixture(scope="module")  # longer, and it would take the jobs of the tests after it: they share a Redis
async def mailbox_service(
    servers: ServerUrls, template: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[str]:
    """The URL of `segue serve` with the offline model and the mailbox, one for all tests of a file."""
    config, _ = write_mailbox_config(tmp_path_factory.mktemp("mailbox"))
    async with new_database(servers, template) as database:
        process = offline(servers, database, config)
        try:
            url = await asyncio.to_thread(process.start)
            await asyncio.to_thread(process.wait_for, "mcp_server_ready")
            yield url
        finally:
            await asyncio.to_thread(process.stop)


def offline(servers: ServerUrls, database: str, mcp_config: Path, **settings: str) -> Process:
    return Process(
        {
            "DATABASE_URL": database,
            "REDIS_URL": servers.redis_url,
            "MCP_CONFIG": str(mcp_config),
            "WEB_SEARCH_PROVIDER": "none",
            "MIGRATE_ON_START": "false",
            **settings,
        }
    )


@pytest.fixture
async def page(browsing: Browsing, mailbox_service: str) -> Window:
    """The console of the mailbox service, in a window of its own."""
    return await browsing.open(mailbox_service)


@pytest.fixture
async def addresses(page: Window) -> list[str]:
    """Of all pages and of all that they lead to from their lists, a link of each kind."""
    await page.say(ASK)
    await page.page.get_by_role("region", name="Waits for you").wait_for()
    found = {f"#{page.page.url.partition('#')[2]}": "a chat"}
    for each in ["#/", *await page.links(".rail a"), *await page.links(".side a")]:
        found.setdefault(each, each)
    await page.go("#/ops")
    await page.page.locator(".side a").first.wait_for()
    for each in await page.links(".side a"):
        found.setdefault(each, each)
        await page.go(each)
        await page.settled()
        inside = await page.links("#main a")
        found.update({inside[-1]: "of a list"} if inside else {})
    return list(found)


@pytest.fixture
async def guarded(settings: Settings, shelf: Shelf) -> Settings:
    connect(settings, shelf)
    return settings.model_copy(update={"auth": "api_key"})


@pytest.fixture
async def service(guarded: Settings) -> AsyncIterator[Client]:
    async with running(guarded) as served:
        yield served
