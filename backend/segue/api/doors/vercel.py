"""The door for `useChat` of the Vercel AI SDK: a chat is a session of the caller's, a message of the assistant a turn.

Of the chat that a client sends, only the last message is new, or what its page added to one of the assistant's: results
of its own tools, answers to approvals. It gets only chunks that versions 5, 6 and 7 all know, because others end a
client of version 5. A client that names a later version is asked for approvals in that version's way.
"""

from collections.abc import AsyncGenerator, Collection, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from mimetypes import guess_type
from typing import Annotated, Any, Final, Literal

import orjson
from fastapi import Path, Response
from pydantic import BaseModel, Field, ValidationError

from segue.api.attachments import SentFile, sent_files
from segue.api.chat import Client, fingerprint_of
from segue.api.deps import DoorRoute, router_of
from segue.api.doors import every_door
from segue.api.doors.agui import CamelInput, RunFrames, is_shown, run_events
from segue.api.doors.every_door import ClientId, find_session, session_of_client, turn_headers
from segue.api.event_streams import EventStream, described_stream, frame, framed
from segue.api.problems import OF_DECISIONS, OF_DOORS, invalid_part, problems
from segue.api.schemas import BY_SEQ, Json, Page, Paged, PlanDecision, encode_cursor
from segue.db.engine import Connection
from segue.domain.errors import NotFound, app_error
from segue.domain.field_types import doc
from segue.domain.ids import digest_of_json, is_id
from segue.domain.plan import BUTTON_MESSAGES, PAGE_MESSAGE, Button, Plan, patched
from segue.domain.session import REASONING, Message, Session, TurnKey, TurnOptions
from segue.domain.tool import canonical_args
from segue.events import agui_encoding
from segue.events.event_buffer import Entry, end_of
from segue.memory.history import MAX_SEQ, get_message, list_messages, user_messages_of
from segue.plans.store import StalePlan, plan_of_turn
from segue.tools.page_tools import result_of_page
from segue.turns.chat_request import ChatRequest, once
from segue.turns.queries import first_open_turn, last_in_history, turn_after, with_metadata

DONE: Final = b"[DONE]"
VERSION_HEADER: Final = "x-ai-sdk-version"
BROKE_OFF: Final = "Its arguments broke off."
PLAN_ID: Final = "plan"  # the same for each state of a plan: the client puts it in the place of the one before
APPROVALS_SINCE: Final = 6
UI_STREAM: Final = {"x-vercel-ai-ui-message-stream": "v1"}
_OURS: Final = {"dynamic": True, "providerExecuted": True}
_GIVEN: Final = ("output-available", "output-error")
_AT: Final = {"START": "start", "CONTENT": "delta", "END": "end"}
_TEXTS: Final = {f"{said}_MESSAGE_{at}": f"{said.lower()}-{_AT[at]}" for said in ("TEXT", "REASONING") for at in _AT}
_STREAM: Final = described_stream("A UI message stream of the AI SDK.", 'data: {"type":"start"}\n\n')
CHUNKS: Final[dict[int | str, Json]] = {200: {"description": "The chunks of the answer", "content": _STREAM}}
OF_CHATS: Final = ("client_tools", "message_not_found", "not_in_history", "option_not_allowed")

UiTools = list[Json] | dict[str, Json]  # in a list or by name
ChatInPath = Annotated[ClientId, Path(description="The client's own id of the chat, or the id of a session.")]

router = router_of("doors", "/api/chat", route_class=DoorRoute)


@dataclass(frozen=True, slots=True)
class Decided:
    """A decision that a message brings, taken once under the `key`. What a page has added to a message of the
    assistant's `continues` that. `calls` maps tool and arguments of each approved call to its id, `denied` has others.
    """

    button: Button
    key: str | None
    continues: bool = True
    calls: Mapping[tuple[str, str], str] = field(default_factory=dict)
    denied: tuple[str, ...] = ()


