"""Makes what a tool returned storable: clean text, plain JSON, a bounded size. Pure.

Any value is accepted. What JSON cannot hold becomes readable text, so that nothing fails after the effect happened.
"""

import math
from base64 import b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass, is_dataclass, replace
from dataclasses import fields as dataclass_fields
from datetime import date, datetime, time
from enum import Enum
from typing import Any, Literal

import orjson
from pydantic import BaseModel

from segue.db.reading import UNREADABLE, read_json
from segue.tools.parts import IMAGES, UNKNOWN, BinaryPart, described

PayloadKind = Literal["json", "text"]

MAX_DEPTH = 64
MAX_CHARS = 100_000_000
MIN_FILE_BYTES = 64
TOO_DEEP = "[nested too deeply]"
CIRCULAR = "[contains itself]"
TOO_MUCH = "[too much to keep]"
_CONTROL = [chr(code) for code in (*range(0x20), 0x7F) if chr(code) not in "\t\n\r"]
_INT64 = 2**63
_DECIMAL_BITS = 10_000  # Python refuses to write numbers much longer than this in decimal


@dataclass(frozen=True, slots=True)
class Payload:
    """`text` is what is stored: the text itself, or the JSON of `value`. `cut_from` is the full size, if cut.

    `shown` is the value with its `parts` described, and `shown_text` what the model sees of it. Of what was read in
    another process, `value` and `shown` are None, unless it shows as a text, and `parts` are its images only.
    """

    kind: PayloadKind
    text: str
    value: Any
    size_bytes: int
    cut_from: int | None
    shown: Any
    shown_text: str
    parts: tuple[BinaryPart, ...]


@dataclass(frozen=True, slots=True)
class Unread:
    """An answer too large to be read where other work goes on. `read`, a function of a module, gives its value."""

    text: str
    read: Callable[[str], object]


def make_payload(output: object, *, max_bytes: int) -> Payload:
    """Returns the value cleaned and capped. What is too large is kept without its parts; JSON that is still over
    `max_bytes` becomes text: half a document cannot be parsed.
    """
    value = clean(output)
    encoded = _encoded(value)
    if (size := len(encoded)) <= max_bytes:
        return payload_of(value, encoded.decode())
    value, _ = described(value, kept=False)
    encoded = _encoded(value)
    if len(encoded) <= max_bytes:
        return payload_of(value, encoded.decode(), cut_from=size)
    note = f"\n[cut by Segue: {max_bytes} of {size} bytes kept]"
    kept = encoded[:max_bytes].decode(errors="ignore") + note
    return payload_of(kept, kept, cut_from=size)


def payload_of(value: Any, text: str, *, cut_from: int | None = None) -> Payload:
    """Returns the payload of a clean value that is stored as this text."""
    shown, parts = described(value)
    return Payload(
        kind="text" if isinstance(value, str) else "json",
        text=text,
        value=value,
        size_bytes=len(text.encode()),
        cut_from=cut_from,
        shown=shown,
        shown_text=text if shown is value else _encoded(shown).decode(),
        parts=parts,
    )


def value_in(text: str, *, is_json: bool) -> Any:
    """Returns a stored value. JSON that cannot be read is taken for text."""
    value = read_json(text) if is_json else text
    return text if value is UNREADABLE else value


def read_payload(kind: PayloadKind, text: str) -> Payload:
    """Returns a stored payload, as `without_value` does."""
    return without_value(payload_of(value_in(text, is_json=kind == "json"), text))


def without_value(payload: Payload) -> Payload:
    """Returns the payload as a child process hands it over: without what takes long to be taken."""
    shown = payload.shown if isinstance(payload.shown, str) else None
    images = tuple(part for part in payload.parts if part.kind in IMAGES)
    return replace(payload, value=None, shown=shown, parts=images)


def no_payload() -> Payload:
    return payload_of("", "")


def _encoded(value: Any) -> bytes:
    return value.encode() if isinstance(value, str) else orjson.dumps(value)


def clean(value: object, *, max_chars: int = MAX_CHARS) -> Any:
    """Returns plain JSON: no NUL, control characters, lone surrogates, NaN, huge integers or endless structures.

    A structure of more than about `max_chars` characters is cut short: a few lists that share their items can be
    larger than any memory when they are written out.
    """
    if isinstance(value, str):
        return clean_text(value)
    return _Cleaning(max_chars).plain(value, ())


def clean_text(text: str) -> str:
    """Returns the text without control characters other than tab and line ends; lone surrogates become U+FFFD."""
    if text.isascii():
        return str(text) if text.isprintable() else _without_control(text)
    return _without_control(text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace"))


def _without_control(text: str) -> str:
    for character in _CONTROL:  # a regular expression takes ten times as long, also where there is none to remove
        if character in text:
            text = text.replace(character, "")
    return text


@dataclass(slots=True)
class _Cleaning:
    left: int

    def plain(self, value: Any, inside: tuple[int, ...]) -> Any:
        """`inside` holds the ids of the containers around the value."""
        # JSON's own types first: a result may have a million of them.
        self.left -= 1
        if self.left < 0:
            return TOO_MUCH
        kind = type(value)
        if kind is str:
            return self._text(value)
        if value is None or kind is bool or (kind is int and -_INT64 <= value < _INT64):
            return value
        if kind is float and math.isfinite(value):
            return value
        return self._container(value, inside) if kind is dict or kind is list else self._made_plain(value, inside)

    def _made_plain(self, value: object, inside: tuple[int, ...]) -> Any:  # noqa: PLR0911 (one line per kind of value)
        match value:
            case Enum():
                return self.plain(value.value, inside)
            case str():
                return self._text(value)
            case int():
                return self._integer(value)
            case float():
                return float(value) if math.isfinite(value) else str(float(value))
            case datetime() | date() | time():
                return value.isoformat()
            case bytes() | bytearray() | memoryview():
                return self._bytes(bytes(value))
            case _:
                return self._container(value, inside)

    def _container(self, value: object, inside: tuple[int, ...]) -> Any:
        if id(value) in inside or len(inside) >= MAX_DEPTH:
            return CIRCULAR if id(value) in inside else TOO_DEEP
        inside = (*inside, id(value))
        match value:
            case dict() | Mapping():
                return {self._key(key): self.plain(item, inside) for key, item in value.items()}
            case list() | tuple() | set() | frozenset():
                return [self.plain(item, inside) for item in value]
            case BaseModel():
                return self.plain(value.model_dump(mode="python"), inside)
            case _ if is_dataclass(value) and not isinstance(value, type):
                return self.plain({each.name: getattr(value, each.name) for each in dataclass_fields(value)}, inside)
            case _:
                return self._text(str(value))

    def _text(self, text: str) -> str:
        self.left -= len(text)
        if self.left < 0:
            return TOO_MUCH
        return text if type(text) is str and text.isascii() and text.isprintable() else clean_text(text)

    def _bytes(self, content: bytes) -> str:
        """A file becomes a `data:` text, which is a part of the result; a few bytes are none."""
        if len(content) < MIN_FILE_BYTES:
            return f"[{len(content)} bytes of binary data]"
        return self._text(f"data:{UNKNOWN};base64,{b64encode(content).decode()}")

    def _key(self, key: object) -> str:
        return self._text(key) if isinstance(key, str) else str(self.plain(key, ()))

    def _integer(self, number: int) -> int | str:
        if -_INT64 <= number < _INT64:
            return int(number)
        return str(int(number)) if number.bit_length() <= _DECIMAL_BITS else hex(number)
