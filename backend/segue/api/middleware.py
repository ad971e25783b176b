"""Middleware for every request: its id, its trace span, its log line, who may send it, and the size limit of its body.

The gate runs before routing and before the body is read, so a new route needs a key unless OPEN_PATHS names it or it is
in OPEN_FOLDER. The caller is in `request.state.identity`; that rows belong to the caller is checked by SQL statements.
"""

import asyncio
import re
import secrets
import sys
import time
from contextlib import AbstractContextManager, suppress
from functools import partial
from http import HTTPStatus

import structlog
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.routing import Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from segue import __version__
from segue.api import problems
from segue.api.api_settings import ApiSettings
from segue.api.connection import LINGER_S
from segue.api.deps import Services
from segue.api.metrics import METHODS
from segue.domain.errors import AppError, app_error
from segue.domain.identity import Identity, current_user, is_loopback
from segue.domain.ids import is_id
from segue.domain.telemetry import RequestAnswered, Span, trace_of, untraced
from segue.log import log
from segue.mcp.status import CALLBACK_PATH, DOCUMENT_PATH
from segue.users.api_keys import APPROVE_PATH, Unauthorized, user_of_stream_token

OPEN_PATHS = frozenset({"/", "/health/live", "/health/ready", "/docs", "/openapi.json", CALLBACK_PATH, DOCUMENT_PATH})
OPEN_FOLDER = ("/assets/", "/hooks/", APPROVE_PATH)  # the events of triggers are signed, and so are links to approve
METRICS_PATH = "/metrics"
_EVENTS_PATH = re.compile("/sessions/[^/]+/turns/([^/]+)/events")
_VALID_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
UNTRACED = frozenset({"/health/live", "/health/ready", METRICS_PATH})