class MessageChunks:
    """Writes what a turn says and does: one message of the assistant, or what continues one. Remembers its calls and
    its plan. `approvals` says that the client knows those of version 6.
    """

    def __init__(self, turn: TurnKey, decided: Decided | None = None, *, approvals: bool = False) -> None:
        self._turn = turn
        self._approvals = approvals
        self._named = {} if decided is not None and decided.continues else {"messageId": turn.turn_id}
        self._approved = decided.calls if decided is not None else {}
        self._denied = decided.denied if decided is not None else ()
        self._names: dict[str, str] = {}
        self._args: dict[str, str] = {}
        self._ids: dict[str, str] = {}
        self._streamed: set[str] = set()
        self._plan: Json = {}

    def of(self, encoded: bytes) -> list[bytes]:
        """Returns the chunks for an event of the run."""
        event = orjson.loads(encoded)
        return [orjson.dumps(chunk) if chunk else DONE for chunk in self._of(event["type"], event)]

    def _of(self, kind: str, event: Mapping[str, Any]) -> list[Json]:  # noqa: PLR0911 (one line for each kind)
        """Returns the same as objects; an empty one is the end of the stream."""
        if kind in _TEXTS:
            delta = {"delta": event["delta"]} if "delta" in event else {}
            return [{"type": _TEXTS[kind], "id": event["messageId"], **delta}]
        if kind.startswith("TOOL_CALL_"):
            return self._of_call(kind, event)
        match kind:
            case "RUN_STARTED":
                ids = {"session_id": self._turn.session_id, "turn_id": self._turn.turn_id}
                denied = ({"type": "tool-output-denied", "toolCallId": each} for each in self._denied)
                return [{"type": "start", **self._named, "messageMetadata": ids}, {"type": "start-step"}, *denied]
            case "STATE_SNAPSHOT" | "STATE_DELTA":
                self._plan = event["snapshot"]["plan"] if "snapshot" in event else patched(self._plan, event["delta"])
                return [{"type": "data-plan", "id": PLAN_ID, "data": self._plan}]
            case "CUSTOM" if event["name"] == "tool_progress":
                return [{"type": "data-tool-progress", "data": event["value"], "transient": True}]
            case "RUN_FINISHED":
                waits = [each for asks in event.get("outcome", {}).get("interrupts", ()) for each in self._asked(asks)]
                answer = event.get("result", {}).get("message", {})
                metadata = {"message_id": answer["id"]} if answer else {}
                sources = [_source_part(self._turn.turn_id, **each) for each in answer.get("sources", ())]
                ends: list[Json] = [{"type": "finish-step"}, {"type": "finish", "messageMetadata": metadata}, {}]
                return [*waits, *sources, *_effects_part(event.get("result", {}).get("effects")), *ends]
            case "RUN_ERROR":
                return [{"type": "error", "errorText": event["message"]}, {}]
            case _:
                return []

    def _of_call(self, kind: str, event: Mapping[str, Any]) -> list[Json]:
        call_id = event["toolCallId"]
        of_call: Json = {"toolCallId": self._ids.get(call_id, call_id)}
        of_call |= {} if every_door.CALL_ID.fullmatch(call_id) else _OURS  # the page's own tools are no others'
        match kind:
            case "TOOL_CALL_START":
                self._names[call_id] = event["toolCallName"]
                self._args[call_id] = ""
            case "TOOL_CALL_ARGS":
                before, delta = self._args[call_id], event["delta"]
                self._args[call_id] += delta
                if not before and agui_encoding.are_whole(delta):
                    return []  # all of them in one piece come as their value
                self._streamed.add(call_id)
                start = {"type": "tool-input-start", **of_call, "toolName": self._names[call_id]}
                piece = {"type": "tool-input-delta", "toolCallId": of_call["toolCallId"], "inputTextDelta": delta}
                return [piece] if before else [start, piece]
            case "TOOL_CALL_END":
                return self._of_call_written(call_id, of_call)
            case "TOOL_CALL_RESULT" if call_id in self._names:
                ended = _ended(orjson.loads(event["content"]))
                return [{"type": f"tool-{ended.pop('state')}", **of_call, **ended}]
        return []

    def _of_call_written(self, call_id: str, of_call: Json) -> list[Json]:
        """Returns the chunks for the end of the arguments. One that broke off is no call of the page's to run."""
        named, text = {**of_call, "toolName": self._names[call_id]}, self._args.pop(call_id)
        if not agui_encoding.are_whole(text):
            failed = {**named, "providerExecuted": True, "input": text, "errorText": BROKE_OFF}
            return [{"type": "tool-input-error", **failed}]
        args = orjson.loads(text)
        shown = self._approved.get((named["toolName"], canonical_args(args)))
        if shown and call_id not in self._streamed:
            self._ids[call_id] = shown
            return []
        return [{"type": "tool-input-available", **named, "input": args}]

    def _asked(self, interrupt: Mapping[str, Any]) -> list[Json]:
        """Returns the requests for approvals of what waits, of this message alone. A form is no yes or no."""
        chunks: list[Json] = []
        for step in interrupt["metadata"]["steps"] if self._approvals else ():
            call_id = f"{interrupt['id']}:{step['id']}:{self._turn.turn_id}"
            call = {"toolCallId": call_id, "toolName": step["tool"], "input": step["args"] or {}, **_OURS}
            request = {"type": "tool-approval-request", "approvalId": call_id, "toolCallId": call_id}
            chunks += [{"type": "tool-input-available", **call}, request] if step["tool"] and not step["asks"] else []
        return chunks


