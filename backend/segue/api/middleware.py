"""Middleware for every request: its id, its trace span, its log line, and the size limit of its body. Plain ASGI."""

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

from segue.api.access_control import METRICS_PATH
from segue.api.connection import LINGER_S
from segue.api.deps import Services
from segue.api.metrics import METHODS
from segue.api.problems import REQUEST_ID_HEADER, VERSION_HEADER, http_problem, route_path
from segue.domain.errors import AppError
from segue.domain.telemetry import RequestAnswered, Span, trace_of, untraced
from segue.users.api_keys import APPROVE_PATH
from segue.version import VERSION

_VALID_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")

UNTRACED = frozenset({"/health/live", "/health/ready", METRICS_PATH})

log = structlog.get_logger()


class RequestContext:
    """Gives each request an id (the client's own if it is valid), binds it to the log, and logs the response. Id and
    release are in the response.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get(REQUEST_ID_HEADER, "")
        request_id = scope["request_id"] = given if _VALID_ID.fullmatch(given) else secrets.token_hex(8)
        started = time.monotonic()
        status = 500

        async def send_marked(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message).update({REQUEST_ID_HEADER: request_id, VERSION_HEADER: VERSION})
            await send(message)

        # A server hands what the lifespan yields to the outermost application only, which may not be ours.
        services: Services | None = getattr(scope["app"].state, "services", None)
        if services is None:
            reason = "Segue has not started: enter its lifespan in that of your application (docs/extend.md)."
            raise RuntimeError(reason)
        scope["state"] = {**scope.get("state", {}), "services": services}
        method, path = scope["method"], scope["path"][:200]
        path = f"{APPROVE_PATH}…" if path.startswith(APPROVE_PATH) else path  # who reads a link decides with it
        with _span(services, scope, request_id) as span:
            scope["traceparent"] = span.traceparent
            with structlog.contextvars.bound_contextvars(request_id=request_id, **trace_of(span)):
                try:
                    await self._app(scope, receive, send_marked)
                finally:
                    seconds = time.monotonic() - started
                    log.info("request", method=method, path=path, status=status, duration_ms=round(seconds * 1000, 1))
                    route = getattr(scope.get("route"), "path", None)
                    services.metrics.observe(RequestAnswered(method, status, route, seconds))
                    span.set_attributes(status=status, **({"route": route} if route else {}))
                    if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
                        span.fail(str(status))


class BodyLimit:
    """Answers 413 to a body of more than `max_bytes`: unread if Content-Length says so, else when that many have come.
    What the route `takes` says which of the bounds it is.

    Then the connection ends: when the body does, or LINGER_S later, for a client that still sends to read the answer.
    As many bytes more are dropped meanwhile, of a door's client three times as many.
    """

    def __init__(self, app: ASGIApp, *, max_bytes: int, max_door_bytes: int, max_upload_bytes: int) -> None:
        self._app = app
        # how long a body may be, and how much more of it is dropped
        self._bounds = {
            "json": (max_bytes, max_bytes),
            "file": (max_upload_bytes, max_upload_bytes),
            "history": (max_door_bytes, 3 * max_door_bytes),
        }
        self._always_taken = min(max_bytes, max_upload_bytes, max_door_bytes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope) if scope["type"] == "http" else {}
        announced, is_chunked = int(headers.get("content-length", 0)), "transfer-encoding" in headers
        if announced <= self._always_taken and not is_chunked:
            await self._app(scope, receive, send)
            return
        routes = (each for each in scope["app"].routes if each.matches(scope)[0] is Match.FULL)
        max_bytes, dropped = self._bounds[getattr(next(routes, None), "takes", "json")]
        if announced > max_bytes:
            problem = await http_problem(Request(scope), _too_large(max_bytes))
            await problem(scope, receive, partial(_send_and_close, receive, send, dropped))
        elif is_chunked:
            await self._count(scope, receive, send, max_bytes, dropped)
        else:
            await self._app(scope, receive, send)

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
            too_large = received > max_bytes
            await (_send_and_close(receive, send, dropped, message) if too_large else send(message))

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
    if route_path(scope) in UNTRACED:
        return untraced("request")
    parent = Headers(scope=scope).get("traceparent")
    method = scope["method"] if scope["method"] in METHODS else "_OTHER"
    return services.span("request", parent=parent, method=method, request_id=request_id)
