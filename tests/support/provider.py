"""A scripted OpenAI-compatible provider: a real HTTP server that answers what a test wrote, and keeps what it heard.

A script that is not used up, or a request beyond its end, fails the test that opened it.
"""

import asyncio
import json
import re
import struct
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import orjson
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from segue.agent.prompts import TEXTS, in_own_words, message_and_instruction, notes_and_message
from segue.around.replay.request_rules import invalid_tools
from segue.models.chat_model import ChatModel
from segue.models.normal_form import PLACEHOLDERS, WireForm, form_of
from segue.models.untrusted import CLOSE, OPEN, unfenced
from tests.support.patience import PATIENCE_S
from tests.support.request_forms import invalid_in_form
from tests.support.server import serving

OpenModel = Callable[..., Awaitable[ChatModel]]  # of the fixture `open_model`

Reply = Response | Callable[[dict[str, Any]], Awaitable[Response]]


def says(text: str) -> Response:
    return _completion({"role": "assistant", "content": text}, "stop")


def calls(*wanted: tuple[str, dict[str, Any]], text: str | None = None) -> Response:
    """An answer that calls tools: `calls(("mcp_search", {"query": "x"}))`."""
    return calls_raw(*((name, orjson.dumps(args).decode()) for name, args in wanted), text=text)


def calls_raw(*wanted: tuple[str, str], text: str | None = None, finish_reason: str | None = "tool_calls") -> Response:
    """The same with arguments as the model might really write them."""
    made = [
        {"id": f"call_{index}", "type": "function", "function": {"name": name, "arguments": arguments}}
        for index, (name, arguments) in enumerate(wanted)
    ]
    return _completion({"role": "assistant", "content": text, "tool_calls": made}, finish_reason)


def fails(
    status: int, *, headers: dict[str, str] | None = None, body: str = '{"error": {"message": "no"}}'
) -> Response:
    return Response(body, status, headers, media_type="application/json")


def raw(body: Any, *, media_type: str = "application/json") -> Response:
    return Response(body if isinstance(body, str) else orjson.dumps(body), media_type=media_type)


GZIP = {"content-encoding": "gzip"}


def packed(count: int, head: bytes = b"", tail: bytes = b"") -> bytes:
    """So many megabytes of spaces, which gzip makes a thousandth of. One is packed, so that it can be repeated."""
    packing = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    spaces = b" " * 1_000_000
    first, each, last = (packing.compress(part) + packing.flush(zlib.Z_FULL_FLUSH) for part in (head, spaces, tail))
    check, size = zlib.crc32(head), len(head) + count * len(spaces) + len(tail)
    for part in (*([spaces] * count), tail):
        check = zlib.crc32(part, check)
    return b"\x1f\x8b\x08" + bytes(7) + first + each * count + last + packing.flush() + struct.pack("<LL", check, size)


def completion(message: dict[str, Any], finish_reason: str | None) -> Response:
    return _completion(message, finish_reason)


def streams(*pieces: str | dict[str, Any] | asyncio.Event, finish_reason: str | None = "stop") -> Reply:
    """A streamed answer, piece by piece: words, deltas as they are, and gates that a test opens. Cut off without a
    `finish_reason`.
    """

    async def reply(body: dict[str, Any]) -> Response:
        assert body["stream"], "the model was asked for a whole answer"
        return StreamingResponse(_pieces(pieces, finish_reason), media_type="text/event-stream")

    return reply


def sse(*pieces: str | dict[str, Any] | asyncio.Event | float, headers: dict[str, str] | None = None) -> Reply:
    """A stream as it is written: chunks, lines as they are, gates that a test opens, and seconds that pass."""

    async def reply(_: dict[str, Any]) -> Response:
        return StreamingResponse(_written(pieces), headers=headers, media_type="text/event-stream")

    return reply


async def _written(pieces: tuple[str | dict[str, Any] | asyncio.Event | float, ...]) -> AsyncIterator[str]:
    for piece in pieces:
        match piece:
            case asyncio.Event():
                await piece.wait()
            case float():
                await asyncio.sleep(piece)
            case dict():
                yield f"data: {json.dumps(piece)}\n\n"
            case str():
                yield piece


def delta(finish_reason: str | None = None, **fields: Any) -> dict[str, Any]:
    """A chunk of a stream."""
    return {"choices": [{"index": 0, "delta": fields, "finish_reason": finish_reason}]}


