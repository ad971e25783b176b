"""Reads the events of a turn for a door that knows text, thoughts and the end: what each event adds to the answer."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson

from segue.api.doors.activity import Activities, Activity
from segue.domain.errors import AppError
from segue.events.agui import answer_json

BETWEEN: Final = "\n\n"  # two messages of one turn
_ENDS: Final = (b'{"type":"RUN_FINISHED"', b'{"type":"RUN_ERROR"')


@dataclass(frozen=True, slots=True)
class Text:
    """More of the answer."""

    delta: str


@dataclass(frozen=True, slots=True)
class Called:
    """A tool has run. `reference` describes its result."""

    call_id: str
    name: str
    arguments: str
    reference: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Answered:
    """The turn has completed: its ChatAnswer."""

    answer: Mapping[str, Any]


Piece = Text | Activity | Called | Answered | AppError


class TurnReader:
    """An answer begins with what is said before a tool is called. It ends with the message that counts."""

    def __init__(self) -> None:
        self._activities = Activities()
        self._calls: dict[str, tuple[str, str]] = {}
        self._said = ""  # of the message that is being said
        self._has_said = False

    def read(self, encoded: bytes) -> list[Piece]:
        if encoded.startswith(_ENDS):
            return self._end(encoded)
        event = orjson.loads(encoded)
        match event["type"]:
            case "TEXT_MESSAGE_START":
                self._said = ""
                return [Text(BETWEEN)] if self._has_said else []
            case "TEXT_MESSAGE_CONTENT":
                self._said += event["delta"]
                self._has_said = True
                return [Text(event["delta"])]
            case "TOOL_CALL_START":
                self._calls[event["toolCallId"]] = (event["toolCallName"], "")
            case "TOOL_CALL_ARGS":
                self._calls[event["toolCallId"]] = (self._calls[event["toolCallId"]][0], event["delta"])
        told = self._activities.of(event)
        return [*([told] if told else []), *self._called(event)]

    def _called(self, event: Mapping[str, Any]) -> list[Piece]:
        if event["type"] != "TOOL_CALL_RESULT":
            return []
        reference = orjson.loads(event["content"])
        name, arguments = self._calls.pop(event["toolCallId"], (reference.get("tool_name", ""), "{}"))
        return [Called(event["toolCallId"], name, arguments, reference)]

    def _end(self, encoded: bytes) -> list[Piece]:
        try:
            answer = orjson.loads(answer_json(encoded))
        except AppError as error:
            return [error]
        whole = answer["message"]["content"]
        rest = whole[len(self._said) :] if whole.startswith(self._said) else BETWEEN + whole
        return [*([Text(rest)] if rest else []), Answered(answer)]
