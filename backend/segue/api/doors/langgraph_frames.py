"""What clients of LangGraph say and are shown: threads, runs, parts of streams, interrupts and their answers. Pure.

The state after a turn is a checkpoint with the turn's id. `values` come from rows; the rest is shown until they come.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Final, Literal

import orjson

from segue.api.doors.every_door import interrupt_id, plan_asked
from segue.api.schemas import Json
from segue.domain.errors import InvalidRequest
from segue.domain.plan import Plan
from segue.domain.session import Message, Session, Turn
from segue.events.agui_encoding import are_whole, to_json
from segue.turns.turn_deps import Speaker

StreamMode = Literal["values", "messages", "messages-tuple", "updates", "custom"]
StreamedPart = tuple[str, Any]  # the name of an event, and its data

MAX_VALUES_BYTES: Final = 2_000_000  # of the messages in a state: the newest turns
MAX_HISTORY_BYTES: Final = 8_000_000  # of all states in an answer
NOT_RECORDED: Final = "1970-01-01T00:00:00Z"  # when an agent was made: it stands in a file
RESUME_FORMS: Final = (
    "`resume` is a text, true, false, or `{decisions: [{type}]}` with as many as there are `action_requests`, each of "
    "the type `approve`, `reject`, or `edit` with `edited_action: {name, args}`."
)
_TYPES: Final = {"user": "human", "assistant": "ai"}
_STATUS: Final = {"queued": "pending", "completed": "success", "failed": "error", "cancelled": "interrupted"}
_LOSES: Final = ("attempt", "replay_gap")  # what was streamed before counts no more
_PLAIN: Final[Json] = {"additional_kwargs": {}, "response_metadata": {}}


@dataclass(frozen=True, slots=True)
class ThreadView:
    """A session, by the client's `thread_id`. `turns` have their encoded messages; `root` is the checkpoint before."""

    thread_id: str
    session: Session
    turns: Mapping[str, Sequence[bytes]]
    root: str

    @property
    def interrupts(self) -> list[Json]:
        """The question that waits for the user, unless a turn runs."""
        plan = self.session.pending_plan
        return [_interrupt(plan)] if plan is not None and thread_status(self.session) == "interrupted" else []

    def values(self, turns: Iterable[str] | None = None) -> Json:
        """Returns the state, or an older one, for `to_json`."""
        shown = [orjson.Fragment(each) for turn in turns or self.turns for each in self.turns[turn]]
        return {"messages": shown, "plan": self.session.pending_plan}

    def final_values(self) -> Json:
        """Returns the state as a run ends with it."""
        return self.values() | ({"__interrupt__": self.interrupts} if self.interrupts else {})

    def as_thread(self) -> Json:
        session, interrupts = self.session, {each["id"]: [each] for each in self.interrupts}
        times = {"created_at": session.created_at, "updated_at": session.updated_at}
        shown = {"metadata": thread_metadata(session), "values": self.values(), "interrupts": interrupts}
        return {"thread_id": self.thread_id, "status": thread_status(session), **times, **shown}

    def states(self, *, limit: int, before: object) -> list[Json]:
        """Returns the states after the latest turns, newest first, or those before a checkpoint."""
        ids, states, size = list(self.turns), list[Json](), 0
        for place in reversed(range(ids.index(before) if before in ids else len(ids))):
            size += sum(len(each) for turn in ids[: place + 1] for each in self.turns[turn])
            if len(states) == limit or (states and size > MAX_HISTORY_BYTES):
                break
            states.append(self.state(ids[: place + 1]))
        return states

    def state(self, turns: Sequence[str]) -> Json:
        """Returns the state after these turns."""
        parent, last = (self.root, *turns)[-2:] if turns else (None, None)
        waiting = self.interrupts if len(turns) == len(self.turns) else []
        no_more: Json = {"error": None, "checkpoint": None, "state": None, "result": None}
        tasks = [{"id": each["id"], "name": "tool_loop", "interrupts": [each], **no_more} for each in waiting]
        shown = {"values": self.values(turns) if turns else {}, "interrupts": waiting, "tasks": tasks}
        earlier = self._checkpoint(parent) if parent else None
        places = {"checkpoint": self._checkpoint(last), "parent_checkpoint": earlier}
        metadata = thread_metadata(self.session) | {"run_id": last}
        return {**shown, **places, "next": [each["name"] for each in tasks], "metadata": metadata, "created_at": None}

    def _checkpoint(self, turn_id: str | None) -> Json:
        return {"thread_id": self.thread_id, "checkpoint_ns": "", "checkpoint_id": turn_id}


