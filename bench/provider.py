"""A scripted OpenAI-compatible server that answers at once: words, one tool call, or 24 tokens as a stream. To
SPEAK_MESSAGE it speaks a stream: SPOKEN tokens, each of which says when it was sent.

`python -m bench.provider PORT`. It shares the cores with what is measured, so it is a bare protocol on httptools and
reads no more of a request than it needs. `prompt_tokens` is the request's size in bytes; `GET /` returns the last one.
"""

import asyncio
import sys
import time
from typing import Any, Final, cast

import httptools
import orjson
import uvloop

MESSAGE: Final = "Hello there, what do you make of this?"
TOOL_MESSAGE: Final = "What time is it where you are?"
TOOL: Final = "current_time"
SPEAK_MESSAGE: Final = "Speak to me for a while."
SPOKEN: Final = 500
PAUSE_S: Final = 1 / 50
TOKENS: Final = tuple(f"word{index} " for index in range(24))
ANSWER: Final = "A short answer."
COMPLETION: Final = {"id": "chatcmpl-1", "created": 1, "model": "scripted"}
_SPEECH_HEAD: Final = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
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
        if orjson.loads(Provider.last).get("stream") and SPEAK_MESSAGE.encode() in Provider.last:
            self._speaking = asyncio.ensure_future(self._speak())
            return
        self._transport.write(_reply(Provider.last))

    async def _speak(self) -> None:
        """A token is `@` and the nanoseconds of the machine's clock when it leaves."""
        self._transport.write(_SPEECH_HEAD)
        begun = time.perf_counter()
        for number in range(SPOKEN):
            await asyncio.sleep(begun + number * PAUSE_S - time.perf_counter())
            self._transport.write(_chunk({"content": f"@{time.perf_counter_ns():019d} "}))
        self._transport.write(_chunk({}, "stop") + b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")


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


def _chunk(delta: dict[str, str], finish_reason: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
    event = b"data: %b\n\n" % orjson.dumps({**COMPLETION, "object": "chat.completion.chunk", "choices": [choice]})
    return b"%x\r\n%b\r\n" % (len(event), event)


def _response(body: bytes, media_type: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n%b" % (media_type, len(body), body)


async def serve(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(Provider, "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1])))
