"""What a tool returned, made storable: clean text, plain JSON, a bounded size. Pure.

Anything is accepted. What JSON cannot hold is kept in a readable form, so that nothing fails after the effect happened.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, is_dataclass
from dataclasses import fields as dataclass_fields
from datetime import date, datetime, time
from typing import Any, Literal

import orjson
from pydantic import BaseModel

MAX_DEPTH = 64
_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_INT64 = 2**63


@dataclass(frozen=True, slots=True)
class Payload:
    """`text` is what is stored: the text itself, or JSON. `cut_from` is the full size in bytes where it was cut."""

    kind: Literal["json", "text"]
    text: str
    size_bytes: int
    cut_from: int | None = None

    def value(self) -> Any:
        return orjson.loads(self.text) if self.kind == "json" else self.text


def make_payload(output: object, *, max_bytes: int) -> Payload:
    """Cleans and caps. JSON over `max_bytes` becomes text, cut, since half a document is no document."""
    cleaned = clean(output)
    if isinstance(cleaned, str):
        return _capped("text", cleaned, max_bytes)
    return _capped("json", orjson.dumps(cleaned).decode(), max_bytes)


def _capped(kind: Literal["json", "text"], text: str, max_bytes: int) -> Payload:
    encoded = text.encode()
    if len(encoded) <= max_bytes:
        return Payload(kind, text, len(encoded))
    note = f"\n[cut by Segue: {max_bytes} of {len(encoded)} bytes kept]"
    kept = encoded[:max_bytes].decode(errors="ignore") + note
    return Payload("text", kept, len(kept.encode()), cut_from=len(encoded))


def clean(value: object, depth: int = 0) -> Any:  # noqa: PLR0911 (one line per kind of value)
    """Plain JSON of any value: no NUL, control characters, lone surrogates, NaN, huge integers or endless depth."""
    if depth > MAX_DEPTH:
        return "[nested too deeply]"
    match value:
        case None | bool():
            return value
        case str():
            return clean_text(value)
        case int():
            return value if -_INT64 <= value < _INT64 else clean_text(hex(value))
        case float():
            return value if math.isfinite(value) else str(value)
        case Mapping():
            return {clean_text(str(key)): clean(item, depth + 1) for key, item in value.items()}
        case list() | tuple() | set() | frozenset():
            return [clean(item, depth + 1) for item in value]
        case _:
            return _readable(value, depth)


def clean_text(text: str) -> str:
    """Without control characters but tab and line ends; lone surrogates become U+FFFD."""
    if not text.isascii():
        text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return _CONTROL.sub("", text)


def _readable(value: object, depth: int) -> Any:
    match value:
        case datetime() | date() | time():
            return value.isoformat()
        case bytes() | bytearray() | memoryview():
            return f"[{len(bytes(value))} bytes of binary data]"
        case BaseModel():
            return clean(value.model_dump(mode="python"), depth + 1)
        case _ if is_dataclass(value) and not isinstance(value, type):
            return clean({field.name: getattr(value, field.name) for field in dataclass_fields(value)}, depth + 1)
        case _:
            return clean_text(str(value))
