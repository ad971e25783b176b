"""`python -m bench`: what a turn of Segue costs on this machine, beside the bare model call inside it.

Runs on embedded servers of its own and a model that answers at once. Writes bench/results.json, bench/results.md and
the missed targets in docs/performance.md after every measurement; one that fails or hangs costs its own line.
"""

import argparse
import asyncio
import re
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import uvloop

from bench import report
from bench.load import Load, load
from bench.meter import flushes_ms
from bench.peers import PeerSizes, measure_peer, peers
from bench.processes import BareCaller, Group, Setup, bare_caller, serving, setup
from bench.profiling import profile
from bench.prompts import measures_of, parts_of, prompt_costs
from bench.report import Results
from bench.sessions import BATCH, FILLED, candidate, plain_turns, set_bare_window, streamed_turns, tool_turns
from bench.start import starts
from bench.takeover import measures_of as measures_of_takeovers
from bench.takeover import takeovers
from segue.around.embedded.servers import embedded_servers

ALONE = "1 × serve"
GROUPS = {  # commands, and how many sessions talk at once
    ALONE: (("serve",), (16,)),
    "2 × serve": (("serve", "serve"), (16, 64)),
    "API + worker": (("serve --no-worker", "worker"), (16,)),
}
WITH_ANOTHER_VERSION = 2  # of the groups; all of both need more connections than PostgreSQL has
START_TIMEOUT_S = 60
STARTS_TIMEOUT_S = 120
ROUND_TIMEOUT_S = 30
PROFILE_S = 5
PROFILE_TIMEOUT_S = 60
PEER_TIMEOUT_S = 120
PROMPTS_TIMEOUT_S = 600
PROMPT_TURNS = 100
KILLS = 3
KILLS_TIMEOUT_S = 120


@dataclass(frozen=True, slots=True)
class Sizes:
    """Rounds of turns of each kind, rounds of each load, the seconds of each of the latter, and kills each way."""

    plain: int
    tool: int
    streamed: int
    load: int
    load_s: float = 2.5
    kills: int = KILLS

    @property
    def timeout_s(self) -> float:
        """Of the turns of one kind: several times what they take on a calm machine."""
        return 30.0 + 2 * self.plain

    def __str__(self) -> str:
        turns = f"{self.plain * BATCH} plain, {self.tool * BATCH} with a tool, {self.streamed * BATCH} streamed"
        loads = f"each load {self.load} rounds of {self.load_s:g} s"
        return f"A session for each kind of turn, {FILLED} turns old: {turns}, in rounds of {BATCH}; {loads}."


@dataclass(frozen=True, slots=True)
class Version:
    """A program `segue` to measure, and its results."""

    program: Path
    results: Results


