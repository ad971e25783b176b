"""What comes from a provider, from an MCP server and from an identity provider."""

import asyncio
import hashlib
import hmac
import json
from base64 import urlsafe_b64encode
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from typing import Any, Final, cast

import orjson
from langchain_core.messages import AIMessageChunk, HumanMessage
from mcp_types import CallToolResult, ListToolsResult, jsonrpc_message_adapter
from mcp_types.methods import validate_server_result
from pydantic import ValidationError

from segue.domain.tool import ToolFailed, ToolSpec
from segue.mcp.large_messages import packed_message
from segue.mcp.mcp_config import McpServerConfig
from segue.mcp.tool_mapping import tools_of, value_of, without_broken_tools
from segue.memory.history_window import estimate
from segue.models.calls_in_text import read_calls
from segue.models.providers.endpoint import Endpoint, events
from segue.models.providers.langchain_model import AnswerReader, Dialect
from segue.models.providers.openai import ChatCompletions
from segue.models.refusals import MALFORMED, MAX_MESSAGE_CHARS, ModelFailure, RefusalReader
from segue.models.reply import AnswerPart, ModelCall, RequestOptions, read_json, write_json
from segue.models.streamed_answer import Listener, StreamedAnswer
from segue.tools.input_schema import InputSchema, UnfitSchema
from segue.tools.normalize import Unread, clean, make_payload
from segue.users.api_keys import Unauthorized
from segue.users.id_tokens import OneKey, Tokens, verification_key
from tests.fuzz.draw import Draw

LINE_ENDS: Final = (b"\n", b"\r\n", b"\r")
BESIDE: Final = (b": comment", b"event: x", b"id: 7")
SECRET: Final = "0123456789abcdef" * 2
WORDS_OF_COMPLETIONS: Final = (
    "choices", "delta", "message", "content", "tool_calls", "index", "id", "function", "name", "arguments", "text",
    "type", "reasoning_content", "refusal", "finish_reason", "stop", "length", "error", "usage", "prompt_tokens",
    "completion_tokens", "tool_use", "thinking", "signature", "code", "status", "429", "<think>",
    "</think>", "```", "{}",
    '{"a": 1}', '"', "\ud83d", "summary", "function_call", "extra_content", "param", "detail", "object", "partial_json",
)  # fmt: skip
WORDS_OF_MARKS: Final = (
    "<think>", "</think>", "[THINK]", "[/THINK]", "`", "```", "a", "<", "\n", "<thi", "nk>", "🙂", "<|end|>",
    "analysis", "assistantfinal", "<|channel|>analysis", "<|channel|>final", "assistantcommentary to=", "<tool_call>",
    "{}", "</tool_call>", '{"name": "look", "arguments": ', "}", "[TOOL_CALLS]", "look[ARGS]", "[", "{", '"', ":",
    ",", " ",
    "7", '<｜DSML｜invoke name="look">', '<｜DSML｜parameter name="a">', "</｜DSML｜parameter>", "</｜DSML｜invoke>",
)  # fmt: skip
LOOK: Final = ToolSpec("look", "Looks.", {"type": "object", "properties": {"a": {"type": "string"}, "b": True}})
WORDS_OF_MCP: Final = (
    "name", "description", "inputSchema", "type", "object", "properties", "title", "annotations", "readOnlyHint",
    "outputSchema", "result", "content", "text", "structuredContent", "isError", "image", "audio", "resource",
    "resource_link", "data", "mimeType", "uri", "blob", "required", "items", "$ref", "#/$defs/a", "#", "$defs", "a",
    "pattern", "(a+)+$", "^[a-z]*$", "anyOf", "allOf", "enum", "$schema", "minimum", "string", "array", "format",
    "patternProperties", "const", "http://a.example/x", "additionalProperties", "not", "\u202e",
    "[1, 2", '{"a": NaN}',
)  # fmt: skip
WORDS_OF_TOKENS: Final = (
    "sub", "exp", "iss", "aud", "nbf", "iat", "scope", "scp", "issuer", "audience", "kid", "alg", "none", "HS256",
    "RS256", "typ", "crit", "b64", "jti", "a b",
)  # fmt: skip
CHUNKS: Final = (
    b'{"choices":[{"delta":{"content":"It is "}}]}',
    b'{"choices":[{"delta":{"tool_calls":[{"index":0,"id":"c1","function":{"name":"f","arguments":"{\\"a\\":"}}]}}]}',
    b'{"choices":[{"delta":{},"finish_reason":"stop"}],"usage":{"prompt_tokens":1,"completion_tokens":2}}',
    b'{"error":{"code":"rate_limit_exceeded","message":"slow down"}}',
    b'{"choices":[{"message":{"content":[{"type":"thinking","thinking":"x"},{"type":"text","text":"y"}]}}]}',
)
STREAMS: Final = (
    b"data: a\n\ndata: b\r\n\r\n",
    b"data:a\rdata:b\r\r",
    b": x\n\ndata\n\n",
    b"data: {}\n\ndata: [DONE]",
    b"a\rdata:x",
)
ANSWERS: Final = (
    b'{"tools":[{"name":"a","inputSchema":{"type":"object","properties":{"a":{"$ref":"#/$defs/a"}},"$defs":{"a":{}}}}]}',
    b'{"content":[{"type":"text","text":"{\\"a\\": 1}"}],"structuredContent":{"result":1}}',
    b'{"content":[{"type":"image","data":"aGk=","mimeType":"image/png"}],"isError":true}',
    b'{"jsonrpc":"2.0","id":1,"result":{"tools":[]}}',
    b'{"type":"object","properties":{"a":{"type":"string","pattern":"(a+)+$"}},"required":["a"]}',
)
CLAIMS: Final = {"sub": "anna", "exp": 4_102_444_800, "iss": "issuer", "aud": "audience"}
TOKENS: Final = (b'{"scope":"a b"}', b'{"exp":1}', b'{"aud":["x"]}', b'{"sub":7}', b'{"nbf":"x"}')


