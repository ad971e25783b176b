"""Which turns this process runs: one line of turns per session, as many lines at a time as there are places. No owner
takes more than a share of the places while others wait. Leases are renewed meanwhile.
"""

import asyncio
import time
from collections import Counter
from dataclasses import dataclass
from functools import partial

from segue.db.outages import OutageLog
from segue.domain.errors import AppError
from segue.log import log
from segue.turns import claims
from segue.turns.claims import Claim, Claimer
from segue.turns.presence import Presence
from segue.turns.run_record import report_activity
from segue.turns.runner import Stop, TurnRun, UnstoredEnds
from segue.turns.turn_deps import TurnDeps
from segue.watch import end_tasks

CHECK_S = 0.5  # how soon a process notices that a turn of its own is to be cancelled, or lost
STOP_S = 3.0


@dataclass(frozen=True, slots=True)
class Expected:
    """A place kept in a `line` of its own until `claim` is set: to that of a turn about to be accepted, or None."""

    claimer: Claimer
    line: asyncio.Task[None]
    claim: asyncio.Future[Claim | None]


@dataclass(frozen=True, slots=True)
class DoubtfulClaim:
    """The names by which this process may have claimed a turn of a session without hearing so, and for how long."""

    workers: frozenset[str] = frozenset()
    until: float = 0.0  # by the monotonic clock


