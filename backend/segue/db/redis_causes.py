"""Why Redis cannot be used: every cause by name, and what an operator does about it. Turns go on without it.

A cause is told by the type of an error, or of one that it was raised for, never by a text.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from socket import gaierror
from ssl import SSLError
from typing import Final

from redis.asyncio.sentinel import MasterNotFoundError
from redis.exceptions import (
    AuthenticationError,
    BusyLoadingError,
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
    ResponseError,
)


@dataclass(frozen=True, slots=True)
class RedisCause:
    """`name` is in the log and `/health/ready`. `why` goes on after "it cannot be used:"; `mend` is for operators."""

    name: str
    why: str
    mend: str


_REFUSED = RedisCause(
    "refused",
    "nothing listens there",
    "Start it, or correct REDIS_URL; `segue serve` starts an embedded one again.",
)
_UNKNOWN_HOST = RedisCause("unknown_host", "its host name is unknown", "Correct REDIS_URL.")
_NO_ANSWER = RedisCause("no_answer", "it does not answer in time", "See whether its machine and the network live.")
_LOST = RedisCause(
    "lost",
    "it closed the connection",
    "See its log for a crash, a restart or maxclients; with TLS the URL begins with rediss://.",
)
_ACCESS_DENIED = RedisCause(
    "access_denied",
    "it refuses the user or the password",
    "Correct REDIS_URL, redis://user:password@host:6379/0, or the user in its ACL.",
)
_NOT_ALLOWED = RedisCause(
    "not_allowed", "its user may not run a command", "Give the user all commands, for the keys segue:*, in its ACL."
)
_TLS = RedisCause(
    "tls",
    "no TLS as REDIS_URL demands it can be had",
    "See its certificate, `ssl_ca_certs` in REDIS_URL, and whether it speaks TLS at all: else redis://.",
)
_LOADING = RedisCause("loading", "it is loading its data", "Wait. Nothing in it is needed: it may be emptied.")
_READ_ONLY = RedisCause("read_only", "it only reads", "Point REDIS_URL at the primary, or at its Sentinels.")
_NO_PRIMARY = RedisCause(
    "no_primary", "it has no primary", "See its Sentinels and replicas: a failover may be under way, or stuck."
)
_FULL = RedisCause("full", "its memory is full", "Raise maxmemory, or empty it: nothing is lost.")
_FAILING = RedisCause("failing", "it fails with an error of its own", "See its log for the error in ours.")

# In this order: the first that is one of the kinds decides.
_BY_KIND: Final[Mapping[type[BaseException], RedisCause]] = {
    AuthenticationError: _ACCESS_DENIED,
    NoPermissionError: _NOT_ALLOWED,
    BusyLoadingError: _LOADING,
    ReadOnlyError: _READ_ONLY,
    MasterNotFoundError: _NO_PRIMARY,
    OutOfMemoryError: _FULL,
    ResponseError: _FAILING,
    SSLError: _TLS,
    gaierror: _UNKNOWN_HOST,
    ConnectionRefusedError: _REFUSED,
    FileNotFoundError: _REFUSED,
    TimeoutError: _NO_ANSWER,
}


def redis_cause_of(error: BaseException) -> RedisCause:
    """Looks at the error and at those that it was raised for."""
    chain = [error]
    while (before := chain[-1].__cause__ or chain[-1].__context__) is not None:
        chain.append(before)
    return next((cause for kind, cause in _BY_KIND.items() if any(isinstance(each, kind) for each in chain)), _LOST)
