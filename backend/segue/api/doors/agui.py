"""The door for clients of AG-UI: a run is a turn of the session that the client calls its thread.

Of the history sent with every run, only what the user said last is new. A client takes a stream that leaves something
open for a fault, so a run begins and ends properly even if the log lost events. Other doors translate `run_events`.
"""

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Annotated, Any, Final, Literal

import orjson
from fastapi import Response
from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from segue.api.agents import AgentId
from segue.api.attachments import SentFile, sent_files
from segue.api.chat import Client, fingerprint_of
from segue.api.deps import DoorRoute, router_of, strict_json
from segue.api.doors import every_door
from segue.api.doors.every_door import ClientId, on_disconnect, session_of_client, turn_headers
from segue.api.event_streams import EVENTS, EventStream, frame, framed
from segue.api.problems import OF_DECISIONS, OF_DOORS, problems
from segue.api.schemas import MAX_VERSION, Body, ChangeInWords, Json
from segue.domain.errors import AppError, InvalidRequest, app_error
from segue.domain.field_types import doc
from segue.domain.ids import digest_of_json
from segue.domain.plan import PAGE_MESSAGE, Button, Plan, page_call_id
from segue.domain.session import NO_OPTIONS, REASONING, Message, Session, TurnKey, TurnOptions, UnreadableMessage
from segue.domain.tool import RememberFor
from segue.events import agui_encoding
from segue.events.agui_encoding import to_json
from segue.events.event_buffer import Entry, end_of
from segue.language.lexicon import load_toml
from segue.memory.history import list_messages
from segue.memory.session_store import get_session
from segue.plans.store import StalePlan
from segue.tools.page_tools import result_of_page
from segue.turns.chat_request import ChatRequest, once
from segue.turns.queries import turn_of_key, with_metadata

MAX_ENTRIES: Final = 100
MESSAGES_SHOWN: Final = 200

NOT_TAKEN: Final = {"no_open_plan", "plan_changed", "plan_expired", "idempotency_key_reused"}
RESPONSE_SCHEMA: Final[Json] = load_toml("event_types.toml", package="segue.api")["answer"]
_CONTENT: Final = b'{"type":"TEXT_MESSAGE_CONTENT"', b'{"type":"REASONING_MESSAGE_CONTENT"', b'{"type":"TOOL_CALL_ARGS"'
_SAID: Final = b'{"type":"TEXT_MESSAGE_START","messageId":"%b"'

router = router_of("doors", route_class=DoorRoute)


