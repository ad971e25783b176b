"""Finds where each value in a call's arguments came from, among given texts. Pure.

A text has a value only to the letter, and a number by its value. A key that the tool's schema does not name is a value
too. The model is never asked: a tool's text may have told it what to claim.
"""

import json
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final

from segue.domain.approval_rule import USER, is_users

MOST_PLACES: Final = 1_000  # in a text at which a value is looked for
SHORTEST_TEXT: Final = 3  # characters; what is shorter stands in any text
MAX_VALUES: Final = 100
MAX_LEAVES: Final = 10_000
REST: Final = "…"  # the path that stands for all values beyond these
MODEL = "model"

_PLAIN_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_DOT: Final = re.compile(r"\S*\w[.。]")  # the end of a sentence too, if nothing comes behind it
# Of scripts that put spaces between words, a letter beside a value makes it a part of another word.
_LETTER: Final = r"[^\W\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\ud7ff\uf900-\ufaff]"
_BEFORE: Final = re.compile(rf"(?:(?<!{_LETTER})|(?=\w)(?!{_LETTER})|(?<=\bل)(?=[ء-ي]))(?<![.+@-])(?<!\d[,'’])")
_AFTER: Final = rf"(?:(?!{_LETTER})|(?<=\w)(?<!{_LETTER}))(?![@-]|[./\\]\w|[,'’]\d)"

Sources = Sequence[tuple[str, str]]  # an origin and a text each


def values_of(args: Mapping[str, Any]) -> dict[str, str | int | float]:
    """Returns the texts and numbers in arguments that can be looked for, by their path in JMESPath, `to[0].name`."""
    return {path: parts[0] for path, parts in _by_path(args, None).items()}


def origins_of(
    args: Mapping[str, Any], sources: Sources, schema: Mapping[str, Any] | None = None, *, every: bool = False
) -> dict[str, str]:
    """Returns by path the first source that has the value, or `model`. Of a value behind keys that the `schema` does
    not name it is the first of its own and theirs that is not the user's. `every` is for values also that are too short
    to be named, and for those that are no text or number.
    """
    texts = [(origin, unicodedata.normalize("NFC", text)) for origin, text in sources]

    def origin_of(part: object) -> str:
        return next((origin for origin, text in texts if part != REST and stands_in(part, text)), MODEL)

    by_path = _by_path(args, schema, every=every)
    return {path: min(map(origin_of, parts), key=is_users) for path, parts in by_path.items()}


def not_from_user(args: Mapping[str, Any] | None, origins: Mapping[str, str] | None) -> dict[str, dict[str, Any]]:
    """Returns the values that the user neither typed nor said, by their origin and path."""
    found: dict[str, dict[str, Any]] = {}
    for path, value in (*islice(leaves(args or {}), MAX_LEAVES), (REST, REST)):
        origin = (origins or {}).get(path, USER)
        if not is_users(origin):
            found.setdefault(origin, {})[path] = value
    return found


def leaves(value: Any) -> Iterator[tuple[str, Any]]:
    """Yields the scalars and empty containers in a JSON value, each with its path."""
    return ((path, leaf) for path, leaf, _ in _leaves(value))


def open_keys(args: Mapping[str, Any], schema: Mapping[str, Any]) -> dict[str, list[str]]:
    """Returns by path the keys before a value that the schema does not name, of those values that have any."""
    named = set[str]()
    parts: list[Any] = [schema]
    for part in parts:  # which grows by all that is in the schema
        own = part.get("properties") if isinstance(part, dict) else None
        named.update(own if isinstance(own, dict) else ())
        parts.extend(part.values() if isinstance(part, dict) else part if isinstance(part, list) else ())
    found = {path: [key for key in keys if key not in named] for path, _, keys in _leaves(args)}
    return {path: keys for path, keys in found.items() if keys}


def stands_in(value: object, text: str) -> bool:
    """Returns whether a text has a value whole: `ann@a.example` does not stand in `joann@a.example.org`."""
    written = _written(value)
    if not written or written not in text:
        return False
    if isinstance(value, str):
        more = r"(?=\S)" if _DOT.fullmatch(written) else ""
    else:
        more = "0*" if "." in written else r"(?:\.0+)?"
    # Not one pattern: it would take the square of a text's length, and hold the interpreter.
    behind, at = re.compile(more + _AFTER), -1
    for _ in range(MOST_PLACES):
        if (at := text.find(written, at + 1)) < 0:
            return False
        if _BEFORE.match(text, at) and behind.match(text, at + len(written)):
            return True
    return False


def _by_path(args: Mapping[str, Any], schema: Mapping[str, Any] | None, *, every: bool = False) -> dict[str, list[Any]]:
    """Returns by path the texts that have to occur for a value: itself, and keys that the schema does not name."""
    seen = list(islice(_leaves(args), MAX_LEAVES + 1)) if args else []
    unnamed = open_keys(args, schema) if schema is not None else {}
    parts = {path: [*([leaf] if every or _is_value(leaf) else []), *unnamed.get(path, ())] for path, leaf, _ in seen}
    found = [(path, needed) for path, needed in parts.items() if needed]
    return dict(found[:MAX_VALUES]) | ({REST: [REST]} if len(found) > MAX_VALUES or len(seen) > MAX_LEAVES else {})


def _leaves(value: Any, path: str = "", keys: tuple[str, ...] = ()) -> Iterator[tuple[str, Any, tuple[str, ...]]]:
    match value:
        case dict() if value:
            for name, item in value.items():
                step = name if _PLAIN_NAME.fullmatch(name) else json.dumps(name, ensure_ascii=False)
                yield from _leaves(item, f"{path}.{step}" if path else step, (*keys, name))
        case list() if value:
            for index, item in enumerate(value):
                yield from _leaves(item, f"{path}[{index}]", keys)
        case _:
            yield path, value, keys


def _is_value(value: object) -> bool:
    if isinstance(value, str):
        return len(value.strip()) >= SHORTEST_TEXT
    return isinstance(value, int | float) and not isinstance(value, bool)


def _written(value: object) -> str:
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return unicodedata.normalize("NFC", value) if isinstance(value, str) else json.dumps(value)
