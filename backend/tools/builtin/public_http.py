"""An HTTP client that connects to public addresses only (SSRF).

The check sits where the connection is made: a name is resolved once, its addresses are checked and a checked one is
dialled, so neither a redirect nor a name that changes its mind (rebinding) gets around it. TLS and the Host header keep
the name. Knows nothing of tools; `web_fetch` uses it.
"""

import asyncio
import os
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterable, Sequence
from http.cookiejar import CookieJar, DefaultCookiePolicy
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

import httpcore
import httpx

IPAddress = IPv4Address | IPv6Address
IsAllowed = Callable[[IPAddress], bool]
Resolve = Callable[[str, int], Awaitable[Sequence[str]]]

# IANA special-purpose registry. Not `is_global`: it changes with Python and lets multicast, NAT64 and 6to4 pass.
_REFUSED_V4 = tuple(
    map(
        ip_network,
        (
            "0.0.0.0/8",
            "10.0.0.0/8",
            "100.64.0.0/10",  # CGNAT; some clouds keep their metadata here
            "127.0.0.0/8",
            "168.63.129.16/32",  # Azure's wire server: a public number, an inside service
            "169.254.0.0/16",
            "172.16.0.0/12",
            "192.0.0.0/24",
            "192.0.2.0/24",
            "192.88.99.0/24",  # 6to4 relays
            "192.168.0.0/16",
            "198.18.0.0/15",
            "198.51.100.0/24",
            "203.0.113.0/24",
            "224.0.0.0/3",  # multicast, reserved, broadcast
        ),
    )
)
# All that is global unicast; leaves out mapped, NAT64, unique local, link-local and multicast.
_GLOBAL_V6 = ip_network("2000::/3")
_REFUSED_V6 = tuple(
    map(
        ip_network,
        (
            "2001::/23",  # Teredo, ORCHID, benchmarking
            "2001:db8::/32",
            "2002::/16",  # 6to4: carries any IPv4 address
            "3fff::/20",
        ),
    )
)


_UNKNOWN_NAMES = {socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME)}


class NotPublic(Exception):
    """None of the addresses of a host may be connected to."""


class NoSuchHost(Exception):
    """The name has no address, or is no name; a resolver that is out of order is another matter."""


def is_public(address: IPAddress) -> bool:
    if isinstance(address, IPv4Address):
        return not any(address in network for network in _REFUSED_V4)
    return address in _GLOBAL_V6 and not any(address in network for network in _REFUSED_V6)


async def resolve_host(host: str, port: int) -> Sequence[str]:
    """The system's resolver, which also reads spellings such as `127.1` and `0x7f.1`."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(address[0]) for *_, address in found]


async def allowed_addresses(host: str, port: int, *, resolve: Resolve, is_allowed: IsAllowed) -> list[str]:
    """Those of the host's addresses that may be dialled, in the resolver's order.

    Raises NotPublic where none is left, OSError or ValueError where the name cannot be resolved.
    """
    allowed = [address for address in await resolve(host, port) if is_allowed(ip_address(address))]
    if not allowed:
        raise NotPublic(host)
    return allowed


class PublicNetwork(httpcore.AsyncNetworkBackend):
    """Dials only addresses it has checked. Unix sockets stay unimplemented, as in the base class."""

    def __init__(self, *, resolve: Resolve, is_allowed: IsAllowed) -> None:
        self._resolve = resolve
        self._is_allowed = is_allowed
        self._network = httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 (httpcore's signature)
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        failure: Exception = httpcore.ConnectError("no address")
        for address in await self._addresses(host, port):
            try:
                return await self._network.connect_tcp(address, port, timeout, local_address, socket_options)
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                failure = error
        raise failure

    async def _addresses(self, host: str, port: int) -> list[str]:
        try:
            return await allowed_addresses(host, port, resolve=self._resolve, is_allowed=self._is_allowed)
        except (OSError, ValueError) as error:
            if isinstance(error, ValueError) or error.errno in _UNKNOWN_NAMES:
                raise NoSuchHost(host) from error
            raise httpcore.ConnectError("the name could not be resolved") from error


class _PublicTransport(httpx.AsyncHTTPTransport):
    def __init__(self, network: PublicNetwork, tls: ssl.SSLContext) -> None:
        # httpx's own pool gets a socket nobody listens on: should a later httpx not use ours, nothing is fetched.
        super().__init__(verify=tls, uds=os.devnull)
        self._pool = httpcore.AsyncConnectionPool(ssl_context=tls, network_backend=network, max_connections=100)


def public_client(
    *, resolve: Resolve = resolve_host, is_allowed: IsAllowed = is_public, tls: ssl.SSLContext | None = None
) -> httpx.AsyncClient:
    """Follows no redirect, keeps no cookie between its callers, obeys no proxy from the environment.

    Requests raise `NotPublic` and `NoSuchHost` beside httpx's own errors. Whoever opens it closes it.
    """
    network = PublicNetwork(resolve=resolve, is_allowed=is_allowed)
    return httpx.AsyncClient(
        transport=_PublicTransport(network, tls or httpx.create_ssl_context()),
        trust_env=False,
        cookies=CookieJar(policy=DefaultCookiePolicy(allowed_domains=[])),
        timeout=httpx.Timeout(10.0, connect=5.0),
    )
