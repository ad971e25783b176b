"""A stdio MCP server by hand, protocol of 2025: announces what the SDK would not, and starts fast."""

import json
import sys
from typing import Any


def odd_tools() -> list[object]:
    hidden = {"description": "the i\u200bd\U000e0041", "examples": ["a\u202eb"], "x-note": "\U000e0049seen"}
    fine = {"type": "object", "properties": {"id": {"type": "string", "pattern": "a\u200bb", **hidden}}}
    deep = {"type": "object", "properties": {"x": {"type": "no such type"}}}
    away = {"type": "object", "properties": {"x": {"$ref": "http://127.0.0.1:9/schema.json"}}}
    nested: dict[str, Any] = {"type": "object"}
    for _ in range(80):
        nested = {"type": "object", "properties": {"x": nested}}
    doubling = {"type": "object", "properties": {"text": {"type": "string", "pattern": "^(a+)+$"}}}
    nulls = {
        "x": {"type": "string", "required": True, "default": None, "enum": None},
        "default": {"const": {"a": None, "b": "\u200b"}, "title": None, "description": "the i\u200bd"},
        "required": {"enum": [{"a": None}], "default": {"a": None}, "items": None},
    }
    return [
        {"name": "nulls", "inputSchema": {"type": "object", "properties": nulls, "required": None}},
        {"name": "match", "inputSchema": {"type": "object"}, "outputSchema": doubling},
        {"name": "large", "inputSchema": {"type": "object"}},
        {"name": "add", "inputSchema": {"type": "object"}},
        {"name": "die", "inputSchema": {"type": "object"}},
        "not a tool",
        {"name": "no schema"},
        {"name": "bare", "inputSchema": {}},
        {"name": "list", "inputSchema": {"type": "array"}},
        {"name": "wrong", "inputSchema": deep},
        {"name": "away", "inputSchema": away},
        {"name": "vast", "inputSchema": {"type": "object", "properties": {"x": {"maximum": 10**30}}}},
        {"name": "nested", "inputSchema": nested},
        {"name": "huge", "inputSchema": {**fine, "description": "x" * 40_000}},
        {"name": "wordy", "description": "x" * 70_000, "inputSchema": fine},
        {"name": "n" * 80, "inputSchema": fine},
        {"name": "lire le courrier", "description": "reads\u202e \U000e0049\x07mail" + "!" * 3000, "inputSchema": fine},
        {"name": "loose", "inputSchema": fine, "outputSchema": {"type": "string"}},
        *({"name": f"t{number}", "inputSchema": fine} for number in range(10_000)),
    ]


def answer_oddly(request: dict[str, Any]) -> dict[str, Any]:
    match request["method"]:
        case "initialize":
            about = {"serverInfo": {"name": "odd", "version": "1"}, "capabilities": {"tools": {}}}
            return {"result": {"protocolVersion": "2025-06-18", **about}}
        case "tools/list":
            return {"result": {"tools": odd_tools()}}
        case "tools/call":
            return call(request["params"]["name"], request["params"]["arguments"])
        case _:
            return {"error": {"code": -32601, "message": "no such method"}}


def call(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    match name:
        case "add":
            return {"result": {"content": [{"type": "text", "text": str(arguments["a"] + arguments["b"])}]}}
        case "die":
            sys.exit(3)
        case "large":
            size, piece = arguments["size"], arguments["piece"]
            answer = f'{{"result": [{",".join([piece] * (size // (len(piece) + 1)))}]}}'
            return {"result": {"content": [], "structuredContent": json.loads(answer)}}
        case "match":
            return {"result": {"content": [], "structuredContent": {"text": "a" * 27 + "!"}}}
        case _:
            return {"error": {"code": -32602, "message": "id must be eml- and six digits"}}


def serve_oddly() -> None:
    for line in sys.stdin:
        request = json.loads(line)
        if "id" in request:
            print(json.dumps({"jsonrpc": "2.0", "id": request["id"], **answer_oddly(request)}), flush=True)  # noqa: T201


if __name__ == "__main__":
    serve_oddly()