class UiChat(CamelInput):
    """A message, as `useChat` sends it. Members that are not listed here are ignored."""

    id: Annotated[ClientId, doc("The client's id of the chat, a session made on first use.")]
    messages: Annotated[list[Json], Field(min_length=1), doc("The chat. Of earlier messages only ids and roles count.")]
    trigger: Annotated[Literal["submit-message", "regenerate-message"], doc("What the user did.")] = "submit-message"
    message_id: Annotated[ClientId | None, doc("The id of the message that was edited or is to be regenerated.")] = None
    agent: Annotated[ClientId | None, doc("The id of the agent that answers from now on.")] = None
    model: Annotated[ClientId | None, doc("The model of this answer, from the agent's `models`.")] = None
    tools: Annotated[UiTools | None, doc("Tools that the page runs itself, at most 40 in 64 kB.")] = None
    context: Annotated[list[Json] | None, doc("Descriptions of the page for the model, each with a value.")] = None


class UiDecision(PlanDecision):
    """The data of a part `data-decision`: what the user decides on the plan that waits."""

    plan_id: Annotated[str | None, Field(max_length=40), doc("The plan that was shown; null for the open one.")] = None


@router.post("", response_class=Response, responses={**CHUNKS, **problems(*OF_DOORS, *OF_DECISIONS, *OF_CHATS)})
async def ui_chat(body: UiChat, client: Client) -> Response:
    """Answers a message, for `useChat` of the Vercel AI SDK. A client that disconnects does not stop the answer."""
    message = body.messages[-1]
    options = every_door.options_of(client, body.tools, body.context, model=body.model)
    decided, text, files = _decided_in(message), "", tuple[SentFile, ...]()
    if decided is None and message.get("role") != "user":
        raise every_door.nothing_new()
    if decided is None:
        text, files = every_door.text_of(message.get("parts")), await sent_files(message.get("parts"))
    session = await session_of_client(client, body.id, agent=body.agent)
    if decided is not None:
        known = once(client.idempotency_key or decided.key, *fingerprint_of(decided.button))
        try:
            turn = await every_door.decide(client, session.id, decided.button, known, options)
        except StalePlan as stale:
            if not decided.continues:  # of a problem, pages show the JSON to their user
                raise
            chunks = frame(Entry(1, orjson.dumps({"type": "error", "errorText": stale.detail}))) + frame(Entry(2, DONE))
            return Response(chunks, headers=UI_STREAM, media_type="text/event-stream")
        return _stream(client, session, turn, decided)
    instead_of = await _instead_of(client, session.id, body)
    if instead_of is not None and body.trigger == "regenerate-message":
        text, files = "", ()  # as it was said
    fingerprint = (text, *(file.digest for file in files), *TurnOptions(model=body.model).fingerprint)
    known = once(client.idempotency_key or (_key(message, *fingerprint) if instead_of is None else None), *fingerprint)
    request = ChatRequest(text, once=known, stream=True, instead_of=instead_of, options=options)
    turn = (await every_door.say(client, session.id, request, files)).turn
    if instead_of is not None:  # this has cancelled the plan
        session = replace(session, pending_plan=None)
    return _stream(client, session, turn)


