"""The story of a turn as the API tells it: accepted, sent off, waited for, cancelled, read.

Knows nothing of HTTP. The request that brought a message only watches its turn; the turn belongs to whoever runs it,
and the answer is the row. `worker.py` runs turns here, `queue.py` takes them to and from other processes, `recovery.py`
finds the lost ones.
"""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import Self

from backend.domain.errors import AppError
from backend.domain.plan import Decision
from backend.domain.session import ChatAnswer, Turn
from backend.memory import sessions, short_term
from backend.memory.history import TurnKey
from backend.memory.sessions import get_session
from backend.plans.store import expired
from backend.turn import endings, failures, records
from backend.turn.admission import Admitted, admit
from backend.turn.decisions import begin_decision
from backend.turn.queue import TurnQueue
from backend.turn.recovery import look_around_for_ever
from backend.turn.store import ChatRequest, Once
from backend.turn.waiting import Waiting
from backend.turn.worker import TurnDeps, TurnWorker

CANCEL_WITHIN_S = 4.5


class TurnService:
    """Runs turns for as long as it is entered: `async with TurnService(deps, url) as turns: await turns.chat(…)`.

    `takes_turns` is False in a process that only accepts them; it still runs what it cannot send off.
    """

    def __init__(self, deps: TurnDeps, redis_url: str, *, takes_turns: bool = True) -> None:
        self._deps = deps
        self._takes_turns = takes_turns
        self._waiting = Waiting(deps.database)
        self._worker = TurnWorker(deps, self._waiting.tell)
        concurrency = deps.limits.concurrency if takes_turns else 0
        self._queue = TurnQueue(redis_url, self._worker.run_session, concurrency=concurrency)
        self._upkeep: list[asyncio.Task[None]] = []
        self._leaving: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._queue.start()
        looking = look_around_for_ever(self._deps, self._worker, self._waiting.tell, self._runs_what_it_finds)
        self._upkeep = [
            asyncio.create_task(self._worker.keep(), name="leases"),
            asyncio.create_task(looking, name="recovery"),
        ]
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.leave()
        await self._queue.close()

    @property
    def worker(self) -> str:
        """`ok`, `down`, or `off` in a process that only accepts turns."""
        if self._leaving is not None or not self._queue.alive or any(task.done() for task in self._upkeep):
            return "down"
        return "ok" if self._takes_turns else "off"

    async def leave(self) -> None:
        """Takes no more turns, lets those that run end within the grace, gives the rest to others, and tells whoever
        waits. Safe to call twice: the second waits for the first.
        """
        if self._leaving is None:
            self._leaving = asyncio.create_task(self._leave(), name="leaving")
        await asyncio.shield(self._leaving)

    async def accept(self, owner: str, session_id: str, request: ChatRequest) -> Admitted:
        """A message whose answer nobody waits for here. Raises what `admit` raises."""
        admitted = await self._admit(owner, session_id, request)
        if admitted.fresh:
            await self._send_off(admitted.turn)
        return admitted

    async def chat(self, owner: str, session_id: str, request: ChatRequest) -> ChatAnswer:
        """Accepts a message and waits for its answer. Raises what went wrong, with the turn's id in it."""
        return await self._answer_to(await self._admit(owner, session_id, request))

    async def decide(
        self, owner: str, session_id: str, decision: Decision, *, version: int, once: Once | None = None
    ) -> ChatAnswer:
        """A button on the plan that waits: decided here and now, carried out by a turn of its own.

        Raises AppError `no_open_plan`, `plan_changed`, `plan_expired`; then nothing was accepted.
        """
        now = self._deps.clock()
        async with self._deps.database.transaction() as connection:
            admitted = await begin_decision(
                connection, owner, session_id, decision, version=version, once=once, now=now
            )
        if admitted is None:
            raise expired()
        return await self._answer_to(admitted)

    async def cancel(self, owner: str, session_id: str, turn_id: str) -> Turn:
        """The turn as it stands once it has ended, which takes at most CANCEL_WITHIN_S. Raises NotFound."""
        key = TurnKey(session_id, turn_id, 0)
        with self._waiting.watching(turn_id) as told:
            async with self._deps.database.reading() as connection:
                await records.get_turn(connection, owner, session_id, turn_id)
                wished = await endings.cancel_turn(connection, owner, key)
            self._obey(wished)
            with suppress(TimeoutError):
                async with asyncio.timeout(CANCEL_WITHIN_S):
                    await self._waiting.result(key, told, runs_here=self._worker.runs, may_have_ended=True)
        return await self.read(owner, session_id, turn_id)

    async def read(self, owner: str, session_id: str, turn_id: str) -> Turn:
        async with self._deps.database.reading() as connection:
            return await records.get_turn(connection, owner, session_id, turn_id)

    async def list(self, owner: str, session_id: str, *, before: str | None, limit: int) -> list[Turn]:
        """Newest first."""
        async with self._deps.database.reading() as connection:
            await get_session(connection, owner, session_id)
            return await records.list_turns(connection, owner, session_id, before=before, limit=limit)

    async def delete_session(self, owner: str, session_id: str) -> None:
        """What runs in it elsewhere notices within half a second, and can write nothing from now on."""
        async with self._deps.database.transaction() as connection:
            await endings.release(connection, owner, session_id)
            await sessions.delete_session(connection, owner, session_id)
        self._worker.stop_session(session_id)
        await short_term.forget(self._deps.cache, session_id)

    async def _admit(self, owner: str, session_id: str, request: ChatRequest) -> Admitted:
        deps = self._deps
        admitted = await admit(deps.database, owner, session_id, request, now=deps.clock())
        if admitted.fresh and request.on_busy == "interrupt":
            async with deps.database.reading() as connection:
                self._obey(await endings.cancel_before(connection, owner, admitted.turn))
        return admitted

    async def _answer_to(self, admitted: Admitted) -> ChatAnswer:
        """The one place where a caller waits for a turn."""
        turn = admitted.turn
        with self._waiting.watching(turn.turn_id) as told:
            if admitted.fresh:
                await self._send_off(turn)
            result = await self._waiting.result(
                turn, told, runs_here=self._worker.runs, may_have_ended=not admitted.fresh
            )
        if isinstance(result, AppError):
            raise result.with_extra(turn_id=turn.turn_id)
        return result

    async def _send_off(self, turn: TurnKey) -> None:
        """To whoever takes it; without Redis it runs here, whatever this process is for."""
        if not await self._queue.send(turn.session_id, turn.turn_id):
            self._worker.wake(turn.session_id)

    def _obey(self, wished: Mapping[str, bool]) -> None:
        for turn_id, ended in wished.items():
            if ended:
                self._waiting.tell(turn_id, failures.cancelled())
            else:
                self._worker.stop(turn_id, "cancelled")

    def _runs_what_it_finds(self) -> bool:
        return self._takes_turns or self._queue.away

    async def _leave(self) -> None:
        await self._queue.stop_taking()
        for claim in await self._worker.close(grace_s=self._deps.limits.grace_s):
            await self._queue.send(claim.key.session_id, claim.key.turn_id, attempt=claim.epoch)
        self._waiting.leave()
        for task in self._upkeep:
            task.cancel()
        await asyncio.gather(*self._upkeep, return_exceptions=True)
