"""The whole dance of a login in a browser: from the page and from a call that waits, at the server, and back."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest
from pydantic import SecretStr
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from segue.config import Settings
from tests.support.browsing import Browsing, Window
from tests.support.login_server import LoginServer, serving_logins
from tests.support.provider import Provider, calls, says
from tests.support.server import serving
from tests.support.service import running

if TYPE_CHECKING:
    from playwright.async_api import Locator

pytestmark = pytest.mark.sweep


@asynccontextmanager
async def console(browsing: Browsing, settings: Settings) -> AsyncIterator[Window]:
    """The console of a service that browsers reach under another address, as behind a balancer."""
    service = ""

    async def leads_on(request: Request) -> Response:
        return RedirectResponse(f"{service}{request.url.path}?{request.url.query}", 302)

    async with serving(Starlette(routes=[Route("/{path:path}", leads_on)])) as public:
        changes = {"mcp_token_key": SecretStr("bmV3" * 10 + "bmU="), "public_url": public}
        async with running(settings.model_copy(update=changes)) as client:
            service = str(client.http.base_url).rstrip("/")
            yield await browsing.open(service)
            await browsing.close()


async def log_in(window: Window, link: "Locator", user: str) -> None:
    """Follows a link as a person does, who says there who they are."""
    async with window.page.expect_popup() as opened:
        await link.click()
    elsewhere = await opened.value
    await elsewhere.get_by_label("User").fill(user)
    await elsewhere.get_by_role("button", name="Allow").click()
    await elsewhere.wait_for_url("**/mcp/oauth/callback?**")
    await elsewhere.get_by_role("button", name="log in").click()
    await elsewhere.get_by_text("You can close this page").wait_for()
    assert "diary" in await elsewhere.locator("body").inner_text()
    assert urlsplit(elsewhere.url).netloc == urlsplit(window.url).netloc
    await elsewhere.close()


async def test_a_user_logs_in_on_the_page_and_again_from_a_call_that_then_goes_on_once(
    browsing: Browsing, settings: Settings, provider: Provider
) -> None:
    async with serving_logins(settings.mcp_config) as server, console(browsing, settings) as window:
        await window.go("#/memory")
        await window.press("Log in")
        await log_in(window, window.page.get_by_role("link", name="to log in"), "ada")
        await window.button("Log out").wait_for()
        await says_who_is_there(window, server, provider)


async def says_who_is_there(window: Window, server: LoginServer, provider: Provider) -> None:
    provider.will(calls(("mcp_whoami", {})), says("You are known as Ada."))
    await window.go("#/")
    await window.say("Who am I there?")
    await window.sees("You are known as Ada.")
    server.revoke_all()
    provider.will(calls(("mcp_whoami", {})), says("Still Ada."))
    await window.say("And who am I now?")
    await log_in(window, window.page.get_by_role("link", name="Open the link"), "ada")
    await window.sees("Still Ada.")
    assert server.ran == [("ada", "whoami")] * 2
