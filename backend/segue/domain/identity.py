"""Who calls: a user by name, what more than their own they may see, and which names are this machine's."""

from dataclasses import dataclass
from ipaddress import ip_address
from typing import Literal, get_args

Scope = Literal["ops"]

SCOPES: tuple[Scope, ...] = get_args(Scope)
LOCAL_USER = "local"
MAX_USER_CHARS = 200


@dataclass(frozen=True, slots=True)
class Identity:
    """`scopes` may hold words that are none of ours: a token says what it likes."""

    user: str
    scopes: frozenset[str] = frozenset()


def is_loopback(host: str) -> bool:
    """Whether a host name or address means this machine alone."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def is_user(name: str) -> bool:
    """One printable line that every store can hold, with nothing at its ends that nobody sees."""
    return 0 < len(name) <= MAX_USER_CHARS and name.isprintable() and name == name.strip()
