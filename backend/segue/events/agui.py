"""Events as AG-UI 1.0 writes them, one JSON text each. Pure.

Made of dicts: building the protocol's pydantic models for every token would cost more than the token. Tests hold what
is written here against those models. Who keeps and sends it is `turn/events.py`.
"""

from collections.abc import Sequence
from dataclasses import asdict, fields
from typing import Any, assert_never

import orjson
from pydantic import TypeAdapter

from segue.domain.errors import AppError
from segue.domain.events import (
    CallEnded,
    CallStarted,
    Event,
    MessageRead,
    PlanMoved,
    SearchDecided,
    StepFinished,
    StepStarted,
    TextAdded,
    TextEnded,
    TextStarted,
    ToolRan,
    ToolStateChanged,
)
from segue.domain.plan import Plan
from segue.domain.session import ChatAnswer, TurnKey

MAX_ARGS_BYTES = 16_000
_CLOSED_BY = {"TEXT_MESSAGE_START": "messageId", "TOOL_CALL_START": "toolCallId", "STEP_STARTED": "stepName"}
_CLOSES = {
    "TEXT_MESSAGE_END": "TEXT_MESSAGE_START",
    "TOOL_CALL_END": "TOOL_CALL_START",
    "STEP_FINISHED": "STEP_STARTED",
}

_read_answer = TypeAdapter(ChatAnswer).validate_python


def run_started(turn: TurnKey) -> bytes:
    return _json({"type": "RUN_STARTED", "threadId": turn.session_id, "runId": turn.turn_id})


def run_ended(turn: TurnKey, outcome: ChatAnswer | AppError) -> bytes:
    """The one terminal event. An error travels as the problem that a JSON answer would have been."""
    if isinstance(outcome, ChatAnswer):
        ends = {"type": "RUN_FINISHED", "threadId": turn.session_id, "runId": turn.turn_id, "result": outcome}
    else:
        problem = {name: getattr(outcome, name) for name in ("status", "title", "detail", "retryable", "extra")}
        ends = {"type": "RUN_ERROR", "message": outcome.detail, "code": outcome.code, "metadata": {"problem": problem}}
    return _json(ends)


def read_outcome(event: bytes) -> ChatAnswer | AppError:
    """What a terminal event says."""
    said = orjson.loads(event)
    if said["type"] == "RUN_FINISHED":
        return _read_answer(said["result"])
    return AppError(said["code"], **said["metadata"]["problem"])


def attempt(number: int) -> bytes:
    """The turn begins anew in another process; a run must not start twice."""
    return custom("attempt", {"number": number})


def replay_gap() -> bytes:
    return custom("replay_gap", None)


def custom(name: str, value: object) -> bytes:
    return _json({"type": "CUSTOM", "name": name, "value": value})


def left_open(events: Sequence[bytes]) -> list[bytes]:
    """What closes the messages, calls and steps that a process left open when it died."""
    opened: dict[tuple[str, str], bytes] = {}
    for event in events:
        said = orjson.loads(event)
        kind = said["type"]
        if kind in _CLOSED_BY:
            end = next(end for end, start in _CLOSES.items() if start == kind)
            name = _CLOSED_BY[kind]
            opened[kind, said[name]] = _json({"type": end, name: said[name]})
        elif kind in _CLOSES:
            opened.pop((_CLOSES[kind], said[_CLOSED_BY[_CLOSES[kind]]]), None)
    return list(opened.values())[::-1]


class Writing:
    """Writes the events of one turn, which share one state: the plan as it was last told."""

    def __init__(self, turn: TurnKey) -> None:
        self._turn = turn
        self._plan: Plan | None = None

    def written(self, event: Event) -> list[bytes]:  # noqa: C901, PLR0911, PLR0912 (one line per kind of event)
        match event:
            case StepStarted(name):
                return [_json({"type": "STEP_STARTED", "stepName": name})]
            case StepFinished(name):
                return [_json({"type": "STEP_FINISHED", "stepName": name})]
            case MessageRead(report):
                return [custom("acknowledgement", report)]
            case SearchDecided(report):
                return [custom("web_search", report)]
            case ToolStateChanged(tool_name, state):
                return [custom("tool_state", {"tool_name": tool_name, "state": state})]
            case PlanMoved(plan):
                return self._plan_moved(plan)
            case CallStarted():
                return self._call_started(event)
            case CallEnded():
                return [_call_ended(event)]
            case ToolRan():
                return []
            case TextStarted(message_id):
                return [_json({"type": "TEXT_MESSAGE_START", "messageId": message_id, "role": "assistant"})]
            case TextAdded(message_id, text):
                return [_json({"type": "TEXT_MESSAGE_CONTENT", "messageId": message_id, "delta": text})]
            case TextEnded(message_id):
                return [_json({"type": "TEXT_MESSAGE_END", "messageId": message_id})]
            case _:
                assert_never(event)

    def _plan_moved(self, plan: Plan) -> list[bytes]:
        before, self._plan = self._plan, plan
        if before == plan:
            return []
        if before is None:
            return [_json({"type": "STATE_SNAPSHOT", "snapshot": {"plan": plan}})]
        return [_json({"type": "STATE_DELTA", "delta": _changes(before, plan)})]

    def _call_started(self, event: CallStarted) -> list[bytes]:
        """Arguments too large for a log are told by where they can be read."""
        call = event.call
        args = _json(call.args)
        if len(args) > MAX_ARGS_BYTES:
            args = _json({"$ref": f"/sessions/{self._turn.session_id}/tool-results/{call.id}"})
        start = {"toolCallId": call.id, "toolCallName": call.name, "parentMessageId": event.message_id}
        return [
            _json({"type": "TOOL_CALL_START", **start}),
            _json({"type": "TOOL_CALL_ARGS", "toolCallId": call.id, "delta": args.decode()}),
            _json({"type": "TOOL_CALL_END", "toolCallId": call.id}),
        ]


def _call_ended(event: CallEnded) -> bytes:
    return _json(
        {
            "type": "TOOL_CALL_RESULT",
            "messageId": event.message_id,
            "toolCallId": event.reference.tool_call_id,
            "content": _json(asdict(event.reference)).decode(),
            "role": "tool",
        }
    )


def _changes(before: Plan, after: Plan) -> list[dict[str, Any]]:
    """A JSON patch of `{"plan": before}`: each field of the plan, and each step, that is no longer the same."""
    if before.id != after.id:
        return [_replace("", after)]
    patch = [
        _replace(f"/{each.name}", getattr(after, each.name))
        for each in fields(Plan)
        if each.name != "steps" and getattr(before, each.name) != getattr(after, each.name)
    ]
    if len(before.steps) != len(after.steps):
        return [*patch, _replace("/steps", after.steps)]
    pairs = enumerate(zip(before.steps, after.steps, strict=True))
    return [*patch, *(_replace(f"/steps/{index}", new) for index, (old, new) in pairs if old != new)]


def _replace(path: str, value: object) -> dict[str, Any]:
    return {"op": "replace", "path": f"/plan{path}", "value": value}


def _json(value: object) -> bytes:
    """Times as the API writes them."""
    return orjson.dumps(value, option=orjson.OPT_UTC_Z)
