"""Windows of a browser on the console, by what a user sees: names of buttons, words on the page."""

import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest

from segue.config import Settings
from tests.support.commands import ROOT
from tests.support.patience import PATIENCE_S
from tests.support.service import running

if TYPE_CHECKING:
    from playwright.async_api import Browser, BrowserContext, ConsoleMessage, Locator, Page, Request

PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
AXE = ROOT / "console" / "node_modules" / "axe-core" / "axe.min.js"
# A picture of one pixel.
DOT = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfz0AEYBxVSF+FABJADveWkH6oAAAAAElFTkSuQmCC"
PHONE = {"width": 390, "height": 844}
DESK = {"width": 1280, "height": 800}
ASK = "Cerca le mail di Rossi, poi leggi la prima, poi manda una mail a marco.rossi@rossi-ottica.example"
LINKS = "nodes => nodes.map(node => node.getAttribute('href')).filter(href => href.startsWith('#/'))"
# What a browser logs of answers that the page deals with: refused requests, and a service that is away.
_EXPECTED = ("Failed to load resource", "net::ERR_")


@asynccontextmanager
async def chromium() -> "AsyncIterator[Browser]":
    """The one of the machine: $CHROMIUM, or one on the PATH. A test without one is skipped, and says so."""
    playwright = pytest.importorskip("playwright.async_api", reason="there is no Playwright: make install")
    program = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, PROGRAMS)), None)
    if program is None:
        pytest.skip("there is no Chromium: set CHROMIUM to one")
    async with playwright.async_playwright() as started:
        launched = await started.chromium.launch(executable_path=program, args=["--disable-dev-shm-usage"])
        yield launched
        await launched.close()


@dataclass
class Browsing:
    browser: "Browser"
    faults: list[str] = field(default_factory=list)
    contexts: "list[BrowserContext]" = field(default_factory=list)

    async def open(self, url: str, path: str = "", **options: Any) -> "Window":
        """A window of its own, with nothing stored: in English and light, unless the options of Playwright's
        `new_context` say otherwise.
        """
        given = {"viewport": DESK, "locale": "en-GB", "reduced_motion": "reduce", **options}
        context = await self.browser.new_context(**given)
        self.contexts.append(context)
        context.set_default_timeout(PATIENCE_S * 500)
        page = await context.new_page()
        self.watch(page, url)
        await page.goto(url + "/" + path)
        return Window(page, url)

    async def close(self) -> None:
        """All windows. Before a service stops, which else waits for the streams of its pages."""
        while self.contexts:
            await self.contexts.pop().close()

    def watch(self, page: "Page", url: str) -> None:
        host = urlsplit(url).netloc

        def asked(request: "Request") -> None:
            if request.url.startswith(("http:", "https:", "ws:")) and urlsplit(request.url).netloc != host:
                self.faults.append(f"asked for {request.url}")

        def said(message: "ConsoleMessage") -> None:
            if message.type == "error" and not any(each in message.text for each in _EXPECTED):
                self.faults.append(message.text)

        page.on("request", asked)
        page.on("console", said)
        page.on("pageerror", lambda error: self.faults.append(str(error)))


@dataclass
class Window:
    page: "Page"
    url: str

    def button(self, name: str, **options: Any) -> "Locator":
        return self.page.get_by_role("button", name=name, **options)

    async def press(self, name: str, **options: Any) -> None:
        """Clicks the button of this name."""
        await self.button(name, **options).click()

    async def sees(self, text: str, **options: Any) -> "Locator":
        """Returns once the page shows the text."""
        found = self.page.get_by_text(text, **options).first
        await found.wait_for()
        return found

    async def say(self, message: str) -> None:
        """Writes a message and sends it. Where it is touched, Enter alone begins a line."""
        box = self.page.get_by_role("textbox", name="Write a message")
        await box.fill(message)
        hovers = await self.page.evaluate("matchMedia('(hover: hover)').matches")
        await box.press("Enter" if hovers else "Control+Enter")

    async def go(self, path: str) -> None:
        """To an address of the page: `#/memory`."""
        await self.page.evaluate("path => { location.hash = path }", path)

    async def links(self, selector: str) -> list[str]:
        """The addresses of the page's own that the elements lead to."""
        found: list[str] = await self.page.locator(selector).evaluate_all(LINKS)
        return found

    async def settled(self) -> None:
        """Returns once the page has read what it shows."""
        await self.page.wait_for_function(
            "() => !document.querySelector('#main .spinner') && document.querySelector('h1')"
        )

    async def axe(self) -> list[str]:
        """What axe finds serious, or of headings that leave out a level: the rule, and where."""
        await self.page.evaluate(AXE.read_text("utf-8"))
        found = await self.page.evaluate("() => axe.run({resultTypes: ['violations']})")
        return [
            f"{each['id']} ({each['impact']}): {node['html'][:200]} {node['failureSummary'][:200]}"
            for each in found["violations"]
            if each["impact"] in ("serious", "critical") or each["id"] == "heading-order"
            for node in each["nodes"]
        ]

    async def picture(self, file: Path) -> None:
        await self.page.screenshot(path=file)


@asynccontextmanager
async def console(browsing: Browsing, settings: Settings, path: str = "", **options: Any) -> AsyncIterator[Window]:
    """The console of a service in this process."""
    async with running(settings) as client:
        window = await browsing.open(str(client.http.base_url).rstrip("/"), path, **options)
        try:
            yield window
        finally:
            await browsing.close()