class RunFrames:
    """Writes the events of one run. Remembers what the log has opened, and whether it has lost anything. A snapshot of
    the state replaces the page's `state`, so each has all of that beside the plan.
    """

    def __init__(self, thread_id: str, run_id: str, version: str | None = None, state: object = None) -> None:
        self._ids = {"threadId": thread_id, "runId": run_id}
        self._of_page = {**state} if isinstance(state, dict) else {}
        self._plan_of_page = self._of_page.pop("plan", None)
        self._version = {"protocolVersion": "1.0"} if version is not None else {}
        self._passed: list[bytes] = []
        self._has_gap = False

    def started(self) -> bytes:
        return to_json({"type": "RUN_STARTED", **self._ids, **self._version})

    def opening_state(self, plan: Plan | None) -> list[bytes]:
        """Returns the state with the plan that is open, or without the one that is none any more and the page shows."""
        before = self._plan_of_page
        if plan is None and not (isinstance(before, dict) and before.get("status") in ("active", "waiting")):
            return []
        return [agui_encoding.state_snapshot(self._of_page if plan is None else {**self._of_page, "plan": plan})]

    def shown(self, event: bytes) -> list[bytes]:
        """Returns what an event before the last becomes. After a gap nothing may refer to what came before it."""
        if self._has_gap or event.startswith(b'{"type":"RUN_STARTED"'):
            return []
        if event == agui_encoding.replay_gap():
            self._has_gap = True
            return [*agui_encoding.closing_events(self._passed), event]
        if self._of_page and event.startswith(agui_encoding.STATE_SNAPSHOT):
            event = agui_encoding.state_snapshot({**self._of_page, **orjson.loads(event)["snapshot"]})
        if not event.startswith(_CONTENT):
            self._passed.append(event)
        return [event]

    def ended(self, last: bytes, open_plan: Plan | None) -> list[bytes]:
        """Returns what the last event becomes. An error has the whole problem in it already."""
        try:
            result = agui_encoding.answer_json(last)
        except AppError:
            unmade = {} if self._has_gap else agui_encoding.open_calls(self._passed)
            return [*(event for call in unmade.items() for event in agui_encoding.given_up(*call)), last]
        answer = orjson.loads(result)
        ids = (orjson.loads(each)["toolCallId"] for each in self._passed if each.startswith(agui_encoding.CALL_START))
        begun = dict.fromkeys(ids, ":again" if self._has_gap else "")  # after a gap the rest of what had begun is lost
        calls = page_calls(open_plan, {"parentMessageId": answer["message"]["id"]}, begun)
        return [*self._unsaid(answer["message"]), *calls, self.finished(open_plan, answer, result)]

    def finished(self, open_plan: Plan | None, answer: Json | None = None, result: bytes | None = None) -> bytes:
        """Returns the end of a run that has not failed: an interrupt if a plan waits for the user."""
        interrupt = _interrupt(open_plan, answer) if open_plan is not None else None
        outcome = {"outcome": {"type": "interrupt", "interrupts": [interrupt]}} if interrupt else {}
        given = {"result": orjson.Fragment(result)} if result is not None else {}
        return to_json({"type": "RUN_FINISHED", **self._ids, **outcome, **given})

    def _unsaid(self, message: Mapping[str, Any]) -> list[bytes]:
        """Returns the events of the answer, if the log has lost them."""
        prefix = _SAID % message["id"].encode()
        if not self._has_gap or not message["content"] or any(event.startswith(prefix) for event in self._passed):
            return []
        events: Sequence[tuple[str, Json]]
        events = ("START", {"role": "assistant"}), ("CONTENT", {"delta": message["content"]}), ("END", {})
        return [to_json({"type": f"TEXT_MESSAGE_{at}", "messageId": message["id"], **more}) for at, more in events]


def page_calls(plan: Plan | None, said: Mapping[str, str], begun: Mapping[str, str]) -> list[bytes]:
    """Returns the calls that wait for the page to run them, whole: it has no other way to their arguments. Those that
    have `begun` are left out, or have this behind their ids if they are told anew.
    """
    if plan is None:
        return []
    events = []
    for step in plan.page_steps:
        call_id = page_call_id(plan.id, plan.version, step.id)
        if begun.get(call_id) == "":
            continue
        of_call = {"toolCallId": call_id + begun.get(call_id, "")}
        events += [
            {"type": "TOOL_CALL_START", **of_call, "toolCallName": step.tool, **said},
            {"type": "TOOL_CALL_ARGS", **of_call, "delta": to_json(step.args or {}).decode()},
            {"type": "TOOL_CALL_END", **of_call},
        ]
    return list(map(to_json, events))


def _results_of_page(messages: Sequence[Json]) -> Button | None:
    """Returns what the page gave for its calls, if nothing has been said after it."""
    given = [*takewhile(lambda each: each.get("role") == "tool", reversed(messages))][::-1]
    results = []
    for each in given:
        value = each.get("content")
        with suppress(ValueError):  # a page writes values as JSON; what is none is text
            value = strict_json(value) if isinstance(value, str) else value
        results.append((str(each.get("toolCallId")), result_of_page(value, each.get("error"))))
    return every_door.button_of_page(results)


def _messages(message: Message) -> list[Json]:
    """Returns a message of the history, behind what the model thought before it if that is shown."""
    thought = message.metadata.get(REASONING)
    before = [{"id": f"{message.id}:thought", "role": "reasoning", "content": thought}] if thought else []
    content = message.content if isinstance(message.content, str) else to_json(message.content).decode()
    shown: Json = {"id": message.id, "role": message.role, "content": content}
    if message.tool_call_id is not None:
        shown["toolCallId"] = message.tool_call_id
    if message.tool_calls:
        made = [(each.id, {"name": each.name, "arguments": to_json(each.args).decode()}) for each in message.tool_calls]
        shown["toolCalls"] = [{"id": call_id, "type": "function", "function": called} for call_id, called in made]
    return [*before, shown]


