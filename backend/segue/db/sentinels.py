"""A Redis that Sentinels watch, named by `redis+sentinel://user:password@host:26379,host:26379/name/0`.

`rediss+sentinel://` stands for TLS to all of them; `sentinel_username` and `sentinel_password` in the query are the
Sentinels' own. They are asked for each new connection which server is the primary. One that is no longer closes its
connections.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from redis.asyncio.connection import parse_url
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel
from redis.backoff import NoBackoff

SCHEMES = {"redis+sentinel": "redis", "rediss+sentinel": "rediss"}
ACCOUNT = {"sentinel_username": "username", "sentinel_password": "password"}
DEFAULT_PORT = 26379
ASK_TIMEOUT_S = 0.3  # of each Sentinel, so that one that is dead leaves time for the next


@dataclass(frozen=True, slots=True)
class Watched:
    """`url` leads to the primary, but for its host and port; `asking` are redis-py's options for the Sentinels."""

    sentinels: tuple[tuple[str, int], ...]
    name: str
    url: str = field(repr=False)
    asking: Mapping[str, Any] = field(repr=False)

    async def primary(self) -> tuple[str, int]:
        """Raises redis.exceptions.ConnectionError if no Sentinel knows it."""
        once = {"protocol": 2, "retry": Retry(NoBackoff(), 0)}
        timeouts = {"socket_timeout": ASK_TIMEOUT_S, "socket_connect_timeout": ASK_TIMEOUT_S}
        asked = Sentinel(self.sentinels, sentinel_kwargs={**self.asking, **once, **timeouts})  # type: ignore[no-untyped-call]
        try:
            host, port = await asked.discover_master(self.name)
            return str(host), int(port)
        finally:
            for each in asked.sentinels:
                await each.aclose()

    def __str__(self) -> str:
        return f"{self.name} of the Sentinels {', '.join(f'{host}:{port}' for host, port in self.sentinels)}"


def watched_by_sentinels(url: str) -> Watched | None:
    """Returns None for a URL of another scheme. Raises ValueError."""
    parts = urlsplit(url)
    if parts.scheme not in SCHEMES:
        return None
    account, at, hosts = parts.netloc.rpartition("@")
    name, _, database = parts.path.strip("/").partition("/")
    each = [urlsplit(f"//{host}") for host in hosts.split(",")]
    sentinels = tuple((one.hostname or "", one.port or DEFAULT_PORT) for one in each)
    if not name or not all(host for host, _ in sentinels):
        raise ValueError("has to name the primary and its Sentinels")
    query = dict(parse_qsl(parts.query))
    of_sentinels = {option: query.pop(given) for given, option in ACCOUNT.items() if given in query}
    scheme = SCHEMES[parts.scheme]
    primary = f"{scheme}://{account}{at}primary/{database}" + (f"?{urlencode(query)}" if query else "")
    tls = {option: value for option, value in parse_url(primary).items() if option.startswith("ssl_")}
    return Watched(sentinels, name, primary, {"ssl": scheme == "rediss", **tls, **of_sentinels})
