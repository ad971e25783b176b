"""Anthropic's Messages API: what it demands of a request, and how it answers, whole and as events."""

import re
from collections.abc import Iterator
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response

from tests.support.native_api import KEY, Given, NativeApi, answers, event, halves, refuse_if

USAGE = {"input_tokens": 11, "cache_read_input_tokens": 30, "cache_creation_input_tokens": 0, "output_tokens": 7}
THOUGHTS = (
    {"type": "thinking", "thinking": "Let me see.", "signature": "c2lnbmVk/+=="},
    {"type": "redacted_thinking", "data": "ZW5jcnlwdGVk"},
)
LENGTH = "max_tokens"


def says(*texts: str, reason: str = "end_turn", broken_after: int | None = None) -> Given:
    return Given(tuple({"type": "text", "text": text} for text in texts), reason, USAGE, broken_after)


def calls(
    *wanted: tuple[str, dict[str, Any]], before: tuple[dict[str, Any], ...] = (), reason: str = "tool_use"
) -> Given:
    made = (
        {"type": "tool_use", "id": f"toolu_{at}", "name": name, "input": args} for at, (name, args) in enumerate(wanted)
    )
    return Given((*before, *made), reason, USAGE)


def fails(status: int, kind: str, message: str, *, headers: dict[str, str] | None = None) -> Response:
    return answers(status, {"type": "error", "error": {"type": kind, "message": message}}, headers=headers)


FILTERED = (says(reason="refusal"),)
ERRORS = {
    "too long": (
        fails(400, "invalid_request_error", "prompt is too long: 210000 tokens > 200000 maximum"),
        "CONTEXT_TOKEN_BUDGET",
        False,
    ),
    "no quota": (
        fails(400, "invalid_request_error", "Your credit balance is too low to access the Anthropic API."),
        "set another {key}",
        False,
    ),
    "a wrong key": (fails(401, "authentication_error", f"invalid x-api-key {KEY}"), "Check {key}.", False),
    "no such model": (fails(404, "not_found_error", "model: claude-nine"), "Check LLM_MODEL and {base_url}.", False),
    "busy": (fails(429, "rate_limit_error", "This would exceed your rate limit."), "rate limit", True),
    "overloaded": (fails(529, "overloaded_error", "Overloaded"), "Overloaded", True),
    "odd": (fails(400, "invalid_request_error", "messages.0: odd"), "messages.0: odd", False),
}
FAILS_IN_STREAM = Response(
    event({"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}, "error"),
    media_type="text/event-stream",
)


def api() -> NativeApi:
    return NativeApi(
        ("/v1/messages",),
        _check,
        _whole,
        _events,
        lambda status, message: fails(status, "invalid_request_error", message),
        lambda _, body: bool(body.get("stream")),
    )


def _check(api: NativeApi, request: Request, body: dict[str, Any]) -> None:
    refuse_if(request.headers.get("authorization") != f"Bearer {KEY}", "no key")
    refuse_if("anthropic-version" not in request.headers, "no version")
    refuse_if(body["max_tokens"] < 1, "max_tokens")
    for tool in body.get("tools", ()):
        refuse_if(not re.fullmatch(r"[a-zA-Z0-9_-]{1,128}", tool["name"]), "a tool's name")
        refuse_if(tool["input_schema"]["type"] != "object", "a schema that is no object")
    roles = [message["role"] for message in body["messages"]]
    refuse_if(roles != (["user", "assistant"] * len(roles))[: len(roles)], f"roles do not alternate: {roles}")
    refuse_if(roles[-1] != "user", "the last message is not the user's")
    waiting: set[str] = set()
    for message in body["messages"]:
        content = message["content"]
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        refuse_if(not blocks, "an empty message")
        for block in blocks:
            refuse_if(block["type"] == "text" and not block["text"].strip(), "an empty text")
        refuse_if(_results(message) != waiting, f"results {_results(message)} for calls {waiting}")
        waiting = {block["id"] for block in blocks if block["type"] == "tool_use"}
    _check_thoughts(api, body["messages"])


def _check_thoughts(api: NativeApi, messages: list[dict[str, Any]]) -> None:
    """What it thought comes back unchanged before what it said, in the running turn always."""
    answers_of_model = [message["content"] for message in messages if message["role"] == "assistant"]
    answers_of_model = [content for content in answers_of_model if isinstance(content, list)]
    known = [_thoughts(list(given.parts)) for given in api.given]
    for content in answers_of_model:
        thoughts = _thoughts(content)
        refuse_if(thoughts and thoughts not in known, f"thinking that was not given so: {thoughts}")
        refuse_if(thoughts != content[: len(thoughts)], "thinking does not come first")
    questions = [at for at, message in enumerate(messages) if message["role"] == "user" and not _results(message)]
    rounds = [message["content"] for message in messages[questions[-1] :] if message["role"] == "assistant"]
    for content, expected in zip(rounds, known[len(known) - len(rounds) :], strict=True):
        refuse_if(_thoughts(content) != expected, f"{content} came with {expected}")


def _results(message: dict[str, Any]) -> set[str]:
    content = message["content"]
    blocks = [] if isinstance(content, str) else content
    return {block["tool_use_id"] for block in blocks if block["type"] == "tool_result"}


def _thoughts(content: Any) -> list[Any]:
    return [block for block in content if isinstance(block, dict) and "thinking" in block["type"]]


def _whole(given: Given) -> dict[str, Any]:
    head = {"id": "msg_1", "type": "message", "role": "assistant", "model": "claude", "stop_sequence": None}
    return {**head, "content": list(given.parts), "stop_reason": given.reason, "usage": given.usage}


def _events(given: Given) -> Iterator[str]:
    head = {**_whole(given), "content": [], "stop_reason": None, "usage": {**given.usage, "output_tokens": 1}}
    yield _event("message_start", message=head)
    yield _event("ping")
    for index, part in enumerate(given.parts):
        begun, deltas = _pieces(part)
        yield _event("content_block_start", index=index, content_block=begun)
        for delta in deltas:
            yield _event("content_block_delta", index=index, delta=delta)
        yield _event("content_block_stop", index=index)
    ending = {"stop_reason": given.reason, "stop_sequence": None}
    yield _event("message_delta", delta=ending, usage=given.usage)
    yield _event("message_stop")


def _pieces(part: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    match part["type"]:
        case "text":
            return {**part, "text": ""}, [{"type": "text_delta", "text": text} for text in halves(part["text"])]
        case "thinking":
            thought = [{"type": "thinking_delta", "thinking": text} for text in halves(part["thinking"])]
            signed = {"type": "signature_delta", "signature": part["signature"]}
            return {**part, "thinking": "", "signature": ""}, [*thought, signed]
        case "tool_use":
            written = halves(orjson.dumps(part["input"]).decode())
            return {**part, "input": {}}, [{"type": "input_json_delta", "partial_json": text} for text in written]
        case _:
            return part, []


def _event(name: str, **fields: Any) -> str:
    return event({"type": name, **fields}, name)