@cache
def loop() -> asyncio.AbstractEventLoop:
    return asyncio.new_event_loop()


def event_stream(data: bytes) -> None:
    draw = Draw(data)
    said = [draw.take(draw.number(20)).translate(None, b"\r\n") for _ in range(draw.number(6))]
    end = draw.one_of(LINE_ENDS)
    written = b"".join(draw.one_of(BESIDE) + end + b"data: " + each + end + end for each in said)
    assert _read(draw.pieces(written)) == said, written
    anything = draw.rest()
    assert _read(draw.pieces(anything)) == _read([anything])
    for cut in range(0, len(anything), 1 + len(anything) // 7):
        assert _read([anything[:cut], anything[cut:]]) == _read([anything]), (anything, cut)


def _read(pieces: Sequence[bytes]) -> list[bytes]:
    async def given() -> AsyncIterator[bytes]:
        for piece in pieces:
            yield piece

    async def read() -> list[bytes]:
        return [event async for event in events(given())]

    return loop().run_until_complete(read())


class _Endpoint:
    def __init__(self, answers: Sequence[Any]) -> None:
        self._answers = answers

    async def events(self, _: Any, *, forget: object) -> AsyncIterator[Any]:  # noqa: ARG002 (an Endpoint's)
        for answer in self._answers:
            yield answer


def providers(data: bytes) -> None:
    """Chat completions in whole answers and in streams, other answers of LangChain's, and errors among them."""
    draw = Draw(data)
    streams, held = draw.number(2) == 1, draw.number(2) == 1
    found = draw.json(WORDS_OF_COMPLETIONS)
    answers = [each for each in (found if isinstance(found, list) else [found]) if isinstance(each, dict)]
    for answer in answers:
        if refused := RefusalReader({"secret"}).within(answer):
            assert len(refused.message) <= MAX_MESSAGE_CHARS
    heard: list[str] = []
    streamed = StreamedAnswer(Listener(heard.append, heard.clear), begins_inside=held)
    model = ChatCompletions("m", cast(Endpoint, _Endpoint(answers)), by="m")
    with suppress(ModelFailure, *MALFORMED):
        loop().run_until_complete(_answered(model, streamed, streams=streams))
        reply = streamed.reply()
        assert "".join(heard).rstrip() == reply.text
        assert reply.text == reply.text.strip()
        assert reply.output_tokens >= 0
        reply.text.encode()
    with suppress(*MALFORMED):
        again = read_json(write_json(found))  # a huge integer is a float from then on
        assert read_json(write_json(again)) == again
    _blocks(answers)


async def _answered(model: ChatCompletions, answer: StreamedAnswer, *, streams: bool) -> None:
    async for part in model.answer([HumanMessage("hello")], RequestOptions(), is_streamed=streams):
        if part is not None:
            answer.add(part)


def _blocks(answers: Sequence[Any]) -> None:
    """No error in these: the reader of LangChain's packages is behind their own models."""
    dialect = Dialect(name="openai", errors=(), finish_reason=lambda metadata: metadata.get("status"))
    reader = AnswerReader(dialect, "m")
    for answer in answers:
        try:
            chunk = AIMessageChunk(content=answer.get("content") or "")
        except (ValueError, TypeError):
            continue
        with suppress(*MALFORMED):
            reader.add(chunk)
            reader.closing()


def thinking(data: bytes) -> None:
    """The answer is the same however it is cut."""
    draw = Draw(data)
    held = draw.number(2) == 1
    text = draw.words(WORDS_OF_MARKS)
    cuts = draw.pieces(text.encode("utf-16-le", "surrogatepass"))
    pieces = [piece.decode("utf-16-le", "surrogatepass") for piece in cuts if len(piece) % 2 == 0]
    if "".join(pieces) == text:
        assert _thought(pieces, held=held) == _thought([text], held=held), pieces


def _thought(pieces: Sequence[str], *, held: bool) -> tuple[str, str]:
    answer = StreamedAnswer(begins_inside=held, read_calls=_calls)
    for piece in pieces:
        answer.add(AnswerPart(piece))
    reply = answer.reply()
    return f"{reply.text}{reply.calls}", reply.reasoning


def _calls(text: str) -> list[ModelCall]:
    return read_calls(text, tools=[LOOK], names={"look": "look"}, messages=[HumanMessage("a")])


def mcp(data: bytes) -> None:
    draw = Draw(data)
    kind = draw.number(4)
    drawn = draw.json(WORDS_OF_MCP)
    packed_message(data)
    with suppress(ValueError):
        jsonrpc_message_adapter.validate_json(data)
    try:
        said = orjson.loads(json.dumps(drawn))  # as it comes: without half characters
    except ValueError:
        return
    if not isinstance(said, dict):
        return
    _listed({**said, "tools": said.get("tools", [said])})
    _schema(said)
    result = {"content": [], **said}
    packed = orjson.loads(packed_message(orjson.dumps({"result": {**result, "tools": None}})))["result"]
    assert _given(packed, wrapped=kind > 1) == _given(result, wrapped=kind > 1)


def _given(result: dict[str, Any], *, wrapped: bool) -> object:
    try:
        answer = value_of(CallToolResult.model_validate(result), wrapped=wrapped)
        answer = answer.read(answer.text) if isinstance(answer, Unread) else answer
    except ValidationError:
        return "malformed"
    except ToolFailed as failed:
        return str(failed)
    return make_payload(answer, max_bytes=10_000).text


def _listed(said: dict[str, Any]) -> None:
    kept = without_broken_tools("odd", said)
    if isinstance(kept["tools"], list):
        validate_server_result("tools/list", "2025-11-25", {"tools": kept["tools"]})
        listed = ListToolsResult.model_validate({"tools": kept["tools"]})
        tools, _ = tools_of("odd", McpServerConfig(command="odd"), listed.tools, _never, 10)
        names = [tool.spec.name for tool in tools]
        assert len(set(names)) == len(names)
        for tool in tools:
            assert len(tool.spec.description) <= 2000
            tool.spec.description.encode()
            orjson.dumps(clean(tool.spec.input_schema))


def _schema(said: dict[str, Any]) -> None:
    with suppress(UnfitSchema, TypeError, ValueError):
        schema = InputSchema(said, tool="odd")
        for args in (said, {"a": "a" * 30 + "!"}, {}):
            assert len(schema.faults(args)) <= 5


async def _never(name: str, arguments: dict[str, Any], **more: object) -> object:
    raise AssertionError(name, arguments, more)


def tokens(data: bytes) -> None:
    """Counted tokens, and those of identity providers."""
    draw = Draw(data)
    text = draw.text(60)
    more = draw.text(60)
    assert 0 <= estimate(text) <= estimate(text + more) + 1
    assert estimate(text + more) <= estimate(text) + estimate(more)
    anything, drawn = draw.text(60), draw.json(WORDS_OF_TOKENS)
    claims = {**CLAIMS, **drawn} if isinstance(drawn, dict) else CLAIMS
    header = claims.get("kid")
    signed = _signed({"alg": "HS256", **(header if isinstance(header, dict) else {})}, claims)
    checked = Tokens(OneKey(verification_key(SECRET)), issuer="issuer", audience="audience")
    for token in (signed, f"{signed}{anything}", anything):
        with suppress(Unauthorized):
            identity = loop().run_until_complete(checked.identify(token))
            assert token.startswith(signed)  # padding may follow
            assert identity.user == claims["sub"]
            assert claims["iss"] == "issuer"
            assert claims["exp"] is not None


def _signed(header: Mapping[str, Any], claims: Mapping[str, Any]) -> str:
    """By hand, since the library would sign no odd ones."""
    said = b".".join(urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=") for part in (header, claims))
    signature = hmac.new(SECRET.encode(), said, hashlib.sha256).digest()
    return (said + b"." + urlsafe_b64encode(signature).rstrip(b"=")).decode()
