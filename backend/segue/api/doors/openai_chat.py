"""`/v1/models` and `/v1/chat/completions`: an agent is a model, a turn is a completion, its events are the chunks.

Calls of tools are never passed on: the client would take them for its own. What the agent does is reasoning content.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import asdict
from secrets import token_hex
from typing import Any, Final, assert_never

import orjson
from fastapi import Response
from fastapi.responses import JSONResponse

from segue.api.agents import AgentId
from segue.api.chat import Asking
from segue.api.deps import router_of
from segue.api.doors.client_turns import begin
from segue.api.doors.leaving import on_disconnect
from segue.api.doors.openai_answers import Completion, ModelList, ModelOfAgent, completion_usage
from segue.api.doors.openai_errors import error_body
from segue.api.doors.openai_request import CompletionBody, asked, is_open_webui, turn_headers
from segue.api.doors.openai_tasks import do_task, is_task
from segue.api.doors.speaking_for import DoorAskingDep
from segue.api.doors.turn_reader import Activity, Answered, AnswerText, Called, Piece, TurnReader
from segue.api.events import MEDIA_TYPE, EventStream
from segue.api.problem_codes import OF_DOORS, problems
from segue.domain import turn_errors
from segue.domain.errors import AppError
from segue.events.event_buffer import Entry
from segue.turns.agents import Speaker

DONE: Final = b"data: [DONE]\n\n"
CHUNKS: Final[dict[str, Any]] = {
    MEDIA_TYPE: {
        "schema": {"type": "string", "description": "Chunks as OpenAI sends them, the last one `[DONE]`."},
        "example": 'data: {"id":"chatcmpl-…","choices":[{"index":0,"delta":{"content":"Hello"}}]}\n\ndata: [DONE]\n\n',
    }
}

router = router_of("doors", "/v1")


@router.get("/models")
async def list_models(asking: DoorAskingDep) -> ModelList:
    """Lists the agents as models, for clients of OpenAI's API."""
    agents = asking.services.agents.of(asking.caller, asking.origin.groups)
    return ModelList(data=[_model(speaker) for speaker in agents.values()])


@router.get("/models/{agent_id}")
async def get_model(agent_id: AgentId, asking: DoorAskingDep) -> ModelOfAgent:
    """Shows an agent as a model, for clients of OpenAI's API."""
    return _model(asking.services.agents.check(agent_id, asking.caller, asking.origin.groups, status=404))


def _model(speaker: Speaker) -> ModelOfAgent:
    return ModelOfAgent(id=speaker.id, name=speaker.agent.name, description=speaker.agent.description)


@router.post(
    "/chat/completions",
    response_model=Completion,
    responses={200: {"content": CHUNKS}, **problems(*OF_DOORS)},
)
async def create_chat_completion(body: CompletionBody, asking: DoorAskingDep) -> Response:
    """Sends the last message to an agent, for clients of OpenAI's API. The session is the one that the client names in
    `X-Session-Id` and other places, or that has the earlier messages; docs/frontends.md says more.
    """
    given, wants_usage = body.model_dump(), bool((body.stream_options or {}).get("include_usage"))
    if is_task(asking, body.messages, model=body.model):
        return await _task(asking, body, given, wants_usage=wants_usage)
    request = await asked(asking.http, body.messages, agent=body.model, body=given)
    turn = (await begin(asking, request)).turn
    head = {"id": f"chatcmpl-{turn.turn_id}", "created": int(asking.services.clock().timestamp()), "model": body.model}
    if body.stream:
        chunks = Chunks(head, statuses=is_open_webui(asking.http), usage=wants_usage)
        frames, farewell = chunks.frames(asking.services.events.follow(turn)), chunks.failed(turn_errors.interrupted())
        options = on_disconnect(asking, turn)
        return EventStream(frames, headers=turn_headers(turn), farewell=farewell, **options)
    try:
        answer = orjson.loads(await asking.services.events.answer(turn))
    except AppError as error:
        raise error.with_extra(session_id=turn.session_id) from None
    completion = _completion(head, answer["message"]["content"], answer["usage"])
    return JSONResponse(completion, headers=turn_headers(turn))


async def _task(asking: Asking, body: CompletionBody, given: Mapping[str, Any], *, wants_usage: bool) -> Response:
    text, charge = await do_task(asking, body.messages, model=body.model, body=given)
    head = {"id": f"chatcmpl-{token_hex(13)}", "created": int(asking.services.clock().timestamp()), "model": body.model}
    usage = asdict(charge)
    if not body.stream:
        return JSONResponse(_completion(head, text, usage))
    chunks = Chunks(head, statuses=False, usage=wants_usage)
    return EventStream(chunks.whole(text, usage))


def _completion(head: Mapping[str, Any], text: str, usage: Mapping[str, Any]) -> dict[str, Any]:
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
    return {**head, "object": "chat.completion", "choices": [choice], "usage": completion_usage(usage)}


class Chunks:
    """Writes the events of one turn as chunks. `statuses`: also as Open WebUI shows above an answer what goes on."""

    def __init__(self, head: Mapping[str, Any], *, statuses: bool, usage: bool) -> None:
        self._head = {**head, "object": "chat.completion.chunk"}
        self._statuses = statuses
        self._usage = usage
        self._reader = TurnReader()

    async def frames(self, parts: AsyncGenerator[Sequence[Entry]]) -> AsyncIterator[bytes]:
        yield self._delta(role="assistant", content="")
        async with aclosing(parts):
            async for entries in parts:
                pieces = (piece for entry in entries for piece in self._reader.read(entry.event))
                if frames := b"".join(map(self._frame, pieces)):
                    yield frames
        yield DONE

    async def whole(self, text: str, usage: Mapping[str, Any]) -> AsyncIterator[bytes]:
        yield self._delta(role="assistant", content=text) + self._end(usage) + DONE

    def failed(self, error: AppError) -> bytes:
        return _data(error_body(error)) + DONE

    def _frame(self, piece: Piece) -> bytes:
        match piece:
            case AnswerText(delta):
                return self._delta(content=delta)
            case Activity():
                return self._delta(reasoning_content=piece.text) + self._status(piece)
            case Called():
                return b""
            case Answered(answer):
                return self._end(answer["usage"])
            case AppError():
                return _data(error_body(piece))
            case _:
                assert_never(piece)

    def _delta(self, **delta: str) -> bytes:
        return self._chunk([{"index": 0, "delta": delta, "finish_reason": None}])

    def _status(self, activity: Activity) -> bytes:
        if not self._statuses or activity.status is None:
            return b""
        told = {"description": activity.status, "done": activity.is_done}
        return self._chunk([], event={"type": "status", "data": told})

    def _end(self, usage: Mapping[str, Any]) -> bytes:
        end = self._chunk([{"index": 0, "delta": {}, "finish_reason": "stop"}])
        return end + (self._chunk([], usage=completion_usage(usage)) if self._usage else b"")

    def _chunk(self, choices: list[dict[str, Any]], **more: Any) -> bytes:
        return _data({**self._head, "choices": choices, **more})


def _data(value: object) -> bytes:
    return b"data: %b\n\n" % orjson.dumps(value)
