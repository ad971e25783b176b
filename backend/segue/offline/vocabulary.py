"""The words of the offline model: what a text is about, in which language, and its own sentences in that language.

Pure. Both are in `offline.toml`, the words of actions also in `actions.toml`. Knows nothing of tools and messages.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Self

from segue.language.detect_language import detect_language
from segue.language.utterance import fold
from segue.language.word_lists import load_toml
from segue.plans.conversation_language import conversation_language
from segue.plans.question import ACTIONS

_HAN = re.compile("[\u4e00-\u9fff]")
# A comma or an "and"; what follows is a step of its own if it begins with a verb.
_JOINER = re.compile(
    r"\s*[,，、;；،]\s*(?:(?:and|e|ed|并且?)\s*)?|\s+(?:and|e|ed|y|et|und)\s+|并且?|\s+و(?=\w)", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class Synonyms:
    """Words that mean one thing. Chinese ones are patterns found anywhere, all others are whole words or phrases."""

    words: frozenset[str]
    phrases: tuple[str, ...]
    han: str

    @classmethod
    def of(cls, listed: Sequence[str]) -> Self:
        han = sorted(filter(_HAN.search, listed), key=len, reverse=True)
        spaced = [fold(word) for word in listed if not _HAN.search(word)]
        phrases = tuple(f" {word} " for word in spaced if " " in word)
        return cls(frozenset(word for word in spaced if " " not in word), phrases, "|".join(han))

    def are_in(self, text: str, words: Iterable[str]) -> bool:
        """Whether one of them is in a text; `words` are its `words_of`."""
        if not self.words.isdisjoint(words) or (self.han and re.search(self.han, text)):
            return True
        line = f" {' '.join(words)} " if self.phrases else ""
        return any(phrase in line for phrase in self.phrases)

    def begin(self, word: str) -> bool:
        return fold(word) in self.words or bool(self.han and re.match(self.han, word))


def words_of(text: str) -> list[str]:
    """Returns the folded words of a text; Chinese has no spaces and comes as one."""
    return [fold(word) for word in re.findall(r"\w+", text)]


_VOCABULARY: Mapping[str, Any] = load_toml("offline.toml", package="segue.offline")
_SENTENCES: Mapping[str, Mapping[str, Any]] = _VOCABULARY["say"]
_AMBIGUOUS = frozenset(map(fold, _VOCABULARY["ambiguous"]["words"]))
VERBS = frozenset(_VOCABULARY["verbs"])
NOUNS = frozenset(_VOCABULARY["nouns"])


def _words_for(concept: str) -> Iterator[str]:
    """Returns the words of `actions.toml` that a concept shares; a single Han character would mean too much."""
    for lists, action in product(map(ACTIONS.shipped.__getitem__, _SENTENCES), _VOCABULARY["actions"].get(concept, ())):
        for form in lists.forms(action):
            word = form.replace(" ", "") if _HAN.search(form) else form
            if len(word) > 1 and word not in _AMBIGUOUS:
                yield word


_CONCEPTS = {
    concept: Synonyms.of([*listed, *_words_for(concept)])
    for group in ("verbs", "nouns", "aspects")
    for concept, listed in _VOCABULARY[group].items()
}
_ORDINALS = {int(place): Synonyms.of(listed) for place, listed in _VOCABULARY["ordinals"].items()}
_SEQUENCE = re.compile(
    "|".join(
        word if _HAN.search(word) else rf"(?:,\s*)?(?<!\w){re.escape(word)}(?!\w)"
        for word in _VOCABULARY["sequence"]["words"]
    ),
    re.IGNORECASE,
)
_FILLER = Synonyms.of(_VOCABULARY["filler"]["words"])
_SMALL = (_FILLER, _CONCEPTS["oldest"], *_ORDINALS.values())


def concepts(text: str) -> frozenset[str]:
    """Returns the concepts of `offline.toml` that a text speaks of."""
    words = words_of(text)
    return frozenset(concept for concept, synonyms in _CONCEPTS.items() if synonyms.are_in(text, words))


def stems(text: str) -> frozenset[str]:
    """Returns the telling words of a text without a plural s, to compare with the names of tools."""
    kept = words_of(strip_words(text, VERBS))
    return frozenset(re.sub(r"(?<=[^s])s$", "", re.sub("ies$", "y", word)) for word in kept if len(word) > 3)  # noqa: PLR2004


def ordinal(text: str) -> int:
    """Returns the place in a list that a text speaks of, from 0; 0 if it speaks of none."""
    words = words_of(text)
    return next((place for place, synonyms in _ORDINALS.items() if synonyms.are_in(text, words)), 0)


def names_only_a_place(text: str) -> bool:
    """Whether a text says which one of a list and nothing else: `and the second?`."""
    words = words_of(text)
    placed = any(synonyms.are_in(text, words) for synonyms in (*_ORDINALS.values(), _CONCEPTS["oldest"]))
    return placed and not strip_words(text, ())


def is_order(text: str) -> bool:
    """Returns whether a text begins with something to be done: `please call my wife`, `voglio leggere …`."""
    first = next((word for word in re.findall(r"\w+", _without(text, (_FILLER,)))), "")
    return _CONCEPTS["ask"].begin(text.strip()) or any(_CONCEPTS[verb].begin(first) for verb in VERBS)


def strip_words(text: str, dropped: Iterable[str]) -> str:
    """Returns a text without the words of these concepts, ordinals and small words."""
    return _without(text, (*_SMALL, *(_CONCEPTS[concept] for concept in sorted(dropped) if concept in _CONCEPTS)))


def _without(text: str, unwanted: Sequence[Synonyms]) -> str:
    for pattern in sorted((part for each in unwanted for part in each.han.split("|") if part), key=len, reverse=True):
        text = re.sub(pattern, " ", text)
    for phrase in (phrase.strip() for each in unwanted for phrase in each.phrases):
        text = re.sub(rf"(?<!\w){phrase}(?!\w)", " ", text, flags=re.IGNORECASE)
    words = frozenset().union(*(each.words for each in unwanted))
    kept = (word.strip("._-+") for word in re.findall(r"[\w@.+-]+", text))
    return " ".join(word for word in kept if word and fold(word) not in words)


def split_steps(text: str) -> list[str]:
    """Returns the parts of a request, cut at every "then", and at every "and" and comma with a verb after it."""
    pieces = (piece for each in _SEQUENCE.split(text) for piece in _split_joined(each))
    return [part for part in (piece.strip(" ,.;:、，。；،") for piece in pieces) if part]


def _split_joined(text: str) -> Iterator[str]:
    start = 0
    for joiner in _JOINER.finditer(text):
        if is_order(text[joiner.end() :]):
            yield text[start : joiner.start()]
            start = joiner.end()
    yield text[start:]


def reply_language(messages: Sequence[str]) -> str:
    """Returns the language of the newest message that shows one: `en`, `it`, `zh` or `ar`; `en` if none does."""
    spoken = (text for text in reversed(messages) if detect_language(text, default="") in _SENTENCES)
    return conversation_language(spoken) or "en"


def sentence(language: str, key: str, **values: object) -> str:
    """Returns a sentence of `offline.toml` with its values filled in."""
    return str(_SENTENCES[language][key]).format(**values)


def entry(language: str, key: str) -> Mapping[str, Any]:
    """Returns a table of `offline.toml`: texts by concept."""
    found: Mapping[str, Any] = _SENTENCES[language][key]
    return found


def found_sentence(language: str, *, noun: str, number: int, query: str) -> str:
    """Returns the sentence that says how many things were found."""
    about = sentence(language, "about", query=query) if query else ""
    if not number:
        return sentence(language, "nothing_found", about=about)
    forms = _SENTENCES[language]["nouns"].get(noun, _SENTENCES[language]["nouns"]["thing"])
    return sentence(language, "found", things=_counted(number, forms), about=about)


def _counted(number: int, forms: Sequence[str]) -> str:
    # The forms are for one, two, a few (as Arabic counts) and many; a language with fewer has its last for the rest.
    place = number - 1 if number <= 2 else 2 if 3 <= number % 100 <= 10 else 3  # noqa: PLR2004 (Arabic grammar)
    return forms[min(place, len(forms) - 1)].format(n=number)
