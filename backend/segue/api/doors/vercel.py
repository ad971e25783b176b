"""The door for `useChat` of the Vercel AI SDK: a chat is a session of the caller's, a message of the assistant a turn.

A client sends the whole chat, of which only the last message is new. It is sent the events of the run as chunks of its
UI message stream: only those that the versions 5, 6 and 7 know, because others end a client of version 5.
"""

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Annotated, Any, Final, Literal

import orjson
from fastapi import Path, Response
from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel
from structlog.contextvars import bind_contextvars

from segue.api.chat import ClientRequest
from segue.api.deps import DoorRoute, router_of
from segue.api.doors.agui import Json, RunFrames, nothing_new, run_events, text_of
from segue.api.doors.client_turns import SentFile, sent_files, with_files
from segue.api.doors.clients import MAX_CLIENT_ID_CHARS, OwnClientDep, find_session, session_of_client
from segue.api.event_streams import EventStream, described_stream, frame, framed
from segue.api.problems import OF_DECISIONS, OF_FILES, problems
from segue.api.schemas import PlanDecision
from segue.domain import turn_errors
from segue.domain.errors import InvalidRequest, NotFound
from segue.domain.field_types import doc
from segue.domain.ids import digest_of_json, is_id
from segue.domain.session import Session, TurnKey, TurnOptions
from segue.events import agui_encoding
from segue.events.event_buffer import Entry, end_of
from segue.memory.history import get_message, user_messages_of
from segue.turns.queries import find_turn, first_open_turn, last_in_history, turn_after
from segue.turns.store import ChatRequest, once

DONE: Final = b"[DONE]"
PLAN_ID: Final = "plan"  # the same for each state of a plan: the client puts it in the place of the one before
_OURS: Final = {"dynamic": True, "providerExecuted": True}
_TEXTS: Final = {
    "TEXT_MESSAGE_START": "text-start",
    "TEXT_MESSAGE_CONTENT": "text-delta",
    "TEXT_MESSAGE_END": "text-end",
    "REASONING_MESSAGE_START": "reasoning-start",
    "REASONING_MESSAGE_CONTENT": "reasoning-delta",
    "REASONING_MESSAGE_END": "reasoning-end",
}
CHUNKS: Final = described_stream("A UI message stream.", 'data: {"type":"start"}\n\n')

ChatId = Annotated[str, Field(min_length=1, max_length=MAX_CLIENT_ID_CHARS)]

router = router_of("doors", "/api/chat", route_class=DoorRoute)


class MessageChunks:
    """Writes one message of the assistant: what a turn says and does. Remembers its calls and its plan."""

    def __init__(self, turn: TurnKey) -> None:
        self._turn = turn
        self._names: dict[str, str] = {}
        self._plan: dict[str, Any] = {}

    def of(self, encoded: bytes) -> list[bytes]:
        """Returns the chunks for an event of the run."""
        event = orjson.loads(encoded)
        return [orjson.dumps(chunk) if chunk else DONE for chunk in self._of(event["type"], event)]

    def _of(self, kind: str, event: Mapping[str, Any]) -> list[dict[str, Any]]:  # noqa: PLR0911 (one line for each kind)
        """Returns the same as objects; an empty one is the end of the stream."""
        if kind in _TEXTS:
            delta = {"delta": event["delta"]} if "delta" in event else {}
            return [{"type": _TEXTS[kind], "id": event["messageId"], **delta}]
        if kind.startswith("TOOL_CALL_"):
            return self._of_call(kind, event)
        match kind:
            case "RUN_STARTED":
                ids = {"session_id": self._turn.session_id, "turn_id": self._turn.turn_id}
                start = {"type": "start", "messageId": self._turn.turn_id, "messageMetadata": ids}
                return [start, {"type": "start-step"}]
            case "STATE_SNAPSHOT" | "STATE_DELTA":
                return [self._of_plan(event)]
            case "CUSTOM" if event["name"] == "tool_progress":
                return [{"type": "data-tool-progress", "data": event["value"], "transient": True}]
            case "RUN_FINISHED":
                return [{"type": "finish-step"}, {"type": "finish"}, {}]
            case "RUN_ERROR":
                return [{"type": "error", "errorText": event["message"]}, {}]
            case _:
                return []

    def _of_call(self, kind: str, event: Mapping[str, Any]) -> list[dict[str, Any]]:
        call_id = event["toolCallId"]
        of_call = {"toolCallId": call_id, **_OURS}
        match kind:
            case "TOOL_CALL_START":
                self._names[call_id] = event["toolCallName"]
            case "TOOL_CALL_ARGS":
                given = {"toolName": self._names[call_id], "input": orjson.loads(event["delta"])}
                return [{"type": "tool-input-available", **of_call, **given}]
            case "TOOL_CALL_RESULT" if call_id in self._names:
                reference = orjson.loads(event["content"])
                if reference["status"] == "succeeded":
                    return [{"type": "tool-output-available", **of_call, "output": reference}]
                return [{"type": "tool-output-error", **of_call, "errorText": reference["summary"]}]
        return []

    def _of_plan(self, event: Mapping[str, Any]) -> dict[str, Any]:
        if "snapshot" in event:
            self._plan = event["snapshot"]["plan"]
        for change in event.get("delta", ()):
            self._change(change["path"].split("/")[2:], change["value"])
        return {"type": "data-plan", "id": PLAN_ID, "data": self._plan}

    def _change(self, path: list[str], value: Any) -> None:
        """Carries out a change as `agui_encoding` writes it: of the plan, a member of it or one of its steps."""
        match path:
            case []:
                self._plan = value
            case [member]:
                self._plan[member] = value
            case [member, index]:
                self._plan[member][int(index)] = value