def _decided_in(message: Json) -> Decided | None:
    listed = message.get("parts")
    parts = [part for part in listed if isinstance(part, dict)] if isinstance(listed, list) else []
    if message.get("role") == "assistant":
        return _continued(parts)
    for part in parts:
        if part.get("type") == "data-decision":
            try:
                decision = UiDecision.model_validate(part.get("data"))
            except ValidationError as error:
                raise invalid_part(error, "data-decision") from None
            button = replace(decision.button, plan_id=decision.plan_id)
            return Decided(button, _key(message, *fingerprint_of(button)), continues=False)
    return None


def _continued(parts: Sequence[Json]) -> Decided | None:
    """Returns what a page has added: of what waited last for it or for an approval; what has no answer yet is none."""
    found = [(match, part) for part in parts if (match := every_door.CALL_ID.fullmatch(str(part.get("toolCallId"))))]
    last = [(match, part) for match, part in found if match.group(1, 2) == found[-1][0].group(1, 2)]
    if not any(part.get("state") == "approval-responded" for _, part in last):
        given = [(match[0], _result_of(part)) for match, part in found if part.get("state") in _GIVEN]
        by_page = every_door.button_of_page(given)
        return Decided(by_page, every_door.page_key(by_page)) if by_page else None
    plan_id, version = last[-1][0].group(1, 2)
    answers = ((match, part, part.get("approval")) for match, part in last)
    yes = [(match, part) for match, part, said in answers if isinstance(said, dict) and said.get("approved") is True]
    chosen = frozenset(int(match[3]) for match, _ in yes) if 0 < len(yes) < len(last) else None
    calls = {(str(part.get("toolName")), canonical_args(part.get("input") or {})): match[0] for match, part in yes}
    button = Button("confirm" if yes else "reject", int(version), plan_id=plan_id, chosen=chosen)
    denied = tuple(match[0] for match, _ in last if match[0] not in calls.values())
    return Decided(button, f"approval:{plan_id}:{version}", calls=calls, denied=denied)


def _result_of(part: Json) -> Json:
    failed = part["state"] == "output-error" and (part.get("errorText") or "It failed.")
    return result_of_page(part.get("output"), failed)


@router.get(
    "/{chat_id:path}/stream", response_class=Response, responses={**CHUNKS, 204: {"description": "Nothing runs."}}
)
async def resume_ui_chat(chat_id: ChatInPath, client: Client) -> Response:
    """Streams the running answer of a chat, from its start. If nothing runs, the answer is a 204."""
    session = await find_session(client, chat_id)
    turn = await client.services.read(every_door.open_turn, client, session.id) if session else None
    return _stream(client, session, turn) if session and turn else Response(status_code=204)


class UiMessage(BaseModel):
    """A message, as the AI SDK describes it."""

    id: Annotated[str, doc("The id: of the turn for the assistant's, of the stored message for the user's.")]
    role: Annotated[Literal["user", "assistant"], doc("Who wrote the message.")]
    parts: Annotated[list[Json], doc("Texts, tool calls with references to their results, and the waiting plan.")]
    metadata: Annotated[Json, doc("`session_id`, `turn_id`, and as `message_id` the id of the answer, to rate it.")]


@router.get("/{chat_id:path}/messages", responses=problems("session_not_found"))
async def ui_messages(chat_id: ChatInPath, client: Client, paging: Paged) -> Page[UiMessage]:
    """Lists the messages of a chat, for `useChat`. The newest page comes first, each in the order of the chat. What a
    running turn has said so far comes with its stream.
    """
    before, limit = paging.after(BY_SEQ), paging.limit
    session = await find_session(client, chat_id)
    if session is None:
        return Page([], None)
    options: Json = {"before": MAX_SEQ if before is None else before, "newest_first": True}
    async with client.services.database.read_only() as connection:
        running = await first_open_turn(connection, session.id)
        listed = partial(list_messages, connection, client.caller, session.id, **options)
        while (newest := await listed(limit=limit + 1)) and not (kept := _of_whole_turns(newest, limit)):
            limit *= 2  # a turn that is longer than the page is one message
        kept = await with_metadata(connection, kept if newest else ())
    shown = (each for each in reversed(kept) if is_shown(each, running))
    messages = _ui_messages(session.id, shown, client.services.tools.tools(client.caller))
    if before is None and messages and session.pending_plan is not None:
        last = messages[-1]
        if last.role == "user" and running is None:  # its turn has failed or was cancelled, and the plan waits still
            messages.append(UiMessage(id=last.metadata["turn_id"], role="assistant", parts=[], metadata=last.metadata))
        if messages[-1].role == "assistant":
            messages[-1].parts.extend(_waiting_parts(session.pending_plan, approvals=_knows_approvals(client)))
    more = encode_cursor(kept[-1].seq) if len(newest) > len(kept) else None
    return Page([each for each in messages if each.parts], more)


