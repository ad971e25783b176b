"""Clients of others that run on Node: scripts in tests/clients, with what `make npm-clients` installs beside them."""

import asyncio
import shutil
from pathlib import Path

import pytest

from tests.support.commands import ROOT, TIMEOUT_S

CLIENTS = ROOT / "tests" / "clients"
INSTALLED = CLIENTS / "node_modules" / ".package-lock.json"  # npm writes it last
needs_node = pytest.mark.skipif(
    shutil.which("node") is None or not INSTALLED.exists(),
    reason="there is no Node or no client on it: make npm-clients",
)


async def node(script: str | Path, *arguments: str | Path, timeout_s: float = TIMEOUT_S) -> str:
    """What a script in tests/clients prints, or a program of Node's elsewhere. It fails if the script does."""
    process = await asyncio.create_subprocess_exec(
        "node", CLIENTS / script, *arguments, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    try:
        said, complained = await asyncio.wait_for(process.communicate(), timeout_s)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, (said + complained).decode()
    return said.decode()
