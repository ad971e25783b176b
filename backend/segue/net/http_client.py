"""HTTP clients that dial checked addresses only (SSRF), for what others name; and connections to what the operator
names. The check sits where a connection is made, so no redirect gets around it; TLS and the Host header keep the name.
"""

import asyncio
import math
import select
import ssl
import time
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from email.utils import parsedate_to_datetime
from functools import cache, partial
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any, Final, cast
from urllib.request import getproxies

import httpcore2
import httpx2

from segue.domain.telemetry import current_traceparent
from segue.net.addresses import IsAllowed, Resolve, allowed_addresses, is_public, resolve_foreign_host, resolve_host

_CONNECTIONS: Final = httpx2.Limits(max_connections=100, keepalive_expiry=None)
_PROVIDERS: Final = httpx2.Limits(max_connections=1000, max_keepalive_connections=100)
_MOST_UNREAD: Final = 131_072  # bytes
_NEXT_ADDRESS_S: Final = 2.5  # until the next address of a name is tried
_PIECES_AT_ONCE: Final = 100
TOO_FAR: Final = 10**9  # of seconds that nothing waits for, and of tokens that no model takes
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
    resolve: Resolve = resolve_foreign_host,
    tls: ssl.SSLContext | None = None,
    headers: Mapping[str, str] | None = None,
    timeout: httpx2.Timeout | None = None,
    max_body_bytes: int | None = None,
    keep_cookies: bool = False,
) -> httpx2.AsyncClient:
    """Follows no redirect, uses no proxy of the environment; the caller closes it. Requests raise NotPublic, NoSuchHost
    and httpx2's errors. A body over `max_body_bytes` raises BodyTooLarge while read; an event stream has no limit.
    """
    addresses_of = partial(allowed_addresses, resolve=resolve, is_allowed=is_allowed)
    return httpx2.AsyncClient(
        transport=_HttpTransport(addresses_of, tls or tls_context(), max_body_bytes=max_body_bytes),
        trust_env=False,
        cookies=CookieJar(None if keep_cookies else DefaultCookiePolicy(allowed_domains=[])),
        timeout=timeout or httpx2.Timeout(10.0, connect=5.0),
        headers=headers,
    )


def unchecked_client_arguments() -> dict[str, Any]:
    """Returns arguments for an httpx2.AsyncClient that asks an address of the operator's, which is not checked. Proxies
    of the environment are obeyed as ever; what goes past them goes over connections of ours.
    """
    own = {} if "all" in getproxies() else {"all://": _HttpTransport(resolve_host, tls_context(), limits=_PROVIDERS)}
    return {"mounts": own, "verify": tls_context(), "limits": _PROVIDERS}


async def tell_trace(request: httpx2.Request) -> None:
    """A hook of a client: its requests carry the context of the trace, if there is one."""
    if (traceparent := current_traceparent.get()) is not None:
        request.headers["traceparent"] = traceparent


@cache
def tls_context() -> ssl.SSLContext:
    """The context that all clients share: reading the certificates takes a tenth of a second of CPU."""
    return httpx2.create_ssl_context()


async def bounded(pieces: AsyncIterable[bytes], max_bytes: int | None) -> AsyncIterator[bytes]:
    """Yields a body's pieces. Raises BodyTooLarge past `max_bytes`, if given. Lets others go on in between: one read
    may hold ten thousand pieces. httpx2 decodes a megabyte at once at most: what is packed stays small in memory.
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
    try:
        body = b"".join([piece async for piece in bounded(response.aiter_bytes(), max_bytes)])
    finally:
        await response.aclose()
    return httpx2.Response(response.status_code, content=body, request=request)


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Returns how long a server wants to be left alone, in seconds: or None if it does not say."""
    for name, unit_s in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        with suppress(KeyError, ValueError, TypeError, OverflowError):
            said, is_date = headers[name], ":" in headers[name]
            seconds = parsedate_to_datetime(said).timestamp() - time.time() if is_date else float(said) * unit_s
            if not math.isnan(seconds):
                return min(max(seconds, 0.0), TOO_FAR)
    return None


