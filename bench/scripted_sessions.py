"""The model, the tools and the messages of sessions whose requests are kept, and what each request would cost.

A provider charges less for the beginning of a request that it has seen: here the longest one that a request shares with
one of the last TWELVE, from 1,024 tokens on, in steps of 128. Tokens are `estimate`'s. Facts and summaries are noted by
the model as well and are counted in calls and dollars.
"""

import asyncio
import json
import socket
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import orjson
import uvicorn
from mcp.server.lowlevel import Server
from mcp_types import CallToolRequestParams, CallToolResult, ListToolsResult, TextContent, Tool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from segue.agent.prompts import TEXTS
from segue.memory.history_window import estimate

TWELVE, MINIMUM, STEP = 12, 1024, 128
PRICES = {"a million tokens of input": 0.25, "of cached input": 0.025, "of output": 2.00}  # dollars, a small model's
TOOLS, MANY = 20, 200
NEXT = 7  # tools further on is the one that the next turn needs
VERBS = ("find", "read", "list", "count", "compare", "sort", "check", "convert", "measure", "translate")
NOUNS = ("mail", "invoice", "meeting", "contact", "parcel", "photo", "recipe", "train", "hotel", "song")
SHORT, LONG = "few", "item"  # what a tool is asked for: four items, or thirty every other time
PLANNED = 10  # every tenth message asks for several steps
OF_A_SUMMARY = "the summary of a conversation"  # in the instructions of every version
SENTENCE = "the plan for the new warehouse was changed again as deliveries from the north come two days late"
WORDS = tuple(SENTENCE.split())


@dataclass(slots=True)
class Requests:
    """The requests of the session that is being talked through, in order, each by its kind."""

    bodies: list[tuple[str, str]] = field(default_factory=list)
    parts: list[dict[str, int]] = field(default_factory=list)
    written: int = 0  # tokens
    turn: int = 0

    def add(self, body: dict[str, Any]) -> str:
        messages = body["messages"]
        system, last = str(messages[0]["content"]), str(messages[-1]["content"])
        texts = {
            "summary": OF_A_SUMMARY in system,
            "facts": TEXTS["extractor"] in system,
            "plan": TEXTS["planner"] in system + last,
        }
        kind = next((kind for kind, holds in texts.items() if holds), "answer")
        tools = "".join(map(json.dumps, body.get("tools", ())))
        texts_sent = list(map(json.dumps, messages))
        self.bodies.append((kind, tools + "".join(texts_sent)))
        if kind == "answer" and len(self.parts) == self.turn:
            self.parts.append(_parts(tools, texts_sent, messages))
        return kind


def _parts(tools: str, sent: Sequence[str], messages: Sequence[dict[str, Any]]) -> dict[str, int]:
    """Returns the tokens of the first request of a turn by part."""
    opening = max(at for at, message in enumerate(messages) if message["role"] == "user")
    texts = {
        "tools": tools,
        "instructions, summary, references": sent[0],
        "old messages": "".join(sent[1:opening]),
        "this turn": "".join(sent[opening:]),
    }
    return {name: estimate(text) for name, text in texts.items()}


def words(seed: int, count: int) -> str:
    return " ".join(WORDS[(seed * 7 + at * 3) % len(WORDS)] for at in range(count))


def tool_name(number: int, count: int) -> str:
    if count == TOOLS:
        return f"look_up_{number:02}"
    return f"{VERBS[number % 10]}_{NOUNS[number // 10 % 10]}_{number // 100}"


def about(number: int, count: int) -> str:
    """Returns what a tool is for, as its description and the message that needs it say."""
    if count == TOOLS:
        return words(number, 25)
    return f"{VERBS[number % 10]} the {NOUNS[number // 10 % 10]} of department {number // 100}"


def tools(count: int) -> list[Tool]:
    properties = {name: {"type": "string", "description": words(at, 9)} for at, name in enumerate(("query", "folder"))}
    schema = {"type": "object", "properties": properties, "required": ["query"]}
    described = [about(at, count) if count == TOOLS else f"{about(at, count)}. {words(at, 16)}" for at in range(count)]
    return [Tool(name=tool_name(at, count), description=described[at], input_schema=schema) for at in range(count)]


async def call_tool(_: object, params: CallToolRequestParams) -> CallToolResult:
    wanted, number = (params.arguments or {})["query"].split()
    length = 4 if wanted == SHORT or int(number) % 2 else 30
    items = [{"id": f"itm-{number}-{at}", "title": words(int(number) + at, 8)} for at in range(length)]
    return CallToolResult(content=[TextContent(text=json.dumps({"items": items}))], structured_content={"items": items})


