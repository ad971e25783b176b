"""The way of a message through the package: the functions that run between its request and its answer."""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import segue

PACKAGE = Path(segue.__file__).parent
TIMES = 4  # of the same message: what else the service does meanwhile is not in each of them
NOT_OF_SERVICE = "around"  # the scripted provider uses it

Way = frozenset[tuple[str, str]]  # a module, as its path in the package, and a function of it


async def way_of(send: Callable[[], Awaitable[object]]) -> Way:
    """Returns what runs for each of TIMES messages, of which the first has warmed every cache."""
    await send()
    return frozenset.intersection(*[await _passed(send) for _ in range(TIMES)])


async def _passed(send: Callable[[], Awaitable[object]]) -> Way:
    codes: set[CodeType] = set()
    in_background = asyncio.all_tasks()
    loop = asyncio.get_running_loop()

    def make_task(_: asyncio.AbstractEventLoop, work: Any, **options: Any) -> asyncio.Task[Any]:
        """What a task in the background begins, such as a look each two seconds, is no part of the way either."""
        made = asyncio.Task(work, loop=loop, **options)
        if asyncio.current_task() in in_background:
            in_background.add(made)
        return made

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and asyncio.current_task() not in in_background:
            codes.add(frame.f_code)

    loop.set_task_factory(make_task)
    sys.setprofile(note)
    try:
        await send()
    finally:
        sys.setprofile(None)
        loop.set_task_factory(None)
    ran = ((Path(code.co_filename), code.co_qualname) for code in codes)
    ours = ((path.relative_to(PACKAGE), name) for path, name in ran if path.is_relative_to(PACKAGE))
    return frozenset((path.as_posix(), name) for path, name in ours if path.parts[0] != NOT_OF_SERVICE)


def modules(way: Way) -> set[str]:
    return {module for module, _ in way}


def written(way: Way) -> str:
    """Returns the functions by module, a line each, for those who look where a message goes."""
    functions: dict[str, list[str]] = {}
    for module, name in sorted(way):
        functions.setdefault(module, []).append(name)
    lines = (f"{module}: {', '.join(names)}" for module, names in functions.items())
    return "\n".join([f"{len(functions)} modules, {len(way)} functions", *lines])
