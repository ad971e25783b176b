"""What was measured, in words: a table with targets, costs by process, where the time goes, and on what machine."""

import os
import platform
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

import psutil

from bench.measure import Left, Measure, p99
from bench.processes import ROOT
from bench.profiling import Profile

OPENED, CLOSED = "<!-- make bench -->\n", "<!-- /make bench -->"
SHOWN_MS = 0.05
MET = {True: "yes", False: "**no**", None: ""}


def table(measures: Iterable[Measure | Left]) -> Iterator[str]:
    yield "| measure | value | target | met |"
    yield "|---|---:|---:|---|"
    for measure in measures:
        match measure:
            case Left(name, why):
                yield f"| {name} | not measured: {why} | | |"
            case Measure():
                value = f"{measure.value:,.{measure.digits}f} {measure.unit}".strip()
                yield f"| {measure.name} | {value} | {_target(measure)} | {MET[measure.met]} |"


def _target(measure: Measure) -> str:
    bounds = (("≤", measure.at_most), ("≥", measure.at_least))
    return ", ".join(
        [f"{sign} {bound:g}" for sign, bound in bounds if bound is not None] + [measure.aim] * bool(measure.aim)
    )


def costs_table(costs: Mapping[str, Mapping[str, float]]) -> Iterator[str]:
    """A row a load, a column a kind of process: milliseconds a turn."""
    columns = list(dict.fromkeys(name for row in costs.values() for name in row))
    yield f"| load | {' | '.join(columns)} |"
    yield f"|---|{'---:|' * len(columns)}"
    for load, row in costs.items():
        yield f"| {load} | {' | '.join(f'{row[name]:.2f}' if name in row else '' for name in columns)} |"


def profile_tables(found: Profile | Left) -> Iterator[str]:
    if isinstance(found, Left):
        yield f"Not measured: {found.why}."
        return
    yield "| package | ms a turn |\n|---|---:|"
    yield from (f"| {name} | {spent:.2f} |" for name, spent in found.packages.items() if spent >= SHOWN_MS)
    yield "\n| our function, with all it calls in its task | ms a turn |\n|---|---:|"
    yield from (f"| `{name}` | {spent:.2f} |" for name, spent in found.functions.items())


def machine(flushes_ms: Sequence[float]) -> str:
    """When, on what, and up to a semicolon enough to know the machine again."""
    commit = _said("git", "rev-parse", "--short", "HEAD") + ("+" if _said("git", "status", "--porcelain") else "")
    memory = psutil.virtual_memory().total / 2**30
    day = datetime.now(UTC).strftime("%Y-%m-%d")
    cpu = f"{os.cpu_count()} cores ({_cpu()}), {memory:.0f} GiB"
    disk = f"a flush to the disk takes {median(flushes_ms):.1f} ms (p99 {p99(flushes_ms):.1f} ms)"
    load = f"load before it started {os.getloadavg()[0]:.1f}"
    return f"{day}, {cpu}, {platform.system()}, Python {platform.python_version()}, commit {commit}; {disk}, {load}."


def _cpu() -> str:
    """The processor's name where the system tells, its kind otherwise."""
    names = [line for line in _lines(Path("/proc/cpuinfo")) if line.startswith("model name")]
    return names[0].partition(":")[2].strip() if names else platform.machine()


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def _said(*command: str) -> str:
    program = shutil.which(command[0])
    if program is None:
        return ""
    told = subprocess.run(  # noqa: S603 (git's own words)
        [program, *command[1:]], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return told.stdout.strip()


def fill_page(path: Path, lines: Iterable[str]) -> None:
    """Replaces what stands between the two marks of the page."""
    before, _, rest = path.read_text("utf-8").partition(OPENED)
    _, _, after = rest.partition(CLOSED)
    path.write_text(before + OPENED + "\n".join(lines) + "\n" + CLOSED + after, "utf-8")
