"""A whole installation to do harm to: stores of its own and a model, each behind a door, tools that outlive everything,
and Segue's processes on them.
"""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import httpx2
from pydantic import SecretStr
from sqlalchemy import make_url

from segue.around.embedded.server_urls import ServerUrls
from segue.around.embedded.servers import embedded_servers
from segue.config import Settings
from tests.support.logs import until
from tests.support.provider import Provider, says, scripted_provider
from tests.support.proxy import Proxy, proxied
from tests.support.service import Client, Process
from tests.support.shelf import Shelf, serving_shelf
from tests.support.stores import Stores, looking_into, socket_of

Pair = list[tuple[Process, Client]]  # two instances

POOL = 11  # connections to Postgres that a process has at most
LEASE_S = 4  # a busy machine may keep a process from renewing for two
ACCEPTS = ("serve", "--port", "0", "--no-worker")
WORKS = ("worker",)


@dataclass(frozen=True, slots=True)
class Site:
    """`processes` are those that live; `settings` lead to the stores past the doors, `data` is the stores' folder."""

    data: Path
    settings: Settings
    postgres: Proxy
    redis: Proxy
    model: Proxy
    provider: Provider
    shelf: Shelf
    environment: dict[str, str]
    processes: list[Process] = field(default_factory=list)

    @asynccontextmanager
    async def serving(self, **settings: str) -> AsyncIterator[tuple[Process, Client]]:
        """`segue serve`, and a client of it. Leaving it is kill -9."""
        process = Process(self.environment | settings)
        with self._living(process):
            url = await asyncio.to_thread(process.start)
            await asyncio.to_thread(process.wait_for, "mcp_server_ready")
            async with self._client(url) as client:
                yield process, client

    @asynccontextmanager
    async def apart(self) -> AsyncIterator[tuple[Process, Process, Client]]:
        """`segue serve --no-worker`, `segue worker`, and a client of the former."""
        accepts = Process(self.environment, command=ACCEPTS)
        works = Process(self.environment, command=WORKS, ready="waiting_for_turns")
        with self._living(accepts), self._living(works):
            url, _ = await asyncio.gather(*(asyncio.to_thread(each.start) for each in (accepts, works)))
            for each in (accepts, works):
                await asyncio.to_thread(each.wait_for, "mcp_server_ready")
            async with self._client(url) as client:
                yield accepts, works, client

    @contextmanager
    def _living(self, process: Process) -> Iterator[None]:
        self.processes.append(process)
        try:
            yield
        finally:
            self.kill(process)

    @asynccontextmanager
    async def _client(self, url: str) -> AsyncIterator[Client]:
        # The server closes what is idle for 5 s, as httpx2 would: who is quicker is not what is tested.
        limits = httpx2.Limits(max_connections=None, keepalive_expiry=1)
        async with httpx2.AsyncClient(base_url=url, timeout=30, limits=limits) as http:
            yield Client(http)

    def kill(self, *processes: Process) -> None:
        for process in processes:
            if process in self.processes:
                process.kill()
                self.processes.remove(process)

    @asynccontextmanager
    async def down(self, server: Literal["postgres", "redis"]) -> AsyncIterator[None]:
        """The server itself is killed, and started again by the next who joins."""
        pid_file = self.data / ("redis.pid" if server == "redis" else "postgres/postmaster.pid")
        os.kill(int(pid_file.read_text().split()[0]), signal.SIGKILL)
        try:
            yield
        finally:
            joining = embedded_servers(self.data, fast=True)
            await asyncio.to_thread(joining.__enter__)
            await asyncio.to_thread(joining.__exit__, None, None, None)

    @asynccontextmanager
    async def stores(self) -> AsyncIterator[Stores]:
        async with looking_into(self.settings) as stores:
            yield stores

    async def is_unharmed(self, client: Client, *sessions: str) -> None:
        """What has to be so after every fault: no turn is stuck, every session answers, nobody holds on to Postgres,
        and no request to the model was invalid or one too many.
        """
        for session in sessions:
            await client.ended(session)
        for session in sessions:
            self.provider.will_to(f"Hello, {session}", says("Here."))
            assert "Here." in (await client.chat(session, f"Hello, {session}"))["message"]["content"]
        async with self.stores() as stores:
            stuck = "SELECT count(*) FROM turns WHERE status IN ('queued', 'running')"
            assert await stores.database.fetchval(stuck) == 0
            await self._lets_go_of_postgres(stores)
        self.provider.check()

    async def _lets_go_of_postgres(self, stores: Stores) -> None:
        held = """SELECT count(*) AS open, count(*) FILTER (WHERE state <> 'idle') AS busy
                  FROM pg_stat_activity WHERE application_name = 'segue'"""

        async def are_idle() -> bool:
            row = await stores.database.fetchrow(held)
            return bool(row["busy"] == 0 and row["open"] == self.postgres.connections <= POOL * len(self.processes))

        await until(are_idle)


@asynccontextmanager
async def site_on(servers: ServerUrls, data: Path) -> AsyncIterator[Site]:
    """A site on servers of its own, in the folder `data`, that are at the newest revision."""
    folder = data.parent
    async with (
        scripted_provider() as provider,
        serving_shelf() as shelf,
        proxied(socket_of(servers.database_url)) as postgres,
        proxied(Path(servers.redis_url.removeprefix("unix://"))) as redis,
        proxied(_port(provider.base_url)) as model,
    ):
        settings = Settings(
            _env_file=None, database_url=SecretStr(servers.database_url), redis_url=SecretStr(servers.redis_url)
        )
        (folder / "mcp.json").write_text(json.dumps({"mcpServers": {"shelf": {"url": shelf.url}}}))
        database = make_url(servers.database_url).set(host="127.0.0.1", port=postgres.port, query={})
        environment = {
            "DATABASE_URL": database.render_as_string(hide_password=False),
            "REDIS_URL": f"redis://127.0.0.1:{redis.port}/0",
            "DATA_DIR": str(folder / "data"),
            "MCP_CONFIG": str(folder / "mcp.json"),
            "OPENAI_BASE_URL": f"http://127.0.0.1:{model.port}/v1",
            "LLM_MODEL": "scripted",
            "LLM_MAX_RETRIES": "0",
            "CONFIRM": "never",
            "WEB_SEARCH_PROVIDER": "none",
            "MIGRATE_ON_START": "false",
            "TURN_LEASE_S": str(LEASE_S),
        }
        yield Site(data, settings, postgres, redis, model, provider, shelf, environment)


def _port(url: str) -> int:
    port = make_url(url).port
    assert port is not None
    return port
