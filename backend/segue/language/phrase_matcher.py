"""The words people say, read from word lists and found in a message, longest phrase first.

Knows nothing of what a kind of words means; `acknowledgement.py` and `policy.py` stand above, `wordlists.py` below.
"""

import tomllib
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from segue.language.utterance import is_stretched, squeeze
from segue.language.word_lists import Phrase, kinds_by_phrase, read_toml

ANY_LANGUAGE: Final = "any"
UNKNOWN: Final = "unknown"

Section = Mapping[Phrase, str]


@dataclass(frozen=True, slots=True)
class Lexicon:
    """`phrases` is by language and first word, longest first; `speakers` names the languages that use a word."""

    phrases: Mapping[str, Mapping[str, tuple[tuple[Phrase, str], ...]]]
    speakers: Mapping[str, tuple[str, ...]]
    stretchable: Mapping[str, str]


def load_lexicon(name: str, *, kinds: frozenset[str], stretchable: frozenset[str] = frozenset()) -> Lexicon:
    """Reads `segue/plans/<name>`. Words of the `stretchable` kinds are known with letters held, as in `yesss`."""
    return parse_lexicon(read_toml(name), kinds=kinds, stretchable=stretchable)


def parse_lexicon(toml: str, *, kinds: frozenset[str], stretchable: frozenset[str] = frozenset()) -> Lexicon:
    """Raises ValueError as `kinds_by_phrase` does."""
    sections = {language: kinds_by_phrase(language, lists, kinds) for language, lists in tomllib.loads(toml).items()}
    shared = sections.get(ANY_LANGUAGE, {})
    return Lexicon(
        phrases={language: _by_first_word({**shared, **section}) for language, section in sections.items()},
        speakers=_speakers(sections),
        stretchable={
            squeeze(phrase[0]): phrase[0]
            for section in sections.values()
            for phrase, kind in section.items()
            if kind in stretchable and len(phrase) == 1
        },
    )


def languages_of(words: Iterable[str], lexicon: Lexicon) -> list[str]:
    """The languages that use most of the words; `any` where the words belong to none in particular."""
    known: dict[str, int] = defaultdict(int)
    for word in words:
        for language in lexicon.speakers.get(word, ()):
            known[language] += 1
    most = max(known.values(), default=0)
    return [language for language, count in known.items() if count == most] or [ANY_LANGUAGE]


def unstretch(word: str, lexicon: Lexicon) -> str:
    if word in lexicon.speakers:
        return word
    plain = lexicon.stretchable.get(squeeze(word))
    return plain if plain and is_stretched(word, plain) else word


def kinds_of(words: Phrase, language: str, lexicon: Lexicon) -> list[str]:
    """The kind of every phrase in order, `unknown` for each word that is in none."""
    phrases = lexicon.phrases[language]
    kinds: list[str] = []
    at = 0
    while at < len(words):
        for phrase, kind in phrases.get(words[at], ()):
            if words[at : at + len(phrase)] == phrase:
                kinds.append(kind)
                at += len(phrase)
                break
        else:
            kinds.append(UNKNOWN)
            at += 1
    return kinds


def _by_first_word(section: Section) -> dict[str, tuple[tuple[Phrase, str], ...]]:
    grouped: dict[str, list[tuple[Phrase, str]]] = defaultdict(list)
    for phrase, kind in sorted(section.items(), key=lambda entry: -len(entry[0])):
        grouped[phrase[0]].append((phrase, kind))
    return {word: tuple(entries) for word, entries in grouped.items()}


def _speakers(sections: Mapping[str, Section]) -> dict[str, tuple[str, ...]]:
    speakers: dict[str, dict[str, None]] = defaultdict(dict)
    for language, section in sections.items():
        for word in {word for phrase in section for word in phrase}:
            speakers[word].update({} if language == ANY_LANGUAGE else {language: None})
    return {word: tuple(languages) for word, languages in speakers.items()}
