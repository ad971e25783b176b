"""How far a call is: what that does to its time limit, and what a server may do with it."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from segue.domain.tool import Tool, ToolContext, ToolFailed
from segue.mcp.mcp_config import read_mcp_config
from segue.mcp.mcp_servers import McpServers
from tests.support.patience import PATIENCE_S

SERVER = {"command": "python", "args": [str(Path(__file__).with_name("mcp_protocol_server.py"))]}
WHO = ToolContext(owner="o", session_id="s", turn_id="t", tool_call_id="c", now=datetime(2026, 1, 1, tzinfo=UTC))

Said = list[tuple[float, float | None, str | None]]


@asynccontextmanager
async def connected(folder: Path, **more: Any) -> AsyncIterator[McpServers]:
    file = folder / "mcp.json"
    file.write_text(json.dumps({"mcpServers": {"ours": {**SERVER, **more}}}))
    async with McpServers(read_mcp_config(file), timeout_s=PATIENCE_S, start_timeout_s=PATIENCE_S) as servers:
        yield servers


def tool(servers: McpServers, name: str) -> Tool:
    return next(tool for tool in servers.tools() if tool.spec.name == f"mcp_{name}")


def hearing(said: Said) -> ToolContext:
    return replace(WHO, report=lambda *report: said.append(report))


async def test_a_call_is_told_how_far_it_is(tmp_path: Path) -> None:
    said: Said = []
    async with connected(tmp_path) as servers:
        assert await tool(servers, "count_up").run({"to": 2, "message": "mails"}, hearing(said)) == "counted"
    assert said == [(0, 2, "mails"), (1, 2, "mails")]


async def test_progress_gives_a_call_its_time_again_up_to_a_ceiling(tmp_path: Path) -> None:
    async with connected(tmp_path, timeout_s=1) as servers:
        called_at = monotonic()
        with pytest.raises(ToolFailed, match=r"stall did not answer within 1\.\d+ s") as failed:
            await tool(servers, "stall").run({}, WHO)
        assert monotonic() - called_at >= float(str(failed.value).split()[-2])
    async with connected(tmp_path, timeout_s=1, max_timeout_s=0.2) as servers:
        with pytest.raises(ToolFailed, match=r"stall did not answer within 0\.2 s"):
            await tool(servers, "stall").run({}, WHO)


async def test_a_flood_of_progress_is_not_read_and_ends_nothing(tmp_path: Path) -> None:
    said: Said = []
    async with connected(tmp_path) as servers:
        assert await tool(servers, "count_up").run({"to": 20_000}, hearing(said)) == "counted"
        assert servers.statuses()[0].last_error is None
        assert servers.states() == {"ours": "ready"}
    assert len(said) < 200
