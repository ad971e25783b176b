"""Calls that followers see as the model writes them: those that nothing can hold back or deny. What is shown is a
literal prefix of the arguments that are recorded. If the call comes out differently, it is dropped and not corrected.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Final

import orjson
from pydantic_core import from_json

from segue.agent.state import TurnContext
from segue.domain.events import ArgumentsAdded, CallBegun, CallGivenUp
from segue.models.reply import CallPiece, ModelCall
from segue.tools.normalize import clean

MAX_SHOWN_BYTES: Final = 16_000  # of the arguments of one call, before it is complete
MAX_READ_CHARS: Final = 32_000  # of what the model has written, with spaces and escapes
READ_AGAIN: Final = 64  # the arguments so far are read again once they have grown by this part of their length
_CLEANED: Final = re.compile(r"(?<!\\)(?:\\\\)*\\[bfu]|\x7f")  # control characters, which are not recorded
_MAY_CHANGE: Final = '"}]+-.eE0123456789'  # at the end: what closes, or a number that may go on

CallIds = Callable[[str], str | None]  # an id for a call of this tool, None if it may not be shown yet


@dataclass(slots=True)
class _Begun:
    """`written` is what the model wrote so far, `read` how much of it was read last, `shown` what followers have."""

    id: str | None
    name: str
    written: str = ""
    read: int = 0
    shown: str = ""

    def add(self, args: str) -> str:
        """Returns what can be shown now."""
        if self.id is None or len(self.written) > MAX_READ_CHARS:
            return ""
        self.written += args
        if len(self.written) - self.read <= self.read // READ_AGAIN or len(self.written) > MAX_READ_CHARS:
            return ""
        self.read = len(self.written)
        text = _beginning(self.written)
        if not text.startswith(self.shown):
            return ""
        added, self.shown = text[len(self.shown) :], text
        return added

    def becomes(self, call: ModelCall) -> bool:
        """Returns whether what was shown is the beginning of the call as it is recorded."""
        is_same = bool(self.shown) and self.name == call.name
        return is_same and orjson.dumps(clean(call.args or {})).decode().startswith(self.shown)


class StreamedCalls:
    """`new_ids` makes what gives the calls of an answer their ids; `message_id` gives the message that makes them."""

    def __init__(self, context: TurnContext, new_ids: Callable[[], CallIds], message_id: Callable[[], str]) -> None:
        self._context = context
        self._new_ids = new_ids
        self._id_of = new_ids()
        self._message_id = message_id
        self._begun: dict[int, _Begun] = {}

    def add(self, piece: CallPiece) -> None:
        call = self._begun.get(piece.at)
        if call is None:
            call = self._begun[piece.at] = _Begun(self._id_of(piece.name), piece.name)
        is_first = not call.shown
        if not (added := call.add(piece.args)) or call.id is None:
            return
        if is_first:
            self._context.emit(CallBegun(call.id, call.name, self._message_id()))
        self._context.emit(ArgumentsAdded(call.id, added))

    def completed(self, calls: Iterable[ModelCall]) -> tuple[ModelCall, ...]:
        """Returns the calls of the reply, those that were shown with their ids. Gives up the others."""
        completed = list(calls)
        for at, call in enumerate(completed):
            begun = self._begun.get(at)
            if begun is not None and begun.becomes(call):
                completed[at] = replace(call, id=begun.id)
                del self._begun[at]
        self.give_up()
        return tuple(completed)

    def give_up(self) -> None:
        for call in self._begun.values():
            if call.id is not None and call.shown:
                self._context.emit(CallGivenUp(call.id))
        self._begun.clear()
        self._id_of = self._new_ids()


def _beginning(written: str) -> str:
    """Returns what is certain of the arguments that begin so: nothing if they are no object, or not to be read yet."""
    try:
        known = from_json(written, allow_partial="trailing-strings")
        text = orjson.dumps(known)[:MAX_SHOWN_BYTES].decode(errors="ignore") if isinstance(known, dict) else ""
    except (ValueError, TypeError):  # no JSON; an integer beyond 64 bits
        return ""
    cleaned = _CLEANED.search(text)
    return text[: cleaned.start() if cleaned else None].rstrip(_MAY_CHANGE)
