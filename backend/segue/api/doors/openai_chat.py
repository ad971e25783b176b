"""`/v1/models` and `/v1/chat/completions`: an agent is a model, a turn is a completion, its events are the chunks.

Calls of tools are never passed on: the client would take them for its own. What the agent does is reasoning content.
Titles, tags and the like that a frontend wants of a conversation are one plain call of the small model, and no turn.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import asdict
from secrets import token_hex
from typing import Annotated, Any, Final, Literal, assert_never

import orjson
from fastapi import Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel

from segue.api.agents import AgentId
from segue.api.chat import ClientRequest
from segue.api.deps import DoorRoute, router_of
from segue.api.doors.client_turns import SentFile, begin
from segue.api.doors.clients import DoorClientDep, find_session
from segue.api.doors.openai_request import (
    SOURCE,
    TASK_BEGINS,
    CompletionBody,
    answer_of,
    conversation_of,
    is_open_webui,
    message_of,
    stream,
    texts,
    turn_headers,
)
from segue.api.doors.turn_reader import Activity, Answered, AnswerText, Called, InWords, Piece, is_in_words
from segue.api.event_streams import EventStream, described_stream
from segue.api.problems import OF_DOORS, error_body, problems
from segue.domain import turn_errors
from segue.domain.errors import AppError, InvalidRequest
from segue.domain.field_types import doc
from segue.domain.identity import Charge
from segue.turns.turn_deps import Speaker


class ModelOfAgent(BaseModel):
    """An agent, as OpenAI describes a model."""

    id: Annotated[str, doc("For `model`.")]
    object: Annotated[Literal["model"], doc("Always `model`.")] = "model"
    created: Annotated[int, doc("Always 0.")] = 0
    owned_by: Annotated[Literal["segue"], doc("Always `segue`.")] = "segue"
    name: Annotated[str, doc("What it is called.")]
    description: Annotated[str, doc("What it is for.")]


class ModelList(BaseModel):
    """The agents, as OpenAI lists models."""

    object: Annotated[Literal["list"], doc("Always `list`.")] = "list"
    data: Annotated[list[ModelOfAgent], doc("All of them.")]


class CompletionMessage(BaseModel):
    """What the assistant says."""

    role: Annotated[Literal["assistant"], doc("Always `assistant`.")] = "assistant"
    content: Annotated[str | None, doc("The text; null beside a `refusal`.")]
    refusal: Annotated[
        str | None, doc("What is said in the place of JSON: the question of a plan, or what the service wrote.")
    ] = None


class CompletionChoice(BaseModel):
    """The answer."""

    index: Annotated[int, doc("Always 0.")] = 0
    message: Annotated[CompletionMessage, doc("The answer.")]
    finish_reason: Annotated[Literal["stop", "length"], doc("`length` if it reached `max_tokens`.")] = "stop"


class CompletionUsage(BaseModel):
    """What the turn took, as its providers count tokens."""

    prompt_tokens: Annotated[int, doc("Tokens sent, over all calls of the turn.")]
    completion_tokens: Annotated[int, doc("Tokens received.")]
    total_tokens: Annotated[int, doc("Both.")]
    prompt_tokens_details: Annotated[dict[str, int], doc("`cached_tokens`: those the provider had cached.")]
    completion_tokens_details: Annotated[dict[str, int], doc("`reasoning_tokens`: those that were thought.")]


class Completion(BaseModel):
    """A turn, as OpenAI describes a completion."""

    id: Annotated[str, doc("`chatcmpl-` and the id of the turn.")]
    object: Annotated[Literal["chat.completion"], doc("Always `chat.completion`.")] = "chat.completion"
    created: Annotated[int, doc("When it was asked for, in seconds since 1970.")]
    model: Annotated[str, doc("The agent.")]
    choices: Annotated[list[CompletionChoice], doc("The one answer.")]
    usage: Annotated[CompletionUsage, doc("What the turn took.")]


class OpenAIResponse(BaseModel):
    """A turn, as OpenAI describes a response."""

    id: Annotated[str, doc("For `previous_response_id`.")]
    object: Annotated[Literal["response"], doc("Always `response`.")] = "response"
    created_at: Annotated[int, doc("When it was asked for, in seconds since 1970.")]
    status: Annotated[
        Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"], doc("How it stands.")
    ]
    model: Annotated[str, doc("The agent.")]
    output: Annotated[
        list[dict[str, Any]],
        doc("Each tool that ran, as an `mcp_call` with its output; the message."),
    ]
    conversation: Annotated[dict[str, str] | None, doc("The session, as `id`; null for a title or the like.")] = None
    error: Annotated[dict[str, Any] | None, doc("Why it failed: `code` and `message`.")] = None
    usage: Annotated[dict[str, Any] | None, doc("What the turn took, once it has ended.")] = None


def usage_of(usage: Mapping[str, Any], given: str, got: str) -> dict[str, Any]:
    """`usage` is that of a ChatAnswer, or a Charge. `given` and `got` are the words of the API for input and output."""
    return {
        f"{given}_tokens": usage["input_tokens"],
        f"{got}_tokens": usage["output_tokens"],
        "total_tokens": usage["input_tokens"] + usage["output_tokens"],
        f"{given}_tokens_details": {"cached_tokens": usage["cached_tokens"]},
        f"{got}_tokens_details": {"reasoning_tokens": usage["reasoning_tokens"]},
    }


def completion_usage(usage: Mapping[str, Any]) -> dict[str, Any]:
    return usage_of(usage, "prompt", "completion")


CHAT_HISTORY: Final = "<chat_history>"  # in what Open WebUI asks for about a conversation
TASK_HEADER: Final = "x-openwebui-task"
MAX_CITED_CHARS: Final = 1000  # of a source, for Open WebUI
TASK_MODEL: Final = "-title"  # LibreChat's: the agent's id and this
INSTRUCTIONS: Final = "You do a small task about a conversation. Answer with what is asked for and nothing else."


def is_task(
    client: ClientRequest, messages: Sequence[Mapping[str, Any]], *, model: str, body: Mapping[str, Any]
) -> bool:
    """Open WebUI says with each request whether it is one, if its headers are set up so. Else the form tells. In a
    session that is named, a text that looks like a task is the user's unless it quotes the conversation.
    """
    agents = client.services.agents.of(client.caller, client.origin.groups)
    if model not in agents and model.removesuffix(TASK_MODEL) in agents:
        return True
    if (task := client.http.headers.get(TASK_HEADER)) is not None:
        return bool(task)
    users = [message for message in messages if message.get("role") == "user"]
    asked = texts(users, "user")
    if len(users) != 1 or not asked.startswith(TASK_BEGINS):
        return False
    is_named = is_open_webui(client.http) or conversation_of(client.http, body)[0] is not None
    return CHAT_HISTORY in asked.partition(SOURCE)[0] or not (is_named or SOURCE in asked)


async def do_task(
    client: ClientRequest, messages: Sequence[Mapping[str, Any]], *, model: str, body: Mapping[str, Any]
) -> tuple[str, Charge]:
    """Returns the text and what it took, which the caller and the session that the task is about are charged. Raises
    what a call of the model raises, AppError `unknown_agent`.
    """
    services, caller, groups = client.services, client.caller, client.origin.groups
    agent = model if model in services.agents.of(caller, groups) else model.removesuffix(TASK_MODEL)
    speaker = services.agents.check(agent, caller, groups, status=404)
    client_id, _ = conversation_of(client.http, body)
    session = await find_session(services, caller, client_id) if client_id else None
    instructions = texts(messages, "system", "developer") or INSTRUCTIONS
    said = texts(messages, "user", "assistant")
    if not said.strip():
        raise InvalidRequest("The task has no message.")
    return await services.turns.complete(caller, speaker, instructions, said, session_id=session.id if session else "")


DONE: Final = b"data: [DONE]\n\n"
CHUNKS: Final = described_stream(
    "Chunks as OpenAI sends them, the last one `[DONE]`.",
    'data: {"id":"chatcmpl-…","choices":[{"index":0,"delta":{"content":"Hello"}}]}\n\ndata: [DONE]\n\n',
)

router = router_of("doors", "/v1", route_class=DoorRoute)


@router.get("/models")
async def list_models(client: DoorClientDep) -> ModelList:
    """Lists the agents as models, for clients of OpenAI's API."""
    agents = client.services.agents.of(client.caller, client.origin.groups)
    return ModelList(data=[_model(speaker) for speaker in agents.values()])