def _of_whole_turns(newest: Sequence[Message], limit: int) -> Sequence[Message]:
    """Returns the newest messages, of one more than fit, without a turn that begins before them: perhaps none."""
    replies = [each for each in newest if each.role != "user"]
    cut_off = [each.seq for each in replies if each.turn_id == replies[-1].turn_id] if len(newest) > limit else []
    if not cut_off or any(each.role == "user" and each.turn_id == replies[-1].turn_id for each in newest):
        return newest[:limit]
    return [each for each in newest if each.seq > cut_off[0]]


def _ui_messages(session_id: str, messages: Iterable[Message], ours: Collection[str]) -> list[UiMessage]:
    """What the assistant says and does in a turn is one message. A tool that the service has not is the page's."""
    shown: dict[str, UiMessage] = {}
    calls: dict[str, Json] = {}
    for each in messages:
        ids = {"session_id": session_id, "turn_id": each.turn_id, "message_id": each.id}
        if each.role == "user":
            shown[each.id] = UiMessage(id=each.id, role="user", parts=[_text(each)], metadata=ids)
            continue
        message = shown.setdefault(each.turn_id, UiMessage(id=each.turn_id, role="assistant", parts=[], metadata=ids))
        message.metadata.update(ids)
        if isinstance(each.content, dict):
            calls.get(each.tool_call_id or "", {}).update(_ended(each.content))
            continue
        thought = each.metadata.get(REASONING)
        message.parts += [{"type": "reasoning", "text": thought, "state": "done"}] if thought else []
        message.parts += [_text(each)] if each.content else []
        message.parts += [_source_part(each.turn_id, **asdict(source)) for source in each.sources]
        message.parts += _effects_part(list(map(asdict, each.effects)))
        for call in each.tool_calls:
            calls[call.id] = _call_part(call.id, call.name, call.args, is_ours=call.name in ours)
            message.parts.append(calls[call.id])
    return list(shown.values())


def _effects_part(effects: Sequence[Json] | None) -> list[Json]:
    """Returns the part with what a turn changed. A message that goes on in other turns has one for each."""
    return [{"type": "data-effects", "data": effects}] if effects else []


def _text(message: Message) -> Json:
    return {"type": "text", "text": str(message.content), "state": "done"}


def _source_part(turn_id: str, *, id: str, title: str, url: str | None, **_: object) -> Json:  # noqa: A002
    """A part is the same as the chunk. Numbers count in a turn, and a message may go on in another."""
    named = {"sourceId": f"{turn_id}:{id}", "title": title}
    if url is not None:
        return {"type": "source-url", **named, "url": url}
    return {"type": "source-document", **named, "mediaType": guess_type(title)[0] or "text/plain"}


def _call_part(call_id: str, name: str | None, args: object, *, is_ours: bool, **more: object) -> Json:
    of_call = {"toolCallId": call_id, "state": "input-available", "input": args, **more}
    if is_ours:
        return {"type": "dynamic-tool", "toolName": name, **of_call, "providerExecuted": True}
    return {"type": f"tool-{name}", **of_call}


def _ended(reference: Mapping[str, Any]) -> Json:
    if reference.get("status") == "succeeded":
        return {"state": "output-available", "output": reference}
    return {"state": "output-error", "errorText": reference.get("summary") or "It failed."}


