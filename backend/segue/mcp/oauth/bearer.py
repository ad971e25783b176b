"""Puts a user's token on the requests of that user's own connection, and renews it once when the server refuses it.

A request that was refused for its token has not run, so that it is sent again. Knows no store.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Final

import httpx2
from mcp.client.auth.utils import extract_field_from_www_auth, extract_scope_from_www_auth

from segue.domain.errors import AppError
from segue.mcp.oauth.asking import OAuthFault
from segue.mcp.oauth.records import Access

_UNAUTHORIZED: Final = 401
_FORBIDDEN: Final = 403
_MAX_SCOPE_CHARS: Final = 1000


@dataclass(slots=True)
class AskedWithToken:
    """A call that is on its way. `is_refused` says that its last request was not let in, and so did nothing;
    `is_renewed` that its token was a new one then. `scope` is what the user's login would have to allow.
    """

    is_refused: bool = False
    is_renewed: bool = False
    scope: str | None = None


asked_with_token: ContextVar[AskedWithToken | None] = ContextVar("asked_with_token", default=None)


class Bearer(httpx2.Auth):
    """`renew` returns another token than the one refused, or None. The token goes to the origin of `url` only."""

    def __init__(self, url: str, access: Access, renew: Callable[[Access], Awaitable[Access | None]]) -> None:
        self._origin = _origin(httpx2.URL(url))
        self._renew = renew
        self.access = access

    async def async_auth_flow(self, request: httpx2.Request) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        if _origin(request.url) != self._origin:
            yield request
            return
        sent = self.access
        response = yield _with(request, sent)
        if response.status_code == _UNAUTHORIZED and (other := await self._other_than(sent)) is not None:
            self.access = other
            response = yield _with(request, other)
        _note(response, is_renewed=self.access != sent)

    async def _other_than(self, refused: Access) -> Access | None:
        if self.access != refused:  # a call beside this one was quicker
            return self.access
        try:
            return await self._renew(refused)
        except (OAuthFault, AppError):
            return None  # the caller is told, and the next call tries again


def _note(response: httpx2.Response, *, is_renewed: bool) -> None:
    if (asked := asked_with_token.get()) is None:
        return
    is_short = (
        response.status_code == _FORBIDDEN and extract_field_from_www_auth(response, "error") == "insufficient_scope"
    )
    asked.is_renewed = is_renewed
    asked.is_refused = is_short or response.status_code == _UNAUTHORIZED
    asked.scope = (extract_scope_from_www_auth(response) or "")[:_MAX_SCOPE_CHARS] or None if is_short else None


def _with(request: httpx2.Request, access: Access) -> httpx2.Request:
    request.headers["Authorization"] = f"Bearer {access.token}"
    return request


def _origin(url: httpx2.URL) -> tuple[str, str, int | None]:
    return url.scheme, url.host, url.port
