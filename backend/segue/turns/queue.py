"""The work queue that carries turns between processes: SAQ on Redis. Knows no table and decides nothing.

A job names a session in which a turn may wait. A lost, doubled or late job does no harm: Postgres decides which process
runs a turn, and recovery finds a turn whose job was lost. So a process with a free place makes no job at all.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

import structlog
from redis.asyncio import Redis
from redis.asyncio.client import Pipeline
from redis.exceptions import ResponseError
from saq.job import Job, Status
from saq.queue.redis import RedisQueue

from segue.db.reading import read_json, readable, reader
from segue.db.redis import QUEUE_CONNECTIONS
from segue.db.redis_server import LOST, OPERATION_TIMEOUT_S, RedisLost, RedisServer, connections

NAME = "segue"
JOB = "run_turns"
LISTEN_S = 5
JOB_TIMEOUT_S = 3600  # then the sweep takes a job for one whose process died
SWEEP_EVERY_S = 300
KEPT_S = 3600  # after the last change of a key; recovery finds a turn within seconds without its job
TAKEN_S = SWEEP_EVERY_S  # what is left of a process that died goes with the next sweep
CANCEL_AGAIN_S = 0.1
PAUSE_S = 1.0  # of a listener that has failed

# KEYS: the job, the incomplete jobs, the queued and the active ones, an aborted job. ARGV: the job's text, TTL.
_ENQUEUE: Final = """
if redis.call('ZSCORE', KEYS[2], KEYS[1]) or redis.call('EXISTS', KEYS[5]) == 1 then return 0 end
redis.call('SET', KEYS[1], ARGV[1])
redis.call('ZADD', KEYS[2], 0, KEYS[1])
redis.call('RPUSH', KEYS[3], KEYS[1])
for index = 1, 4 do redis.call('EXPIRE', KEYS[index], ARGV[2]) end
return 1
"""

RunTurns = Callable[[str], Awaitable[None]]

_WRITES = ("SET", "ZADD", "RPUSH")

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class QueueFacts:
    """`workers` counts the processes that take jobs, by their connections; None if Redis does not list them."""

    jobs_waiting: int
    jobs_taken: int
    workers: int | None


async def look_at_queue(url: str) -> QueueFacts | None:
    """Returns None if Redis cannot be reached."""
    jobs = _Jobs(url)
    try:
        async with asyncio.timeout(OPERATION_TIMEOUT_S):
            waiting, taken = await jobs.count("queued"), await jobs.count("active")
            return QueueFacts(waiting, taken, await jobs.count_listeners())
    except LOST:
        return None
    finally:
        with suppress(*LOST):
            await jobs.disconnect()


class TurnQueue:
    """Has `concurrency` places, for sessions of its own and for jobs; with 0 it only sends.

    `run_turns(session_id)` returns when this process has nothing more to do in that session.
    """

    def __init__(self, redis: RedisServer, run_turns: RunTurns, *, concurrency: int) -> None:
        self._redis = redis
        self._jobs = _Jobs(redis.url)
        self._run_turns = run_turns
        self._concurrency = concurrency
        self._free = asyncio.Semaphore(max(concurrency - 1, 0))  # beside the listener's
        self._taking: asyncio.Task[None] | None = None
        self._here: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        if self._concurrency:
            self._taking = asyncio.create_task(self._take_jobs(), name="the queue of turns")

    @property
    def alive(self) -> bool:
        return self._taking is None or not self._taking.done()

    @property
    def has_place(self) -> bool:
        """Whether this process takes turns and a place is free."""
        return self._taking is not None and not self._free.locked()

    async def hold_place(self, line: asyncio.Task[None]) -> None:
        """Takes a free place until the line ends."""
        await self._free.acquire()
        line.add_done_callback(lambda _: self._free.release())

    async def waiting(self) -> int | None:
        """Returns how many jobs no process has taken; None if Redis cannot be asked."""
        with suppress(RedisLost):
            async with self._redis.asking():
                return await self._jobs.count("queued")
        return None

    async def workers(self) -> int | None:
        """Returns how many processes take jobs; None if Redis cannot be asked, or does not say."""
        with suppress(RedisLost):
            async with self._redis.asking():
                return await self._jobs.count_listeners()
        return None

    async def send(self, session_id: str, turn_id: str, *, attempt: int = 0) -> bool:
        """Takes the session here if a place is free, else sends a job. Returns False if Redis cannot be reached; then
        this process has to run the turn itself.
        """
        if self.has_place:
            await self._free.acquire()
            self._here.add(task := asyncio.create_task(self._run_here(session_id), name=turn_id))
            task.add_done_callback(self._here.discard)
            return True
        job = Job(JOB, kwargs={"session_id": session_id}, key=f"{turn_id}:{attempt}", timeout=JOB_TIMEOUT_S, ttl=-1)
        with suppress(RedisLost):
            async with self._redis.asking():
                await self._jobs.enqueue(job)
                return True
        return False

    async def stop_taking(self) -> None:
        """Puts the jobs that were taken back into the queue; the turns that run here are left alone."""
        taking, self._taking = self._taking, None
        for task in self._here:
            task.cancel()
        while taking is not None and not taking.done():
            taking.cancel()  # again, as redis-py can swallow one: it uses asyncio.wait_for (fixed in Python 3.12)
            await asyncio.wait({taking}, timeout=CANCEL_AGAIN_S)

    async def close(self) -> None:
        await self.stop_taking()
        with suppress(*LOST):
            await self._jobs.disconnect()

    async def _run_here(self, session_id: str) -> None:
        try:
            await self._run_turns(session_id)
        finally:
            self._free.release()

    async def _take_jobs(self) -> None:
        """One listener for all places of the process; SAQ's own worker holds a blocking connection for each."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._sweep(), name="jobs of workers that died")
            while True:
                if (job := await self._next_job()) is not None:
                    running = tasks.create_task(self._run(job), name=job.key)
                    running.add_done_callback(lambda _: self._free.release())
                    await self._free.acquire()

    async def _next_job(self) -> Job | None:
        await self._redis.until_it_answers()
        try:
            return await self._jobs.dequeue(timeout=LISTEN_S)
        except LOST as error:
            self._redis.lose(error)
            await asyncio.sleep(PAUSE_S)
        return None

    async def _run(self, job: Job) -> None:
        try:
            with suppress(RedisLost):  # a job that the sweep takes for lost does no harm
                started = time.time_ns() // 1_000_000
                async with self._redis.asking():
                    await self._jobs.update(job, status=Status.ACTIVE, started=started, attempts=job.attempts + 1)
            await self._run_turns((job.kwargs or {})["session_id"])
            with suppress(RedisLost):
                async with self._redis.asking():
                    await self._jobs.finish(job, Status.COMPLETE)
        except asyncio.CancelledError:
            with suppress(RedisLost):
                async with self._redis.asking():
                    await self._jobs.retry(job, "cancelled")
            raise

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_EVERY_S)
            with suppress(*LOST):
                await self._jobs.sweep(SWEEP_EVERY_S)


