"""The servers a replayed service talks to: an OpenAI-compatible model and an MCP server, both reading one recording.

One turn is on at a time. What is asked for and not in the recording is answered with an error and kept as a fault.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson
from mcp.server.lowlevel import Server
from mcp_types import (
    CallToolRequestParams,
    CallToolResult,
    ListToolsResult,
    TextContent,
    Tool,
    ToolAnnotations,
)
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from segue.domain.recording import RecordedCall, RecordedTool
from segue.domain.tool import canonical_args
from segue.replay.fake_model import Line, Script
from segue.replay.requests import asked_for, invalid_history

RESULT_SCHEMA = {"type": "object", "properties": {"result": {}}, "x-fastmcp-wrap-result": True}
NOT_RECORDED = "The recording has no such call."
HEAD = {"id": "chatcmpl-replay", "created": 0, "model": "replay"}
USAGE = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}


@dataclass(slots=True)
class Scene:
    """A turn while it is played. `sent` are the user's messages so far, `earlier` the calls whose results the model has
    to find in what it is shown.
    """

    script: Script
    sent: tuple[str, ...]
    earlier: tuple[str, ...]
    calls: list[RecordedCall] = field(init=False)
    faults: list[str] = field(default_factory=list)
    requests: int = 0

    def __post_init__(self) -> None:
        self.calls = list(self.script.turn.calls)


@dataclass(slots=True)
class Stage:
    tools: tuple[RecordedTool, ...]
    scene: Scene | None = None

    def app(self, host: str) -> Starlette:
        """`/v1/chat/completions` and `/mcp`. Stateless: a service that is killed leaves nothing behind."""
        server = Server("replay", on_list_tools=self._list_tools, on_call_tool=self._call_tool)
        model = Route("/v1/chat/completions", self._complete, methods=["POST"])
        return server.streamable_http_app(
            stateless_http=True, json_response=True, host=host, custom_starlette_routes=[model]
        )

    async def _complete(self, request: Request) -> Response:
        body = orjson.loads(await request.body())
        asked = asked_for(body)
        scene = self.scene
        if scene is None or asked == "other":
            return _completion(Line("{}"), stream=bool(body.get("stream")))
        scene.requests += 1
        scene.faults += _faults(body["messages"], scene)
        line = scene.script.answer(body)
        if line is not None:
            return _completion(line, stream=bool(body.get("stream")))
        if scene.script.turn.status == "completed":
            scene.faults.append(f"the model was asked for more than was recorded ({asked})")
        return Response('{"error": {"message": "nothing is recorded"}}', 400, media_type="application/json")

    async def _list_tools(self, *_: object) -> ListToolsResult:
        return ListToolsResult(tools=[_definition(tool) for tool in self.tools])

    async def _call_tool(self, _: object, params: CallToolRequestParams) -> CallToolResult:
        scene, args = self.scene, canonical_args(params.arguments or {})
        if scene is None:
            return _error(NOT_RECORDED)
        call = next(
            (each for each in scene.calls if (each.tool, canonical_args(each.args)) == (params.name, args)), None
        )
        if call is None:
            scene.faults.append(f"{params.name} was called with {args}, which is not recorded for this turn")
            return _error(NOT_RECORDED)
        scene.calls.remove(call)
        return _result(call)


def _faults(messages: list[dict[str, Any]], scene: Scene) -> Iterable[str]:
    """What is wrong with what the model is shown."""
    if invalid := invalid_history(messages):
        yield f"an invalid request: {invalid}"
    said = tuple(message["content"] for message in messages if message["role"] == "user")
    if said != scene.sent[-len(said) :]:
        yield "the user's messages in the request are not the last ones sent, each once"
    text = orjson.dumps(messages).decode()
    if missing := [call_id for call_id in scene.earlier if call_id not in text]:
        yield f"results of earlier turns the model cannot see: {', '.join(missing)}"


def _definition(tool: RecordedTool) -> Tool:
    return Tool(
        name=tool.name,
        description=tool.description,
        input_schema=tool.input_schema,
        output_schema=RESULT_SCHEMA,
        annotations=ToolAnnotations(
            read_only_hint=tool.effect == "read_only",
            destructive_hint=tool.effect == "destructive",
            idempotent_hint=tool.idempotent,
        ),
    )


def _result(call: RecordedCall) -> CallToolResult:
    """A failure that the tool told in its answer is told so again: the service reads it from there."""
    if call.status != "succeeded" and call.result is None:
        return _error(call.error or f"{call.tool} failed.")
    return CallToolResult(content=[], structured_content={"result": call.result})


def _error(text: str) -> CallToolResult:
    return CallToolResult(content=[TextContent(type="text", text=text)], is_error=True)


def _completion(line: Line, *, stream: bool) -> Response:
    calls = [
        {"index": index, "id": f"call_{index}", "type": "function", "function": _function(name, args)}
        for index, (name, args) in enumerate(line.calls)
    ]
    message: dict[str, Any] = {"role": "assistant", "content": line.text or None}
    if calls:
        message["tool_calls"] = calls
    reason = "tool_calls" if calls else "stop"
    if not stream:
        choice = {"index": 0, "message": message, "finish_reason": reason}
        return _json({"object": "chat.completion", "choices": [choice], "usage": USAGE})
    pieces: list[dict[str, Any]] = [
        {"choices": [{"index": 0, "delta": message, "finish_reason": None}]},
        {"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]},
        {"choices": [], "usage": USAGE},
    ]
    shown = [orjson.dumps({**HEAD, "object": "chat.completion.chunk", **piece}).decode() for piece in pieces]
    return Response("".join(f"data: {each}\n\n" for each in [*shown, "[DONE]"]), media_type="text/event-stream")


def _function(name: str, args: Mapping[str, Any]) -> dict[str, str]:
    return {"name": name, "arguments": orjson.dumps(args).decode()}


def _json(body: Mapping[str, Any]) -> Response:
    return Response(orjson.dumps({**HEAD, **body}), media_type="application/json")
