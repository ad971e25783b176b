"""Who the caller is: a user and their scopes. Also which host names and user names are valid."""

from dataclasses import dataclass
from ipaddress import ip_address
from typing import Literal, get_args

Scope = Literal["ops"]

SCOPES: tuple[Scope, ...] = get_args(Scope)
LOCAL_USER = "local"
MAX_USER_CHARS = 200


@dataclass(frozen=True, slots=True)
class Identity:
    """`scopes` may contain words that Segue does not know: they come from the token as they are."""

    user: str
    scopes: frozenset[str] = frozenset()


def is_loopback(host: str) -> bool:
    """Whether a host name or address reaches only this machine."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def is_user(name: str) -> bool:
    """Whether a name is one printable line without white space at its ends, at most MAX_USER_CHARS long."""
    return 0 < len(name) <= MAX_USER_CHARS and name.isprintable() and name == name.strip()
