"""Which language a short text is in, by its script, its common words and its letters (`languages.toml`).

Pure; knows nothing of who wrote it and of what is answered.
"""

import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import chain
from typing import Final

from segue.language.lexicon import WordList, split_list

ENGLISH: Final = "en"
LONGEST_SAMPLE: Final = 400  # characters are enough to know a language by

_NAME_OF_A_THING: Final = re.compile(r"[!-~]*[@/\\_0-9][!-~]*")  # an address, a path, an id
_LATIN_WORD: Final = re.compile(r"(?<![.\w])[^\W\d_]+")  # not the end of a domain
_LATIN: Final = re.compile("[A-Za-zÀ-ɏ]")
_KANA: Final = re.compile("[\u3040-\u30ff]")
_HAN: Final = re.compile("[\u3400-\u9fff]")
_SCRIPTS: Final = {
    "ko": re.compile("[\uac00-\ud7a3]"),
    "ru": re.compile("[\u0400-\u04ff]"),
    "ar": re.compile("[\u0620-\u065f\u066e-\u06d3]"),
    "hi": re.compile("[\u0904-\u0939\u0958-\u0961]"),
}
_LATIN_LETTERS_PER_LETTER: Final = {"zh": 3, "ja": 3, "ko": 2, "hi": 3}  # that say as much
_HAN_PER_KANA: Final = 8  # in Japanese, at most
_LEAST_SCORE: Final = 0.4


@dataclass(frozen=True, slots=True, eq=False)
class Clues:
    """What a word and a letter count for each of their languages."""

    words: Mapping[str, Mapping[str, float]]
    letters: Mapping[str, Mapping[str, float]]


def detect_language(text: str, *, default: str = ENGLISH) -> str:
    """Returns an ISO 639-1 code, `default` if nothing shows the language or two languages are as likely."""
    return _language_of(text[:LONGEST_SAMPLE], CLUES.now) or default


@lru_cache(maxsize=2048)  # each turn looks at the messages of the ones before
def _language_of(sample: str, known: Clues) -> str | None:
    sample = _NAME_OF_A_THING.sub(" ", sample)
    by_words = _language_by_words(sample, known)
    if sample.isascii():
        return by_words
    # Beside letters of another script, Latin ones without a known word are a name.
    latin = len(_LATIN.findall(sample))
    return _language_by_script(sample, more_than=latin) or by_words or _language_by_script(sample, more_than=0)


def _language_by_script(sample: str, *, more_than: int) -> str | None:
    letters = {language: len(script.findall(sample)) for language, script in _SCRIPTS.items()}
    kana, han = len(_KANA.findall(sample)), len(_HAN.findall(sample))
    letters["ja" if kana and kana * _HAN_PER_KANA >= han else "zh"] = kana + han
    weights = {language: count * _LATIN_LETTERS_PER_LETTER.get(language, 1) for language, count in letters.items()}
    likeliest = max(weights, key=weights.__getitem__)
    return likeliest if weights[likeliest] > more_than else None


def _language_by_words(sample: str, known: Clues) -> str | None:
    lowered = unicodedata.normalize("NFC", sample.replace("İ", "i")).lower()
    clues = [known.words.get(word, {}) for word in _LATIN_WORD.findall(lowered)]
    clues += [known.letters.get(letter, {}) for letter in set(lowered)]
    scores: dict[str, float] = defaultdict(float)
    for language, score in chain.from_iterable(clue.items() for clue in clues):
        scores[language] += score
    best = max(scores.values(), default=0)
    likeliest = [language for language, score in scores.items() if score == best]
    return likeliest[0] if best >= _LEAST_SCORE and len(likeliest) == 1 else None


def _scores(by_language: Mapping[str, Iterable[str]]) -> dict[str, Mapping[str, float]]:
    """Returns what a clue counts for each of its languages: 1 for the only one, a half each for two of them."""
    speakers: dict[str, dict[str, None]] = defaultdict(dict)
    for language, clues in by_language.items():
        for clue in clues:
            speakers[clue][language] = None
    return {clue: _shares(tuple(languages)) for clue, languages in speakers.items()}


@cache  # clues of the same languages have the same
def _shares(languages: tuple[str, ...]) -> Mapping[str, float]:
    return dict.fromkeys(languages, 1 / len(languages))


def _read_clues(sections: Mapping[str, Mapping[str, str]]) -> Clues:
    return Clues(
        words=_scores({language: split_list(lists["words"]) for language, lists in sections.items()}),
        letters=_scores({language: lists.get("letters", "").split() for language, lists in sections.items()}),
    )


CLUES: Final = WordList("languages.toml", _read_clues)
