"""`/v1/responses`: a turn is a response. A tool that has run is a call and, at once, its output: nothing is left to do.

The id of a response says which session and turn it is of, so `previous_response_id` needs nothing that is kept.
"""

from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import asdict
from secrets import token_hex
from typing import Any, Final, assert_never

import orjson
from fastapi.responses import JSONResponse
from starlette.responses import Response

from segue.api.deps import DoorRoute, router_of
from segue.api.doors.client_turns import begin
from segue.api.doors.clients import DoorClientDep
from segue.api.doors.openai_chat import OpenAIResponse, do_task, is_task, usage_of
from segue.api.doors.openai_request import ResponseBody, answer_of, message_of, response_id, stream, turn_headers
from segue.api.doors.turn_reader import BETWEEN, Activity, Answered, AnswerText, Called, Piece
from segue.api.event_streams import MEDIA_TYPE, EventStream
from segue.api.problems import OF_DOORS, error_body, problems
from segue.domain import turn_errors
from segue.domain.errors import AppError

EVENTS: Final[dict[str, Any]] = {
    MEDIA_TYPE: {
        "schema": {
            "type": "string",
            "description": "Events as OpenAI sends them, to `response.completed` or `.failed`.",
        },
        "example": 'event: response.output_text.delta\ndata: {"type":"response.output_text.delta","delta":"Hello"}\n\n',
    }
}
# What a client wants beside.
_MADE_UP: Final = {"parallel_tool_calls": True, "tool_choice": "auto", "tools": [], "metadata": {}}

router = router_of("doors", "/v1", route_class=DoorRoute)


@router.post("/responses", response_model=OpenAIResponse, responses={200: {"content": EVENTS}, **problems(*OF_DOORS)})
async def create_response(body: ResponseBody, client: DoorClientDep) -> Response:
    """Sends the last message to an agent, for clients of OpenAI's Responses API. The session is the one that
    `previous_response_id`, `conversation` or another place names, or that has the earlier messages.
    """
    given = body.model_dump()
    head: dict[str, Any] = {"created_at": int(client.services.clock().timestamp()), "model": body.model}
    messages = [{"role": "user", "content": body.input}] if isinstance(body.input, str) else body.input
    if is_task(client, messages, model=body.model, body=given):
        text, charge = await do_task(client, messages, model=body.model, body=given)
        writer = ResponseWriter({**head, "id": f"resp_{token_hex(13)}"})
        begun, frames = writer.begin(), writer.frames([AnswerText(text), Answered({"usage": asdict(charge)})])
        return EventStream(_once(begun + frames)) if body.stream else JSONResponse(writer.response)
    request = await message_of(client.http, messages, agent=body.model, body=given)
    turn = (await begin(client, request)).turn
    head |= {"conversation": {"id": turn.session_id}, "previous_response_id": body.previous_response_id}
    writer = ResponseWriter({**head, "id": response_id(turn)})
    if body.stream:
        return stream(client, turn, writer)
    answer = await answer_of(client, turn)
    calls = (_called(call) for call in answer["tool_calls"])
    writer.frames([*calls, AnswerText(answer["message"]["content"]), Answered(answer)])
    return JSONResponse(writer.response, headers=turn_headers(turn))


def _called(call: Mapping[str, Any]) -> Called:
    summary = {"status": call["status"], "summary": (call.get("metadata") or {}).get("summary")}
    return Called(call["tool_call_id"], call["tool_name"], orjson.dumps(call.get("args")).decode(), summary)


async def _once(frames: bytes) -> AsyncIterator[bytes]:
    yield frames


class ResponseWriter:
    """Writes one turn as the events of a response. `response` is what it has become until then."""

    interrupted = b"event: error\ndata: %b\n\n" % orjson.dumps(
        {"type": "error", **error_body(turn_errors.interrupted())["error"]}
    )
    end = b""

    def __init__(self, head: Mapping[str, Any]) -> None:
        begun: dict[str, Any] = {"object": "response", "status": "in_progress", "output": [], "error": None}
        self.response: dict[str, Any] = {**_MADE_UP, **head, **begun}
        self._number = 0
        self._text: list[str] | None = None  # of the message that is open

    def begin(self) -> bytes:
        return b"".join(self._event(f"response.{name}", response=self.response) for name in ("created", "in_progress"))

    def frames(self, pieces: Iterable[Piece]) -> bytes:
        return b"".join(map(self.frame, pieces))

    def frame(self, piece: Piece) -> bytes:
        match piece:
            case AnswerText(delta):
                return self._said(delta if self._text is not None else delta.removeprefix(BETWEEN))
            case Called():
                return self._closed() + b"".join(map(self._whole_item, _call_items(piece)))
            case Answered(answer):
                return self._closed() + self._ended("completed", usage=usage_of(answer["usage"], "input", "output"))
            case AppError():
                error = error_body(piece)["error"]
                return self._closed() + self._ended("failed", error={name: error[name] for name in ("code", "message")})
            case Activity():
                return b""
            case _:
                assert_never(piece)

    def _said(self, delta: str) -> bytes:
        if not delta:
            return b""
        opened = b""
        if self._text is None:
            self._text = []
            opened = self._event("response.output_item.added", output_index=self._index, item=self._message())
            opened += self._event("response.content_part.added", **self._place, part=_part(""))
        self._text.append(delta)
        return opened + self._event("response.output_text.delta", **self._place, delta=delta, logprobs=[])

    def _closed(self) -> bytes:
        if self._text is None:
            return b""
        text = "".join(self._text)
        done = self._event("response.output_text.done", **self._place, text=text, logprobs=[])
        done += self._event("response.content_part.done", **self._place, part=_part(text))
        item = {**self._message(), "status": "completed", "content": [_part(text)]}
        done += self._event("response.output_item.done", output_index=self._index, item=item)
        self.response["output"].append(item)
        self._text = None
        return done

    def _whole_item(self, item: Mapping[str, Any]) -> bytes:
        place = {"output_index": self._index, "item": item}
        written = b"".join(self._event(f"response.output_item.{name}", **place) for name in ("added", "done"))
        self.response["output"].append(item)
        return written

    def _ended(self, status: str, **more: Any) -> bytes:
        self.response |= {"status": status, **more}
        return self._event(f"response.{status}", response=self.response)

    @property
    def _index(self) -> int:
        return len(self.response["output"])

    @property
    def _place(self) -> dict[str, Any]:
        return {"item_id": self._message()["id"], "output_index": self._index, "content_index": 0}

    def _message(self) -> dict[str, Any]:
        message_id = f"msg_{self.response['id'].removeprefix('resp_')}_{self._index}"
        return {"id": message_id, "type": "message", "role": "assistant", "status": "in_progress", "content": []}

    def _event(self, kind: str, **members: Any) -> bytes:
        event = {"type": kind, "sequence_number": self._number, **members}
        self._number += 1
        return b"event: %b\ndata: %b\n\n" % (kind.encode(), orjson.dumps(event))


def _part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": []}


def _call_items(call: Called) -> tuple[dict[str, Any], dict[str, Any]]:
    """The output is a list of parts: a text in its place broke the next turn of a frontend."""
    summary = f"{call.reference.get('status')}: {call.reference.get('summary') or ''}"
    both = {"call_id": call.call_id, "status": "completed"}
    output = {"type": "function_call_output", "output": [{"type": "input_text", "text": summary}]}
    return (
        {**both, "id": f"fc_{call.call_id}", "type": "function_call", "name": call.name, "arguments": call.arguments},
        {**both, "id": f"fco_{call.call_id}", **output},
    )