@dataclass(frozen=True, slots=True)
class Bench:
    """`publish` is called when something was added to the results."""

    within: Setup
    bare: BareCaller
    versions: Sequence[Version]
    sizes: Sizes
    publish: Callable[[], None]

    async def run(self) -> None:
        async with AsyncExitStack() as stack:
            started = [serving(self.within, str(each.program), ALONE, "serve") for each in self.versions]
            alone = [await stack.enter_async_context(group) for group in started]
            async with self.own_line("the turns of one session", self._all_results, 4 * self.sizes.timeout_s):
                await self._sessions(alone)
            loads = [
                each
                for version, group in zip(self.versions, alone, strict=True)
                for each in await self._start_loads(stack, version, group)
            ]
            await self._load_rounds(loads)
            if len(self.versions) == 1 and loads:
                await self._profile(loads[0])
        if len(self.versions) == 1:
            await self._peers()
        for version in self.versions:
            await self._starts(version)
            await self._prompts(version)
            if self.sizes.kills:
                await self._takeovers(version)

    @property
    def _all_results(self) -> list[Results]:
        return [version.results for version in self.versions]

    @asynccontextmanager
    async def own_line(self, name: str, results: Sequence[Results], timeout_s: float) -> AsyncIterator[None]:
        """Publishes what the block adds to the results, or why it was left out."""
        reason = ""
        try:
            async with asyncio.timeout(timeout_s) as limit:
                yield
        except Exception as error:  # noqa: BLE001 (what fails in one measurement must not lose the others)
            reason = f"timed out after {timeout_s:.0f} s" if limit.expired() else _reason(error)
        for each in results if reason else ():
            each.left_out[name] = reason
        self.publish()

    async def _sessions(self, alone: Sequence[Group]) -> None:
        results, sizes = self._all_results, self.sizes
        async with AsyncExitStack() as stack:
            opened = [candidate(*pair, self.bare) for pair in zip(results, alone, strict=True)]
            candidates = [await stack.enter_async_context(each) for each in opened]
            await set_bare_window(self.within, candidates[0], self.bare)
            for name, measure, number in (
                ("plain turns", plain_turns, sizes.plain),
                ("turns with a tool", tool_turns, sizes.tool),
                ("streamed turns", streamed_turns, sizes.streamed),
            ):
                log(name)
                async with self.own_line(name, results, sizes.timeout_s):
                    await measure(self.bare, candidates, number=number)

    async def _start_loads(self, stack: AsyncExitStack, version: Version, alone: Group) -> list[Load]:
        loads: list[Load] = []
        number = len(GROUPS) if len(self.versions) == 1 else WITH_ANOTHER_VERSION
        for name, (commands, sessions) in list(GROUPS.items())[:number]:
            log(f"starting {name}")
            async with self.own_line(name, [version.results], START_TIMEOUT_S):
                group = alone
                if name != ALONE:
                    started = serving(self.within, str(version.program), name, *commands)
                    group = await stack.enter_async_context(started)
                loads += [
                    await stack.enter_async_context(load(version.results, group, sessions=count)) for count in sessions
                ]
        return loads

    async def _load_rounds(self, loads: Sequence[Load]) -> None:
        log("many sessions at once")
        for _ in range(self.sizes.load):
            for each in loads:
                if each.name not in each.results.left_out:
                    async with self.own_line(each.name, [each.results], ROUND_TIMEOUT_S):
                        await each.round(self.bare, seconds=self.sizes.load_s)
        for each in loads:
            if each.name not in each.results.left_out:
                each.record()
                if each.group.name == ALONE:
                    each.record_memory()
        self.publish()

    async def _peers(self) -> None:
        (version,) = self.versions
        for peer in peers():
            log(peer.name)
            if peer.python is None:
                version.results.left_out[peer.name] = "PEERS names no Python that has it"
                continue
            async with self.own_line(peer.name, [version.results], PEER_TIMEOUT_S):
                await measure_peer(self.within, peer, self.bare, version.results, PeerSizes())

    async def _profile(self, alone: Load) -> None:
        log("where the time goes")
        async with self.own_line("where the time goes", [alone.results], PROFILE_TIMEOUT_S):
            alone.results.profile += await profile(alone, self.within.folder, seconds=PROFILE_S)

    async def _starts(self, version: Version) -> None:
        log("starts")
        async with self.own_line("starts", [version.results], STARTS_TIMEOUT_S):
            version.results.measures += await starts(version.program, self.within.folder)

    async def _prompts(self, version: Version) -> None:
        log("what requests cost")
        async with self.own_line("what requests cost", [version.results], PROMPTS_TIMEOUT_S):
            costs = await prompt_costs(version.program, turns=PROMPT_TURNS)
            version.results.measures += measures_of(costs)
            version.results.prompt_parts = parts_of(costs["with a tool"])

    async def _takeovers(self, version: Version) -> None:
        log("kills")
        async with self.own_line("kills", [version.results], KILLS_TIMEOUT_S):
            seconds = await takeovers(version.program, self.within.folder, self.sizes.kills)
            version.results.measures += measures_of_takeovers(seconds)


def log(what: str) -> None:
    print(f"{what} …", file=sys.stderr, flush=True)


async def run(versions: Sequence[Version], folder: Path, sizes: Sizes, publish: Callable[[], None]) -> None:
    with embedded_servers(folder / "data") as servers:
        async with setup(servers, folder) as within, bare_caller(within) as bare:
            await Bench(within, bare, versions, sizes, publish).run()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--scale", type=float, default=1, help="0.2 takes less than a minute; only 1 writes")
    parser.add_argument("--against", type=Path, help="another checkout with a .venv, to compare with in the same run")
    options = parser.parse_args()
    rounds = (max(4, round(each * options.scale)) for each in (60, 30, 20, 8))
    sizes = replace(Sizes(*rounds), kills=int(KILLS * options.scale))
    before = report.read()
    with tempfile.TemporaryDirectory(prefix="segue-bench-") as made:
        folder = Path(made)
        folder.chmod(0o711)  # PostgreSQL cannot run as root, and its own user must get through
        programs = [Path(sys.executable).with_name("segue")]
        if options.against:
            programs.append(options.against.resolve() / ".venv" / "bin" / "segue")
        machine = report.machine(flushes_ms(folder))
        versions = [Version(program, Results(machine, str(sizes))) for program in programs]
        kept = options.scale == 1 and not options.against
        this = versions[0].results
        try:
            uvloop.run(run(versions, folder, sizes, lambda: report.write(this, before) if kept else None))
        finally:
            print("\n".join(report.page(this, before)))
            if options.against:
                print("\n".join(report.side_by_side(versions[1].results, this)))


def _reason(error: Exception) -> str:
    """Returns an error and the last line of what it says, without colours and folders of this machine: it is kept."""
    said = re.sub(r"\x1b\[[\d;]*m", "", str(error)).strip().splitlines()[-1:] or [""]
    return re.sub(r"/\S+/", "…/", f"{type(error).__name__}: {said[0].strip()}")


if __name__ == "__main__":
    main()