class _Stream(asyncio.Protocol, httpcore2.AsyncNetworkStream):
    """A connection of the event loop. Those of httpcore2 stop and start to read for every piece: two system calls,
    and a third of the time that it takes to read a token. What has come is read before the error that ended it: a
    server may refuse a request before it has heard all of it, and hang up.
    """

    _transport: asyncio.Transport

    def __init__(self) -> None:
        self._unread = bytearray()
        self._error: Exception | None = None
        self._has_ended = self._is_paused = False
        self._loop = asyncio.get_running_loop()
        self._reader: asyncio.Future[None] | None = None
        self._writable = asyncio.Event()
        self._writable.set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._unread += data
        if len(self._unread) > _MOST_UNREAD:
            self._is_paused = True
            self._transport.pause_reading()
        self._wake()

    def eof_received(self) -> None:
        self._has_ended = True
        self._wake()

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self._error = exc
        self.eof_received()
        self._writable.set()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ASYNC109 (httpcore2's)
        if not (self._unread or self._has_ended):
            # A timer alone: asyncio.timeout takes a tenth of the time that it takes to read a token.
            timer = None if timeout is None else self._loop.call_later(timeout, self._wake)
            self._reader = self._loop.create_future()
            try:
                await self._reader
            finally:
                if timer is not None:
                    timer.cancel()
            if not (self._unread or self._has_ended):
                raise httpcore2.ReadTimeout
        if self._error is not None and not self._unread:
            raise httpcore2.ReadError(str(self._error)) from self._error
        piece = bytes(self._unread[:max_bytes])
        del self._unread[:max_bytes]
        if self._is_paused and not self._unread:
            self._is_paused = False
            self._transport.resume_reading()
        return piece

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ASYNC109 (httpcore2's)
        if not self._transport.is_closing():
            self._transport.write(buffer)
            try:
                async with asyncio.timeout(timeout):
                    await self._writable.wait()
            except TimeoutError as error:
                raise httpcore2.WriteTimeout from error
        if self._error is not None or self._transport.is_closing():
            raise httpcore2.WriteError(str(self._error or "the connection is closed")) from self._error

    async def aclose(self) -> None:
        self._transport.abort()

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 (httpcore2's)
    ) -> httpcore2.AsyncNetworkStream:
        plain, secured = self._transport, None
        try:
            async with asyncio.timeout(timeout):
                starting = self._loop.start_tls(plain, self, ssl_context, server_hostname=server_hostname)
                secured = cast(asyncio.Transport, await starting)
        except TimeoutError as error:
            raise httpcore2.ConnectTimeout from error
        except OSError as error:
            raise httpcore2.ConnectError(str(error)) from error
        finally:
            if secured is None:
                plain.abort()
        self._transport = secured
        return self

    def get_extra_info(self, info: str) -> Any:
        if info != "is_readable":
            return self._transport.get_extra_info(info)
        # Asked of an idle connection: has its server closed it? The event loop may not have heard of that yet.
        if self._has_ended or self._unread or self._transport.is_closing():
            return True
        arrived = select.poll()
        arrived.register(self._transport.get_extra_info("socket"), select.POLLIN)
        return bool(arrived.poll(0))


class _Network(httpcore2.AsyncNetworkBackend):
    """Resolves a name once and dials what `addresses_of` returns, in that order. Unix sockets stay unimplemented."""

    def __init__(self, addresses_of: Resolve) -> None:
        self._addresses_of = addresses_of

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 (httpcore2's)
        local_address: str | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        if local_address or socket_options:
            raise ValueError("no client here asks for them")
        try:
            async with asyncio.timeout(timeout):
                addresses = await self._addresses_of(host, port)
        except (OSError, UnicodeError) as error:
            raise httpcore2.ConnectError("the name could not be resolved") from error
        for address in addresses:
            is_last = address == addresses[-1]
            try:
                async with asyncio.timeout(timeout if is_last else _NEXT_ADDRESS_S):
                    _, stream = await asyncio.get_running_loop().create_connection(_Stream, address, port)
                    return stream
            except TimeoutError as error:
                if is_last:
                    raise httpcore2.ConnectTimeout from error
            except OSError as error:
                if is_last:
                    raise httpcore2.ConnectError(str(error)) from error
        raise httpcore2.ConnectError("no address")


class _HttpTransport(httpx2.AsyncBaseTransport):
    """httpx2 over a pool of ours, since its own transport takes no network backend."""

    def __init__(
        self,
        addresses_of: Resolve,
        tls: ssl.SSLContext,
        *,
        max_body_bytes: int | None = None,
        limits: httpx2.Limits = _CONNECTIONS,
    ) -> None:
        self._pool = httpcore2.AsyncConnectionPool(
            ssl_context=tls,
            network_backend=_Network(addresses_of),
            max_connections=limits.max_connections,
            max_keepalive_connections=limits.max_keepalive_connections,
            keepalive_expiry=limits.keepalive_expiry,
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
