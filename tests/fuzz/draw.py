"""Values made from the bytes of a fuzzer, so that a small change of the bytes is a small change of the value."""

import json
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, TypeVar

Item = TypeVar("Item")

NUMBERS = (0, 1, -1, 2, 7, 200, 2**31, 2**53, 2**63 - 1, 2**63, -(2**63) - 1, 10**400, 0.5, -0.0, 1e308, 5e-324)
BETWEEN_WORDS = (" ", " ", " ", " ", ", ", "\n", "", ". ", "? ", "\n> ", ' "')
DEEPEST = 130
MOST_NESTED = 6


class Draw:
    """Where the bytes end, every draw gives the simplest value: nothing, zero, the first of several."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def left(self) -> int:
        return max(len(self._data) - self._at, 0)

    def take(self, count: int) -> bytes:
        taken = self._data[self._at : self._at + count]
        self._at += count
        return taken

    def rest(self) -> bytes:
        return self.take(self.left)

    def number(self, below: int) -> int:
        """Of at most 65,536."""
        return int.from_bytes(self.take(1 if below <= 256 else 2), "little") % below

    def one_of(self, items: Sequence[Item]) -> Item:
        return items[self.number(len(items))]

    def text(self, most: int = 40) -> str:
        return as_text(self.take(self.number(most + 1)))

    def words(self, vocabulary: Sequence[str], *, most: int = 24) -> str:
        """Words of the vocabulary with something between them, and now and then any text."""
        parts = []
        for _ in range(1 + self.number(most)):
            parts.append(self.text(8) if self.number(12) == 11 else self.one_of(vocabulary))
            parts.append(self.one_of(BETWEEN_WORDS))
        return "".join(parts[:-1])

    def pieces(self, whole: bytes, *, most: int = 8) -> list[bytes]:
        cuts = sorted({self.number(len(whole) + 1) for _ in range(self.number(most))} | {0, len(whole)})
        return [whole[start:end] for start, end in pairwise(cuts)]

    def json(self, words: Sequence[str] = ("a",)) -> Any:
        """Any JSON, rather with these words as keys and texts. Bytes that are JSON give what they say."""
        if self._data[self._at : self._at + 1] in (b"{", b"["):
            try:
                return json.loads(self.rest())
            except (ValueError, RecursionError):
                return None
        return self._value(words, 0)

    def _value(self, words: Sequence[str], depth: int) -> Any:  # noqa: PLR0911 (one line per kind of value)
        kinds = 12 if depth < MOST_NESTED else 7
        match self.number(kinds) if self.left else 0:
            case 0:
                return None
            case 1:
                return self.number(2) == 1
            case 2:
                return self.one_of(NUMBERS)
            case 3 | 4:
                return self.one_of(words)
            case 5:
                return self.text()
            case 6:
                return self.text(6) * self.number(256)
            case 7 | 8:
                return [self._value(words, depth + 1) for _ in range(self.number(5))]
            case 9:
                return self._nested(words)
            case _:
                return {self._key(words): self._value(words, depth + 1) for _ in range(self.number(7))}

    def _key(self, words: Sequence[str]) -> str:
        return self.text(6) if self.number(8) == 7 else self.one_of(words)

    def _nested(self, words: Sequence[str]) -> Any:
        value: Any = self.one_of(words)
        for _ in range(self.number(DEEPEST)):
            value = [value] if self.number(2) else {self.one_of(words): value}
        return value


def as_text(data: bytes) -> str:
    """Any text, also with lone surrogates."""
    try:
        return data.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return data.decode("utf-8", "replace")
