"""The connections of users to one server: each of one login, a bounded number, the idle ones closed. Knows no store.

A connection is never given to another user, nor to another login of the same one. It sends its user's token, and renews
it once if the server refuses it: a request that was refused for its token has not run, so that it is sent again.
"""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Final

import anyio
import httpx2
from mcp.client.auth.utils import extract_field_from_www_auth, extract_scope_from_www_auth

from segue.domain.errors import AppError
from segue.domain.tool import ToolFailed
from segue.mcp.oauth.discovery import OAuthFault
from segue.mcp.oauth.login_tokens import Access, Grants
from segue.mcp.supervisor import Supervisor

_UNAUTHORIZED: Final = 401
_FORBIDDEN: Final = 403
_MAX_SCOPE_CHARS: Final = 1000
MAX_CONNECTIONS: Final = 50
IDLE_S: Final = 300.0
_CLOSE_S: Final = 5.0


@dataclass(slots=True)
class CallWithToken:
    """A call that is on its way. `is_refused` says that its last request was not let in, and so did nothing;
    `is_renewed` that its token was a new one then. `scope` is what the user's login would have to allow.
    """

    is_refused: bool = False
    is_renewed: bool = False
    scope: str | None = None


call_with_token: ContextVar[CallWithToken | None] = ContextVar("call_with_token", default=None)


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
    if (asked := call_with_token.get()) is None:
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


@dataclass(slots=True)
class UserConnection:
    """`calls` are on their way now; `used_at` is when the last one began or ended."""

    bearer: Bearer
    supervisor: Supervisor
    running: asyncio.Task[None]
    used_at: float
    calls: int = 0


class UserConnections:
    """`connect` makes a supervisor that sends with a token, `url` is the server's."""

    def __init__(
        self, server: str, url: str, grants: Grants, connect: Callable[[Bearer], Supervisor], *, timeout_s: float
    ) -> None:
        self._server = server
        self._url = url
        self._grants = grants
        self._connect = connect
        self._timeout_s = timeout_s
        self._open: OrderedDict[str, UserConnection] = OrderedDict()
        self._closing: set[asyncio.Task[None]] = set()

    async def of(self, owner: str, access: Access) -> Supervisor:
        """Returns a user's connection, after the first attempt to connect; the one used least recently makes room.
        Raises ToolFailed if none can.
        """
        found = self._open.get(owner)
        if found is not None and found.bearer.access.login != access.login:
            self.retire(owner)
            found = None
        if found is None:
            found = self._opened(owner, access)
        self._open.move_to_end(owner)
        found.used_at = anyio.current_time()
        found.bearer.access = access
        with anyio.move_on_after(self._timeout_s):
            await found.supervisor.tried.wait()
        return found.supervisor

    @contextmanager
    def in_use(self, owner: str) -> Iterator[None]:
        """Keeps a user's connection open while a call is on its way."""
        used = self._open.get(owner)
        if used is None:
            yield
            return
        used.calls += 1
        try:
            yield
        finally:
            used.calls -= 1
            used.used_at = anyio.current_time()

    def retire(self, owner: str | None = None) -> None:
        """Closes the connection of a user, or of all, once its calls have ended. Their next calls open new ones."""
        for each in [owner] if owner is not None else list(self._open):
            if (gone := self._open.pop(each, None)) is not None:
                closing = asyncio.create_task(_closed(gone), name=f"mcp:{self._server} ends")
                self._closing.add(closing)
                closing.add_done_callback(self._closing.discard)

    def close_idle(self) -> None:
        now = anyio.current_time()
        for owner, each in list(self._open.items()):
            if not each.calls and now - each.used_at > IDLE_S:
                self.retire(owner)

    async def end(self) -> None:
        """Lets the calls that run end, and closes."""
        await asyncio.gather(*(each.supervisor.retire() for each in self._open.values()))

    async def close(self) -> None:
        """Ends the calls that still run."""
        for each in self._open.values():
            each.supervisor.stop()
        self.retire()
        if self._closing:
            _, stuck = await asyncio.wait(set(self._closing), timeout=_CLOSE_S)
            for task in stuck:
                task.cancel()

    def _opened(self, owner: str, access: Access) -> UserConnection:
        if len(self._open) >= MAX_CONNECTIONS:
            idle = next((owner for owner, each in self._open.items() if not each.calls), None)
            if idle is None:
                raise ToolFailed(f"Too many users call the MCP server {self._server} at once. Try again later.")
            self.retire(idle)
        bearer = Bearer(self._url, access, partial(self._grants.renewed, owner, self._server))
        supervisor = self._connect(bearer)
        running = asyncio.create_task(supervisor.run(), name=f"mcp:{self._server}")
        self._open[owner] = UserConnection(bearer, supervisor, running, anyio.current_time())
        return self._open[owner]


async def _closed(gone: UserConnection) -> None:
    await gone.supervisor.retire()
    await gone.running
