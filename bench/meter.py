"""What processes and stores used: processor time, memory, Redis commands, transactions, rows, the disk's delay."""

import os
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import asyncpg
import psutil
from redis.asyncio import Redis

from segue.around.embedded.server_urls import ServerUrls

COMMANDS = "Redis commands"
FLUSHES = 200
TABLES = """
SELECT table_name FROM information_schema.columns WHERE table_schema = 'public' AND column_name = 'session_id'
"""
SIZE = "SELECT count(*) AS rows, coalesce(sum(pg_column_size(t)), 0) AS bytes FROM {table} t WHERE session_id = $1"
TEXT = "SELECT coalesce(sum(octet_length(content)), 0) FROM messages WHERE session_id = $1"
TRANSACTIONS = "SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()"
WAITS = """
SELECT extract(epoch FROM started_at - created_at) * 1000 AS ms FROM turns
WHERE session_id = $1 AND started_at IS NOT NULL ORDER BY seq
"""


@dataclass(frozen=True, slots=True)
class Meter:
    """Measures seconds of processor time of groups of processes, and the commands that Redis gets."""

    redis: Redis
    groups: Mapping[str, Sequence[psutil.Process]]

    @asynccontextmanager
    async def adding_to(self, used: Counter[str]) -> AsyncIterator[None]:
        before = await self._now()
        yield
        used.update({name: value - before[name] for name, value in (await self._now()).items()})
        used[COMMANDS] -= 1  # the question itself

    async def _now(self) -> dict[str, float]:
        seconds = {name: sum(map(_seconds, processes)) for name, processes in self.groups.items()}
        return seconds | {COMMANDS: (await self.redis.info("stats"))["total_commands_processed"]}


def processor_ms(used: Counter[str], turns: int) -> dict[str, float]:
    return {name: value * 1000 / turns for name, value in used.items() if name != COMMANDS}


def _seconds(process: psutil.Process) -> float:
    """Returns the processor time of a process, of its children, and of its children that have ended."""
    return sum(_own_seconds(process))


def _own_seconds(process: psutil.Process) -> Iterator[float]:
    times = process.cpu_times()
    yield times.user + times.system + times.children_user + times.children_system
    for child in process.children():
        with suppress(psutil.NoSuchProcess):
            own = child.cpu_times()
            yield own.user + own.system


def resident_mb(pid: int) -> float:
    return float(psutil.Process(pid).memory_info().rss) / 1_000_000


@asynccontextmanager
async def database_of(stores: ServerUrls) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(stores.database_url.replace("postgresql+asyncpg://", "postgresql://"))
    try:
        yield connection
    finally:
        await connection.close()


@asynccontextmanager
async def meter_of(stores: ServerUrls, pids: Mapping[str, Sequence[int]]) -> AsyncIterator[Meter]:
    """Yields a meter of these groups of processes, of PostgreSQL and of Redis."""
    async with database_of(stores) as database:
        postmaster = psutil.Process(await database.fetchval("SELECT pg_backend_pid()")).ppid()
    async with Redis.from_url(stores.redis_url, protocol=2) as redis:
        servers = {"PostgreSQL": [postmaster], "Redis": [(await redis.info("server"))["process_id"]]}
        yield Meter(redis, {name: [*map(psutil.Process, group)] for name, group in (dict(pids) | servers).items()})


async def stored(database: asyncpg.Connection, session_id: str) -> tuple[int, int, int]:
    """Returns the rows of a session, their bytes, and how many of these are text of its messages."""
    tables = [record["table_name"] for record in await database.fetch(TABLES)]
    sizes = [await database.fetchrow(SIZE.format(table=table), session_id) for table in tables]
    text: int = await database.fetchval(TEXT, session_id)
    return sum(size["rows"] for size in sizes), sum(size["bytes"] for size in sizes), text


async def transactions(database: asyncpg.Connection) -> int:
    """Returns how many transactions have been committed; a statement outside of one counts as one."""
    committed: int = await database.fetchval(TRANSACTIONS)
    return committed


async def waits_ms(database: asyncpg.Connection, session_id: str) -> list[float]:
    """Returns, for each turn, the time from its request (the API process' clock) to its start (PostgreSQL's clock)."""
    return [float(record["ms"]) for record in await database.fetch(WAITS, session_id)]


def flushes_ms(folder: Path) -> list[float]:
    """Returns how long the disk under `folder` makes a commit wait."""
    times = []
    with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
        for _ in range(FLUSHES):
            file.write(bytes(8192))
            started = time.perf_counter()
            os.fsync(file.fileno())
            times.append((time.perf_counter() - started) * 1000)
    return times
