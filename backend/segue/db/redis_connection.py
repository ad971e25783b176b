"""The Redis server as all its clients in a process see it: connections, whether it answers, and if not, why.

After an operation fails no client asks until a background probe is answered. The type of an error tells the cause,
never a text. `redis+sentinel://user:password@host:26379,host:26379/name/0` asks Sentinels for the primary for each new
connection; `rediss+sentinel://` is TLS to all. `sentinel_username` and `sentinel_password` in the query are for them.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from socket import gaierror
from ssl import SSLError
from typing import Any, Final, TypeVar
from urllib.parse import parse_qsl, urlencode, urlsplit

from redis import exceptions
from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.connection import AbstractConnection, parse_url
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import MasterNotFoundError, Sentinel
from redis.backoff import ConstantBackoff, NoBackoff
from redis.driver_info import DriverInfo

from segue.db.outages import REDIS, OutageCause
from segue.log import log
from segue.watch import end_tasks

SCHEMES = {"redis+sentinel": "redis", "rediss+sentinel": "rediss"}
ACCOUNT = {"sentinel_username": "username", "sentinel_password": "password"}
DEFAULT_PORT = 26379
ASK_TIMEOUT_S = 0.3  # of each Sentinel, so that one that is dead leaves time for the next
OPERATION_TIMEOUT_S = 1.0
PROBE_EVERY_S = 0.25
PROBE_KEY = "segue:probe"
LOST = (exceptions.RedisError, OSError, TimeoutError)

_BY_KIND: Final[Mapping[type[BaseException], OutageCause]] = {  # in order: the first that is one of the kinds decides
    exceptions.AuthenticationError: REDIS["access_denied"],
    exceptions.NoPermissionError: REDIS["not_allowed"],
    exceptions.BusyLoadingError: REDIS["loading"],
    exceptions.ReadOnlyError: REDIS["read_only"],
    MasterNotFoundError: REDIS["no_primary"],
    exceptions.OutOfMemoryError: REDIS["full"],
    exceptions.ResponseError: REDIS["failing"],
    SSLError: REDIS["tls"],
    gaierror: REDIS["unknown_host"],
    ConnectionRefusedError: REDIS["refused"],
    FileNotFoundError: REDIS["refused"],
    TimeoutError: REDIS["no_answer"],
    BaseException: REDIS["lost"],
}


def redis_cause_of(error: BaseException) -> OutageCause:
    """Looks at the error and at those that it was raised for."""
    chain = [error]
    while (before := chain[-1].__cause__ or chain[-1].__context__) is not None:
        chain.append(before)
    return next(cause for kind, cause in _BY_KIND.items() if any(isinstance(each, kind) for each in chain))


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
        found = Sentinel(self.sentinels, sentinel_kwargs={**self.asking, **once, **timeouts})  # type: ignore[no-untyped-call]
        try:
            host, port = await found.discover_master(self.name)
            return str(host), int(port)
        finally:
            for each in found.sentinels:
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


Answer = TypeVar("Answer")

DRIVER = DriverInfo()  # made once: for its own version, redis-py looks through the installed packages


class RedisServer:
    """`outages` counts since the process started; `cause` is why it cannot be used, None if it can."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.outages = 0
        self.cause: OutageCause | None = None
        self._told: set[OutageCause] = set()  # in this outage: two may alternate
        self._answers = asyncio.Event()
        self._answers.set()
        self._probing: asyncio.Task[None] | None = None

    @property
    def degraded(self) -> bool:
        return not self._answers.is_set()

    async def answer(self, ask: Callable[[], Awaitable[Answer]]) -> Answer | None:
        """Returns what Redis answers within OPERATION_TIMEOUT_S; None if it does not, or did not before."""
        if not self._answers.is_set():
            return None
        try:
            async with asyncio.timeout(OPERATION_TIMEOUT_S):
                return await ask()
        except LOST as error:
            if "WRONGTYPE" in str(error):  # Redis works: one key holds what this release does not put there
                log.warning("cache_value_unreadable")
            else:
                self.lose(error)
            return None

    def lose(self, error: Exception) -> None:
        """An operation failed. Nothing is asked from now on until a probe was answered."""
        if self.degraded:
            return
        self.outages += 1
        self._blame(error)
        self._answers.clear()
        self._probing = asyncio.create_task(self._probe(), name="the probe of Redis")

    def _blame(self, error: Exception) -> None:
        self.cause = cause = redis_cause_of(error)
        if cause not in self._told:
            log.warning("redis_degraded", cause=cause.name, error=type(error).__name__, advice=cause.mend)
        self._told.add(cause)

    async def until_it_answers(self) -> None:
        await self._answers.wait()

    async def close(self) -> None:
        await end_tasks(self._probing)

    async def _probe(self) -> None:
        """Writes, because a replica and a full Redis still answer what only reads."""
        async with Redis.from_pool(connections(self.url, 1)) as redis:
            while True:
                try:
                    async with asyncio.timeout(OPERATION_TIMEOUT_S):
                        await redis.set(PROBE_KEY, 1, ex=1)
                        break
                except LOST as error:
                    self._blame(error)
                await asyncio.sleep(PROBE_EVERY_S)
        log.info("redis_recovered")
        self.cause = None
        self._told.clear()
        self._answers.set()


def connections(url: str, most: int, *, timeout_s: float | None = None, retries: int = 1) -> BlockingConnectionPool:
    """Returns a pool of at most `most` connections; an operation waits for a free one."""
    watched = watched_by_sentinels(url)
    pool = BlockingConnectionPool.from_url(
        url if watched is None else watched.url,
        protocol=2,  # with RESP3 redis-py fails the first command after the server has closed a connection
        max_connections=most,
        timeout=OPERATION_TIMEOUT_S,
        socket_timeout=timeout_s or OPERATION_TIMEOUT_S,
        socket_connect_timeout=OPERATION_TIMEOUT_S,
        retry=Retry(ConstantBackoff(0.05), retries),
        driver_info=DRIVER,
    )
    pool.connection_class = _mended(pool.connection_class, watched)
    return pool


def _mended(kind: type[AbstractConnection], watched: Watched | None) -> type[AbstractConnection]:
    """Asks the Sentinels where the primary is before it connects."""

    class Mended(kind):  # type: ignore[valid-type, misc]  # one of redis-py's, by the URL
        async def connect(self) -> None:
            if watched is not None and not self.is_connected:
                self.host, self.port = await _heeding(watched.primary())
            await super().connect()

        async def send_packed_command(self, command: Any, check_health: bool = True) -> None:  # noqa: FBT001, FBT002 (redis-py's)
            try:
                await _heeding(super().send_packed_command(command, check_health))
            except (RuntimeError, asyncio.CancelledError) as error:
                await self.disconnect(nowait=True)  # else its answer is read as that to the next command
                if isinstance(error, asyncio.CancelledError):
                    raise
                # uvloop's, if the server has just closed: redis-py takes it for no loss
                raise exceptions.ConnectionError(str(error)) from error

    return Mended


async def _heeding(work: Awaitable[Answer]) -> Answer:
    """Raises a cancellation that `work` swallows: redis-py uses asyncio.wait_for, which does so before Python 3.12."""
    before = (task := asyncio.current_task()) and task.cancelling()
    done = await work
    if task and task.cancelling() != before:
        raise asyncio.CancelledError
    return done