@router.get("/models/{agent_id}")
async def get_model(agent_id: AgentId, client: DoorClientDep) -> ModelOfAgent:
    """Shows an agent as a model, for clients of OpenAI's API."""
    return _model(client.services.agents.check(agent_id, client.caller, client.origin.groups, status=404))


def _model(speaker: Speaker) -> ModelOfAgent:
    return ModelOfAgent(id=speaker.id, name=speaker.agent.name, description=speaker.agent.description)


@router.post(
    "/chat/completions",
    response_model=Completion,
    responses={200: {"content": CHUNKS}, **problems(*OF_DOORS, "unsupported_parameter")},
)
async def create_chat_completion(body: CompletionBody, client: DoorClientDep) -> Response:
    """Sends the last message to an agent, for clients of OpenAI's API. The session is the one that the client names in
    `X-Session-Id` and other places, or that has the earlier messages; docs/frontends.md says more.
    """
    given, wants_usage = body.model_dump(), bool((body.stream_options or {}).get("include_usage"))
    head = {"created": int(client.services.clock().timestamp()), "model": body.model}
    if is_task(client, body.messages, model=body.model, body=given):
        text, charge = await do_task(client, body.messages, model=body.model, body=given)
        head["id"] = f"chatcmpl-{token_hex(13)}"
        if body.stream:
            return EventStream(Chunks(head, usage=wants_usage).whole(text, asdict(charge)))
        return JSONResponse(_completion(head, {"content": text}, asdict(charge)))
    request = await message_of(client.http, body.messages, agent=body.model, body=given)
    turn = (await begin(client, request)).turn
    head["id"] = f"chatcmpl-{turn.turn_id}"
    is_structured = request.options.output_schema is not None
    if body.stream:
        found = [file for file in request.files if file.mark is not None]
        writer = Chunks(head, usage=wants_usage, events=is_open_webui(client.http), sources=found)
        return stream(client, turn, writer, at_its_end=is_structured)
    answer = await answer_of(client, turn)
    said: dict[str, Any] = {"content": answer["message"]["content"]}
    if is_structured and is_in_words(answer):
        said = {"content": None, "refusal": said["content"]}
    completion = _completion(head, said, answer["usage"], finish_reason_of(answer))
    return JSONResponse(completion, headers=turn_headers(turn))


