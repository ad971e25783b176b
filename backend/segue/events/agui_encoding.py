"""Encodes events as AG-UI 1.0, one JSON object each. Pure. Made of dicts, since the protocol's pydantic models would
cost more for every token than the token. Tests compare what is written here with those models.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, assert_never

import orjson

from segue.db.rows import readable, reader
from segue.domain import events
from segue.domain.errors import AppError
from segue.domain.ids import read_json
from segue.domain.plan import Plan
from segue.domain.session import AcknowledgementReport, TurnAnswer, TurnError, TurnKey, WebSearchReport, reader_of
from segue.domain.telemetry import ToolCalled
from segue.domain.tool import Reference

MAX_ARGS_BYTES = 16_000
NOT_MADE = "The call was not made: the model's answer broke off in its arguments, or asked for it otherwise."
_CLOSED_BY = {  # the event that closes it, and the member that names what it opened
    "TEXT_MESSAGE_START": ("TEXT_MESSAGE_END", "messageId"),
    "TOOL_CALL_START": ("TOOL_CALL_END", "toolCallId"),
    "STEP_STARTED": ("STEP_FINISHED", "stepName"),
    "REASONING_START": ("REASONING_END", "messageId"),
    "REASONING_MESSAGE_START": ("REASONING_MESSAGE_END", "messageId"),
}
_CLOSES = {end: (start, name) for start, (end, name) in _CLOSED_BY.items()}
_FINISHED = b'{"type":"RUN_FINISHED",'
_ERROR = b'{"type":"RUN_ERROR",'
_RESULT = b',"result":'
CALL_START = b'{"type":"TOOL_CALL_START",'
STATE_SNAPSHOT = b'{"type":"STATE_SNAPSHOT",'


@dataclass(frozen=True, slots=True)
class _Event:
    type: str


@dataclass(frozen=True, slots=True)
class _Metadata:
    problem: TurnError


@dataclass(frozen=True, slots=True)
class _RunError:
    metadata: _Metadata


@dataclass(frozen=True, slots=True)
class _RunFinished:
    result: dict[str, Any]


def run_started(turn: TurnKey) -> bytes:
    return to_json({"type": "RUN_STARTED", "threadId": turn.session_id, "runId": turn.turn_id})


def run_ended(turn: TurnKey, outcome: TurnAnswer, *, request_id: str | None = None) -> bytes:
    """Returns the terminal event. An error has the members of its problem+json, and those that `answer_json` reads."""
    if isinstance(outcome, AppError):
        problem = {"turn_id": turn.turn_id, **outcome.problem, "retryable": outcome.retryable, "extra": outcome.extra}
        problem |= {} if request_id is None else {"request_id": request_id}
        error = {"type": "RUN_ERROR", "message": outcome.detail, "code": outcome.code, "metadata": {"problem": problem}}
        return to_json(error)
    # `result` comes last: answer_json() cuts it out instead of parsing it
    return to_json({"type": "RUN_FINISHED", "threadId": turn.session_id, "runId": turn.turn_id, "result": outcome})


def answer_json(terminal_event: bytes) -> bytes:
    """Returns the ChatAnswer in a terminal event, as JSON. Raises the AppError the turn ended with instead."""
    if terminal_event.startswith(_FINISHED):
        return terminal_event.partition(_RESULT)[2][:-1]
    raise AppError(**asdict(reader(_RunError)(orjson.loads(terminal_event)).metadata.problem))


def read_by(event: bytes) -> TurnKey | None:
    """Returns the turn that has read the message of this event's turn, if that is what ended it."""
    problem = reader(_RunError)(orjson.loads(event)).metadata.problem if event.startswith(_ERROR) else None
    return reader_of(problem.extra) if problem and problem.code == "turn_steered" else None


def is_readable(event: bytes, *, is_last: bool) -> bool:
    """Returns whether an event that another process wrote can be passed on, and as the last one be an outcome."""
    as_last: type[object] = _RunFinished if event.startswith(_FINISHED) else _RunError
    return readable(reader(as_last if is_last else _Event), read_json(event), "events", "") is not None


def attempt(number: int) -> bytes:
    """Says that another process starts the turn over: AG-UI allows one RUN_STARTED."""
    return custom("attempt", {"number": number})


def replay_gap() -> bytes:
    """Says that events are missing here."""
    return custom("replay_gap", None)


