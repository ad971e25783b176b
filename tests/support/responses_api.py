"""OpenAI's Responses API without its storage: what it demands of a request, and how it answers, whole and as events."""

from collections.abc import Iterator
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response

from tests.support.native_api import KEY, Given, NativeApi, answers, event, halves, refuse_if

USAGE = {
    "input_tokens": 41,
    "input_tokens_details": {"cached_tokens": 30},
    "output_tokens": 7,
    "output_tokens_details": {"reasoning_tokens": 3},
    "total_tokens": 48,
}
THOUGHTS = (
    {
        "type": "reasoning",
        "id": "rs_1",
        "summary": [{"type": "summary_text", "text": "Let me "}, {"type": "summary_text", "text": "see."}],
        "encrypted_content": "gAAAAB-first",
    },
)
LENGTH = "max_output_tokens"


def _message(*content: dict[str, Any]) -> dict[str, Any]:
    return {"type": "message", "id": "msg_1", "status": "completed", "role": "assistant", "content": list(content)}


def says(*texts: str, reason: str = "", broken_after: int | None = None) -> Given:
    parts = ({"type": "output_text", "text": text, "annotations": []} for text in texts)
    return Given((_message(*parts),), reason, USAGE, broken_after)


def refuses(text: str) -> Given:
    return Given((_message({"type": "refusal", "refusal": text}),), "", USAGE)


def calls(*wanted: tuple[str, dict[str, Any]], before: tuple[dict[str, Any], ...] = (), reason: str = "") -> Given:
    made = (
        {
            "type": "function_call",
            "id": f"fc_{at}",
            "call_id": f"call_{at}",
            "name": name,
            "arguments": orjson.dumps(args).decode(),
            "status": "completed",
        }
        for at, (name, args) in enumerate(wanted)
    )
    return Given((*before, *made), reason, USAGE)


def fails(status: int, code: str | None, message: str, *, param: str | None = None) -> Response:
    error = {"message": message, "type": "invalid_request_error", "param": param, "code": code}
    return answers(status, {"error": error})


FILTERED = (says("I will", reason="content_filter"),)
ERRORS = {
    "too long": (
        fails(400, "context_length_exceeded", "Your input exceeds the context window of this model."),
        "CONTEXT_TOKEN_BUDGET",
        False,
    ),
    "no quota": (fails(429, "insufficient_quota", "You exceeded your current quota."), "set another {key}", False),
    "a wrong key": (fails(401, "invalid_api_key", f"Incorrect API key provided: {KEY}"), "Check {key}.", False),
    "no such model": (fails(404, "model_not_found", "The model does not exist."), "Check LLM_MODEL.", False),
    "busy": (fails(429, "rate_limit_exceeded", "Slow down."), "Slow down.", True),
    "overloaded": (fails(503, "server_error", "Overloaded"), "Overloaded", True),
    "odd": (fails(400, "invalid_value", "messages.0: odd"), "messages.0: odd", False),
}


def _stream(*events: dict[str, Any]) -> Response:
    return Response("".join(event(each, each["type"]) for each in events), media_type="text/event-stream")


def api() -> NativeApi:
    return NativeApi(
        ("/v1/responses",),
        _check,
        whole,
        _events,
        lambda status, message: fails(status, None, message),
        lambda _, body: bool(body.get("stream")),
    )


def _check(api: NativeApi, request: Request, body: dict[str, Any]) -> None:
    refuse_if(request.headers.get("authorization") != f"Bearer {KEY}", "no key")
    refuse_if(body["store"] is not False, "it would be stored")
    refuse_if(body["include"] != ["reasoning.encrypted_content"], "reasoning is not asked for")
    refuse_if({"previous_response_id", "conversation", "messages"} & body.keys(), "what is stored is asked for")
    for tool in body.get("tools", ()):
        refuse_if(tool["type"] != "function" or tool["strict"] or not tool["name"], "a tool's form")
    items = body["input"]
    called = [item["call_id"] for item in items if item["type"] == "function_call"]
    told = [item["call_id"] for item in items if item["type"] == "function_call_output"]
    refuse_if(sorted(called) != sorted(told) or len({*called}) != len(called), f"calls {called}, outputs {told}")
    _check_reasoning(api, items)


