"""What is said of a result without showing it: one line, a bounded preview, the identifiers it contains. Pure."""

import re
from collections.abc import Iterator
from itertools import islice
from typing import Any

from backend.tools.payload import Payload

MAX_SUMMARY_CHARS = 200
MAX_NAME_CHARS = 60
MAX_IDENTIFIERS = 20
MAX_IDENTIFIER_CHARS = 300
MAX_IDENTIFIERS_CHARS = 1000
MAX_LEAVES = 20_000
MAX_SEARCHED_CHARS = 50_000

_NAMES = ("subject", "title", "name", "summary", "label", "url", "id")
_KEY_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_ID_WORDS = frozenset({"id", "ids", "uuid", "uuids", "guid", "number", "numbers", "key", "keys"})
_PLACE_WORDS = frozenset({"url", "urls", "uri", "uris", "link", "links", "href", "path", "paths"})
_ID_IN_TEXT = re.compile(
    r"https?://[^\s\"'<>)\]。，；：！？、]*[^\s\"'<>)\]。，；：！？、.,;:!?]"
    r"|\b[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}\b"
    r"|(?<![\w/-])[A-Za-z]{2,12}[-_#](?=[0-9a-zA-Z]*\d)[0-9a-zA-Z]{3,40}\b"
)


def summarise(tool_name: str, payload: Payload, error: str | None) -> str:
    """One line of at most MAX_SUMMARY_CHARS: how much there is and what it is called."""
    if error:
        return one_line(error if error.startswith(tool_name) else f"{tool_name} failed: {error}", MAX_SUMMARY_CHARS)
    text = _describe(payload.value())
    return one_line(f"cut at the size limit: {text}" if payload.cut_from else text, MAX_SUMMARY_CHARS)


def preview(text: str, *, max_chars: int) -> str:
    """The beginning, in whole lines where lines allow, never longer than `max_chars`."""
    if len(text) <= max_chars:
        return text
    head = text[: max_chars - 1]
    whole_lines = head if text[len(head)] == "\n" else head.rpartition("\n")[0]
    return (whole_lines if len(whole_lines) >= max_chars // 2 else head).rstrip() + "…"


def identifiers(payload: Payload) -> tuple[str, ...]:
    """What a later call may need, each once: ids, then ids of other things, then places, then what looks like an id.

    Of one kind they stand in the order of the result, so that the second id belongs to its second item.
    """
    found: tuple[list[str], ...] = ([], [], [], [])
    for key, leaf in islice(_leaves(None, payload.value()), MAX_LEAVES):
        for kind, text in _candidates(key, leaf):
            if 0 < len(text) <= MAX_IDENTIFIER_CHARS:
                found[kind].append(text)
    unique = dict.fromkeys(text for kind in found for text in kind)
    return tuple(_within(unique, MAX_IDENTIFIERS_CHARS))[:MAX_IDENTIFIERS]


def _within(texts: dict[str, None], max_chars: int) -> Iterator[str]:
    for text in texts:
        max_chars -= len(text)
        if max_chars < 0:
            return
        yield text


def _leaves(key: str | None, value: Any) -> Iterator[tuple[str | None, Any]]:
    """Every value that contains no other, under the nearest key; a list's items stand under the key of the list."""
    match value:
        case dict():
            for name, item in value.items():
                yield from _leaves(name, item)
        case list():
            for item in value:
                yield from _leaves(key, item)
        case _:
            yield key, value


def _candidates(key: str | None, leaf: Any) -> Iterator[tuple[int, str]]:
    if isinstance(leaf, bool) or not isinstance(leaf, str | int):
        return
    words = _KEY_WORD.findall(key or "")
    last = words[-1].lower() if words else ""
    if last in _ID_WORDS:
        yield (0 if len(words) == 1 else 1), str(leaf)
    elif last in _PLACE_WORDS:
        yield 2, str(leaf)
    elif isinstance(leaf, str) and key is None:
        yield from ((3, match.group()) for match in _ID_IN_TEXT.finditer(leaf[:MAX_SEARCHED_CHARS]))
    elif isinstance(leaf, str) and len(leaf) <= MAX_IDENTIFIER_CHARS and _ID_IN_TEXT.fullmatch(leaf):
        yield 3, leaf


def _describe(value: Any) -> str:
    match value:
        case None:
            return "no content"
        case str():
            return _describe_text(value)
        case list():
            return _describe_list("items", value, len(value))
        case dict():
            return _describe_object(value)
        case _:
            return str(value)


def _describe_text(text: str) -> str:
    text = text.strip()
    if not text:
        return "no content"
    lines = text.count("\n") + 1
    if lines > 1:
        return f"{len(text)} characters in {lines} lines: {text.partition(chr(10))[0]}"
    return text if len(text) <= MAX_SUMMARY_CHARS else f"{len(text)} characters: {text}"


def _describe_object(value: dict[str, Any]) -> str:
    lists = [(key, item) for key, item in value.items() if isinstance(item, list)]
    if len(lists) == 1:
        noun, items = lists[0]
        total = value.get("total")
        return _describe_list(noun, items, total if type(total) is int else len(items))
    name = _name_of(value)
    keys = ", ".join(list(value)[:12])
    return f"{name} — {keys}" if name else f"object with {keys}" if keys else "empty object"


def _describe_list(noun: str, items: list[Any], total: int) -> str:
    if not items:
        return f"no {noun}"
    count = f"{len(items)} of {total} {noun}" if total > len(items) else f"{len(items)} {noun}"
    names = [name for name in map(_name_of, items[:5]) if name]
    if names:
        return f"{count}: {', '.join(names)}{', …' if len(items) > len(names) else ''}"
    return f"{count} with {', '.join(items[0])}" if isinstance(items[0], dict) and items[0] else count


def _name_of(item: Any) -> str | None:
    match item:
        case dict():
            named = (item[key] for key in _NAMES if isinstance(item.get(key), str | int | float))
            return next((one_line(str(name), MAX_NAME_CHARS) for name in named if str(name).strip()), None)
        case str() | int() | float():
            return one_line(str(item), MAX_NAME_CHARS)
        case _:
            return None


def one_line(text: str, limit: int) -> str:
    """One line: every run of white space becomes a space. What is far beyond the limit is not even looked at."""
    flat = " ".join(text[: 10 * limit].split())
    return flat if len(flat) <= limit and len(text) <= 10 * limit else flat[: limit - 1].rstrip() + "…"
