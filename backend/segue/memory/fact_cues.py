"""The words of facts about the user: whether a message states one, the user said it, and which dates it means. Pure.

A model reads pages and tool results too, so no model decides what is true of a user: every word of a fact has to be in
a message of theirs, up to its ending, or be a synonym; addresses to the letter. Words: `facts.toml`, `days.toml`.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from itertools import groupby, pairwise
from typing import Any, Final, get_args

from segue.domain.session import MAX_CONTENT_CHARS, MemoryKind
from segue.language.detect_language import detect_language
from segue.language.lexicon import Joined, Phrase, PhraseMatcher, WordList, kinds_by_phrase, match_phrases, split_list
from segue.language.utterance import is_unspaced, own_words, sentences_of, words_of

LONGEST_READ: Final = 4000  # characters; a longer message was pasted, it is not what the user says
MOST_SEARCH_WORDS: Final = 48
CUE_KINDS: Final = frozenset({*get_args(MemoryKind), "remember", "correction", "forget"})

_QUESTION: Final = re.compile(r"[?？؟]\s*$")
# Italian and French elide a word before an apostrophe: two words. In English the two are one.
_ELISION: Final = re.compile(r"(?i)(?<!\w)([cdjlmnst]|qu|un|(?:a|co|da|de|ne|su)ll|quest|quell|dov|com)['’ʼ](?=\w\w)")

_DAYS: Final = ("day_before_yesterday", "yesterday", "today", "tomorrow", "day_after_tomorrow")
_SHIFTS: Final[Mapping[str, int | None]] = {**{day: at for at, day in enumerate(_DAYS, start=-2)}, "no_day": None}
_POLARITIES: Final = ("not", "without", "but", "plain", "why")
SHORTEST_STEM: Final = 3  # letters
STEM_SHARE: Final = 0.6
_CLAUSE: Final = re.compile(r",(?=\s)|[;:，；、،؛()]|\s[-–—]\s")
_ADDRESS: Final = re.compile(r"[\w.+-]*[@/\\_][\w@/\\.+:-]*\w", re.ASCII)  # the same words in another order are another
_ARABIC_PREFIX: Final = re.compile(r"^(?:[وفبل]?ال|و?[ايتن])(?=[\u0621-\u064a]{2})")


@dataclass(frozen=True, slots=True)
class FactWords:
    """By language; `ignored` are of all; `synonyms` give a word's group; `health` is what `find_facts` takes;
    `negations` say which phrases begin a clause, or say that theirs is not so.
    """

    stopwords: Mapping[str, frozenset[str]]
    ignored: frozenset[str]
    cues: PhraseMatcher[str]
    synonyms: Mapping[str, str]
    health: str
    negations: Mapping[str, PhraseMatcher[str]]


@dataclass(frozen=True, slots=True)
class CuedSentence:
    """A sentence with a cue in it, and the kind of the cue."""

    sentence: str
    kind: str


def may_state_facts(message: str) -> bool:
    """Returns whether a model should look for facts about the user. Cheap; true if in doubt."""
    own = own_words(message)
    return len(own) <= LONGEST_READ and next(cued_sentences(own), None) is not None


def cued_sentences(message: str) -> Iterator[CuedSentence]:
    """Yields the sentences that may state a fact: no question but one to remember, none that asks to forget."""
    for sentence in sentences_of(message):
        kinds = list(_cues_in(split_words(sentence)))
        if "remember" not in kinds and ("forget" in kinds or _QUESTION.search(sentence)):
            continue
        if kinds:
            yield CuedSentence(sentence, "correction" if "correction" in kinds else kinds[0])


def asks_to_forget(message: str) -> bool:
    """Returns whether the user wants something forgotten: `forget my address`, not `don't forget my birthday`."""
    kinds = [set(_cues_in(split_words(each))) for each in sentences_of(message[:LONGEST_READ])]
    return any("forget" in each and "remember" not in each for each in kinds)


def is_about(text: str, fact: str) -> bool:
    """Returns whether a text has a significant word of a fact in some form, or one of the same meaning."""
    words = split_words(fact)
    synonyms, forms = FACT_WORDS.now.synonyms, set(map(_without_prefix, words))
    meanings = {synonyms[word] for word in words if word in synonyms}
    about = [word for word in split_words(text) if word in synonyms or word not in FACT_WORDS.now.ignored]
    return any(synonyms.get(word) in meanings or _is_among(_without_prefix(word), forms) for word in about)


def is_correction(message: str) -> bool:
    """Returns whether the user retracts something: "no longer Monday"."""
    return "correction" in _cues_in(split_words(message[:LONGEST_READ]))


def search_words(text: str) -> str:
    """Returns the words to search for: those of `index_words` that are no stopwords in the language of the text."""
    words = split_words(text[:LONGEST_READ])
    stopwords = max(FACT_WORDS.now.stopwords.values(), key=lambda stopwords: sum(word in stopwords for word in words))
    meaningful = (word for word in _in_pairs(words) if not _is_stopword(word, stopwords))
    return " ".join(list(dict.fromkeys(meaningful))[:MOST_SEARCH_WORDS])


def index_words(text: str) -> str:
    """Returns the words by which a text is found; in scripts without spaces letters and pairs of letters."""
    words = split_words(text)
    return " ".join([*_in_pairs(words), *filter(is_unspaced, words)])


def split_words(text: str) -> Phrase:
    """Returns the folded words of a text, `l'avvocato` as two."""
    return words_of(_ELISION.sub(r"\1 ", text))


def significant_words(text: str) -> list[str]:
    """Returns the words that are stopwords in no language and do not just name the user."""
    return [word for word in split_words(text) if word not in FACT_WORDS.now.ignored]


def says_all_of(text: str, fact: str) -> bool:
    """Returns whether a text has all words of a fact in their order, and is about the same: it begins as that does."""
    words = iter(split_words(text))
    is_about_same = significant_words(text)[:1] == significant_words(fact)[:1]
    return is_about_same and all(word in words for word in split_words(fact))


def _in_pairs(words: Iterable[str]) -> Iterator[str]:
    for unspaced, together in groupby(words, key=is_unspaced):
        run = list(together)
        yield from map("".join, pairwise(run)) if unspaced and len(run) > 1 else run


def _is_stopword(word: str, stopwords: frozenset[str]) -> bool:
    """A pair of letters is one only if both are: 会 is, 会议 is a meeting."""
    return stopwords.issuperset(word) if is_unspaced(word[0]) else word in stopwords


def _cues_in(words: Phrase) -> Iterator[str]:
    """Yields the kind of the longest cue at each word that begins one."""
    return (kind for _, kind in _phrases_in(words, FACT_WORDS.now.cues) if kind)


def _phrases_in(words: Phrase, matcher: PhraseMatcher[Any]) -> Iterator[tuple[Phrase, Any]]:
    """Yields the longest phrase at each word with its meaning, and the words that begin none with None."""
    at = 0
    while at < len(words):
        length, meaning = matcher.longest_at(words, at) or (1, None)
        yield words[at : at + length], meaning
        at += length


def parse_fact_words(sections: Mapping[str, Any]) -> FactWords:
    """`sections` is `facts.toml`. Raises ValueError for an unknown list of cues, and for a cue in two of a language."""
    cues: dict[Joined, str] = {}
    for language, lists in sections["cues"].items():
        cues |= kinds_by_phrase(f"cues.{language}", lists, CUE_KINDS, phrase_of=split_words)
    stopwords = {language: _words_in(text) for language, text in sections["stopwords"].items()}
    health = (split_words(entry) for text in sections["health"].values() for entry in split_list(text))
    return FactWords(
        stopwords=stopwords,
        ignored=_words_in(sections["retold"]["words"]).union(*stopwords.values()),
        cues=match_phrases(cues.items()),
        synonyms={word: group for group, text in sections["synonyms"].items() for word in _words_in(text)},
        health=" ".join(dict.fromkeys(word for entry in health for word in _in_pairs(entry))),
        negations={
            language: match_phrases(kinds_by_phrase(language, lists, _POLARITIES, phrase_of=split_words).items())
            for language, lists in sections["negations"].items()
        },
    )


def _words_in(text: str) -> frozenset[str]:
    return frozenset(word for entry in split_list(text) for word in split_words(entry))


_NO_PHRASES: Final[PhraseMatcher[str]] = match_phrases(())
FACT_WORDS: Final = WordList("facts.toml", parse_fact_words)


def _read_words(sections: Mapping[str, Any]) -> Mapping[str, PhraseMatcher[int | None]]:
    return {
        language: match_phrases(
            (phrase, _SHIFTS[kind])
            for phrase, kind in kinds_by_phrase(language, lists, _SHIFTS.keys(), phrase_of=split_words).items()
        )
        for language, lists in sections.items()
    }


WORDS: Final = WordList("days.toml", _read_words)


def days_meant(text: str, said_on: date) -> dict[Phrase, str]:
    """Returns by its words each day that a message names so, as a date (ISO 8601)."""
    words, matcher = split_words(text[:LONGEST_READ]), WORDS.now.get(detect_language(text, default=""))
    days: dict[Phrase, str] = {}
    for phrase, shift in _phrases_in(words, matcher) if matcher else ():
        # In Korean `내일` is tomorrow and `내 일` my work: the letters are the same, and each is a word here.
        if shift is not None and (not is_unspaced(phrase[0]) or "".join(phrase) in text):
            days[phrase] = (said_on + timedelta(days=shift)).isoformat()
    return days


def with_dates(fact: str, days: Mapping[Phrase, str]) -> str:
    """Returns a fact, and behind it the dates that it names in the words of `days`, if there is room."""
    words = f" {' '.join(split_words(fact))} "
    named = [day for phrase, day in days.items() if f" {' '.join(phrase)} " in words and day not in fact]
    dated = f"{fact.rstrip(' .。।')} ({', '.join(dict.fromkeys(named))})"
    return dated if named and len(dated) <= MAX_CONTENT_CHARS else fact


def is_said(fact: str, *texts: str) -> bool:
    """Returns whether the texts together have every significant word of the fact, and outside of negations unless it
    has one itself or is their reason; false if the fact has none.
    """
    if not all(any(address in text for text in texts) for address in _ADDRESS.findall(fact)):
        return False
    significant = significant_words(fact)
    language = detect_language(texts[0])
    clauses, of_fact = [each for text in texts for each in _clauses_of(text, language)], [*_clauses_of(fact, language)]
    is_explained = any(each.why for each in of_fact) and any(each.explains for each in clauses)
    takes_all = is_explained or any(each.negated for each in of_fact)
    words = {word for clause in clauses if takes_all or not clause.negated for word in clause.words}
    synonyms = {FACT_WORDS.now.synonyms[word] for word in words if word in FACT_WORDS.now.synonyms}
    forms = set(map(_without_prefix, words))
    return bool(significant) and all(
        FACT_WORDS.now.synonyms.get(word) in synonyms or _is_among(_without_prefix(word), forms) for word in significant
    )


@dataclass(frozen=True, slots=True)
class _FactClause:
    """A part of a sentence: `I eat no nuts`, and `as I am allergic`, which explains that and says of what it is."""

    said: Sequence[tuple[Phrase, str | None]]

    words = property(lambda self: [word for phrase, _ in self.said for word in phrase])
    negated = property(lambda self: any(kind in ("not", "without") for _, kind in self.said))
    why = property(lambda self: any(kind == "why" for _, kind in self.said))

    @property
    def explains(self) -> bool:
        own = [word for phrase, kind in self.said if kind is None for word in phrase]
        return self.why and not self.negated and FACT_WORDS.now.ignored.issuperset(own)


def _clauses_of(text: str, language: str) -> Iterator[_FactClause]:
    matcher = FACT_WORDS.now.negations.get(language, _NO_PHRASES)
    for part in (part for sentence in sentences_of(text) for part in _CLAUSE.split(sentence)):
        said: list[tuple[Phrase, str | None]] = []
        for phrase, kind in _phrases_in(split_words(part), matcher):
            if kind in ("without", "but"):
                yield _FactClause(said)
                said = []
            said.append((phrase, kind))
        yield _FactClause(said)


def _is_among(word: str, forms: set[str]) -> bool:
    return word in forms or (word.isalpha() and any(_is_form_of(word, other) for other in forms))


def _is_form_of(word: str, other: str) -> bool:
    """`preferisce` and `preferisco`: they begin alike, and for most of their length."""
    longer = max(len(word), len(other))
    shared = next((at for at, letters in enumerate(zip(word, other, strict=False)) if len({*letters}) > 1), longer)
    return min(shared, len(word), len(other)) >= max(SHORTEST_STEM, STEM_SHARE * longer)


def _without_prefix(word: str) -> str:
    """Drops the prefixes of an Arabic word: the article, and the person of a verb."""
    return _ARABIC_PREFIX.sub("", word)
