"""The words of facts about the user: whether a message states one, the user said it, and which dates it means. Pure.

A model reads pages and tool results too, so no model decides what is true of a user: every word of a fact has to be in
a message of theirs, up to its ending, or be a synonym; addresses to the letter. Words: `facts.toml`, `days.toml`.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from functools import lru_cache, partial
from itertools import chain, groupby, pairwise, takewhile
from operator import eq
from typing import Any, Final, get_args

from segue.domain.session import MAX_CONTENT_CHARS, MemoryKind
from segue.language.detect_language import detect_language
from segue.language.lexicon import Joined, Phrase, PhraseMatcher, WordList, kinds_by_phrase, match_phrases, split_list
from segue.language.utterance import QUOTATION, is_unspaced, own_words, sentences_of, words_of

LONGEST_READ: Final = 4000  # characters; a longer message was pasted, it is not what the user says
MOST_SEARCH_WORDS: Final = 48
CUE_KINDS: Final = frozenset({*get_args(MemoryKind), "remember", "correction", "forget"})

_QUESTION: Final = re.compile(r"^\W*هل\s|[?？؟吗嗎][\s.。]*$")
# Italian and French elide a word before an apostrophe: two words. In English the two are one.
_ELISION: Final = re.compile(r"(?i)(?<!\w)([cdjlmnst]|qu|un|(?:a|co|da|de|ne|su)ll|quest|quell|dov|com)['’ʼ](?=\w\w)")

_DAYS: Final = ("day_before_yesterday", "yesterday", "today", "tomorrow", "day_after_tomorrow")
_POLARITIES: Final = ("not", "last", "without", "but", "plain", "why", "other", "me")
SHORTEST_STEM: Final = 3  # letters
STEM_SHARE: Final = 0.6
_CLAUSE: Final = re.compile(r",(?=\s)|[;:，；،؛()]|(?<=[\u3040-\u309f])、|\s[-–—]\s")
_ADDRESS: Final = re.compile(r"[\w.+-]*[@/\\_][\w@/\\.+:-]*\w", re.ASCII)  # the same words in another order are another
_ARABIC_PREFIX: Final = re.compile(r"^(?:[وفبل]?ال|و?[ايتن]ا?)(?=[\u0621-\u064a]{2})")


@dataclass(frozen=True, slots=True, eq=False)
class FactWords:
    """By language; `ignored` are of all; `synonyms` give a word's group; `health` is what `find_facts` takes;
    `negations` say which phrases begin a clause, say that theirs is not so, or that it is about another.
    """

    stopwords: Mapping[str, frozenset[str]]
    ignored: frozenset[str]
    cues: PhraseMatcher[str]
    synonyms: Mapping[str, str]
    health: str
    negations: Mapping[str, PhraseMatcher[str]]


def may_state_facts(message: str) -> bool:
    """Returns whether a model should look for facts about the user. Cheap; true if in doubt."""
    own = own_words(message)
    return len(own) <= LONGEST_READ and next(cued_sentences(own), None) is not None


def cued_sentences(message: str) -> Iterator[tuple[str, str]]:
    """Yields the sentences that may state a fact, with the kind of their cue."""
    for sentence, kinds in _statements_of(message):
        if kinds:
            yield sentence, "correction" if "correction" in kinds else kinds[0]


def _statements_of(text: str) -> Iterator[tuple[str, list[str]]]:
    """Yields the sentences with the kinds of their cues, of a question what is before its last clause: `I'm vegan, what
    can I eat?`. Leaves out those that ask to forget, and quotations that state facts unless they are to be remembered.
    """
    unquoted = QUOTATION.sub(lambda quoted: " " if any(_cues_in(split_words(quoted[0]))) else quoted[0], text)
    is_told = unquoted != text and "remember" in _cues_in(split_words(unquoted))
    for sentence in sentences_of(text if is_told else unquoted):
        kinds = list(_cues_in(split_words(sentence)))
        if "remember" in kinds or not ("forget" in kinds or _QUESTION.search(sentence)):
            yield sentence, kinds
        elif "forget" not in kinds:
            asks = (each.start() for each in _CLAUSE.finditer(sentence) if significant_words(sentence[each.end() :]))
            stated = sentence[: max(asks, default=0)]
            kinds = list(_cues_in(split_words(stated)))
            yield stated, kinds if {*kinds} != {"correction"} else []


def told_after_forgetting(message: str) -> str | None:
    """Returns what comes behind the last wish to forget, none of which is `don't forget my birthday`; None if none."""
    sentences = sentences_of(message[:LONGEST_READ])
    kinds = [set(_cues_in(split_words(each))) for each in sentences]
    last = max((at for at, each in enumerate(kinds) if "forget" in each and "remember" not in each), default=None)
    return None if last is None else "\n".join(sentences[last + 1 :])


def is_about(text: str, fact: str) -> bool:
    """Returns whether a text has a significant word of a fact in some form, or of its meaning; `not` is none."""
    words, synonyms, ignored = split_words(fact), FACT_WORDS.now.synonyms, FACT_WORDS.now.ignored
    about = (word for word in split_words(text) if synonyms.get(word, "not" if word in ignored else "") != "not")
    return any(_has_all(words, [word]) for word in about)


def is_correction(message: str) -> bool:
    """Returns whether the user retracts something: "no longer Monday"."""
    return "correction" in _cues_in(split_words(message[:LONGEST_READ]))


def search_words(text: str) -> str:
    """Returns the words to search for: those of `index_words` that are no stopwords in the language of the text."""
    words = split_words(text[:LONGEST_READ])
    stopwords = max(FACT_WORDS.now.stopwords.values(), key=lambda stopwords: sum(word in stopwords for word in words))
    # A pair of letters is a stopword only if both are: 会 is, 会议 is a meeting.
    pairs = ((word, word if is_unspaced(word[0]) else [word]) for word in _in_pairs(words))
    meaningful = (word for word, parts in pairs if not stopwords.issuperset(parts))
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
        negations=_by_language(sections["negations"], kinds=_POLARITIES),
    )


def _by_language(sections: Mapping[str, Any], *, kinds: Collection[str]) -> Mapping[str, PhraseMatcher[str]]:
    return {
        language: match_phrases(kinds_by_phrase(language, lists, kinds, phrase_of=split_words).items())
        for language, lists in sections.items()
    }


def _words_in(text: str) -> frozenset[str]:
    return frozenset(word for entry in split_list(text) for word in split_words(entry))


_NO_PHRASES: Final[PhraseMatcher[str]] = match_phrases(())
FACT_WORDS: Final = WordList("facts.toml", parse_fact_words)
WORDS: Final = WordList("days.toml", partial(_by_language, kinds=(*_DAYS, "no_day")))


def days_meant(text: str, said_on: date) -> dict[Phrase, str]:
    """Returns by its words each day that a message names so, as a date (ISO 8601)."""
    words, matcher = split_words(text[:LONGEST_READ]), WORDS.now.get(detect_language(text, default=""))
    days: dict[Phrase, str] = {}
    for phrase, day in _phrases_in(words, matcher) if matcher else ():
        # In Korean `내일` is tomorrow and `내 일` my work: the letters are the same, and each is a word here.
        if day in _DAYS and (not is_unspaced(phrase[0]) or "".join(phrase) in text):
            days[phrase] = (said_on + timedelta(days=_DAYS.index(day) - _DAYS.index("today"))).isoformat()
    return days


def with_dates(fact: str, days: Mapping[Phrase, str]) -> str:
    """Returns a fact, and behind it the dates that it names in the words of `days`, if there is room."""
    words = f" {' '.join(split_words(fact))} "
    named = [day for phrase, day in days.items() if f" {' '.join(phrase)} " in words and day not in fact]
    dated = f"{fact.rstrip(' .。।')} ({', '.join(dict.fromkeys(named))})"
    return dated if named and len(dated) <= MAX_CONTENT_CHARS else fact


def is_said(fact: str, *texts: str) -> bool:
    """Returns whether the texts together state every significant word of the fact; false if it has none. What they take
    back counts if the fact does so too or is the reason, and what they say of another if it names such a person.
    """
    if not all(any(address in text for text in texts) for address in _ADDRESS.findall(fact)):
        return False
    significant, language = significant_words(fact), detect_language(texts[0])
    of_fact, *of_texts = (_clauses_of(text, language, FACT_WORDS.now) for text in (fact, *texts))
    clauses = [*chain.from_iterable(of_texts)]
    others = _forms(phrase[-1] for clause in clauses for phrase, kind in clause.said if kind == "other")
    if not any(_is_among(word, others) for word in split_words(fact)):
        clauses = [clause for clause in clauses if not clause.is_of_another]
    denials = [clause for clause in of_fact if clause.negated]
    if denials or (any("why" in each.kinds for each in of_fact) and any(each.explains for each in clauses)):
        denied = [word for each in clauses if each.negated or each.is_listed for word in each.words]
        is_so = all(_has_all(denied, each.bare[-1:]) for each in denials)  # what is denied comes last
        return is_so and _has_all([word for clause in clauses for word in clause.words], significant)
    so = [clause for clause in clauses if not clause.negated]
    known = [word for text in texts[1:] for word in split_words(text)]  # "no longer Monday, Tuesday": of the meeting
    is_more = sum(1 for _ in _in_pairs(significant)) > 1  # than a thing of the list: `I have no car, bike or boat`
    alone = ([*each.words, *known] for each in so if each.is_listed and is_more)
    together = [word for each in so if not each.is_listed for word in each.words]
    return bool(significant) and any(_has_all(words, significant) for words in (together, *alone))


def _has_all(words: Collection[str], significant: Collection[str]) -> bool:
    synonyms, forms = FACT_WORDS.now.synonyms, _forms(words)
    meanings = {synonyms[word] for word in words if word in synonyms}
    return all(synonyms.get(word) in meanings or _is_among(word, forms) for word in significant)


@dataclass(slots=True)
class _FactClause:
    """A part of a sentence: `I eat no nuts`, and `as I am allergic`, which explains that and says of what it is. One
    `is_listed` if it may go on with a list that another one takes back: `no meat, fish or eggs`. One with a cue,
    or with the user for its subject, never `goes_on`. `bare` are the words in no list.
    """

    said: Sequence[tuple[Phrase, str | None]]
    bare: Sequence[str]
    is_listed: bool = False
    is_of_another: bool = False

    kinds = property(lambda self: [kind for _, kind in self.said])
    words = property(lambda self: [word for phrase, _ in self.said for word in phrase])
    begins = property(lambda self: self.kinds[:1] in (["but"], ["without"]))
    negated = property(lambda self: not {"not", "last", "without"}.isdisjoint(self.kinds))
    explains = property(lambda self: "why" in self.kinds and not self.negated and not self.bare)
    goes_on = property(lambda self: "me" not in self.kinds and not any(_cues_in(tuple(self.words))))
    names_another = property(lambda self: "other" in self.kinds[:2] and "me" not in self.kinds)


@lru_cache(maxsize=64)  # a message is compared with each of its facts
def _clauses_of(text: str, language: str, known: FactWords) -> Sequence[_FactClause]:
    found: list[_FactClause] = []
    for sentence, _ in _statements_of(text):
        clauses = [*_parted(sentence, known.negations.get(language, _NO_PHRASES))]
        of_another, list_of = False, set[str]()  # the words of the clause that takes back a list
        for each in clauses:
            of_another = each.names_another or (of_another and each.goes_on and not each.begins)
            goes_on = list_of and not each.begins and list_of.isdisjoint(each.words) and each.goes_on
            list_of = {*each.bare} if each.negated else list_of if goes_on else set()
            each.is_of_another, each.is_listed = of_another, bool(list_of)
        list_of = set()
        for each in reversed(clauses):
            goes_on = list_of and list_of.isdisjoint(each.words) and each.goes_on
            list_of = {*each.bare} if "last" in each.kinds else list_of if goes_on else set()
            each.is_listed = each.is_listed or bool(list_of)
            list_of = set() if each.begins else list_of
        found += clauses
    return found


def _parted(sentence: str, matcher: PhraseMatcher[str]) -> Iterator[_FactClause]:
    for part in _CLAUSE.split(sentence):
        said: list[list[tuple[Phrase, str | None]]] = [[]]
        for phrase, kind in _phrases_in(split_words(part), matcher):
            said += [[]] if kind in ("without", "but") else []
            said[-1].append((phrase, kind))
        for each in said:
            bare = [word for phrase, kind in each if not kind for word in phrase]
            yield _FactClause(each, [word for word in bare if word not in FACT_WORDS.now.ignored])


def _forms(words: Iterable[str]) -> set[str]:
    """Returns the words, Arabic ones also without their prefixes: the article, and the person of a verb."""
    return {form for word in words for form in (word, _ARABIC_PREFIX.sub("", word))}


def _is_among(word: str, forms: set[str]) -> bool:
    found = not forms.isdisjoint(own := _forms([word]))
    return found or (word.isalpha() and any(_is_form_of(each, other) for each in own for other in forms))


def _is_form_of(word: str, other: str) -> bool:
    """`preferisce` and `preferisco`: they begin alike, and for most of their length."""
    shared = [*takewhile(bool, map(eq, word, other))]
    return len(shared) >= max(SHORTEST_STEM, STEM_SHARE * max(len(word), len(other)))