class UiChat(BaseModel):
    """What `useChat` sends. What it does not know is a newer client's."""

    model_config = ConfigDict(alias_generator=to_camel, strict=True)

    id: Annotated[ChatId, doc("What the client calls the chat: a session, made on first use.")]
    messages: Annotated[
        list[Json], Field(min_length=1), doc("The chat as the client has it. Only the last one is read.")
    ]
    trigger: Annotated[Literal["submit-message", "regenerate-message"], doc("What the user did.")] = "submit-message"
    message_id: Annotated[ChatId | None, doc("The message to regenerate, or that was edited.")] = None
    agent: Annotated[ChatId | None, doc("One of `GET /agents`, who answers from now on.")] = None
    model: Annotated[ChatId | None, doc("One of the agent's `models`, for this answer.")] = None


class UiDecision(PlanDecision):
    """The data of a part `data-decision`: what the user decides on the plan that waits."""

    plan_id: Annotated[str | None, Field(max_length=40), doc("The plan that was shown; null for the open one.")] = None


@router.post(
    "",
    response_class=Response,
    responses={
        200: {"description": "The chunks of the answer", "content": CHUNKS},
        **problems(
            "idempotency_key_reused", "message_not_found", "not_in_history", "parts_unsupported", "session_not_found",
            "too_many_queued", "turn_in_progress", "unknown_agent", "option_not_allowed", *OF_DECISIONS, *OF_FILES,
        ),
    },
)  # fmt: skip
async def ui_chat(body: UiChat, client: OwnClientDep) -> Response:
    """Answers a message, for `useChat` of the Vercel AI SDK. A client that goes away stops nothing."""
    said = body.messages[-1]
    if said.get("role") != "user":
        raise nothing_new()
    services, caller, origin = client.services, client.caller, client.origin
    decision, text, files = _decision_in(said), "", tuple[SentFile, ...]()
    if decision is None and body.trigger == "submit-message":
        text, files = text_of({"content": said.get("parts")}), await sent_files(said.get("parts"))
    session = await session_of_client(services, caller, body.id, agent=body.agent, groups=origin.groups)
    if decision is not None:
        known = once(client.idempotency_key or _key(said, *decision.fingerprint), *decision.fingerprint)
        button = replace(decision.button, plan_id=decision.plan_id)
        turn = await services.turns.decide(caller, session.id, button, once=known, stream=True, origin=origin)
        return _stream(client, session, turn)
    chosen = TurnOptions(model=body.model)
    fingerprint = (text, *(file.digest for file in files), *chosen.fingerprint)
    instead_of = await _instead_of(client, session.id, body)
    key = client.idempotency_key or (_key(said, *fingerprint) if instead_of is None else None)
    known = once(key, *fingerprint)
    request = ChatRequest(text, once=known, stream=True, origin=origin, instead_of=instead_of, options=chosen)
    request = await with_files(client, session.id, request, files)
    return _stream(client, session, (await services.turns.accept(caller, session.id, request)).turn)


