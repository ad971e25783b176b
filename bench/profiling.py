"""Where the processor time of plain turns goes: samples of `segue serve` by py-spy, added up by package and function.

Time in the standard library belongs to its caller. Samples give shares only, as py-spy takes a process that waits for a
core for a busy one; the total is what the system says the process used.
"""

import re
import shutil
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from bench.client import turns_of
from bench.load import Load
from bench.processes import started

RATE = 250  # samples a second
SESSIONS = 4
LISTED = 25
SHOWN_MS = 0.05
OURS = "segue"
ENTRY = "around/cli.py"  # below everything
RUNNER = "/asyncio/runners.py"  # runs uvloop, which is not Python and has no frames
_FRAME = re.compile(r"(?P<function>.+) \((?P<file>.+):\d+\)")
_IN_PACKAGES = re.compile(r".*/(?:site|dist)-packages/")
_IDLE_THREAD = re.compile(
    r"(_worker|wait) \(\S+/(concurrent/futures/thread|threading)\.py:\d+\)$"
)  # py-spy sees it busy


async def profile(load: Load, folder: Path, *, seconds: float) -> list[str]:
    """Returns two tables of milliseconds a turn. Raises RuntimeError if py-spy cannot sample the process."""
    sampler = shutil.which("py-spy", path=str(Path(sys.executable).parent))
    if sampler is None:
        raise RuntimeError("py-spy is not installed")
    stacks = folder / "stacks.txt"
    options = ("--rate", str(RATE), "--format", "raw", "--full-filenames", "--output", str(stacks))
    command = ("record", *options, "--duration", str(round(seconds)), "--pid", str(load.group.pids[0]))
    used: Counter[str] = Counter()
    async with started(sampler, *command, folder=folder) as sampling:
        async with load.meter.adding_to(used):
            _, latencies = await turns_of(load.sessions[:SESSIONS], seconds=seconds)
        await sampling.wait()
    if not stacks.exists():
        raise RuntimeError("py-spy may not look into other processes here")
    ms_a_turn = used["server"] * 1000 / len(latencies)
    return list(_tables(stacks.read_text().splitlines(), ms_a_turn=ms_a_turn))


def _tables(stacks: Iterable[str], *, ms_a_turn: float) -> Iterator[str]:
    """Reads py-spy's folded stacks: frames from the outermost in, separated by `;`, then how often they were seen."""
    packages: Counter[str] = Counter()
    functions: Counter[str] = Counter()
    for line in stacks:
        frames, _, seen = line.rpartition(" ")
        if _IDLE_THREAD.search(frames):
            continue
        stack = [_read(frame) for frame in frames.split(";")]
        packages[next((package for package, _ in reversed(stack) if package), "python")] += int(seen)
        functions.update(dict.fromkeys((name for package, name in stack if package == OURS), int(seen)))
    if OURS not in packages:
        raise RuntimeError(f"no sample is in {OURS}")
    ms_a_sample = ms_a_turn / packages.total()
    yield "| package | ms a turn |\n|---|---:|"
    spent = {name: samples * ms_a_sample for name, samples in packages.most_common()}
    yield from (f"| {name} | {ms:.2f} |" for name, ms in spent.items() if ms >= SHOWN_MS)
    yield "\n| our function, with all it calls in its task | ms a turn |\n|---|---:|"
    yield from (f"| `{name}` | {samples * ms_a_sample:.2f} |" for name, samples in functions.most_common(LISTED))


def _read(frame: str) -> tuple[str, str]:
    """Returns the package of a frame, empty for the standard library, and its file and function."""
    found = _FRAME.fullmatch(frame)
    if found is None:
        return "", frame
    path = _IN_PACKAGES.sub("", found["file"])
    if path.endswith(RUNNER):
        return "uvloop", frame
    if path != found["file"]:
        return path.partition("/")[0].removesuffix(".py"), frame
    ours = path.rpartition(f"/backend/{OURS}/")[2] if f"/backend/{OURS}/" in path else ""
    return (OURS, f"{ours} {found['function']}") if ours and ours != ENTRY else ("", frame)
