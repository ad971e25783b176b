"""What a turn leaves to be done once it is answered: facts to extract, to embed, to mark as used.

Never on a user's time. A turn whose message may tell something is marked when it is accepted; the mark goes in the
transaction that stores the facts, so what a process that dies has left to do, another one does.
"""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from itertools import repeat
from typing import Self

import structlog

from segue.agent.fact_proposals import propose_facts
from segue.agent.model import ChatModel
from segue.db.engine import Database
from segue.domain.clock import Clock
from segue.domain.errors import AppError
from segue.domain.memory import Memory, NewFact
from segue.jobs import fact_extraction
from segue.jobs.fact_extraction import Due
from segue.memory import facts, history
from segue.memory.facts import Source
from segue.memory.long_term import LongTermMemory
from segue.memory.verify_fact import is_said

MOST_AT_ONCE = 4
MOST_KNOWN_SHOWN = 10
GIVE_BACK_TIMEOUT_S = 1.0

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class AfterwardsDeps:
    """`lease_s` is how long an extraction stays with a process that has gone silent, `look_s` how often one looks."""

    database: Database
    model: ChatModel
    long_term: LongTermMemory
    clock: Clock
    lease_s: float
    look_s: float


async def extract_facts(deps: AfterwardsDeps, due: Due) -> None:
    """Stores what the user told in a turn, in their own words. Raises AppError where it has to be tried again."""
    async with deps.database.read_only() as connection:
        said = await history.opening_of(connection, due.turn_id)
        if said is None:
            return
        answers = await history.answer_before(connection, due.session_id, said.seq)
    message = str(said.content)
    known = await deps.long_term.recall(due.owner, message, now=deps.clock(), limit=MOST_KNOWN_SHOWN)
    proposed = await propose_facts(deps.model, message, answers=answers, known=known)
    facts = [fact for fact in proposed if _is_the_users(fact, message, known)]
    embeddings = await deps.long_term.embed([fact.content for fact in facts])
    source, now = Source(due.session_id, said.id), deps.clock()
    async with deps.database.transaction() as connection:
        if not await fact_extraction.hold_session(connection, due):
            return
        for fact, embedding in zip(facts, embeddings or repeat(None), strict=False):
            await deps.long_term.take_in(connection, due.owner, fact, now=now, source=source, embedding=embedding)
        await fact_extraction.done(connection, due)
    log.info("facts_extracted", turn_id=due.turn_id, kept=len(facts), not_said=len(proposed) - len(facts))


def _is_the_users(fact: NewFact, message: str, known: Iterable[Memory]) -> bool:
    """Said in the message, or in it and the fact it corrects: "no longer Monday, Tuesday" is short for a whole fact."""
    corrected = [memory.content for memory in known if memory.id == fact.supersedes]
    return is_said(fact.content, message, *corrected)


class Afterwards:
    """Works for as long as it is entered, on what this process left to do and on what others did not get to."""

    def __init__(self, deps: AfterwardsDeps) -> None:
        self._deps = deps
        self._woken = asyncio.Event()
        self._places = asyncio.Semaphore(MOST_AT_ONCE)
        self._extracting: set[asyncio.Task[None]] = set()
        self._used: dict[str, set[str]] = defaultdict(set)

    async def __aenter__(self) -> Self:
        self._tasks = [
            asyncio.create_task(self._repeat(self._extract_all_due, self._woken.wait), name="extraction of facts"),
            asyncio.create_task(self._repeat(self._keep_up, asyncio.Event().wait), name="upkeep of facts"),
        ]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in (*self._tasks, *self._extracting):
            task.cancel()
        await asyncio.gather(*self._tasks, *self._extracting, return_exceptions=True)

    def wake(self) -> None:
        """A turn that may tell something has ended."""
        self._woken.set()

    def note_used(self, owner: str, memories: Iterable[Memory]) -> None:
        self._used[owner].update(memory.id for memory in memories)

    async def _repeat(self, work: Callable[[], Awaitable[None]], woken: Callable[[], Awaitable[object]]) -> None:
        """Again when woken, and every `look_s` in any case."""
        while True:
            [failure] = await asyncio.gather(work(), return_exceptions=True)
            if failure is not None:
                expected = isinstance(failure, AppError)
                log.warning("afterwards_failed", error=str(failure), exc_info=None if expected else failure)
            with suppress(TimeoutError):
                async with asyncio.timeout(self._deps.look_s):
                    await woken()

    async def _extract_all_due(self) -> None:
        self._woken.clear()
        while await self._start_next():
            pass

    async def _start_next(self) -> bool:
        await self._places.acquire()
        due = None
        try:
            async with self._deps.database.autocommit() as connection:
                due = await fact_extraction.claim_due(connection, lease_s=self._deps.lease_s)
        finally:
            if due is None:
                self._places.release()
        if due is None:
            return False
        task = asyncio.create_task(self._extract(due), name=f"facts of {due.turn_id}")
        self._extracting.add(task)
        task.add_done_callback(self._ended)
        return True

    async def _extract(self, due: Due) -> None:
        try:
            await extract_facts(self._deps, due)
        except AppError as error:
            log.warning("extraction_failed", turn_id=due.turn_id, code=error.code)
        except asyncio.CancelledError:
            with suppress(AppError, TimeoutError):
                async with asyncio.timeout(GIVE_BACK_TIMEOUT_S), self._deps.database.autocommit() as connection:
                    await fact_extraction.give_back(connection, due)
            raise

    def _ended(self, task: asyncio.Task[None]) -> None:
        """The next turn of the session may be due now. What raised is tried again when its lease is over."""
        self._extracting.discard(task)
        self._places.release()
        self._woken.set()
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("extraction_raised", error=type(error).__name__, exc_info=error)

    async def _keep_up(self) -> None:
        used, self._used = self._used, defaultdict(set)
        for owner, memory_ids in used.items():
            async with self._deps.database.autocommit() as connection:
                await facts.mark_used(connection, owner, sorted(memory_ids), now=self._deps.clock())
        await self._deps.long_term.embed_missing()
