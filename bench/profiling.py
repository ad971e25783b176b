"""Where the processor time of plain turns goes: samples of `segue serve` by py-spy, summed up by package and function.

What the standard library does is counted to whoever called it. Samples only give shares: py-spy takes a process that
waits for a core for a busy one, so the whole is what the system says it used.
"""

import asyncio
import re
import shutil
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from bench.cost import Cost
from bench.load import conversations, turns_of
from bench.measure import Left
from bench.processes import Surroundings, segue, started

RATE = 250  # samples a second
SESSIONS = 4
LISTED = 25
OURS = "segue"
ENTRY = "cli.py"  # below everything
RUNNER = "/asyncio/runners.py"  # what runs uvloop, which is no Python and has no frames
_FRAME = re.compile(r"(?P<function>.+) \((?P<file>.+):\d+\)")
_IN_PACKAGES = re.compile(r".*/(?:site|dist)-packages/")
_WAITING = re.compile(r"_worker \(\S+/concurrent/futures/thread\.py:\d+\)$")  # py-spy takes it for busy


@dataclass(frozen=True, slots=True)
class Profile:
    """Milliseconds of processor time a turn: `packages` add up to the whole; a function has what it calls in it."""

    packages: dict[str, float]
    functions: dict[str, float]


async def profile(within: Surroundings, *, seconds: float) -> Profile | Left:
    sampler = shutil.which("py-spy", path=str(Path(sys.executable).parent))
    if sampler is None:
        return Left("where the time goes", "py-spy is not installed")
    stacks = within.folder / "stacks.txt"
    async with segue(within) as serving, conversations([serving.port], SESSIONS) as talking:
        options = ("--rate", str(RATE), "--format", "raw", "--full-filenames", "--output", str(stacks))
        command = ("record", *options, "--duration", str(round(seconds)), "--pid", str(serving.process.pid))
        async with started(*command, folder=within.folder, program=sampler) as sampling:
            cost = Cost({"segue": [serving.process.pid]})
            turns = len(await turns_of(talking, seconds=seconds))
            ms_a_turn = cost.since()["segue"] * 1000 / turns
            async with asyncio.timeout(seconds + 30):
                await sampling.wait()
    if not stacks.exists():
        return Left("where the time goes", "py-spy may not look into other processes here")
    return summed(stacks.read_text().splitlines(), ms_a_turn=ms_a_turn)


def summed(stacks: Iterable[str], *, ms_a_turn: float) -> Profile:
    """Of py-spy's folded stacks: frames from the outermost in, separated by `;`, then how often they were seen."""
    packages: Counter[str] = Counter()
    functions: Counter[str] = Counter()
    for line in stacks:
        frames, _, seen = line.rpartition(" ")
        if _WAITING.search(frames):
            continue
        stack = [_read(frame) for frame in frames.split(";")]
        packages[next((package for package, _ in reversed(stack) if package), "python")] += int(seen)
        functions.update(dict.fromkeys((name for package, name in stack if package == OURS), int(seen)))
    ms_a_sample = ms_a_turn / max(packages.total(), 1)
    return Profile(
        {name: seen * ms_a_sample for name, seen in packages.most_common()},
        {name: seen * ms_a_sample for name, seen in functions.most_common(LISTED)},
    )


def _read(frame: str) -> tuple[str, str]:
    """The package of a frame, empty for the standard library's, and its file and function."""
    found = _FRAME.fullmatch(frame)
    if found is None:
        return "", frame
    path = _IN_PACKAGES.sub("", found["file"])
    if path.endswith(RUNNER):
        return "uvloop", frame
    if path != found["file"]:
        return path.partition("/")[0].removesuffix(".py"), frame
    ours = path.partition(f"/{OURS}/")[2]
    return (OURS, f"{ours} {found['function']}") if ours and ours != ENTRY else ("", frame)
