"""What happens to every request before routing: an id, a bound on its body, a line in the access log. Pure ASGI."""

import re
import secrets
import sys
import time

import structlog
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from backend.api.problems import REQUEST_ID_HEADER
from backend.domain.errors import AppError

_SANE_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")

log = structlog.get_logger()


class RequestContext:
    """Gives each request an id (the caller's own where it is sane), binds it to the log, and logs how it went."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = _request_id(scope)
        scope["request_id"] = request_id
        started = time.monotonic()
        status = 500

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                name = REQUEST_ID_HEADER.lower().encode()
                headers = [pair for pair in message["headers"] if pair[0].lower() != name]
                message["headers"] = [*headers, (name, request_id.encode())]
            await send(message)

        with structlog.contextvars.bound_contextvars(request_id=request_id):
            try:
                await self._app(scope, receive, send_with_id)
            finally:
                duration_ms = round((time.monotonic() - started) * 1000, 1)
                path = scope["path"][:200]
                log.info("request", method=scope["method"], path=path, status=status, duration_ms=duration_ms)


class BodyLimit:
    """Stops reading a body at `max_bytes`, whatever Content-Length says."""

    def __init__(self, app: ASGIApp, *, max_bytes: int) -> None:
        self._app = app
        self._max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        received = 0

        async def receive_within_limit() -> Message:
            nonlocal received
            message = await receive()
            if message["type"] == "http.request":
                received += len(message.get("body", b""))
                if received > self._max_bytes:
                    raise HTTPException(413, f"The body is larger than {self._max_bytes} bytes.")
            return message

        await self._app(scope, receive_within_limit, send)


class PlainStart:
    """A start that fails for a reason we know says it in a sentence, not in a traceback."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_plainly(message: Message) -> None:
            reason = sys.exc_info()[1]
            if message["type"] == "lifespan.startup.failed" and isinstance(reason, AppError):
                message["message"] = reason.detail
            await send(message)

        await self._app(scope, receive, send_plainly if scope["type"] == "lifespan" else send)


def _request_id(scope: Scope) -> str:
    name = REQUEST_ID_HEADER.lower().encode()
    given = next((value for key, value in scope["headers"] if key == name), b"")
    return given.decode() if _SANE_ID.fullmatch(given) else secrets.token_hex(8)
