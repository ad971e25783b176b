"""What a client of AG-UI is sent of a run: the turn's own events, under the ids that the client gave.

A client takes a stream that begins otherwise, or leaves something open, for a fault. So a run begins and ends as it
should also where the log has lost events. Pure: knows no store, no task and no HTTP.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import orjson

from segue.domain.errors import AppError
from segue.domain.plan import Plan, Step
from segue.domain.session import Message, UnreadableMessage
from segue.events import agui

PROTOCOL_VERSION: Final = "1.0"
REASON: Final = "confirmation"
RESPONSE_SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "description": "Nothing in it approves exactly what was shown.",
    "properties": {
        "approved": {"type": "boolean", "description": "False rejects."},
        "args": {"type": "object", "description": "Approves, with these arguments in the place of the step's."},
        "message": {"type": "string", "description": "Changes the plan: what is to be otherwise, in words."},
        "remember": {"type": "string", "enum": ["session"], "description": "Approves; the tool asks no more here."},
        "reason": {"type": "string", "description": "For the client alone."},
    },
}
_CONTENT: Final = tuple(
    f'{{"type":"{kind}"'.encode() for kind in ("TEXT_MESSAGE_CONTENT", "REASONING_MESSAGE_CONTENT", "TOOL_CALL_ARGS")
)
_STARTED: Final = b'{"type":"RUN_STARTED"'
_SAID: Final = b'{"type":"TEXT_MESSAGE_START","messageId":"%b"'


class RunFrames:
    """Of one run. Remembers what the log has opened, and whether it has lost anything."""

    def __init__(self, thread_id: str, run_id: str, *, declares_version: bool) -> None:
        self._ids = {"threadId": thread_id, "runId": run_id}
        self._version = {"protocolVersion": PROTOCOL_VERSION} if declares_version else {}
        self._passed: list[bytes] = []
        self._has_gap = False

    def started(self) -> bytes:
        return _json({"type": "RUN_STARTED", **self._ids, **self._version})

    def shown(self, event: bytes) -> list[bytes]:
        """What an event of the log becomes, but for its last. After a gap nothing may refer to what came before it."""
        if self._has_gap or event.startswith(_STARTED):
            return []
        if event == agui.replay_gap():
            self._has_gap = True
            return [*agui.closing_events(self._passed), event]
        if not event.startswith(_CONTENT):
            self._passed.append(event)
        return [event]

    def ended(self, last: bytes, open_plan: Plan | None) -> list[bytes]:
        """What the last event of the log becomes. An error has the whole problem in it already."""
        try:
            result = agui.answer_json(last)
        except AppError:
            return [last]
        answer = orjson.loads(result)
        return [*self._unsaid(answer["message"]), self.finished(open_plan, answer, result)]

    def finished(
        self, open_plan: Plan | None, answer: Mapping[str, Any] | None = None, result: bytes | None = None
    ) -> bytes:
        """The end of a run that has not failed: an interrupt if a plan waits for the user."""
        interrupt = _interrupt(open_plan, answer) if open_plan is not None else None
        outcome = {"outcome": {"type": "interrupt", "interrupts": [interrupt]}} if interrupt else {}
        given = {"result": orjson.Fragment(result)} if result is not None else {}
        return _json({"type": "RUN_FINISHED", **self._ids, **outcome, **given})

    def _unsaid(self, message: Mapping[str, Any]) -> list[bytes]:
        """The answer, if the log has lost it."""
        said = _SAID % message["id"].encode()
        if not self._has_gap or not message["content"] or any(event.startswith(said) for event in self._passed):
            return []
        of_message = {"messageId": message["id"]}
        return [
            _json({"type": "TEXT_MESSAGE_START", **of_message, "role": "assistant"}),
            _json({"type": "TEXT_MESSAGE_CONTENT", **of_message, "delta": message["content"]}),
            _json({"type": "TEXT_MESSAGE_END", **of_message}),
        ]


def interrupt_id(plan_id: str, version: int) -> str:
    return f"{plan_id}:{version}"


def messages_snapshot(messages: Sequence[Mapping[str, Any]]) -> bytes:
    return _json({"type": "MESSAGES_SNAPSHOT", "messages": messages})


def shown_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    return [_message(each) for each in messages if not isinstance(each, UnreadableMessage)]


def _message(message: Message) -> dict[str, Any]:
    content = message.content if isinstance(message.content, str) else _json(message.content).decode()
    shown: dict[str, Any] = {"id": message.id, "role": message.role, "content": content}
    if message.tool_call_id is not None:
        shown["toolCallId"] = message.tool_call_id
    if message.tool_calls:
        shown["toolCalls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": _json(call.args).decode()}}
            for call in message.tool_calls
        ]
    return shown


def _interrupt(plan: Plan, answer: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """The question as the answer asked it, if it is the one that asked."""
    step = plan.waiting_step
    if step is None:
        return None
    asks = answer is not None and answer["plan"] is not None and answer["plan"]["id"] == plan.id
    return {
        "id": interrupt_id(plan.id, plan.version),
        "reason": REASON,
        "message": answer["message"]["content"] if answer is not None and asks else step.description,
        "responseSchema": _response_schema(step),
        "expiresAt": plan.expires_at,
        "metadata": {"step": step, "steps": plan.waiting_steps},
    }


def _response_schema(step: Step) -> dict[str, Any]:
    """With the form that a tool asks the user to fill in, if it does."""
    if step.asks is None or step.asks.schema is None:
        return RESPONSE_SCHEMA
    return {**RESPONSE_SCHEMA, "properties": {**RESPONSE_SCHEMA["properties"], "answer": step.asks.schema}}


def _json(value: object) -> bytes:
    return orjson.dumps(value, option=orjson.OPT_UTC_Z)
