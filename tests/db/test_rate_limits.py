"""A window of a minute starts with its first count, in Redis and in a process that has lost it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from redis.asyncio import Redis

from segue.db.redis_connection import RedisServer
from segue.db.redis_keys import WINDOW_S, Cache, Rates

NOWHERE = "redis://127.0.0.1:1"


class Watch:
    seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def watch() -> Watch:
    return Watch()


@asynccontextmanager
async def counting(url: str, watch: Watch) -> AsyncIterator[Rates]:
    server = RedisServer(url)
    cache = Cache(server)
    yield Rates(cache, now=watch)
    await cache.close()
    await server.close()


async def test_without_redis_a_window_ends_a_minute_after_its_first_count(watch: Watch) -> None:
    async with counting(NOWHERE, watch) as rates:
        assert await rates.count("requests", "ada", 1) is None
        watch.seconds = WINDOW_S / 2
        assert await rates.count("requests", "bob", 1) is None
        assert await rates.count("requests", "ada", 1) == WINDOW_S / 2
        watch.seconds = WINDOW_S
        assert await rates.count("requests", "ada", 1) is None
        assert await rates.count("requests", "bob", 1) == WINDOW_S / 2


async def test_a_new_window_starts_once_the_key_in_redis_has_ended(redis_url: str, watch: Watch) -> None:
    async with Redis.from_url(redis_url) as redis, counting(redis_url, watch) as rates:
        assert [await rates.count("requests", "ada", 2) for _ in range(2)] == [None, None]
        [key] = [key async for key in redis.scan_iter("segue:rate:*")]
        await redis.pexpire(key, 30_500)
        assert await rates.count("requests", "ada", 2) == 31
        await redis.delete(key)
        assert await rates.count("requests", "ada", 2) is None


async def test_a_limit_that_is_raised_holds_for_the_window_that_runs(redis_url: str, watch: Watch) -> None:
    async with counting(redis_url, watch) as rates:
        assert [await rates.count("turns", "ada", 1) for _ in range(2)] != [None, None]
        assert await rates.count("turns", "ada", 3) is None