def finish_reason_of(answer: Mapping[str, Any]) -> str:
    """`answer` is a ChatAnswer, or what there is of one for a task."""
    return str(answer.get("message", {}).get("metadata", {}).get("finish_reason", "stop"))


def _completion(
    head: Mapping[str, Any], said: Mapping[str, Any], usage: Mapping[str, Any], finish_reason: str = "stop"
) -> dict[str, Any]:
    choice = {"index": 0, "message": {"role": "assistant", **said}, "finish_reason": finish_reason}
    return {**head, "object": "chat.completion", "choices": [choice], "usage": completion_usage(usage)}


def _data(value: object) -> bytes:
    return b"data: %b\n\n" % orjson.dumps(value)


class Chunks:
    """Writes the events of one turn as chunks. With `events` for Open WebUI: what goes on, which it shows above the
    answer, and the sources.
    """

    interrupted = _data(error_body(turn_errors.interrupted())) + DONE
    end = DONE

    def __init__(
        self, head: Mapping[str, Any], *, usage: bool, events: bool = False, sources: Sequence[SentFile] = ()
    ) -> None:
        self._head = {**head, "object": "chat.completion.chunk"}
        self._usage = usage
        self._events = events
        self._sources = sources

    def begin(self) -> bytes:
        return self._delta(role="assistant", content="")

    async def whole(self, text: str, usage: Mapping[str, Any]) -> AsyncIterator[bytes]:
        yield self._delta(role="assistant", content=text) + self._ended(usage, "stop") + DONE

    def frame(self, piece: Piece) -> bytes:
        match piece:
            case AnswerText(delta):
                return self._delta(content=delta)
            case Activity():
                return self._delta(reasoning_content=piece.text) + self._status(piece)
            case Called():
                return b""
            case InWords(text):
                return self._delta(refusal=text)
            case Answered(answer):
                return self._ended(answer["usage"], finish_reason_of(answer))
            case AppError():
                return _data(error_body(piece))
            case _:
                assert_never(piece)

    def _delta(self, **delta: str) -> bytes:
        return self._chunk([{"index": 0, "delta": delta, "finish_reason": None}])

    def _status(self, activity: Activity) -> bytes:
        if activity.status is None:
            return b""
        return self._event("status", {"description": activity.status, "done": activity.is_done})

    def _cited(self, source: SentFile) -> bytes:
        """Open WebUI puts sources with the same `source` in their metadata together."""
        about, text = {"source": source.name, "name": source.name}, source.content[: 4 * MAX_CITED_CHARS]
        passage = text.decode(errors="ignore")[:MAX_CITED_CHARS]
        data = {"source": {"id": source.name, "name": source.name}, "document": [passage], "metadata": [about]}
        return self._event("source", data)

    def _event(self, kind: str, data: Mapping[str, Any]) -> bytes:
        return self._chunk([], event={"type": kind, "data": data}) if self._events else b""

    def _ended(self, usage: Mapping[str, Any], finish_reason: str) -> bytes:
        end = b"".join(map(self._cited, self._sources))
        end += self._chunk([{"index": 0, "delta": {}, "finish_reason": finish_reason}])
        return end + (self._chunk([], usage=completion_usage(usage)) if self._usage else b"")

    def _chunk(self, choices: list[dict[str, Any]], **more: Any) -> bytes:
        return _data({**self._head, "choices": choices, **more})