def thread_view(thread_id: str, session: Session, messages: Iterable[Message], *, is_whole: bool = True) -> ThreadView:
    """Unless it `is_whole` the first turn may lack messages, and is the root. So are turns that are too long."""
    turns: dict[str, list[bytes]] = {}
    for message in messages:
        turns.setdefault(message.turn_id, []).append(to_json(_message_json(message)))
    root, size = session.id, sum(map(len, chain.from_iterable(turns.values())))
    while len(turns) > 1 and (size > MAX_VALUES_BYTES or not is_whole):
        root, is_whole = next(iter(turns)), True
        size -= sum(map(len, turns.pop(root)))
    return ThreadView(thread_id, session, turns, root)


def thread_status(session: Session) -> str:
    waits = session.pending_plan is not None and session.pending_plan.waiting_steps
    return "busy" if session.running_turn_id is not None else "interrupted" if waits else "idle"


def thread_metadata(session: Session) -> Json:
    return {"title": session.title, **session.metadata, "graph_id": session.agent, "assistant_id": session.agent}


def run_json(turn: Turn, thread_id: str, agent: str) -> Json:
    ids = {"run_id": turn.turn_id, "thread_id": thread_id, "assistant_id": agent}
    times = {"created_at": turn.created_at, "updated_at": turn.finished_at or turn.started_at or turn.created_at}
    error = {"error": turn.error.code, "message": turn.error.detail} if turn.error else {}
    status = "timeout" if error.get("error") == "turn_timeout" else _STATUS.get(turn.status, turn.status)
    return {**ids, **times, "status": status, "metadata": error, "multitask_strategy": "enqueue"}


def assistant_json(speaker: Speaker) -> Json:
    ids = {"assistant_id": speaker.id, "graph_id": speaker.id, "name": speaker.agent.name, "version": 1}
    plain: Json = {"config": {}, "context": {}, "metadata": {}, "description": speaker.agent.description}
    return {**ids, **plain, "created_at": NOT_RECORDED, "updated_at": NOT_RECORDED}


def _message_json(message: Message) -> Json:
    if isinstance(message.content, dict):
        return _tool_message(message.id, message.tool_call_id, message.content)
    shown: Json = {**_PLAIN, "type": _TYPES.get(message.role, "tool"), "id": message.id, "content": message.content}
    calls = [{"id": each.id, "name": each.name, "args": each.args, "type": "tool_call"} for each in message.tool_calls]
    return {**shown, "tool_calls": calls, "invalid_tool_calls": []} if message.role == "assistant" else shown


def _tool_message(message_id: str, call_id: str | None, reference: Json) -> Json:
    """The content is the reference to a result, as everywhere."""
    of_call = {"tool_call_id": call_id, "name": reference.get("tool_name", ""), "content": to_json(reference).decode()}
    status = "success" if reference.get("status") == "succeeded" else "error"
    return {**_PLAIN, "type": "tool", "id": message_id, **of_call, "status": status}


def _interrupt(plan: Plan) -> Json:
    """Returns the question in the form of LangChain's requests to a human: one for each step that one yes is for."""
    steps, names = plan.waiting_steps, action_names(plan)
    named = zip(names, steps, strict=True)
    requests = [{"name": name, "args": each.args or {}, "description": each.description} for name, each in named]
    approving = ["approve", *(["edit"] if len(steps) == 1 and steps[0].tool else [])]
    allowed = [*([] if plan.waits_for else approving), "reject"]
    reviews = [{"action_name": each, "allowed_decisions": allowed} for each in names]
    value = {"action_requests": requests, "review_configs": reviews, "steps": steps}
    return {"id": interrupt_id(plan), "when": "during", "value": value}


def action_names(plan: Plan | None) -> list[str]:
    return [step.tool or "step" for step in plan.waiting_steps] if plan is not None else []


