"""`/v1/responses`: a turn is a response; `/v1/conversations`: a session is a conversation.

A tool that has run is an `mcp_call` with its output, since clients run every `function_call` they see. The id of a
response names its session and turn, so `previous_response_id` needs no stored state.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from secrets import token_hex
from typing import Annotated, Any, Final, Literal

import orjson
from fastapi import Path, Query
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.responses import Response

from segue.api.chat import Client
from segue.api.deps import DoorRoute, router_of
from segue.api.doors import openai_chat, openai_request
from segue.api.doors.client_turns import begin
from segue.api.doors.every_door import DoorClient, known_session, turn_headers
from segue.api.doors.openai_request import ResponseBody, is_open_webui, response_id, turn_of_response
from segue.api.event_streams import MEDIA_TYPE, described_stream
from segue.api.problems import OF_OPENAI, error_body, problems
from segue.api.schemas import Body, Json, Metadata, NewSession
from segue.api.sessions import session_of_key
from segue.domain.errors import AppError, NotFound, app_error
from segue.domain.field_types import doc
from segue.domain.ids import is_id
from segue.domain.session import Session, Turn
from segue.domain.tool import TurnEffect
from segue.memory.history import user_messages_of
from segue.turns.queries import asks_for_json, find_turn, get_turn, list_turns

EVENTS: Final = described_stream(
    "Events as OpenAI sends them, to `response.completed`, `.incomplete` or `.failed`.",
    'event: response.output_text.delta\ndata: {"type":"response.output_text.delta","delta":"Hello"}\n\n',
)
# Members that OpenAI's clients require. They say nothing about the turn.
_MADE_UP: Final = {"parallel_tool_calls": True, "tool_choice": "auto", "tools": [], "metadata": {}}
_STATUS_OF: Final = {"stop": "completed", "length": "incomplete"}
_TEXT: Final = "output_text"
_REFUSAL: Final = "refusal"
_WORDS: Final = {_TEXT: "text", _REFUSAL: "refusal"}  # where the words of a part stand
_BESIDE: Final[Mapping[str, Mapping[str, Any]]] = {_TEXT: {"logprobs": []}, _REFUSAL: {}}

ResponseStatus = Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]
ResponseId = Annotated[str, Path(max_length=200, description="The id of a response.")]
ConversationId = Annotated[str, Path(max_length=200, description="The id of a session, or the client's own.")]

router = router_of("doors", "/v1", route_class=DoorRoute)


class OpenAIResponse(BaseModel):
    """A turn, as OpenAI describes a response."""

    id: Annotated[str, doc("The id of the response, for `previous_response_id`.")]
    object: Annotated[Literal["response"], doc("Always `response`.")] = "response"
    created_at: Annotated[int, doc("When the response was asked for, in seconds since 1970.")]
    status: Annotated[ResponseStatus, doc("The turn's status.")]
    model: Annotated[str, doc("The id of the agent that answers.")]
    output: Annotated[list[Json], doc("The tool calls, as `mcp_call` with their output, then the message.")]
    conversation: Annotated[dict[str, str] | None, doc("The session, as `id`; null for tasks such as a title.")] = None
    error: Annotated[Json | None, doc("Why the turn failed: `code` and `message`; null if it did not.")] = None
    usage: Annotated[Json | None, doc("The tokens of the turn; null until it has ended.")] = None
    effects: Annotated[list[TurnEffect], doc("What the turn changed; not part of OpenAI's API.")] = []


@router.post("/responses", response_model=OpenAIResponse, responses={200: {"content": EVENTS}, **problems(*OF_OPENAI)})
async def create_response(body: ResponseBody, client: DoorClient) -> Response:
    """Sends the last message to an agent, for clients of OpenAI's Responses API. The session is the one that
    `previous_response_id`, `conversation` or another place names, else the one that has the earlier messages.
    """
    given = body.given
    head: Json = {"created_at": int(client.services.clock().timestamp()), "model": body.model}
    messages = [{"role": "user", "content": body.input}] if isinstance(body.input, str) else body.input
    if openai_request.is_task(client, messages, given):
        text, charge = await openai_request.do_task(client, messages, given)
        task = ResponseWriter({**head, "id": f"resp_{token_hex(13)}"})
        frames = task.begin() + task.said(text) + task.answered({"usage": asdict(charge)})
        return Response(frames, media_type=MEDIA_TYPE) if body.stream else JSONResponse(task.response)
    request = await openai_request.message_of(client.http, messages, given)
    turn, is_structured = (await begin(client, request)).turn, request.options.output_schema is not None
    head |= {"previous_response_id": body.previous_response_id, "background": bool(body.background)}
    writer = _writer(client, turn.session_id, turn.turn_id, head)
    if body.stream:
        return openai_chat.stream(client, turn, writer, at_its_end=is_structured)
    if body.background:
        return JSONResponse(writer.response | {"status": "queued"}, headers=turn_headers(turn))
    answer = await openai_chat.answer_of(client, turn)
    return JSONResponse(writer.whole(answer, is_structured=is_structured), headers=turn_headers(turn))


@router.get("/responses/{response_id}", response_model=OpenAIResponse, responses={200: {"content": EVENTS}})
async def get_response(
    response_id: ResponseId,
    client: DoorClient,
    *,
    stream: Annotated[bool, Query(description="Whether to answer with its events as they happen.")] = False,
    starting_after: Annotated[int, Query(ge=-1, description="Only events after this `sequence_number`.")] = -1,
) -> Response:
    """Shows a response with its status. One that runs in the background is `completed` in the end."""
    turn = await _turn_of(client, response_id)
    session = await known_session(client, turn.session_id)
    head = {"created_at": int(turn.created_at.timestamp()), "model": session.agent}
    writer = _writer(client, turn.session_id, turn.turn_id, head, after=starting_after)
    is_structured = await client.services.read(asks_for_json, turn.turn_id)
    if stream:
        key = await client.services.read(find_turn, client.caller, turn.session_id, turn.turn_id)
        return openai_chat.stream(client, key, writer, at_its_end=is_structured)
    if turn.answer is not None:
        return JSONResponse(writer.whole(orjson.loads(orjson.dumps(turn.answer)), is_structured=is_structured))
    error = turn.error and {"code": turn.error.code, "message": turn.error.detail}
    status = "in_progress" if turn.status == "running" else turn.status
    return JSONResponse(writer.response | {"status": status, "error": error})


@router.post("/responses/{response_id}/cancel", response_model=OpenAIResponse)
async def cancel_response(response_id: ResponseId, client: DoorClient) -> Response:
    """Cancels a response that is running, and shows it. What tools have done is not undone."""
    turn = await _turn_of(client, response_id)
    await client.services.turns.cancel(client.caller, turn.session_id, turn.turn_id)
    return await get_response(response_id, client)


@router.delete("/responses/{response_id}", responses=problems("in_conversation"))
async def delete_response(response_id: ResponseId, client: DoorClient) -> Json:
    """Deletes a response with its session, if that has no other. One of several is refused: later ones rest on it."""
    turn = await _turn_of(client, response_id)
    if len(await client.services.read(list_turns, client.caller, turn.session_id, before=None, limit=2)) > 1:
        raise app_error("in_conversation", session_id=turn.session_id)
    await client.services.turns.delete_session(client.caller, turn.session_id)
    return {"id": response_id, "object": "response.deleted", "deleted": True}


@router.get("/responses/{response_id}/input_items")
async def list_input_items(response_id: ResponseId, client: DoorClient) -> Json:
    """Lists what the user said in the turn of a response, as OpenAI's messages."""
    messages = await client.services.read(user_messages_of, (await _turn_of(client, response_id)).turn_id)
    if not messages:  # deleted just now
        raise NotFound("turn")
    of_all = {"type": "message", "role": "user", "status": "completed"}
    items = [{"id": each.id, **of_all, "content": [{"type": "input_text", "text": each.content}]} for each in messages]
    return {"object": "list", "data": items, "first_id": messages[0].id, "last_id": messages[-1].id, "has_more": False}


