"""The processes of a run: `segue` as a user starts it, the provider, the bare caller. Each ends with its block.

Knows nothing of the requests they get.
"""

import asyncio
import os
import signal
import socket
import sys
from asyncio import StreamReader, StreamWriter
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, cast

import orjson
import psutil

from bench.client import connected
from bench.meter import database_of
from bench.report import ROOT
from segue.around.embedded.server_urls import ServerUrls

INHERITED = ("PATH", "HOME", "TMPDIR", "LANG")
OUR_MODULES = {"PYTHONPATH": str(ROOT)}
START_TIMEOUT_S = 60
STOP_TIMEOUT_S = 10
_numbers = count(1)


class NotStarted(Exception):
    """A process ended before it listened. Says its last words."""


@dataclass(frozen=True, slots=True)
class Setup:
    """What all processes of a run share. They log to `folder`."""

    servers: ServerUrls
    provider: Process
    provider_port: int
    folder: Path

    @property
    def provider_url(self) -> str:
        return f"http://127.0.0.1:{self.provider_port}/v1"

    async def new_stores(self) -> ServerUrls:
        """Returns an empty database and Redis database: processes that share stores take each other's turns."""
        number = next(_numbers)
        async with database_of(self.servers) as database:
            await database.execute(f"CREATE DATABASE bench_{number}")
        path, _, query = self.servers.database_url.partition("?")
        database_url = f"{path.rpartition('/')[0]}/bench_{number}?{query}"
        return ServerUrls(database_url=database_url, redis_url=f"{self.servers.redis_url}?db={number}")


@dataclass(frozen=True, slots=True)
class Group:
    """`segue` processes that share stores: the ports of those that listen, the ids of all."""

    name: str
    stores: ServerUrls
    ports: list[int]
    pids: list[int]

    @property
    def all_pids(self) -> list[int]:
        """With those of the processes behind a supervisor."""
        started = [psutil.Process(pid) for pid in self.pids]
        return [each.pid for first in started for each in (first, *first.children(recursive=True))]


@dataclass(frozen=True, slots=True)
class BareCaller:
    """A process that makes bare calls of one window."""

    pid: int
    orders: StreamWriter
    answers: StreamReader

    def set_window(self, messages: list[dict[str, Any]]) -> None:
        self._order({"messages": messages})

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
async def setup(servers: ServerUrls, folder: Path) -> AsyncIterator[Setup]:
    port = free_port()
    arguments = ("-m", "bench.provider", str(port))
    async with started(sys.executable, *arguments, folder=folder, settings=OUR_MODULES) as provider:
        await listens(provider, port, folder)
        yield Setup(servers, provider, port, folder)


@asynccontextmanager
async def bare_caller(within: Setup) -> AsyncIterator[BareCaller]:
    arguments = ("-m", "bench.bare", within.provider_url)
    async with started(sys.executable, *arguments, folder=within.folder, settings=OUR_MODULES, answers=True) as process:
        yield BareCaller(process.pid, cast(StreamWriter, process.stdin), cast(StreamReader, process.stdout))


@asynccontextmanager
async def serving(within: Setup, program: str, name: str, *commands: str, **more: str) -> AsyncIterator[Group]:
    """Yields one process for each of the `commands` (`serve`, `worker`) of the program `segue`, on stores of their own,
    with `more` settings.

    A worker does not say when it is ready: the first turn waits for it.
    """
    group = Group(name, await within.new_stores(), [], [])
    async with AsyncExitStack() as stack:
        for command in commands:
            await stack.enter_async_context(_segue(within, program, command.split(), group, more))
        yield group


@asynccontextmanager
async def _segue(
    within: Setup, program: str, command: list[str], group: Group, more: Mapping[str, str]
) -> AsyncIterator[None]:
    port = free_port()
    settings = {
        "LOG_FORMAT": "json",
        "DATABASE_URL": group.stores.database_url,
        "REDIS_URL": group.stores.redis_url,
        "OPENAI_BASE_URL": within.provider_url,
        "LLM_MODEL": "scripted",
        "PORT": str(port),
        **more,
    }
    async with started(program, *command, folder=within.folder, settings=settings) as process:
        group.pids.append(process.pid)
        if command[0] == "serve":
            await listens(process, port, within.folder)
            group.ports.append(port)
        yield


@asynccontextmanager
async def started(
    program: str, *arguments: str, folder: Path, settings: Mapping[str, str] | None = None, answers: bool = False
) -> AsyncIterator[Process]:
    """Yields a process whose environment sets nothing but `settings`, and ends it with all it has started. It writes
    to the log; the stdout of one that `answers` is for the caller to read, since it blocks when the pipe is full.
    """
    inherited = {name: os.environ[name] for name in INHERITED if name in os.environ}
    environment = inherited | dict(settings or {})
    with (folder / "processes.log").open("ab") as log:
        process = await asyncio.create_subprocess_exec(
            program, *arguments, cwd=folder, env=environment, stdin=PIPE, stdout=PIPE if answers else log, stderr=log,
            start_new_session=True,
        )  # fmt: skip
    try:
        yield process
    finally:
        await _end(process)


async def _end(process: Process) -> None:
    if process.returncode is None:
        process.terminate()
    try:
        async with asyncio.timeout(STOP_TIMEOUT_S):
            await process.wait()
    except TimeoutError:
        pass
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    await process.wait()


async def listens(process: Process, port: int, folder: Path) -> None:
    """Returns when the port accepts connections. Raises NotStarted, or TimeoutError after START_TIMEOUT_S."""
    async with asyncio.timeout(START_TIMEOUT_S):
        while process.returncode is None:
            try:
                async with connected(port):
                    return
            except ConnectionError:
                await asyncio.sleep(0.05)
    raise NotStarted("\n".join((folder / "processes.log").read_text().splitlines()[-5:]))