class TurnWorker:
    def __init__(self, deps: TurnDeps, presence: Presence) -> None:
        self._deps = deps
        self._presence = presence
        self._places = asyncio.Semaphore(deps.settings.worker_concurrency)
        self._lines: dict[str, asyncio.Task[None]] = {}
        self._woken: set[str] = set()
        self._expecting: list[str] = []  # the owners of turns that are about to be accepted
        self._running: dict[str, TurnRun] = {}
        self._unstored = UnstoredEnds(deps, self.wake)
        self._doubtful: dict[str, DoubtfulClaim] = {}  # by session
        self._passed_over = False
        self._closed = False

    @property
    def has_room(self) -> bool:
        return not self._closed and not self._places.locked()

    @property
    def running(self) -> int:
        return len(self._running)

    def wake(self, session_id: str) -> None:
        """Looks for a queued turn in this session. Cheap, and safe at any time."""
        if self._closed:
            return
        self._woken.add(session_id)
        if session_id not in self._lines:
            self._lines[session_id] = asyncio.create_task(self._drain(session_id), name=f"turns of {session_id}")

    async def expect(self, owner: str, session_id: str) -> Expected | None:
        """Keeps a place for a turn to be accepted; None if none is free, its session runs here, or others are first."""
        if not self.has_room or session_id in self._lines or owner in self._well_served():
            return None
        await self._places.acquire()  # at once, since there is room
        claim: asyncio.Future[Claim | None] = asyncio.get_running_loop().create_future()
        line = asyncio.create_task(self._drain(session_id, claim), name=f"turns of {session_id}")
        self._lines[session_id] = line
        self._expecting.append(owner)
        claim.add_done_callback(lambda _: self._expecting.remove(owner))
        return Expected(Claimer(self._presence.worker, self._presence.lease_s), line, claim)

    def doubt(self, session_id: str, worker: str) -> None:
        """Notes that this process may have claimed a turn of the session by this name: the connection was lost before
        the answer. Later than a lease from now recovery finds it anyway.
        """
        workers = self._doubtful.get(session_id, DoubtfulClaim()).workers | {worker}
        self._doubtful[session_id] = DoubtfulClaim(workers, until=time.monotonic() + self._presence.lease_s)

    async def run_session(self, session_id: str) -> None:
        """Wakes the session. Returns when its line ends, or at once if it had one already."""
        known = session_id in self._lines
        self.wake(session_id)
        if not known and session_id in self._lines:
            await asyncio.wait({self._lines[session_id]})

    def stop(self, turn_id: str, why: Stop) -> None:
        if (running := self._running.get(turn_id)) is not None:
            running.stop(why)

    def stop_session(self, session_id: str) -> None:
        """Stops the turn of a session that was deleted."""
        for running in self._running.values():
            if running.claim.key.session_id == session_id:
                running.stop("lost")

    async def close(self, *, grace_s: float) -> list[Claim]:
        """Claims no more turns, gives those that run `grace_s` to end, hands back the rest and returns those claims."""
        self._closed = True
        self._woken.clear()
        if self._lines:
            await asyncio.wait(self._lines.values(), timeout=grace_s)
        late = list(self._running.values())
        stopping = [task for running in late if (task := running.stop("handed_back"))]
        if stopping:
            await asyncio.wait(stopping, timeout=STOP_S)
        await end_tasks(*self._lines.values())
        return [running.claim for running in late if running.stopped == "handed_back"]

    async def keep_leases(self) -> None:
        """Renews the leases of the turns that run here, and stops those that are cancelled or lost. Never returns."""
        renewed, renewed_as = 0.0, ""
        outage = OutageLog("leases_not_renewed", "leases_renewed")
        while True:
            await asyncio.sleep(min(CHECK_S, self._presence.lease_s / 4))
            worker = self._presence.worker
            due = time.monotonic() - renewed >= self._presence.lease_s / 4 or worker != renewed_as
            with outage.logged():
                await self._check_claims(worker, renew=due)
                await self._wake_doubtful()
                renewed, renewed_as = (time.monotonic() if due else renewed), worker
            running = {turn_id: run.activity() for turn_id, run in self._running.items()}
            if long := {turn_id: activity for turn_id, activity in running.items() if activity is not None}:
                await report_activity(self._deps.cache, self._presence.worker, long, now=self._deps.clock())

    async def keep_ends(self) -> None:
        """Never returns. Stores ends that an outage held up; apart from leases, as each may wait seconds for a lock."""
        outage = OutageLog("ends_not_stored", "ends_stored")
        while True:
            await asyncio.sleep(CHECK_S)
            with outage.logged():
                await self._unstored.store()

    async def _drain(self, session_id: str, expected: asyncio.Future[Claim | None] | None = None) -> None:
        """A line. One that begins with an `expected` claim has its place already."""
        try:
            if expected is None:
                await self._places.acquire()
            try:
                if expected is not None and (claim := await expected) is not None and await self._run(claim):
                    self._woken.add(session_id)
                while session_id in self._woken:
                    self._woken.discard(session_id)
                    while not self._closed and (claim := await self._claim(session_id)) and await self._run(claim):
                        pass
            finally:
                self._places.release()
        finally:  # no await since _woken was read, so that no wake is missed
            del self._lines[session_id]

    async def _run(self, claim: Claim) -> bool:
        """Returns whether another turn of the session may be queued."""
        run = TurnRun(self._deps, claim, self._unstored, lease_s=self._presence.lease_s)
        task = run.start()
        self._running[claim.key.turn_id] = run
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            task.cancel()
            raise
        finally:
            del self._running[claim.key.turn_id]
        if claim.tells_facts:
            self._deps.fact_extraction.wake()
        if self._passed_over:
            await self._wake_passed_over()
        answer = None if task.cancelled() else task.result()
        # If only the turn's own messages took a seq since its message, no turn waits: accepting a message and ending
        # a turn both take the session's next seq under the lock of its row, so that the later one sees the earlier.
        return answer is None or answer.message.seq != claim.key.turn_seq + run.stored_messages + 1

    async def _claim(self, session_id: str) -> Claim | None:
        """Returns None if the session has no queued turn, or if its owner is passed over for others who wait."""
        worker, lease_s = self._presence.worker, self._presence.lease_s
        doubtful = None if self._unstored.has(session_id) else self._doubtful.get(session_id)
        served, unheard = (self._well_served(), ()) if doubtful is None else ([], doubtful.workers)
        claiming = partial(claims.claim_next, worker=worker, lease_s=lease_s, well_served=served, unheard=unheard)
        try:
            claim = await self._deps.database.write(claiming, session_id)
        except AppError as error:
            log.warning("claim_failed", session_id=session_id, code=error.code)
            self.doubt(session_id, worker)
            return None
        if claim is not None:
            self._doubtful.pop(session_id, None)
        self._passed_over |= claim is None and bool(served)
        return claim

    async def _wake_doubtful(self) -> None:
        self._doubtful = {each: claim for each, claim in self._doubtful.items() if time.monotonic() < claim.until}
        if not self._doubtful:
            return
        workers = {worker for claim in self._doubtful.values() for worker in claim.workers}
        for session_id in await self._deps.database.read(claims.sessions_claimed, self._doubtful, unheard=workers):
            self.wake(session_id)

    async def _wake_passed_over(self) -> None:
        """Wakes, for each free place, the session that has waited longest; owners with less than a share come first.
        Sessions that every process has passed over are found by recovery.
        """
        self._passed_over = False
        free = self._deps.settings.worker_concurrency - len(self._running)
        try:
            waiting = await self._deps.database.read(claims.sessions_waiting, last=self._well_served(), at_most=free)
        except AppError as error:
            log.warning("waiting_not_found", code=error.code)
            return
        self._passed_over |= len(waiting) >= free
        for session_id in waiting:
            self.wake(session_id)

    def _well_served(self) -> list[str]:
        """Returns the owners that hold as many places as each could have if one more owner came."""
        taken = Counter([*(run.claim.owner for run in self._running.values()), *self._expecting])
        places = self._deps.settings.worker_concurrency
        return [owner for owner, count in taken.items() if count * (len(taken) + 1) >= places]

    async def _check_claims(self, worker: str, *, renew: bool) -> None:
        """Leases that another process has shortened are renewed in any case."""
        running = dict(self._running)
        if not running:
            return
        claimed = [each.claim for each in running.values()]
        async with self._deps.database.autocommit() as connection:
            ours, cancelled = await claims.still_held(connection, claimed)
            if renew or any(left_s <= self._presence.grace_s for left_s in ours.values()):
                await claims.renew_leases(connection, claimed, worker=worker, lease_s=self._presence.lease_s)
        for turn_id, run in running.items():  # not what runs under this id by now: a turn may be run again at any time
            if turn_id not in ours:
                run.stop("lost")
            elif turn_id in cancelled:
                run.stop("cancelled")
