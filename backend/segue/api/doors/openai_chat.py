"""`/v1/models` and `/v1/chat/completions`: an agent is a model, a turn is a completion, its events are the chunks.

Tool calls are never passed on, since the client would take them for its own: reasoning content tells of them in words.
"""

import re
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import asdict, dataclass
from secrets import token_hex
from typing import Annotated, Any, Final, Literal, Protocol

import orjson
from fastapi import Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel

from segue.api.agents import AgentId
from segue.api.chat import Client
from segue.api.deps import DoorRoute, router_of
from segue.api.doors.client_turns import begin, note_heard
from segue.api.doors.every_door import DoorClient, agent_of, agents_of, on_disconnect, turn_headers
from segue.api.doors.openai_request import CompletionBody, do_task, is_open_webui, is_task, message_of
from segue.api.event_streams import MEDIA_TYPE, EventStream, described_stream
from segue.api.problems import OF_OPENAI, error_body, problems
from segue.api.schemas import Json
from segue.domain.errors import AppError, app_error
from segue.domain.field_types import doc
from segue.domain.session import WRITTEN_BY, TurnKey
from segue.domain.tool import TurnEffect
from segue.events.agui_encoding import answer_json, are_whole
from segue.tools.summaries import place_of, shortened
from segue.turns.turn_deps import Speaker


class ModelOfAgent(BaseModel):
    """An agent, as OpenAI describes a model."""

    id: Annotated[str, doc("The id of the agent, for `model` of a request.")]
    object: Annotated[Literal["model"], doc("Always `model`.")] = "model"
    created: Annotated[int, doc("Always 0.")] = 0
    owned_by: Annotated[Literal["segue"], doc("Always `segue`.")] = "segue"
    name: Annotated[str, doc("The agent's name.")]
    description: Annotated[str, doc("What the agent is for.")]


class ModelList(BaseModel):
    """The agents, as OpenAI lists models."""

    object: Annotated[Literal["list"], doc("Always `list`.")] = "list"
    data: Annotated[list[ModelOfAgent], doc("The agents that the caller may use.")]


class CompletionMessage(BaseModel):
    """The answer of the assistant."""

    role: Annotated[Literal["assistant"], doc("Always `assistant`.")] = "assistant"
    content: Annotated[str | None, doc("The text of the answer; null if there is a `refusal`.")]
    refusal: Annotated[str | None, doc("The text in place of JSON: a plan's question, or the service's words.")] = None
    annotations: Annotated[list[Json], doc("Web pages that the answer rests on, as `url_citation`.")] = []


class CompletionChoice(BaseModel):
    """The one choice of a completion."""

    index: Annotated[int, doc("Always 0.")] = 0
    message: Annotated[CompletionMessage, doc("The answer.")]
    finish_reason: Annotated[Literal["stop", "length"], doc("Why the answer ended: `length` at `max_tokens`.")] = "stop"


class CompletionUsage(BaseModel):
    """The tokens of a turn, as the provider counts them."""

    prompt_tokens: Annotated[int, doc("The tokens sent to models, in all calls of the turn.")]
    completion_tokens: Annotated[int, doc("The tokens received from models.")]
    total_tokens: Annotated[int, doc("The tokens sent and received.")]
    prompt_tokens_details: Annotated[dict[str, int], doc("`cached_tokens`, and `cache_write_tokens`, always 0.")]
    completion_tokens_details: Annotated[dict[str, int], doc("`reasoning_tokens`: those of the model's thinking.")]


class Completion(BaseModel):
    """A turn, as OpenAI describes a completion."""

    id: Annotated[str, doc("The id: `chatcmpl-` and the id of the turn.")]
    object: Annotated[Literal["chat.completion"], doc("Always `chat.completion`.")] = "chat.completion"
    created: Annotated[int, doc("When the answer was asked for, in seconds since 1970.")]
    model: Annotated[str, doc("The id of the agent that answered.")]
    choices: Annotated[list[CompletionChoice], doc("The answer, as the only choice.")]
    usage: Annotated[CompletionUsage, doc("The tokens of the turn.")]
    effects: Annotated[list[TurnEffect], doc("What the turn changed; not part of OpenAI's API.")] = []


def usage_of(usage: Json, given: str, got: str) -> Json:
    """`usage` is that of a ChatAnswer, or a Charge. `given` and `got` are the words of the API for input and output."""
    return {
        f"{given}_tokens": usage["input_tokens"],
        f"{got}_tokens": usage["output_tokens"],
        "total_tokens": usage["input_tokens"] + usage["output_tokens"],
        f"{given}_tokens_details": {"cached_tokens": usage["cached_tokens"], "cache_write_tokens": 0},
        f"{got}_tokens_details": {"reasoning_tokens": usage["reasoning_tokens"]},
    }


