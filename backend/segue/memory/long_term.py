"""Facts about a user across sessions: given to a turn, searched, and stored. A turn gets all facts as far as they fit a
budget of tokens. Searches by words, and by meaning if an embedder is given and Postgres has pgvector.
"""

from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import KW_ONLY, dataclass
from datetime import datetime
from typing import Protocol, TypeVar

from segue.db.engine import Connection, Database
from segue.domain.errors import AppError
from segue.domain.ids import local_time
from segue.domain.session import Memory, MemoryKind, Message, NewFact
from segue.language.lexicon import Phrase
from segue.log import log
from segue.memory import fact_cues, fact_store
from segue.memory.history import recent_user_messages, said_by_user
from segue.memory.history_window import estimate
from segue.users.usage import Payer

LEAST_TOKENS = 15  # of a fact in a prompt: its date and kind
MESSAGES_THAT_ASK = 2  # of the user: the last one may say yes to the question of what to forget
MOST_RECALLED = 5
NEAREST_RECALLED = 3  # something is always nearest: it must not displace what is sure to help
SAME_MEANING = 0.85
RANK_DAMPING = 60  # the usual constant of reciprocal rank fusion
EMBEDDED_AT_ONCE = 64

Embeddings = Sequence[Sequence[float]]
Ranked = TypeVar("Ranked", Memory, str)


class Embedder(Protocol):
    """`embed` returns a vector for each text, None if the endpoint fails. Raises AppError if a cap leaves no room."""

    model: str

    @property
    def unpriced(self) -> tuple[str, ...]: ...

    async def embed(self, texts: Sequence[str], *, payer: Payer | None, urgent: bool) -> Embeddings | None: ...


