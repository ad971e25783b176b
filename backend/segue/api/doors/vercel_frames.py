"""What a client of the Vercel AI SDK is sent: the events of a run as chunks of its UI message stream.

Only chunks that the versions 5, 6 and 7 know: others end a client of version 5. Pure.
"""

from collections.abc import Mapping
from typing import Any, Final

import orjson

from segue.domain.session import TurnKey

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


class MessageChunks:
    """Of one message of the assistant: what a turn says and does. Remembers its calls and its plan."""

    def __init__(self, turn: TurnKey) -> None:
        self._turn = turn
        self._names: dict[str, str] = {}
        self._plan: dict[str, Any] = {}

    def of(self, encoded: bytes) -> list[bytes]:
        """The chunks for an event of the run."""
        event = orjson.loads(encoded)
        return [orjson.dumps(chunk) if chunk else DONE for chunk in self._of(event["type"], event)]

    def _of(self, kind: str, event: Mapping[str, Any]) -> list[dict[str, Any]]:  # noqa: PLR0911 (one line for each kind)
        """An empty one is the end."""
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
        """Carries out a change as `events/agui.py` writes it: of the plan, a member of it or one of its steps."""
        match path:
            case []:
                self._plan = value
            case [member]:
                self._plan[member] = value
            case [member, index]:
                self._plan[member][int(index)] = value
