"""The way turns travel between processes: SAQ on Redis. It delivers and decides nothing.

A job says in which session a turn may be waiting. Lost, doubled or late jobs do no harm: Postgres decides who runs
what, and `recovery.py` finds what was lost on its way.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import structlog
from redis.asyncio import Redis
from redis.exceptions import RedisError, ResponseError
from saq.job import Job
from saq.queue.redis import RedisQueue
from saq.worker import Worker

from segue.db.redis import OPERATION_TIMEOUT_S, QUEUE_CONNECTIONS, connections

NAME = "segue"
JOB = "run_turns"
LISTEN_S = 5
JOB_TIMEOUT_S = 3600  # then the sweep takes a job for one whose worker died
SWEEP_EVERY_S = 300
PAUSE_S = 1.0  # between two looks for a Redis that is away

RunTurns = Callable[[str], Awaitable[None]]

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class QueueFacts:
    """`workers` are the processes that take jobs, told by their connections; None where Redis does not say."""

    jobs_waiting: int
    jobs_taken: int
    workers: int | None


async def look_at_queue(url: str) -> QueueFacts | None:
    """None where Redis cannot be reached."""
    jobs = _Jobs(url)
    try:
        async with asyncio.timeout(OPERATION_TIMEOUT_S):
            waiting, taken = await jobs.count("queued"), await jobs.count("active")
            return QueueFacts(waiting, taken, await jobs.listeners())
    except (RedisError, OSError, TimeoutError):
        return None
    finally:
        with suppress(RedisError, OSError):
            await jobs.disconnect()


class TurnQueue:
    """Sends turns out, and takes them in with as many as `concurrency` at a time; with 0 it only sends.

    `run_turns(session_id)` returns when this process has nothing more to do in that session.
    """

    def __init__(self, url: str, run_turns: RunTurns, *, concurrency: int) -> None:
        self._jobs = _Jobs(url)
        self._run_turns = run_turns
        self._worker = _TurnWorker(self._jobs, [(JOB, self._run)], concurrency=concurrency) if concurrency else None
        self._taking: asyncio.Task[None] | None = None

    def start(self) -> None:
        if self._worker is not None:
            self._taking = asyncio.create_task(self._worker.start(), name="the queue of turns")

    @property
    def alive(self) -> bool:
        return self._taking is None or not self._taking.done()

    @property
    def away(self) -> bool:
        """Whether Redis was lost a moment ago: nobody has to find that out again."""
        return self._jobs.away

    @property
    def degraded(self) -> bool:
        return self._jobs.degraded

    @property
    def outages(self) -> int:
        return self._jobs.outages

    async def waiting(self) -> int | None:
        """The jobs that nobody has taken; None where Redis cannot be asked."""
        if self.away:
            return None
        try:
            async with asyncio.timeout(OPERATION_TIMEOUT_S):
                return await self._jobs.count("queued")
        except (RedisError, OSError, TimeoutError):
            return None

    async def send(self, session_id: str, turn_id: str, *, attempt: int = 0) -> bool:
        """False where Redis cannot be reached; then somebody has to run the turn without it."""
        if self.away:
            return False
        job = Job(JOB, kwargs={"session_id": session_id}, key=f"{turn_id}:{attempt}", timeout=JOB_TIMEOUT_S, ttl=-1)
        try:
            async with asyncio.timeout(OPERATION_TIMEOUT_S):
                await self._jobs.enqueue(job)
        except (RedisError, OSError, TimeoutError) as error:
            self._jobs.lost(error)
            return False
        self._jobs.back()
        return True

    async def stop_taking(self) -> None:
        """What was being delivered goes back; what runs is left alone."""
        if self._taking is not None:
            self._taking.cancel()
            with suppress(asyncio.CancelledError):
                await self._taking
            self._taking = None

    async def close(self) -> None:
        await self.stop_taking()
        with suppress(RedisError, OSError):
            await self._jobs.disconnect()

    async def _run(self, _context: dict[str, Any], *, session_id: str) -> None:
        await self._run_turns(session_id)


class _Jobs(RedisQueue):
    """SAQ's queue on one blocking connection: it would hold one for each job a process can run."""

    def __init__(self, url: str) -> None:
        super().__init__(Redis.from_pool(connections(url, QUEUE_CONNECTIONS)), name=NAME)
        self._listener = Redis.from_pool(connections(url, 1, timeout_s=LISTEN_S + OPERATION_TIMEOUT_S, retries=0))
        self._turnstile = asyncio.Lock()
        self._away_until = 0.0
        self._degraded = False
        self.outages = 0

    @property
    def away(self) -> bool:
        return asyncio.get_running_loop().time() < self._away_until

    @property
    def degraded(self) -> bool:
        return self._degraded

    def lost(self, error: Exception) -> None:
        if not self._degraded:
            log.warning("queue_degraded", error=type(error).__name__)
            self.outages += 1
        self._degraded = True
        self._away_until = asyncio.get_running_loop().time() + PAUSE_S

    def back(self) -> None:
        if self._degraded:
            log.info("queue_recovered")
        self._degraded = False

    async def dequeue(self, timeout: float = 0.0, poll_interval: float = 0.0) -> Job | None:  # noqa: ARG002, ASYNC109 (SAQ's)
        async with self._turnstile:
            try:
                job_id = await self._listener.blmove(self._queued, self._active, LISTEN_S, "LEFT", "RIGHT")
            except (RedisError, OSError) as error:
                self.lost(error)
                await asyncio.sleep(PAUSE_S)
                return None
            self.back()
        return await self._get_job_by_id(job_id) if job_id else None

    async def listeners(self) -> int | None:
        """The connections of this database whose last command was to wait for a job."""
        try:
            clients = await self.redis.client_list()
        except ResponseError:  # not every hosted Redis lets itself be asked
            return None
        database = str(self.redis.connection_pool.connection_kwargs.get("db") or 0)
        return sum(client["cmd"] == "blmove" and client["db"] == database for client in clients)

    async def notify(self, job: Job) -> None:
        """Nobody listens for the fate of a job."""

    async def disconnect(self) -> None:
        await self._listener.aclose()
        await self.redis.aclose()


class _TurnWorker(Worker[Any]):
    """SAQ's worker without what it would do beside running jobs: its signals, its statistics, its own aborts."""

    SIGNALS: list[Any] = []  # noqa: RUF012 (SAQ's)

    async def process(self) -> bool:
        try:
            return await super().process()
        except (RedisError, OSError):  # the job could not be closed; the sweep will
            return False

    async def upkeep(self) -> list[asyncio.Task[None]]:
        return [asyncio.create_task(self._sweep(), name="jobs of workers that died")]

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_EVERY_S)
            with suppress(RedisError, OSError):
                await self.queue.sweep(SWEEP_EVERY_S)
