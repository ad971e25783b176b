"""Which words of a message carry meaning, and whether the user may be stating a fact worth keeping.

Pure. The words are `facts.toml`, in fifteen languages. Knows nothing of models and of stored facts.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Any, Final, get_args

from segue.domain.memory import MemoryKind
from segue.language.phrase_matcher import PhraseMatcher, match_phrases
from segue.language.utterance import is_unspaced, own_words, words_of
from segue.language.word_lists import Joined, Phrase, WordList, kinds_by_phrase, split_list

LONGEST_READ: Final = 4000  # characters; a longer message was pasted, it is not what the user says
MOST_SEARCH_WORDS: Final = 48
CUE_KINDS: Final = frozenset({*get_args(MemoryKind), "remember", "correction"})

_SENTENCE_END: Final = re.compile(r"(?<=[。！？؟।\n])|(?<=[.!?…])\s+")
_QUESTION: Final = re.compile(r"[?？؟]\s*$")
# Italian and French elide a word before an apostrophe: two words. In English the two are one.
_ELISION: Final = re.compile(
    r"(?<!\w)([cdjlmnst]|qu|un|(?:a|co|da|de|ne|su)ll|quest|quell|dov|com)['’ʼ](?=\w\w)", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class FactWords:
    """`stopwords` is by language, `ignored` has those of all languages; `synonyms` gives a word's group."""

    stopwords: Mapping[str, frozenset[str]]
    ignored: frozenset[str]
    cues: PhraseMatcher[str]
    synonyms: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class CuedSentence:
    """A sentence with a cue in it, and the kind of the cue."""

    sentence: str
    kind: str


def may_state_facts(message: str) -> bool:
    """Returns whether a model should look for facts about the user. Cheap, and rather true than false."""
    own = own_words(message)
    return len(own) <= LONGEST_READ and next(cued_sentences(own), None) is not None


def cued_sentences(message: str) -> Iterator[CuedSentence]:
    """Yields the sentences that may state a fact. A question states none, unless it asks to remember one."""
    for sentence in _SENTENCE_END.split(message):
        kinds = list(_cues_in(split_words(sentence)))
        if _QUESTION.search(sentence) and "remember" not in kinds:
            continue
        if kinds:
            yield CuedSentence(sentence.strip(), "correction" if "correction" in kinds else kinds[0])


def is_correction(message: str) -> bool:
    """Returns whether the user takes something back: "no longer Monday"."""
    return "correction" in _cues_in(split_words(message[:LONGEST_READ]))


def search_words(text: str) -> str:
    """Returns what to search for: the words of `index_words` that are no stopwords in the language of the text."""
    words = split_words(text[:LONGEST_READ])
    stopwords = max(FACT_WORDS.now.stopwords.values(), key=lambda stopwords: sum(word in stopwords for word in words))
    meaningful = (word for word in _in_pairs(words) if not _is_stopword(word, stopwords))
    return " ".join(list(dict.fromkeys(meaningful))[:MOST_SEARCH_WORDS])


def index_words(text: str) -> str:
    """Returns what a text is found by: words, and in scripts without spaces letters and pairs of letters."""
    words = split_words(text)
    return " ".join([*_in_pairs(words), *filter(is_unspaced, words)])


def split_words(text: str) -> Phrase:
    """Returns the folded words of a text, `l'avvocato` as two."""
    return words_of(_ELISION.sub(r"\1 ", text))


def significant_words(text: str) -> list[str]:
    """Returns the words that are stopwords in no language and do not just name the user."""
    return [word for word in split_words(text) if word not in FACT_WORDS.now.ignored]


def _in_pairs(words: Iterable[str]) -> Iterator[str]:
    for unspaced, together in groupby(words, key=is_unspaced):
        run = list(together)
        yield from map("".join, pairwise(run)) if unspaced and len(run) > 1 else run


def _is_stopword(word: str, stopwords: frozenset[str]) -> bool:
    """A pair of letters is one only if both are: 会 is, 会议 is a meeting."""
    return stopwords.issuperset(word) if is_unspaced(word[0]) else word in stopwords


def _cues_in(words: Phrase) -> Iterator[str]:
    """Yields the kind of the longest cue at each word that begins one."""
    for at in range(len(words)):
        if cue := FACT_WORDS.now.cues.longest_at(words, at):
            yield cue[1]


def parse_fact_words(sections: Mapping[str, Any]) -> FactWords:
    """`sections` is `facts.toml`. Raises ValueError for an unknown list of cues, and for a cue in two of a language."""
    cues: dict[Joined, str] = {}
    for language, lists in sections["cues"].items():
        cues |= kinds_by_phrase(f"cues.{language}", lists, CUE_KINDS, phrase_of=split_words)
    stopwords = {language: _words_in(text) for language, text in sections["stopwords"].items()}
    return FactWords(
        stopwords=stopwords,
        ignored=_words_in(sections["retold"]["words"]).union(*stopwords.values()),
        cues=match_phrases(cues.items()),
        synonyms={word: group for group, text in sections["synonyms"].items() for word in _words_in(text)},
    )


def _words_in(text: str) -> frozenset[str]:
    return frozenset(word for entry in split_list(text) for word in split_words(entry))


FACT_WORDS: Final = WordList("facts.toml", parse_fact_words)
