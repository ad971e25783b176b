"""Requests to what a server's metadata names: https, checked addresses, no redirect, little time, few bytes.

Knows HTTP and nothing of what is asked. The MCP server's metadata chose the address, so that each is checked as the
server's own is.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Final
from urllib.parse import urlsplit

import httpx2

from segue.domain.identity import is_loopback
from segue.mcp.config import McpServerConfig
from segue.net.addresses import NoSuchHost, NotPublic, allowed_for_operator, is_public_or_private
from segue.net.http_client import BodyTooLarge, answer_of, checked_client

MAX_BYTES: Final = 256 * 1024
MAX_URL_CHARS: Final = 4096
WITHIN_S: Final = 15.0


class OAuthFault(Exception):
    """A login cannot go on; the message says why in our own words, and what helps."""


class Asker:
    """Asks on behalf of one server of mcp.json."""

    def __init__(self, client: httpx2.AsyncClient, *, allow_plain: bool) -> None:
        self._client = client
        self._allow_plain = allow_plain

    def check(self, url: str, what: str) -> None:
        """Raises OAuthFault for an address that no secret may go to."""
        parts = urlsplit(url)
        is_plain_allowed = self._allow_plain or is_loopback(parts.hostname or "")
        if parts.scheme != "https" and not (parts.scheme == "http" and is_plain_allowed):
            raise OAuthFault(f"{what} is not an https address")
        if len(url) > MAX_URL_CHARS or parts.username is not None or parts.fragment:
            raise OAuthFault(f"{what} is no address that Segue uses: too long, or with a user or a fragment in it")

    async def get(self, url: str, what: str) -> httpx2.Response:
        return await self._ask(httpx2.Request("GET", url, headers={"Accept": "application/json"}), what)

    async def post(
        self,
        url: str,
        what: str,
        *,
        form: Mapping[str, str] | None = None,
        json: object = None,
        headers: Mapping[str, str] | None = None,
    ) -> httpx2.Response:
        accept = {"Accept": "application/json", **(headers or {})}
        return await self._ask(httpx2.Request("POST", url, data=form, json=json, headers=accept), what)

    async def head_of(self, url: str, what: str, *, json: object) -> httpx2.Response:
        """Returns the status and headers of an answer, whose body is not read: it may be a stream."""
        self.check(url, what)
        accept = {"Accept": "application/json, text/event-stream"}
        try:
            async with asyncio.timeout(WITHIN_S):
                answer = await self._client.send(
                    httpx2.Request("POST", url, json=json, headers=accept), stream=True, follow_redirects=False
                )
                await answer.aclose()
        except (httpx2.HTTPError, NotPublic, NoSuchHost, TimeoutError) as error:
            raise OAuthFault(_why(error, what)) from None
        return httpx2.Response(answer.status_code, headers=answer.headers, request=answer.request)

    async def _ask(self, request: httpx2.Request, what: str) -> httpx2.Response:
        self.check(str(request.url), what)
        try:
            async with asyncio.timeout(WITHIN_S):
                answer = await answer_of(self._client, request, max_bytes=MAX_BYTES)
        except (httpx2.HTTPError, httpx2.StreamError, NotPublic, NoSuchHost, TimeoutError) as error:
            raise OAuthFault(_why(error, what)) from None
        if answer.is_redirect:
            raise OAuthFault(f"{what} redirects elsewhere, which Segue does not follow")
        return answer


@asynccontextmanager
async def asking(config: McpServerConfig) -> AsyncIterator[Asker]:
    host = urlsplit(config.url or "").hostname or ""
    # `allow_private` means the operator's own networks, and no more: here others name the addresses.
    is_allowed = is_public_or_private if config.allow_private else allowed_for_operator(host, allow_private=False)
    async with checked_client(is_allowed=is_allowed, max_body_bytes=MAX_BYTES) as client:
        yield Asker(client, allow_plain=config.allow_private)


def _why(error: Exception, what: str) -> str:
    match error:
        case BodyTooLarge():
            return f"{what} answers with more than {MAX_BYTES // 1024} kB"
        case NotPublic():
            return f"{what} is at a private address"
        case NoSuchHost():
            return f"{what} is at a host that does not exist"
        case TimeoutError() | httpx2.TimeoutException():
            return f"{what} did not answer in time"
        case _:
            return f"{what} cannot be reached ({type(error).__name__})"