async def _pieces(
    pieces: tuple[str | dict[str, Any] | asyncio.Event, ...], finish_reason: str | None
) -> AsyncIterator[str]:
    yield _chunk({"role": "assistant", "content": ""})
    for piece in pieces:
        if isinstance(piece, asyncio.Event):
            await piece.wait()
        else:
            yield _chunk({"content": piece} if isinstance(piece, str) else piece)
    if finish_reason is not None:
        yield _chunk({}, finish_reason)
        yield _chunk(None, usage={"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18})
        yield "data: [DONE]\n\n"


def _chunk(delta: dict[str, Any] | None, finish_reason: str | None = None, usage: dict[str, int] | None = None) -> str:
    """As a provider writes it that escapes what is not ASCII, halves of characters too."""
    choices = [] if delta is None else [{"index": 0, "delta": delta, "finish_reason": finish_reason}]
    body = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "scripted"}
    return f"data: {json.dumps({**body, 'choices': choices, 'usage': usage})}\n\n"


def _as_asked(response: Response, body: dict[str, Any]) -> Response:
    """What is scripted as a whole answer comes word by word where the model is asked to stream."""
    if not body.get("stream") or response.status_code != 200 or response.media_type != "application/json":
        return response
    [choice] = orjson.loads(response.body)["choices"]
    message = choice["message"]
    pieces: list[str | dict[str, Any]] = re.findall(r"\s*\S+\s*", message["content"] or "")
    for index, call in enumerate(message.get("tool_calls") or ()):
        function = call["function"]
        half = len(function["arguments"]) // 2
        first, rest = function["arguments"][:half], function["arguments"][half:]
        pieces.append({"tool_calls": [{**call, "index": index, "function": {**function, "arguments": first}}]})
        pieces.append({"tool_calls": [{"index": index, "function": {"arguments": rest}}]})
    pieces += [{"images": images}] if (images := message.get("images")) else []
    return StreamingResponse(_pieces(tuple(pieces), choice["finish_reason"]), media_type="text/event-stream")


def _completion(message: dict[str, Any], finish_reason: str | None) -> Response:
    return raw(
        {
            "id": "chatcmpl-1",
            "object": "chat.completion",
            "created": 1,
            "model": "scripted",
            "choices": [{"index": 0, "message": message, "finish_reason": finish_reason}],
            "usage": {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18},
        }
    )


EMBEDDED_TOKENS = 4  # that it counts for a text


@dataclass(slots=True)
class Provider:
    """`requests` are the bodies it was sent, in order, and `headers` those of all requests; `summaries` the bodies that
    asked for a summary, and `embedded` the texts it was sent to embed by `embedding`, of which it refuses more than
    `embeds_at_once`.

    A request for which `rule` has a fault gets a 400 that says so, takes nothing of the script, and is also `refused`.
    Summaries come when they come, so they are not part of the script: they get `summary`, or an error without one. So
    do `titles`, which get `title`.
    """

    base_url: str = ""
    script: list[Reply] = field(default_factory=list)
    scripts: dict[str, list[Reply]] = field(default_factory=dict)
    habits: dict[str, Reply] = field(default_factory=dict)
    summary: Reply | None = None
    title: Reply | None = None
    rule: Callable[[dict[str, Any]], str | None] = lambda _: None
    embedding: Callable[[str], Awaitable[Response | list[float]]] | None = None
    embeds_at_once: int = 2048
    requests: list[dict[str, Any]] = field(default_factory=list)
    refused: list[dict[str, Any]] = field(default_factory=list)
    headers: list[Mapping[str, str]] = field(default_factory=list)
    summaries: list[dict[str, Any]] = field(default_factory=list)
    titles: list[dict[str, Any]] = field(default_factory=list)
    embedded: list[str] = field(default_factory=list)
    surprises: list[str] = field(default_factory=list)
    heard: asyncio.Condition = field(default_factory=asyncio.Condition)

    def will(self, *replies: Reply) -> None:
        self.script.extend(replies)

    def will_to(self, part: str, *replies: Reply) -> None:
        """What conversations are answered that have this in the user's words, for those that go on side by side."""
        self.scripts.setdefault(part, []).extend(replies)

    def always(self, part: str, reply: Reply) -> None:
        """The same for as many requests as come."""
        self.habits[part] = reply

    def about(self, part: str) -> list[dict[str, Any]]:
        """The requests of such conversations."""
        return [request for request in self.requests if any(part in said for said in _said(request))]

    def check(self) -> None:
        assert not self.surprises, self.surprises
        unused = len(self.script) + sum(map(len, self.scripts.values()))
        assert not unused, f"{unused} scripted answers were not used"

    def messages(self, request: int = -1, *, role: str | None = None) -> list[dict[str, Any]]:
        """The messages of a request but for placeholders, all or those of one role; what tools said without the fence
        it has to stand in, and what the user said without the engine's `notes` and `instruction`.
        """
        sent = (each for each in self.requests[request]["messages"] if str(each["content"]) not in PLACEHOLDERS)
        plain = (_in_own_words(_out_of_its_fence(message)) for message in sent if role in (None, message["role"]))
        return [message for message in plain if message["content"] or message["role"] != "user"]

    def notes(self, request: int = -1) -> str:
        """What the engine noted before the user's last message."""
        said = [str(each["content"]) for each in self.requests[request]["messages"] if each["role"] == "user"]
        return next(filter(None, (notes_and_message(text)[0] for text in reversed(said))), "")

    def instruction(self, request: int = -1) -> str:
        """What the engine wants of the model, behind the last message."""
        return message_and_instruction(str(self.requests[request]["messages"][-1]["content"]))[1]

    async def wait_for_requests(self, count: int) -> None:
        await self.wait_until(lambda: len(self.requests) >= count)

    async def wait_for_request_about(self, part: str) -> None:
        await self.wait_until(lambda: bool(self.about(part)))

    async def wait_for_summaries(self, count: int) -> None:
        await self.wait_until(lambda: len(self.summaries) >= count)

    async def wait_until(self, condition: Callable[[], bool]) -> None:
        """Gives up if nothing is heard any more."""
        async with self.heard:
            while not condition():
                async with asyncio.timeout(PATIENCE_S):
                    await self.heard.wait()

    async def _answer(self, request: Request) -> Response:
        body = orjson.loads(await request.body())
        form = WireForm(call_id=form_of(body["model"]).call_id)
        if fault := invalid_in_form(body["messages"], form) or invalid_tools(body.get("tools", ())):
            self.surprises.append(fault)
        asks_for_summary = body["messages"][0]["content"] in (TEXTS["summariser"], TEXTS["condenser"])
        asks_for_title = body["messages"][0]["content"] == TEXTS["titler"]
        async with self.heard:
            heard = self.summaries if asks_for_summary else self.titles if asks_for_title else self.requests
            heard.append(body)
            self.headers.append(request.headers)
            self.heard.notify_all()
        if asks_for_summary:
            return await _given(self.summary or fails(400), body)
        if asks_for_title:
            return await _given(self.title or fails(400), body)
        if broken := self.rule(body):
            self.refused.append(body)
            return fails(400, body=orjson.dumps({"error": {"message": broken}}).decode())
        reply = self._next_reply(body)
        if reply is None:
            self.surprises.append(f"a request beyond the end of the script: {next(iter(_said(body)), '')!r:.200}")
            return fails(400)
        return await _given(reply, body)

    def _next_reply(self, body: dict[str, Any]) -> Reply | None:
        for said in _said(body):
            for part, script in self.scripts.items():
                if part in said and script:
                    return script.pop(0)
            if habit := next((reply for part, reply in self.habits.items() if part in said), None):
                return habit
        return self.script.pop(0) if self.script else None

    async def _embed(self, request: Request) -> Response:
        texts: list[str] = orjson.loads(await request.body())["input"]
        self.embedded += texts
        if self.embedding is None:
            self.surprises.append("a request for embeddings")
            return fails(400)
        if len(texts) > self.embeds_at_once:
            return fails(413, body='{"error": {"message": "too many texts at once"}}')
        vectors = [await self.embedding(text) for text in texts]
        if refused := [vector for vector in vectors if isinstance(vector, Response)]:
            return refused[0]
        data = [{"object": "embedding", "index": at, "embedding": vector} for at, vector in enumerate(vectors)]
        usage = {"prompt_tokens": EMBEDDED_TOKENS * len(texts), "total_tokens": EMBEDDED_TOKENS * len(texts)}
        return raw({"object": "list", "model": "embedder", "data": data, "usage": usage})


def _said(body: dict[str, Any]) -> list[str]:
    """The user's words, newest first."""
    return [str(message["content"]) for message in reversed(body["messages"]) if message["role"] == "user"]


def _out_of_its_fence(message: dict[str, Any]) -> dict[str, Any]:
    if message["role"] != "tool":
        return message
    content: str = message["content"]
    assert (content.startswith(OPEN), content.endswith(CLOSE)) == (True, True), content
    return {**message, "content": unfenced(content)}


def _in_own_words(message: dict[str, Any]) -> dict[str, Any]:
    if message["role"] != "user" or not isinstance(message["content"], str):
        return message
    return {**message, "content": in_own_words(message["content"])}


def fence_after(label: str, text: str) -> str:
    """What stands in the fence that follows a line of a prompt, or nothing."""
    return text.partition(f"{label}\n{OPEN}\n")[2].partition(f"\n{CLOSE}")[0]


async def _given(reply: Reply, body: dict[str, Any]) -> Response:
    return _as_asked(reply if isinstance(reply, Response) else await reply(body), body)


@asynccontextmanager
async def scripted_provider() -> AsyncIterator[Provider]:
    provider = Provider()
    app = Starlette(
        routes=[
            Route("/v1/chat/completions", provider._answer, methods=["POST"]),  # noqa: SLF001 (its own)
            Route("/v1/embeddings", provider._embed, methods=["POST"]),  # noqa: SLF001 (the same)
        ]
    )
    async with serving(app) as url:
        provider.base_url = f"{url}/v1"
        yield provider
    provider.check()
