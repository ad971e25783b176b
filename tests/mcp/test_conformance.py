"""The protocol's conformance suite, against Segue as a client and as a server: `make mcp-conformance`, no part of CI.

Most scenarios for servers need tools that only a server made for the suite has; OF_A_SERVER are the others.
"""

import asyncio
import json
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from tests.support.commands import ROOT
from tests.support.logs import until
from tests.support.patience import PATIENCE_S

OFFICIAL = ROOT / "tests" / "mcp" / "official"
SUITE = OFFICIAL / "node_modules" / "@modelcontextprotocol" / "conformance" / "dist" / "index.js"
NODE = os.environ.get("NODE", "node")
OF_A_CLIENT = ("initialize", "tools_call", "sse-retry")
OF_A_SERVER = (
    "server-initialize", "ping", "tools-list", "tools-call-error", "server-sse-multiple-streams", "resources-list",
    "prompts-list", "dns-rebinding-protection",
)  # fmt: skip


def _node_version() -> int:
    """The suite needs Node 22."""
    if shutil.which(NODE) is None:
        return 0
    said = subprocess.run((NODE, "--version"), capture_output=True, text=True, check=True).stdout
    return int(re.sub(r"\D.*", "", said.removeprefix("v")))


pytestmark = pytest.mark.skipif(
    not SUITE.exists() or _node_version() < 22,
    reason="the conformance suite is not installed, or Node is older than 22: make mcp-conformance NODE=…",
)


async def suite(folder: Path, *arguments: str) -> None:
    process = await asyncio.create_subprocess_exec(
        NODE, SUITE, *arguments, cwd=folder, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    said, _ = await asyncio.wait_for(process.communicate(), PATIENCE_S)
    assert process.returncode == 0, said.decode()


@pytest.mark.parametrize("scenario", OF_A_CLIENT)
async def test_segue_as_a_client_conforms(scenario: str, tmp_path: Path) -> None:
    command = f"{sys.executable} {OFFICIAL / 'client.py'}"
    await suite(tmp_path, "client", "--command", command, "--scenario", scenario)


@pytest.fixture
def port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        found = listener.getsockname()[1]
    serve = ("mcp", "serve", "--url", "http://127.0.0.1:1", "--port", str(found))
    process = subprocess.Popen((sys.executable, "-m", "segue", *serve))
    yield found
    process.kill()
    process.wait(PATIENCE_S)


async def test_segue_as_a_server_conforms(port: int, tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{port}/mcp"

    async def answers() -> bool:
        try:
            async with httpx2.AsyncClient() as http:
                return bool((await http.post(url, content=json.dumps({}))).status_code)
        except httpx2.TransportError:
            return False

    await until(answers)
    for scenario in OF_A_SERVER:
        await suite(tmp_path, "server", "--url", url, "--scenario", scenario)