class RunParts:
    """Makes the parts of one run from the events of its turn. What adds to an earlier part is the last of its event."""

    def __init__(self, modes: Collection[StreamMode], *, run_id: str, thread_id: str) -> None:
        self._modes = modes
        self._metadata = {"run_id": run_id, "thread_id": thread_id, "langgraph_node": ""}
        self.has_new_state = False
        self._said: dict[str, Json] = {}  # the assistant's messages so far
        self._shown: dict[str, int] = {}  # how many characters of each were in its last `messages/partial`
        self._calls: dict[str, tuple[str, Json]] = {}  # names, and the messages that have made the calls
        self._args: dict[str, str] = {}  # of calls that are still written

    def of(self, encoded: bytes) -> list[StreamedPart]:
        """Returns the parts of an event that is not the last."""
        event = orjson.loads(encoded)
        return [part for mode, part in self._of(event["type"], event) if mode in self._modes]

    def last(self, view: ThreadView) -> list[StreamedPart]:
        parts: list[StreamedPart] = [("updates", {"__interrupt__": view.interrupts})] if view.interrupts else []
        return [part for part in [*parts, ("values", view.final_values())] if part[0] in self._modes]

    def _of(self, kind: str, event: Json) -> Iterator[tuple[StreamMode, StreamedPart]]:
        self.has_new_state |= kind in ("TOOL_CALL_RESULT", "STATE_SNAPSHOT") or event.get("name") in _LOSES
        match kind:
            case "STEP_STARTED":
                self._metadata = {**self._metadata, "langgraph_node": event["stepName"]}
            case "TEXT_MESSAGE_CONTENT":
                yield from self._text(self._message(event["messageId"]), event["delta"])
            case "TEXT_MESSAGE_END":
                yield from self._complete(self._message(event["messageId"]))
            case "TOOL_CALL_START":
                self._calls[event["toolCallId"]] = event["toolCallName"], self._message(event["parentMessageId"])
                self._args[event["toolCallId"]] = ""
            case "TOOL_CALL_ARGS" if event["toolCallId"] in self._args:
                self._args[event["toolCallId"]] += event["delta"]
            case "TOOL_CALL_END" if are_whole(self._args.get(event["toolCallId"], "")):
                yield from self._call(event["toolCallId"], self._args.pop(event["toolCallId"]))
            case "TOOL_CALL_RESULT" if event["toolCallId"] not in self._args:  # else it was not made
                result = _tool_message(event["messageId"], event["toolCallId"], orjson.loads(event["content"]))
                yield from self._complete(result, "tools")
                yield "messages-tuple", ("messages", [result, self._metadata])
            case "CUSTOM":
                yield "custom", ("custom", {"name": event["name"], "value": event["value"]})

    def _text(self, message: Json, delta: str) -> Iterator[tuple[StreamMode, StreamedPart]]:
        message["content"] += delta
        length, shown = len(message["content"]), self._shown.get(message["id"], 0)
        if length - shown > length // 16:  # all of them together are 16 answers at most
            self._shown[message["id"]] = length
            yield "messages", ("messages/partial", [message])
        yield from self._chunk(message, content=delta)

    def _call(self, call_id: str, args: str) -> Iterator[tuple[StreamMode, StreamedPart]]:
        name, message = self._calls[call_id]
        call = {"id": call_id, "name": name, "args": orjson.loads(args), "type": "tool_call"}
        piece = {**call, "args": args, "index": len(message["tool_calls"]), "type": "tool_call_chunk"}
        message["tool_calls"].append(call)
        yield from self._complete(message)
        yield from self._chunk(message, tool_call_chunks=[piece])

    def _chunk(self, message: Json, **more: Any) -> Iterator[tuple[StreamMode, StreamedPart]]:
        chunk = {**_PLAIN, "type": "AIMessageChunk", "id": message["id"], "content": "", **more}
        yield "messages-tuple", ("messages", [chunk, self._metadata])

    def _complete(self, message: Json, node: str | None = None) -> Iterator[tuple[StreamMode, StreamedPart]]:
        yield "messages", ("messages/complete", [message])
        yield "updates", ("updates", {node or self._metadata["langgraph_node"]: {"messages": [message]}})

    def _message(self, message_id: str) -> Json:
        new = {**_PLAIN, "type": "ai", "id": message_id, "content": "", "tool_calls": []}
        return self._said.setdefault(message_id, new)


