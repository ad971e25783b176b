"""Many sessions at once on one process or several, and what a process weighs after ten thousand turns."""

from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from statistics import median

from bench.cost import Cost, resident_mb, server_pids
from bench.load import conversations, turns_of
from bench.measure import Left, Measure, p99
from bench.processes import Surroundings, knows, segue, worker

SESSIONS = (16, 64)
SOAK_SESSIONS = 16
SOAK_STEP_S = 2
SPLIT = "API + worker"
GOAL = 90  # turns a second of GOAL_OF
GOAL_OF = "16 sessions, 2 × serve"


@dataclass(frozen=True, slots=True)
class Group:
    """Segue processes that share the stores: the ports of those that listen, the pids of all."""

    name: str
    ports: Sequence[int]
    pids: Sequence[int]


@dataclass(frozen=True, slots=True)
class Throughput:
    """`cost_ms` is processor time a turn, by kind of process."""

    sessions: int
    group: str
    turns_per_s: float
    latencies: list[float]
    cost_ms: dict[str, float]

    @property
    def name(self) -> str:
        return f"{self.sessions} sessions, {self.group}"


async def all_loads(within: Surroundings, *, seconds: float) -> tuple[list[Throughput], list[Left]]:
    """One process, two, and the API apart from the worker, each with few sessions and with many."""
    loads = [load for count in (1, 2) for load in await _loads(within, several(within, count), seconds=seconds)]
    if not (await knows("serve", "--no-worker") and await knows("worker")):
        return loads, [Left(SPLIT, "this Segue has no `segue worker`")]
    return loads + await _loads(within, split(within), seconds=seconds), []


async def _loads(
    within: Surroundings, starting: AbstractAsyncContextManager[Group], *, seconds: float
) -> list[Throughput]:
    async with starting as group:
        return [await throughput(within, group, sessions=sessions, seconds=seconds) for sessions in SESSIONS]


@asynccontextmanager
async def several(within: Surroundings, count: int) -> AsyncIterator[Group]:
    async with AsyncExitStack() as stack:
        serving = [await stack.enter_async_context(segue(within)) for _ in range(count)]
        yield Group(f"{count} × serve", [one.port for one in serving], [one.process.pid for one in serving])


@asynccontextmanager
async def split(within: Surroundings) -> AsyncIterator[Group]:
    async with segue(within, "--no-worker") as serving, worker(within) as working:
        yield Group(SPLIT, [serving.port], [serving.process.pid, working.pid])


async def throughput(within: Surroundings, group: Group, *, sessions: int, seconds: float) -> Throughput:
    async with conversations(group.ports, sessions) as talking:
        cost = Cost({"segue": group.pids, **await server_pids(within.servers), "provider": [within.provider.pid]})
        latencies = await turns_of(talking, seconds=seconds)
        spent = cost.since()
    cost_ms = {name: used * 1000 / len(latencies) for name, used in spent.items()}
    return Throughput(sessions, group.name, len(latencies) / seconds, latencies, cost_ms)


async def soak(within: Surroundings, *, turns: int) -> list[tuple[int, float]]:
    """How many megabytes a `segue serve` held after how many turns."""
    weights: list[tuple[int, float]] = []
    async with segue(within) as serving, conversations([serving.port], SOAK_SESSIONS) as talking:
        ended = SOAK_SESSIONS
        while ended < turns:
            ended += len(await turns_of(talking, seconds=SOAK_STEP_S))
            weights.append((ended, resident_mb(serving.process.pid)))
    return weights


def throughput_measures(loads: Iterable[Throughput]) -> Iterator[Measure]:
    for load in loads:
        goal, aim = (GOAL, "aim 140") if load.name == GOAL_OF else (None, "")
        yield Measure(load.name, load.turns_per_s, "turns/s", 0, at_least=goal, aim=aim)
        yield Measure(f"{load.name}: time of a turn, median", median(load.latencies), "ms", 0)
        yield Measure(f"{load.name}: time of a turn, p99", p99(load.latencies), "ms", 0)


def soak_measures(weights: list[tuple[int, float]]) -> Iterator[Measure]:
    turns, last = weights[-1]
    half = next(megabytes for ended, megabytes in weights if ended >= turns / 2)
    yield Measure(f"memory of `segue serve` after {turns:,} turns", last, "MB", 0, at_most=250)
    yield Measure("the same ÷ after half of them", last / half, digits=2, at_most=1.05, aim="flat")
