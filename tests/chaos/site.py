"""A whole installation: stores that may be harmed, a model, tools, and instances that are killed and started again."""

import asyncio
import json
import os
import signal
import socket
import subprocess
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random

import asyncpg
import httpx2
import psutil
from pydantic import SecretStr
from redis.asyncio import Redis

from segue.around.embedded.server_urls import ServerUrls
from segue.around.embedded.servers import embedded_servers
from segue.config import Settings
from segue.db.migrations import upgrade
from tests.chaos.ledger import Ledger
from tests.chaos.world import Tools, answers_by_rule, tools_served
from tests.support.commands import Starter
from tests.support.logs import until
from tests.support.provider import Provider, scripted_provider
from tests.support.service import Client, Process
from tests.support.stores import Stores, looking_into, plain

LEASE_S = 3
GRACE_S = 5
ANSWER_S = 8  # then a client asks another instance
CONNECT_S = 1
ENDS_WITHIN_S = GRACE_S + 5


class Instance:
    """`segue serve` on a port of its own, one process or several behind a supervisor. `process` is None while it is
    down.
    """

    def __init__(self, environment: dict[str, str], start: Starter, processes: int) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._port = free.getsockname()[1]
        self._environment = environment
        self._start = start
        self._processes = processes
        self.process: Process | None = None
        self.errors: Counter[str] = Counter()
        timeout = httpx2.Timeout(ANSWER_S, connect=CONNECT_S)
        limits = httpx2.Limits(max_connections=None, keepalive_expiry=1)
        self.client = Client(
            httpx2.AsyncClient(base_url=f"http://127.0.0.1:{self._port}", timeout=timeout, limits=limits)
        )

    async def start(self) -> None:
        command = ("serve", "--port", str(self._port), "--processes", str(self._processes))
        ready = "process_ready" if self._processes > 1 else "Uvicorn running on "
        process = Process(self._environment, command=command, ready=ready, start=self._start)
        await asyncio.to_thread(process.start)
        self.process = process

    async def end(self, number: signal.Signals) -> None:
        """Raises subprocess.TimeoutExpired if it does not end."""
        if self.process is not None:
            if number == signal.SIGKILL:
                self.signal(number)
            process, self.process = self.process, None
            try:
                await asyncio.to_thread(process.stop if number == signal.SIGTERM else process.kill)
            finally:
                self.errors.update(_errors(process.log))

    async def lose_supervisor(self) -> None:
        """Kills it, and returns once its processes have ended. Raises psutil.TimeoutExpired if they do not."""
        if self.process is not None:
            served = self._served()
            process, self.process = self.process, None
            await asyncio.to_thread(process.kill)
            self.errors.update(_errors(process.log))
            for each in served:
                await asyncio.to_thread(each.wait, ENDS_WITHIN_S)

    def signal(self, number: signal.Signals, *, to_supervisor: bool = True, to_all: bool = True) -> None:
        """To the supervisor, and to the processes behind it: `to_all` of them or the first."""
        if self.process is not None:
            served = self._served()
            for each in served if to_all else served[:1]:
                with suppress(psutil.NoSuchProcess):
                    each.send_signal(number)
            if to_supervisor:
                os.kill(self.process.pid, number)

    def _served(self) -> list[psutil.Process]:
        """The processes behind the supervisor."""
        with suppress(psutil.NoSuchProcess):
            return psutil.Process(self.process.pid).children() if self.process and self._processes > 1 else []
        return []


@dataclass(frozen=True, slots=True)
class Site:
    data: Path
    settings: Settings
    provider: Provider
    tools: Tools
    ledger: Ledger
    instances: list[Instance]

    @property
    def living(self) -> list[Instance]:
        return [instance for instance in self.instances if instance.process is not None]

    @asynccontextmanager
    async def stores(self) -> AsyncIterator[Stores]:
        async with looking_into(self.settings) as stores:
            yield stores

    def end_server(self, pid_file: str, number: signal.Signals) -> None:
        """Its supervisor, in this process, starts it again."""
        with suppress(OSError, ValueError):
            os.kill(int((self.data / pid_file).read_text().split()[0]), number)

    async def stores_answer(self) -> None:
        await until(self._both_answer)

    async def _both_answer(self) -> bool:
        assert self.settings.database_url is not None
        assert self.settings.redis_url is not None
        with suppress(Exception):  # whatever it is, it is asked again
            await (await asyncpg.connect(plain(self.settings.database_url.get_secret_value()), timeout=1)).close()
            async with Redis.from_url(self.settings.redis_url.get_secret_value(), protocol=2) as redis:
                return bool(await redis.ping())
        return False


@asynccontextmanager
async def own_stores(folder: Path) -> AsyncIterator[ServerUrls]:
    """Stores that may be killed: this process starts them again."""
    servers = embedded_servers(folder / "data", fast=True)
    urls = await asyncio.to_thread(servers.__enter__)
    try:
        await asyncio.to_thread(upgrade, urls.database_url)
        yield urls
    finally:
        await asyncio.to_thread(servers.__exit__, None, None, None)


@asynccontextmanager
async def site_on(
    urls: ServerUrls, folder: Path, random: Random, *, instances: int, start: Starter, processes: int = 1
) -> AsyncIterator[Site]:
    """Leaving it is kill -9. Raises AssertionError if the model was sent an invalid history."""
    ledger, config = Ledger(), folder / "mcp.json"
    async with AsyncExitStack() as stack:
        provider = await stack.enter_async_context(scripted_provider())
        answers_by_rule(provider, random)
        tools = await stack.enter_async_context(tools_served(ledger, random))
        config.write_text(json.dumps({"mcpServers": {"things": {"url": tools.url}}}))
        environment = {
            "DATABASE_URL": urls.database_url,
            "REDIS_URL": urls.redis_url,
            "MCP_CONFIG": str(config),
            "OPENAI_BASE_URL": provider.base_url,
            "LLM_MODEL": "scripted",
            "WEB_SEARCH_PROVIDER": "none",
            "MIGRATE_ON_START": "false",
            "TURN_LEASE_S": str(LEASE_S),
            "SHUTDOWN_GRACE_S": str(GRACE_S),
            "TOOL_FAILURE_DURATION_S": "2",
            "LIMIT_REQUESTS_PER_MINUTE": "1000000",
            "LIMIT_CONCURRENT_TURNS": "1000",
        }
        settings = Settings(
            _env_file=None, database_url=SecretStr(urls.database_url), redis_url=SecretStr(urls.redis_url)
        )
        made = [Instance(environment, start, processes) for _ in range(instances)]
        site = Site(folder / "data", settings, provider, tools, ledger, made)
        for instance in made:
            stack.push_async_callback(instance.client.http.aclose)
            stack.push_async_callback(_kill, instance)
        await asyncio.gather(*(instance.start() for instance in made))
        yield site


def _errors(log: list[str]) -> Iterator[str]:
    """The events that were logged as errors, and lines that are no events."""
    for line in log:
        if not line.startswith("{"):
            yield line.strip().partition("\n")[0]
        elif (entry := json.loads(line))["level"] in ("error", "critical"):
            yield entry["event"].partition("\n")[0]


async def _kill(instance: Instance) -> None:
    with suppress(subprocess.TimeoutExpired):
        await instance.end(signal.SIGKILL)
