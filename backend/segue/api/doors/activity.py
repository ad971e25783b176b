"""What an agent does, in words for a frontend that shows no tools and no plans: read off the events of its turn."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson

MAX_ARGS_CHARS: Final = 300
MAX_RESULT_CHARS: Final = 300
_MARKS: Final = {"pending": "·", "running": "…", "waiting": "?", "complete": "✓", "failed": "✗", "skipped": "-"}


@dataclass(frozen=True, slots=True)
class Activity:
    """`text` is Markdown for a reader who wants the details, `status` a line for all; none if it is None."""

    text: str
    status: str | None = None
    is_done: bool = False


class Activities:
    """Reads the events of one turn in their order."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}

    def of(self, event: Mapping[str, Any]) -> Activity | None:
        """Returns None for an event that is no activity."""
        match event["type"]:
            case "REASONING_MESSAGE_CONTENT":
                return Activity(str(event["delta"]))
            case "TOOL_CALL_START" | "TOOL_CALL_ARGS" | "TOOL_CALL_RESULT":
                return self._call(event)
            case "STATE_SNAPSHOT":
                plan = (event["snapshot"] or {}).get("plan")
                return Activity("\n" + "\n".join(_step(step) for step in plan["steps"]) + "\n") if plan else None
            case "CUSTOM" if event["name"] == "attempt":
                return Activity("\nAnother process goes on.\n")
            case _:
                return None

    def _call(self, event: Mapping[str, Any]) -> Activity:
        if event["type"] == "TOOL_CALL_START":
            self._names[event["toolCallId"]] = event["toolCallName"]
            return Activity(f"\n`{event['toolCallName']}`", f"{event['toolCallName']} …")
        if event["type"] == "TOOL_CALL_ARGS":
            return Activity(f" {_shortened(event['delta'], MAX_ARGS_CHARS)}\n")
        reference = orjson.loads(event["content"])
        name = self._names.get(event["toolCallId"]) or reference.get("tool_name", "")
        status, summary = reference.get("status", ""), _shortened(reference.get("summary") or "", MAX_RESULT_CHARS)
        return Activity(f"→ {status}: {summary}\n", f"{name}: {status}", is_done=True)


def _step(step: Mapping[str, Any]) -> str:
    return f"{step['id']}. {_MARKS.get(step['status'], '·')} {step['description']}"


def _shortened(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"
