"""How long `segue serve` takes until it listens, on data and embedded servers of its own, and its memory when idle."""

import asyncio
import time
from pathlib import Path
from statistics import median

import psutil

from bench.meter import resident_mb
from bench.processes import free_port, listens, started
from bench.report import Measure, count, deviation

STARTS = 3
SETTLES_S = 2.0


async def starts(program: Path, folder: Path) -> list[Measure]:
    """The first start makes the data and is not measured."""
    ready_s, used_s, megabytes = [], [], []
    for number in range(STARTS + 1):
        port, begun = free_port(), time.perf_counter()
        settings = {"DATA_DIR": str(folder / f"start-{program.parents[2].name}"), "PORT": str(port)}
        async with started(str(program), "serve", folder=folder, settings=settings) as process:
            await listens(process, port, folder)
            if number:
                ready_s.append(time.perf_counter() - begun)
                used_s.append(sum(psutil.Process(process.pid).cpu_times()[:2]))
                await asyncio.sleep(SETTLES_S)
                megabytes.append(resident_mb(process.pid))
    return [
        Measure("ready after `segue serve`", median(ready_s), "s", spread=deviation(ready_s), at_most=2),
        Measure("processor time until it is ready", median(used_s), "s", spread=deviation(used_s)),
        count("memory of an idle `segue serve`", median(megabytes), "MB", 0, at_most=150),
    ]
