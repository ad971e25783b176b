"""Reads the events of a turn for a door that knows text, thoughts and the end: what each event adds to the answer.

What an agent does is told in words: such a frontend shows no tools and no plans.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson

from segue.domain.errors import AppError
from segue.domain.session import WRITTEN_BY
from segue.events.agui_encoding import answer_json
from segue.tools.summaries import shortened

BETWEEN: Final = "\n\n"  # two messages of one turn
MAX_SHOWN_CHARS: Final = 300  # of arguments, and of a result
_MARKS: Final = {"pending": "·", "running": "…", "waiting": "?", "complete": "✓", "failed": "✗", "skipped": "-"}
_ENDS: Final = (b'{"type":"RUN_FINISHED"', b'{"type":"RUN_ERROR"')


@dataclass(frozen=True, slots=True)
class AnswerText:
    """More of the answer."""

    delta: str


@dataclass(frozen=True, slots=True)
class Activity:
    """`text` is Markdown for a reader who wants the details, `status` a line for all; none if it is None."""

    text: str
    status: str | None = None
    is_done: bool = False


@dataclass(frozen=True, slots=True)
class Called:
    """A tool has run. `reference` describes its result."""

    call_id: str
    name: str
    arguments: str
    reference: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class InWords:
    """What is said in the place of an answer that was to fit a schema: a question, while a plan waits."""

    text: str


@dataclass(frozen=True, slots=True)
class Answered:
    """The turn has completed: its ChatAnswer."""

    answer: Mapping[str, Any]


Piece = AnswerText | Activity | Called | InWords | Answered | AppError


class TurnReader:
    """An answer begins with what is said before a tool is called. It ends with the message that counts, which is the
    only one if it is read `at_its_end`.
    """

    def __init__(self, *, at_its_end: bool = False) -> None:
        self._at_its_end = at_its_end
        self._calls: dict[str, tuple[str, str]] = {}
        self._said = ""  # of the message that is being said
        self._has_said = False

    def read(self, encoded: bytes) -> list[Piece]:  # noqa: PLR0911 (one line or two for each kind of event)
        if encoded.startswith(_ENDS):
            return self._end(encoded)
        event = orjson.loads(encoded)
        match event["type"]:
            case "TEXT_MESSAGE_START" | "TEXT_MESSAGE_CONTENT" if self._at_its_end:
                return []
            case "TEXT_MESSAGE_START":
                self._said = ""
                return [AnswerText(BETWEEN)] if self._has_said else []
            case "TEXT_MESSAGE_CONTENT":
                self._said += event["delta"]
                self._has_said = True
                return [AnswerText(event["delta"])]
            case "REASONING_MESSAGE_CONTENT":
                return [Activity(event["delta"])]
            case "TOOL_CALL_START" | "TOOL_CALL_ARGS" | "TOOL_CALL_RESULT":
                return self._call(event)
            case "STATE_SNAPSHOT" if plan := (event["snapshot"] or {}).get("plan"):
                return [Activity("\n" + "\n".join(map(_step, plan["steps"])) + "\n")]
            case "CUSTOM" if event["name"] == "attempt":
                return [Activity("\nAnother process goes on.\n")]
            case _:
                return []

    def _call(self, event: Mapping[str, Any]) -> list[Piece]:
        call_id = event["toolCallId"]
        if event["type"] == "TOOL_CALL_START":
            name = event["toolCallName"]
            self._calls[call_id] = (name, "")
            return [Activity(f"\n`{name}`", f"{name} …")]
        if event["type"] == "TOOL_CALL_ARGS":
            self._calls[call_id] = (self._calls[call_id][0], event["delta"])
            return [Activity(f" {shortened(event['delta'], MAX_SHOWN_CHARS)}\n")]
        reference = orjson.loads(event["content"])
        name, arguments = self._calls.pop(call_id, (reference.get("tool_name", ""), "{}"))
        status, summary = reference.get("status", ""), shortened(reference.get("summary") or "", MAX_SHOWN_CHARS)
        end = Activity(f"→ {status}: {summary}\n", f"{name}: {status}", is_done=True)
        return [end, Called(call_id, name, arguments, reference)]

    def _end(self, encoded: bytes) -> list[Piece]:
        try:
            answer = orjson.loads(answer_json(encoded))
        except AppError as error:
            return [error]
        if self._at_its_end and is_in_words(answer):
            return [InWords(answer["message"]["content"]), Answered(answer)]
        whole = answer["message"]["content"]
        rest = whole[len(self._said) :] if whole.startswith(self._said) else BETWEEN + whole
        return [*([AnswerText(rest)] if rest else []), Answered(answer)]


def is_in_words(answer: Mapping[str, Any]) -> bool:
    """Whether a ChatAnswer fits no schema of the client: it is a question to the user, or written by the service."""
    is_asking = bool(answer["plan"]) and answer["plan"]["status"] == "waiting"
    return is_asking or WRITTEN_BY in answer["message"]["metadata"]


def _step(step: Mapping[str, Any]) -> str:
    return f"{step['id']}. {_MARKS.get(step['status'], '·')} {step['description']}"
