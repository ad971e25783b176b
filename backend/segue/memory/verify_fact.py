"""Did the user say this? A fact is kept only in the user's own words.

A model reads pages and tool results too, so no model decides what is true of a user. Every word of a fact has to be in
a message of the user, up to its ending, or be a synonym of one that is (`facts.toml`); addresses to the letter. Pure.
"""

import re
from typing import Final

from segue.memory.fact_cues import FACT_WORDS, significant_words, split_words

SHORTEST_STEM: Final = 3  # letters
STEM_SHARE: Final = 0.6
_ADDRESS: Final = re.compile(r"[\w.+-]*[@/\\_][\w@/\\.+:-]*\w", re.ASCII)  # the same words in another order are another
_ARABIC_PREFIX: Final = re.compile(r"^(?:[وفبل]?ال|و?[ايتن])(?=[\u0621-\u064a]{2})")


def is_said(fact: str, *texts: str) -> bool:
    """Returns whether the texts together have every significant word of the fact; false if the fact has none."""
    if not all(any(address in text for text in texts) for address in _ADDRESS.findall(fact)):
        return False
    significant = significant_words(fact)
    words = {word for text in texts for word in split_words(text)}
    synonyms = {FACT_WORDS.now.synonyms[word] for word in words if word in FACT_WORDS.now.synonyms}
    said = set(map(_without_prefix, words))
    return bool(significant) and all(
        FACT_WORDS.now.synonyms.get(word) in synonyms or _is_among(_without_prefix(word), said) for word in significant
    )


def _is_among(word: str, said: set[str]) -> bool:
    return word in said or (word.isalpha() and any(_is_form_of(word, other) for other in said))


def _is_form_of(word: str, other: str) -> bool:
    """`preferisce` and `preferisco`: they begin alike, and for most of their length."""
    longer = max(len(word), len(other))
    shared = next((at for at, letters in enumerate(zip(word, other, strict=False)) if len({*letters}) > 1), longer)
    return min(shared, len(word), len(other)) >= max(SHORTEST_STEM, STEM_SHARE * longer)


def _without_prefix(word: str) -> str:
    """Drops what Arabic writes before a word: the article, and the person of a verb."""
    return _ARABIC_PREFIX.sub("", word)
