"""The words of a message by kind, in the language that the message most likely is in.

Knows nothing of what a kind means.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from sys import intern
from typing import Any, Final

from segue.language.phrase_matcher import PhraseMatcher, match_phrases
from segue.language.utterance import fold, is_stretched, split_folded, squeeze
from segue.language.word_lists import Joined, Phrase, kinds_by_phrase

ANY_LANGUAGE: Final = "any"
UNKNOWN: Final = "unknown"

# Of words, a place in them, and the length and kind of what the lexicon finds there: the length and kind to take.
Preference = Callable[[Phrase, int, int, str], tuple[int, str]]


@dataclass(frozen=True, slots=True, eq=False)
class Lexicon:
    """`phrases` finds the kind of a phrase, by language; `speakers` lists the languages that use a word.

    `stretchable` gives a word by its squeezed form, if people hold its letters (`yesss`).
    """

    phrases: Mapping[str, PhraseMatcher[str]]
    speakers: Mapping[str, tuple[str, ...]]
    stretchable: Mapping[str, str]


def parse_lexicon(
    sections: Mapping[str, Any], *, kinds: frozenset[str], stretchable: frozenset[str] = frozenset()
) -> Lexicon:
    """`sections` is a word list file: languages, and `any` for what they share; `stretchable` is some of the `kinds`.

    Raises ValueError if a list is none of `kinds`, or if a phrase is in two lists of a language.
    """
    by_language = {language: _kinds_by_phrase(language, lists, kinds) for language, lists in sections.items()}
    shared = by_language.get(ANY_LANGUAGE, {})
    return Lexicon(
        phrases={language: match_phrases({**shared, **own}.items()) for language, own in by_language.items()},
        speakers=_speakers(by_language),
        stretchable={
            squeeze(phrase): phrase
            for own in by_language.values()
            for phrase, kind in own.items()
            if kind in stretchable and " " not in phrase
        },
    )


def _kinds_by_phrase(language: str, lists: Mapping[str, str], kinds: frozenset[str]) -> dict[Joined, str]:
    folded = {kind: fold(words) for kind, words in lists.items()}  # a list at once: word by word takes a second
    return kinds_by_phrase(language, folded, kinds, phrase_of=split_folded)


def languages_of(words: Iterable[str], lexicon: Lexicon) -> list[str]:
    """Returns the languages that use most of the words, or `any` if no language uses one of them."""
    known: dict[str, int] = defaultdict(int)
    for word in words:
        for language in lexicon.speakers.get(word, ()):
            known[language] += 1
    most = max(known.values(), default=0)
    return [language for language, count in known.items() if count == most] or [ANY_LANGUAGE]


def unstretch(word: str, lexicon: Lexicon) -> str:
    """Returns `yes` for `yesss`, and every word that the lexicon knows as it is."""
    if word in lexicon.speakers:
        return word
    plain = lexicon.stretchable.get(squeeze(word))
    return plain if plain and is_stretched(word, plain) else word


def kinds_of(words: Phrase, language: str, lexicon: Lexicon) -> list[str]:
    """Returns the kind of every phrase in order, with `unknown` for each word that is in no phrase."""
    return [kind for kind, _ in phrases_of(words, language, lexicon)]


def phrases_of(
    words: Phrase, language: str, lexicon: Lexicon, *, prefer: Preference | None = None
) -> list[tuple[str, Phrase]]:
    """Returns every phrase in order with its kind, which is `unknown` for each word that is in no phrase.

    `prefer` may take words that the lexicon gives another kind or length.
    """
    matcher = lexicon.phrases[language if language in lexicon.phrases else ANY_LANGUAGE]
    phrases: list[tuple[str, Phrase]] = []
    at = 0
    while at < len(words):
        length, kind = matcher.longest_at(words, at) or (1, UNKNOWN)
        if prefer is not None:
            length, kind = prefer(words, at, length, kind)
        phrases.append((kind, words[at : at + length]))
        at += length
    return phrases


def _speakers(by_language: Mapping[str, Mapping[Joined, str]]) -> dict[str, tuple[str, ...]]:
    """A word of the shared section has no speakers: it says nothing about the language."""
    speakers: dict[str, tuple[str, ...]] = {}
    for language, phrases in by_language.items():
        speaker = () if language == ANY_LANGUAGE else (language,)
        for word in {word for phrase in phrases for word in phrase.split(" ")}:
            speakers[intern(word)] = _with(speaker, speakers.get(word, ()))
    return speakers


@cache  # most words share a few
def _with(speaker: tuple[str, ...], speakers: tuple[str, ...]) -> tuple[str, ...]:
    return speakers + speaker
