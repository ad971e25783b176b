"""A scripted OpenAI-compatible server that answers at once: words, one tool call, or 24 tokens as a stream.

`python -m bench.provider PORT`. It shares the cores with what is measured, so it is a bare protocol on httptools and
reads no more of a request than it needs. `prompt_tokens` is the request's size in bytes; `GET /` returns the last one.
"""

import asyncio
import sys
from typing import Any, Final, cast

import httptools
import orjson
import uvloop

MESSAGE: Final = "Hello there, what do you make of this?"
TOOL_MESSAGE: Final = "What time is it where you are?"
TOOL: Final = "current_time"
TOKENS: Final = tuple(f"word{index} " for index in range(24))
ANSWER: Final = "A short answer."
COMPLETION: Final = {"id": "chatcmpl-1", "created": 1, "model": "scripted"}
TOOL_CALL: Final = {"id": "call_0", "type": "function", "function": {"name": TOOL, "arguments": "{}"}}


class Provider(asyncio.Protocol):
    """One connection; `last` is the last request to any."""

    last: bytes = b"{}"

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)
        self._parser = httptools.HttpRequestParser(self)
        self._body = b""

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_body(self, part: bytes) -> None:
        self._body += part

    def on_message_complete(self) -> None:
        if self._parser.get_method() == b"GET":
            self._transport.write(_response(Provider.last, b"application/json"))
            return
        Provider.last, self._body = self._body, b""
        self._transport.write(_reply(Provider.last))


def _reply(body: bytes) -> bytes:
    request = orjson.loads(body)
    usage = {"prompt_tokens": len(body), "completion_tokens": 1, "total_tokens": len(body) + 1}
    last = request["messages"][-1]
    calls_tool = last["role"] == "user" and last["content"].endswith(TOOL_MESSAGE)  # notes may stand before it
    if request.get("stream"):
        return _response(_stream(usage, calls_tool=calls_tool), b"text/event-stream")
    message: dict[str, Any] = {"role": "assistant", "content": None if calls_tool else ANSWER}
    if calls_tool:
        message["tool_calls"] = [TOOL_CALL]
    choice = {"index": 0, "message": message, "finish_reason": _finish_reason(calls_tool=calls_tool)}
    answer = {**COMPLETION, "object": "chat.completion", "choices": [choice], "usage": usage}
    return _response(orjson.dumps(answer), b"application/json")


def _stream(usage: dict[str, int], *, calls_tool: bool) -> bytes:
    deltas: list[dict[str, Any]] = [{"content": token} for token in TOKENS]
    if calls_tool:
        deltas = [{"tool_calls": [{"index": 0, **TOOL_CALL}]}]
    choices = [
        {"index": 0, "delta": {"role": "assistant", "content": None}, "finish_reason": None},
        *({"index": 0, "delta": delta, "finish_reason": None} for delta in deltas),
        {"index": 0, "delta": {}, "finish_reason": _finish_reason(calls_tool=calls_tool)},
    ]
    chunks = [{"choices": [choice]} for choice in choices] + [{"choices": [], "usage": usage}]
    events = (orjson.dumps({**COMPLETION, "object": "chat.completion.chunk", **chunk}) for chunk in chunks)
    return b"".join(b"data: %b\n\n" % event for event in (*events, b"[DONE]"))


def _finish_reason(*, calls_tool: bool) -> str:
    return "tool_calls" if calls_tool else "stop"


def _response(body: bytes, media_type: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n%b" % (media_type, len(body), body)


async def serve(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(Provider, "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1])))
