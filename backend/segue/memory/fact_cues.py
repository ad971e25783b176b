"""What the words of a message say: which carry its meaning, and whether it may tell something worth keeping.

Pure. The words are data, `language.toml`, in fifteen languages. Above stand `grounding.py` and `long_term.py`.
"""

import re
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Any, Final, get_args

from segue.domain.memory import MemoryKind
from segue.language.utterance import is_unspaced, words_of
from segue.language.word_lists import read_toml

LONGEST_READ: Final = 4000  # characters; what is longer was pasted, not said
MOST_SEARCH_WORDS: Final = 48
CUE_KINDS: Final = frozenset({*get_args(MemoryKind), "remember", "correction"})

_SENTENCE_END: Final = re.compile(r"(?<=[。！？؟।\n])|(?<=[.!?…])\s+")
_QUESTION: Final = re.compile(r"[?？؟]\s*$")
# What Italian and French write before an apostrophe is a word of its own; in English the two are one.
_ELISION: Final = re.compile(
    r"(?<!\w)([cdjlmnst]|qu|un|(?:a|co|da|de|ne|su)ll|quest|quell|dov|com)['’ʼ](?=\w\w)", re.IGNORECASE
)

Phrase = tuple[str, ...]
# By first word, longest phrase first; each with its kind.
Phrases = Mapping[str, tuple[tuple[Phrase, str], ...]]


@dataclass(frozen=True, slots=True)
class Language:
    """The lists of `language.toml`. `alike` gives the group of words that a word belongs to."""

    little: Mapping[str, frozenset[str]]
    meaningless: frozenset[str]
    cues: Phrases
    alike: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Told:
    """A sentence with a cue in it, and what kind of cue that is."""

    sentence: str
    kind: str


def may_tell_facts(message: str) -> bool:
    """Cheap and generous: whether it is worth asking a model what the user said of himself."""
    return len(message) <= LONGEST_READ and next(told_in(message), None) is not None


def told_in(message: str) -> Iterator[Told]:
    """The sentences that tell something. A question tells nothing, unless it asks for it to be remembered."""
    for sentence in _SENTENCE_END.split(message):
        kinds = list(_cues_in(said_words(sentence)))
        if _QUESTION.search(sentence) and "remember" not in kinds:
            continue
        if kinds:
            yield Told(sentence.strip(), "correction" if "correction" in kinds else kinds[0])


def corrects(message: str) -> bool:
    """Whether the user takes back something: "no longer Monday"."""
    return "correction" in _cues_in(said_words(message[:LONGEST_READ]))


def search_words(text: str) -> str:
    """What to look for: the words that carry meaning in the language of the text, see `index_words`."""
    words = said_words(text[:LONGEST_READ])
    little = max(LANGUAGE.little.values(), key=lambda little: sum(word in little for word in words))
    meaningful = (word for word in _in_pairs(words) if not _is_little(word, little))
    return " ".join(list(dict.fromkeys(meaningful))[:MOST_SEARCH_WORDS])


def index_words(text: str) -> str:
    """What a text is found by: letters and pairs of them where a script writes no spaces, words elsewhere."""
    words = said_words(text)
    return " ".join([*_in_pairs(words), *filter(is_unspaced, words)])


def said_words(text: str) -> Phrase:
    return words_of(_ELISION.sub(r"\1 ", text))


def significant_words(text: str) -> list[str]:
    """The words that are not little in any language, and do not just name the user."""
    return [word for word in said_words(text) if word not in LANGUAGE.meaningless]


def _in_pairs(words: Iterable[str]) -> Iterator[str]:
    for unspaced, together in groupby(words, key=is_unspaced):
        run = list(together)
        yield from map("".join, pairwise(run)) if unspaced and len(run) > 1 else run


def _is_little(word: str, little: frozenset[str]) -> bool:
    """A pair of letters is little only if both are: 会 is, 会议 is a meeting."""
    return little.issuperset(word) if is_unspaced(word[0]) else word in little


def _cues_in(words: Phrase) -> Iterator[str]:
    """The kind of the longest cue at each word that begins one."""
    for at, word in enumerate(words):
        for phrase, kind in LANGUAGE.cues.get(word, ()):
            if words[at : at + len(phrase)] == phrase:
                yield kind
                break


def parse_language(toml: str) -> Language:
    """Raises ValueError on a list of cues that is none of CUE_KINDS."""
    sections: Mapping[str, Any] = tomllib.loads(toml)
    for language, lists in sections["cues"].items():
        if unknown := lists.keys() - CUE_KINDS:
            raise ValueError(f"[cues.{language}] has {sorted(unknown)}; the lists are {', '.join(sorted(CUE_KINDS))}")
    little = {language: _words_in(text) for language, text in sections["little"].items()}
    return Language(
        little=little,
        meaningless=_words_in(sections["retold"]["words"]).union(*little.values()),
        cues=_by_first_word(
            (phrase, kind) for lists in sections["cues"].values() for kind in lists for phrase in _listed(lists[kind])
        ),
        alike={word: group for group, text in sections["alike"].items() for word in _words_in(text)},
    )


def _words_in(text: str) -> frozenset[str]:
    return frozenset(word for phrase in _listed(text) for word in phrase)


def _listed(text: str) -> list[Phrase]:
    return [phrase for part in text.split(",") if (phrase := said_words(part))]


def _by_first_word(entries: Iterable[tuple[Phrase, str]]) -> Phrases:
    grouped: dict[str, list[tuple[Phrase, str]]] = defaultdict(list)
    for phrase, kind in sorted(dict(entries).items(), key=lambda entry: -len(entry[0])):
        grouped[phrase[0]].append((phrase, kind))
    return {word: tuple(found) for word, found in grouped.items()}


LANGUAGE: Final = parse_language(read_toml("facts.toml"))
