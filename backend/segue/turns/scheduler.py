"""Which turns run here: one line per session, as many lines side by side as there are places, leases renewed meanwhile.

What happens in a turn is `run.py`'s. Above stands `service.py`.
"""

import asyncio
import os
import socket
import time

import structlog

from segue.domain.errors import AppError
from segue.domain.session import Message
from segue.turns import store
from segue.turns.deps import TurnDeps
from segue.turns.fair_scheduling import FairClaims
from segue.turns.runner import Stop, TurnRun, Unended
from segue.turns.store import Claim

LOOK_S = 0.5  # how soon the owner of a turn hears that it is to be cancelled, or no longer its own
STOP_S = 3.0

log = structlog.get_logger()


class TurnWorker:
    def __init__(self, deps: TurnDeps) -> None:
        self._deps = deps
        self._claims = FairClaims(
            deps.database,
            worker=f"{socket.gethostname()}:{os.getpid()}",
            places=deps.limits.concurrency,
            lease_s=deps.limits.lease_s,
        )
        self._places = asyncio.Semaphore(deps.limits.concurrency)
        self._lines: dict[str, asyncio.Task[None]] = {}
        self._woken: set[str] = set()
        self._running: dict[str, TurnRun] = {}
        self._unended = Unended(deps)
        self._closed = False

    @property
    def has_room(self) -> bool:
        return not self._closed and not self._places.locked()

    @property
    def running(self) -> int:
        return len(self._running)

    def wake(self, session_id: str) -> None:
        """Something may be waiting in this session. Cheap, and right however often it is called."""
        if self._closed:
            return
        self._woken.add(session_id)
        if session_id not in self._lines:
            self._lines[session_id] = asyncio.create_task(self._drain(session_id), name=f"turns of {session_id}")

    async def run_session(self, session_id: str) -> None:
        """Wakes the session; returns when its line ends, or at once where it had one already."""
        known = session_id in self._lines
        self.wake(session_id)
        if not known and session_id in self._lines:
            await asyncio.wait({self._lines[session_id]})

    def stop(self, turn_id: str, why: Stop) -> None:
        if (running := self._running.get(turn_id)) is not None:
            running.stop(why)

    def stop_session(self, session_id: str) -> None:
        """For a session that is gone."""
        for running in self._running.values():
            if running.claim.key.session_id == session_id:
                running.stop("lost")

    async def close(self, *, grace_s: float) -> list[Claim]:
        """Takes no more turns, gives those that run `grace_s` to end, then hands them back and says which."""
        self._closed = True
        self._woken.clear()
        if self._lines:
            await asyncio.wait(self._lines.values(), timeout=grace_s)
        late = list(self._running.values())
        for running in late:
            running.stop("handed_back")
        if late:
            await asyncio.wait({running.task for running in late}, timeout=STOP_S)
        lines = list(self._lines.values())
        for line in lines:
            line.cancel()
        await asyncio.gather(*lines, return_exceptions=True)
        return [running.claim for running in late if running.stopped == "handed_back"]

    async def keep(self) -> None:
        """While turns run here: renews their leases, and hears that one is to stop. Never returns."""
        renewed = 0.0
        while True:
            await asyncio.sleep(min(LOOK_S, self._deps.limits.lease_s / 4))
            due = time.monotonic() - renewed >= self._deps.limits.lease_s / 4
            try:
                await self._unended.write()
                await self._look(renew=due)
            except AppError as error:
                log.warning("leases_not_renewed", code=error.code)
            else:
                renewed = time.monotonic() if due else renewed

    async def _drain(self, session_id: str) -> None:
        try:
            async with self._places:
                while session_id in self._woken:
                    self._woken.discard(session_id)
                    while not self._closed and await self._run_next(session_id):
                        pass
        finally:  # in the same step as the last look at _woken, so that no wake falls between
            del self._lines[session_id]

    async def _run_next(self, session_id: str) -> bool:
        """Claims and runs one turn if there is one, and says whether another may be waiting."""
        try:
            claim = await self._claims.claim(session_id, self._owners())
        except AppError as error:
            log.warning("claim_failed", session_id=session_id, code=error.code)
            return False
        if claim is None:
            return False
        turn_id = claim.key.turn_id
        task = (run := TurnRun(self._deps, claim, self._unended)).task
        self._running[turn_id] = run
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            task.cancel()
            raise
        finally:
            del self._running[turn_id]
        if claim.tells_facts:
            self._deps.fact_extraction.wake()
        await self._wake_those_passed_over()
        answer = None if task.cancelled() else task.result()
        return answer is None or not _has_last_word(claim, answer.message)

    def _owners(self) -> list[str]:
        return [each.claim.owner for each in self._running.values()]

    async def _wake_those_passed_over(self) -> None:
        try:
            for session_id in await self._claims.passed_over(self._owners()):
                self.wake(session_id)
        except AppError as error:
            log.warning("waiting_not_found", code=error.code)

    async def _look(self, *, renew: bool) -> None:
        running = dict(self._running)
        if not running:
            return
        claims = [each.claim for each in running.values()]
        async with self._deps.database.autocommit() as connection:
            if renew:
                await store.renew_leases(connection, claims, lease_s=self._deps.limits.lease_s)
            ours, cancelled = await store.look_after(connection, claims)
        for turn_id in running:
            if turn_id not in ours:
                self.stop(turn_id, "lost")
            elif turn_id in cancelled:
                self.stop(turn_id, "cancelled")


def _has_last_word(claim: Claim, answer: Message) -> bool:
    """Whether the answer follows right on what it answers. Then nothing waits: whoever accepts a message and whoever
    ends a turn take the session's next seq under the lock of its row, and who comes later sees the other's work.
    """
    return answer.seq == claim.key.turn_seq + 1
