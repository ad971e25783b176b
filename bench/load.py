"""Many sessions at once on one process or several, and the memory of a process that has run many turns."""

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from statistics import median

from bench.client import Session, conversations, turns_of
from bench.meter import Meter, meter_of, processor_ms, resident_mb
from bench.processes import BareCaller, Group
from bench.report import Measure, Results, count, deviation, p99

BARE_CALLS = 20
GOALS = {"16 sessions, 1 × serve": 160, "16 sessions, 2 × serve": 230}  # turns a second


@dataclass(slots=True)
class Load:
    """Sessions on processes. `rates` are turns a second of each round, `ratios` the same ÷ bare calls a second."""

    results: Results
    group: Group
    sessions: list[Session]
    meter: Meter
    used: Counter[str] = field(default_factory=Counter)
    rates: list[float] = field(default_factory=list)
    ratios: list[float] = field(default_factory=list)
    latencies: list[float] = field(default_factory=list)
    megabytes: list[float] = field(default_factory=list)

    @property
    def name(self) -> str:
        return f"{len(self.sessions)} sessions, {self.group.name}"

    async def round(self, bare: BareCaller, *, seconds: float) -> None:
        bare_ms = median(await bare.milliseconds(BARE_CALLS))
        async with self.meter.adding_to(self.used):
            turns, latencies = await turns_of(self.sessions, seconds=seconds)
        self.rates.append(turns / seconds)
        self.ratios.append(self.rates[-1] * bare_ms / 1000)
        self.latencies += latencies
        self.megabytes.append(resident_mb(self.group.pids[0]))

    def record(self) -> None:
        noise = deviation(self.ratios) / median(self.ratios)
        rate, spread, relative = median(self.rates), deviation(self.rates), median(self.ratios)
        slowest = p99(self.latencies)
        self.results.measures += [
            Measure(
                self.name, rate, "turns/s", 0, spread, at_least=GOALS.get(self.name),
                compared=relative, noise=noise, more_is_better=True,
            ),
            Measure(f"{self.name}: p99 of a turn", slowest, "ms", 0),
            Measure(f"{self.name}: p99 ÷ median of a turn", slowest / median(self.latencies), at_most=3),
        ]  # fmt: skip
        self.results.processor_ms[self.name] = processor_ms(self.used, len(self.latencies))

    def record_memory(self) -> None:
        half = self.megabytes[len(self.megabytes) // 2]
        self.results.measures += [
            count("memory of `segue serve` at the end", self.megabytes[-1], "MB", 0, at_most=250),
            count("the same ÷ half-way", self.megabytes[-1] / half, digits=2, at_most=1.05),
        ]


@asynccontextmanager
async def load(results: Results, group: Group, *, sessions: int, kind: type[Session] = Session) -> AsyncIterator[Load]:
    async with (
        meter_of(group.stores, {"server": group.pids}) as meter,
        conversations(group.ports, sessions, kind) as talking,
    ):
        yield Load(results, group, talking, meter)
