"""The Redis server as all its clients in a process see it: connections to it, and whether it answers.

An answer is waited for in vain once. From then on no client asks, until a probe in the background was answered.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import structlog
from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.connection import AbstractConnection
from redis.asyncio.retry import Retry
from redis.backoff import ConstantBackoff
from redis.driver_info import DriverInfo
from redis.exceptions import ConnectionError as LostConnectionError
from redis.exceptions import RedisError

from segue.db.redis_causes import RedisCause, redis_cause_of
from segue.db.sentinels import Watched, watched_by_sentinels

OPERATION_TIMEOUT_S = 1.0
PROBE_EVERY_S = 0.25
PROBE_KEY = "segue:probe"
LOST = (RedisError, OSError, TimeoutError)

Answer = TypeVar("Answer")

DRIVER = DriverInfo()  # made once: for its own version, redis-py looks through the installed packages

log = structlog.get_logger()


class RedisServer:
    """`outages` counts since the process started; `cause` is why it cannot be used, None if it can."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.outages = 0
        self.cause: RedisCause | None = None
        self._told: set[RedisCause] = set()  # in this outage: two may alternate
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
        while self._probing is not None and not self._probing.done():
            self._probing.cancel()  # again, as redis-py can swallow one
            await asyncio.wait({self._probing}, timeout=PROBE_EVERY_S)

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


def connections(
    url: str, most: int, *, timeout_s: float = OPERATION_TIMEOUT_S, retries: int = 1
) -> BlockingConnectionPool:
    """Returns a pool of at most `most` connections; an operation waits for a free one. Not RESP3, with which redis-py
    fails the first command after the server has closed a connection.
    """
    watched = watched_by_sentinels(url)
    pool = BlockingConnectionPool.from_url(
        url if watched is None else watched.url,
        protocol=2,
        max_connections=most,
        timeout=OPERATION_TIMEOUT_S,
        socket_timeout=timeout_s,
        socket_connect_timeout=OPERATION_TIMEOUT_S,
        retry=Retry(ConstantBackoff(0.05), retries),
        driver_info=DRIVER,
    )
    pool.connection_class = _noticing(pool.connection_class)
    if watched is not None:
        pool.connection_class = _asking(watched, pool.connection_class)
    return pool


def _noticing(kind: type[AbstractConnection]) -> type[AbstractConnection]:
    """For a connection that the server has just closed uvloop raises RuntimeError, which redis-py takes for no loss."""

    class Noticing(kind):  # type: ignore[valid-type, misc]  # one of redis-py's, by the URL
        async def send_packed_command(self, command: Any, check_health: bool = True) -> None:  # noqa: FBT001, FBT002 (redis-py's)
            try:
                await super().send_packed_command(command, check_health)
            except RuntimeError as error:
                await self.disconnect(nowait=True)
                raise LostConnectionError(str(error)) from error

    return Noticing


def _asking(watched: Watched, kind: type[AbstractConnection]) -> type[AbstractConnection]:
    """Asks where the primary is before it connects."""

    class AskingSentinels(kind):  # type: ignore[valid-type, misc]  # one of redis-py's, by the URL
        async def connect(self) -> None:
            if not self.is_connected:
                self.host, self.port = await watched.primary()
            await super().connect()

    return AskingSentinels
