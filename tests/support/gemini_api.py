"""Gemini's own API: what it demands of a request, and how it answers, whole and as events."""

import re
from collections.abc import Iterator
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from tests.support.native_api import KEY, Given, NativeApi, answers, event, halves, refuse_if

USAGE = {
    "promptTokenCount": 41,
    "cachedContentTokenCount": 30,
    "candidatesTokenCount": 4,
    "thoughtsTokenCount": 3,
    "totalTokenCount": 48,
}
SIGNATURE = "c2lnbmVkIGJ5IGdlbWluaQ=="
THOUGHTS = ({"text": "Let me see.", "thought": True},)
LENGTH = "MAX_TOKENS"


def says(*texts: str, reason: str = "STOP", broken_after: int | None = None) -> Given:
    return Given(tuple({"text": text} for text in texts), reason, USAGE, broken_after)


def calls(*wanted: tuple[str, dict[str, Any]], before: tuple[dict[str, Any], ...] = (), reason: str = "STOP") -> Given:
    """The first call is signed, as Gemini 3 does it."""
    made: list[dict[str, Any]] = [{"functionCall": {"name": name, "args": args}} for name, args in wanted]
    made[0]["thoughtSignature"] = SIGNATURE
    return Given((*before, *made), reason, USAGE)


def fails(code: int, status: str, message: str, **more: Any) -> Response:
    return answers(code, {"error": {"code": code, "message": message, "status": status, **more}})


FILTERED = (says("I will", reason="SAFETY"), says("I will", reason="IMAGE_PROHIBITED_CONTENT"), Given((), "", {}))
ERRORS = {
    "too long": (
        fails(400, "INVALID_ARGUMENT", "The input token count (1200000) exceeds the maximum number of tokens allowed."),
        "CONTEXT_TOKEN_BUDGET",
        False,
    ),
    "no quota": (fails(402, "FAILED_PRECONDITION", "Billing is not active."), "set another {key}", False),
    "a wrong key": (
        fails(
            400,
            "INVALID_ARGUMENT",
            f"API key not valid. Please pass a valid API key: {KEY}",
            details=[{"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "API_KEY_INVALID"}],
        ),
        "Check {key}.",
        False,
    ),
    "no such model": (
        fails(404, "NOT_FOUND", "models/gemini-nine is not found for API version v1beta."),
        "Check LLM_MODEL and {base_url}.",
        False,
    ),
    "busy": (fails(429, "RESOURCE_EXHAUSTED", "Slow down."), "Slow down.", True),
    "overloaded": (fails(503, "UNAVAILABLE", "The model is overloaded."), "overloaded", True),
    "odd": (fails(400, "INVALID_ARGUMENT", "contents: odd"), "contents: odd", False),
}
FAILS_IN_STREAM = Response(
    event({"error": {"code": 503, "message": "Overloaded", "status": "UNAVAILABLE"}}), media_type="text/event-stream"
)


def api() -> NativeApi:
    return NativeApi(
        ("/v1beta/models/{model}",),
        _check,
        whole,
        _events,
        lambda code, message: fails(code, "INVALID_ARGUMENT", message),
        lambda request, _: request.url.path.endswith(":streamGenerateContent"),
    )


def _check(api: NativeApi, request: Request, body: dict[str, Any]) -> None:
    refuse_if(request.headers.get("x-goog-api-key") != KEY, "no key")
    method = request.path_params["model"].partition(":")[2]
    streamed = method == "streamGenerateContent" and request.query_params.get("alt") == "sse"
    refuse_if(not streamed and method != "generateContent", f"no such method: {method}")
    for tool in body.get("tools", ()):
        for function in tool["functionDeclarations"]:
            refuse_if(not re.fullmatch(r"[a-zA-Z_][\w.:-]{0,127}", function["name"]), "a tool's name")
    contents = body["contents"]
    roles = [content["role"] for content in contents]
    refuse_if(roles != (["user", "model"] * len(roles))[: len(roles)], f"roles do not alternate: {roles}")
    refuse_if(roles[-1] != "user", "the last content is not the user's")
    waiting: list[str] = []
    for content in contents:
        parts = content["parts"]
        refuse_if(not parts or {} in parts, "an empty content")
        told = [part["functionResponse"]["name"] for part in parts if "functionResponse" in part]
        refuse_if(told != waiting, f"responses {told} for calls {waiting}")
        waiting = [part["functionCall"]["name"] for part in parts if "functionCall" in part]
    _check_signatures(api, contents)


def _check_signatures(api: NativeApi, contents: list[dict[str, Any]]) -> None:
    """Parts with signatures come back where they were, in the running turn always."""
    questions = [
        at for at, content in enumerate(contents) if "text" in content["parts"][0] and content["role"] == "user"
    ]
    rounds = [content["parts"] for content in contents[questions[-1] :] if content["role"] == "model"]
    given = api.given[len(api.given) - len(rounds) :]
    for parts, answer in zip(rounds, given, strict=True):
        shape = [_shape(part) for part in parts]
        expected = [_shape(part) for part in answer.parts]
        refuse_if(shape != expected, f"{shape} came as {expected}")


def _shape(part: dict[str, Any]) -> tuple[Any, ...]:
    call = part.get("functionCall", {})
    return part.get("text"), part.get("thought"), call.get("name"), part.get("thoughtSignature")


def whole(given: Given) -> dict[str, Any]:
    if not given.parts:
        return {"promptFeedback": {"blockReason": "PROHIBITED_CONTENT"}, "modelVersion": "gemini-3-flash"}
    candidate = {"content": {"role": "model", "parts": list(given.parts)}, "finishReason": given.reason, "index": 0}
    return {"candidates": [candidate], "usageMetadata": given.usage, "modelVersion": "gemini-3-flash"}


def _events(given: Given) -> Iterator[str]:
    if not given.parts:
        yield event(whole(given))
        return
    for part in given.parts:
        texts = halves(part["text"]) if "text" in part else [None]
        for text in texts:
            piece = part if text is None else {**part, "text": text}
            yield event(_chunk([piece], {**given.usage, "candidatesTokenCount": 1, "totalTokenCount": 45}))
    last = _chunk([{"text": ""}], given.usage)
    last["candidates"][0]["finishReason"] = given.reason
    yield event(last)


def _chunk(parts: list[dict[str, Any]], usage: dict[str, int]) -> dict[str, Any]:
    candidate = {"content": {"role": "model", "parts": parts}, "index": 0}
    return {"candidates": [candidate], "usageMetadata": usage, "modelVersion": "gemini-3-flash"}
