"""Segue itself, served for a test: in this process with real stores, or as the process a user would start."""

import asyncio
import os
import signal
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import httpx2

from segue.config import Settings
from segue.domain.ids import Clock
from segue.main import create_app
from segue.net.http_client import tls_context
from tests.support.commands import ROOT, Started, Starter, forked, surroundings
from tests.support.logs import until
from tests.support.patience import PATIENCE_S
from tests.support.server import serving
from tests.support.stores import urls_of


@dataclass(frozen=True, slots=True)
class Client:
    """The HTTP API as a test speaks it."""

    http: httpx2.AsyncClient

    async def new_session(self, **body: Any) -> str:
        response = await self.http.post("/sessions", json=body)
        assert response.status_code == 201, response.text
        return str(response.json()["id"])

    async def send(self, session_id: str, message: str, **options: Any) -> httpx2.Response:
        return await self.http.post(f"/sessions/{session_id}/chat", json={"message": message, **options})

    async def chat(self, session_id: str, message: str, **options: Any) -> dict[str, Any]:
        """The ChatAnswer to a message."""
        response = await self.send(session_id, message, **options)
        assert response.status_code == 200, response.text
        answer: dict[str, Any] = response.json()
        return answer

    async def get(self, path: str, **params: Any) -> dict[str, Any]:
        response = await self.http.get(path, params=params)
        assert response.status_code == 200, response.text
        found: dict[str, Any] = response.json()
        return found

    async def turns(self, session_id: str) -> list[dict[str, Any]]:
        """Oldest first."""
        page = await self.get(f"/sessions/{session_id}/turns", limit=200)
        items: list[dict[str, Any]] = page["items"]
        return items[::-1]

    async def ended(self, session_id: str, count: int = 1) -> list[dict[str, Any]]:
        """The turns of a session once there are `count` and none is open."""

        async def settled() -> list[dict[str, Any]]:
            turns = await self.turns(session_id)
            is_open = len(turns) < count or {"queued", "running"} & {turn["status"] for turn in turns}
            return [] if is_open else turns

        return await until(settled, logged="turn_finished")

    async def connected(self, server: str) -> None:
        """Returns once an MCP server is ready."""

        async def is_ready() -> bool:
            return bool((await self.http.get("/health/ready")).json()["mcp"].get(server) == "ready")

        await until(is_ready, logged="mcp_server_ready")

    async def servers_tried(self) -> None:
        """Returns once each MCP server has been connected, or has failed: a start waits for them four seconds only."""

        async def are_tried() -> bool:
            return "connecting" not in (await self.http.get("/health/ready")).json()["mcp"].values()

        await until(are_tried, logged="mcp_server_ready")

    async def messages(self, session_id: str) -> list[dict[str, Any]]:
        page = await self.get(f"/sessions/{session_id}/messages", limit=200)
        items: list[dict[str, Any]] = page["items"]
        return items


@asynccontextmanager
async def running(
    settings: Settings, *, clock: Clock | None = None, takes_turns: bool = True, **extensions: Any
) -> AsyncIterator[Client]:
    """The service in this process, over real HTTP, with the MCP servers that are processes. Leaving it is a clean
    shutdown.
    """
    async with (
        serving(create_app(settings, clock=clock, takes_turns=takes_turns, **extensions)) as url,
        httpx2.AsyncClient(base_url=url, timeout=PATIENCE_S, verify=tls_context()) as http,
    ):
        client = Client(http)
        if settings.mcp_config.exists() and '"command"' in settings.mcp_config.read_text("utf-8"):
            await client.servers_tried()
        yield client


class Process:
    """`segue serve`, or another command, as its own process, to be killed and started again; `log` is all it prints."""

    def __init__(
        self,
        environment: dict[str, str],
        *,
        cwd: Path = ROOT,
        command: tuple[str, ...] = ("serve", "--port", "0"),
        ready: str = "Uvicorn running on ",
        start: Starter = forked,
    ) -> None:
        self._environment = surroundings({"LOG_FORMAT": "json", **environment})
        self._cwd = cwd
        self._command = command
        self._ready = ready
        self._start = start
        self._process: Started | None = None
        self._output: IO[str] | None = None
        self._listening: threading.Thread | None = None
        self._said = threading.Condition()
        self.log: list[str] = []

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> str:
        """Waits until it is ready, and gives the word after what says so: the base URL of a service."""
        reads, writes = os.pipe()
        try:
            self._process = self._start(self._command, self._cwd, self._environment, (0, writes, writes))
        finally:
            os.close(writes)
        self._output = os.fdopen(reads)
        for line in self._output:
            self.log.append(line)
            if self._ready in line:
                self._listening = threading.Thread(target=self._listen, daemon=True)
                self._listening.start()
                return (line.partition(self._ready)[2].split() or [""])[0]
        raise RuntimeError("segue did not start:\n" + "".join(self.log))

    def wait_for(self, event: str, *, times: int = 1) -> None:
        """Returns once its log says that this happened, as often as this."""
        with self._said:
            assert self._said.wait_for(
                lambda: sum(f'"{event}"' in line for line in list(self.log)) >= times, timeout=PATIENCE_S
            )

    def kill(self) -> None:
        """kill -9."""
        self._stop(signal.SIGKILL)

    def stop(self) -> int:
        return self._stop(signal.SIGTERM)

    def ended(self) -> int:
        """Waits until it ends by itself."""
        return self._stop(None)

    def _stop(self, number: signal.Signals | None) -> int:
        assert self._process is not None
        assert self._output is not None
        if number is not None:
            self._process.send_signal(number)
        code = self._process.wait(timeout=PATIENCE_S)
        if self._listening is not None:
            self._listening.join(timeout=PATIENCE_S)
        self._output.close()
        return code

    def _listen(self) -> None:
        """A log nobody reads would stop who writes it."""
        assert self._output is not None
        for line in self._output:
            with self._said:
                self.log.append(line)
                self._said.notify_all()


@asynccontextmanager
async def process(settings: Settings) -> AsyncIterator[tuple[Process, Client]]:
    """`segue serve` with the test's stores, model and MCP servers, once one is ready. Leaving it is kill -9."""
    served = Process(
        {
            **urls_of(settings),
            "OPENAI_BASE_URL": str(settings.openai_base_url),
            "LLM_MODEL": "scripted",
            "LLM_MAX_RETRIES": "0",
            "MCP_CONFIG": str(settings.mcp_config),
            "WEB_SEARCH_PROVIDER": "none",
            "MIGRATE_ON_START": "false",
            "TURN_LEASE_S": "3",
            "AUTH": settings.auth,
            **_webhook(settings),
            **_logins(settings),
        }
    )
    try:
        url = await asyncio.to_thread(served.start)
        await asyncio.to_thread(served.wait_for, "mcp_server_ready")
        async with httpx2.AsyncClient(base_url=url, timeout=PATIENCE_S) as http:
            yield served, Client(http)
    finally:
        served.kill()


def _logins(settings: Settings) -> dict[str, str]:
    if settings.mcp_token_key is None or settings.public_url is None:
        return {}
    return {"MCP_TOKEN_KEY": settings.mcp_token_key.get_secret_value(), "PUBLIC_URL": settings.public_url}


def _webhook(settings: Settings) -> dict[str, str]:
    if settings.webhook_url is None or settings.webhook_secret is None:
        return {}
    url, secret = settings.webhook_url.get_secret_value(), settings.webhook_secret.get_secret_value()
    return {"WEBHOOK_URL": url, "WEBHOOK_SECRET": secret}
