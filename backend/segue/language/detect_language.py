"""Which language a short text is in, by its script, its common words and its letters (`languages.toml`). Pure. A word
counts for the languages that list it and, by its pairs of letters (naive Bayes), for those whose words look like it.
"""

import math
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import chain, pairwise
from typing import Final

from segue.language.lexicon import WordList, split_list
from segue.language.utterance import QUOTATION

ENGLISH: Final = "en"
LONGEST_SAMPLE: Final = 400  # characters are enough to know a language by

# An address, a path, an id, an argument, a file, a name in code.
_NAME_OF_A_THING: Final = re.compile(
    r"[!-~]*[@/\\_0-9=][!-~]*|[\w-]+\.(?:csv|docx?|html?|jpe?g|json|md|pdf|png|pptx?|py|txt|xlsx?|zip)\b"
    r"|\b[A-Z]?[a-z]+[A-Z][A-Za-z]*\b"
)
_LATIN_WORD: Final = re.compile(r"(?<![.\w])[^\W\d_]+")  # not the end of a domain
_COLON: Final = re.compile("[:：]")
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
_LEAST_SCORE: Final = 0.3
_MOST_SPELT: Final = 24  # words whose letters are looked at
_OF_SPELLING: Final = 0.8  # of what a listed word counts, for all languages together
_SOFTNESS: Final = 3  # the pairs of a word depend on each other: its logarithms say too much
_UNSEEN_COUNT: Final = 0.5


@dataclass(frozen=True, slots=True, eq=False)
class Clues:
    """What a word and a letter count for each of their languages; the logarithms for a pair of letters in each."""

    words: Mapping[str, Mapping[str, float]]
    letters: Mapping[str, Mapping[str, float]]
    languages: tuple[str, ...]
    pairs: Mapping[str, tuple[float, ...]]
    unseen: tuple[float, ...]


def detect_language(text: str, *, default: str = ENGLISH) -> str:
    """Returns an ISO 639-1 code, `default` if nothing shows the language or two languages are as likely."""
    return _language_of(text[:LONGEST_SAMPLE], CLUES.now) or default


@lru_cache(maxsize=2048)  # each turn looks at the messages of the ones before
def _language_of(sample: str, known: Clues) -> str | None:
    unquoted = QUOTATION.sub(" ", sample)
    if unquoted != sample and (found := _language_of(unquoted, known)):
        return found  # what a quotation is asked about in
    parts = [_NAME_OF_A_THING.sub(" ", each) for each in (_COLON.split(sample, maxsplit=1)[0], sample)]
    sample = parts[-1]
    other = _language_by_script(sample, more_than=0)
    by_words = _language_by_words(sample, known, by_spelling=other is None)
    if other is None:
        is_introduced = len(parts[0].split()) > 1 and len(parts[0]) < len(sample)
        return (_language_by_words(parts[0], known, by_spelling=False) if is_introduced else None) or by_words
    # Beside letters of another script, Latin ones without a known word are a name. Behind a colon is a text to send.
    by_script = (_language_by_script(part, more_than=len(_LATIN.findall(part))) for part in parts)
    return next(filter(None, by_script), None) or by_words or other


def _language_by_script(sample: str, *, more_than: int) -> str | None:
    letters = {language: len(script.findall(sample)) for language, script in _SCRIPTS.items()}
    kana, han = len(_KANA.findall(sample)), len(_HAN.findall(sample))
    letters["ja" if kana and kana * _HAN_PER_KANA >= han else "zh"] = kana + han
    weights = {language: count * _LATIN_LETTERS_PER_LETTER.get(language, 1) for language, count in letters.items()}
    likeliest = max(weights, key=weights.__getitem__)
    return likeliest if weights[likeliest] > more_than else None


def _language_by_words(sample: str, known: Clues, *, by_spelling: bool) -> str | None:
    lowered = unicodedata.normalize("NFC", sample.replace("İ", "i")).lower()
    words = _LATIN_WORD.findall(lowered)
    clues = [known.words.get(word, {}) for word in words]
    spelt = words[:_MOST_SPELT] if by_spelling else ()
    clues += [_by_spelling(word, known) for word in spelt if len(word) > 2]  # noqa: PLR2004 (shows little)
    clues += [known.letters.get(letter, {}) for letter in set(lowered)]
    scores: dict[str, float] = defaultdict(float)
    for language, score in chain.from_iterable(clue.items() for clue in clues):
        scores[language] += score
    best = max(scores.values(), default=0)
    likeliest = [language for language, score in scores.items() if score == best]
    return likeliest[0] if best >= _LEAST_SCORE and len(likeliest) == 1 else None


def _by_spelling(word: str, known: Clues) -> Mapping[str, float]:
    logs = [sum(each) for each in zip(*(known.pairs.get(pair, known.unseen) for pair in _pairs(word)), strict=True)]
    likeliest = max(logs)
    weights = [math.exp((each - likeliest) / _SOFTNESS) for each in logs]
    return {name: _OF_SPELLING * each / sum(weights) for name, each in zip(known.languages, weights, strict=True)}


def _pairs(word: str) -> Iterable[str]:
    return map("".join, pairwise(f"^{word}$"))


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
    listed = {language: split_list(lists["words"]) for language, lists in sections.items()}
    counts = [Counter(pair for word in words for pair in _pairs(word)) for words in listed.values()]
    pairs = set().union(*counts)
    totals = [math.log(count.total() + _UNSEEN_COUNT * len(pairs)) for count in counts]

    def logs(pair: str) -> tuple[float, ...]:
        rows = zip(counts, totals, strict=True)
        return tuple(math.log(count[pair] + _UNSEEN_COUNT) - total for count, total in rows)

    return Clues(
        languages=tuple(sections),
        pairs={pair: logs(pair) for pair in pairs},
        unseen=logs(""),
        words=_scores(listed),
        letters=_scores({language: lists.get("letters", "").split() for language, lists in sections.items()}),
    )


CLUES: Final = WordList("languages.toml", _read_clues)
