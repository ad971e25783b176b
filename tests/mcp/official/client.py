"""A client for the protocol's conformance suite: connects as Segue does, makes the calls that the suite names, else one
of every tool, and says yes to what a call asks.

python tests/mcp/official/client.py URL
"""

import asyncio
import json
import os
import sys
import tempfile
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from segue.domain.tool import Tool, ToolContext, ToolFailed, ToolRetry
from segue.domain.user_request import ToolAsks, UserAnswer
from segue.mcp.mcp_config import read_mcp_config
from segue.mcp.mcp_servers import McpServers

WHO = ToolContext(owner="o", session_id="s", turn_id="t", tool_call_id="c", now=datetime(2026, 1, 1, tzinfo=UTC))
VALUES = {"number": 1, "integer": 1, "boolean": True, "array": [], "object": {}}
QUESTIONS = 5  # of one call


def arguments(schema: Any) -> dict[str, Any]:
    return {
        name: of.get("default", VALUES.get(of.get("type"), "x")) for name, of in schema.get("properties", {}).items()
    }


async def call(tool: Tool, args: dict[str, Any]) -> None:
    answers: list[UserAnswer] = []
    while len(answers) < QUESTIONS:
        try:
            with suppress(ToolFailed, ToolRetry):  # no server has a resource `x`
                await tool.run(args, replace(WHO, answers=tuple(answers)))
        except ToolAsks as asks:
            content = arguments(asks.request.schema or {})
            answers.append(UserAnswer(len(answers) + 1, asks.request.key, "accept", content, asks.state))
        else:
            return


async def main(url: str) -> int:
    named = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT") or "{}").get("toolCalls")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "mcp.json"
        file.write_text(json.dumps({"mcpServers": {"suite": {"url": url, "prefix": ""}}}))
        async with McpServers(read_mcp_config(file), timeout_s=20) as servers:
            tools = {tool.spec.name: tool for tool in servers.tools()}
            wanted = [(each["name"], each["arguments"]) for each in named or ()]
            for name, args in wanted or [(name, arguments(tool.spec.input_schema)) for name, tool in tools.items()]:
                await call(tools[name], args)
            return int(servers.states()["suite"] != "ready")


sys.exit(asyncio.run(main(sys.argv[1])))
