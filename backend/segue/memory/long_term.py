"""What is known of a user beyond the session: recalled for a turn, searched, and taken in.

Full text always; embeddings beside it where an embedder is given and Postgres has pgvector, and never waited for long.
Knows nothing of models or tools: `agent/` embeds, `turn/afterwards.py` extracts. Rows are `knowledge.py`'s.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Protocol

import structlog
from sqlalchemy.ext.asyncio import AsyncConnection

from segue.db.engine import Database
from segue.domain.memory import Memory, MemoryKind, NewFact
from segue.domain.session import Message
from segue.memory import facts
from segue.memory.fact_cues import LONGEST_READ, is_correction, search_words
from segue.memory.facts import Source
from segue.memory.history import recent_user_messages
from segue.memory.verify_fact import is_said

MOST_RECALLED = 5
NEAREST_RECALLED = 3  # something is always nearest: it must not take the places of what is sure to help
NEAREST_FOUND = 10
SAME_MEANING = 0.85
RANK_DAMPING = 60  # of reciprocal rank fusion: how little the first places count for more than the next
EMBEDDED_AT_ONCE = 64

log = structlog.get_logger()

Embeddings = Sequence[Sequence[float]]


class Embedder(Protocol):
    """`embed` gives a vector for each text, or None where the endpoint fails or takes too long."""

    model: str

    async def embed(self, texts: Sequence[str], *, urgent: bool) -> Embeddings | None: ...


class LongTermMemory:
    def __init__(self, database: Database, embedder: Embedder | None = None) -> None:
        self._database = database
        self._embedder = embedder
        self._has_vectors: bool | None = None

    async def recall(self, owner: str, message: str, *, now: datetime, limit: int = MOST_RECALLED) -> list[Memory]:
        """What is known that a message is about, best first, then what always may be of use."""
        found, near = await self._find(owner, message, limit=limit, nearest=NEAREST_RECALLED, now=now)
        about = fused([each.memory for each in found if each.matches], near)
        standing = [each.memory for each in found if not each.matches and each.memory not in near]
        return [*about, *standing][:limit]

    async def search(self, owner: str, query: str, *, now: datetime, limit: int) -> list[Memory]:
        found, near = await self._find(owner, query, limit=limit, nearest=NEAREST_FOUND, now=now)
        return fused([each.memory for each in found if each.matches], near)[:limit]

    async def remember(
        self, owner: str, session_id: str, content: str, kind: MemoryKind, *, now: datetime
    ) -> Memory | None:
        """Takes in what the user said in this session. None where no message of theirs says it: a page may have.

        What a message leaves out may stand in one fact that is known; a correction replaces that one.
        """
        async with self._database.read_only() as connection:
            said = await recent_user_messages(connection, owner, session_id)
        source, leans_on = _who_said(content, said, ()), None
        if source is None:
            known = await self.recall(owner, content, now=now)
            source, leans_on = next(
                ((found, fact) for fact in known if (found := _who_said(content, said, (fact.content,)))), (None, None)
            )
        if source is None:
            return None
        corrected = leans_on.id if leans_on and is_correction(str(source.content)) else None
        async with self._database.transaction() as connection:
            return await facts.add_fact(
                connection,
                owner,
                NewFact(content, kind, supersedes=corrected),
                now=now,
                source=Source(session_id, source.id),
            )

    async def embed(self, texts: Sequence[str], *, urgent: bool = False) -> Embeddings | None:
        """None where nothing is configured, the server has no pgvector, or the endpoint does not answer."""
        if self._embedder is None or not texts or not await self._vectors_work():
            return None
        return await self._embedder.embed(texts, urgent=urgent)

    async def take_in(
        self,
        connection: AsyncConnection,
        owner: str,
        fact: NewFact,
        *,
        now: datetime,
        source: Source,
        embedding: Sequence[float] | None,
    ) -> Memory:
        """In the caller's transaction. A known fact that means the same gives way, for this is how it was said last;
        those of one message stand side by side.
        """
        memory = await facts.add_fact(connection, owner, fact, now=now, source=source)
        if embedding is None or self._embedder is None:
            return memory
        model = self._embedder.model
        for known, cosine in await facts.nearest_facts(connection, owner, model, embedding, limit=MOST_RECALLED):
            if cosine >= SAME_MEANING and known.message_id != source.message_id:
                await facts.supersede(connection, owner, known.id, by=memory.id)
        await facts.set_embeddings(connection, model, [(memory.id, embedding)])
        return memory

    async def embed_missing(self) -> int:
        """Gives facts their embedding that were stored without one, or under another model, and says to how many."""
        if self._embedder is None or not await self._vectors_work():
            return 0
        async with self._database.read_only() as connection:
            lacking = await facts.facts_without_embedding(connection, self._embedder.model, limit=EMBEDDED_AT_ONCE)
        embeddings = await self.embed([content for _, content in lacking])
        if embeddings is None:
            return 0
        found = [(memory_id, embedding) for (memory_id, _), embedding in zip(lacking, embeddings, strict=True)]
        async with self._database.transaction() as connection:
            await facts.set_embeddings(connection, self._embedder.model, found)
        return len(found)

    async def _find(
        self, owner: str, text: str, *, limit: int, nearest: int, now: datetime
    ) -> tuple[list[facts.Found], list[Memory]]:
        """By words, and by meaning where that works. No connection is held while the embedding is waited for."""
        embeddings = await self.embed([text[:LONGEST_READ]], urgent=True)
        async with self._database.read_only() as connection:
            found = await facts.find_facts(connection, owner, search_words(text), limit=limit, now=now)
            if embeddings is None or self._embedder is None:
                return found, []
            near = await facts.nearest_facts(connection, owner, self._embedder.model, embeddings[0], limit=nearest)
        return found, [memory for memory, _ in near]

    async def _vectors_work(self) -> bool:
        if self._has_vectors is None:
            self._has_vectors = await self._database.has_vectors()
            if not self._has_vectors:
                log.warning("pgvector_missing", consequence="facts are found by their words alone")
        return self._has_vectors


def fused(*rankings: Sequence[Memory]) -> list[Memory]:
    """One ranking of several, by the sum of the reciprocals of a fact's places (reciprocal rank fusion)."""
    scores: dict[str, float] = defaultdict(float)
    for ranking in rankings:
        for place, memory in enumerate(ranking, start=1):
            scores[memory.id] += 1 / (RANK_DAMPING + place)
    known = {memory.id: memory for ranking in rankings for memory in ranking}
    return sorted(known.values(), key=lambda memory: -scores[memory.id])


def _who_said(content: str, said: Iterable[Message], also: Sequence[str]) -> Message | None:
    """A message as long as a document was pasted: what stands in it is not what the user says of himself."""
    spoken = (message for message in said if len(message.content) <= LONGEST_READ)
    return next((message for message in spoken if is_said(content, str(message.content), *also)), None)
