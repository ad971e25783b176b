"""Sessions that a process takes itself and those sent between processes, from one connection, and put back when a
process stops taking them.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from redis.asyncio import Redis

from segue.db.redis_connection import RedisServer
from segue.turns.queue import KEY, QueueFacts, TurnQueue, look_at_queue
from tests.support.patience import PATIENCE_S


class Sessions:
    """Takes sessions as a worker does, and holds each until it may go on."""

    def __init__(self) -> None:
        self.taken: asyncio.Queue[str] = asyncio.Queue()
        self.may_end = asyncio.Event()

    async def run(self, session_id: str) -> None:
        self.taken.put_nowait(session_id)
        await self.may_end.wait()


@asynccontextmanager
async def taking(url: str, sessions: Sessions, *, concurrency: int) -> AsyncIterator[TurnQueue]:
    redis = RedisServer(url)
    queue = TurnQueue(redis, sessions.run, concurrency=concurrency)
    queue.start()
    try:
        yield queue
    finally:
        await queue.close()
        await redis.close()


@asynccontextmanager
async def sending(url: str) -> AsyncIterator[TurnQueue]:
    """A process that only accepts turns."""
    async with taking(url, Sessions(), concurrency=0) as queue:
        yield queue


async def test_a_process_runs_what_it_accepted_itself_while_it_has_a_place_and_sends_the_rest(redis_url: str) -> None:
    sessions = Sessions()
    async with asyncio.timeout(PATIENCE_S), taking(redis_url, sessions, concurrency=3) as queue:
        for number in range(2):
            assert await queue.send(f"ses_{number}")
        facts = await look_at_queue(redis_url)
        assert facts is not None
        assert facts.waiting == 0
        for number in range(2, 5):
            assert await queue.send(f"ses_{number}")
        assert {await sessions.taken.get() for _ in range(3)} == {"ses_0", "ses_1", "ses_2"}
        assert await look_at_queue(redis_url) == QueueFacts(waiting=2, workers=1)
        sessions.may_end.set()
        assert {await sessions.taken.get() for _ in range(2)} == {"ses_3", "ses_4"}


async def test_a_busy_process_listens_no_more_is_still_counted_and_puts_back_what_it_took_with_a_ttl(
    redis_url: str,
) -> None:
    sessions = Sessions()
    async with (
        asyncio.timeout(PATIENCE_S),
        Redis.from_url(redis_url) as redis,
        sending(redis_url) as sender,
        taking(redis_url, sessions, concurrency=2) as queue,
    ):
        for number in range(3):
            assert await sender.send(f"ses_{number}")
        assert {await sessions.taken.get(), await sessions.taken.get()} == {"ses_0", "ses_1"}
        assert await look_at_queue(redis_url) == QueueFacts(waiting=1, workers=1)
        assert await redis.ttl(KEY) > 0
        await redis.delete(KEY)  # so that what is put back makes the key
        await queue.stop_taking()
        assert await look_at_queue(redis_url) == QueueFacts(waiting=2, workers=1)
        assert await redis.ttl(KEY) > 0
    others = Sessions()
    others.may_end.set()
    async with asyncio.timeout(PATIENCE_S), taking(redis_url, others, concurrency=1):
        assert {await others.taken.get() for _ in range(2)} == {"ses_0", "ses_1"}


async def test_what_is_sent_between_processes_costs_three_commands(redis_url: str) -> None:
    sessions = Sessions()
    sessions.may_end.set()
    async with (
        asyncio.timeout(PATIENCE_S),
        Redis.from_url(redis_url) as redis,
        sending(redis_url) as sender,
        taking(redis_url, sessions, concurrency=1),
    ):
        await sender.send("ses_first")
        await sessions.taken.get()
        await redis.config_resetstat()
        for number in range(9):
            await sender.send(f"ses_{number}")
            await sessions.taken.get()
        made = await redis.info("commandstats")
    sent = {name.removeprefix("cmdstat_"): stats["calls"] for name, stats in made.items()}
    assert (sent["rpush"], sent["expire"]) == (9, 9)
    assert sent.keys() <= {"rpush", "expire", "blpop", "info", "config|resetstat", "config", "client"}


async def test_an_entry_that_is_no_text_stops_no_other(redis_url: str) -> None:
    sessions = Sessions()
    sessions.may_end.set()
    async with (
        asyncio.timeout(PATIENCE_S),
        Redis.from_url(redis_url) as redis,
        taking(redis_url, sessions, concurrency=1),
    ):
        await redis.rpush(KEY, b"\xff", b"", "ses_good")
        assert [await sessions.taken.get() for _ in range(3)] == ["\ufffd", "", "ses_good"]


@pytest.mark.sweep
async def test_it_stops_at_once_at_whatever_step_of_its_start(redis_url: str) -> None:
    async with asyncio.timeout(PATIENCE_S):
        for steps in range(40):
            async with taking(redis_url, Sessions(), concurrency=1):
                for _ in range(steps):
                    await asyncio.sleep(0)
