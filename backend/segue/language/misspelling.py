"""Finds the words that a misspelt word may have been meant to be: those one edit away. Pure."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

SHORTEST: Final = 4  # letters
_ENDINGS: Final = frozenset("aeiouysdnrtm")  # a word that differs in its last letter only is often another form of it

WordsByLetter = Mapping[str, Sequence[tuple[str, str]]]


def by_first_letter(words: Iterable[tuple[str, str]]) -> WordsByLetter:
    """Returns words, each with its language, by the letter that they begin with, without those that are too short."""
    found: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for word, language in words:
        if len(word) >= SHORTEST:
            found[word[0]].append((word, language))
    return found


def words_near(word: str, known: WordsByLetter) -> Iterator[tuple[str, str]]:
    """Yields the words, with their language, that begin as `word` does and differ from it by one edit."""
    if len(word) >= SHORTEST:
        for plain, language in known.get(word[0], ()):
            if abs(len(word) - len(plain)) <= 1 and _is_slip(word, plain):
                yield plain, language


def _is_slip(word: str, plain: str) -> bool:
    """Returns whether one letter is too many, missing, wrong or swapped, and not an ending."""
    if word == plain:
        return False
    if word[:-1] in (plain, plain[:-1]) or word == plain[:-1]:
        return _ENDINGS.isdisjoint((word[-1], plain[-1]))
    at = next(at for at, (one, other) in enumerate(zip(word, plain, strict=False)) if one != other)
    rest, plain_rest = word[at:], plain[at:]
    swapped = rest[:2] == plain_rest[1::-1] and rest[2:] == plain_rest[2:]
    return swapped or plain_rest[1:] in (rest, rest[1:]) or rest[1:] == plain_rest
