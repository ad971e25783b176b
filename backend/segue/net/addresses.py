"""Which IP addresses may be dialled for others: the policies, and a host name resolved under one of them.

`http_client.py` resolves a name here once and dials what comes back, so a name that resolves to something else a moment
later (DNS rebinding) leads nowhere.
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

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

# An operator's own networks. Not link-local, where clouds keep credentials, nor forms that hide another address.
_PRIVATE = tuple(
    map(ip_network, ("10.0.0.0/8", "127.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "::1/128", "fc00::/7"))
)

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
    return is_public(address) or any(address in network for network in _PRIVATE)


def allowed_for_operator(host: str, *, allow_private: bool) -> IsAllowed:
    """The policy for a host that the operator wrote into a configuration.

    A private address that is written out is what the operator means; a name that leads to one needs `allow_private`.
    """
    if allow_private:
        return lambda _: True
    if host == "localhost":
        return lambda address: address.is_loopback or is_public(address)
    try:
        written = ip_address(host)
    except ValueError:
        return is_public
    is_private = any(written in network for network in _PRIVATE)
    return lambda address: is_public(address) or (is_private and address == written)


async def resolve_host(host: str, port: int) -> Sequence[str]:
    """The addresses that the system's resolver gives, which also reads spellings such as `127.1` and `0x7f.1`."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(address[0]) for *_, address in found]


async def allowed_addresses(host: str, port: int, *, resolve: Resolve, is_allowed: IsAllowed) -> list[str]:
    """Returns addresses to dial, in the resolver's order. Raises NotPublic, NoSuchHost, OSError if that fails."""
    try:
        found = await resolve(host, port)
        allowed = [address for address in found if is_allowed(ip_address(address))]
    except (OSError, ValueError) as error:
        if isinstance(error, ValueError) or error.errno in _UNKNOWN_NAMES:
            raise NoSuchHost(host) from error
        raise
    if not allowed:
        raise NotPublic(host)
    return allowed