def _check_reasoning(api: NativeApi, items: list[dict[str, Any]]) -> None:
    """Reasoning comes back unchanged before what came after it, with its calls in the running turn always."""
    given = [_shape(list(answer.parts)) for answer in api.given]
    known = [thought for answer in given for thought in answer if isinstance(thought, dict)]
    refuse_if(any(item["type"] == "reasoning" and item not in known for item in items), "reasoning not given so")
    last = max(at for at, item in enumerate(items) if item.get("role") == "user")
    running = [item for item in items[last + 1 :] if item["type"] != "function_call_output"]
    shape = [part for answer in given[len(given) - _rounds(items[last + 1 :]) :] for part in answer]
    refuse_if(_shape(running) != shape, f"{_shape(running)} came as {shape}")


def _rounds(items: list[dict[str, Any]]) -> int:
    """How many answers there are in the running turn: each ends where outputs begin."""
    kinds = [item["type"] for item in items]
    return sum(kind == "function_call_output" != kinds[at - 1] for at, kind in enumerate(kinds))


def _shape(items: list[dict[str, Any]]) -> list[Any]:
    """The order of items: reasoning as it is, calls by name."""
    found = (item if item["type"] == "reasoning" else item.get("name", item["type"]) for item in items)
    return list(found)


def whole(given: Given) -> dict[str, Any]:
    return {
        "id": "resp_1",
        "object": "response",
        "created_at": 1,
        "model": "gpt",
        "status": "incomplete" if given.reason else "completed",
        "incomplete_details": {"reason": given.reason} if given.reason else None,
        "output": list(given.parts),
        "usage": given.usage,
        "error": None,
        "instructions": None,
        "metadata": {},
        "parallel_tool_calls": True,
        "temperature": None,
        "tool_choice": "auto",
        "tools": [],
        "top_p": None,
    }


def _events(given: Given) -> Iterator[str]:
    for number, body in enumerate(_bodies(given)):
        yield event({**body, "sequence_number": number}, body["type"])


def _bodies(given: Given) -> Iterator[dict[str, Any]]:
    begun = {**whole(given), "status": "in_progress", "incomplete_details": None, "output": [], "usage": None}
    yield {"type": "response.created", "response": begun}
    yield {"type": "response.in_progress", "response": begun}
    for index, item in enumerate(given.parts):
        at = {"output_index": index, "item_id": item["id"]}
        first, deltas = _pieces(item)
        yield {"type": "response.output_item.added", "output_index": index, "item": first}
        for delta in deltas:
            yield {**at, **delta}
        yield {"type": "response.output_item.done", "output_index": index, "item": item}
    ended = "response.incomplete" if given.reason else "response.completed"
    yield {"type": ended, "response": whole(given)}


def _pieces(item: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    match item["type"]:
        case "reasoning":
            deltas = [piece for index, part in enumerate(item["summary"]) for piece in _summary(index, part["text"])]
            return {**item, "summary": [], "encrypted_content": "gAAAAB-not-yet"}, deltas
        case "function_call":
            name = "response.function_call_arguments.delta"
            deltas = [{"type": name, "delta": text} for text in halves(item["arguments"])]
            return {**item, "arguments": "", "status": "in_progress"}, deltas
        case "image_generation_call":
            return {**item, "result": None, "status": "in_progress"}, []
        case _:
            deltas = [piece for index, part in enumerate(item["content"]) for piece in _content(index, part)]
            return {**item, "content": [], "status": "in_progress"}, deltas


def _summary(index: int, text: str) -> Iterator[dict[str, Any]]:
    part = {"type": "summary_text", "text": ""}
    yield {"type": "response.reasoning_summary_part.added", "summary_index": index, "part": part}
    for half in halves(text):
        yield {"type": "response.reasoning_summary_text.delta", "summary_index": index, "delta": half}


def _content(index: int, part: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if part["type"] == "refusal":
        for half in halves(part["refusal"]):
            yield {"type": "response.refusal.delta", "content_index": index, "delta": half}
        yield {"type": "response.refusal.done", "content_index": index, "refusal": part["refusal"]}
        return
    for half in halves(part["text"]):
        yield {"type": "response.output_text.delta", "content_index": index, "delta": half, "logprobs": []}
    done = {"type": "response.output_text.done", "content_index": index, "text": part["text"], "logprobs": []}
    yield done


OVERLOADED = "Overloaded: you've asked for much, and it isn't there."
FAILS_IN_STREAM = _stream({"type": "error", "code": "server_error", "message": OVERLOADED, "param": None})
FAILED = _stream(
    {"type": "response.created", "sequence_number": 0, "response": whole(says("")) | {"status": "in_progress"}},
    {
        "type": "response.failed",
        "sequence_number": 1,
        "response": whole(says(""))
        | {"status": "failed", "output": [], "error": {"code": "server_error", "message": OVERLOADED}},
    },
)
