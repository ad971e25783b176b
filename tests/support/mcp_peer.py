"""MCP servers for tests: one over HTTP by hand, and the programs of tests/mcp. Connects to them, calls their tools."""

import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from segue.domain.tool import Tool, ToolContext
from segue.mcp.mcp_config import McpConfig, read_mcp_config
from segue.mcp.mcp_servers import McpServers
from segue.tools.normalize import Unread
from tests.support import logs
from tests.support.commands import ROOT, python
from tests.support.patience import PATIENCE_S
from tests.support.server import serving

PROGRAMS = ROOT / "tests" / "mcp"
SERVER = str(PROGRAMS / "mcp_server.py")
STDIO = {"command": python()[0], "args": [*python()[1:], SERVER, "stdio"]}
SMALL = {"command": "python", "args": ["-I", "-S", str(PROGRAMS / "mcp_small_server.py")]}
PROTOCOL = {"command": "python", "args": [str(PROGRAMS / "mcp_protocol_server.py")]}

WHO = ToolContext(owner="o", session_id="s", turn_id="t", tool_call_id="c", now=datetime(2026, 1, 1, tzinfo=UTC))
INITIALIZED = {
    "protocolVersion": "2025-06-18",
    "serverInfo": {"name": "x", "version": "1"},
    "capabilities": {"tools": {}},
}
TOOL = {"name": "look", "inputSchema": {"type": "object"}}


class Peer:
    """An MCP server by hand: what it was sent, and an answer of the test's own to a `tools/call`."""

    def __init__(
        self, answer: Callable[[Any], Response] | None = None, tools: Sequence[Mapping[str, Any]] = (TOOL,)
    ) -> None:
        self.headers: list[dict[str, str]] = []
        self.answer = answer
        self.tools = tools

    async def serve(self, request: Request) -> Response:
        self.headers.append(dict(request.headers))
        body = json.loads(await request.body() or b"{}")
        match body.get("method"):
            case "initialize":
                return said(body, INITIALIZED)
            case "tools/list":
                return said(body, {"tools": self.tools})
            case "tools/call" if self.answer:
                return self.answer(body)
            case _ if "id" in body:
                return Response(
                    json.dumps({"jsonrpc": "2.0", "id": body["id"], "error": {"code": -32601, "message": "no"}})
                )
            case _:
                return Response(status_code=202 if body else 405)


def said(body: Any, result: Any) -> Response:
    answer = {"jsonrpc": "2.0", "id": body["id"], "result": result}
    return Response(json.dumps(answer), media_type="application/json")


@asynccontextmanager
async def listening(peer: Peer, *more: Route) -> AsyncIterator[int]:
    async with serving(Starlette(routes=[Route("/mcp", peer.serve, methods=["GET", "POST", "DELETE"]), *more])) as url:
        yield int(url.rpartition(":")[2])


@asynccontextmanager
async def connected(folder: Path, server: dict[str, Any]) -> AsyncIterator[McpServers]:
    async with McpServers(configured(folder, server), timeout_s=10) as servers:
        yield servers


def configured(folder: Path, server: dict[str, Any]) -> McpConfig:
    file = folder / "mcp.json"
    file.write_text(json.dumps({"mcpServers": {"peer": server}}))
    return read_mcp_config(file)


def tool(servers: McpServers, name: str) -> Tool:
    return next(tool for tool in servers.tools() if tool.spec.name == f"mcp_{name}")


async def call(servers: McpServers, name: str, **arguments: object) -> object:
    answer = await tool(servers, name).run(arguments, WHO)
    return answer.read(answer.text) if isinstance(answer, Unread) else answer


async def until(condition: Callable[[], bool]) -> None:
    async def holds() -> bool:
        return condition()

    await logs.until(holds)


@asynccontextmanager
async def speaking_protocol(folder: Path, **more: Any) -> AsyncIterator[McpServers]:
    """A connection to the program `mcp_protocol_server.py`, with more members in its entry of `mcp.json`."""
    file = folder / "mcp.json"
    file.write_text(json.dumps({"mcpServers": {"ours": {**PROTOCOL, **more}}}))
    async with McpServers(read_mcp_config(file), timeout_s=PATIENCE_S, start_timeout_s=PATIENCE_S) as servers:
        yield servers
