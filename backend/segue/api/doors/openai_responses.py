"""`/v1/responses`: a turn is a response. A tool that has run is a call and, at once, its output: nothing is left to do.

The id of a response says which session and turn it is of, so `previous_response_id` needs nothing that is kept.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import asdict
from secrets import token_hex
from typing import Any, Final, assert_never

import orjson
from fastapi.responses import JSONResponse
from starlette.responses import Response

from segue.api.deps import router_of
from segue.api.doors.client_turns import begin
from segue.api.doors.clients import DoorAskingDep, on_disconnect
from segue.api.doors.openai_chat import OpenAIResponse, do_task, is_task, response_usage
from segue.api.doors.openai_request import ResponseBody, asked, response_id, turn_headers
from segue.api.doors.turn_reader import BETWEEN, Activity, Answered, AnswerText, Called, Piece, TurnReader
from segue.api.event_streams import MEDIA_TYPE, EventStream
from segue.api.problems import OF_DOORS, error_body, problems
from segue.domain import turn_errors
from segue.domain.errors import AppError
from segue.events.event_buffer import Entry

EVENTS: Final[dict[str, Any]] = {
    MEDIA_TYPE: {
        "schema": {
            "type": "string",
            "description": "Events as OpenAI sends them, to `response.completed` or `.failed`.",
        },
        "example": 'event: response.output_text.delta\ndata: {"type":"response.output_text.delta","delta":"Hello"}\n\n',
    }
}
_MADE_UP: Final = {
    "parallel_tool_calls": True,
    "tool_choice": "auto",
    "tools": [],
    "metadata": {},
}  # a client wants them
_INTERRUPTED: Final = b"event: error\ndata: %b\n\n" % orjson.dumps(
    {"type": "error", **error_body(turn_errors.interrupted())["error"]}
)

router = router_of("doors", "/v1")


@router.post(
    "/responses",
    response_model=OpenAIResponse,
    responses={200: {"content": EVENTS}, **problems(*OF_DOORS)},
)
async def create_response(body: ResponseBody, asking: DoorAskingDep) -> Response:
    """Sends the last message to an agent, for clients of OpenAI's Responses API. The session is the one that
    `previous_response_id`, `conversation` or another place names, or that has the earlier messages.
    """
    given = body.model_dump()
    messages = [{"role": "user", "content": body.input}] if isinstance(body.input, str) else body.input
    if is_task(asking, messages, model=body.model):
        text, charge = await do_task(asking, messages, model=body.model, body=given)
        writer = ResponseWriter(
            {"id": f"resp_{token_hex(13)}", "created_at": int(asking.services.clock().timestamp()), "model": body.model}
        )
        pieces: list[Piece] = [AnswerText(text), Answered({"usage": asdict(charge)})]
        if body.stream:
            return EventStream(_once(writer.begin() + writer.frames(pieces)))
        writer.frames(pieces)
        return JSONResponse(writer.response)
    request = await asked(asking.http, messages, agent=body.model, body=given)
    turn = (await begin(asking, request)).turn
    writer = ResponseWriter(
        {
            "id": response_id(turn),
            "created_at": int(asking.services.clock().timestamp()),
            "model": body.model,
            "conversation": {"id": turn.session_id},
            "previous_response_id": body.previous_response_id,
        }
    )
    if body.stream:
        events = writer.follow(asking.services.events.follow(turn))
        return EventStream(events, headers=turn_headers(turn), farewell=_INTERRUPTED, **on_disconnect(asking, turn))
    try:
        answer = orjson.loads(await asking.services.events.answer(turn))
    except AppError as error:
        raise error.with_extra(session_id=turn.session_id) from None
    calls = (_called(call) for call in answer["tool_calls"])
    writer.frames([*calls, AnswerText(answer["message"]["content"]), Answered(answer)])
    return JSONResponse(writer.response, headers=turn_headers(turn))


def _called(call: Mapping[str, Any]) -> Called:
    told = {"status": call["status"], "summary": (call.get("metadata") or {}).get("summary")}
    return Called(call["tool_call_id"], call["tool_name"], orjson.dumps(call.get("args")).decode(), told)


async def _once(frames: bytes) -> AsyncIterator[bytes]:
    yield frames


class ResponseWriter:
    """Writes one turn as the events of a response. `response` is what it has become until then."""

    def __init__(self, head: Mapping[str, Any]) -> None:
        self.response: dict[str, Any] = {
            **_MADE_UP,
            **head,
            "object": "response",
            "status": "in_progress",
            "output": [],
            "error": None,
        }
        self._number = 0
        self._text: list[str] | None = None  # of the message that is open
        self._reader = TurnReader()

    async def follow(self, parts: AsyncGenerator[Sequence[Entry]]) -> AsyncIterator[bytes]:
        yield self.begin()
        async with aclosing(parts):
            async for entries in parts:
                if frames := self.frames(piece for entry in entries for piece in self._reader.read(entry.event)):
                    yield frames

    def begin(self) -> bytes:
        return b"".join(self._event(f"response.{name}", response=self.response) for name in ("created", "in_progress"))

    def frames(self, pieces: Iterable[Piece]) -> bytes:
        return b"".join(map(self._frame, pieces))

    def _frame(self, piece: Piece) -> bytes:
        match piece:
            case AnswerText(delta):
                return self._said(delta if self._text is not None else delta.removeprefix(BETWEEN))
            case Called():
                return self._closed() + b"".join(map(self._whole_item, _call_items(piece)))
            case Answered(answer):
                closed = self._closed()
                return closed + self._end("completed", usage=response_usage(answer["usage"]))
            case AppError():
                error = error_body(piece)["error"]
                return self._closed() + self._end("failed", error={name: error[name] for name in ("code", "message")})
            case Activity():
                return b""
            case _:
                assert_never(piece)

    def _said(self, delta: str) -> bytes:
        opened = b""
        if not delta:
            return opened
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
        events = (self._event(f"response.output_item.{name}", output_index=self._index, item=item) for name in _BOTH)
        written = b"".join(events)
        self.response["output"].append(item)
        return written

    def _end(self, status: str, **more: Any) -> bytes:
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


_BOTH: Final = ("added", "done")


def _part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": []}


def _call_items(call: Called) -> tuple[dict[str, Any], dict[str, Any]]:
    """The output is a list of parts: a text in its place broke the next turn of a frontend."""
    told = f"{call.reference.get('status')}: {call.reference.get('summary') or ''}"
    both = {"call_id": call.call_id, "status": "completed"}
    return (
        {**both, "id": f"fc_{call.call_id}", "type": "function_call", "name": call.name, "arguments": call.arguments},
        {
            **both,
            "id": f"fco_{call.call_id}",
            "type": "function_call_output",
            "output": [{"type": "input_text", "text": told}],
        },
    )
