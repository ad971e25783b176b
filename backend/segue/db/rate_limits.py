"""Counts per user in Redis, by the `limits` library; in this process alone while Redis is lost.

A window is fixed and starts with its first count, so that Retry-After is exact and a count is one round trip.
"""

import asyncio
import math
import time
from typing import Literal

import structlog
from limits import RateLimitItem
from limits.aio.storage import MemoryStorage, RedisStorage
from limits.aio.strategies import FixedWindowRateLimiter
from redis.exceptions import RedisError

from segue.db.redis import OPERATION_TIMEOUT_S, RATE_CONNECTIONS, connections

AWAY_S = 5.0  # how long a lost Redis is not asked

Kind = Literal["requests", "turns"]

log = structlog.get_logger()


class Rates:
    def __init__(self, url: str) -> None:
        self._pool = connections(url, RATE_CONNECTIONS)
        shared = RedisStorage(
            "async+redis://",
            implementation="redispy",
            key_prefix="segue:rate",
            connection_pool=self._pool,  # type: ignore[arg-type]  # documented, but typed as a client's plain options
        )
        self._shared = FixedWindowRateLimiter(shared)
        self._local = FixedWindowRateLimiter(MemoryStorage())
        self._away_until = float("-inf")
        self.outages = 0

    @property
    def degraded(self) -> bool:
        return time.monotonic() < self._away_until

    async def count(self, kind: Kind, user: str, limit: RateLimitItem) -> int | None:
        """Counts one more. Returns None within the limit, else the seconds until the next window."""
        names = (kind, user)
        if time.monotonic() >= self._away_until:
            try:
                async with asyncio.timeout(OPERATION_TIMEOUT_S):
                    return await _seconds_to_wait(self._shared, limit, *names)
            except (RedisError, OSError, TimeoutError) as error:
                log.warning("rates_degraded", error=type(error).__name__, for_s=AWAY_S)
                self._away_until = time.monotonic() + AWAY_S
                self.outages += 1
        return await _seconds_to_wait(self._local, limit, *names)

    async def close(self) -> None:
        await self._pool.aclose()


def belongs_to(key: str, user: str) -> bool:
    """Whether a Redis key counts for this user."""
    return any(key.startswith(f"segue:rate:user/{kind}/{user}/") for kind in ("requests", "turns", "tokens"))


async def _seconds_to_wait(rates: FixedWindowRateLimiter, limit: RateLimitItem, *names: str) -> int | None:
    if await rates.hit(limit, *names):
        return None
    reset_at, _ = await rates.get_window_stats(limit, *names)
    return max(math.ceil(reset_at - time.time()), 1)
