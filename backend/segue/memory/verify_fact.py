"""Did the user say this? A fact is kept only in the user's own words, whatever a model, a tool or a page makes of it.

Pure. Every word of a fact has to be one the user said, up to its ending, or one that may stand for it: `[alike]` in
`language.toml`. What a page says has words of its own, and falls through.
"""

import re
from typing import Final

from segue.memory.fact_cues import LANGUAGE, said_words, significant_words

SHORTEST_STEM: Final = 3
STEM_SHARE: Final = 0.6
_ARABIC_PREFIX: Final = re.compile(r"^(?:[وفبل]?ال|و?[ايتن])(?=[\u0621-\u064a]{2})")


def is_said(fact: str, *texts: str) -> bool:
    """Whether the texts, taken together, say all of the fact. A fact without a word of its own says nothing."""
    told = significant_words(fact)
    words = {word for text in texts for word in said_words(text)}
    groups = {LANGUAGE.alike[word] for word in words if word in LANGUAGE.alike}
    said = set(map(_plain, words))
    return bool(told) and all(LANGUAGE.alike.get(word) in groups or _is_among(_plain(word), said) for word in told)


def _is_among(word: str, said: set[str]) -> bool:
    return word in said or (word.isalpha() and any(_is_form_of(word, other) for other in said))


def _is_form_of(word: str, other: str) -> bool:
    """`preferisce` and `preferisco`: they begin alike, and for most of their length."""
    longer = max(len(word), len(other))
    shared = next((at for at, letters in enumerate(zip(word, other, strict=False)) if len({*letters}) > 1), longer)
    return min(shared, len(word), len(other)) >= max(SHORTEST_STEM, STEM_SHARE * longer)


def _plain(word: str) -> str:
    """Without what Arabic writes before a word: the article, and the person of a verb."""
    return _ARABIC_PREFIX.sub("", word)
