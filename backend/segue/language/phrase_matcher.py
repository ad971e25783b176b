"""Finds phrases in a sequence of words. Of the phrases that begin at a word the longest counts.

A phrase whose last word ends in `*` matches every word that begins so. Scripts without spaces need no special case:
their words are single characters. Knows nothing of languages and of what a phrase means.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from sys import intern
from typing import Final, Generic, TypeVar

from segue.language.word_lists import Joined, Phrase

ANY_ENDING: Final = "*"
SHORTEST_STEM: Final = 3  # letters
_ONE_WORD: Final = (1,)

Meaning = TypeVar("Meaning")
Match = tuple[int, Meaning]  # how many words were found


@dataclass(frozen=True, slots=True)
class PhraseMatcher(Generic[Meaning]):
    """Every step is a look-up by a whole phrase, so that the number of phrases does not matter.

    `matches` gives the values of a phrase. `lengths` gives the words of the phrases that begin with a word,
    `stem_lengths` the letters of the stems that may follow some words; both longest first.
    """

    matches: Mapping[Joined, tuple[Meaning, ...]]
    lengths: Mapping[str, tuple[int, ...]]
    stem_lengths: Mapping[Joined, tuple[int, ...]]

    def longest_at(self, words: Phrase, at: int) -> Match[Meaning] | None:
        if not self.stem_lengths and words[at] not in self.lengths:
            return None  # most words begin no phrase: this pays
        found = self.all_at(words, at)
        return found[0] if found else None

    def all_at(self, words: Phrase, at: int) -> list[Match[Meaning]]:
        """Returns the value of every phrase that begins at this word, the longest first."""
        found: list[Match[Meaning]] = []
        for length in self.lengths.get(words[at], (1,) if self.stem_lengths else ()):
            here = words[at : at + length]
            if len(here) == length:
                found += [(length, value) for value in self.matches.get(" ".join(here), ())]
                if self.stem_lengths:
                    found += [(length, value) for value in self._stem_values(here)]
        return found

    def _stem_values(self, phrase: Phrase) -> Iterator[Meaning]:
        *before, last = phrase
        for letters in self.stem_lengths.get(" ".join(before), ()):
            if letters <= len(last):
                yield from self.matches.get(" ".join((*before, last[:letters] + ANY_ENDING)), ())


def match_phrases(entries: Iterable[tuple[Joined, Meaning]]) -> PhraseMatcher[Meaning]:
    """Raises ValueError if a phrase is a stem of fewer letters than SHORTEST_STEM, or begins with a stem."""
    matches: dict[Joined, tuple[Meaning, ...]] = {}
    shared: dict[tuple[Meaning, ...], tuple[Meaning, ...]] = {}  # tens of thousands of phrases have a few values
    lengths: dict[str, tuple[int, ...]] = {}
    stem_lengths: dict[Joined, tuple[int, ...]] = {}
    for phrase, value in entries:
        words = phrase.split(" ")
        first, last = words[0], words[-1]
        if last.endswith(ANY_ENDING):
            before = " ".join(words[:-1])
            stem_lengths[before] = _with(len(last) - 1, stem_lengths.get(before, ()))
        if first.endswith(ANY_ENDING) and (len(words) > 1 or len(last) <= SHORTEST_STEM):
            raise ValueError(f"{phrase!r}: too little to recognise a word by")
        values = (*matches.get(phrase, ()), value)
        matches[phrase] = shared.setdefault(values, values)
        lengths[intern(first)] = _with(len(words), lengths.get(first, _ONE_WORD))
    return PhraseMatcher(matches, lengths, stem_lengths)


@cache  # tens of thousands of words share a few
def _with(length: int, longest_first: tuple[int, ...]) -> tuple[int, ...]:
    return longest_first if length in longest_first else tuple(sorted((*longest_first, length), reverse=True))
