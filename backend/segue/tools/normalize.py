"""Makes a tool's result storable: clean text, plain JSON, a bounded size; and finds images and files in it. Pure.

Any value is accepted, so that nothing fails after the effect has happened. A result is stored as it came; when it is
shown, numbered descriptions replace its binary parts.
"""

import math
import re
from base64 import b64decode, b64encode
from binascii import Error as NotBase64
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, is_dataclass, replace
from dataclasses import fields as dataclass_fields
from datetime import date, datetime, time
from enum import Enum
from operator import is_not
from typing import Any, Final, Literal
from urllib.parse import unquote_to_bytes

import orjson
from pydantic import BaseModel

from segue.domain.ids import UNREADABLE, read_json

MIN_CHARS: Final = 200
MIN_DECLARED_CHARS: Final = 32
MIN_ALPHABET: Final = 40  # different characters: base64 of anything but a monotonous picture has more
UNKNOWN: Final = "application/octet-stream"
IMAGES: Final = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
PDF: Final = "application/pdf"

_GONE = object()
# The last word of a key whose value is binary if a media type stands beside it.
_HOLDING = re.compile(r"(?i)(?:data|blob|base64|b64|bytes|content|body|image|audio|file)\Z")
_MEDIA_TYPE = re.compile(r"[\w.+-]{1,60}/[\w.+-]{1,100}", re.ASCII)
_BASE64 = re.compile(r"(?:[A-Za-z0-9+/]++|[A-Za-z0-9_-]++|(?:[A-Za-z0-9+/]{60,76}\r?\n)++[A-Za-z0-9+/]{0,76})={0,2}\s?")
_HEAD_OF_URI = r"data:([\w.+-]{1,60}/[\w.+-]{1,100})(?:;[\w.-]{1,40}=[^;,\s]{0,100}){0,9}"
_DATA_URI = re.compile(_HEAD_OF_URI + r"(;base64)?,(\S*)", re.ASCII)
_DATA_URI_IN_TEXT = re.compile(_HEAD_OF_URI + r";base64,([A-Za-z0-9+/_-]{32,}={0,2})", re.ASCII)
_PLAIN = str.maketrans("-_", "+/")
_BEGINNINGS: Final = (  # how files begin
    (re.compile(rb"\x89PNG\r\n\x1a\n"), "image/png"), (re.compile(rb"\xff\xd8\xff"), "image/jpeg"),
    (re.compile(rb"GIF8[79]a"), "image/gif"), (re.compile(rb"RIFF....WEBP", re.DOTALL), "image/webp"),
    (re.compile(rb"RIFF....WAVE", re.DOTALL), "audio/wav"), (re.compile(rb"ID3"), "audio/mpeg"),
    (re.compile(rb"OggS"), "audio/ogg"), (re.compile(rb"%PDF-"), PDF),
    (re.compile(rb"PK\x03\x04"), "application/zip"), (re.compile(rb"\x1f\x8b\x08"), "application/gzip"),
    (re.compile(rb"....ftyp(?:hei|mif)", re.DOTALL), "image/heic"), (re.compile(rb"II\*\0|MM\0\*"), "image/tiff"),
    (re.compile(rb"{\\rtf"), "application/rtf"),
)  # fmt: skip

MAX_DEPTH = 64
MAX_CHARS = 100_000_000
MIN_FILE_BYTES = 64
TOO_DEEP = "[nested too deeply]"
CIRCULAR = "[contains itself]"
TOO_MUCH = "[too much to keep]"
_INT64 = 2**63
_DECIMAL_BITS = 10_000  # Python refuses to write numbers much longer than this in decimal


@dataclass(frozen=True, slots=True)
class BinaryPart:
    """`encoded` is base64 without line breaks. `kind` is what its beginning shows, None if that shows nothing."""

    media_type: str
    encoded: str
    kind: str | None

    @property
    def size_bytes(self) -> int:
        return len(self.encoded.rstrip("=")) * 3 // 4

    def content(self) -> bytes:
        return _decoded(self.encoded)