def custom(name: str, value: object) -> bytes:
    return to_json({"type": "CUSTOM", "name": name, "value": value})


def state_snapshot(state: Mapping[str, Any]) -> bytes:
    return to_json({"type": "STATE_SNAPSHOT", "snapshot": state})


def given_up(call_id: str, tool_name: str) -> list[bytes]:
    """Returns the events that end a call of which only the beginning was written."""
    return [to_json({"type": "TOOL_CALL_END", "toolCallId": call_id}), unmade_result(call_id, tool_name)]


def unmade_result(call_id: str, tool_name: str) -> bytes:
    reference = Reference(call_id, tool_name, {}, "failed", 0, NOT_MADE, "", ())
    return call_ended(events.CallEnded(reference, f"{call_id}_unmade"))


def open_calls(passed: Sequence[bytes]) -> dict[str, str]:
    """Returns the names, by id, of the calls whose arguments those `passed` leave open."""
    begun: dict[str, str] = {}
    for encoded in passed:
        if encoded.startswith(CALL_START):
            event = orjson.loads(encoded)
            begun[event["toolCallId"]] = event["toolCallName"]
        elif encoded.startswith(b'{"type":"TOOL_CALL_END",'):
            begun.pop(orjson.loads(encoded)["toolCallId"], None)
    return begun


def are_whole(args: str) -> bool:
    """Returns whether the arguments of a call have all come, by the pieces so far: else their last `}` misses."""
    return args.endswith("}")


def closes(encoded: bytes) -> bool:
    return orjson.loads(encoded)["type"] in _CLOSES


def closing_events(passed: Sequence[bytes]) -> list[bytes]:
    """Returns the events that close the messages, calls and steps that those `passed` leave open, innermost first."""
    opened: dict[tuple[str, str], bytes] = {}
    for encoded in passed:
        event = orjson.loads(encoded)
        kind = event["type"]
        if kind in _CLOSED_BY:
            end, name = _CLOSED_BY[kind]
            opened[kind, str(event.get(name))] = to_json({"type": end, name: event.get(name)})
        elif kind in _CLOSES:
            start, name = _CLOSES[kind]
            opened.pop((start, str(event.get(name))), None)
    return list(opened.values())[::-1]