@dataclass(frozen=True, slots=True)
class _OfSession:
    session_id: str


@dataclass(frozen=True, slots=True)
class _StoredJob:
    """What SAQ keeps of a job that matters here."""

    key: str
    queue: Literal["segue"]
    function: Literal["run_turns"]
    kwargs: _OfSession
    timeout: int = 10
    ttl: int = 600
    retries: int = 1
    attempts: int = 0
    queued: int = 0
    started: int = 0
    touched: int = 0
    status: Status = Status.NEW


_read_job = reader(_StoredJob)


class _Jobs(RedisQueue):
    """SAQ's queue without the round trips that nothing here needs, and with a TTL on each key.

    BLMOVE can give none to the list of active jobs: the job that was taken does, and each one that is sent.
    """

    def __init__(self, url: str) -> None:
        super().__init__(_JobsClient(url), name=NAME)
        self._enqueue_with_ttl = self.redis.register_script(_ENQUEUE)

    async def version(self) -> tuple[int, ...]:
        """The oldest Redis that is supported; SAQ would ask with INFO, which some hosted servers refuse."""
        return 6, 2, 0

    def deserialize(self, payload: Any, status: Status | str | None = None) -> Job | None:
        """Returns None for a job that cannot be read: as one that is missing, the sweep removes it."""
        if not payload:
            return None
        read = readable(_read_job, payload if isinstance(payload, dict) else read_json(payload), "jobs", "")
        return Job(**{**asdict(read), "queue": self, "status": status or read.status}) if read else None

    async def notify(self, job: Job) -> None:
        """SAQ would publish each change of a job, and nothing listens."""

    async def _enqueue(self, job: Job) -> Job | None:
        keys = [job.id, *map(self.namespace, ("incomplete", "queued", "active")), job.abort_id]
        return job if await self._enqueue_with_ttl(keys=keys, args=[self.serialize(job), KEPT_S]) else None

    async def _update(self, job: Job, status: Status | None = None, **_: Any) -> None:
        job.status = status or job.status
        async with self.redis.pipeline(transaction=False) as pipeline:
            pipeline.set(job.id, self.serialize(job), ex=TAKEN_S)
            pipeline.expire(self.namespace("active"), KEPT_S)
            await pipeline.execute()

    async def disconnect(self) -> None:
        await self.redis.aclose()

    async def count_listeners(self) -> int | None:
        """Returns how many connections to this database sent BLMOVE last; None if Redis does not list them."""
        try:
            clients = await self.redis.client_list()
        except ResponseError:  # not every hosted Redis allows CLIENT LIST
            return None
        database = str(self.redis.connection_pool.connection_kwargs.get("db") or 0)
        return sum(client["cmd"] == "blmove" and client["db"] == database for client in clients)


class _JobsClient(Redis):
    """Keeps one connection for BLMOVE alone: no other command waits behind it, and CLIENT LIST shows who listens."""

    def __init__(self, url: str) -> None:
        super().__init__(connection_pool=connections(url, QUEUE_CONNECTIONS))
        self._listener = Redis.from_pool(connections(url, 1, timeout_s=LISTEN_S + OPERATION_TIMEOUT_S, retries=0))

    async def blmove(self, *args: Any, **options: Any) -> Any:
        return await self._listener.blmove(*args, **options)

    def pipeline(self, transaction: bool = True, shard_hint: str | None = None) -> "_Expiring":  # noqa: FBT001, FBT002 (redis-py's)
        return _Expiring(self.connection_pool, self.response_callbacks, transaction, shard_hint)

    async def aclose(self, close_connection_pool: bool | None = True) -> None:  # noqa: FBT001, FBT002 (redis-py's)
        await self._listener.aclose()
        await super().aclose(close_connection_pool)


class _Expiring(Pipeline):
    """Gives what SAQ writes in a transaction a TTL within it."""

    def execute_command(self, *args: Any, **options: Any) -> Any:
        queued = super().execute_command(*args, **options)
        if args[0] in _WRITES and "EX" not in args:
            return super().execute_command("EXPIRE", args[1], KEPT_S)
        return queued
