"""The loop of background jobs: a few at a time, given back when the process stops, and nothing that raises ends it."""

import asyncio
from dataclasses import dataclass, field

import pytest
from structlog.contextvars import merge_contextvars
from structlog.testing import capture_logs

from segue.domain.errors import AppError
from segue.turns.jobs.leased_loop import JobLoop
from tests.support.patience import PATIENCE_S

NEVER_S = 3600.0


@dataclass(slots=True)
class Errands:
    """Jobs that wait for `go`; those named in `errors` raise then."""

    due: list[str]
    errors: dict[str, Exception] = field(default_factory=dict)
    go: asyncio.Event = field(default_factory=asyncio.Event)
    started: list[str] = field(default_factory=list)
    given_back: dict[str, float] = field(default_factory=dict)
    moved: asyncio.Condition = field(default_factory=asyncio.Condition)
    unclaimable: AppError | None = None
    followers: dict[str, list[str]] = field(default_factory=dict)

    name = "errands"
    slots = 2

    async def claim(self) -> str | None:
        if (error := self.unclaimable) is not None:
            self.unclaimable = None
            async with self.moved:
                self.moved.notify_all()
            raise error
        return self.due.pop(0) if self.due else None

    async def run(self, job: str) -> bool:
        self.started.append(job)
        async with self.moved:
            self.moved.notify_all()
        await self.go.wait()
        if job in self.errors:
            raise self.errors[job]
        self.due += self.followers.pop(job, [])
        return bool(self.due)

    async def give_back(self, job: str, wait_s: float) -> None:
        self.given_back[job] = wait_s

    def ids(self, job: str) -> dict[str, str]:
        return {"errand": job}

    async def wait_for_start(self, count: int) -> None:
        async with asyncio.timeout(PATIENCE_S), self.moved:
            await self.moved.wait_for(lambda: len(self.started) >= count)


def storage_lost() -> AppError:
    return AppError("storage_unavailable", status=503, title="Storage is unavailable")


async def test_as_many_run_at_once_as_there_are_slots_and_the_next_follows_at_once() -> None:
    errands = Errands(["a", "b", "c"])
    async with JobLoop(errands, interval_s=NEVER_S):
        await errands.wait_for_start(2)
        assert errands.due == ["c"]
        errands.go.set()
        await errands.wait_for_start(3)


async def test_a_job_that_another_one_makes_due_follows_at_once() -> None:
    errands = Errands(["a"], followers={"a": ["b"]})
    errands.go.set()
    async with JobLoop(errands, interval_s=NEVER_S):
        await errands.wait_for_start(2)
    assert errands.started == ["a", "b"]


async def test_what_runs_when_the_process_stops_is_given_back() -> None:
    errands = Errands(["a", "b"])
    async with JobLoop(errands, interval_s=NEVER_S):
        await errands.wait_for_start(2)
    assert errands.given_back == {"a": 0, "b": 0}


async def test_a_job_for_which_its_owners_limit_has_no_room_is_due_again_when_there_is_room() -> None:
    full = AppError("rate_limited", status=429, title="Too much", extra={"retry_after_s": 90})
    errands = Errands(["a", "b", "c"], {"a": full})
    errands.go.set()
    async with JobLoop(errands, interval_s=NEVER_S):
        await errands.wait_for_start(3)
    assert errands.given_back == {"a": 90}


@pytest.mark.parametrize(
    ("error", "event"), [(storage_lost(), "job_failed"), (ZeroDivisionError(), "job_raised")], ids=str
)
async def test_a_job_that_raises_is_logged_with_its_ids_and_leaves_its_slot_to_the_next(
    error: Exception, event: str
) -> None:
    errands = Errands(["a", "b", "c", "d"], {"a": error, "b": error})
    errands.go.set()
    with capture_logs(processors=[merge_contextvars]) as logs:
        async with JobLoop(errands, interval_s=NEVER_S):
            await errands.wait_for_start(4)
    assert [(entry["event"], entry["errand"]) for entry in logs] == [(event, "a"), (event, "b")]
    assert errands.given_back == {}


async def test_a_claim_that_fails_is_logged_and_made_again_when_woken() -> None:
    errands = Errands(["a"], unclaimable=storage_lost())
    with capture_logs() as logs:
        async with JobLoop(errands, interval_s=NEVER_S) as loop:
            async with asyncio.timeout(PATIENCE_S), errands.moved:
                await errands.moved.wait_for(lambda: errands.unclaimable is None)
            loop.wake()
            await errands.wait_for_start(1)
    assert [entry["event"] for entry in logs] == ["watch_failed"]


async def test_it_looks_again_at_every_interval() -> None:
    errands = Errands([])
    errands.go.set()
    async with JobLoop(errands, interval_s=0.01):
        errands.due.append("a")
        await errands.wait_for_start(1)
