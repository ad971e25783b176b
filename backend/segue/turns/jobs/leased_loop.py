"""The loop behind every background job: claims due jobs, and runs a few at a time. A job's lease is in its row, so if a
process dies, another one claims its jobs after the lease.
"""

import asyncio
from contextlib import suppress
from typing import Generic, Protocol, TypeVar

from structlog.contextvars import bound_contextvars

from segue.domain.errors import NO_ROOM, AppError
from segue.log import log
from segue.watch import LOOK_EVERY_S, Watch, end_tasks

Job = TypeVar("Job")


class JobKind(Protocol[Job]):
    """`slots` is how many jobs run at once in a process. Log lines have the `name`."""

    name: str
    slots: int

    async def claim(self) -> Job | None:
        """The job that has been due for longest, leased to this process. None if none is due."""

    async def run(self, job: Job) -> bool:
        """Returns whether the end of this job may have made another one due."""

    async def give_back(self, job: Job, wait_s: float) -> None:
        """Ends the lease of a job that was cancelled or has no room: it is due again in `wait_s` seconds."""

    def ids(self, job: Job) -> dict[str, str]:
        """The fields that identify the job in all log lines."""


class JobLoop(Watch, Generic[Job]):
    """Runs the jobs of one kind while it is entered. `wake` says that a job may have fallen due."""

    def __init__(self, kind: JobKind[Job], *, interval_s: float) -> None:
        super().__init__(kind.name, self._start_all_due, every_s=interval_s)
        if interval_s > LOOK_EVERY_S:  # else it looks soon without
            self.wake()
        self._kind = kind
        self._slots = asyncio.Semaphore(kind.slots)
        self._jobs: set[asyncio.Task[None]] = set()

    async def __aexit__(self, *_: object) -> None:
        await super().__aexit__()
        await end_tasks(*self._jobs)

    async def _start_all_due(self) -> None:
        while (job := await self._claim()) is not None:
            with bound_contextvars(**self._kind.ids(job)):
                task = asyncio.create_task(self._run(job), name=" ".join(self._kind.ids(job).values()))
                task.add_done_callback(self._ended)
            self._jobs.add(task)

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
                self.wake()
        except AppError as error:
            log.warning("job_failed", job=kind.name, code=error.code)
            if error.code in NO_ROOM:
                await kind.give_back(job, float(error.extra["retry_after_s"]))
        except asyncio.CancelledError:
            with suppress(AppError, TimeoutError):
                async with asyncio.timeout(1.0):
                    await kind.give_back(job, 0)
            raise

    def _ended(self, task: asyncio.Task[None]) -> None:
        """A job that raised is tried again after its lease."""
        self._jobs.discard(task)
        self._slots.release()
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("job_raised", job=self._kind.name, error=type(error).__name__, exc_info=error)
