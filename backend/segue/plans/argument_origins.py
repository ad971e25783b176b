"""Where each value in the arguments of a call came from, found in the texts that it may have come from. Pure.

Nothing here is claimed by a model: what a tool said may have told the model what to claim.
"""

import json
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final

SHORTEST_TEXT: Final = 3  # characters; what is shorter stands in any text
MAX_VALUES: Final = 100
MAX_LEAVES: Final = 10_000
REST: Final = "…"  # the path that stands for all values beyond these
USER, MODEL = "user", "model"

_FROM_USER: Final = (USER, "message:", "fact:")
_PLAIN_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_QUOTES: Final = " \"'“”«»"
_END_OF_SENTENCE: Final = re.compile(r"(?<=\w)[.,;:!?。，！？]+$")  # `..` at the end of a path is none
# Of scripts that put spaces between words, a letter beside a value makes it a part of another word.
_LETTER: Final = r"[^\W\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\ud7ff\uf900-\ufaff]"
_BEFORE: Final = rf"(?<!{_LETTER})(?<![.+@-])(?<!\d[,'’])"
_AFTER: Final = rf"(?!{_LETTER}|[@-]|[./\\]\w|[,'’]\d)"

Value = str | int | float
Sources = Sequence[tuple[str, str]]  # an origin and a text each


def values_of(args: Mapping[str, Any]) -> dict[str, Value]:
    """Returns the texts and numbers in arguments that can be looked for, by their path in JMESPath, `to[0].name`."""
    seen = list(islice(leaves(args), MAX_LEAVES + 1))
    found = [leaf for leaf in seen[:MAX_LEAVES] if _is_value(leaf[1])]
    left_out = len(found) > MAX_VALUES or len(seen) > MAX_LEAVES
    return dict(found[:MAX_VALUES]) | ({REST: REST} if left_out else {})


def origins_of(args: Mapping[str, Any], sources: Sources) -> dict[str, str]:
    """Returns by path the first source that has the value, or `model`."""
    texts = [(origin, _normal(text)) for origin, text in sources]

    def origin_of(path: str, value: Value) -> str:
        wanted = _wanted(value)
        found = (origin for origin, text in texts if path != REST and stands_in(wanted, text))
        return next(found, MODEL)

    return {path: origin_of(path, value) for path, value in values_of(args).items()}


def not_from_user(args: Mapping[str, Any] | None, origins: Mapping[str, str] | None) -> dict[str, dict[str, Value]]:
    """Returns the values that the user neither typed nor said, by their origin and path."""
    found: dict[str, dict[str, Value]] = {}
    for path, value in values_of(args or {}).items():
        origin = (origins or {}).get(path, USER)
        if not origin.startswith(_FROM_USER):
            found.setdefault(origin, {})[path] = value
    return found


def all_said(args: Mapping[str, Any], sources: Sources) -> bool:
    """Returns whether the user said every value, also those that are too short to be named, or no text or number."""
    texts = [_normal(text) for origin, text in sources if origin.startswith(_FROM_USER)]
    wanted = [_wanted(value) for _, value in islice(leaves(args), MAX_VALUES + 1)] if args else []
    return len(wanted) <= MAX_VALUES and all(any(stands_in(each, text) for text in texts) for each in wanted)


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yields what contains nothing else in a JSON value, each with its path."""
    match value:
        case dict() if value:
            for name, item in value.items():
                step = name if _PLAIN_NAME.fullmatch(name) else json.dumps(name, ensure_ascii=False)
                yield from leaves(item, f"{path}.{step}" if path else step)
        case list() if value:
            for index, item in enumerate(value):
                yield from leaves(item, f"{path}[{index}]")
        case _:
            yield path, value


def _is_value(value: object) -> bool:
    if isinstance(value, str):
        return len(value.strip()) >= SHORTEST_TEXT
    return isinstance(value, int | float) and not isinstance(value, bool)


def _written(value: object) -> str:
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return value if isinstance(value, str) else json.dumps(value)


def _wanted(value: object) -> str:
    return _END_OF_SENTENCE.sub("", _normal(_written(value)).strip(_QUOTES))


def _normal(text: str) -> str:
    """Case and spaces do not matter. Letters that only look alike stay different, and `ß` is not `ss`."""
    return " ".join(unicodedata.normalize("NFC", text).lower().split())


def stands_in(value: str, text: str) -> bool:
    """Returns whether a text has a value whole: `ann@a.example` does not stand in `joann@a.example.org`."""
    if not value or value not in text:
        return False
    return re.search(rf"{_BEFORE}{re.escape(value)}{_AFTER}", text) is not None
