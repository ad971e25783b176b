"""Finds the tools of a catalogue that a text is about, by their words. Pure.

BM25: a word counts for more the fewer tools have it, and in a tool's name more than elsewhere. A second look with the
words that the best tools share finds what belongs to them: who moves a file may have to change the folder first.
"""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, Final

from segue.domain.tool import ToolSpec
from segue.memory.fact_cues import search_words
from segue.plans.question import english_words, tool_words

IN_NAME, IN_TEXT, IN_ARGUMENT, IN_ARGUMENT_TEXT = 3.0, 1.0, 0.5, 0.25
ACTION, THING = 0.15, 0.25  # of a word that the text itself has; English has many words for one action
SATURATION, LENGTH = 1.2, 0.3  # BM25's k1 and b
BEST, SHARED_WORDS, SHARED = 5, 30, 0.5  # the tools whose words are shared, how many words, and their weight together

STEM_LETTERS: Final = 7
_ENDING: Final = re.compile(r"(?<=...)[aeios]+$")  # `emails`, `fatture` and `fattura` lose theirs

Weights = Mapping[str, float]


def asked_words(text: str) -> Weights:
    """Returns what to look for: the text's telling words, and English ones for the actions and things it names."""
    actions, things = english_words(text)
    own = dict.fromkeys(_stems(search_words(text).split()), 1.0)
    return dict.fromkeys(_stems(actions), ACTION) | dict.fromkeys(_stems(things), THING) | own


class ToolIndex:
    """Takes a tenth of a millisecond for each tool to make."""

    def __init__(self, specs: Sequence[ToolSpec]) -> None:
        self._names = [spec.name for spec in specs]
        self._words = [_words_of(spec) for spec in specs]
        lengths = [sum(words.values()) for words in self._words]
        mean = sum(lengths) / max(len(lengths), 1)
        counts = Counter(chain.from_iterable(self._words))
        self._rarity = {
            word: math.log(1 + (len(specs) - count + 0.5) / (count + 0.5)) for word, count in counts.items()
        }
        self._entries: dict[str, list[tuple[int, float]]] = defaultdict(list)
        for place, (words, length) in enumerate(zip(self._words, lengths, strict=True)):
            bound = SATURATION * (1 - LENGTH + LENGTH * length / mean) if mean else 1
            for word, weight in words.items():
                score = self._rarity[word] * weight * (SATURATION + 1) / (weight + bound)
                self._entries[word].append((place, score))

    def rank(self, asked: Weights) -> list[str]:
        """Returns the tools that share a word with what is asked or with the best of those, best first."""
        scores = self._scores(asked)
        if not scores:
            return []
        best = self._sorted(scores)[:BEST]
        for place, score in self._scores(self._shared(best, scores)).items():
            scores[place] += score
        return [self._names[place] for place in self._sorted(scores)]

    def _scores(self, asked: Weights) -> dict[int, float]:
        scores: dict[int, float] = defaultdict(float)
        for word, weight in asked.items():
            for place, score in self._entries.get(word, ()):
                scores[place] += weight * score
        return scores

    def _shared(self, best: Sequence[int], scores: Mapping[int, float]) -> Weights:
        """Returns the words that tell the best tools from the others, at most SHARED each."""
        shared: Counter[str] = Counter()
        for place in best:
            for word, weight in self._words[place].items():
                shared[word] += min(weight, 2.0) * self._rarity[word] * scores[place]  # type: ignore[assignment]
        words = sorted(shared, key=lambda word: (-shared[word], word))[:SHARED_WORDS]
        return {word: SHARED * shared[word] / shared[words[0]] for word in words}

    def _sorted(self, scores: Mapping[int, float]) -> list[int]:
        return sorted(scores, key=lambda place: (-scores[place], self._names[place]))


def _words_of(spec: ToolSpec) -> dict[str, float]:
    """Returns the stems of a tool's texts with their weights; the name of its server counts as a text."""
    found: dict[str, float] = defaultdict(float)
    server = tool_words(spec.source.partition(":")[2])
    parts: list[tuple[float, Sequence[str]]] = [(IN_NAME, tool_words(spec.name)), (IN_TEXT, server)]
    parts += [(IN_TEXT, search_words(text).split()) for text in (spec.title, spec.description) if text]
    properties = spec.input_schema.get("properties")
    arguments: Mapping[str, Any] = properties if isinstance(properties, Mapping) else {}
    described = " ".join(filter(None, map(_described, arguments.values())))
    parts += [(IN_ARGUMENT, tool_words(" ".join(arguments))), (IN_ARGUMENT_TEXT, search_words(described).split())]
    for weight, words in parts:
        for stem in _stems(words):
            found[stem] += weight
    return dict(found)


def _described(schema: Any) -> str:
    return str(schema.get("description") or "") if isinstance(schema, Mapping) else ""


def _stems(words: Iterable[str]) -> list[str]:
    return [_ENDING.sub("", word)[:STEM_LETTERS] for word in words]
