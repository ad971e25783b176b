"""What is measured, as processes of its own: Segue started as a user starts it, the provider, the bare caller.

Whatever is started here is gone when its block is left. Knows nothing of what is asked of them.
"""

import asyncio
import os
import socket
import sys
from asyncio import StreamReader, StreamWriter
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import orjson

from bench.load import connected
from segue.embedded.urls import ServerUrls

ROOT = Path(__file__).resolve().parents[1]
INHERITED = ("PATH", "HOME", "TMPDIR", "LANG")
START_TIMEOUT_S = 60
STOP_TIMEOUT_S = 30


class NotStarted(Exception):
    """A process that ended instead; with the last it said."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What all the processes of a run share. Their logs go to `folder`."""

    servers: ServerUrls
    provider: Process
    provider_port: int
    folder: Path

    @property
    def provider_url(self) -> str:
        return f"http://127.0.0.1:{self.provider_port}/v1"


@dataclass(frozen=True, slots=True)
class Serving:
    """A `segue serve`."""

    process: Process
    port: int


@dataclass(frozen=True, slots=True)
class BareCaller:
    """`bench.bare`: bare calls of one window."""

    pid: int
    orders: StreamWriter
    answers: StreamReader

    def take(self, window: list[dict[str, Any]]) -> None:
        self._order({"messages": window})

    async def milliseconds(self, calls: int, *, stream: bool = False) -> list[float]:
        self._order({"calls": calls, "stream": stream})
        times: list[float] = orjson.loads(await self.answers.readline())
        return times

    def _order(self, order: dict[str, Any]) -> None:
        self.orders.write(orjson.dumps(order) + b"\n")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


@asynccontextmanager
async def surroundings(servers: ServerUrls, folder: Path) -> AsyncIterator[Surroundings]:
    port = free_port()
    async with started("-m", "bench.provider", str(port), folder=folder) as provider:
        await listens(provider, port, folder)
        yield Surroundings(servers, provider, port, folder)


@asynccontextmanager
async def segue(within: Surroundings, *options: str) -> AsyncIterator[Serving]:
    """`segue serve` with these options, migrated and ready."""
    port = free_port()
    command = ("-m", "segue", "serve", "--port", str(port), *options)
    async with started(*command, folder=within.folder, settings=_settings(within)) as process:
        await listens(process, port, within.folder)
        yield Serving(process, port)


@asynccontextmanager
async def several(within: Surroundings, count: int) -> AsyncIterator[list[Serving]]:
    """That many `segue serve` on the same stores."""
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(segue(within)) for _ in range(count)]


@asynccontextmanager
async def worker(within: Surroundings) -> AsyncIterator[Process]:
    """`segue worker`. It says nothing when it is ready: the first turn it runs tells."""
    async with started("-m", "segue", "worker", folder=within.folder, settings=_settings(within)) as process:
        yield process


@asynccontextmanager
async def bare_caller(within: Surroundings) -> AsyncIterator[BareCaller]:
    async with started("-m", "bench.bare", within.provider_url, folder=within.folder) as process:
        yield BareCaller(process.pid, cast(StreamWriter, process.stdin), cast(StreamReader, process.stdout))


async def knows(*words: str) -> bool:
    """Whether the command line has such a command or option."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "segue", *words[:1], "--help", cwd=ROOT, stdout=PIPE, stderr=DEVNULL
    )
    told, _ = await process.communicate()
    return process.returncode == 0 and all(word.encode() in told for word in words[1:])


@asynccontextmanager
async def started(
    *arguments: str, folder: Path, settings: Mapping[str, str] | None = None, program: str = sys.executable
) -> AsyncIterator[Process]:
    """A program until the block is left, with nothing of our environment that could set anything."""
    inherited = {name: os.environ[name] for name in INHERITED if name in os.environ}
    environment = {**inherited, "PYTHONPATH": str(ROOT), **(settings or {})}
    with (folder / "processes.log").open("ab") as log:
        process = await asyncio.create_subprocess_exec(
            program, *arguments, cwd=folder, env=environment, stdin=PIPE, stdout=PIPE, stderr=log
        )
    try:
        yield process
    finally:
        await _end(process)


async def _end(process: Process) -> None:
    if process.returncode is None:
        process.terminate()
    try:
        async with asyncio.timeout(STOP_TIMEOUT_S):
            await process.communicate()
    except TimeoutError:
        process.kill()
        await process.communicate()


async def listens(process: Process, port: int, folder: Path) -> None:
    async with asyncio.timeout(START_TIMEOUT_S):
        while process.returncode is None:
            try:
                async with connected(port):
                    return
            except ConnectionError:
                await asyncio.sleep(0.05)
    raise NotStarted("a process did not start:\n" + (folder / "processes.log").read_text()[-2000:])


def _settings(within: Surroundings) -> dict[str, str]:
    return {
        "LOG_FORMAT": "json",
        "DATABASE_URL": within.servers.database_url,
        "REDIS_URL": within.servers.redis_url,
        "OPENAI_BASE_URL": within.provider_url,
        "LLM_MODEL": "scripted",
    }
