"""`python -m bench.wire`: a token's way from the provider to the client, of many streams, over two processes of a port.

2,000 streams are idle and 200 speak, 50 tokens a second each. Prints how long a token was on its way and what it took
of the processes, apart from what they take with the idle streams alone. A token says when it left: all clocks here are
the machine's. The provider and the clients have to share the cores with what is measured.
"""

import argparse
import asyncio
import re
import resource
import sys
import tempfile
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import quantiles

import psutil
import uvloop

from bench.client import Session, connected
from bench.processes import Group, serving, setup
from bench.provider import PAUSE_S, SPEAK_MESSAGE, SPOKEN
from segue.around.embedded.servers import embedded_servers

IDLE, SPEAKING = 2_000, 200
PROGRAM = str(Path(sys.executable).with_name("segue"))
IDLE_S = 5.0
FILES = 20_000
SETTLED_S = 1.0
APART_S = 0.02  # between one that begins to speak and the next
_TOKEN = re.compile(rb"@(\d{19})")
_FRAME = b"TEXT_MESSAGE_CONTENT"


@dataclass(slots=True)
class Heard:
    """What the clients heard: the milliseconds of each token, and how many frames they came in."""

    ms: list[float] = field(default_factory=list)
    frames: int = 0

    def hear(self, part: bytes) -> None:
        now = time.perf_counter_ns()
        self.ms += [(now - int(sent)) / 1e6 for sent in _TOKEN.findall(part)]
        self.frames += part.count(_FRAME)


async def listen(session: Session, heard: Heard, *, after_s: float) -> None:
    """Reads until the end of the answer, whose last event repeats it whole and is not counted."""
    await asyncio.sleep(after_s)
    body = {"message": SPEAK_MESSAGE, "stream": True}
    async for part in session.connection.stream(f"/sessions/{session.id}/chat", body):
        if b"TEXT_MESSAGE_END" not in part and b"RUN_FINISHED" not in part and b"MESSAGES_SNAPSHOT" not in part:
            heard.hear(part)


async def measure(group: Group, *, idle: int, speaking: int) -> None:
    async with AsyncExitStack() as stack:
        for _ in range(idle):
            connection = await stack.enter_async_context(connected(group.ports[0]))
            connection.writer.write(b"GET /events HTTP/1.1\r\nhost: localhost\r\n\r\n")
            if b" 200 " not in await connection.reader.readline():
                raise RuntimeError("a stream was refused")
        connections = [await stack.enter_async_context(connected(group.ports[0])) for _ in range(speaking)]
        sessions = [await Session.new(each) for each in connections]
        await asyncio.sleep(SETTLED_S)
        before = _taken(group)
        await asyncio.sleep(IDLE_S)
        idle_share = (_taken(group) - before) / IDLE_S
        heard, before, began = Heard(), _taken(group), time.perf_counter()
        await asyncio.gather(*(listen(each, heard, after_s=number * APART_S) for number, each in enumerate(sessions)))
        took_s = time.perf_counter() - began
        taken = _taken(group) - before - idle_share * took_s
    hundredths = quantiles(heard.ms, n=100)
    print(f"{idle:,} idle streams, {speaking} that speak {1 / PAUSE_S:.0f} tokens/s each, {SPOKEN} tokens an answer")
    print("\n| a token's way | ms |\n|---|---:|")
    for name, at in (("median", 49), ("p90", 89), ("p99", 98)):
        print(f"| {name} | {hundredths[at]:.1f} |")
    print(f"\nprocessor time: {taken / len(heard.ms) * 1000:.3f} ms a token, turns included", end="")
    print(f" ({idle_share * 1000:.0f} ms a second when all are idle)")
    print(f"{len(heard.ms):,} tokens in {heard.frames:,} frames, {took_s:.1f} s for {SPOKEN * PAUSE_S:.0f} s of speech")


def _taken(group: Group) -> float:
    """Returns the seconds of processor time of all its processes. Stores are none of them."""
    return sum(sum(psutil.Process(pid).cpu_times()[:2]) for pid in group.all_pids)


async def run(folder: Path, asked: argparse.Namespace) -> None:
    with embedded_servers(folder / "data") as servers:
        command = f"serve --processes {asked.processes}"
        async with (
            setup(servers, folder) as within,
            serving(within, asked.program, "wire", command, WORKER_CONCURRENCY=str(asked.speaking)) as group,
        ):
            await measure(group, idle=asked.idle, speaking=asked.speaking)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--program", default=PROGRAM, help="the `segue` to measure")
    for name, default in (("idle", IDLE), ("speaking", SPEAKING), ("processes", 2)):
        parser.add_argument(f"--{name}", type=int, default=default)
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(FILES, hard), hard))
    with tempfile.TemporaryDirectory(prefix="segue-bench-") as made:
        folder = Path(made)
        folder.chmod(0o711)  # PostgreSQL cannot run as root, and its own user must get through
        uvloop.run(run(folder, parser.parse_args()))


if __name__ == "__main__":
    main()
