"""The parts of an answer that are the provider's own business: joined from their pieces, bounded, never read."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import orjson

MAX_OPAQUE_BYTES: Final = 64_000

# What a message and a call have of OpenAI's own; everything else that came is opaque.
MESSAGE_FIELDS: Final = frozenset(
    {"role", "content", "tool_calls", "refusal", "audio", "annotations", "function_call", "name", "tool_call_id"}
)
CALL_FIELDS: Final = frozenset({"index", "id", "type", "function"})
# Texts that are whole in every piece, and do not go on in the next.
_WHOLE: Final = frozenset({"type", "id", "index", "format", "role"})
# Items of a list that go on in the next piece although they have no index.
_PIECES: Final = frozenset({"text", "thinking"})
# Plain words of the model: these may be cut to fit, a signature may not.
_WORDS: Final = ("reasoning_content", "reasoning", "thinking")


def foreign_fields(part: Mapping[str, Any], known: frozenset[str]) -> dict[str, Any]:
    return {name: value for name, value in part.items() if name not in known and value is not None}


def joined(so_far: Any, piece: Any, name: str = "") -> Any:
    """Returns a value that came in pieces: texts go on, lists grow, items of a list with one index are one item.

    May change `so_far`. A text beyond the bound stops growing, since it will not be sent back whole.
    """
    match so_far, piece:
        case None, _:
            return piece
        case _, None:
            return so_far
        case str(), str() if name not in _WHOLE:
            return so_far if len(so_far) > MAX_OPAQUE_BYTES else so_far + piece
        case dict(), dict():
            for key, value in piece.items():
                so_far[key] = joined(so_far.get(key), value, key)
            return so_far
        case list(), list():
            for item in piece:
                if so_far and _goes_on(so_far[-1], item):
                    so_far[-1] = joined(so_far[-1], item)
                else:
                    so_far.append(item)
            return so_far
        case _:
            return piece


def _goes_on(last: Any, item: Any) -> bool:
    if not isinstance(last, dict) or not isinstance(item, dict):
        return False
    is_piece = "index" in item or item.get("type") in _PIECES
    return is_piece and all(last.get(name) == item.get(name) for name in ("index", "type"))


def within_bounds(message: Mapping[str, Any], calls: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Returns a message's opaque fields, words cut to fit beside its calls', or None if the rest is too large."""
    kept = dict(message)
    for name in _WORDS:
        text, room = kept.get(name), MAX_OPAQUE_BYTES - size_of([{**kept, name: ""}, *calls])
        while isinstance(text, str) and (size := size_of(text)) > max(room, 0):
            kept[name] = text = text[: len(text) * max(room, 0) // size]
    return kept if size_of([kept, *calls]) <= MAX_OPAQUE_BYTES else None


def size_of(value: Any) -> int:
    try:
        return len(orjson.dumps(value))
    except TypeError:  # half a character, a huge number: nothing that can be sent back
        return MAX_OPAQUE_BYTES + 1
