"""The replay's own `segue serve`, in a temporary folder. It can be killed and started again.

The replay itself holds the stores, so they survive a killed service and stop when the replay ends.
"""

import asyncio
import os
import socket
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from segue.embedded.servers import embedded_servers
from segue.replay.config import CannotPlay

STOP_TIMEOUT_S = 20.0
SHOWN_LOG_LINES = 20
INHERITED = ("PATH", "HOME", "TMPDIR", "LANG")


@dataclass(slots=True)
class OwnService:
    folder: Path
    environment: Mapping[str, str]
    port: int
    restarts: int = 0
    _process: asyncio.subprocess.Process | None = field(default=None)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def start(self) -> None:
        with (self.folder / "service.log").open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "segue", "serve", "--port", str(self.port)),
                cwd=self.folder,
                env=dict(self.environment),
                stdout=log,
                stderr=log,
            )

    async def restart(self) -> None:
        """Kills the service with SIGKILL and starts it again."""
        if self._process is not None:
            self._process.kill()
            await self._process.wait()
        self.restarts += 1
        await self.start()

    def check(self) -> None:
        """Raises CannotPlay, with the end of the log, if the service has ended by itself."""
        if self._process is None or self._process.returncode is None:
            return
        lines = (self.folder / "service.log").read_text("utf-8", "replace").splitlines()
        raise CannotPlay("\n".join(["The service has stopped. Its log ends so:", *lines[-SHOWN_LOG_LINES:]]))

    async def stop(self) -> None:
        if self._process is None or self._process.returncode is not None:
            return
        self._process.terminate()
        try:
            async with asyncio.timeout(STOP_TIMEOUT_S):
                await self._process.wait()
        except TimeoutError:
            self._process.kill()
            await self._process.wait()


@asynccontextmanager
async def own_service(environment: Mapping[str, str], mcp_config: str) -> AsyncIterator[OwnService]:
    """Yields a service that has started but may not answer yet. It gets none of the caller's settings."""
    with tempfile.TemporaryDirectory(prefix="segue-replay-") as name:
        folder = Path(name)
        (folder / "mcp.json").write_text(mcp_config, "utf-8")
        stores = embedded_servers(folder / "data", fast=True)
        servers = await asyncio.to_thread(stores.__enter__)
        try:
            inherited = {variable: os.environ[variable] for variable in INHERITED if variable in os.environ}
            own = {
                "PYTHONPATH": str(Path(__file__).parents[2]),
                "DATABASE_URL": servers.database_url,
                "REDIS_URL": servers.redis_url,
                "MCP_CONFIG": "mcp.json",
            }
            service = OwnService(folder, {**inherited, **own, **environment}, _free_port())
            await service.start()
            try:
                yield service
            finally:
                await service.stop()
        finally:
            await asyncio.to_thread(stores.__exit__, None, None, None)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])