def reply(requests: Requests, body: dict[str, Any], count: int, *, asks: str | None) -> dict[str, Any]:
    """Returns the model's message: a call in answer to a message about a number, words in answer to its result."""
    kind, turn, last = requests.add(body), requests.turn, body["messages"][-1]
    match kind:
        case "summary":
            return {"role": "assistant", "content": f"## Done\n- {words(turn, 100)}"}
        case "facts":
            return {"role": "assistant", "content": '{"facts": []}'}
        case "plan":
            return {"role": "assistant", "content": '{"steps": []}'}
    number = turn % TOOLS if count == TOOLS else turn * NEXT % count
    is_found = last["role"] == "tool" and '"description"' in last["content"]
    if asks and (last["role"] != "tool" or is_found):
        asked = wanted_call(body, tool_name(number, count), about(number, count), {"query": f"{asks} {turn}"})
        call = {"id": f"call_{turn}{is_found:d}", "type": "function", "function": asked}
        return {"role": "assistant", "content": None, "tool_calls": [call]}
    return {"role": "assistant", "content": f"{words(turn, 60)}."}


def wanted_call(body: dict[str, Any], name: str, needed: str, args: dict[str, Any]) -> dict[str, str]:
    """Returns the call of a tool that is offered, of one that is shown behind the history, or of the one that finds."""
    name, offered = f"mcp_{name}", {tool["function"]["name"] for tool in body["tools"]}
    if name in offered:
        made = name, args
    elif any(f'"{name}"' in str(message["content"]) for message in body["messages"]):
        made = ("call_tool", {"name": name, "arguments": args}) if "call_tool" in offered else (name, args)
    else:
        made = "find_tools", {"query": needed}
    return {"name": made[0], "arguments": json.dumps(made[1])}


@asynccontextmanager
async def scripted(answer: Callable[[dict[str, Any]], dict[str, Any]], count: int) -> AsyncIterator[int]:
    """Serves a model that gives these messages, and so many tools, by MCP and by `POST /call`; yields the port."""

    async def list_tools(*_: object) -> ListToolsResult:
        return ListToolsResult(tools=tools(count))

    async def complete(request: Request) -> Response:
        message = answer(orjson.loads(await request.body()))
        reason = "tool_calls" if "tool_calls" in message else "stop"
        choice = {"index": 0, "message": message, "finish_reason": reason}
        head = {"id": "chatcmpl-1", "created": 1, "model": "scripted", "object": "chat.completion"}
        return Response(orjson.dumps({**head, "choices": [choice]}), media_type="application/json")

    async def call(request: Request) -> Response:
        result = await call_tool(None, CallToolRequestParams.model_validate_json(await request.body()))
        return Response(orjson.dumps(result.structured_content))

    server = Server("bench", on_list_tools=list_tools, on_call_tool=call_tool)
    routes = [Route("/v1/chat/completions", complete, methods=["POST"]), Route("/call", call, methods=["POST"])]
    app = server.streamable_http_app(
        stateless_http=True, json_response=True, host="127.0.0.1", custom_starlette_routes=routes
    )
    with socket.create_server(("127.0.0.1", 0)) as listener:
        serving = uvicorn.Server(uvicorn.Config(app, log_level="error", ws="none"))
        task = asyncio.create_task(serving.serve(sockets=[listener]))
        yield listener.getsockname()[1]
        serving.should_exit = True
        await task


@dataclass(frozen=True, slots=True)
class Cost:
    """`tokens` and `cached` are by request, `turns` the number of requests after each turn."""

    kinds: Counter[str]
    tokens: list[int]
    cached: list[int]
    turns: list[int]
    parts: list[dict[str, int]]
    written: int

    def share(self, *, since: int = 0) -> float:
        return sum(self.cached[since:]) / sum(self.tokens[since:])

    @property
    def breaks(self) -> int:
        return sum(2 * cached < tokens for tokens, cached in zip(self.tokens, self.cached, strict=True))

    def by_turn(self) -> list[int]:
        return [sum(self.tokens[begun:ended]) for begun, ended in zip([0, *self.turns], self.turns, strict=False)]

    def dollars(self, *, with_output: bool = False) -> float:
        """Of 1,000 turns."""
        full, cached, output = PRICES.values()
        fresh = sum(self.tokens) - sum(self.cached)
        spent = fresh * full + sum(self.cached) * cached + with_output * self.written * output
        return spent / 1e6 / len(self.turns) * 1000


def shared_beginning(one: str, other: str) -> int:
    """Returns how many characters two texts begin with alike."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if one[:middle] == other[:middle] else (low, middle - 1)
    return low


def cost_of(requests: Requests, turns: list[int]) -> Cost:
    texts = [text for _, text in requests.bodies]
    tokens = [estimate(text) for text in texts]
    cached = []
    for at, text in enumerate(texts):
        shared = max((shared_beginning(text, other) for other in texts[max(at - TWELVE, 0) : at]), default=0)
        seen = estimate(text[:shared]) // STEP * STEP
        cached.append(seen if seen >= MINIMUM else 0)
    return Cost(Counter(kind for kind, _ in requests.bodies), tokens, cached, turns, requests.parts, requests.written)


def message_of(turn: int, count: int, *, plans: bool) -> str:
    if plans and turn % PLANNED == PLANNED - 1:
        return f"First look up {words(turn, 5)}, then tell me about it and finally say what is next"
    needed = words(turn, 20) if count == TOOLS else f"how to {about(turn * NEXT % count, count)}"
    return f"What about {needed} number {turn}?"