def encode(parts: Sequence[StreamedPart], *, position: int | None = None) -> bytes:
    """Returns the frames of parts. The last one has the position to go on from, if there is one."""
    frames = [b"event: %b\ndata: %b\n" % (name.encode(), to_json(content)) for name, content in parts]
    if frames and position is not None:
        frames[-1] += b"id: %d\n" % position
    return b"".join(each + b"\n" for each in frames)


@dataclass(frozen=True, slots=True)
class ResumeAnswer:
    """Words, also such as `reject`, or a decision: `args` of the action it `edits`, a tool's `form`, `chosen` steps."""

    verdict: Literal["confirm", "reject"] | None
    words: str | None = None
    args: Json | None = None
    form: Json | None = None
    edits: str | None = None
    chosen: frozenset[int] | None = None


def answer_of(resume: object, plan: Plan | None) -> ResumeAnswer:
    """`plan` is what was asked; None if it is not known. Raises InvalidRequest."""
    match resume:
        case str(words):
            return ResumeAnswer(None, words)
        case {"answer": dict(form)}:
            return ResumeAnswer("confirm", form=form)
        case {"decisions": list(decisions)} | list(decisions):
            answers = list(map(_decision, decisions))
        case _:
            answers = [_decision(resume)]
    names = action_names(plan)
    if not answers or (names and len(answers) != len(names)):
        raise InvalidRequest(RESUME_FORMS)
    first, yes, no = answers[0], ResumeAnswer("confirm"), ResumeAnswer("reject")
    if yes in answers and no in answers and all(each in (yes, no) for each in answers):
        steps = zip(plan.waiting_steps if plan is not None else (), answers, strict=False)
        return replace(yes, chosen=frozenset(step.id for step, each in steps if each == yes))
    if first.edits and len(names) == 1 and names != [first.edits]:
        raise InvalidRequest(f"`edited_action` has to name what waits: `{names[0]}`.")
    if any(each != first for each in answers) or (first.edits and len(names) > 1):
        raise InvalidRequest("What is asked together is approved or rejected, not edited. Say in words what you want.")
    return first


def _decision(given: object) -> ResumeAnswer:
    match given:
        case True | {"type": "approve" | "accept"}:
            return ResumeAnswer("confirm")
        case {"type": "edit", "edited_action": {"name": str(name), "args": dict(args)}}:
            return ResumeAnswer("confirm", args=args, edits=name)
        case {"type": "edit", "args": {"action": str(name), "args": dict(args)}}:
            return ResumeAnswer("confirm", args=args, edits=name)
        case {"type": "reject", "message": str(words)} if words.strip():
            return ResumeAnswer("reject", words)
        case False | {"type": "reject" | "ignore"}:
            return ResumeAnswer("reject")
        case {"type": "response", "args": str(words)} | {"type": "respond", "message": str(words)}:
            return ResumeAnswer(None, words)
    raise InvalidRequest(RESUME_FORMS)


def named_interrupt(given: object) -> tuple[tuple[str, int] | None, object]:
    """Returns the plan and version whose interrupt is answered, if a map of LangGraph's names it, and the answer."""
    if isinstance(given, dict) and len(given) == 1:
        [(name, answer)] = given.items()
        if (interrupt := plan_asked(name)) is not None:
            return interrupt, answer
    return None, given


def newest_message(given: Json | None) -> Json | None:
    """Returns `id` and `content` of what the user says last in an input; None if that has no message of theirs."""
    messages = given.get("messages") if given else None
    for each in reversed(messages if isinstance(messages, list) else [messages]):
        match each:
            case str(content) | ["user" | "human", content]:
                return {"id": None, "content": content}
            case {"type": "human" | "user", **message} | {"role": "human" | "user", **message}:
                content, message_id = message.get("content"), message.get("id")
                parts = list(map(_part, content)) if isinstance(content, list) else content
                return {"id": message_id if isinstance(message_id, str) else None, "content": parts}
    return None


def _part(part: object) -> object:
    """Returns a part of LangChain's, which has its data beside the type, as a file of the doors."""
    match part:
        case {"type": "image" | "file" | "audio" | "video", "data": str(content), **rest}:
            named = {**rest, **known} if isinstance(known := rest.get("metadata"), dict) else rest
            return {"type": "binary", "data": content, "filename": named.get("filename") or named.get("name")}
    return part
