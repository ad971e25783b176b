"""The protocol's conformance suite, against Segue as a client and as a server: `make proof-mcp`, no part of CI.

The scenarios are of the sets that the suite has frozen for a revision of the protocol. Most of those for servers want
tools and prompts that only a server made for the suite has, and `auth/*` of clients a login: the lists have to pass.
"""

import asyncio
import json
import os
import re
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
MODULES = OFFICIAL / "node_modules"
SUITE = MODULES / "@modelcontextprotocol" / "conformance" / "dist" / "index.js"
NODE = os.environ.get("NODE", str(MODULES / ".bin" / "node"))  # the suite needs Node 22
WITHIN_S = 900
OF_A_CLIENT = {
    "2025-11-25": {"initialize", "tools_call", "sse-retry"},
    "2026-07-28": {
        "tools_call", "request-metadata", "sep-2322-client-request-state", "http-standard-headers",
        "http-custom-headers", "http-invalid-tool-headers", "json-schema-ref-no-deref",
    },
}  # fmt: skip
OF_A_SERVER = {
    "2025-11-25": {
        "server-initialize", "ping", "tools-list", "tools-call-error", "server-sse-multiple-streams", "resources-list",
        "prompts-list", "dns-rebinding-protection",
    },
    "2026-07-28": {
        "tools-list", "tools-call-error", "server-sse-multiple-streams", "resources-list", "prompts-list",
        "sep-2164-resource-not-found", "dns-rebinding-protection", "caching",
    },
}  # fmt: skip
REVISIONS = sorted(OF_A_CLIENT)

pytestmark = [
    pytest.mark.skipif(not SUITE.exists(), reason="the conformance suite is not installed: make proof-mcp"),
    pytest.mark.timeout(WITHIN_S),
]


async def run_suite(folder: Path, *arguments: str) -> tuple[bool, str]:
    """Returns whether all passed, and what it printed."""
    process = await asyncio.create_subprocess_exec(
        NODE, SUITE, *arguments, cwd=folder, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    said, _ = await asyncio.wait_for(process.communicate(), WITHIN_S)
    return process.returncode == 0, said.decode()


def tell(capsys: pytest.CaptureFixture[str], what: str, found: dict[str, bool]) -> None:
    with capsys.disabled():
        names = ", ".join(name for name, has_passed in found.items() if has_passed)
        print(f"\n{what}: {sum(found.values())} of {len(found)} scenarios: {names}")  # noqa: T201 (for docs/proof.md)


@pytest.mark.parametrize("revision", REVISIONS)
async def test_segue_as_a_client_conforms(revision: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = f"{sys.executable} {OFFICIAL / 'client.py'}"
    found = {}
    for scenario in sorted(OF_A_CLIENT[revision]):  # one by one: all at once, forty programs start
        asked = ("client", "--command", command, "--scenario", scenario, "--spec-version", revision)
        found[scenario], _ = await run_suite(tmp_path, *asked, "--timeout", "120000")
    tell(capsys, f"client, {revision}", found)
    assert all(found.values())


@pytest.fixture
def port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        found = listener.getsockname()[1]
    serve = ("mcp", "serve", "--url", "http://127.0.0.1:1", "--port", str(found))
    process = subprocess.Popen((sys.executable, "-m", "segue", *serve), stderr=subprocess.DEVNULL)
    yield found
    process.kill()
    process.wait(PATIENCE_S)


@pytest.mark.parametrize("revision", REVISIONS)
async def test_segue_as_a_server_conforms(
    revision: str, port: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"http://127.0.0.1:{port}/mcp"

    async def answers() -> bool:
        try:
            async with httpx2.AsyncClient() as http:
                return bool((await http.post(url, content=json.dumps({}))).status_code)
        except httpx2.TransportError:
            return False

    await until(answers)
    _, said = await run_suite(tmp_path, "server", "--url", url, "--requirements", revision)
    found = {name: mark == "✓" for mark, name in re.findall(r"^([✓✗]) (\S+): \d+ passed", said, re.MULTILINE)}
    tell(capsys, f"server, {revision}", found)
    assert {name for name in OF_A_SERVER[revision] if not found.get(name)} == set()