BETWEEN: Final = "\n\n"  # two messages of one turn
MAX_SHOWN_CHARS: Final = 300  # of arguments, and of a result
_MARKS: Final = {"pending": "·", "running": "…", "waiting": "?", "complete": "✓", "failed": "✗", "skipped": "-"}
_ENDS: Final = (b'{"type":"RUN_FINISHED"', b'{"type":"RUN_ERROR"')


@dataclass(frozen=True, slots=True)
class Called:
    """A tool has run. `reference` describes its result."""

    call_id: str
    name: str
    arguments: str
    reference: Json


class Writer(Protocol):
    """Writes an answer in the events of one of the APIs. `interrupted` are the last bytes if this process ends before
    the turn, `end` those of a stream that is complete.
    """

    interrupted: bytes
    end: bytes

    def begin(self) -> bytes: ...

    def said(self, delta: str) -> bytes:
        """Writes more of the answer."""

    def shown(self, text: str, status: str | None = None, *, is_done: bool = False) -> bytes:  # noqa: ARG002 (as `called`)
        """Writes what goes on: `text` is Markdown for a reader who wants the details, `status` a line for all."""
        return b""

    def called(self, call: Called) -> bytes:  # noqa: ARG002 (not all APIs have a place for it)
        return b""

    def in_words(self, text: str) -> bytes:
        """Writes what stands in the place of an answer that was to fit a schema: a question, while a plan waits."""

    def answered(self, answer: Json) -> bytes:
        """Writes the end of a turn that has completed, by its ChatAnswer."""

    def failed(self, error: AppError) -> bytes: ...


class TurnReader:
    """Passes what each event adds to the answer to the writer, and returns what that wrote. With `at_its_end`, only the
    final message is written, once the turn has ended.
    """

    def __init__(self, writer: Writer, *, at_its_end: bool = False) -> None:
        self._writer = writer
        self._at_its_end = at_its_end
        self._calls: dict[str, tuple[str, str]] = {}
        self._said = ""  # of the message that is being said
        self._has_said = False

    def read(self, encoded: bytes) -> bytes:  # noqa: PLR0911 (one line or two for each kind of event)
        if encoded.startswith(_ENDS):
            return self._end(encoded)
        event = orjson.loads(encoded)
        match event["type"]:
            case "TEXT_MESSAGE_START" | "TEXT_MESSAGE_CONTENT" if self._at_its_end:
                return b""
            case "TEXT_MESSAGE_START":
                self._said = ""
                return self._writer.said(BETWEEN) if self._has_said else b""
            case "TEXT_MESSAGE_CONTENT":
                self._said += event["delta"]
                self._has_said = True
                return self._writer.said(event["delta"])
            case "REASONING_MESSAGE_CONTENT":
                return self._writer.shown(event["delta"])
            case "TOOL_CALL_START" | "TOOL_CALL_ARGS" | "TOOL_CALL_END" | "TOOL_CALL_RESULT":
                return self._call(event)
            case "STATE_SNAPSHOT" if plan := (event["snapshot"] or {}).get("plan"):
                marked = ((each, _MARKS.get(each["status"], "·")) for each in plan["steps"])
                steps = (f"{each['id']}. {mark} {each['description']}\n" for each, mark in marked)
                return self._writer.shown("\n" + "".join(steps))
            case "CUSTOM" if event["name"] == "attempt":
                return self._writer.shown("\nAnother process goes on.\n")
            case _:
                return b""

    def _call(self, event: Json) -> bytes:
        """Writes a call once its arguments are whole: of one that is not made nothing."""
        call_id = event["toolCallId"]
        name, arguments = self._calls.get(call_id, ("", ""))
        match event["type"]:
            case "TOOL_CALL_START":
                self._calls[call_id] = (event["toolCallName"], "")
            case "TOOL_CALL_ARGS":
                self._calls[call_id] = (name, arguments + event["delta"])
            case "TOOL_CALL_END" if are_whole(arguments):
                shown = self._writer.shown(f"\n`{name}`", f"{name} …")
                return shown + self._writer.shown(f" {shortened(arguments, MAX_SHOWN_CHARS)}\n")
            case "TOOL_CALL_RESULT" if are_whole(arguments) or call_id not in self._calls:
                reference = orjson.loads(event["content"])
                name, arguments = self._calls.pop(call_id, (reference.get("tool_name", ""), "{}"))
                status, line = reference.get("status", ""), shortened(reference.get("summary") or "", MAX_SHOWN_CHARS)
                end = self._writer.shown(f"→ {status}: {line}\n", f"{name}: {status}", is_done=True)
                return end + self._writer.called(Called(call_id, name, arguments, reference))
        return b""

    def _end(self, encoded: bytes) -> bytes:
        try:
            answer = orjson.loads(answer_json(encoded))
        except AppError as error:
            return self._writer.failed(error)
        whole = answer["message"]["content"]
        if self._at_its_end and is_in_words(answer):
            return self._writer.in_words(whole) + self._writer.answered(answer)
        rest = whole[len(self._said) :] if whole.startswith(self._said) else BETWEEN + whole
        return (self._writer.said(rest) if rest else b"") + self._writer.answered(answer)


