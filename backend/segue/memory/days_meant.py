"""The dates that words such as `tomorrow` mean on the day they are said. Pure; the words are `days.toml`."""

from collections.abc import Mapping
from datetime import date, timedelta
from typing import Any, Final

from segue.domain.memory import MAX_CONTENT_CHARS
from segue.language.detect_language import detect_language
from segue.language.phrase_matcher import PhraseMatcher, match_phrases
from segue.language.utterance import is_unspaced
from segue.language.word_lists import Phrase, WordList, kinds_by_phrase
from segue.memory.fact_cues import LONGEST_READ, split_words

_SHIFTS: Final = {
    "day_before_yesterday": -2,
    "yesterday": -1,
    "today": 0,
    "tomorrow": 1,
    "day_after_tomorrow": 2,
    "no_day": None,
}


def _read_words(sections: Mapping[str, Any]) -> Mapping[str, PhraseMatcher[int | None]]:
    return {
        language: match_phrases(
            (phrase, _SHIFTS[kind])
            for phrase, kind in kinds_by_phrase(language, lists, _SHIFTS.keys(), phrase_of=split_words).items()
        )
        for language, lists in sections.items()
    }


WORDS: Final = WordList("days.toml", _read_words)


def days_meant(said: str, said_on: date) -> dict[Phrase, str]:
    """Returns by its words each day that a message names so, as a date (ISO 8601)."""
    words, matcher = split_words(said[:LONGEST_READ]), WORDS.now.get(detect_language(said, default=""))
    days: dict[Phrase, str] = {}
    at = 0
    while matcher and at < len(words):
        length, shift = matcher.longest_at(words, at) or (1, None)
        phrase = words[at : at + length]
        # In Korean `내일` is tomorrow and `내 일` my work: the letters are the same, and each is a word here.
        if shift is not None and (not is_unspaced(phrase[0]) or "".join(phrase) in said):
            days[phrase] = (said_on + timedelta(days=shift)).isoformat()
        at += length
    return days


def with_dates(fact: str, days: Mapping[Phrase, str]) -> str:
    """Returns a fact, and behind it the dates that it names in the words of `days`, if there is room."""
    words = f" {' '.join(split_words(fact))} "
    named = [day for phrase, day in days.items() if f" {' '.join(phrase)} " in words and day not in fact]
    dated = f"{fact.rstrip(' .。।')} ({', '.join(dict.fromkeys(named))})"
    return dated if named and len(dated) <= MAX_CONTENT_CHARS else fact