def _interrupt(plan: Plan, answer: Mapping[str, Any] | None) -> Json | None:
    """Returns the question in the words of the answer, if that asked it; None if it is not the user's to answer."""
    step = plan.waiting_step
    if step is None or plan.page_steps or plan.waits_for:
        return None
    schema = RESPONSE_SCHEMA
    if step.asks is not None and step.asks.schema is not None:  # the form that a tool asks the user to fill in
        schema = {**schema, "properties": {**schema["properties"], "answer": step.asks.schema}}
    asks = answer is not None and answer["plan"] is not None and answer["plan"]["id"] == plan.id
    return {
        "id": every_door.interrupt_id(plan),
        "reason": "confirmation",
        "message": answer["message"]["content"] if answer is not None and asks else step.description,
        "responseSchema": schema,
        "expiresAt": plan.expires_at,
        "metadata": {"step": step, "steps": plan.waiting_steps},
    }


class CamelInput(BaseModel):
    """What it does not know is a newer client's."""

    model_config = ConfigDict(alias_generator=to_camel, strict=True)


class InterruptAnswer(Body):
    """The user's answer to an interrupt. Empty, it approves exactly what was shown."""

    approved: Annotated[bool | None, doc("False rejects the plan; else the other fields decide.")] = None
    args: Annotated[Json | None, doc("Approves, with these arguments in place of the step's.")] = None
    message: Annotated[ChangeInWords | None, doc("Changes the plan: what to change, in the user's words.")] = None
    remember: Annotated[RememberFor | None, doc("Approves, and the tool need not ask again in this session.")] = None
    answer: Annotated[Json | None, doc("Approves, with the values for the form that a tool asks with.")] = None
    reason: Annotated[str | None, doc("A reason for the client alone: Segue does not read it.")] = None


class ResumeEntry(CamelInput):
    """The answer to an interrupt of an earlier run."""

    interrupt_id: Annotated[ClientId, doc("The id of the interrupt, as the run that ended with it sent it.")]
    status: Annotated[Literal["resolved", "cancelled"], doc("Whether it was answered; `cancelled` rejects the plan.")]
    payload: Annotated[InterruptAnswer | None, doc("With `resolved`: the answer; null approves what was shown.")] = None


class ForwardedProps(CamelInput):
    """Options that the application sets for Segue."""

    on_disconnect: Annotated[Literal["cancel", "continue"], doc("What to do if the client disconnects.")] = "continue"
    model: Annotated[ClientId | None, doc("The model that answers, of the agent's `models`; null for `model`.")] = None


class RunAgentInput(CamelInput):
    """A run of the agent, as AG-UI describes it."""

    thread_id: Annotated[ClientId, doc("The client's id of the conversation, a session made on first use.")]
    run_id: Annotated[ClientId, doc("The client's id of the run. A run sent again is the same turn.")]
    messages: Annotated[list[Json], doc("Only what was added last is read; if nothing was, the session is shown.")]
    tools: Annotated[list[Json] | None, doc("Tools that the page runs itself, at most 40 in 64 kB.")] = None
    context: Annotated[list[Json] | None, doc("Descriptions of the page. The model sees 8,000 characters.")] = None
    state: Annotated[Any, doc("The page's state, shown to the model like `context`, except for its `plan`.")] = None
    forwarded_props: Annotated[ForwardedProps | None, doc("Options for Segue.")] = None
    protocol_version: Annotated[str | None, Field(max_length=20), doc("The client's version of AG-UI.")] = None
    resume: Annotated[list[ResumeEntry] | None, Field(max_length=MAX_ENTRIES), doc("Answers to interrupts.")] = None


@dataclass(frozen=True, slots=True)
class RunRequest:
    """What a run asks for: words of the user's, a button, or nothing but to be shown how the session stands.

    Words that the assistant has spoken after (not `is_new`) can only be those of a run that is sent again. `content` is
    what they stand in, which may have files. `before` are the messages up to them. `abandons` is a plan, by id and
    version, whose question was cancelled. `key` is the idempotency key of what the page gave, None for all else.
    """

    text: str | None = None
    content: object = None
    is_new: bool = True
    button: Button | None = None
    abandons: tuple[str, int] | None = None
    before: Sequence[Json] = ()
    key: str | None = None
    options: TurnOptions = NO_OPTIONS