def is_in_words(answer: Json) -> bool:
    """Whether a ChatAnswer fits no schema of the client: it is a question to the user, or written by the service."""
    return (answer["plan"] or {}).get("status") == "waiting" or WRITTEN_BY in answer["message"]["metadata"]


def stream(client: Client, turn: TurnKey, writer: Writer, *, at_its_end: bool = False) -> EventStream:
    """Returns the events of a turn as they happen; its words `at_its_end` if they have to be checked first."""
    reader = TurnReader(writer, at_its_end=at_its_end)

    async def frames() -> AsyncIterator[bytes]:
        yield writer.begin()
        async with aclosing(client.services.events.follow(turn)) as parts:
            async for entries in parts:
                if written := b"".join(reader.read(entry.event) for entry in entries):
                    yield written
        if writer.end:
            yield writer.end
        await note_heard(client, turn)

    return EventStream(frames(), headers=turn_headers(turn), farewell=writer.interrupted, **on_disconnect(client, turn))


async def answer_of(client: Client, turn: TurnKey) -> Json:
    """Waits for the end of a turn and returns its ChatAnswer. Raises the AppError the turn ended with."""
    answer: Json | AppError
    try:
        answer = orjson.loads(await client.services.events.answer(turn))
    except AppError as error:
        answer = error.with_extra(session_id=turn.session_id)
    if not await client.http.is_disconnected():
        await note_heard(client, turn)
    if isinstance(answer, AppError):
        raise answer
    return answer


DONE: Final = b"data: [DONE]\n\n"
_CHUNKS: Final = described_stream(
    "Chunks as OpenAI sends them, the last one `[DONE]`.",
    'data: {"id":"chatcmpl-…","choices":[{"index":0,"delta":{"content":"Hello"}}]}\n\ndata: [DONE]\n\n',
)
OR_CHUNKS: Final[dict[int | str, Json]] = {200: {"content": _CHUNKS}}

router = router_of("doors", "/v1", route_class=DoorRoute)


@router.get("/models")
async def list_models(client: DoorClient) -> ModelList:
    """Lists the agents as models, for clients of OpenAI's API."""
    return ModelList(data=[_model(speaker) for speaker in agents_of(client).values()])


@router.get("/models/{agent_id}")
async def get_model(agent_id: AgentId, client: DoorClient) -> ModelOfAgent:
    """Shows an agent as a model, for clients of OpenAI's API."""
    return _model(agent_of(client, agent_id))


def _model(speaker: Speaker) -> ModelOfAgent:
    return ModelOfAgent(id=speaker.id, name=speaker.agent.name, description=speaker.agent.description)


@router.post("/chat/completions", response_model=Completion, responses={**OR_CHUNKS, **problems(*OF_OPENAI)})
async def create_chat_completion(body: CompletionBody, client: DoorClient) -> Response:
    """Sends the last message to an agent, for clients of OpenAI's API. The session is the one that `X-Session-Id` or
    another place names, else the one that has the earlier messages; docs/frontends.md says more.
    """
    given, wants_usage = body.given, bool((body.stream_options or {}).get("include_usage"))
    head = {"created": int(client.services.clock().timestamp()), "model": body.model}
    if is_task(client, body.messages, given):
        text, charge = await do_task(client, body.messages, given)
        head["id"] = f"chatcmpl-{token_hex(13)}"
        if body.stream:
            return Response(Chunks(head, usage=wants_usage).whole(text, asdict(charge)), media_type=MEDIA_TYPE)
        return JSONResponse(_completion(head, {"content": text}, asdict(charge)))
    request = await message_of(client.http, body.messages, given)
    turn = (await begin(client, request)).turn
    head["id"] = f"chatcmpl-{turn.turn_id}"
    is_structured = request.options.output_schema is not None
    if body.stream:
        writer = Chunks(head, usage=wants_usage, events=is_open_webui(client.http))
        return stream(client, turn, writer, at_its_end=is_structured)
    answer = await answer_of(client, turn)
    message: Json = {"content": answer["message"]["content"]}
    if is_structured and is_in_words(answer):
        message = {"content": None, "refusal": message["content"]}
    elif pages := url_citations(message["content"], answer["sources"]):
        message["annotations"] = [{"type": "url_citation", "url_citation": each} for each in pages]
    completion = _completion(head, message, answer["usage"], finish_reason_of(answer))
    return JSONResponse(completion | {"effects": answer["effects"]}, headers=turn_headers(turn))


