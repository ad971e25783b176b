"""Measures with their noise and their targets, as tables, as JSON, and against an earlier result. Measures nothing."""

import json
import math
import os
import platform
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

import psutil

ROOT = Path(__file__).resolve().parents[1]
OPENED, CLOSED = "<!-- make bench -->\n", "<!-- /make bench -->"
MET = {True: "yes", False: "**no**", None: ""}
LEAST_NOISE = 0.05  # two runs of the same code differ by this much, however calm each of them was


@dataclass(frozen=True, slots=True)
class Measure:
    """`spread` is the median absolute deviation of the batches, in `unit`.

    `compared` is the number that an earlier result is compared with: a ratio to the bare calls of the same minutes if
    `value` depends on the machine, else `value`; None if a comparison says nothing. `noise` is its relative spread.
    """

    name: str
    value: float
    unit: str = ""
    digits: int = 1
    spread: float | None = None
    at_most: float | None = None
    at_least: float | None = None
    compared: float | None = None
    noise: float = 0
    more_is_better: bool = False

    @property
    def met(self) -> bool | None:
        if self.at_most is not None:
            return self.value <= self.at_most
        return None if self.at_least is None else self.value >= self.at_least

    @property
    def target(self) -> str:
        bounds = (("≤", self.at_most), ("≥", self.at_least))
        return ", ".join(f"{sign} {bound:g}" for sign, bound in bounds if bound is not None)


@dataclass(slots=True)
class Results:
    """What one version of Segue did. `left_out` has a reason by the name of what was not measured."""

    machine: str
    sizes: str
    measures: list[Measure] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    processor_ms: dict[str, dict[str, float]] = field(default_factory=dict)
    rounds_ms: dict[str, list[float]] = field(default_factory=dict)
    profile: list[str] = field(default_factory=list)
    prompt_parts: dict[str, list[float]] = field(default_factory=dict)


def deviation(values: Sequence[float]) -> float:
    """Returns the median absolute deviation."""
    middle = median(values)
    return median(abs(value - middle) for value in values)


def p99(values: Sequence[float]) -> float:
    return sorted(values)[math.ceil(len(values) * 0.99) - 1]


def ratio(name: str, values: Sequence[float], *, at_most: float | None = None) -> Measure:
    """Returns the measure of a ratio to the bare calls, of which `values` has one a round."""
    value, spread = median(values), deviation(values)
    return Measure(name, value, digits=2, spread=spread, at_most=at_most, compared=value, noise=spread / value)