class NewConversation(Body):
    """A conversation to create."""

    metadata: Annotated[Metadata | None, doc("The client's own data.")] = None
    items: Annotated[list[Json] | None, doc("Has to be null or empty: items come with the first `input`.")] = None


@router.post("/conversations", responses=problems("unsupported_parameter"))
async def create_conversation(body: NewConversation, client: DoorClient) -> Json:
    """Creates a session, for clients of OpenAI's Conversations API. The same Idempotency-Key gets the same session."""
    if body.items:
        raise openai_request.unsupported("items", "What was said before comes with the first `input`.")
    return _conversation(await session_of_key(client, NewSession(metadata=body.metadata or {})))


@router.get("/conversations/{conversation_id}")
async def get_conversation(conversation_id: ConversationId, client: DoorClient) -> Json:
    """Shows a session as an OpenAI conversation."""
    return _conversation(await known_session(client, conversation_id))


def _conversation(session: Session) -> Json:
    created_at, metadata = int(session.created_at.timestamp()), session.metadata
    return {"id": session.id, "object": "conversation", "created_at": created_at, "metadata": metadata}


async def _turn_of(client: Client, response_id: str) -> Turn:
    session_id, turn_id = turn_of_response(response_id)
    if not (is_id("ses", session_id) and is_id("turn", turn_id)):
        raise NotFound("turn")
    return await client.services.read(get_turn, client.caller, session_id, turn_id)


