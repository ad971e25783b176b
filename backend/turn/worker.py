"""Runs turns: claim → snapshot → graph → finish, one line per session, as many lines side by side as there are places.

Whatever happens in a turn, it ends with a row that says so, or goes back to whoever takes it next. Above stands
`service.py`; whoever follows a turn is told through `events.py`.
"""

import asyncio
import os
import socket
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal, cast

import structlog
from structlog.contextvars import bound_contextvars

from backend.agent.context import AgentLimits, Clock, TurnContext
from backend.agent.graph import Graph
from backend.agent.model import ChatModel, MeteredModel
from backend.agent.state import TurnState
from backend.db.engine import Database
from backend.db.redis import Cache
from backend.domain.errors import AppError
from backend.domain.session import ChatAnswer, Message
from backend.domain.telemetry import Observe, OpenSpan, Span, TurnRecovered, trace_of
from backend.memory import short_term
from backend.memory.long_term import LongTermMemory
from backend.tools.guard import NewGuard, ToolGuard
from backend.turn import endings, failures, store
from backend.turn.afterwards import Afterwards
from backend.turn.events import EventLog
from backend.turn.fairness import FairClaims
from backend.turn.limiter import Limiter
from backend.turn.records import chat_answer
from backend.turn.report import turn_report
from backend.turn.retention import KeepLimits
from backend.turn.snapshot import SnapshotLimits, load_snapshot
from backend.turn.store import Claim, StaleTurn
from backend.turn.summaries import Summaries
from backend.turn.tally import Tally

LOOK_S = 0.5  # how soon the owner of a turn hears that it is to be cancelled, or no longer its own
STOP_S = 3.0

Stop = Literal["cancelled", "handed_back", "lost"]

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class TurnLimits:
    """`concurrency` is how many turns a process runs at once; `grace_s` how long they have to end when it stops."""

    timeout_s: float
    lease_s: float
    grace_s: float
    snapshot: SnapshotLimits
    kept: KeepLimits
    concurrency: int


@dataclass(frozen=True, slots=True)
class TurnDeps:
    database: Database
    cache: Cache
    events: EventLog
    graph: Graph
    model: ChatModel
    new_guard: NewGuard
    limiter: Limiter
    clock: Clock
    long_term: LongTermMemory
    afterwards: Afterwards
    summaries: Summaries
    agent_limits: AgentLimits
    limits: TurnLimits
    observe: Observe
    span: OpenSpan


