"""What is said of a result without showing it: one line, a bounded preview, the identifiers it contains. Pure."""

import re
from collections.abc import Iterator
from typing import Any

from backend.tools.payload import Payload

MAX_SUMMARY_CHARS = 200
MAX_IDENTIFIERS = 20
MAX_IDENTIFIER_CHARS = 200

_NAMES = ("subject", "title", "name", "summary", "label", "url", "id")
_ID_KEY = re.compile(r"(?:^|_)(?:id|ids|uuid|url|uri|path|number|key)$|[a-z](?:Id|ID|Url|URL|Uuid|Path|Number)$")
_ID_IN_TEXT = re.compile(
    r"https?://[^\s\"'<>)\]]+"
    r"|\b[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}\b"
    r"|\b[A-Za-z]{2,12}[-_#](?=[0-9a-zA-Z]*\d)[0-9a-zA-Z]{3,40}\b"
)


def summarise(tool_name: str, payload: Payload, error: str | None) -> str:
    """One line of at most MAX_SUMMARY_CHARS: how much there is and what it is called."""
    if error:
        return _clip(f"{tool_name} failed: {error}", MAX_SUMMARY_CHARS)
    text = _describe(payload.value())
    return _clip(f"{text} (cut at the size limit)" if payload.cut_from else text, MAX_SUMMARY_CHARS)


def preview(payload: Payload, *, max_chars: int) -> str:
    """The beginning, in whole lines where lines allow, never longer than `max_chars`."""
    text = payload.text
    if len(text) <= max_chars:
        return text
    head = text[: max_chars - 1]
    whole_lines = head.rpartition("\n")[0]
    return (whole_lines if len(whole_lines) >= max_chars // 2 else head).rstrip() + "…"


def identifiers(payload: Payload) -> tuple[str, ...]:
    """What a later call may need: values of id-like keys, then whatever looks like an id; in order, each once."""
    value = payload.value()
    found = (*_keyed(value), *(_in_text(value) if isinstance(value, str) else ()))
    return tuple(dict.fromkeys(text for text in found if text and len(text) <= MAX_IDENTIFIER_CHARS))[:MAX_IDENTIFIERS]


def _describe(value: Any) -> str:
    match value:
        case "" | None:
            return "no content"
        case str():
            lines = value.count("\n") + 1
            opening = value.strip().partition("\n")[0]
            return f"{len(value)} characters in {lines} lines: {opening}" if lines > 1 else opening
        case list():
            return _describe_list("items", value)
        case dict():
            return _describe_object(value)
        case _:
            return str(value)


def _describe_object(value: dict[str, Any]) -> str:
    lists = [(key, item) for key, item in value.items() if isinstance(item, list)]
    if len(lists) == 1:
        return _describe_list(*lists[0])
    name = _name_of(value)
    keys = ", ".join(list(value)[:12])
    return f"{name} — {keys}" if name else f"object with {keys}" if keys else "empty object"


def _describe_list(noun: str, items: list[Any]) -> str:
    if not items:
        return f"no {noun}"
    names = [name for name in map(_name_of, items[:5]) if name]
    more = ", …" if len(items) > len(names) else ""
    return f"{len(items)} {noun}: {', '.join(names)}{more}" if names else f"{len(items)} {noun}"


def _name_of(item: Any) -> str | None:
    match item:
        case dict():
            return next((_clip(str(item[key]), 60) for key in _NAMES if item.get(key)), None)
        case str() | int() | float():
            return _clip(str(item), 60)
        case _:
            return None


def _keyed(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for key, item in value.items():
            if isinstance(item, str | int) and not isinstance(item, bool) and _ID_KEY.search(key):
                yield str(item)
            elif isinstance(item, list) and _ID_KEY.search(key):
                yield from (str(each) for each in item if isinstance(each, str | int))
            yield from _keyed(item)
    elif isinstance(value, list):
        for item in value:
            yield from _keyed(item)


def _in_text(text: str) -> Iterator[str]:
    yield from (match.group() for match in _ID_IN_TEXT.finditer(text[:50_000]))


def _clip(text: str, limit: int) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= limit else flat[: limit - 1] + "…"
