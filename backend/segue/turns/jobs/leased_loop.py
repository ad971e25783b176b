"""The loop behind every background job: claims what is due under a lease and runs a few jobs at a time.

Does not know what a job is. A job's lease stands in its row, so what a process that dies has begun, another one claims
after the lease.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Generic, Protocol, Self, TypeVar

import structlog

from segue.domain.errors import AppError
from segue.domain.turn_errors import NO_ROOM

GIVE_BACK_TIMEOUT_S = 1.0

Job = TypeVar("Job")

log = structlog.get_logger()


class JobKind(Protocol[Job]):
    """`slots` is how many jobs run at once in a process. The three `log_…` are names of log events: for a claim that
    raised, for a job that raised an AppError, and for a job that raised anything else.
    """

    name: str
    slots: int
    log_not_claimed: str
    log_failed: str
    log_raised: str

    async def claim(self) -> Job | None:
        """The job that has been due for longest, leased to this process. None if none is due."""

    async def run(self, job: Job) -> bool:
        """Returns whether the end of this job may have made another one due."""

    async def give_back(self, job: Job, wait_s: float) -> None:
        """Ends the lease of a job that was cancelled, or for which its owner's limit has no room: it is due again in
        `wait_s` seconds.
        """

    def ids(self, job: Job) -> dict[str, str]:
        """The fields that identify the job in log lines."""


class JobLoop(Generic[Job]):
    """Runs the jobs of one kind while it is entered."""

    def __init__(self, kind: JobKind[Job], *, interval_s: float) -> None:
        self._kind = kind
        self._interval_s = interval_s
        self._woken = asyncio.Event()
        self._slots = asyncio.Semaphore(kind.slots)
        self._jobs: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        failed = self._kind.log_not_claimed
        looking = work_repeatedly(self._start_all_due, every_s=self._interval_s, woken=self._woken, log_failed=failed)
        self._looking = asyncio.create_task(looking, name=self._kind.name)
        return self

    async def __aexit__(self, *_: object) -> None:
        tasks = (self._looking, *self._jobs)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def wake(self) -> None:
        """A job may have fallen due: looks now, not at the next interval."""
        self._woken.set()

    async def _start_all_due(self) -> None:
        while (job := await self._claim()) is not None:
            task = asyncio.create_task(self._run(job), name=" ".join(self._kind.ids(job).values()))
            self._jobs.add(task)
            task.add_done_callback(self._ended)

    async def _claim(self) -> Job | None:
        """Waits for a slot first: a job that cannot start now is better claimed by another process."""
        await self._slots.acquire()
        job = None
        try:
            job = await self._kind.claim()
        finally:
            if job is None:
                self._slots.release()
        return job

    async def _run(self, job: Job) -> None:
        kind = self._kind
        try:
            if await kind.run(job):
                self._woken.set()
        except AppError as error:
            log.warning(kind.log_failed, code=error.code, **kind.ids(job))
            if error.code in NO_ROOM:
                await kind.give_back(job, float(error.extra["retry_after_s"]))
        except asyncio.CancelledError:
            with suppress(AppError, TimeoutError):
                async with asyncio.timeout(GIVE_BACK_TIMEOUT_S):
                    await kind.give_back(job, 0)
            raise

    def _ended(self, task: asyncio.Task[None]) -> None:
        """A job that raised is tried again after its lease."""
        self._jobs.discard(task)
        self._slots.release()
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error(self._kind.log_raised, error=type(error).__name__, exc_info=error)


async def work_repeatedly(
    work: Callable[[], Awaitable[None]], *, every_s: float, woken: asyncio.Event, log_failed: str
) -> None:
    """Calls `work` now, whenever `woken` is set, and every `every_s` seconds. Logs what it raises and goes on."""
    while True:
        woken.clear()
        [error] = await asyncio.gather(work(), return_exceptions=True)
        if error is not None:
            log.warning(log_failed, error=str(error), exc_info=None if isinstance(error, AppError) else error)
        with suppress(TimeoutError):
            async with asyncio.timeout(every_s):
                await woken.wait()