def described(value: Any, *, kept: bool = True) -> tuple[Any, tuple[BinaryPart, ...]]:
    """Returns the value with a description in the place of each part, and the parts. A value without any is returned
    itself. The descriptions have the numbers of the parts, unless these are not `kept`.
    """
    describing = _Describing(kept)
    return describing.shown(value), tuple(describing.parts)


@dataclass(slots=True)
class _Describing:
    kept: bool
    parts: list[BinaryPart] = field(default_factory=list)

    def shown(self, value: Any, *, declared: str | None = None) -> Any:
        match value:
            case str() if len(value) >= MIN_DECLARED_CHARS:
                return self._text(value, declared)
            case dict():
                return self._object(value)
            case list():
                shown = [self.shown(item) if _may_hold(item) else item for item in value]
                return shown if any(map(is_not, shown, value)) else value
            case _:
                return value

    def _object(self, value: dict[str, Any]) -> dict[str, Any]:
        """The description of a part joins the object that declares its media type, in the place of the content."""
        declared: str | None = None
        changed: dict[str, Any] = {}
        about: dict[str, Any] = {}
        for key, item in value.items():
            if not _may_hold(item):
                continue
            declared = declared or _declared_in(value)
            holds = declared if _HOLDING.search(key) else None
            shown = self.shown(item, declared=holds)
            if shown is item:
                continue
            if holds and not about and isinstance(item, str) and isinstance(shown, dict):
                about = {name: each for name, each in shown.items() if each != declared}
                changed[key] = _GONE
            else:
                changed[key] = shown
        if not changed:
            return value
        merged = {key: changed.get(key, item) for key, item in value.items()}
        return {key: item for key, item in merged.items() if item is not _GONE} | about

    def _text(self, text: str, declared: str | None) -> Any:
        if (found := _part_of(text, declared)) is not None:
            return self._about(found)
        return _DATA_URI_IN_TEXT.sub(self._about_in_text, text) if ";base64," in text else text

    def _about_in_text(self, uri: re.Match[str]) -> str:
        about = self._about(_part(uri[2], uri[1]))
        number = f"part {about['part']}: " if "part" in about else ""
        return f"[{number}{about['media_type']}, {about['size_bytes']} bytes]"

    def _about(self, part: BinaryPart) -> dict[str, Any]:
        self.parts.append(part)
        number = {"part": len(self.parts) - 1} if self.kept else {"kept": False}
        return {**number, "media_type": part.media_type, "size_bytes": part.size_bytes}


def _may_hold(item: Any) -> bool:
    """Decides quickly: a result may have a million values."""
    kind = type(item)
    return len(item) >= MIN_DECLARED_CHARS if kind is str else kind is dict or kind is list


def _declared_in(value: Mapping[str, Any]) -> str | None:
    for name in ("mime_type", "mimeType", "media_type", "mediaType", "content_type", "contentType"):
        if isinstance(declared := value.get(name), str) and _MEDIA_TYPE.fullmatch(declared):
            return declared
    return UNKNOWN if value.get("encoding") == "base64" else None


def _part_of(text: str, declared: str | None) -> BinaryPart | None:
    """Returns the part that a text is, as a whole."""
    if text.startswith("data:") and (uri := _DATA_URI.fullmatch(text)):
        if not uri[2]:
            return _part(b64encode(unquote_to_bytes(uri[3])).decode(), uri[1])
        return _part(uri[3], uri[1]) if _BASE64.fullmatch(uri[3]) else None
    is_declared = declared is not None and not declared.startswith("text/")
    if len(text) < MIN_CHARS and not is_declared:
        return None
    if not _BASE64.fullmatch(text):
        return None
    sample, kinds = text[:4000], (str.isupper, str.islower, str.isdigit)
    is_varied = len(set(sample)) >= MIN_ALPHABET and all(any(map(kind, sample)) for kind in kinds)
    if not (is_declared or _kind_of(text) or is_varied):
        return None
    part = _part(text, declared)
    return None if len(part.encoded.rstrip("=")) % 4 == 1 else part


