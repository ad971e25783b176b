"""A stdio MCP server by hand, protocol of 2025, that uses what most servers leave out."""

import json
import sys
import time
from typing import Any

READS = {"readOnlyHint": True}
ABOUT = {"protocolVersion": "2025-11-25", "serverInfo": {"name": "protocol", "version": "1"}}
TOOLS = [
    {"name": "count_up", "annotations": READS, "inputSchema": {"type": "object"}},
    {"name": "add_note", "annotations": READS, "inputSchema": {"type": "object"}},
    {"name": "ask_back", "annotations": READS, "inputSchema": {"type": "object"}},
    {"name": "later", "inputSchema": {"type": "object"}, "execution": {"taskSupport": "required"}},
    {"name": "stall", "annotations": READS, "inputSchema": {"type": "object"}},
]


PROMPTS = [
    {"name": "plain"},
    {
        "name": "review/mail",
        "title": "Review a mail",
        "description": "Says what is wrong.\u202e",
        "arguments": [{"name": "id", "description": "of the mail", "required": True}, {"name": "tone"}],
    },
]
RESOURCES = [
    {"uri": "note://1", "name": "one", "mimeType": "text/plain", "size": 11},
    {"uri": "note://picture", "name": "picture", "mimeType": "image/png"},
    {"uri": "note://large", "name": "large"},
    {"uri": "note://locked", "name": "locked"},
]
TEMPLATES = [{"uriTemplate": "note://by-day/{day}", "name": "a day", "description": "The notes of a day."}]
client: dict[str, Any] = {}
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="


def send(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def report(request: dict[str, Any], **params: Any) -> None:
    token = request["params"]["_meta"]["progressToken"]
    send({"method": "notifications/progress", "params": {"progressToken": token, **params}})


def call(request: dict[str, Any]) -> dict[str, Any] | None:
    """The result of a call; `stall` never has one."""
    name, arguments = request["params"]["name"], request["params"]["arguments"]
    if name == "stall":
        time.sleep(0.5)  # half of what the caller waits without progress
        report(request, progress=1, message="half of it")
        return None
    if name == "ask_back":
        return ask_back()
    if name == "add_note":
        RESOURCES.append({"uri": "note://2", "name": "two"})
        send({"method": "notifications/resources/list_changed"})
        link = {"type": "resource_link", "uri": "note://draft", "name": "draft"}
        return {"content": [{"type": "text", "text": "added"}, link]}
    for number in range(arguments["to"]):
        report(request, progress=number, total=arguments["to"], message=arguments.get("message"))
    return {"content": [{"type": "text", "text": "counted"}]}


def ask_back() -> dict[str, Any]:
    """What the client answers to requests of ours, and what it said that it can."""
    params = {"messages": [{"role": "user", "content": {"type": "text", "text": "hi"}}], "maxTokens": 9}
    send({"id": "sample", "method": "sampling/createMessage", "params": params})
    send({"id": "roots", "method": "roots/list"})
    answers = [json.loads(sys.stdin.readline()) for _ in range(2)]
    said = {each["id"]: each["error"]["message"] for each in answers}
    return {"content": [], "structuredContent": {**said, "can": client}}


def contents(uri: str) -> list[dict[str, Any]]:
    match uri:
        case "note://picture":
            return [{"uri": uri, "mimeType": "image/png", "blob": PIXEL}]
        case "note://large":
            return [{"uri": uri, "text": "[{}]" * 200_000}]
        case _:
            return [{"uri": uri, "mimeType": "text/plain", "text": f"what stands at {uri}"}]


def fill(name: str, arguments: dict[str, str]) -> dict[str, Any]:
    said = json.dumps(arguments) if name != "plain" else "x" * 40_000
    picture = {"type": "image", "data": PIXEL, "mimeType": "image/png"}
    return {
        "description": "A review.",
        "messages": [
            {"role": "user", "content": {"type": "text", "text": said}},
            {"role": "assistant", "content": picture},
        ],
    }


def answer(request: dict[str, Any]) -> dict[str, Any] | None:  # noqa: PLR0911 (one line per method)
    """None for what is not answered. Raises KeyError for what the server does not know."""
    params = request.get("params", {})
    match request["method"]:
        case "initialize":
            client.update(params["capabilities"])
            return {**ABOUT, "capabilities": {"tools": {}, "resources": {"listChanged": True}, "prompts": {}}}
        case "tools/list":
            return {"tools": TOOLS}
        case "tools/call":
            return call(request)
        case "resources/list" if "cursor" in params:
            return {"resources": RESOURCES[1:]}
        case "resources/list":
            return {"resources": RESOURCES[:1], "nextCursor": "more"}
        case "resources/templates/list":
            return {"resourceTemplates": TEMPLATES}
        case "resources/read" if params["uri"] != "note://locked":
            return {"contents": contents(params["uri"])}
        case "prompts/list":
            return {"prompts": PROMPTS}
        case "prompts/get":
            return fill(params["name"], params["arguments"])
        case method:
            raise KeyError(method)


def answer_of_2026(request: dict[str, Any]) -> dict[str, Any]:
    """The answers of a server of 2026-07-28, whose only tool wants the client's model."""
    complete = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}
    match request["method"]:
        case "server/discover":
            about = {"serverInfo": ABOUT["serverInfo"], "capabilities": {"tools": {}}}
            return {**complete, **about, "supportedVersions": ["2026-07-28"]}
        case "tools/list":
            return {**complete, "tools": TOOLS[:1]}
        case _:
            asked = {"messages": [{"role": "user", "content": {"type": "text", "text": "hi"}}], "maxTokens": 9}
            wanted = {"model": {"method": "sampling/createMessage", "params": asked}}
            return {"resultType": "input_required", "inputRequests": wanted}


def serve() -> None:
    for line in sys.stdin:
        request = json.loads(line)
        if "id" not in request:
            continue
        try:
            if (result := (answer_of_2026 if sys.argv[1:] else answer)(request)) is not None:
                send({"id": request["id"], "result": result})
        except KeyError:
            send({"id": request["id"], "error": {"code": -32601, "message": "no such thing"}})


if __name__ == "__main__":
    serve()
