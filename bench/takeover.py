"""`python -m bench.takeover`: how long a turn stands still when its process is killed.

`kill -9` of the only process, which is started again at once, and of one of two; embedded servers, and the settings of
a user who sets none. The model keeps the first request of each turn waiting; the turn goes on when it is asked again.
`make bench` has three kills of each.
"""

import argparse
import asyncio
import os
import sys
import tempfile
import time
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import ClassVar

import uvloop

from bench.client import Refused, Session, connected
from bench.processes import INHERITED, free_port
from bench.provider import Provider
from bench.report import Measure, deviation

PATIENCE_S = 60


class Witness(Provider):
    """Notes when which process asks it, by the key in its requests. Answers only while it `answers`."""

    answers: ClassVar[bool] = False
    asked: ClassVar[asyncio.Queue[tuple[str, bytes, float]]] = asyncio.Queue()

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"authorization":
            self._key = value.decode().split()[-1]

    def on_message_complete(self) -> None:
        Witness.asked.put_nowait((self._key, self._body, time.perf_counter()))
        if Witness.answers:
            super().on_message_complete()


async def asked_about(word: str) -> tuple[str, float]:
    """Returns the key of the next process that asks the model about it, and when it does."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            key, body, asked_at = await Witness.asked.get()
            if word.encode() in body:
                return key, asked_at


@dataclass(slots=True)
class Instance:
    """`segue serve`, which can be killed and started again on its port; its name is its key for the model."""

    name: str
    program: Path
    folder: Path
    provider_port: int
    port: int = field(default_factory=free_port)
    process: Process | None = None

    async def start(self) -> None:
        """Returns when it says that it is ready."""
        settings = {
            "DATA_DIR": str(self.folder / "takeover"),
            "OPENAI_BASE_URL": f"http://127.0.0.1:{self.provider_port}/v1",
            "OPENAI_API_KEY": self.name,
            "LLM_MODEL": "scripted",
            "PORT": str(self.port),
        }
        environment = {name: os.environ[name] for name in INHERITED if name in os.environ} | settings
        with (self.folder / "processes.log").open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                self.program, "serve", cwd=self.folder, env=environment, stdin=DEVNULL, stdout=log, stderr=log
            )
        async with asyncio.timeout(PATIENCE_S):
            while not await self._is_ready():  # noqa: ASYNC110 (another process becomes it)
                await asyncio.sleep(0.02)

    async def kill(self) -> None:
        if self.process is not None and self.process.returncode is None:
            self.process.kill()
            await self.process.wait()

    async def stuck_turn(self, word: str) -> str:
        """Starts a turn that waits for the model. Returns the name of the instance that runs it."""
        Witness.answers = False
        async with connected(self.port) as connection:
            session = await Session.new(connection)
            await session.turn(word, background=True)
        name, _ = await asked_about(word)
        Witness.answers = True
        return name

    async def _is_ready(self) -> bool:
        try:
            async with connected(self.port) as connection:
                return bool(await connection.get("/health/ready"))
        except (ConnectionError, asyncio.IncompleteReadError, Refused):
            return False


async def restarted_in_place(instances: Sequence[Instance], word: str) -> float:
    """Returns the seconds from when the process is ready again until its turn goes on."""
    (only,) = instances
    await only.stuck_turn(word)
    await only.kill()
    await only.start()
    ready_at = time.perf_counter()
    _, asked_at = await asked_about(word)
    return max(0.0, asked_at - ready_at)


async def one_of_two(instances: Sequence[Instance], word: str) -> float:
    """Returns the seconds from the death of a process until its turn goes on in the other one."""
    name = await instances[0].stuck_turn(word)
    (killed,) = (each for each in instances if each.name == name)
    killed_at = time.perf_counter()
    await killed.kill()
    _, asked_at = await asked_about(word)
    await killed.start()
    return asked_at - killed_at


WAYS = {
    "kill -9 of the only process: ready again → its turn goes on": restarted_in_place,
    "kill -9 of one of two processes: its death → its turn goes on": one_of_two,
}


async def takeovers(program: Path, folder: Path, kills: int) -> dict[str, list[float]]:
    """Returns the seconds of each kill, by the way: of the only process, and of one of two. The folder keeps what the
    processes log.
    """
    server = await asyncio.get_running_loop().create_server(Witness, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    instances = [Instance(name, program, folder, port) for name in ("one", "two")]
    Witness.asked = asyncio.Queue()
    seconds: dict[str, list[float]] = {}
    try:
        for count, (name, way) in enumerate(WAYS.items(), start=1):
            await instances[count - 1].start()
            seconds[name] = [await way(instances[:count], f"{way.__name__} {number}.") for number in range(kills)]
    finally:
        for each in instances:
            await each.kill()
        server.close()
    return seconds


def measures_of(seconds: dict[str, list[float]]) -> list[Measure]:
    return [
        Measure(f"{name}, worst of {len(each)}", max(each), "s", digits=2, spread=deviation(each), at_most=2)
        for name, each in seconds.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.takeover", description=__doc__)
    parser.add_argument("--kills", type=int, default=20, help="each way")
    parser.add_argument("--program", type=Path, default=Path(sys.executable).with_name("segue"), help="another segue")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="segue-takeover-") as made:
        folder = Path(made)
        folder.chmod(0o711)  # PostgreSQL cannot run as root, and its own user must get through
        started = time.perf_counter()
        try:
            seconds = uvloop.run(takeovers(options.program.resolve(), folder, options.kills))
        except (TimeoutError, Refused):
            print((folder / "processes.log").read_text("utf-8"), file=sys.stderr)
            raise
        for name, each in seconds.items():
            print(f"{name}: median {median(each):.2f} s, worst {max(each):.2f} s of {len(each)} kills")
        print(f"It took {time.perf_counter() - started:.0f} s.")


if __name__ == "__main__":
    main()