def growth(name: str, values: Sequence[float], *, at_most: float | None = None) -> Measure:
    """Returns the last quarter of `values` ÷ the first."""
    size = max(len(values) // 4, 1)
    value = median(values[-size:]) / median(values[:size])
    return Measure(name, value, digits=2, at_most=at_most, compared=value, noise=deviation(values) / median(values))


def count(name: str, value: float, unit: str = "", digits: int = 1, *, at_most: float | None = None) -> Measure:
    """Returns the measure of what no noise of the machine changes."""
    return Measure(name, value, unit, digits, at_most=at_most, compared=value)


def compare(before: Iterable[Measure], now: Iterable[Measure]) -> Iterator[tuple[str, float, float]]:
    """Yields name, change and noise of every measure that both have; a change above 0 is for the worse."""
    earlier = {measure.name: measure for measure in before}
    for measure in now:
        other = earlier.get(measure.name)
        if other is None or not measure.compared or not other.compared:
            continue
        change = measure.compared / other.compared - 1
        noise = max(measure.noise, other.noise, LEAST_NOISE)
        yield measure.name, -change if measure.more_is_better else change, noise


def regressions(before: Results | None, now: Results) -> Iterator[str]:
    if before is None:
        yield "There is no earlier result to compare with."
        return
    changes = list(compare(before.measures, now.measures))
    worse = [f"- **{name}: {change:+.0%}**, noise ±{noise:.0%}" for name, change, noise in changes if change > noise]
    yield f"Compared with: {before.machine}\n"
    yield from worse or [f"None of {len(changes)} measures became worse by more than its noise."]


def table(measures: Iterable[Measure], left_out: Mapping[str, str]) -> Iterator[str]:
    yield "| measure | median | ± | target | met |"
    yield "|---|---:|---:|---:|---|"
    for measure in measures:
        value = f"{measure.value:,.{measure.digits}f} {measure.unit}".strip()
        spread = "" if measure.spread is None else f"{measure.spread:,.{max(measure.digits, 1)}f}"
        yield f"| {measure.name} | {value} | {spread} | {measure.target} | {MET[measure.met]} |"
    for name, reason in left_out.items():
        yield f"| {name} | left out: {reason} | | | |"


def processor_table(processor_ms: Mapping[str, Mapping[str, float]]) -> Iterator[str]:
    """Yields a row for each load, with a column for each kind of process: milliseconds a turn."""
    columns = list(dict.fromkeys(name for row in processor_ms.values() for name in row))
    yield f"| load | {' | '.join(columns)} |"
    yield f"|---|{'---:|' * len(columns)}"
    for load, row in processor_ms.items():
        yield f"| {load} | {' | '.join(f'{row[name]:.2f}' if name in row else '' for name in columns)} |"


def chart(series: Mapping[str, Sequence[float]], title: str, unit: str, digits: int = 1) -> Iterator[str]:
    """Yields a Mermaid chart with a line for each series."""
    yield "```mermaid\nxychart-beta"
    yield f'  title "{title}: {", ".join(series)}"'
    yield f'  y-axis "{unit}" 0 --> {math.ceil(max(max(line) for line in series.values()))}'
    yield from (f"  line [{', '.join(f'{value:.{digits}f}' for value in line)}]" for line in series.values())
    yield "```"


def page(results: Results, before: Results | None) -> Iterator[str]:
    yield "# What a turn costs\n"
    yield f"Measured by `make bench`: {results.machine}\n"
    yield f"{results.sizes} ± is the median absolute deviation of the rounds.\n"
    yield from table(results.measures, results.left_out)
    yield "\n## Worse than the last kept result\n"
    yield from regressions(before, results)
    if results.processor_ms:
        yield "\n## Processor time, ms a turn\n"
        yield from processor_table(results.processor_ms)
    if results.rounds_ms:
        yield "\n## Over one session\n"
        yield from chart(results.rounds_ms, "ms, a median of each round", "ms")
    if results.prompt_parts:
        yield "\n## What a request holds, in a session with tools\n"
        yield from chart(results.prompt_parts, "tokens of a turn's first request, each on top of the last", "tokens", 0)
    if results.profile:
        yield "\n## Where a plain turn's processor time goes\n"
        yield from results.profile


def side_by_side(other: Results, this: Results) -> Iterator[str]:
    """Yields a table of two versions that were measured in the same minutes."""
    earlier = {measure.name: measure for measure in other.measures}
    changes = {name: (change, noise) for name, change, noise in compare(other.measures, this.measures)}
    yield "| measure | other | this | for the worse | noise |"
    yield "|---|---:|---:|---:|---:|"
    for measure in this.measures:
        if (old := earlier.get(measure.name)) is None:
            continue
        change, noise = changes.get(measure.name, (None, None))
        said = "||" if change is None else f"{change:+.1%} | {noise:.0%} |"
        yield f"| {measure.name} | {old.value:,.{old.digits}f} | {measure.value:,.{measure.digits}f} | {said}"
    for name, reason in [*other.left_out.items(), *this.left_out.items()]:
        yield f"| {name} | left out: {reason} | | | |"


def read() -> Results | None:
    """Returns the last kept result, if there is one."""
    path = ROOT / "bench" / "results.json"
    if not path.exists():
        return None
    kept = json.loads(path.read_text("utf-8"))
    return Results(**kept | {"measures": [Measure(**measure) for measure in kept["measures"]]})


def write(results: Results, before: Results | None) -> None:
    """Writes bench/results.json and results.md, and the missed targets of docs/performance.md."""
    folder, docs = ROOT / "bench", ROOT / "docs" / "performance.md"
    (folder / "results.json").write_text(json.dumps(asdict(results), indent=1, ensure_ascii=False) + "\n", "utf-8")
    (folder / "results.md").write_text("\n".join(page(results, before)) + "\n", "utf-8")
    opening, _, rest = docs.read_text("utf-8").partition(OPENED)
    _, _, closing = rest.partition(CLOSED)
    docs.write_text("\n".join([f"{opening}{OPENED}", *missed(results), f"{CLOSED}{closing}"]), "utf-8")


def missed(results: Results) -> Iterator[str]:
    """Yields how many targets are met, and a table of the others."""
    aimed = [measure for measure in results.measures if measure.met is not None]
    others = [measure for measure in aimed if not measure.met]
    yield f"{len(aimed) - len(others)} of {len(aimed)} targets are met. These are not:\n"
    yield from table(others, {})
    yield f"\nMeasured: {results.machine} {results.sizes}\n"


def machine(flushes_ms: Sequence[float]) -> str:
    commit = _output("git", "rev-parse", "--short", "HEAD") + ("+" if _output("git", "status", "--porcelain") else "")
    memory = psutil.virtual_memory().total / 2**30
    cpu = f"{os.cpu_count()} cores ({_processor()}), {memory:.0f} GiB, {platform.system()}"
    disk = f"a flush to the disk takes {median(flushes_ms):.1f} ms (p99 {p99(flushes_ms):.1f} ms)"
    load = f"load before it started {os.getloadavg()[0]:.1f}"
    return f"{datetime.now(UTC):%Y-%m-%d}, {cpu}, Python {platform.python_version()}, commit {commit}; {disk}, {load}."


def _processor() -> str:
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _output(*command: str) -> str:
    program = shutil.which(command[0])
    if program is None:
        return ""
    ended = subprocess.run([program, *command[1:]], cwd=ROOT, capture_output=True, text=True, check=False)  # noqa: S603 (git)
    return ended.stdout.strip()
