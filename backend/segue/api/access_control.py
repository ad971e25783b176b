"""Admits or refuses a request: by its Host and Origin, the caller's key or token, and the caller's rate limit.

Runs before routing and before the body is read, so a new route needs a key unless OPEN_PATHS names it or it is in
OPEN_FOLDER. The caller is in `request.state.identity`; that rows belong to the caller is checked by the SQL statements.
"""

import re
from collections.abc import Iterable

import structlog
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from segue.api.deps import Services
from segue.api.problems import app_problem, route_path
from segue.domain.errors import AppError
from segue.domain.identity import Identity, is_loopback
from segue.mcp.status import CALLBACK_PATH, DOCUMENT_PATH
from segue.users.api_keys import APPROVE_PATH, Unauthorized, user_of_stream_token

OPEN_PATHS = frozenset({"/", "/health/live", "/health/ready", "/docs", "/openapi.json", CALLBACK_PATH, DOCUMENT_PATH})
OPEN_FOLDER = ("/assets/", "/hooks/", APPROVE_PATH)  # the events of triggers are signed, and so are links to approve
METRICS_PATH = "/metrics"
_EVENTS_PATH = re.compile("/sessions/[^/]+/turns/([^/]+)/events")
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})

log = structlog.get_logger()


class Gate:
    """If `hosts` is given, the service answers only to these names and loopback ones. Only pages from there and from
    `origins` may then send requests that change something.
    """

    def __init__(
        self, app: ASGIApp, *, hosts: Iterable[str] | None, origins: Iterable[str], metrics_public: bool
    ) -> None:
        self._app = app
        self._origins = frozenset(origins)
        self._hosts = None if hosts is None else frozenset(host.lower() for host in hosts)
        self._open = OPEN_PATHS | ({METRICS_PATH} if metrics_public else frozenset())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(scope)
        try:
            self._refuse_other_hosts(request)
            self._refuse_other_pages(request)
            if (path := route_path(scope)) not in self._open and not path.startswith(OPEN_FOLDER):
                await _authenticate(request)
        except AppError as error:
            await app_problem(request, error)(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _refuse_other_hosts(self, request: Request) -> None:
        """DNS rebinding: any page can let its own name resolve to this machine, but the Host header shows that name."""
        if self._hosts is None:
            return
        for given in request.headers.getlist("host"):
            host = _without_port(given)
            if host not in self._hosts and not is_loopback(host):
                detail = (
                    "Without AUTH this service answers to names of this machine only, not to "
                    f"{host[:100]!r}. Call it as 127.0.0.1, or add the name to ALLOWED_HOSTS."
                )
                raise AppError("host_not_allowed", status=403, title="Called by another name", detail=detail)

    def _refuse_other_pages(self, request: Request) -> None:
        """Cross-site requests: a browser sends a plain POST for any page without a preflight."""
        if self._hosts is None or "*" in self._origins or request.method in SAFE_METHODS:
            return
        for origin in request.headers.getlist("origin"):
            host = _without_port(origin.partition("://")[2])
            if origin not in self._origins and host not in self._hosts and not is_loopback(host):
                detail = (
                    f"Without AUTH nothing is changed for pages of {origin[:100]!r}. Add it to CORS_ORIGINS if it may."
                )
                raise AppError("origin_not_allowed", status=403, title="Called by a page from elsewhere", detail=detail)


async def _authenticate(request: Request) -> None:
    services: Services = request.state.services
    try:
        identity = await _identify(services, request)
    except Unauthorized as error:
        log.info("unauthorized", reason=error.reason)
        raise
    await services.limiter.request(identity.user)
    request.state.identity = identity


async def _identify(services: Services, request: Request) -> Identity:
    """Returns the caller. A client that sends no key may have a token in the address of a turn's events."""
    credential = _credential(request)
    try:
        return await services.authenticator.identify(credential)
    except Unauthorized:
        token, events = request.query_params.get("token"), _EVENTS_PATH.fullmatch(route_path(request.scope))
        if credential is not None or token is None or events is None or request.method != "GET":
            raise
        async with services.database.read_only() as connection:
            user = await user_of_stream_token(connection, token, events[1])
        if user is None:
            raise Unauthorized("stream_token") from None
        return Identity(user)


def _credential(request: Request) -> str | None:
    """Returns the key or token in the headers; None if there is none. Raises Unauthorized if two headers differ."""
    bearers = (value.partition(" ") for value in request.headers.getlist("authorization"))
    given = {token.strip() for scheme, _, token in bearers if scheme.lower() == "bearer"}
    given.update(value.strip() for value in request.headers.getlist("x-api-key"))
    if len(given) > 1:
        raise Unauthorized("headers_disagree")
    return given.pop() if given else None


def _without_port(host: str) -> str:
    """`[::1]:8000` is `::1`, `LOCALHOST.:8000` is `localhost`."""
    # Starlette's TrustedHostMiddleware cannot read IPv6 literals
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.partition(":")[0].lower().removesuffix(".")
