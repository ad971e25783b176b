"""A stdio MCP server by hand, protocol of 2025, whose tools ask the user. Its argument is a file of effects."""

import json
import sys
from collections.abc import Generator
from itertools import count
from pathlib import Path
from typing import Any

WRITES = {"destructiveHint": False}
READS = {"readOnlyHint": True}
ABOUT = {"protocolVersion": "2025-11-25", "serverInfo": {"name": "asking", "version": "1"}}
ANY = {"type": "object"}
TOOLS = [
    {"name": "deliver", "annotations": WRITES, "inputSchema": ANY},
    {"name": "survey", "annotations": READS, "inputSchema": ANY},
    {"name": "ask_raw", "annotations": READS, "inputSchema": ANY},
    {"name": "statement", "annotations": READS, "inputSchema": ANY},
    {"name": "both", "annotations": READS, "inputSchema": ANY},
]
ADDRESS = {
    "type": "object",
    "properties": {"address": {"type": "string"}, "guests": {"type": "integer", "minimum": 1}},
    "required": ["address", "guests"],
}
LINK = {"mode": "url", "message": "Log in.", "url": "https://bank.example/login", "elicitationId": "e-1"}
numbers = count(1000)
asked: dict[int, tuple[int, Generator[dict[str, Any], dict[str, Any], Any]]] = {}


def send(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def form(message: str, schema: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"mode": "form", "message": message, "requestedSchema": schema or {"type": "object", "properties": {}}}


def deliver(args: dict[str, Any]) -> Generator[dict[str, Any], dict[str, Any], Any]:
    answer = yield form("Where to, and for how many? token=s3cr3t-of-the-server", ADDRESS)
    if answer["result"]["action"] != "accept":
        return answer["result"]["action"]
    with Path(sys.argv[1]).open("a") as effects:
        effects.write(f"{args['what']} to {answer['result']['content']['address']}\n")
    return "delivered"


def survey(args: dict[str, Any]) -> Generator[dict[str, Any], dict[str, Any], Any]:
    said = []
    for number in range(args["questions"]):
        answer = yield form("Again?" if args.get("same") else f"Question {number}?")
        said.append(answer["result"]["action"])
    return " ".join(said)


def ask_raw(args: dict[str, Any]) -> Generator[dict[str, Any], dict[str, Any], Any]:
    answer = yield args["question"]
    return json.dumps(answer.get("error") or answer["result"])


def statement(_: dict[str, Any]) -> Generator[dict[str, Any], dict[str, Any], Any]:
    yield from ()
    if not Path(sys.argv[1]).exists():
        return {"code": -32042, "message": "log in", "data": {"elicitations": [LINK]}}
    return "seven"


waiting: list[Any] = []


def both(args: dict[str, Any]) -> Generator[dict[str, Any], dict[str, Any], Any]:
    """Asks once it was called twice, also if the first call was cancelled meanwhile."""
    answer = yield form(f"For {args['who']}?")
    return f"{args['who']} {answer['result']['action']}"


CALLS = {"deliver": deliver, "survey": survey, "ask_raw": ask_raw, "statement": statement, "both": both}


def go_on(call_id: int, run: Generator[dict[str, Any], dict[str, Any], Any], answer: dict[str, Any] | None) -> None:
    try:
        question = next(run) if answer is None else run.send(answer)
    except StopIteration as end:
        if isinstance(end.value, dict):
            send({"id": call_id, "error": end.value})
        else:
            send({"id": call_id, "result": {"content": [{"type": "text", "text": end.value}]}})
        return
    number = next(numbers)
    asked[number] = call_id, run
    send({"id": number, "method": "elicitation/create", "params": question})


def begin(message: dict[str, Any]) -> None:
    params = message["params"]
    run = CALLS[params["name"]](params.get("arguments") or {})
    if params["name"] == "both" and (params.get("arguments") or {}).get("together"):
        waiting.append((message["id"], run))
        if len(waiting) < 2:
            token = params["_meta"]["progressToken"]
            send({"method": "notifications/progress", "params": {"progressToken": token, "progress": 1}})
            return
        for call_id, each in waiting:
            go_on(call_id, each, None)
        waiting.clear()
    else:
        go_on(message["id"], run, None)


def serve() -> None:
    for line in sys.stdin:
        message = json.loads(line)
        match message.get("method"):
            case None if message["id"] in asked:
                call_id, run = asked.pop(message["id"])
                go_on(call_id, run, message)
            case "notifications/cancelled":
                ended = message["params"]["requestId"]
                for number in [number for number, (call_id, _) in asked.items() if call_id == ended]:
                    del asked[number]
            case "initialize":
                send({"id": message["id"], "result": {**ABOUT, "capabilities": {"tools": {}}}})
            case "tools/list":
                send({"id": message["id"], "result": {"tools": TOOLS}})
            case "tools/call":
                begin(message)
            case str() if "id" in message:
                send({"id": message["id"], "error": {"code": -32601, "message": "no such method"}})


if __name__ == "__main__":
    serve()
