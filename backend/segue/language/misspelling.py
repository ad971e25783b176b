"""Finds the words that a misspelt word may have been meant to be: those one edit away. Pure."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

SHORTEST: Final = 4  # letters
_ENDINGS: Final = frozenset("aeiouysdnrtm")  # a word that differs in its last letter only is often another form of it

NearWords = Mapping[str, tuple[tuple[str, str], ...]]


def near_words(words: Iterable[tuple[str, str]]) -> NearWords:
    """Returns words, each with its language, by what is left of them without one letter."""
    found: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for word, language in words:
        if len(word) >= SHORTEST:
            for part in _parts(word):
                found[part].append((word, language))
    return {part: tuple(near) for part, near in found.items()}


def words_near(word: str, near: NearWords) -> Iterator[tuple[str, str]]:
    """Yields the words, with their language, that begin as `word` does and differ from it by one edit."""
    if len(word) < SHORTEST:
        return
    seen = set()
    for part in _parts(word):
        for plain, language in near.get(part, ()):
            if (plain, language) not in seen and _is_slip(word, plain):
                seen.add((plain, language))
                yield plain, language


def _parts(word: str) -> Iterator[str]:
    yield word
    for at in range(len(word)):
        yield word[:at] + word[at + 1 :]


def _is_slip(word: str, plain: str) -> bool:
    """Returns whether one letter is too many, missing, wrong or swapped, and not the first or an ending."""
    if word[0] != plain[0] or word == plain:
        return False
    if word[:-1] in (plain, plain[:-1]) or word == plain[:-1]:
        return _ENDINGS.isdisjoint((word[-1], plain[-1]))
    at = next(at for at, (one, other) in enumerate(zip(word, plain, strict=False)) if one != other)
    rest, plain_rest = word[at:], plain[at:]
    swapped = rest[:2] == plain_rest[1::-1] and rest[2:] == plain_rest[2:]
    return swapped or plain_rest[1:] in (rest, rest[1:]) or rest[1:] == plain_rest
