"""A stdio MCP server by hand, since the SDK takes a second to import: tools that return what a test asks of them."""

import base64
import json
import sys
from collections import Counter
from typing import Any

SCHEMAS: dict[str, dict[str, Any]] = {
    "big": {"n_bytes": {"type": "integer"}},
    "table": {"rows": {"type": "integer"}},
    "plain_text": {"lines": {"type": "integer"}},
    "fails": {"message": {"type": "string"}},
    "returns_binary": {},
    "read_file": {"path": {"type": "string"}},
    "photo": {"of": {"type": "string"}},
    "drawing": {"n_bytes": {"type": "integer"}},
    "count": {"of": {"type": "string"}},
    "echo": {},
    "slow": {},
}
counted: Counter[str] = Counter()
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="
NOTE = b"\x00\xff not text " * 40

ODD: dict[str, Any] = {
    "type": "object",
    "properties": {
        "list": {"type": "array"},
        "size": {"$ref": "#/$defs/size"},
        "when": {"pattern": "x", "format": "uri"},
    },
    "anyOf": [{"required": ["list"]}, {"required": ["size"]}],
    "$defs": {"size": {"type": ["integer", "null"], "maximum": 10}},
}


def listed() -> list[dict[str, Any]]:
    """`echo` takes any arguments, the others exactly their own. All only read, so that none needs a yes.

    The program's argument is a number of further tools, `odd_0` and so on, with a schema that many endpoints refuse.
    """
    odd = [
        {"name": f"odd_{number}", "description": "x" * 2000, "inputSchema": ODD, "annotations": {"readOnlyHint": True}}
        for number in range(int(sys.argv[1]) if sys.argv[1:] else 0)
    ]
    return odd + [
        {
            "name": name,
            "inputSchema": {"type": "object", "properties": arguments, "required": list(arguments)},
            "annotations": {"readOnlyHint": True},
        }
        for name, arguments in SCHEMAS.items()
    ]


def call(name: str, arguments: dict[str, Any]) -> dict[str, Any] | None:  # noqa: PLR0911 (one line per tool)
    """A `tools/call` result; `slow` never has one."""
    match name:
        case "big":
            return text("x" * arguments["n_bytes"])
        case "table":
            rows = [{"id": f"row-{number:06}", "title": f"Row {number}"} for number in range(arguments["rows"])]
            return {"content": [], "structuredContent": {"rows": rows, "total": len(rows)}}
        case "plain_text":
            return text("".join(f'{number:06} «极光» "è"\n' for number in range(arguments["lines"])))
        case "fails":
            return {**text(arguments["message"]), "isError": True}
        case "returns_binary":
            return {"content": [{"type": "image", "data": "AAAA" * 100, "mimeType": "image/png"}]}
        case "read_file" | "photo" | "drawing":
            return file(name, arguments)
        case "count":
            counted[arguments["of"]] += 1
            return {"content": [], "structuredContent": {"calls": counted[arguments["of"]]}}
        case _ if name == "echo" or name.startswith("odd_"):
            return {"content": [], "structuredContent": arguments}
        case _:
            return None


def file(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    if name == "read_file":
        return {"content": [], "structuredContent": {"content": "import os\n" * 342, "path": arguments["path"]}}
    if name == "drawing":
        drawn = base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(arguments["n_bytes"])).decode()
        return {"content": [{"type": "image", "data": drawn, "mimeType": "image/png"}]}
    image = {"type": "image", "data": PIXEL, "mimeType": "image/png"}
    note = {"uri": "file:///note.bin", "blob": base64.b64encode(NOTE).decode()}
    return {"content": [*text("a photo")["content"], image, {"type": "resource", "resource": note}]}


def text(said: str) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": said}]}


def answer(method: str, params: dict[str, Any]) -> dict[str, Any] | None:
    match method:
        case "initialize":
            about = {"serverInfo": {"name": "toolbox", "version": "1"}, "capabilities": {"tools": {}}}
            return {"protocolVersion": "2025-06-18", **about}
        case "tools/list":
            return {"tools": listed()}
        case "tools/call":
            return call(params["name"], params.get("arguments", {}))
        case _:
            return {}


def serve() -> None:
    for line in sys.stdin:
        request = json.loads(line)
        result = answer(request["method"], request.get("params", {})) if "id" in request else None
        if result is not None:
            print(json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": result}), flush=True)  # noqa: T201


if __name__ == "__main__":
    serve()
