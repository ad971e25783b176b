"""A stdio MCP server that tells its secret wherever it can, or (`dying`) while it ends. It starts without the SDK."""

import json
import os
import sys
from typing import Any

SECRET = os.environ.get("MAIL_TOKEN", "")


def answer(method: str, params: dict[str, Any]) -> dict[str, Any]:
    match method, params.get("name"):
        case "initialize", _:
            about = {"serverInfo": {"name": SECRET, "version": "1"}, "capabilities": {"tools": {}}}
            return {"result": {"protocolVersion": "2025-06-18", **about}}
        case "tools/list", _:
            reads = {"inputSchema": {"type": "object"}, "annotations": {"readOnlyHint": True}}
            return {"result": {"tools": [{"name": name, **reads} for name in ("works", "fails", "refuses")]}}
        case "tools/call", "works":
            return {"result": said(json.dumps({"id": "x-1", SECRET: [f"used {SECRET}"]}))}
        case "tools/call", "fails":
            return {"result": {**said(f"HTTP 401: the token {SECRET} is not valid"), "isError": True}}
        case "tools/call", _:
            return {"error": {"code": -32000, "message": f"refused: {SECRET}"}}
        case _:
            return {"result": {}}


def said(text: str) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": text}]}


def serve() -> None:
    print(f"starting with {SECRET} {sys.argv} {os.environ}", file=sys.stderr, flush=True)  # noqa: T201
    if "dying" in sys.argv:
        print(SECRET, flush=True)  # noqa: T201
        sys.exit(3)
    for line in sys.stdin:
        request = json.loads(line)
        told = {"jsonrpc": "2.0", "id": request.get("id"), **answer(request["method"], request.get("params", {}))}
        if "id" in request:
            print(json.dumps(told), flush=True)  # noqa: T201


if __name__ == "__main__":
    serve()
