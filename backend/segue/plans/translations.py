"""The few sentences the engine says itself, in the user's language, and which language that is.

Pure; the wording and the words that give a language away are `phrases.toml`. Raises ValueError at load where a language
lacks a sentence or a field of English. Knows nothing of plans; the nodes of `agent/` stand above.
"""

import re
import tomllib
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import chain
from string import Formatter
from typing import Final

from segue.language.word_lists import listed, read_toml

ENGLISH: Final = "en"
LONGEST_SAMPLE: Final = 400  # characters are enough to tell a language

_LATIN_WORD: Final = re.compile(r"(?<![.@/\w])[^\W\d_]+")  # not of an address
_LATIN: Final = re.compile("[A-Za-zÀ-ɏ]")
_KANA: Final = re.compile("[\u3040-\u30ff]")
_HAN: Final = re.compile("[\u3400-\u9fff]")
_SCRIPTS: Final = {
    "ko": re.compile("[\uac00-\ud7a3]"),
    "ru": re.compile("[\u0400-\u04ff]"),
    "ar": re.compile("[\u0620-\u065f\u066e-\u06d3]"),
    "hi": re.compile("[\u0904-\u0939\u0958-\u0961]"),
}
_LETTERS_IN_ONE: Final = {"zh": 3, "ja": 3, "ko": 2, "hi": 3}  # how many Latin letters say as much
_HAN_PER_KANA: Final = 8  # in Japanese, at most
_LEAST_SCORE: Final = 0.4

Sentences = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Phrasebook:
    """`sentences` by language and key; `words` and `letters` say what each is worth to a language."""

    sentences: Mapping[str, Sentences]
    words: Mapping[str, Mapping[str, float]]
    letters: Mapping[str, Mapping[str, float]]


def parse_phrasebook(toml: str) -> Phrasebook:
    sections = tomllib.loads(toml)
    sentences: dict[str, Sentences] = {language: section["say"] for language, section in sections.items()}
    for language in sentences:
        _check_sentences(language, sentences)
    spoken = {language: section["spoken"] for language, section in sections.items() if "spoken" in section}
    return Phrasebook(
        sentences,
        words=_worth({language: listed(lists["words"]) for language, lists in spoken.items()}),
        letters=_worth({language: lists.get("letters", "").split() for language, lists in spoken.items()}),
    )


def say(key: str, language: str | None, /, **values: object) -> str:
    """English where the language is not known; KeyError on an unknown key or a field without a value."""
    sentences = PHRASEBOOK.sentences
    spoken = (language or ENGLISH).replace("_", "-").partition("-")[0].lower()
    return sentences.get(spoken, sentences[ENGLISH])[key].format_map(values)


def language_of(text: str, *, default: str = ENGLISH) -> str:
    """`default` where nothing gives a language away, or two of them are as likely."""
    sample = text[:LONGEST_SAMPLE]
    return (None if sample.isascii() else _language_by_script(sample)) or _language_by_words(sample) or default


def _language_by_script(sample: str) -> str | None:
    letters = {language: len(script.findall(sample)) for language, script in _SCRIPTS.items()}
    kana, han = len(_KANA.findall(sample)), len(_HAN.findall(sample))
    letters["ja" if kana and kana * _HAN_PER_KANA >= han else "zh"] = kana + han
    weights = {language: count * _LETTERS_IN_ONE.get(language, 1) for language, count in letters.items()}
    likeliest = max(weights, key=weights.__getitem__)
    return likeliest if weights[likeliest] > len(_LATIN.findall(sample)) else None


def _language_by_words(sample: str) -> str | None:
    lowered = unicodedata.normalize("NFC", sample.replace("İ", "i")).lower()
    worths = [PHRASEBOOK.words.get(word, {}) for word in _LATIN_WORD.findall(lowered)]
    worths += [PHRASEBOOK.letters.get(letter, {}) for letter in set(lowered)]
    scores: dict[str, float] = defaultdict(float)
    for language, worth in chain.from_iterable(worth.items() for worth in worths):
        scores[language] += worth
    best = max(scores.values(), default=0)
    likeliest = [language for language, score in scores.items() if score == best]
    return likeliest[0] if best >= _LEAST_SCORE and len(likeliest) == 1 else None


def _check_sentences(language: str, sentences: Mapping[str, Sentences]) -> None:
    english, here = sentences[ENGLISH], sentences[language]
    if here.keys() != english.keys():
        raise ValueError(f"[{language}.say] and [en.say] differ in {', '.join(sorted(here.keys() ^ english.keys()))}")
    for key, sentence in here.items():
        if _fields(sentence) != _fields(english[key]):
            raise ValueError(f"[{language}.say] {key} must have the fields {sorted(_fields(english[key]))}")


def _fields(sentence: str) -> frozenset[str]:
    """The whole of each field, so that `{goal!r}` or `{goal.x}` is not taken for `{goal}`."""
    parsed = Formatter().parse(sentence)
    return frozenset(f"{name}{f'!{how}' if how else ''}{spec}" for _, name, spec, how in parsed if name is not None)


def _worth(by_language: Mapping[str, Iterable[str]]) -> dict[str, dict[str, float]]:
    """A clue to one language is worth 1, to two of them a half each."""
    speakers: dict[str, dict[str, None]] = defaultdict(dict)
    for language, clues in by_language.items():
        for clue in clues:
            speakers[clue][language] = None
    return {clue: dict.fromkeys(languages, 1 / len(languages)) for clue, languages in speakers.items()}


PHRASEBOOK: Final = parse_phrasebook(read_toml("translations.toml"))