def _writer(client: Client, session_id: str, turn_id: str, head: Json, *, after: int = -1) -> "ResponseWriter":
    names = {"id": response_id(session_id, turn_id), "conversation": {"id": session_id}}
    return ResponseWriter({**head, **names}, as_functions=is_open_webui(client.http), after=after)


class ResponseWriter(openai_chat.Writer):
    """Writes a turn as the events of a response, which `response` becomes, but those up to the number `after`; calls
    `as_functions` for Open WebUI.
    """

    interrupted = b"event: error\ndata: %b\n\n" % orjson.dumps(
        {**error_body(app_error("turn_interrupted"))["error"], "type": "error", "sequence_number": 0}
    )
    end = b""

    def __init__(self, head: Json, *, as_functions: bool = False, after: int = -1) -> None:
        begun: Json = {"object": "response", "status": "in_progress", "output": [], "error": None}
        self.response: Json = {**_MADE_UP, **head, **begun}
        self._number, self._after = 0, after
        self._as_functions = as_functions
        self._text: list[str] | None = None  # of the message that is open, in a part of this kind
        self._kind = _TEXT

    def begin(self) -> bytes:
        return b"".join(self._event(f"response.{name}", response=self.response) for name in ("created", "in_progress"))

    def whole(self, answer: Json, *, is_structured: bool = False) -> Json:
        """Returns the response of a turn that has completed."""
        for call in answer["tool_calls"]:
            reference = {"status": call["status"], "summary": (call.get("metadata") or {}).get("summary")}
            arguments = orjson.dumps(call.get("args")).decode()
            self.called(openai_chat.Called(call["tool_call_id"], call["tool_name"], arguments, reference))
        say = self.in_words if is_structured and openai_chat.is_in_words(answer) else self.said
        say(answer["message"]["content"])
        self.answered(answer)
        return self.response

    def said(self, delta: str) -> bytes:
        return self._said(delta if self._text is not None else delta.removeprefix(openai_chat.BETWEEN), _TEXT)

    def in_words(self, text: str) -> bytes:
        return self._closed() + self._said(text, _REFUSAL)

    def answered(self, answer: Json) -> bytes:
        usage = openai_chat.usage_of(answer["usage"], "input", "output")
        closed = self._closed(answer.get("sources", ()))
        status, effects = _STATUS_OF[openai_chat.finish_reason_of(answer)], answer.get("effects", [])
        return closed + self._ended(status, usage=usage, effects=effects)

    def failed(self, error: AppError) -> bytes:
        problem = error_body(error)["error"]
        return self._closed() + self._ended("failed", error={name: problem[name] for name in ("code", "message")})

    def _said(self, delta: str, kind: str) -> bytes:
        if not delta:
            return b""
        opened = b""
        if self._text is None:
            self._text, self._kind = [], kind
            opened = self._added(self._message())
            opened += self._event("response.content_part.added", **self._place, part=_part(kind, ""))
        self._text.append(delta)
        return opened + self._event(f"response.{kind}.delta", **self._place, delta=delta, **_BESIDE[kind])

    def _closed(self, sources: Sequence[Json] = ()) -> bytes:
        if self._text is None:
            return b""
        text, kind, done = "".join(self._text), self._kind, b""
        pages = openai_chat.url_citations(text, sources) if kind == _TEXT else ()
        cited = [{"type": "url_citation", **each} for each in pages]
        for number, each in enumerate(cited):
            about = {**self._place, "annotation_index": number, "annotation": each}
            done += self._event("response.output_text.annotation.added", **about)
        done += self._event(f"response.{kind}.done", **self._place, **{_WORDS[kind]: text}, **_BESIDE[kind])
        done += self._event("response.content_part.done", **self._place, part=_part(kind, text, cited))
        item = {**self._message(), "status": "completed", "content": [_part(kind, text, cited)]}
        self._text = None
        return done + self._done(item)

    def called(self, call: openai_chat.Called) -> bytes:
        written = self._closed()
        if self._as_functions:
            both, status = {"call_id": call.call_id, "status": "completed"}, call.reference.get("status")
            made = {"id": f"fc_{call.call_id}", "type": "function_call", "name": call.name, "arguments": call.arguments}
            # A list of parts: a text in its place broke the next turn of a frontend.
            output = [{"type": "input_text", "text": f"{status}: {call.reference.get('summary') or ''}"}]
            ended = {"id": f"fco_{call.call_id}", "type": "function_call_output", "output": output}
            for each in (both | made, both | ended):
                written += self._added(each) + self._done(each)
            return written
        item = _mcp_item(call)
        place = {"item_id": item["id"], "output_index": self._index}
        written += self._added(item | {"status": "in_progress", "arguments": "", "output": None, "error": None})
        written += self._event("response.mcp_call.in_progress", **place)
        written += self._event("response.mcp_call_arguments.delta", **place, delta=call.arguments)
        written += self._event("response.mcp_call_arguments.done", **place, arguments=call.arguments)
        written += self._event(f"response.mcp_call.{item['status']}", **place)
        return written + self._done(item)

    def _added(self, item: Json) -> bytes:
        return self._event("response.output_item.added", output_index=self._index, item=item)

    def _done(self, item: Json) -> bytes:
        done = self._event("response.output_item.done", output_index=self._index, item=item)
        self.response["output"].append(item)
        return done

    def _ended(self, status: str, **more: Any) -> bytes:
        more |= {"incomplete_details": {"reason": "max_output_tokens"}} if status == "incomplete" else {}
        self.response |= {"status": status, **more}
        self._number = max(self._number, self._after + 1)  # there are fewer before it if Redis has lost some
        return self._event(f"response.{status}", response=self.response)

    @property
    def _index(self) -> int:
        return len(self.response["output"])

    @property
    def _place(self) -> Json:
        return {"item_id": self._message()["id"], "output_index": self._index, "content_index": 0}

    def _message(self) -> Json:
        message_id = f"msg_{self.response['id'].removeprefix('resp_')}_{self._index}"
        return {"id": message_id, "type": "message", "role": "assistant", "status": "in_progress", "content": []}

    def _event(self, kind: str, **members: Any) -> bytes:
        event = {"type": kind, "sequence_number": self._number, **members}
        self._number += 1
        known = event["sequence_number"] <= self._after
        return b"" if known else b"event: %b\ndata: %b\n\n" % (kind.encode(), orjson.dumps(event))


def _part(kind: str, text: str, cited: Sequence[Json] = ()) -> Json:
    return {"type": kind, _WORDS[kind]: text, **({"annotations": cited} if kind == _TEXT else {})}


def _mcp_item(call: openai_chat.Called) -> Json:
    summary, has_failed = call.reference.get("summary") or "", call.reference.get("status") != "succeeded"
    error = {"type": "mcp_tool_execution_error", "content": summary}
    return {
        "id": f"mcp_{call.call_id}",
        "type": "mcp_call",
        "status": "failed" if has_failed else "completed",
        "server_label": "segue",  # where tools run, for clients
        "name": call.name,
        "arguments": call.arguments,
        "output": None if has_failed else summary,
        "error": error if has_failed else None,
    }
