"""What things cost on this machine: processor time and memory of processes, a flush to the disk."""

import os
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import psutil
from redis.asyncio import Redis

from bench.storage import looking_into
from segue.embedded.urls import ServerUrls

MEGABYTE: Final = 1_000_000
FLUSHES: Final = 200


class Cost:
    """Seconds of processor time of groups of processes since it was made or last asked."""

    def __init__(self, groups: Mapping[str, Sequence[int]]) -> None:
        self._groups = {name: [psutil.Process(pid) for pid in pids] for name, pids in groups.items()}
        self._before = self._now()

    def since(self) -> dict[str, float]:
        before, self._before = self._before, self._now()
        return {name: self._before[name] - before[name] for name in before}

    def _now(self) -> dict[str, float]:
        return {name: sum(map(_seconds, processes)) for name, processes in self._groups.items()}


def _seconds(process: psutil.Process) -> float:
    """Of a process, its children, and those that have ended."""
    return sum(_own_seconds(process))


def _own_seconds(process: psutil.Process) -> Iterator[float]:
    times = process.cpu_times()
    yield times.user + times.system + times.children_user + times.children_system
    for child in process.children():
        with suppress(psutil.NoSuchProcess):
            own = child.cpu_times()
            yield own.user + own.system


def resident_mb(pid: int) -> float:
    return float(psutil.Process(pid).memory_info().rss) / MEGABYTE


async def server_pids(servers: ServerUrls) -> dict[str, list[int]]:
    """PostgreSQL's first process, whose children the others are, and Redis'."""
    async with looking_into(servers) as database:
        postmaster = psutil.Process(await database.fetchval("SELECT pg_backend_pid()")).ppid()
    async with Redis.from_url(servers.redis_url, protocol=2) as redis:
        told = await redis.info("server")
    return {"PostgreSQL": [postmaster], "Redis": [told["process_id"]]}


def flushes_ms(folder: Path) -> list[float]:
    """What the disk under `folder` makes every commit wait."""
    times = []
    with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
        for _ in range(FLUSHES):
            file.write(bytes(8192))
            started = time.perf_counter()
            os.fsync(file.fileno())
            times.append((time.perf_counter() - started) * 1000)
    return times