def finish_reason_of(answer: Json) -> str:
    """`answer` is a ChatAnswer, or what there is of one for a task."""
    return str(answer.get("message", {}).get("metadata", {}).get("finish_reason", "stop"))


def url_citations(text: str, sources: Sequence[Json]) -> list[Json]:
    """Returns the pages among the sources, each with where the text cites it, in characters, or else its end."""
    cited = []
    for each in filter(lambda source: source["url"], sources):
        at = place_of(each["url"], text)
        start, end = (len(text), len(text)) if at is None else (at, at + len(each["url"]))
        if link := re.search(r"\[[^\[\]\n]{0,300}\]\($", text[max(start - 303, 0) : start]):
            start, end = start - len(link[0]), end + 1
        cited.append({"start_index": start, "end_index": end, "title": each["title"], "url": each["url"]})
    return cited


def _completion(head: Json, message: Json, usage: Json, finish_reason: str = "stop") -> Json:
    choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": finish_reason}
    return {**head, "object": "chat.completion", "choices": [choice], "usage": usage_of(usage, "prompt", "completion")}


def _data(value: object) -> bytes:
    return b"data: %b\n\n" % orjson.dumps(value)


class Chunks(Writer):
    """Writes the events of one turn as chunks. With `events` for Open WebUI: what goes on, which it shows above the
    answer, and the pages that it rests on. The sources that it found it shows of itself.
    """

    interrupted = _data(error_body(app_error("turn_interrupted"))) + DONE
    end = DONE

    def __init__(self, head: Json, *, usage: bool, events: bool = False) -> None:
        self._head = {**head, "object": "chat.completion.chunk"}
        self._usage = usage
        self._events = events

    def begin(self) -> bytes:
        return self._delta(role="assistant", content="")

    def whole(self, text: str, usage: Json) -> bytes:
        return self._delta(role="assistant", content=text) + self._ended(usage, "stop") + DONE

    def said(self, delta: str) -> bytes:
        return self._delta(content=delta)

    def shown(self, text: str, status: str | None = None, *, is_done: bool = False) -> bytes:
        event = self._event("status", {"description": status, "done": is_done}) if status is not None else b""
        return self._delta(reasoning_content=text) + event

    def in_words(self, text: str) -> bytes:
        return self._delta(refusal=text)

    def answered(self, answer: Json) -> bytes:
        """Open WebUI puts sources with the same `source` in their metadata together, and has a last line of status."""
        frames = b""
        for page in answer["sources"]:
            if link := page["url"]:
                shown, about = {"id": link, "name": page["title"], "url": link}, {"source": link, "name": page["title"]}
                frames += self._event("source", {"source": shown, "document": [link], "metadata": [about]})
        if changed := " · ".join(f"{each['title']}: {each['outcome']}" for each in answer["effects"]):
            frames += self._event("status", {"description": changed, "done": True})
        return frames + self._ended(answer["usage"], finish_reason_of(answer), effects=answer["effects"])

    def failed(self, error: AppError) -> bytes:
        return _data(error_body(error))

    def _delta(self, **delta: str) -> bytes:
        return self._chunk([{"index": 0, "delta": delta, "finish_reason": None}])

    def _event(self, kind: str, data: Json) -> bytes:
        return self._chunk([], event={"type": kind, "data": data}) if self._events else b""

    def _ended(self, usage: Json, finish_reason: str, **more: Any) -> bytes:
        end = self._chunk([{"index": 0, "delta": {}, "finish_reason": finish_reason}], **more)
        return end + (self._chunk([], usage=usage_of(usage, "prompt", "completion")) if self._usage else b"")

    def _chunk(self, choices: list[Json], **more: Any) -> bytes:
        return _data({**self._head, "choices": choices, **more})
