"""An HTTP client that connects to public addresses only (SSRF).

The check sits where the connection is made, so no redirect gets around it. TLS and the Host header keep the name.
Knows nothing of tools; `web_fetch` uses it.
"""

import os
import ssl
from collections.abc import Iterable
from http.cookiejar import CookieJar, DefaultCookiePolicy

import httpcore
import httpx

from segue.net.addresses import IsAllowed, Resolve, allowed_addresses, is_public, resolve_host


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
        except OSError as error:
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
