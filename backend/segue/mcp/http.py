"""The HTTP client an MCP server is spoken to with: it dials only checked addresses and reads only so much.

What is private is reached only where mcp.json says so. Redirects are the SDK's, which follows them within the origin
only. Knows nothing of MCP; `connection.py` uses it.
"""

import os
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from functools import cache
from ipaddress import ip_address, ip_network
from typing import Final, cast

import httpcore2
import httpx2

from segue.mcp.stdio import MESSAGE_LIMIT_BYTES, McpServerGone
from segue.net.addresses import IPAddress, IsAllowed, Resolve, allowed_addresses, is_public, resolve_host

# A stream may be silent for hours, so reading has no limit of its own: calls and handshakes have theirs.
_TIMEOUT: Final = httpx2.Timeout(10.0, read=None)
# People's own networks. Not link-local, where clouds keep credentials, nor forms that hide another address.
_OWN: Final = tuple(
    map(ip_network, ("10.0.0.0/8", "127.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "::1/128", "fc00::/7"))
)

OnResponse = Callable[[httpx2.Response], Awaitable[None]]


class _TooLarge(httpx2.StreamError):
    """The SDK takes it for an answer it cannot read: the call fails, the connection stays."""


def reach_of(host: str, *, allow_private: bool) -> IsAllowed:
    """The addresses a server may be dialled at, by how mcp.json writes its host: a private address that is written out
    is the operator's word, a name that leads to one is not.
    """
    if allow_private:
        return lambda _: True
    if host == "localhost":
        return lambda address: address.is_loopback or is_public(address)
    try:
        written = ip_address(host)
    except ValueError:
        return is_public
    return lambda address: is_public(address) or (address == written and _is_own(address))


def checked_client(
    headers: Mapping[str, str], *, is_allowed: IsAllowed, on_response: OnResponse, resolve: Resolve = resolve_host
) -> httpx2.AsyncClient:
    """Obeys no proxy from the environment. Requests raise NotPublic and NoSuchHost beside httpx2's own errors."""
    # httpx2's own pool gets a socket nobody listens on: should a later one not use ours, nothing is dialled.
    transport = _BoundedTransport(verify=_tls(), uds=os.devnull)
    network = _CheckedNetwork(resolve=resolve, is_allowed=is_allowed)
    transport._pool = httpcore2.AsyncConnectionPool(  # noqa: SLF001 (httpx2 has no parameter for the network)
        ssl_context=_tls(), network_backend=network, max_connections=100
    )
    plain = {**headers, "Accept-Encoding": "identity"}
    return httpx2.AsyncClient(
        headers=plain, timeout=_TIMEOUT, transport=transport, event_hooks={"response": [on_response]}
    )


@cache
def _tls() -> ssl.SSLContext:
    """Made once: reading all the certificates holds everything up for a tenth of a second."""
    return httpx2.create_ssl_context()


def _is_own(address: IPAddress) -> bool:
    return any(address in network for network in _OWN)


class _CheckedNetwork(httpcore2.AsyncNetworkBackend):
    def __init__(self, *, resolve: Resolve, is_allowed: IsAllowed) -> None:
        self._resolve = resolve
        self._is_allowed = is_allowed
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


class _BoundedTransport(httpx2.AsyncHTTPTransport):
    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        response = await super().handle_async_request(request)
        if response.headers.get("content-encoding", "identity").lower() not in {"", "identity"}:
            await response.aclose()
            raise McpServerGone("it compresses its answers, though it was asked not to")
        # The SDK bounds each event of a stream, and reads anything else to its end.
        if not response.headers.get("content-type", "").lower().startswith("text/event-stream"):
            response.stream = _Bounded(cast(httpx2.AsyncByteStream, response.stream))
        return response


class _Bounded(httpx2.AsyncByteStream):
    def __init__(self, stream: httpx2.AsyncByteStream) -> None:
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        left = MESSAGE_LIMIT_BYTES
        async for chunk in self._stream:
            left -= len(chunk)
            if left < 0:
                raise _TooLarge(f"it is larger than {MESSAGE_LIMIT_BYTES // 2**20} MiB")
            yield chunk

    async def aclose(self) -> None:
        await self._stream.aclose()