def run_of(body: RunAgentInput) -> RunRequest:
    """Raises AppError `invalid_request`, `parts_unsupported`, StalePlan."""
    resume = body.resume or []
    if len(resume) > 1:
        raise InvalidRequest("`resume` has more than one entry: a session asks one question at a time.")
    roles = [each.get("role") for each in body.messages]
    at = len(roles) - 1 - roles[::-1].index("user") if "user" in roles else -1
    is_new, abandons = at >= 0 and "assistant" not in roles[at:], None
    if resume and resume[0].status == "resolved":
        return RunRequest(button=_button(resume[0]))
    if resume:
        abandons = plan_id, version = every_door.plan_asked(resume[0].interrupt_id) or ("", MAX_VERSION)
        if not is_new:
            return RunRequest(button=Button("reject", version, plan_id=plan_id), abandons=abandons)
    elif (button := _results_of_page(body.messages)) is not None:
        return RunRequest(button=button, key=every_door.page_key(button))
    elif at < 0:
        return RunRequest()
    content = body.messages[at].get("content")
    text, before = every_door.text_of(content), body.messages[: at + 1]
    return RunRequest(text, content, is_new=is_new, abandons=abandons, before=before)


def _button(entry: ResumeEntry) -> Button:
    if (found := every_door.plan_asked(entry.interrupt_id)) is None:
        raise StalePlan
    (plan_id, version), given = found, entry.payload or InterruptAnswer()
    if given.approved is False:
        return Button("reject", version, plan_id=plan_id)
    if given.message is not None:
        return Button("amend", version, message=given.message, plan_id=plan_id)
    return Button("confirm", version, given.args, remember=given.remember, plan_id=plan_id, answer=given.answer)


async def run_events(
    client: Client, session: Session, turn: TurnKey | None, frames: RunFrames, snapshots: Sequence[Sequence[Json]] = ()
) -> AsyncGenerator[Sequence[Entry]]:
    """Yields the events of a run from its start to its end, with the positions of those of the log. Without a turn it
    only shows how the session stands. The last of the `snapshots` are all messages that the client is to have from
    before it. Whatever goes wrong, the last event says so.
    """
    opening = [frames.started(), *(to_json({"type": "MESSAGES_SNAPSHOT", "messages": each}) for each in snapshots)]
    opening += frames.opening_state(session.pending_plan)
    yield [Entry(0, event) for event in opening]
    if turn is None:
        plan = await _open_plan(client, session.id)
        yield [Entry(0, event) for event in (*page_calls(plan, {}, {}), frames.finished(plan))]
        return
    end = end_of(turn)
    try:
        async with aclosing(client.services.events.follow(turn, patient=False)) as parts:
            async for entries in parts:
                last = entries[-1] if entries[-1].position == end else None
                shown = [Entry(at, event) for at, found in entries if at != end for event in frames.shown(found)]
                if last is not None:
                    open_plan = await _open_plan(client, session.id)
                    shown += [Entry(end, event) for event in frames.ended(last.event, open_plan)]
                yield shown
    except AppError as error:
        yield [Entry(end, agui_encoding.run_ended(turn, error, request_id=client.http.scope["request_id"]))]


async def _open_plan(client: Client, session_id: str) -> Plan | None:
    """Returns the plan as it is now: a decision may have come since the turn left it waiting."""
    with suppress(AppError):  # the session is gone, or Postgres is away: the answer is there all the same
        return (await client.services.read(get_session, client.caller, session_id)).pending_plan
    return None


OF_RUNS: Final = (*OF_DOORS, *OF_DECISIONS, "client_tools", "option_not_allowed")
RESPONSES = {**problems(*OF_RUNS), 200: {"description": "The events of the run", "content": EVENTS}}


@router.post("/agui", response_class=Response, responses=RESPONSES)
async def run_agent(body: RunAgentInput, client: Client) -> Response:
    """Runs the agent of a session, for clients of AG-UI. Answers with the events of the turn."""
    return await _answer(body, client, agent=None)


