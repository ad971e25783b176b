"""What in a result a later call may need: ids, addresses, names of files. Pure."""

import re
from collections.abc import Iterator
from functools import lru_cache
from itertools import islice
from typing import Any

MAX_IDENTIFIERS = 20
MAX_IDENTIFIER_CHARS = 300
MAX_IDENTIFIERS_CHARS = 700
MAX_LEAVES = 10_000
MAX_SEARCHED_CHARS = 50_000
MAX_KEY_CHARS = 60

_KEY_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_ID_WORDS = frozenset({"id", "ids", "uuid", "uuids", "guid", "number", "numbers", "key", "keys"})
_ADDRESS_WORDS = frozenset({"url", "urls", "uri", "uris", "link", "links", "href", "path", "paths"})
_FILE_WORDS = frozenset({"file", "files", "filename", "filenames", "filepath", "folder", "directory"})
_FILE_NAME = re.compile(r"(?=[^\s@/\\.]*[^\W\d])[^\s@]{0,200}[^\s@/\\.]\.[A-Za-z][A-Za-z0-9]{0,7}")
# Words need no spaces around them in every script, so an id ends where its own letters do.
_ID_IN_TEXT = re.compile(
    r"https?://[^\s\"'<>)\]。，；：！？、،؛؟]*[^\s\"'<>)\]。，；：！？、،؛؟.,;:!?]"
    r"|(?<![0-9A-Za-z_-])[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}(?![0-9A-Za-z_-])"
    r"|(?<![0-9A-Za-z_/-])[A-Za-z]{2,12}[-_#](?=[0-9a-zA-Z]*[0-9])[0-9a-zA-Z]{3,40}(?![0-9A-Za-z_])"
)


def identifiers(value: Any) -> tuple[str, ...]:
    """Returns what a later call may need, each once: ids, ids of other things, addresses, texts that look like ids.

    Identifiers of one kind keep the order of the result, so that the second id belongs to the second item.
    """
    found: tuple[dict[str, None], ...] = ({}, {}, {}, {})
    for key, leaf in islice(_leaves(None, value), MAX_LEAVES):
        for kind, text in _candidates(key, leaf):
            if 0 < len(text) <= MAX_IDENTIFIER_CHARS:
                found[kind][text] = None
        if len(found[0]) == MAX_IDENTIFIERS:
            break
    unique = dict.fromkeys(text for kind in found for text in kind)
    return tuple(_within(unique, MAX_IDENTIFIERS_CHARS))[:MAX_IDENTIFIERS]


def object_with(identifier: str, value: Any) -> dict[str, Any] | None:
    """Returns the object in a result whose own id this is, the first of several."""
    for item in islice(_objects(value), MAX_LEAVES):
        keys = [key for key in item if len(key) <= MAX_KEY_CHARS]
        own = [key for key in keys if kind_of_key(key) == 0] or [key for key in keys if kind_of_key(key) == 1]
        if any(not isinstance(item[key], bool) and str(item[key]) == identifier for key in own):
            return item
    return None


def _objects(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield value
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _objects(item)


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
    kind = kind_of_key(key) if key and len(key) <= MAX_KEY_CHARS else None
    if kind is not None:
        yield kind, str(leaf)
    elif isinstance(leaf, str) and key is None:
        yield from ((3, match.group()) for match in _ID_IN_TEXT.finditer(leaf[:MAX_SEARCHED_CHARS]))
    elif isinstance(leaf, str) and len(leaf) <= MAX_IDENTIFIER_CHARS and _ID_IN_TEXT.fullmatch(leaf):
        yield 3, leaf
    if isinstance(leaf, str) and kind is None and len(leaf) <= MAX_IDENTIFIER_CHARS and _FILE_NAME.fullmatch(leaf):
        yield 3, leaf


@lru_cache(maxsize=4096)
def kind_of_key(key: str) -> int | None:
    """Returns 0 for the key of an id, 1 for that of another thing's id, 2 for an address or a file, None for others."""
    words = _KEY_WORD.findall(key)
    last = words[-1].lower() if words else ""
    if last in _ID_WORDS:
        return 0 if len(words) == 1 else 1
    return 2 if last in _ADDRESS_WORDS or last in _FILE_WORDS else None
