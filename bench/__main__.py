"""`python -m bench`: what a turn of Segue costs, on this machine, beside the bare model call inside it.

Everything runs on embedded servers of its own and a model that answers at once. Writes `bench/results.md`,
`bench/results.svg` and the table in docs/performance.md; `--quick` takes a minute and only prints.
"""

import argparse
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import uvloop

from bench import peers, plot, report
from bench.cost import flushes_ms
from bench.measure import Left, Measure
from bench.processes import ROOT, surroundings
from bench.profiling import Profile, profile
from bench.throughput import GOAL, Throughput, all_loads, soak, soak_measures, throughput_measures
from bench.turn import (
    LongSession,
    first_tokens,
    long_session,
    scene,
    session_measures,
    stream_measures,
    tool_measures,
    with_a_tool,
)
from segue.embedded.servers import embedded_servers
from segue.embedded.urls import ServerUrls

FOLDER = ROOT / "bench"


@dataclass(frozen=True, slots=True)
class Size:
    """Turns of one session, plain or with a tool, of each other kind, of the soak; how long each load runs."""

    session: int
    kind: int
    soak: int
    seconds: float


FULL = Size(session=1000, kind=200, soak=10_000, seconds=10)
QUICK = Size(session=200, kind=50, soak=1000, seconds=3)


@dataclass(frozen=True, slots=True)
class Results:
    machine: str
    measures: list[Measure | Left]
    session: LongSession
    loads: list[Throughput]
    profile: Profile | Left


async def run(servers: ServerUrls, folder: Path, size: Size, *, sampled: bool) -> Results:
    machine = report.machine(flushes_ms(folder))
    measures: list[Measure | Left] = []
    async with surroundings(servers, folder) as within:
        tell(f"{size.session:,} turns of one session, as many with a tool, then some streamed …")
        async with scene(within) as alone:
            session = await long_session(alone, turns=size.session)
            measures += session_measures(session)
            measures += tool_measures(*await with_a_tool(alone, turns=size.session))
            measures += stream_measures(await first_tokens(alone, turns=size.kind))
        tell("many sessions at once …")
        loads, left = await all_loads(within, seconds=size.seconds)
        measures += [*throughput_measures(loads), *left]
        tell(f"{size.soak:,} turns on one process …")
        measures += soak_measures(await soak(within, turns=size.soak))
        tell("other servers …")
        measures += await peers.measured(within, turns=size.kind, bare_ms=median(session.beside.bare))
        tell("where the time goes …")
        where = await profile(within, seconds=size.seconds) if sampled else Left("", "ask with --profile")
    return Results(machine, measures, session, loads, where)


def tell(what: str) -> None:
    print(what, file=sys.stderr, flush=True)


def words(results: Results) -> Iterator[str]:
    costs = {"one after another": results.session.cost_ms} | {load.name: load.cost_ms for load in results.loads}
    yield "# What a turn costs\n"
    yield f"Measured by `make bench`: {results.machine}\n"
    yield from report.table(results.measures)
    yield "\n## Processor time, ms a turn\n"
    yield from report.costs_table(costs)
    yield "\n## Where a plain turn's goes\n"
    yield from report.profile_tables(results.profile)


def write(results: Results) -> None:
    (FOLDER / "results.md").write_text("\n".join(words(results)) + "\n", "utf-8")
    picture = plot.picture(
        results.session.beside.turns,
        results.session.beside.bare,
        [(load.name, load.turns_per_s) for load in results.loads],
        goal=GOAL,
        caption=results.machine.partition(";")[0],
    )
    (FOLDER / "results.svg").write_text(picture, "utf-8")
    with_targets = [measure for measure in results.measures if isinstance(measure, Measure) and measure.met is not None]
    page = ROOT / "docs" / "performance.md"
    report.fill_page(page, [*report.table(with_targets), "", f"Measured: {results.machine}"])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer of everything, printed and not written")
    parser.add_argument("--profile", action="store_true", help="sample a serving process with py-spy as well")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="segue-bench-") as made:
        folder = Path(made)
        folder.chmod(0o711)  # as root, PostgreSQL runs as somebody else, who has to get through
        with embedded_servers(folder / "data") as servers:
            size = QUICK if options.quick else FULL
            results = uvloop.run(run(servers, folder, size, sampled=options.profile))
    if not options.quick:
        write(results)
    print("\n".join(words(results)))


if __name__ == "__main__":
    main()
