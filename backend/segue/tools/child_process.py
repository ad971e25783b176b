"""Runs work on outside data in a child process that ends at a deadline. A thread would not do: reading JSON, regular
expressions and collecting garbage hold the interpreter, and the event loop waits.
"""

import asyncio
import gc
import os
import resource
import signal
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, TypeVar
from weakref import WeakValueDictionary

import anyio
import anyio.to_process
from anyio.lowlevel import RunVar

from segue.domain.identity import current_user

LARGE: Final = 250_000  # characters or bytes; what has fewer is read in some milliseconds
MANY: Final = 5_000  # lists and objects
MAX_MEMORY_BYTES: Final = 2 * 2**30  # of a child
READ_S: Final = 20.0  # for a result of megabytes
AT_ONCE: Final = min(os.cpu_count() or 1, 2)

WorkResult = TypeVar("WorkResult")
_places: RunVar[tuple[anyio.CapacityLimiter, WeakValueDictionary[str, asyncio.Semaphore]]] = RunVar("segue_apart")


class TooMuch(Exception):
    """The work needs more time or memory than it may, or a process that does not start; the message says which."""


async def in_child_process(
    work: Callable[..., WorkResult], *args: Any, deadline_s: float, needs: Callable[..., object] | None = None
) -> WorkResult:
    """Returns what `work` returns: a function of a module, since it and all it takes and gives are pickled. AT_ONCE
    run, and others wait in line, of one user as many: another user comes right behind these. To import `work`, and
    what it `needs`, does not count. Raises TooMuch, and as `work` does.
    """
    if (known := _places.get(None)) is None:
        _places.set(known := (anyio.CapacityLimiter(AT_ONCE), WeakValueDictionary()))
    places, of_users = known
    async with of_users.setdefault(current_user.get(), asyncio.Semaphore(AT_ONCE)), places:
        try:
            await asyncio.shield(_prepared(work, needs))  # anyio leaves a process behind whose start is cancelled
        except (OSError, anyio.BrokenWorkerProcess) as error:
            raise TooMuch("needs a process that this machine does not start") from error
        try:
            with anyio.fail_after(deadline_s):
                return await anyio.to_process.run_sync(_bounded, work, args, deadline_s, cancellable=True)
        except TimeoutError as error:
            raise TooMuch(f"takes longer than {deadline_s:g} s") from error
        except anyio.BrokenWorkerProcess as error:
            raise TooMuch("ends the process that does it") from error
        except MemoryError as error:
            raise TooMuch("needs too much memory") from error


def has_many(json: str) -> bool:
    """Whether a JSON text may hold so many lists and objects that reading it takes long."""
    return json.count("[") + json.count("{") > MANY


async def _prepared(*imported: object) -> None:
    """An idle process that has just been killed may still be taken for a running one, of which there are AT_ONCE."""
    for _ in range(AT_ONCE):
        with suppress(anyio.BrokenWorkerProcess):
            await anyio.to_process.run_sync(_prepare, *imported)
            return
    await anyio.to_process.run_sync(_prepare, *imported)


def _prepare(*_: object) -> None:
    """Runs in the child, which imports what it is given. JSON is no garbage while it is read. Signals that a terminal
    or a supervisor sends to all processes are for the parent, which answers what runs before it ends its children.
    """
    for stop in (signal.SIGINT, signal.SIGTERM):
        signal.signal(stop, signal.SIG_IGN)
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    most = MAX_MEMORY_BYTES if hard == resource.RLIM_INFINITY else min(hard, MAX_MEMORY_BYTES)
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    if gc.isenabled():
        gc.freeze()
        gc.disable()


def _bounded(work: Callable[..., WorkResult], args: tuple[Any, ...], deadline_s: float) -> WorkResult:
    """Runs in the child."""
    signal.alarm(int(deadline_s) + 1)  # for a parent that was killed
    try:
        return work(*args)
    finally:
        signal.alarm(0)
        gc.collect()
