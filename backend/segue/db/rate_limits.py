"""Counts per user in Redis, by the `limits` library; in this process alone while Redis is lost.

A window is fixed and starts with its first count, so that Retry-After is exact and a count is one round trip.
"""

import math
import time
from contextlib import suppress
from typing import Literal

from limits import RateLimitItem
from limits.aio.storage import MemoryStorage, RedisStorage
from limits.aio.strategies import FixedWindowRateLimiter

from segue.db.redis import RATE_CONNECTIONS
from segue.db.redis_server import RedisLost, RedisServer, connections

Kind = Literal["requests", "turns"]


class Rates:
    def __init__(self, server: RedisServer) -> None:
        self._server = server
        self._pool = connections(server.url, RATE_CONNECTIONS)
        shared = RedisStorage(
            "async+redis://",
            implementation="redispy",
            key_prefix="segue:rate",
            connection_pool=self._pool,  # type: ignore[arg-type]  # documented, but typed as a client's plain options
        )
        self._shared = FixedWindowRateLimiter(shared)
        self._local = FixedWindowRateLimiter(MemoryStorage())

    async def count(self, kind: Kind, user: str, limit: RateLimitItem) -> int | None:
        """Counts one more. Returns None within the limit, else the seconds until the next window."""
        names = (kind, user)
        with suppress(RedisLost):
            async with self._server.asking():
                return await _seconds_to_wait(self._shared, limit, *names)
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