@router.get(
    "/{chat_id}/stream",
    response_class=Response,
    responses={
        200: {"description": "The chunks of the answer", "content": CHUNKS},
        204: {"description": "Nothing runs."},
    },
)
async def resume_ui_chat(
    chat_id: Annotated[ChatId, Path(description="What the client calls the chat.")], client: OwnClientDep
) -> Response:
    """Follows the answer that is being made. From its start; a chat in which nothing runs gives 204."""
    session = await find_session(client.services, client.caller, chat_id)
    if session is None:
        return Response(status_code=204)
    async with client.services.database.read_only() as connection:
        running = await first_open_turn(connection, session.id)
        if running is None:
            return Response(status_code=204)
        turn = await find_turn(connection, client.caller, session.id, running)
    return _stream(client, session, turn)


def _decision_in(message: Json) -> UiDecision | None:
    parts = message.get("parts")
    for part in parts if isinstance(parts, list) else ():
        if isinstance(part, dict) and part.get("type") == "data-decision":
            try:
                return UiDecision.model_validate(part.get("data"))
            except ValueError as error:
                raise InvalidRequest(f"The part `data-decision`: {error}") from error
    return None


def _key(message: Json, *fingerprint: str | int) -> str | None:
    """Returns the same key for a message that comes again with the same words, None if the client gave it no id."""
    if not isinstance(made := message.get("id"), str) or not made:
        return None
    return f"vercel:{digest_of_json([made, *fingerprint])}"


async def _instead_of(client: ClientRequest, session_id: str, body: UiChat) -> str | None:
    """Returns the stored message that is edited, or whose answer is made anew; None for a new one.

    A client calls a message of the assistant by its turn, and one of the user's as it likes: what is edited is what
    came after the answer before it. One that has read the history from the API has the ids of that.
    """
    if body.message_id is not None and is_id("msg", body.message_id):
        return body.message_id
    if body.trigger == "submit-message" and body.message_id is None:
        return None
    async with client.services.database.read_only() as connection:
        turn_id = body.message_id
        if body.trigger == "submit-message":
            before = _answer_before(body.messages)
            if before is not None and is_id("msg", before):
                before = (await get_message(connection, client.caller, session_id, before)).turn_id
            turn_id = await turn_after(connection, session_id, before)
        elif turn_id is None and (last := await last_in_history(connection, session_id)) is not None:
            turn_id = last.id
        said = await user_messages_of(connection, turn_id) if turn_id is not None else []
    if not said:
        raise NotFound("message")
    return said[0].id


def _answer_before(messages: Sequence[Json]) -> str | None:
    """Returns the last message of the assistant that this service wrote: a greeting of the page's is none."""
    ids = (str(each.get("id")) for each in reversed(messages[:-1]) if each.get("role") == "assistant")
    return next((each for each in ids if is_id("turn", each) or is_id("msg", each)), None)


def _stream(client: ClientRequest, session: Session, turn: TurnKey) -> Response:
    bind_contextvars(turn_id=turn.turn_id)
    cut_off = MessageChunks(turn).of(agui_encoding.run_ended(turn, turn_errors.interrupted()))
    return EventStream(
        framed(_chunks(client, session, turn)),
        headers={"x-vercel-ai-ui-message-stream": "v1", "X-Session-Id": session.id, "X-Turn-Id": turn.turn_id},
        farewell=b"".join(frame(Entry(end_of(turn), chunk)) for chunk in cut_off),
    )


async def _chunks(client: ClientRequest, session: Session, turn: TurnKey) -> AsyncGenerator[Sequence[Entry]]:
    chunks, frames = MessageChunks(turn), RunFrames(session.id, turn.turn_id, declares_version=False)
    async with aclosing(run_events(client, session, turn, frames)) as parts:
        async for entries in parts:
            yield [Entry(at, chunk) for at, event in entries for chunk in chunks.of(event)]
