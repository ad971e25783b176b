"""HTTP clients that dial checked addresses only (SSRF), for what others name: pages of the web, MCP servers.

The check sits where a connection is made, so no redirect gets around it; TLS and the Host header keep the name. Knows
nothing of tools or MCP: they pass a policy from `addresses.py`.
"""

import asyncio
import ssl
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Final

import httpcore2
import httpx2

from segue.domain.telemetry import current_traceparent
from segue.net.addresses import IsAllowed, Resolve, allowed_addresses, is_public, resolve_host

_MAX_CONNECTIONS: Final = 100
_PIECES_AT_ONCE: Final = 100
_TRANSPORT_ERRORS: Final = (
    httpcore2.NetworkError,
    httpcore2.ProtocolError,
    httpcore2.TimeoutException,
    httpcore2.UnsupportedProtocol,
)


class BodyTooLarge(httpx2.StreamError):
    """A body is larger than `max_body_bytes`."""


def checked_client(
    *,
    is_allowed: IsAllowed = is_public,
    resolve: Resolve = resolve_host,
    tls: ssl.SSLContext | None = None,
    headers: Mapping[str, str] | None = None,
    timeout: httpx2.Timeout | None = None,
    max_body_bytes: int | None = None,
    keep_cookies: bool = False,
) -> httpx2.AsyncClient:
    """A client that follows no redirect and uses no proxy of the environment; the caller closes it. Requests raise
    NotPublic, NoSuchHost and httpx2's own errors. A body over `max_body_bytes` raises BodyTooLarge while it is read; an
    event stream has no such limit.
    """
    return httpx2.AsyncClient(
        transport=_CheckedTransport(_CheckedNetwork(is_allowed, resolve), tls or tls_context(), max_body_bytes),
        trust_env=False,
        cookies=CookieJar(None if keep_cookies else DefaultCookiePolicy(allowed_domains=[])),
        timeout=timeout or httpx2.Timeout(10.0, connect=5.0),
        headers=headers,
    )


async def tell_trace(request: httpx2.Request) -> None:
    """A hook of a client: its requests carry the context of the trace, if there is one."""
    if (traceparent := current_traceparent.get()) is not None:
        request.headers["traceparent"] = traceparent


@cache
def tls_context() -> ssl.SSLContext:
    """The context that all clients share: reading the certificates takes a tenth of a second of CPU."""
    return httpx2.create_ssl_context()


async def bounded(pieces: AsyncIterable[bytes], max_bytes: int | None) -> AsyncIterator[bytes]:
    """Yields the pieces of a body. Raises BodyTooLarge once they are more than `max_bytes`, if that is given. Lets
    others go on in between: one read of the network may hold ten thousand pieces. httpx2 decodes at most a megabyte at
    once, so what is packed never becomes large in memory.
    """
    count = size = 0
    async for piece in pieces:
        count, size = count + 1, size + len(piece)
        if max_bytes is not None and size > max_bytes:
            most = f"{max_bytes // 2**20} MiB" if max_bytes >= 2**20 else f"{max_bytes} bytes"
            raise BodyTooLarge(f"it is larger than {most}")
        yield piece
        if count % _PIECES_AT_ONCE == 0:
            await asyncio.sleep(0)


async def answer_of(client: httpx2.AsyncClient, request: httpx2.Request, *, max_bytes: int) -> httpx2.Response:
    """Returns an answer with its body, which it asks for unpacked. Raises httpx2's errors, and BodyTooLarge."""
    request.headers["Accept-Encoding"] = "identity"
    response = await client.send(request, stream=True)
    body = bytearray()
    try:
        async for piece in bounded(response.aiter_bytes(), max_bytes):
            body += piece
    finally:
        await response.aclose()
    return httpx2.Response(response.status_code, content=bytes(body), request=request)


class _CheckedNetwork(httpcore2.AsyncNetworkBackend):
    """Resolves a name once and dials only addresses it has checked. Unix sockets stay unimplemented."""

    def __init__(self, is_allowed: IsAllowed, resolve: Resolve) -> None:
        self._is_allowed = is_allowed
        self._resolve = resolve
        self._network = httpcore2.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 (httpcore2's signature)
        local_address: str | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        failure: Exception = httpcore2.ConnectError("no address")
        try:
            addresses = await allowed_addresses(host, port, resolve=self._resolve, is_allowed=self._is_allowed)
        except OSError as error:
            raise httpcore2.ConnectError("the name could not be resolved") from error
        for address in addresses:
            try:
                return await self._network.connect_tcp(address, port, timeout, local_address, socket_options)
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout) as error:
                failure = error
        raise failure


class _CheckedTransport(httpx2.AsyncBaseTransport):
    """httpx2 over a pool of ours, since its own transport takes no network backend."""

    def __init__(self, network: _CheckedNetwork, tls: ssl.SSLContext, max_body_bytes: int | None) -> None:
        self._pool = httpcore2.AsyncConnectionPool(
            ssl_context=tls, network_backend=network, max_connections=_MAX_CONNECTIONS
        )
        self._max_body_bytes = max_body_bytes

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        to = request.url
        url = httpcore2.URL(scheme=to.raw_scheme, host=to.raw_host, port=to.port, target=to.raw_path)
        asked = httpcore2.Request(
            method=request.method,
            url=url,
            headers=request.headers.raw,
            content=request.stream,
            extensions=request.extensions,
        )
        with _as_httpx2_errors():
            answer = await self._pool.handle_async_request(asked)
        headers = httpx2.Headers(answer.headers)
        is_event_stream = headers.get("content-type", "").lower().startswith("text/event-stream")
        body = _ResponseBody(answer, None if is_event_stream else self._max_body_bytes)
        return httpx2.Response(answer.status, headers=headers, stream=body, extensions=answer.extensions)

    async def aclose(self) -> None:
        await self._pool.aclose()


class _ResponseBody(httpx2.AsyncByteStream):
    def __init__(self, answer: httpcore2.Response, max_bytes: int | None) -> None:
        self._answer = answer
        self._max_bytes = max_bytes

    async def __aiter__(self) -> AsyncIterator[bytes]:
        with _as_httpx2_errors():
            async for chunk in bounded(self._answer.aiter_stream(), self._max_bytes):
                yield chunk

    async def aclose(self) -> None:
        await self._answer.aclose()


@contextmanager
def _as_httpx2_errors() -> Iterator[None]:
    """Raises httpx2's error of the same name for one of httpcore2, as httpx2's own transport does."""
    try:
        yield
    except _TRANSPORT_ERRORS as error:
        known = next(kind.__name__ for kind in type(error).__mro__ if hasattr(httpx2, kind.__name__))
        raise getattr(httpx2, known)(str(error)) from error