class RequestContext:
    """Gives a request an id, the client's if it is valid, and logs the response, which has the id and the release. The
    path is told as `route_path`, below the one that the application is mounted at, and as `logged_path`, without the
    token of a link to approve: who reads it decides with it.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get(problems.REQUEST_ID_HEADER, "")
        request_id = scope["request_id"] = given if _VALID_ID.fullmatch(given) else secrets.token_hex(8)
        path, root = scope["path"], f"{scope.get('root_path', '')}/"
        route_path = scope["route_path"] = path[len(root) - 1 :] if path.startswith(root) else path
        is_secret = route_path.startswith(APPROVE_PATH)
        path = scope["logged_path"] = f"{APPROVE_PATH}…" if is_secret else path[: problems.MAX_SHOWN_CHARS]
        started, status, has_begun = time.monotonic(), 500, False

        async def send_marked(message: Message) -> None:
            nonlocal status, has_begun
            if message["type"] == "http.response.start":
                status, has_begun = message["status"], True
                headers = MutableHeaders(scope=message)
                headers.update({problems.REQUEST_ID_HEADER: request_id, problems.VERSION_HEADER: __version__})
                for name, value in problems.PRIVATE.items():
                    headers.setdefault(name, value)
            await send(message)

        # A server hands what the lifespan yields to the outermost application only, which may not be ours.
        services: Services | None = getattr(scope["app"].state, "services", None)
        if services is None:
            reason = "Segue has not started: enter its lifespan in that of your application (docs/extend.md)."
            raise RuntimeError(reason)
        scope["state"] = {**scope.get("state", {}), "services": services}
        method = scope["method"]
        with _span(services, scope, request_id) as span:
            scope["traceparent"] = span.traceparent
            if method == "HEAD":  # Starlette's routes take it for GET, FastAPI's do not
                scope, send = {**scope, "method": "GET"}, _head_of(send)
            with structlog.contextvars.bound_contextvars(request_id=request_id, **trace_of(span)):
                try:
                    await self._app(scope, receive, send_marked)
                except asyncio.CancelledError:  # the grace of the process is over, and uvicorn's answer is no problem
                    if has_begun:
                        raise
                    await problems.cut_off(Request(scope))(scope, receive, send_marked)
                finally:
                    seconds = time.monotonic() - started
                    log.info("request", method=method, path=path, status=status, duration_ms=round(seconds * 1000, 1))
                    route = getattr(scope.get("route"), "path_format", None)
                    services.metrics.observe(RequestAnswered(method, status, route, seconds))
                    span.set_attributes(status=status, **({"route": route} if route else {}))
                    if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
                        span.fail(str(status))


def _head_of(send: Send) -> Send:
    """Ends an answer behind its headers: a stream would go on for a client that is sent nothing of it."""

    async def send_head(message: Message) -> None:
        if message["type"] == "http.response.start":
            await send(message)
            await send({"type": "http.response.body"})

    return send_head


class Gate:
    """Admits or refuses a request: by its Host and Origin, the caller's key or token, and the caller's rate limit. If
    the settings name `hosts`, the service answers only to these names and loopback ones. Only pages from there and from
    CORS_ORIGINS may then send requests that change something.
    """

    def __init__(self, app: ASGIApp, settings: ApiSettings) -> None:
        self._app = app
        self._origins = frozenset(settings.cors_origins)
        self._hosts = None if settings.hosts is None else frozenset(map(str.lower, settings.hosts))
        self._open = OPEN_PATHS | ({METRICS_PATH} if settings.metrics_public else frozenset())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(scope)
        try:
            self._refuse_other_hosts(request)
            self._refuse_other_pages(request)
            if (path := scope["route_path"]) not in self._open and not path.startswith(OPEN_FOLDER):
                await _authenticate(request)
        except AppError as error:
            await (await problems.app_problem(request, error))(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _refuse_other_hosts(self, request: Request) -> None:
        """DNS rebinding: any page can let its own name resolve to this machine, but the Host header shows that name."""
        if self._hosts is None:
            return
        address, port = request.scope.get("server") or ("", None)
        for given in request.headers.getlist("host") or ["localhost"]:
            host = _without_port(given)
            if port and is_loopback(host):  # which any client may say: what counts is where another server listens
                host = address
            if host not in self._hosts and not is_loopback(host):
                raise app_error("host_not_allowed", host=host[:100])

    def _refuse_other_pages(self, request: Request) -> None:
        """Cross-site requests: a browser sends a plain POST for any page without a preflight."""
        if self._hosts is None or "*" in self._origins or request.method in ("GET", "OPTIONS"):
            return
        for origin in request.headers.getlist("origin"):
            host = _without_port(origin.partition("://")[2])
            if origin not in self._origins and host not in self._hosts and not is_loopback(host):
                raise app_error("origin_not_allowed", origin=origin[:100])


async def _authenticate(request: Request) -> None:
    try:
        identity = await identify(request)
    except Unauthorized as error:
        log.info("unauthorized", reason=error.reason)
        raise
    await request.state.services.limiter.request(identity.user)
    request.state.identity = identity
    current_user.set(identity.user)


async def identify(request: Request) -> Identity:
    """Returns the caller, by the key or token in the headers. A client that sends none may have a token in the address
    of a turn's events. Raises Unauthorized, also if two headers differ.
    """
    bearers = (value.partition(" ") for value in request.headers.getlist("authorization"))
    given = {token.strip() for scheme, _, token in bearers if scheme.lower() == "bearer"}
    given.update(value.strip() for value in request.headers.getlist("x-api-key"))
    if len(given) > 1:
        raise Unauthorized("headers_disagree")
    credential = given.pop() if given else None
    services: Services = request.state.services
    path = request.scope["route_path"]
    try:
        return await services.authenticator.identify(credential, for_metrics=path == METRICS_PATH)
    except Unauthorized:
        token, events = request.query_params.get("token"), _EVENTS_PATH.fullmatch(path)
        if credential is not None or token is None or events is None or request.method != "GET":
            raise
        is_turn = is_id("turn", events[1])  # before PostgreSQL is asked, which takes no NUL
        user = await services.read(user_of_stream_token, token, events[1]) if is_turn else None
        if user is None:
            raise Unauthorized("stream_token") from None
        return Identity(user)


def _without_port(host: str) -> str:
    """`[::1]:8000` is `::1`, `LOCALHOST.:8000` is `localhost`."""
    # Starlette's TrustedHostMiddleware cannot read IPv6 literals
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.partition(":")[0].lower().removesuffix(".")


class BodyLimit:
    """Answers 413 to a body of more than `max_bytes`: unread if Content-Length says so, else when that many have come.
    What the route `takes` says which of the bounds it is.

    Then the connection ends: when the body does, or LINGER_S later, for a client that still sends to read the answer.
    As many bytes more are dropped meanwhile, of a door's client three times as many.
    """

    def __init__(self, app: ASGIApp, *, max_bytes: int, max_door_bytes: int, max_upload_bytes: int) -> None:
        self._app = app
        # how long a body may be, and how much more of it is dropped
        self._bounds = {"json": (max_bytes, max_bytes), "file": (max_upload_bytes, max_upload_bytes)}
        self._bounds["history"] = max_door_bytes, 3 * max_door_bytes
        self._always_taken = min(max_bytes, max_upload_bytes, max_door_bytes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope) if scope["type"] == "http" else {}
        announced = int(headers.get("content-length", 0))
        needs_neither = "content-length" not in headers and scope.get("http_version", "") >= "2"
        is_chunked = needs_neither or "transfer-encoding" in headers
        if announced <= self._always_taken and not is_chunked:
            await self._app(scope, receive, send)
            return
        routes = (each for each in scope["app"].routes if each.matches(scope)[0] is Match.FULL)
        max_bytes, dropped = self._bounds[getattr(next(routes, None), "takes", "json")]
        if announced > max_bytes:
            problem = await problems.http_problem(Request(scope), _too_large(max_bytes))
            await problem(scope, receive, partial(_send_and_close, receive, send, dropped))
        else:
            await self._count(scope, receive, send, max_bytes, dropped)

    async def _count(self, scope: Scope, receive: Receive, send: Send, max_bytes: int, dropped: int) -> None:
        received = 0

        async def receive_within_limit() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > max_bytes:
                raise _too_large(max_bytes)
            return message

        async def send_or_close(message: Message) -> None:
            await (_send_and_close(receive, send, dropped, message) if received > max_bytes else send(message))

        await self._app(scope, receive_within_limit, send_or_close)


def _too_large(max_bytes: int) -> HTTPException:
    return HTTPException(413, f"The body is larger than {max_bytes} bytes.")


async def _send_and_close(receive: Receive, send: Send, dropped: int, message: Message) -> None:
    if message["type"] == "http.response.start":
        MutableHeaders(scope=message)["Connection"] = "close"
    elif not message.get("more_body"):
        await send({**message, "more_body": True})
        await _drop_rest(receive, dropped)
        message = {"type": "http.response.body"}
    await send(message)


async def _drop_rest(receive: Receive, at_most: int) -> None:
    dropped = 0
    with suppress(TimeoutError):
        async with asyncio.timeout(LINGER_S):
            while dropped <= at_most:
                message = await receive()
                dropped += len(message.get("body", b""))
                if not message.get("more_body"):
                    return
            await asyncio.sleep(LINGER_S)


class StartupErrors:
    """Reports a start that fails with an AppError by its detail instead of a traceback."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_detail(message: Message) -> None:
            reason = sys.exc_info()[1]
            if message["type"] == "lifespan.startup.failed" and isinstance(reason, AppError):
                message["message"] = reason.detail
            await send(message)

        await self._app(scope, receive, send_detail if scope["type"] == "lifespan" else send)


def _span(services: Services, scope: Scope, request_id: str) -> AbstractContextManager[Span]:
    """The span of the request: a child of the client's, if it sends a traceparent."""
    if scope["route_path"] in UNTRACED:
        return untraced("request")
    parent = Headers(scope=scope).get("traceparent")
    method = scope["method"] if scope["method"] in METHODS else "_OTHER"
    return services.span("request", parent=parent, method=method, request_id=request_id)
