"""Finds phrases in a sequence of words. Of the phrases that begin at a word the longest counts.

A phrase whose last word ends in `*` matches every word that begins so. Scripts without spaces need no special case:
their words are single characters. Knows nothing of languages and of what a phrase means.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from segue.language.word_lists import Phrase

ANY_ENDING: Final = "*"
SHORTEST_STEM: Final = 3  # letters
_ONE_WORD: Final = (1,)

Value = TypeVar("Value")
Match = tuple[Phrase, Value]


@dataclass(frozen=True, slots=True)
class PhraseMatcher(Generic[Value]):
    """Every step is a look-up by a whole phrase, so that the number of phrases does not matter.

    `matches` gives the values of a phrase. `lengths` gives the words of the phrases that begin with a word,
    `stem_lengths` the letters of the stems that may follow some words; both longest first.
    """

    matches: Mapping[Phrase, tuple[Value, ...]]
    lengths: Mapping[str, tuple[int, ...]]
    stem_lengths: Mapping[Phrase, tuple[int, ...]]

    def longest_at(self, words: Phrase, at: int) -> Match[Value] | None:
        if not self.stem_lengths and words[at] not in self.lengths:
            return None  # most words begin no phrase: this pays
        found = self.all_at(words, at)
        return found[0] if found else None

    def all_at(self, words: Phrase, at: int) -> list[Match[Value]]:
        """Returns every phrase that begins at this word, with its value, the longest first."""
        found: list[Match[Value]] = []
        for length in self.lengths.get(words[at], (1,) if self.stem_lengths else ()):
            here = words[at : at + length]
            if len(here) == length:
                found += self._matches_of(here)
                for letters in self.stem_lengths.get(here[:-1], ()):
                    if letters <= len(here[-1]):
                        found += self._matches_of((*here[:-1], here[-1][:letters] + ANY_ENDING))
        return found

    def _matches_of(self, phrase: Phrase) -> list[Match[Value]]:
        return [(phrase, value) for value in self.matches.get(phrase, ())]


def match_phrases(entries: Iterable[Match[Value]]) -> PhraseMatcher[Value]:
    """Raises ValueError if a phrase is a stem of fewer letters than SHORTEST_STEM, or begins with a stem."""
    matches: dict[Phrase, tuple[Value, ...]] = {}
    shared: dict[tuple[Value, ...], tuple[Value, ...]] = {}  # tens of thousands of phrases have a few values
    lengths: dict[str, tuple[int, ...]] = {}
    stem_lengths: dict[Phrase, tuple[int, ...]] = {}
    for phrase, value in entries:
        first, last = phrase[0], phrase[-1]
        if last.endswith(ANY_ENDING):
            stem_lengths[phrase[:-1]] = _with(len(last) - 1, stem_lengths.get(phrase[:-1], ()))
        if first.endswith(ANY_ENDING) and (len(phrase) > 1 or len(last) <= SHORTEST_STEM):
            raise ValueError(f"{' '.join(phrase)!r}: too little to recognise a word by")
        values = (*matches.get(phrase, ()), value)
        matches[phrase] = shared.setdefault(values, values)
        lengths[first] = _with(len(phrase), lengths.get(first, _ONE_WORD))
    return PhraseMatcher(matches, lengths, stem_lengths)


def _with(length: int, longest_first: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the same tuple if it has the length: tens of thousands of words share a few."""
    return longest_first if length in longest_first else tuple(sorted((*longest_first, length), reverse=True))