@dataclass(eq=False, repr=False)
class LongTermMemory:
    """`noted(owner, fact)` is called once a fact is committed: by `remember`, and by the callers of `store`."""

    database: Database
    embedder: Embedder | None = None
    noted: Callable[[str, Memory], None] = lambda owner, fact: None  # noqa: ARG005 (their names)
    _: KW_ONLY
    budget: int = 1500  # in tokens
    stop_learning: Callable[..., Awaitable[None]]

    def __post_init__(self) -> None:
        self._has_vectors: bool | None = None
        self._at_once = EMBEDDED_AT_ONCE
        self._is_any = False  # whether the next facts to embed are drawn by lot
        self.unpriced = self.embedder.unpriced if self.embedder else ()

    async def given(self, payer: Payer, message: str, *, now: datetime) -> list[Memory]:
        """Returns all facts if they fit the budget, oldest first, so that a prompt begins as the one before. Of more:
        those about health and safety, about the message's subject, of general use, and the newest.
        """
        most, owner = self.budget // LEAST_TOKENS, payer[0]
        known = await self.database.read(fact_store.oldest_facts, owner, limit=most + 1)
        if len(known) <= most and sum(map(_tokens, known)) <= self.budget:
            return known
        about = await self.recall(payer, message, now=now, limit=most)
        async with self.database.read_only() as connection:
            health = fact_cues.FACT_WORDS.now.health
            vital, _ = await fact_store.find_facts(connection, owner, health, limit=most, now=now)
            newest = await fact_store.list_facts(connection, owner, before=None, limit=most)
        fitting, left = [], self.budget
        for fact in dict.fromkeys([*vital, *about, *(fact for fact, _ in newest)]):
            if (tokens := _tokens(fact)) <= left:
                left -= tokens
                fitting.append(fact)
        return sorted(fitting, key=lambda fact: fact.id)

    async def recall(self, payer: Payer, message: str, *, now: datetime, limit: int = MOST_RECALLED) -> list[Memory]:
        """Returns the facts that a message is about, best first, then those that may always be of use."""
        about, useful = await self._find(payer, message, limit=limit, nearest=NEAREST_RECALLED, now=now)
        return [*about, *useful][:limit]

    async def search(self, payer: Payer, query: str, *, now: datetime, limit: int) -> list[Memory]:
        """Returns the facts that a query is about, best first."""
        about, _ = await self._find(payer, query, limit=limit, nearest=10, now=now)
        return about[:limit]

    async def remember(
        self, owner: str, session_id: str, content: str, kind: MemoryKind, *, now: datetime, time_zone: str = "UTC"
    ) -> Memory | None:
        """Stores a statement of the user's in this session. Returns None if no message of theirs has it: a page may
        have. A correction may lean on the fact it corrects, and replaces it: "no longer Monday" leaves out what is on
        Monday. The dates that "tomorrow" and the like mean in the user's time zone are put behind it.
        """
        messages = await self._said(owner, session_id)
        source, leans_on = _message_that_says(content, messages, time_zone), None
        if source is None:
            known = await self.recall((owner, session_id), content, now=now)
            saying = ((_message_that_says(content, messages, time_zone, fact.content), fact) for fact in known)
            source, leans_on = next(((message, fact) for message, fact in saying if message), (None, None))
        if source is None:
            return None
        corrected = leans_on.id if leans_on and fact_cues.is_correction(said_by_user(source)) else None
        new = NewFact(fact_cues.with_dates(content, _days(source, time_zone)), kind, supersedes=corrected)
        told_by = fact_store.FactSource(session_id, source.id)
        fact = await self.database.transact(fact_store.add_fact, owner, new, now=now, source=told_by)
        self.noted(owner, fact)
        return fact

    async def says(self, owner: str, session_id: str, content: str, time_zone: str) -> bool:
        """Returns whether a message of the user's in this session states this: a page may have."""
        return _message_that_says(content, await self._said(owner, session_id), time_zone) is not None

    async def forget(self, owner: str, session_id: str, contents: Collection[str]) -> list[str] | None:
        """Deletes the facts of these words and those they replaced; returns their contents. None if the user has not
        asked for it in their last messages of this session: a page may have.
        """
        said = [said_by_user(each) for each in (await self._said(owner, session_id))[:MESSAGES_THAT_ASK]]
        behind = [fact_cues.told_after_forgetting(each) for each in said]
        if behind.count(None) == len(behind):
            return None
        tells_more = fact_cues.may_state_facts(said[0] if behind[0] is None else behind[0])
        async with self.database.transaction() as connection:
            await self.stop_learning(connection, owner, session_id, but_running=tells_more)  # from what was said before
            return await fact_store.delete_facts_that_say(connection, owner, contents)

    async def embed(self, texts: Sequence[str], *, payer: Payer | None, urgent: bool = False) -> Embeddings | None:
        """Returns None if no embedder is configured, Postgres has no pgvector, the endpoint does not answer, or a cap
        leaves no room. Without a payer it is for the service, which has no account.
        """
        if self.embedder is None or not texts or not await self._vectors_work():
            return None
        try:
            return await self.embedder.embed(texts, payer=payer, urgent=urgent)
        except AppError as error:
            log.warning("embedding_not_asked", code=error.code, reason=error.detail, texts=len(texts))
            return None

    async def store(
        self,
        connection: Connection,
        owner: str,
        fact: NewFact,
        *,
        now: datetime,
        source: fact_store.FactSource,
        embedding: Sequence[float] | None,
    ) -> Memory:
        """Stores a fact in the caller's transaction. It supersedes earlier ones of the same meaning, if it says all of
        them: that two children may not eat nuts are two facts, however close their embeddings are.
        """
        memory = await fact_store.add_fact(connection, owner, fact, now=now, source=source)
        if embedding is None or self.embedder is None:
            return memory
        model = self.embedder.model
        for known, cosine in await fact_store.nearest_facts(connection, owner, model, embedding, limit=MOST_RECALLED):
            is_told_again = known.message_id != source.message_id and cosine >= SAME_MEANING
            if is_told_again and fact_cues.says_all_of(memory.content, known.content):
                await fact_store.supersede(connection, owner, known.id, by=memory.id)
        await fact_store.set_embeddings(connection, model, [(memory.id, memory.content, embedding)])
        return memory

    async def embed_missing(self) -> int:
        """Embeds at most EMBEDDED_AT_ONCE facts that lack this model's, if their owners can pay. Returns how many."""
        if self.embedder is None or not await self._vectors_work():
            return 0
        model, missing = self.embedder.model, fact_store.facts_without_embedding
        lacking = await self.database.read(missing, model, limit=self._at_once, is_any=self._is_any)
        found: list[tuple[str, str, Sequence[float]]] = []
        has_failed, self._is_any = False, False
        for owner, facts in lacking.items():
            try:
                texts = [content for _, content in facts]
                embeddings = await self.embedder.embed(texts, payer=(owner, ""), urgent=False)
            except AppError:
                self._is_any = True
                continue
            has_failed = has_failed or embeddings is None
            found += [(*fact, embedding) for fact, embedding in zip(facts, embeddings or (), strict=False)]
        self._at_once = max(self._at_once // 2, 1) if has_failed else min(self._at_once * 2, EMBEDDED_AT_ONCE)
        self._is_any = self._is_any or self._at_once < EMBEDDED_AT_ONCE
        if found:
            await self.database.transact(fact_store.set_embeddings, model, found)
        return len(found)

    async def _find(
        self, payer: Payer, text: str, *, limit: int, nearest: int, now: datetime
    ) -> tuple[list[Memory], list[Memory]]:
        """Returns the facts that a text is about, best first, and others that may always be of use. Searches by words,
        and by meaning if that works. Holds no connection while it waits for the embedding.
        """
        embeddings = await self.embed([text[: fact_cues.LONGEST_READ]], payer=payer, urgent=True)
        near: list[tuple[Memory, float]] = []
        owner, _ = payer
        async with self.database.read_only() as connection:
            words = fact_cues.search_words(text)
            found, useful = await fact_store.find_facts(connection, owner, words, limit=limit, now=now)
            if embeddings is not None and self.embedder is not None:
                model = self.embedder.model
                near = await fact_store.nearest_facts(connection, owner, model, embeddings[0], limit=nearest)
        about = fused(found, [fact for fact, _ in near])
        return about, [fact for fact in useful if fact not in about]

    async def _said(self, owner: str, session_id: str) -> list[Message]:
        return await self.database.read(recent_user_messages, owner, session_id)

    async def _vectors_work(self) -> bool:
        if self._has_vectors is None:
            self._has_vectors = await self.database.has_vectors()
            if not self._has_vectors:
                log.warning("pgvector_missing", consequence="facts are found by their words alone")
        return self._has_vectors


def fused(*rankings: Sequence[Ranked]) -> list[Ranked]:
    """Returns one ranking of several, by the sum of the reciprocals of each one's ranks (reciprocal rank fusion)."""
    scores: dict[Ranked, float] = defaultdict(float)
    for ranking in rankings:
        for place, each in enumerate(ranking, start=1):
            scores[each] += 1 / (RANK_DAMPING + place)
    return sorted(scores, key=lambda each: -scores[each])


def _tokens(fact: Memory) -> int:
    return LEAST_TOKENS + estimate(fact.content)


def _days(message: Message, time_zone: str) -> dict[Phrase, str]:
    return fact_cues.days_meant(said_by_user(message), local_time(message.created_at, time_zone).date())


def _message_that_says(content: str, messages: Iterable[Message], time_zone: str, *also: str) -> Message | None:
    # A message as long as a document was pasted: it is not the user who speaks in it.
    spoken = ((each, said_by_user(each)) for each in messages if len(each.content) <= fact_cues.LONGEST_READ)
    says = (each for each, own in spoken if fact_cues.is_said(content, own, *_days(each, time_zone).values(), *also))
    return next(says, None)
