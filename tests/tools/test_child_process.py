"""What ends a process that reads outside data is found out by giving it work: another does that."""

import asyncio
import os
import signal
from contextlib import suppress

import psutil
import pytest

from segue.tools.child_process import AT_ONCE, in_child_process
from tests.support.patience import PATIENCE_S


async def pid() -> int:
    return await in_child_process(os.getpid, deadline_s=PATIENCE_S)


def sent(stop: signal.Signals) -> str:
    try:
        os.kill(os.getpid(), stop)
    except KeyboardInterrupt:
        return "interrupted"
    return "still here"


async def test_work_that_comes_as_an_idle_process_is_killed_is_done_by_another() -> None:
    for _ in range(5):
        idle = await pid()
        os.kill(idle, signal.SIGKILL)
        assert await pid() != idle


@pytest.mark.sweep
@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
async def test_a_stop_that_is_sent_to_all_processes_ends_no_work(stop: signal.Signals) -> None:
    assert await in_child_process(sent, stop, deadline_s=PATIENCE_S) == "still here"


async def test_starts_that_nobody_waits_for_any_more_leave_no_processes_behind() -> None:
    async def running() -> int:
        os.kill(await pid(), signal.SIGKILL)
        others = asyncio.all_tasks()
        for _ in range(10):
            with suppress(TimeoutError):
                async with asyncio.timeout(0.02):
                    await pid()
        await asyncio.gather(*(asyncio.all_tasks() - others))
        return len({child.pid for child in psutil.Process().children()} - before)

    before = {child.pid for child in psutil.Process().children()}
    assert await asyncio.to_thread(asyncio.run, running()) <= AT_ONCE
