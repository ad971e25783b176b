"""The words of the offline model: what a message speaks of, in which language, and how to say things in that language.

Pure. The vocabulary and the sentences stand in `offline.toml`; `offline.py` decides what to do with them.
"""

import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from segue.language.word_lists import load_toml

VERBS = frozenset({"search", "read", "send", "reply"})
_HAN = re.compile("[\u4e00-\u9fff]")
_ARABIC_WORD = re.compile("[\u0600-\u06ff]+")
_LATIN_WORD = re.compile("[A-Za-z\u00c0-\u024f]+")


@dataclass(frozen=True, slots=True)
class Spoken:
    """Words that mean one thing. Chinese ones are patterns found anywhere, all others are whole words."""

    words: frozenset[str]
    han: str

    @classmethod
    def of(cls, spoken: Iterable[str]) -> Self:
        spoken = list(spoken)
        han = sorted(filter(_HAN.search, spoken), key=len, reverse=True)
        return cls(frozenset(plain(word) for word in spoken if not _HAN.search(word)), "|".join(han))

    def is_in(self, text: str) -> bool:
        return not self.words.isdisjoint(words_of(text)) or bool(self.han and re.search(self.han, text))


def plain(word: str) -> str:
    """Without case and accents."""
    decomposed = unicodedata.normalize("NFKD", word.casefold())
    return "".join(char for char in decomposed if not unicodedata.combining(char))


def words_of(text: str) -> list[str]:
    return [plain(word) for word in re.findall(r"\w+", text)]


_VOCABULARY: Mapping[str, Any] = load_toml("offline.toml", package="segue.offline")
_SAY: Mapping[str, Mapping[str, Any]] = _VOCABULARY["say"]
_CONCEPTS = {concept: Spoken.of(spoken) for concept, spoken in _VOCABULARY["concepts"].items()}
_ORDINALS = {int(place): Spoken.of(spoken) for place, spoken in _VOCABULARY["ordinals"].items()}
_SEQUENCE = re.compile(
    "|".join(
        word if _HAN.search(word) else rf"(?:,\s*)?(?<!\w){re.escape(word)}(?!\w)"
        for word in _VOCABULARY["sequence"]["words"]
    ),
    re.IGNORECASE,
)
_SMALL = (Spoken.of(_VOCABULARY["filler"]["words"]), *_ORDINALS.values())


def concepts(text: str) -> frozenset[str]:
    return frozenset(concept for concept, spoken in _CONCEPTS.items() if spoken.is_in(text))


def ordinal(text: str) -> int:
    """The place in a list a text speaks of, from 0; the first where it speaks of none."""
    return next((place for place, spoken in _ORDINALS.items() if spoken.is_in(text)), 0)


def without(text: str, dropped: Iterable[str]) -> str:
    """A text without the words of the concepts named, ordinals and small words."""
    spoken = (*_SMALL, *(_CONCEPTS[concept] for concept in sorted(dropped) if concept in _CONCEPTS))
    for pattern in sorted((part for each in spoken for part in each.han.split("|") if part), key=len, reverse=True):
        text = re.sub(pattern, " ", text)
    small = frozenset().union(*(each.words for each in spoken))
    kept = (word.strip("._-+") for word in re.findall(r"[\w@.+-]+", text))
    return " ".join(word for word in kept if word and plain(word) not in small)


def split_steps(text: str) -> list[str]:
    """The parts of a request, cut where it says "then", in the words of `[sequence]`."""
    return [part for part in (piece.strip(" ,.;:、，。；،") for piece in _SEQUENCE.split(text)) if part]


def language_of(said: Sequence[str]) -> str:
    """Of the newest message that shows one; English where none does."""
    for text in reversed(said):
        latin = len(_LATIN_WORD.findall(text))
        for language, script in (("zh", _HAN), ("ar", _ARABIC_WORD)):
            if len(script.findall(text)) >= max(latin, 1):
                return language
        scores = {language: len(set(words_of(text)) & set(_SAY[language]["words"])) for language in ("en", "it")}
        if any(scores.values()):
            return max(scores, key=lambda language: scores[language])
    return "en"


def say(language: str, sentence: str, **values: object) -> str:
    return str(_SAY[language][sentence]).format(**values)


def say_found(language: str, *, noun: str, number: int, query: str) -> str:
    about = say(language, "about", query=query) if query else ""
    if not number:
        return say(language, "nothing_found", about=about)
    forms = _SAY[language]["nouns"].get(noun, _SAY[language]["nouns"]["thing"])
    return say(language, "found", things=_counted(number, forms), about=about)


def _counted(number: int, forms: Sequence[str]) -> str:
    """One, two, a few, many: as many of these forms as the language has, the last one standing for the rest."""
    place = number - 1 if number <= 2 else 2 if 3 <= number % 100 <= 10 else 3  # noqa: PLR2004 (Arabic grammar)
    return forms[min(place, len(forms) - 1)].format(n=number)
