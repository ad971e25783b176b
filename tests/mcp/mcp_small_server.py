"""A stdio MCP server by hand that starts fast: says its process or what it is told, waits for a pipe, lists more."""

import json
import os
import sys
from pathlib import Path
from typing import Any

TOOLS = [{"name": name, "inputSchema": {"type": "object"}} for name in ("pid", "hold", "learn", "echo")]
CHANGED = json.dumps({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"})
NOTE = json.dumps({"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": "x"}})
more: list[str] = []


def answer(request: dict[str, Any]) -> dict[str, Any]:
    match request["method"]:
        case "initialize":
            about = {"serverInfo": {"name": "small", "version": "1"}, "capabilities": {"tools": {}}}
            return {"result": {"protocolVersion": "2025-06-18", **about}}
        case "tools/list":
            return {"result": {"tools": TOOLS + [{"name": name, "inputSchema": {"type": "object"}} for name in more]}}
        case "tools/call":
            wants, arguments = request["params"]["name"], request["params"]["arguments"]
            if wants == "echo":
                return {"result": arguments["result"]}
            if wants == "learn":
                more[:] = arguments["names"]
                print(CHANGED, flush=True)  # noqa: T201 (the protocol)
            print(f"{NOTE}\n\n" * arguments.get("notes", 0), end="", flush=True)  # noqa: T201 (the same)
            text = Path(arguments["pipe"]).read_text("utf-8") if wants == "hold" else str(os.getpid())
            return {"result": {"content": [{"type": "text", "text": text}]}}
        case _:
            return {"error": {"code": -32601, "message": "no such method"}}


is_begun = "--strict" not in sys.argv
for line in sys.stdin:
    asked = json.loads(line)
    if not is_begun and asked["method"] != "initialize":
        sys.exit("expect initialized request")
    is_begun = True
    if "id" in asked:
        print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], **answer(asked)}), flush=True)  # noqa: T201
