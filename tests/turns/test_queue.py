"""Sessions that a process takes itself, and jobs between processes: as SAQ writes them, from one connection, and put
back when a process stops taking them.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from redis.asyncio import Redis
from saq.job import Status
from saq.queue.redis import RedisQueue

from segue.db.redis_server import RedisServer
from segue.turns.queue import JOB, NAME, QueueFacts, TurnQueue, look_at_queue
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
            assert await queue.send(f"ses_{number}", f"turn_{number}")
        facts = await look_at_queue(redis_url)
        assert facts is not None
        assert (facts.jobs_waiting, facts.jobs_taken) == (0, 0)
        for number in range(2, 5):
            assert await queue.send(f"ses_{number}", f"turn_{number}")
        assert {await sessions.taken.get() for _ in range(3)} == {"ses_0", "ses_1", "ses_2"}
        assert await look_at_queue(redis_url) == QueueFacts(jobs_waiting=2, jobs_taken=1, workers=1)
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
            assert await sender.send(f"ses_{number}", f"turn_{number}")
        assert {await sessions.taken.get(), await sessions.taken.get()} == {"ses_0", "ses_1"}
        assert await look_at_queue(redis_url) == QueueFacts(jobs_waiting=1, jobs_taken=2, workers=1)
        assert min([await redis.ttl(key) for key in await redis.keys()]) > 0
        await queue.stop_taking()
        assert await look_at_queue(redis_url) == QueueFacts(jobs_waiting=3, jobs_taken=0, workers=1)
        assert min([await redis.ttl(key) for key in await redis.keys()]) > 0
    others = Sessions()
    others.may_end.set()
    async with asyncio.timeout(PATIENCE_S), taking(redis_url, others, concurrency=1):
        assert {await others.taken.get() for _ in range(3)} == {"ses_0", "ses_1", "ses_2"}


async def test_one_redis_serves_processes_that_use_saq_in_its_own_way(redis_url: str) -> None:
    sessions = Sessions()
    sessions.may_end.set()
    plain = RedisQueue.from_url(redis_url, name=NAME)
    async with asyncio.timeout(PATIENCE_S), taking(redis_url, sessions, concurrency=1) as queue:
        await plain.enqueue(JOB, session_id="ses_theirs", key="turn_theirs:0", ttl=-1)
        assert await sessions.taken.get() == "ses_theirs"
        await queue.stop_taking()
        assert await queue.send("ses_ours", "turn_ours")
        taken = await plain.dequeue(timeout=5)
        assert taken is not None
        assert (taken.function, taken.kwargs) == (JOB, {"session_id": "ses_ours"})
        await taken.finish(Status.COMPLETE)
    await plain.disconnect()
    assert await look_at_queue(redis_url) == QueueFacts(jobs_waiting=0, jobs_taken=0, workers=0)


async def test_a_job_that_cannot_be_read_stops_no_other(redis_url: str) -> None:
    sessions = Sessions()
    sessions.may_end.set()
    async with (
        Redis.from_url(redis_url) as redis,
        asyncio.timeout(PATIENCE_S),
        taking(redis_url, sessions, concurrency=1),
    ):
        head = b'{"queue": "segue", "function": "run_turns", "key": "bad", "ttl": -1'
        asked = [b"}", b', "kwargs": 7}', b', "kwargs": {"session_id": {}}}', b', "attempts": "x", "kwargs": {}}']
        spoiled = [b"{", b"7", b"[" * 5000, b'{"queue": "segue"}', *(head + rest for rest in asked)]
        for number, value in enumerate(spoiled):
            await redis.set(f"saq:job:{NAME}:bad{number}", value)
            await redis.rpush(f"saq:{NAME}:queued", f"saq:job:{NAME}:bad{number}")
        queue = RedisQueue(redis, name=NAME)
        await queue.enqueue(JOB, session_id="ses_good", key="turn_good:0", ttl=-1)
        assert await sessions.taken.get() == "ses_good"


async def test_it_stops_at_once_at_whatever_step_of_its_start(redis_url: str) -> None:
    async with asyncio.timeout(PATIENCE_S):
        for steps in range(40):
            async with taking(redis_url, Sessions(), concurrency=1):
                for _ in range(steps):
                    await asyncio.sleep(0)
