"""A stdio MCP server by hand that answers until it has listed its tools, and then floods as it is told."""

import json
import sys
from typing import Any

PADDING = "x" * 100_000
NOTES: dict[str, dict[str, Any]] = {
    "asks": {"id": 7, "method": "ping"},
    "announces": {"method": "notifications/tools/list_changed"},
    "logs": {"method": "notifications/message", "params": {"level": "info", "data": PADDING}},
    "answers": {"id": 7, "result": {}},
}


def result(method: str) -> dict[str, Any]:
    if method != "initialize":
        return {"tools": [{"name": "look", "inputSchema": {"type": "object"}}]}
    about = {"serverInfo": {"name": "flood", "version": "1"}, "capabilities": {"tools": {}}}
    return {"protocolVersion": "2025-06-18", **about}


def serve(kind: str) -> None:
    for line in sys.stdin:
        request = json.loads(line)
        match request["method"]:
            case "initialize" | "tools/list" as method:
                print(json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": result(method)}), flush=True)  # noqa: T201
                if method == "tools/list":
                    flood(kind)
            case _ if "id" in request:
                refused = {"error": {"code": -32601, "message": "no such method"}}
                print(json.dumps({"jsonrpc": "2.0", "id": request["id"], **refused}), flush=True)  # noqa: T201


def flood(kind: str) -> None:
    out = sys.stderr if kind == "complains" else sys.stdout
    text = json.dumps({"jsonrpc": "2.0", **NOTES[kind]}) + "\n" if kind in NOTES else PADDING
    while True:
        out.write(text)


if __name__ == "__main__":
    serve(sys.argv[1])
