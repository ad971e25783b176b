"""A client for the protocol's conformance suite: connects as Segue does, and calls every tool once.

python tests/mcp/official/client.py URL
"""

import asyncio
import json
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from segue.domain.tool import ToolContext
from segue.mcp.mcp_config import read_mcp_config
from segue.mcp.mcp_servers import McpServers

WHO = ToolContext(owner="o", session_id="s", turn_id="t", tool_call_id="c", now=datetime(2026, 1, 1, tzinfo=UTC))
VALUES = {"number": 1, "integer": 1, "boolean": True, "array": [], "object": {}}


def arguments(schema: Any) -> dict[str, Any]:
    return {name: VALUES.get(of.get("type"), "x") for name, of in schema.get("properties", {}).items()}


async def main(url: str) -> int:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "mcp.json"
        file.write_text(json.dumps({"mcpServers": {"suite": {"url": url, "prefix": ""}}}))
        async with McpServers(read_mcp_config(file), timeout_s=20) as servers:
            for tool in servers.tools():
                await tool.run(arguments(tool.spec.input_schema), WHO)
            return int(servers.states()["suite"] != "ready")


sys.exit(asyncio.run(main(sys.argv[1])))
