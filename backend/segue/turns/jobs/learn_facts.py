"""Extracts facts about the user from their messages of a turn, after its answer; only their own words are stored. Owns
`turns.facts_due_at`: set with a message that has a cue, cleared with its facts, so a fact survives any crash.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, timedelta
from functools import partial
from itertools import repeat

from pydantic import BaseModel, Field, ValidationError
from sqlalchemy import case, exists, func, null, or_, select, update

from segue.agent.prompts import TEXTS, as_json
from segue.db.engine import Connection, Database
from segue.db.models import sessions, turns
from segue.db.rows import LEASE, claim_row, claiming, due_in, postpone_row
from segue.domain.ids import Clock, local_time
from segue.domain.session import MAX_CONTENT_CHARS, MAX_IMPORTANCE, MIN_IMPORTANCE, Memory, MemoryKind, NewFact
from segue.log import log
from segue.memory import fact_store, history
from segue.memory.fact_cues import days_meant, is_about, is_said, with_dates
from segue.memory.fact_store import FactSource
from segue.memory.long_term import LongTermMemory
from segue.models.chat_model import ChatModel
from segue.models.reply import FACTS
from segue.models.untrusted import neutralised
from segue.plans.plan_parser import first_object
from segue.tools.normalize import clean
from segue.users.usage import Account, Books
from segue.watch import Watch

MAX_FACTS = 10
MAX_CONTEXT_CHARS = 1000
GIVE_UP = timedelta(days=1)


class FactUpkeep(Watch):
    """Marks facts as used, embeds those that have no embedding. Marks lost at a stop do no harm: they only rank."""

    def __init__(self, database: Database, long_term: LongTermMemory, clock: Clock, *, interval_s: float) -> None:
        super().__init__("upkeep of facts", self._work, every_s=interval_s)
        self.wake()
        self._database = database
        self._long_term = long_term
        self._clock = clock
        self._used: dict[str, set[str]] = defaultdict(set)

    def mark_used(self, owner: str, memories: Iterable[Memory]) -> None:
        self._used[owner] |= {memory.id for memory in memories}

    async def _work(self) -> None:
        used, self._used = self._used, defaultdict(set)
        for owner, memory_ids in used.items():
            await self._database.write(fact_store.mark_used, owner, sorted(memory_ids), now=self._clock())
        await self._long_term.embed_missing()


class _Fact(BaseModel):
    content: str = Field(min_length=1, max_length=MAX_CONTENT_CHARS)
    kind: MemoryKind = "fact"
    importance: int = 3
    supersedes: str | None = None


class _Facts(BaseModel):
    facts: list[object]


async def propose_facts(
    model: ChatModel, message: str, *, said_on: date, answers: str | None, known: Sequence[Memory], account: Account
) -> list[NewFact]:
    """Returns the facts the model finds, at most MAX_FACTS. `answers` is the assistant's text before the message,
    `said_on` the day of the message where the user is. Raises AppError if the model cannot be asked.
    """
    request = {
        "user_said": message,
        "said_on": f"{said_on:%A}, {said_on}",
        "assistant_said_before": (answers or "")[:MAX_CONTEXT_CHARS],
        "known": [{"id": fact.id, "kind": fact.kind, "fact": fact.content} for fact in known],
    }
    text = await model.complete(TEXTS["extractor"], neutralised(as_json(request)), schema=FACTS, account=account)
    answer = first_object(text, _Facts)
    contents = {memory.id: memory.content for memory in known}
    facts = (_read_fact(fact, contents) for fact in (answer.facts[:MAX_FACTS] if answer else ()))
    return [fact for fact in facts if fact is not None]


def _read_fact(value: object, known: Mapping[str, str]) -> NewFact | None:
    """Returns None for a malformed fact: the others are kept. It replaces none that it is not about."""
    try:
        fact = _Fact.model_validate(clean(value))
    except ValidationError:
        return None
    importance = min(max(fact.importance, MIN_IMPORTANCE), MAX_IMPORTANCE)
    supersedes = fact.supersedes if is_about(fact.content, known.get(fact.supersedes or "", "")) else None
    return NewFact(fact.content, fact.kind, importance=importance, supersedes=supersedes)


_EARLIER, _AGE = turns.alias("earlier").c, func.now() - turns.c.finished_at
_COMES_BEFORE = (_EARLIER.session_id == turns.c.session_id) & (_EARLIER.seq < turns.c.seq)
_WAITS = exists().where(_COMES_BEFORE, _EARLIER.facts_due_at.is_not(None), _EARLIER.finished_at.is_not(None))
_TIME_ZONE = func.coalesce(turns.c.request["time_zone"].as_string(), sessions.c.time_zone).label("time_zone")
_READ = (sessions.c.owner, turns.c.session_id, turns.c.id.label("turn_id"), _TIME_ZONE)
_OF_SESSION, _CLAIMABLE = [sessions.c.id == turns.c.session_id], (turns.c.finished_at.is_not(None), ~_WAITS)
_NEXT_TRY = case((_AGE > GIVE_UP, null()), else_=func.now() + func.greatest(LEASE, _AGE))
_CLAIM = claiming(turns, "facts_due_at", *_CLAIMABLE, read=_READ, joined=_OF_SESSION, facts_due_at=_NEXT_TRY)


@dataclass(frozen=True, slots=True)
class DueExtraction:
    owner: str
    session_id: str
    turn_id: str
    time_zone: str


@dataclass(frozen=True, slots=True)
class FactExtraction:
    """A kind of job; `lease_s` seconds after its claim another process may claim it."""

    database: Database
    model: ChatModel
    long_term: LongTermMemory
    books: Books
    clock: Clock
    lease_s: float

    name = "extraction of facts"
    slots = 4

    async def claim(self) -> DueExtraction | None:
        """The wait for the next try grows with the turn's age; after GIVE_UP there is none. The turns of a session come
        in order, or a correction could be stored before what it corrects.
        """
        row = await self.database.write(claim_row, _CLAIM, lease_s=self.lease_s)
        return DueExtraction(**row._asdict()) if row else None

    async def run(self, job: DueExtraction) -> bool:
        """Returns True: the next turn of the session waits for this one."""
        async with self.database.read_only() as connection:
            messages = await history.user_messages_of(connection, job.turn_id)
            if not messages:
                return True
            opening, speaks = messages[0], next(filter(history.said_by_user, messages), messages[0])
            answers = await history.answer_before(connection, job.session_id, opening.seq)
        message = "\n".join(filter(None, map(history.said_by_user, messages)))
        said_on = local_time(opening.created_at, job.time_zone).date()
        days = days_meant(message, said_on)
        payer = job.owner, job.session_id
        known = await self.long_term.recall(payer, message, now=self.clock(), limit=10)
        async with self.books.job(*payer, lasts_s=self.lease_s) as account:
            ask = partial(propose_facts, self.model, message, said_on=said_on, answers=answers, known=known)
            proposed = await ask(account=account) if message else []
        # Of a fact that is corrected the user may say only what is otherwise: "no longer Monday, Tuesday".
        corrects, words = {memory.id: [memory.content] for memory in known}, (message, *days.values())
        own = [fact for fact in proposed if is_said(fact.content, *words, *corrects.get(fact.supersedes or "", ()))]
        facts = [replace(fact, content=with_dates(fact.content, days)) for fact in own]
        embeddings = await self.long_term.embed([fact.content for fact in facts], payer=payer)
        source, now = FactSource(job.session_id, speaks.id), self.clock()
        async with self.database.transaction() as connection:
            # Keeps the session from being deleted until the transaction ends.
            session = select(sessions.c.id).where(sessions.c.id == job.session_id, sessions.c.owner == job.owner)
            if await connection.scalar(session.with_for_update(read=True, key_share=True)) is None:
                return True
            # Its mark was cleared meanwhile if the turn is gone; the last try before GIVE_UP runs without one.
            is_meant = or_(turns.c.facts_due_at.is_not(None), func.now() - turns.c.finished_at > GIVE_UP)
            settled = update(turns).where(turns.c.id == job.turn_id, is_meant).values(facts_due_at=None)
            if await connection.scalar(settled.returning(turns.c.id)) is None:
                return True
            stored = [
                await self.long_term.store(connection, job.owner, fact, now=now, source=source, embedding=embedding)
                for fact, embedding in zip(facts, embeddings or repeat(None), strict=False)
            ]
        for memory in stored:
            self.long_term.noted(job.owner, memory)
        log.info("facts_extracted", turn_id=job.turn_id, kept=len(facts), not_said=len(proposed) - len(facts))
        return True

    async def give_back(self, job: DueExtraction, wait_s: float) -> None:
        await self.database.write(postpone_row, turns, "facts_due_at", job.turn_id, facts_due_at=due_in(wait_s))

    def ids(self, job: DueExtraction) -> dict[str, str]:
        return {"session_id": job.session_id, "turn_id": job.turn_id}


async def cancel_extraction(connection: Connection, owner: str, session_id: str, *, but_running: bool = False) -> None:
    """Notes no more facts from a session's messages; a job that runs finds its mark gone."""
    mine = select(sessions.c.id).where(sessions.c.id == session_id, sessions.c.owner == owner)
    of_session = (turns.c.session_id.in_(mine), turns.c.facts_due_at.is_not(None))
    ended = [turns.c.finished_at.is_not(None)] if but_running else []
    await connection.execute(update(turns).where(*of_session, *ended).values(facts_due_at=None))
