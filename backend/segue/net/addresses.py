"""Which IP addresses may be dialled for others, and a host name resolved under such a policy. `http_client.py` dials
what came back, so a name that resolves to something else a moment later (DNS rebinding) leads nowhere.
"""

import asyncio
import socket
import tomllib
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from importlib.resources import files
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from threading import BoundedSemaphore, Thread
from typing import Any, Final

IPAddress = IPv4Address | IPv6Address
IsAllowed = Callable[[IPAddress], bool]
Resolve = Callable[[str, int], Awaitable[Sequence[str]]]

_NETWORKS: Final = tomllib.loads(files("segue.net").joinpath("networks.toml").read_text("utf-8"))
_REFUSED_V4, _REFUSED_V6, _METADATA, _PRIVATE = (
    tuple(map(ip_network, _NETWORKS[name])) for name in ("refused_v4", "refused_v6", "metadata", "private")
)
_GLOBAL_V6 = ip_network(_NETWORKS["global_v6"])
_LOOK_UPS: Final = BoundedSemaphore(64)  # of foreign names: each has a thread until the resolver answers
_UNKNOWN_NAMES = {socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME)}


class NotPublic(Exception):
    """No address of a host may be dialled."""


class NoSuchHost(Exception):
    """The host has no address, or its name is not valid. A resolver that fails raises OSError instead."""


def is_public(address: IPAddress) -> bool:
    if isinstance(address, IPv4Address):
        return not any(address in network for network in _REFUSED_V4)
    return address in _GLOBAL_V6 and not any(address in network for network in _REFUSED_V6)


def is_public_or_private(address: IPAddress) -> bool:
    """Whether it is public or in a network of the operator's: not where clouds keep credentials."""
    is_private = any(address in network for network in _PRIVATE)
    return is_public(address) or (is_private and not any(address in network for network in _METADATA))


def allowed_for_operator(host: str, *, allow_private: bool) -> IsAllowed:
    """For an operator's host: a private address written out is meant, a name leading to one needs `allow_private`."""
    if allow_private:
        return lambda _: True
    if host == "localhost":
        return lambda address: address.is_loopback or is_public(address)
    try:
        written = ip_address(host)
    except ValueError:
        return is_public
    is_private = is_public_or_private(written)
    return lambda address: is_public(address) or (is_private and address == written)


async def resolve_host(host: str, port: int) -> Sequence[str]:
    """The addresses that the system's resolver gives, which also reads spellings such as `127.1` and `0x7f.1`."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(address[0]) for *_, address in found]


async def resolve_foreign_host(host: str, port: int) -> Sequence[str]:
    """The same of a host that others name: no other name and no end of the process waits behind a silent one."""
    found: Future[list[Any]] = Future()

    def look_up() -> None:
        try:
            found.set_result(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
        except (OSError, ValueError) as error:
            found.set_exception(error)
        finally:
            _LOOK_UPS.release()

    if not _LOOK_UPS.acquire(blocking=False):
        raise OSError("too many foreign names are being looked up")
    found.set_running_or_notify_cancel()  # a caller that goes ends no look-up
    Thread(target=look_up, daemon=True).start()
    return [str(address[0]) for *_, address in await asyncio.wrap_future(found)]


async def allowed_addresses(host: str, port: int, *, resolve: Resolve, is_allowed: IsAllowed) -> list[str]:
    """Returns addresses to dial, in the resolver's order. Raises NotPublic, NoSuchHost, OSError if that fails."""
    try:
        allowed = [address for address in await resolve(host, port) if is_allowed(ip_address(address))]
    except (OSError, ValueError) as error:
        if isinstance(error, ValueError) or error.errno in _UNKNOWN_NAMES:
            raise NoSuchHost(host) from error
        raise
    if not allowed:
        raise NotPublic(host)
    return allowed