@router.post("/agents/{agent_id}/agui", response_class=Response, responses=RESPONSES)
async def run_this_agent(agent_id: AgentId, body: RunAgentInput, client: Client) -> Response:
    """Runs the named agent, for clients of AG-UI. It answers in the session from then on."""
    return await _answer(body, client, agent=agent_id)


async def _answer(body: RunAgentInput, client: Client, *, agent: str | None) -> Response:
    props = body.forwarded_props or ForwardedProps()
    run = run_of(body)
    options = every_door.options_of(client, body.tools, body.context, body.state, model=props.model)
    files = await sent_files(run.content)
    session = await session_of_client(client, body.thread_id, agent=agent)
    answers = [entry.interrupt_id for entry in body.resume or ()]  # some come under the id of the run that asked
    key = client.idempotency_key or run.key or f"agui:{digest_of_json([body.run_id, *answers])}"
    turn, messages = await _begin(client, replace(run, options=options), files, session, key)
    if (plan := session.pending_plan) is not None and run.abandons == (plan.id, plan.version):
        session = replace(session, pending_plan=None)
    snapshots = [messages] if messages is not None else []
    if messages and messages is not run.before and body.messages:
        # A client leaves what it knows where it is, and has ids of its own for the user's messages: unless its list is
        # cleared first, questions end up behind answers. Thoughts it gives up for another thought alone.
        snapshots.insert(0, [{**each, "id": "thought"} for each in messages if each["role"] == "reasoning"][:1])
    frames = RunFrames(body.thread_id, body.run_id, body.protocol_version, body.state)
    events = framed(run_events(client, session, turn, frames, snapshots))
    if turn is None:
        return EventStream(events, headers={"X-Session-Id": session.id})
    farewell = frame(Entry(end_of(turn), agui_encoding.run_ended(turn, app_error("turn_interrupted"))))
    leaving = on_disconnect(client, turn, asked=props.on_disconnect == "cancel")
    return EventStream(events, headers=turn_headers(turn), farewell=farewell, **leaving)


async def _begin(
    client: Client, run: RunRequest, files: Sequence[SentFile], session: Session, key: str
) -> tuple[TurnKey | None, Sequence[Json] | None]:
    """Returns the turn and the messages of `run_events`. Raises what `say` and `decide` raise."""
    if run.text is not None:
        if not run.is_new and await client.services.read(turn_of_key, client.caller, session.id, key) is None:
            return await _look(client, session)
        known = once(key, run.text, *(file.digest for file in files), *TurnOptions(model=run.options.model).fingerprint)
        request = ChatRequest(run.text, options=run.options, once=known, stream=True, abandons=run.abandons)
        admitted = await every_door.say(client, session.id, request, files)
        return admitted.turn, None if admitted.fresh else run.before
    if run.button is None:
        return await _look(client, session)
    try:
        known = once(key, *fingerprint_of(run.button))
        return await every_door.decide(client, session.id, run.button, known, run.options), None
    except AppError as error:
        if (run.abandons is None and run.key is None) or error.code not in NOT_TAKEN:
            raise
        return await _look(client, session)  # what is cancelled, or given late, waits no more: the client hears it


def is_shown(message: Message, running: str | None) -> bool:
    """Returns whether the history of a page has this message. Left out: one that cannot be read, the one that stands
    for the page's own results, and what the running turn has said, which comes with its events.
    """
    if isinstance(message, UnreadableMessage):
        return False
    return message.content != PAGE_MESSAGE if message.role == "user" else message.turn_id != running


async def _look(client: Client, session: Session) -> tuple[TurnKey | None, Sequence[Json]]:
    """Returns the turn that runs, and the history without what that has said so far: it comes with its events."""
    async with client.services.database.read_only() as connection:
        turn = await every_door.open_turn(connection, client, session.id)
        newest = await list_messages(connection, client.caller, session.id, limit=MESSAGES_SHOWN, newest_first=True)
        newest = await with_metadata(connection, newest)
    shown = (each for each in reversed(newest) if is_shown(each, turn.turn_id if turn else None))
    return turn, [encoded for each in shown if each.content or each.tool_calls for encoded in _messages(each)]
