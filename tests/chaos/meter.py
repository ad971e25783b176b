"""What processes and stores hold, as a table of samples, and whether it stays flat."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, fields
from statistics import median

import psutil

from tests.chaos.site import Site

CONNECTIONS = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'segue'"
OPEN = "SELECT count(*) FROM turns WHERE status IN ('queued', 'running')"
TURNS = "SELECT 'segue:events:' || session_id || ':' || id FROM turns"
# What the last quarter of a run may hold above the first: a part of it, and so much.
MAY_GROW = 0.15
SLACK = {"rss_mb": 15, "descriptors": 20, "threads": 4, "redis_keys": 60, "redis_mb": 2, "connections": 4}
FEWEST = 24  # samples: instances that are killed every other second are small at first


@dataclass(frozen=True, slots=True)
class Sample:
    """Of instances the largest. `redis_keys` are those besides one log of events for each turn that there is."""

    seconds: float
    turns: int
    open: int
    rss_mb: float
    descriptors: int
    threads: int
    redis_keys: int
    redis_mb: float
    connections: int


async def sample(site: Site, started: float) -> Sample:
    """Also looks for keys without a TTL."""
    processes = [psutil.Process(each.process.pid) for each in site.instances if each.process is not None]
    async with site.stores() as stores:
        if everlasting := set(await stores.everlasting()):
            site.ledger.wrong(f"no TTL: {sorted(everlasting)}")
        logs = {row[0] for row in await stores.database.fetch(TURNS)}
        return Sample(
            seconds=time.monotonic() - started,
            turns=sum(turn.outcome is not None for turn in site.ledger.turns),
            open=await stores.database.fetchval(OPEN),
            rss_mb=max((each.memory_info().rss / 1e6 for each in processes), default=0),
            descriptors=max((each.num_fds() for each in processes), default=0),
            threads=max((each.num_threads() for each in processes), default=0),
            redis_keys=len(set(await stores.keys()) - logs),
            redis_mb=(await stores.redis.info("memory"))["used_memory"] / 1e6,
            connections=await stores.database.fetchval(CONNECTIONS),
        )


HEADER = "  ".join(f"{field.name:>11}" for field in fields(Sample))


def row(shown: Sample) -> str:
    return "  ".join(f"{getattr(shown, field.name):>11.0f}" for field in fields(Sample))


def growth(samples: Sequence[Sample]) -> tuple[list[str], list[str]]:
    """Returns a table of first and last quarter, after a warm-up, and what has grown."""
    samples = samples[len(samples) // 10 :]
    quarter = len(samples) // 4
    if len(samples) < FEWEST:
        return [f"too few samples to compare: {len(samples)}"], []
    table, grown = [f"{'median of':>12}  {'first':>9}  {'last quarter':>12}"], []
    for name, slack in SLACK.items():
        first, last = (median(getattr(each, name) for each in part) for part in (samples[:quarter], samples[-quarter:]))
        table.append(f"{name:>12}  {first:>9.1f}  {last:>12.1f}")
        if last > first * (1 + MAY_GROW) + slack:
            grown.append(f"grows: {name}, from {first:.1f} to {last:.1f}")
    return table, grown
