"""Who the caller is, valid names of hosts and users, usage. Money is a Decimal: sums of floats would not add up."""

from collections.abc import Callable, Iterable
from contextvars import ContextVar
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from ipaddress import ip_address
from typing import Final, Literal, get_args

Scope = Literal["ops", "ops:content", "act_as"]

SCOPES: tuple[Scope, ...] = get_args(Scope)
LOCAL_USER = "local"
MAX_USER_CHARS = 200
SPEAKS_FOR = "⇢"  # between a gateway and its user: in no other name
NOTHING = Decimal(0)
COUNTS: Final = ("calls", "input_tokens", "cached_tokens", "output_tokens", "reasoning_tokens")  # of a Charge
current_user: Final[ContextVar[str]] = ContextVar("current_user", default="")  # whose request or turn this is, if any's


@dataclass(frozen=True, slots=True)
class Identity:
    """`groups` and `roles` are the token's or key's; a user of a gateway's has none."""

    user: str
    scopes: frozenset[str] = frozenset()  # as they are in the token: some may be words that Segue does not know
    is_everybody: bool = False  # all callers are this user, as there is no AUTH
    groups: frozenset[str] = frozenset()
    roles: frozenset[str] = frozenset()

    def has(self, name: str) -> bool:
        """Whether the caller is in this group or has this role."""
        return name in self.groups or name in self.roles


@dataclass(frozen=True, slots=True)
class Operator(Identity):
    """A caller who may see other users' data, in one request."""

    request_id: str | None = None


def is_loopback(host: str) -> bool:
    """Whether a host name or address reaches only this machine."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def is_user(name: str) -> bool:
    """Whether a name is one printable line without white space at its ends, at most MAX_USER_CHARS long."""
    return 0 < len(name) <= MAX_USER_CHARS and name.isprintable() and name == name.strip() and SPEAKS_FOR not in name


def is_owner(name: str) -> bool:
    """Whether a name is that of a user, or of a user of a gateway's."""
    gateway, speaks_for, user = name.partition(SPEAKS_FOR)
    return is_user(gateway) and (not speaks_for or is_user(user))


def _known(is_name: Callable[[str], bool], name: str) -> str:
    """Raises ValueError for what is no name."""
    if not is_name(name):
        raise ValueError("has to be one printable line, without spaces around it")
    return name


known_user, known_owner = partial(_known, is_user), partial(_known, is_owner)


def user_of_gateway(gateway: Identity, user: str) -> Identity:
    """Returns who a gateway speaks for: no other caller can have this name. `user` has to be one of `is_user`."""
    return Identity(f"{gateway.user}{SPEAKS_FOR}{user}")


@dataclass(frozen=True, slots=True)
class Charge:
    """What calls took, cached tokens as part of the input, reasoning of the output; dollars, None without a price."""

    model: str
    calls: int = 1
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0
    estimated: bool = False
    cost: Decimal | None = None

    @property
    def tokens(self) -> int:
        return self.input_tokens + self.output_tokens


def total(charges: Iterable[Charge], model: str = "") -> Charge:
    """Returns the sum. It has no cost if one of the charges has none, and is estimated if one of them is."""
    given = tuple(charges)
    costs = [charge.cost for charge in given if charge.cost is not None]
    return Charge(
        model,
        **{name: sum(getattr(charge, name) for charge in given) for name in COUNTS},
        estimated=any(charge.estimated for charge in given),
        cost=sum(costs, NOTHING) if len(costs) == len(given) else None,
    )