def _part(text: str, declared: str | None) -> BinaryPart:
    encoded, kind = text if text.isprintable() else "".join(text.split()), _kind_of(text)
    return BinaryPart(declared if declared not in (None, UNKNOWN) else kind or _text_or_unknown(encoded), encoded, kind)


def _kind_of(encoded: str) -> str | None:
    return kind_of_bytes(_decoded(encoded[:60]))


def kind_of_bytes(content: bytes) -> str | None:
    """Returns the media type that a file's beginning shows, None if that shows nothing."""
    return next((kind for begins, kind in _BEGINNINGS if begins.match(content)), None)


def _text_or_unknown(encoded: str) -> str:
    with suppress(UnicodeDecodeError):
        _decoded(encoded).decode()
        return "text/plain"
    return UNKNOWN


def _decoded(encoded: str) -> bytes:
    """Takes both alphabets, with and without padding; returns b"" for anything but base64."""
    plain = encoded.rstrip("=").translate(_PLAIN)
    with suppress(NotBase64):
        return b64decode(plain + "=" * (-len(plain) % 4))
    return b""


PayloadKind = Literal["json", "text"]

_CONTROL = [chr(code) for code in (*range(0x20), 0x7F) if chr(code) not in "\t\n\r"]


@dataclass(frozen=True, slots=True)
class Payload:
    """`value` and `shown` are None for one read in another process, unless it shows as a text."""

    kind: PayloadKind
    text: str  # what is stored: the text itself, or the JSON of `value`
    value: Any
    size_bytes: int
    cut_from: int | None  # the full size, if it is cut
    shown: Any  # the value with its `parts` described
    shown_text: str  # what the model sees of it
    parts: tuple[BinaryPart, ...]  # of what was read in another process, its images only


@dataclass(frozen=True, slots=True)
class Unread:
    """An answer too large to be read where other work goes on. `read`, a function of a module, gives its value."""

    text: str
    read: Callable[[str], object]


def make_payload(output: object, *, max_bytes: int) -> Payload:
    """Returns the value cleaned and capped: without its parts, then as text, since half a document cannot be parsed."""
    value = clean(output)
    encoded = _encoded(value)
    if (size := len(encoded)) <= max_bytes:
        return payload_of(value, encoded.decode())
    value, _ = described(value, kept=False)
    encoded = _encoded(value)
    if len(encoded) <= max_bytes:
        return payload_of(value, encoded.decode(), cut_from=size)
    kept = encoded[:max_bytes].decode(errors="ignore") + f"\n[cut by Segue: {max_bytes} of {size} bytes kept]"
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
    """Returns the payload as a child process hands it over: without the value, which is slow to pass on."""
    shown = payload.shown if isinstance(payload.shown, str) else None
    return replace(payload, value=None, shown=shown, parts=tuple(part for part in payload.parts if part.kind in IMAGES))


def no_payload() -> Payload:
    return payload_of("", "")


def _encoded(value: Any) -> bytes:
    return value.encode() if isinstance(value, str) else orjson.dumps(value)


def clean(value: object, *, max_chars: int = MAX_CHARS) -> Any:
    """Returns plain JSON: no NUL, control characters, lone surrogates, NaN, huge integers or endless structures. About
    `max_chars` characters are kept: lists that share their items can be larger than memory when written out.
    """
    return clean_text(value) if isinstance(value, str) else _Cleaning(max_chars).plain(value, ())


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
        self.left -= 1  # JSON's own types first: a result may have a million of them
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
            case int() if -_INT64 <= value < _INT64:
                return int(value)
            case int():
                return str(int(value)) if value.bit_length() <= _DECIMAL_BITS else hex(value)
            case float():
                return float(value) if math.isfinite(value) else str(float(value))
            case datetime() | date() | time():
                return value.isoformat()
            case bytes() | bytearray() | memoryview():
                content = bytes(value)
                if len(content) < MIN_FILE_BYTES:
                    return f"[{len(content)} bytes of binary data]"
                return self._text(f"data:{UNKNOWN};base64,{b64encode(content).decode()}")  # a part of the result
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

    def _key(self, key: object) -> str:
        return self._text(key) if isinstance(key, str) else str(self.plain(key, ()))