@dataclass(slots=True)
class _Running:
    """A turn that runs here, and why it was told to stop where it was. One that is `finishing` is past that: whether
    its answer is stored in time is for the row to say.
    """

    claim: Claim
    task: asyncio.Task[ChatAnswer | None]
    stop: Stop | None = None
    finishing: bool = False


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
        self._running: dict[str, _Running] = {}
        self._unended: list[tuple[Claim, AppError, Tally]] = []
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
        running = self._running.get(turn_id)
        if running is not None and running.stop is None and not running.finishing:
            running.stop = why
            running.task.cancel()

    def stop_session(self, session_id: str) -> None:
        """For a session that is gone."""
        for turn_id, running in list(self._running.items()):
            if running.claim.key.session_id == session_id:
                self.stop(turn_id, "lost")

    async def close(self, *, grace_s: float) -> list[Claim]:
        """Takes no more turns, gives those that run `grace_s` to end, then hands them back and says which."""
        self._closed = True
        self._woken.clear()
        if self._lines:
            await asyncio.wait(self._lines.values(), timeout=grace_s)
        late = list(self._running.values())
        for running in late:
            self.stop(running.claim.key.turn_id, "handed_back")
        if late:
            await asyncio.wait({running.task for running in late}, timeout=STOP_S)
        lines = list(self._lines.values())
        for line in lines:
            line.cancel()
        await asyncio.gather(*lines, return_exceptions=True)
        return [running.claim for running in late if running.stop == "handed_back"]

    async def keep(self) -> None:
        """While turns run here: renews their leases, and hears that one is to stop. Never returns."""
        renewed = 0.0
        while True:
            await asyncio.sleep(min(LOOK_S, self._deps.limits.lease_s / 4))
            due = time.monotonic() - renewed >= self._deps.limits.lease_s / 4
            try:
                await self._end_unended()
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
        task = asyncio.create_task(self._run(claim), name=turn_id)
        self._running[turn_id] = _Running(claim, task)
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            task.cancel()
            raise
        finally:
            del self._running[turn_id]
        if claim.tells_facts:
            self._deps.afterwards.wake()
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

    async def _run(self, claim: Claim) -> ChatAnswer | None:
        key, origin = claim.key, claim.origin
        ids = {"session_id": key.session_id, "turn_id": key.turn_id}
        with (
            self._deps.span("turn", parent=origin.traceparent, attempt=claim.attempt, **ids) as span,
            bound_contextvars(request_id=origin.request_id, **ids, **trace_of(span)),
        ):
            model = MeteredModel(self._deps.model, self._deps.agent_limits.model)
            try:
                return await self._run_to_an_end(claim, model, span)
            finally:
                self._deps.events.close(claim.key, epoch=claim.epoch)
                await self._deps.limiter.spend(claim.owner, model.input_tokens + model.output_tokens)

    async def _run_to_an_end(self, claim: Claim, model: MeteredModel, span: Span) -> ChatAnswer | None:
        """One turn, whatever happens in it. None where it has no answer, or turned out to be somebody else's."""
        timeout_s = self._deps.limits.timeout_s
        guard = self._guard(claim)
        tally = Tally(claim, model, self._deps.observe, tools=guard.summary)
        try:
            async with asyncio.timeout(timeout_s if claim.left_s is None else claim.left_s) as limit:
                state = await self._answer(claim, model, guard, tally)
            return await self._finish(claim, state, model.name, tally)
        except StaleTurn:
            log.warning("turn_lost", epoch=claim.epoch)
            await short_term.forget(self._deps.cache, claim.key.session_id)
            return None
        except asyncio.CancelledError:
            await self._stopped(claim, tally)
            raise
        except AppError as error:
            failure = failures.lost_sight() if error.code == "storage_unavailable" else error
        except Exception as error:  # whatever a turn dies of, it ends with an error of its own
            failure = failures.turn_timeout(timeout_s) if limit.expired() else failures.internal()
            log.exception("turn_raised", error=type(error).__name__, exc_info=None if limit.expired() else error)
        span.fail(failure.code)
        await self._fail(claim, failure, tally)
        return None

    def _guard(self, claim: Claim) -> ToolGuard:
        key = claim.key
        return self._deps.new_guard(session_id=key.session_id, turn_id=key.turn_id, stored=claim.tool_states)

    async def _answer(self, claim: Claim, model: MeteredModel, guard: ToolGuard, tally: Tally) -> TurnState:
        deps = self._deps
        events = await deps.events.open(claim.key, epoch=claim.epoch, stream=claim.stream)
        await guard.look_at_fleet()
        snapshot = await load_snapshot(
            deps.database, deps.cache, deps.long_term, claim, limits=deps.limits.snapshot, now=deps.clock()
        )
        tally.begins_with(snapshot)
        context = TurnContext(
            owner=claim.owner,
            turn=claim.key,
            clock=deps.clock,
            model=model,
            guard=guard,
            cache=deps.cache,
            limits=deps.agent_limits,
            transaction=lambda: store.fenced_transaction(deps.database, claim),
            emit=tally.hearing(events.emit),
            span=deps.span,
            listened=events.listened,
        )
        return cast(TurnState, await deps.graph.ainvoke(snapshot, context=context))

    async def _finish(self, claim: Claim, state: TurnState, model: str, tally: Tally) -> ChatAnswer:
        report = turn_report(state, tally.stop(), model=model)
        self._running[claim.key.turn_id].finishing = True
        async with self._deps.database.reading() as connection:
            message = await store.finish_turn(
                connection,
                claim,
                answer=state["answer"] or "",
                message_id=state["answer_id"],
                report=report,
                cut_off=state["cut_off"],
                now=self._deps.clock(),
            )
        self._deps.afterwards.note_used(claim.owner, state["facts"])
        if state["cut_off"] is not None:
            self._deps.summaries.wake()
        calls = tuple(sorted(state.get("tool_calls", []), key=lambda call: call.tool_call_id))
        answer = chat_answer(claim.key, message, report, calls)
        self._deps.events.ended(claim.key, answer)
        tally.tell_end()
        return answer

    async def _stopped(self, claim: Claim, tally: Tally) -> None:
        running = self._running.get(claim.key.turn_id)
        match running and running.stop:
            case "cancelled":
                await self._fail(claim, failures.cancelled(), tally)
            case "handed_back":
                await self._hand_back(claim, tally)
            case _:
                log.warning("turn_lost", epoch=claim.epoch)

    async def _hand_back(self, claim: Claim, tally: Tally) -> None:
        try:
            async with self._deps.database.reading() as connection:
                handed = await endings.hand_back(connection, claim, timeout_s=self._deps.limits.timeout_s)
        except AppError as error:
            log.warning("hand_back_failed", code=error.code)
            return
        if not handed:  # somebody wants it cancelled
            await self._fail(claim, failures.cancelled(), tally)
            return
        log.info("turn_handed_back")
        self._deps.observe(TurnRecovered("handed_back"))

    async def _fail(self, claim: Claim, error: AppError, tally: Tally) -> None:
        """The row first, then whoever waits. Redis' copy of the session no longer tells everything: it goes."""
        tally.stop()
        await short_term.forget(self._deps.cache, claim.key.session_id)
        self._unended.append((claim, error, tally))
        with suppress(AppError):
            await self._end_unended()

    async def _end_unended(self) -> None:
        """What an outage kept from being written stays for the next look, or its session would wait for a lease."""
        while self._unended:
            claim, error, tally = self._unended[0]
            async with self._deps.database.reading() as connection:
                ended = await endings.end_turn(connection, claim, error, now=self._deps.clock())
            with suppress(ValueError):  # two turns may fail at once
                self._unended.remove((claim, error, tally))
            if ended:
                tally.tell_end(error)
                self._deps.events.ended(claim.key, error)

    async def _look(self, *, renew: bool) -> None:
        running = dict(self._running)
        if not running:
            return
        claims = [each.claim for each in running.values()]
        async with self._deps.database.reading() as connection:
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