class EventEncoder:
    """Encodes the events of one turn. Remembers the plan it sent last, to send only what has changed, and of calls that
    have begun the names and how many characters it sent of their arguments.
    """

    def __init__(self, turn: TurnKey) -> None:
        self._turn = turn
        self._plan: Plan | None = None
        self._begun: dict[str, tuple[str, int]] = {}

    def unmade_calls(self) -> list[bytes]:
        """Returns the events that end the calls that have only begun."""
        begun, self._begun = self._begun, {}
        return [event for call_id, (name, _) in begun.items() for event in given_up(call_id, name)]

    def encode(self, event: events.Event) -> list[bytes]:  # noqa: C901, PLR0911, PLR0912 (one line per kind of event)
        """Returns the AG-UI events for one event. Raises TypeError or ValueError if JSON cannot hold it."""
        match event:
            case events.StepStarted(name):
                return [to_json({"type": "STEP_STARTED", "stepName": name})]
            case events.StepFinished(name):
                return [to_json({"type": "STEP_FINISHED", "stepName": name})]
            case AcknowledgementReport():
                return [custom("acknowledgement", event)]
            case WebSearchReport():
                return [custom("web_search", event)]
            case events.ToolStateChanged(tool_name, state):
                return [custom("tool_state", {"tool_name": tool_name, "state": state})]
            case events.SteerRead(message):
                return [custom("steered", {"message": message})]
            case events.EffectsListed(effects):
                return [custom("effects", effects)]
            case events.PlanChanged(plan):
                return self._plan_changed(plan)
            case events.CallBegun(call_id, name, message_id):
                self._begun[call_id] = name, 0
                return [_call_start(call_id, name, message_id)]
            case events.ArgumentsAdded(call_id, text) if call_id in self._begun:
                name, sent = self._begun[call_id]
                self._begun[call_id] = name, sent + len(text)
                return [_arguments(call_id, text)]
            case events.CallGivenUp(call_id) if call_id in self._begun:
                return given_up(call_id, self._begun.pop(call_id)[0])
            case events.ArgumentsAdded() | events.CallGivenUp():  # its turn has ended, and it with that
                return []
            case events.CallStarted():
                return self._call_started(event)
            case events.MandateUsed():
                return [custom("grant_used", event)]
            case events.CallProgressed():
                return [custom("tool_progress", event)]
            case events.CallEnded():
                return [call_ended(event)]
            case ToolCalled():  # for metrics only
                return []
            case events.TextStarted(message_id):
                return [to_json({"type": "TEXT_MESSAGE_START", "messageId": message_id, "role": "assistant"})]
            case events.TextAdded(message_id, text):
                return [to_json({"type": "TEXT_MESSAGE_CONTENT", "messageId": message_id, "delta": text})]
            case events.TextEnded(message_id):
                return [to_json({"type": "TEXT_MESSAGE_END", "messageId": message_id})]
            case events.ReasoningStarted(message_id):
                start = {"type": "REASONING_MESSAGE_START", "messageId": message_id, "role": "reasoning"}
                return [to_json({"type": "REASONING_START", "messageId": message_id}), to_json(start)]
            case events.ReasoningAdded(message_id, text):
                return [to_json({"type": "REASONING_MESSAGE_CONTENT", "messageId": message_id, "delta": text})]
            case events.ReasoningEnded(message_id):
                ends = ("REASONING_MESSAGE_END", "REASONING_END")
                return [to_json({"type": end, "messageId": message_id}) for end in ends]
            case _:
                assert_never(event)

    def _plan_changed(self, plan: Plan) -> list[bytes]:
        before, self._plan = self._plan, plan
        if before == plan:
            return []
        if before is None:
            return [state_snapshot({"plan": plan})]
        return [to_json({"type": "STATE_DELTA", "delta": _changes(before, plan)})]

    def _call_started(self, event: events.CallStarted) -> list[bytes]:
        """Arguments too large for the log become a reference to the API. Of a call that has begun the rest follows."""
        call = event.call
        args, end = to_json(call.args), to_json({"type": "TOOL_CALL_END", "toolCallId": call.id})
        if (begun := self._begun.pop(call.id, None)) is not None:
            rest = args.decode()[begun[1] :]
            pieces = (rest[at : at + MAX_ARGS_BYTES] for at in range(0, len(rest), MAX_ARGS_BYTES))
            return [*(_arguments(call.id, piece) for piece in pieces), end]
        if len(args) > MAX_ARGS_BYTES:
            args = to_json({"$ref": f"/sessions/{self._turn.session_id}/tool-results/{call.id}"})
        return [_call_start(call.id, call.name, event.message_id), _arguments(call.id, args.decode()), end]


def _call_start(call_id: str, name: str, message_id: str) -> bytes:
    start = {"toolCallId": call_id, "toolCallName": name, "parentMessageId": message_id}
    return to_json({"type": "TOOL_CALL_START", **start})


def _arguments(call_id: str, text: str) -> bytes:
    return to_json({"type": "TOOL_CALL_ARGS", "toolCallId": call_id, "delta": text})


def call_ended(event: events.CallEnded) -> bytes:
    ids = {"messageId": event.message_id, "toolCallId": event.reference.tool_call_id}
    content = to_json(asdict(event.reference)).decode()
    return to_json({"type": "TOOL_CALL_RESULT", **ids, "content": content, "role": "tool"})


def _changes(before: Plan, after: Plan) -> list[dict[str, Any]]:
    """Returns a JSON patch of `{"plan": before}` that replaces every changed field and step."""
    if before.id != after.id:
        return [_replace("", after)]
    values = ((each.name, getattr(before, each.name), getattr(after, each.name)) for each in fields(Plan))
    patch = [_replace(f"/{name}", new) for name, old, new in values if name != "steps" and old != new]
    if len(before.steps) != len(after.steps):
        return [*patch, _replace("/steps", after.steps)]
    pairs = enumerate(zip(before.steps, after.steps, strict=True))
    return [*patch, *(_replace(f"/steps/{index}", new) for index, (old, new) in pairs if old != new)]


def _replace(path: str, value: object) -> dict[str, Any]:
    return {"op": "replace", "path": f"/plan{path}", "value": value}


def to_json(value: object) -> bytes:
    """Returns JSON with times as the API writes them: `Z`, not `+00:00`."""
    return orjson.dumps(value, option=orjson.OPT_UTC_Z)