def _waiting_parts(plan: Plan, *, approvals: bool) -> list[Json]:
    """Returns what a page shows of a plan that is open, as it was sent it when the turn ended."""
    parts = [{"type": "data-plan", "id": PLAN_ID, "data": orjson.loads(agui_encoding.to_json(plan))}]
    for step in plan.waiting_steps:
        call_id, is_page = f"{every_door.interrupt_id(plan)}:{step.id}", step in plan.page_steps
        approval = {"state": "approval-requested", "approval": {"id": call_id}} if not is_page else {}
        if step.tool and (is_page or (approvals and step.asks is None and not plan.waits_for)):
            parts.append(_call_part(call_id, step.tool, step.args or {}, is_ours=not is_page, **approval))
    return parts


def _knows_approvals(client: Client) -> bool:
    """Returns whether the client says in a header that it has a version of the AI SDK that knows them."""
    version = client.http.headers.get(VERSION_HEADER, "").partition(".")[0]
    return version.isdecimal() and int(version[:3]) >= APPROVALS_SINCE


def _key(message: Json, *fingerprint: str | int) -> str | None:
    """Returns the same key for a message that comes again with the same words, None if the client gave it no id."""
    if not isinstance(message_id := message.get("id"), str) or not message_id:
        return None
    return f"vercel:{digest_of_json([message_id, *fingerprint])}"


async def _instead_of(client: Client, session_id: str, body: UiChat) -> str | None:
    """Returns the stored message that is edited, or whose answer is made anew; None for a new one, which a message is
    too that is asked again since it was refused. A client calls a message of the assistant by its turn, and one of the
    user's as it likes: what is edited is what came after the answer before it. One that has read the history from the
    API has the ids of that.
    """
    if body.message_id is not None and is_id("msg", body.message_id):
        return body.message_id
    if body.trigger == "submit-message" and body.message_id is None:
        return None
    async with client.services.database.read_only() as connection:
        turn_id, shown = body.message_id, [each.get("id") for each in body.messages]
        if turn_id is None:
            last = await last_in_history(connection, session_id)
            turn_id = last.id if last and last.id not in shown else None
        elif body.trigger == "submit-message" or not is_id("turn", turn_id):
            # The last of the assistant's that this service wrote: a greeting of the page's is none.
            ids = (str(each.get("id")) for each in reversed(body.messages[:-1]) if each.get("role") == "assistant")
            before = next((each for each in ids if is_id("turn", each) or is_id("msg", each)), None)
            if before is not None and is_id("msg", before):
                before = (await get_message(connection, client.caller, session_id, before)).turn_id
            turn_id = await turn_after(connection, session_id, before)
            while turn_id is not None and turn_id not in shown and await _is_decision(connection, turn_id):
                turn_id = await turn_after(connection, session_id, turn_id)  # which goes on in the message before
        if turn_id is None:
            return None
        messages = await user_messages_of(connection, turn_id)
        is_of_page = bool(messages) and messages[0].content == PAGE_MESSAGE
        plan = await plan_of_turn(connection, messages[0].turn_id, session_id) if is_of_page else None
    if not messages:
        raise NotFound("message")
    return plan.plan.origin_message_id if plan else messages[0].id


async def _is_decision(connection: Connection, turn_id: str) -> bool:
    messages = await user_messages_of(connection, turn_id)
    return bool(messages) and messages[0].content in (PAGE_MESSAGE, *BUTTON_MESSAGES.values())


def _stream(client: Client, session: Session, turn: TurnKey, decided: Decided | None = None) -> Response:
    chunks = MessageChunks(turn, decided, approvals=_knows_approvals(client))
    cut_off = MessageChunks(turn).of(agui_encoding.run_ended(turn, app_error("turn_interrupted")))

    async def written() -> AsyncGenerator[Sequence[Entry]]:
        async with aclosing(run_events(client, session, turn, RunFrames(session.id, turn.turn_id))) as parts:
            async for entries in parts:
                yield [Entry(at, chunk) for at, event in entries for chunk in chunks.of(event)]

    headers = {**UI_STREAM, **turn_headers(turn)}
    farewell = b"".join(frame(Entry(end_of(turn), chunk)) for chunk in cut_off)
    return EventStream(framed(written()), headers=headers, farewell=farewell)
