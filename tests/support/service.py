"""Segue itself, served for a test: in this process with real stores, or as the process a user would start."""

import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from backend.agent.context import Clock
from backend.config import Settings
from backend.main import create_app, utc_now
from tests.support.server import serving

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class Client:
    """The HTTP API as a test speaks it."""

    http: httpx.AsyncClient

    async def new_session(self, **body: Any) -> str:
        response = await self.http.post("/sessions", json=body)
        assert response.status_code == 201, response.text
        return str(response.json()["id"])

    async def send(self, session_id: str, message: str, **options: Any) -> httpx.Response:
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

    async def messages(self, session_id: str) -> list[dict[str, Any]]:
        page = await self.get(f"/sessions/{session_id}/messages", limit=200)
        items: list[dict[str, Any]] = page["items"]
        return items


@asynccontextmanager
async def running(settings: Settings, *, clock: Clock = utc_now) -> AsyncIterator[Client]:
    """The service in this process, over real HTTP. Leaving it is a clean shutdown."""
    async with (
        serving(create_app(settings, clock=clock)) as url,
        httpx.AsyncClient(base_url=url, timeout=30) as http,
    ):
        yield Client(http)


class Process:
    """`segue serve` as its own process, to be killed and started again."""

    def __init__(self, environment: dict[str, str], *, cwd: Path = ROOT) -> None:
        inherited = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR", "LANG") if name in os.environ}
        self._environment = {**inherited, "LOG_FORMAT": "json", **environment}
        self._cwd = cwd
        self._process: subprocess.Popen[str] | None = None
        self.log: list[str] = []

    def start(self) -> str:
        """Waits until it answers and gives its base URL."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "backend.cli", "serve", "--port", "0"],
            cwd=self._cwd,
            env=self._environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self.log.append(line)
            if "Uvicorn running on " in line:
                return line.partition("Uvicorn running on ")[2].split()[0]
        raise RuntimeError("segue serve did not start:\n" + "".join(self.log))

    def kill(self) -> None:
        """kill -9."""
        self._stop(signal.SIGKILL)

    def stop(self) -> int:
        return self._stop(signal.SIGTERM)

    def _stop(self, number: signal.Signals) -> int:
        assert self._process is not None
        self._process.send_signal(number)
        _, rest = self._process.communicate(timeout=30)
        self.log.append(rest)
        return self._process.returncode
