"""Ranks the tools of a catalogue for a text: by words, and by meaning as far as embeddings are configured and there."""

import asyncio
import math
from array import array
from collections import defaultdict
from collections.abc import Awaitable, Mapping, Sequence
from operator import mul
from typing import Protocol

from segue.agent.tool_choice.index import ToolIndex, asked_words
from segue.domain.tool import ToolSpec
from segue.memory.long_term import Embeddings
from segue.plans.question import tool_words

MAX_INDEXES = 8  # catalogues of agents, and before and after a server's tools change
MAX_EMBEDDED_CHARS = 1000
EMBEDDED_AT_ONCE = 64
RANK_DAMPING = 60  # the usual constant of reciprocal rank fusion

Vectors = Mapping[str, Sequence[float]]


class Embed(Protocol):
    """Returns a vector for each text; None if no embedder is configured or it does not answer."""

    def __call__(self, texts: Sequence[str], *, urgent: bool = False) -> Awaitable[Embeddings | None]: ...


class ToolSearch:
    """One for a process. Tools get their embeddings in the background; until then they are found by words alone."""

    def __init__(self, embed: Embed) -> None:
        self._embed = embed
        self._indexes: dict[tuple[int, ...], tuple[Sequence[ToolSpec], ToolIndex]] = {}
        self._vectors: dict[str, array[float]] = {}
        self._embedding: asyncio.Task[None] | None = None

    async def rank(self, specs: Sequence[ToolSpec], text: str) -> list[str]:
        """Returns names of tools, best first. A tool that has nothing to do with the text may be missing."""
        by_words = await asyncio.to_thread(self._by_words, specs, text)
        asked = await self._embed([text[:MAX_EMBEDDED_CHARS]], urgent=True) if text.strip() else None
        if asked is None:
            return by_words
        vectors = {spec.name: vector for spec in specs if (vector := self._vectors.get(_embedded_text(spec)))}
        if len(vectors) < len(specs) and (self._embedding is None or self._embedding.done()):
            self._embedding = asyncio.create_task(self._embed_missing(specs))
        return fused(by_words, await asyncio.to_thread(nearest, vectors, asked[0]))

    async def close(self) -> None:
        if self._embedding is not None:
            self._embedding.cancel()
            await asyncio.wait([self._embedding])

    def _by_words(self, specs: Sequence[ToolSpec], text: str) -> list[str]:
        key = tuple(map(id, specs))  # the entry keeps them, so no other can have the id of one
        _, index = self._indexes.get(key) or (specs, None)
        if index is None:
            index = ToolIndex(specs)
            if len(self._indexes) >= MAX_INDEXES:
                self._indexes.clear()
            self._indexes[key] = specs, index
        return index.rank(asked_words(text))

    async def _embed_missing(self, specs: Sequence[ToolSpec]) -> None:
        texts = [text for text in dict.fromkeys(map(_embedded_text, specs)) if text not in self._vectors]
        for start in range(0, len(texts), EMBEDDED_AT_ONCE):
            batch = texts[start : start + EMBEDDED_AT_ONCE]
            if (found := await self._embed(batch)) is None:
                return
            self._vectors.update({text: array("f", vector) for text, vector in zip(batch, found, strict=True)})


def fused(*rankings: Sequence[str]) -> list[str]:
    """Returns one ranking of several, by the sum of the reciprocals of a name's ranks (reciprocal rank fusion)."""
    scores: dict[str, float] = defaultdict(float)
    for ranking in rankings:
        for place, name in enumerate(ranking, start=1):
            scores[name] += 1 / (RANK_DAMPING + place)
    return sorted(scores, key=lambda name: (-scores[name], name))


def nearest(vectors: Vectors, asked: Sequence[float]) -> list[str]:
    """Returns the names by the cosine of their vectors with what is asked; another model's may be of another length."""
    found = {name: _cosine(vector, asked) for name, vector in vectors.items() if len(vector) == len(asked)}
    return sorted(found, key=lambda name: (-found[name], name))


def _cosine(one: Sequence[float], other: Sequence[float]) -> float:
    cosine: float = sum(map(mul, one, other)) / (math.hypot(*one) * math.hypot(*other) or 1)
    return cosine


def _embedded_text(spec: ToolSpec) -> str:
    return f"{' '.join(tool_words(spec.name))}: {spec.description}"[:MAX_EMBEDDED_CHARS]
