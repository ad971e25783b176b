"""The story of a turn: accept → claim → snapshot → graph → finish, and everyone who waits for it.

Knows nothing of HTTP. The request that brought a message only watches its turn; the turn belongs to the process, and
the answer is the row: a watcher in another process reads it there.
"""

import asyncio
import os
import socket
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Self, cast

import structlog
from structlog.contextvars import bound_contextvars

from backend.agent.context import AgentLimits, Clock, TurnContext
from backend.agent.graph import Graph
from backend.agent.model import ChatModel, MeteredModel
from backend.agent.state import TurnState
from backend.db.engine import Database
from backend.db.redis import Cache
from backend.domain.errors import AppError, NotFound
from backend.domain.plan import Decision
from backend.domain.session import ChatAnswer, Message, TurnReport
from backend.domain.tool import ToolCall
from backend.memory import short_term
from backend.memory.history import TurnKey, final_message
from backend.plans.store import expired
from backend.tools.catalog import ToolCatalog
from backend.tools.fleet import Fleet
from backend.tools.guard import ToolGuard
from backend.tools.health import HealthRules
from backend.tools.results import calls_of_turn
from backend.tools.retention import drop_expired
from backend.turn import failures, store
from backend.turn.decisions import begin_decision
from backend.turn.queue import TurnQueue
from backend.turn.report import turn_report
from backend.turn.snapshot import SnapshotLimits, load_snapshot
from backend.turn.store import ChatRequest, Claim, StaleTurn

LOOK_AT_ROW_S = 1.0

log = structlog.get_logger()

Result = ChatAnswer | AppError


@dataclass(frozen=True, slots=True)
class TurnLimits:
    timeout_s: float
    lease_s: float
    grace_s: float
    snapshot: SnapshotLimits


@dataclass(frozen=True, slots=True)
class TurnDeps:
    database: Database
    cache: Cache
    graph: Graph
    model: ChatModel
    catalog: ToolCatalog
    fleet: Fleet
    health_rules: HealthRules
    clock: Clock
    agent_limits: AgentLimits
    limits: TurnLimits


class TurnService:
    """Runs turns for as long as it is entered: `async with TurnService(deps) as turns: await turns.chat(…)`."""

    def __init__(self, deps: TurnDeps) -> None:
        self._deps = deps
        self._worker = f"{socket.gethostname()}:{os.getpid()}"
        self._queue = TurnQueue(self._run_next)
        self._running: dict[str, tuple[Claim, asyncio.Task[Result | None]]] = {}
        self._watched: dict[str, asyncio.Future[Result]] = {}
        self._unended: list[tuple[Claim, AppError]] = []

    async def __aenter__(self) -> Self:
        self._upkeep = asyncio.create_task(self._keep_up(), name="leases and recovery")
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._queue.close(grace_s=self._deps.limits.grace_s)
        self._upkeep.cancel()
        with suppress(asyncio.CancelledError):
            await self._upkeep

    async def chat(self, owner: str, session_id: str, request: ChatRequest) -> ChatAnswer:
        """Accepts a message and waits for its answer. Raises what went wrong, with the turn's id in it."""
        async with self._deps.database.reading() as connection:
            turn = await store.begin_turn(connection, owner, session_id, request, now=self._deps.clock())
        return await self._answer_to(turn)

    async def decide(self, owner: str, session_id: str, decision: Decision, *, version: int) -> ChatAnswer:
        """A button on the plan that waits: decided here and now, carried out by a turn of its own.

        Raises AppError `no_open_plan`, `plan_changed`, `plan_expired`; then nothing was accepted.
        """
        now = self._deps.clock()
        async with self._deps.database.transaction() as connection:
            turn = await begin_decision(connection, owner, session_id, decision, version=version, now=now)
        if turn is None:
            raise expired()
        return await self._answer_to(turn)

    async def _answer_to(self, turn: TurnKey) -> ChatAnswer:
        watched = self._watched.setdefault(turn.turn_id, asyncio.get_running_loop().create_future())
        self._queue.wake(turn.session_id)
        try:
            result = await self._result(turn, watched)
        finally:
            self._watched.pop(turn.turn_id, None)
        if isinstance(result, AppError):
            raise result.with_extra(turn_id=turn.turn_id)
        return result

    @property
    def alive(self) -> bool:
        return not self._upkeep.done()

    def stop_session(self, session_id: str) -> None:
        """Stops what this process runs for a session that is about to be deleted."""
        for claim, task in self._running.values():
            if claim.key.session_id == session_id:
                task.cancel()

    async def _result(self, turn: TurnKey, watched: asyncio.Future[Result]) -> Result:
        """What the turn came to: told by this process, or read from its row where another one ran it."""
        while True:
            await asyncio.wait({watched}, timeout=LOOK_AT_ROW_S)
            if watched.done():
                return watched.result()
            if turn.turn_id in self._running:
                continue  # it will tell by itself: asking for it would only take connections from those that run
            try:
                result = await self._stored_result(turn)
            except AppError as error:
                raise failures.lost_sight() from error
            if result is not None:
                return result

    async def _stored_result(self, turn: TurnKey) -> Result | None:
        async with self._deps.database.reading() as connection:
            outcome = await store.turn_outcome(connection, turn.turn_id)
            if outcome is None:
                return NotFound("session")
            if outcome.error is not None:
                return outcome.error
            if outcome.report is None:
                return None
            message = await final_message(connection, turn.turn_id)
            calls = await calls_of_turn(connection, turn.turn_id)
        return chat_answer(turn, message, outcome.report, calls)

    async def _run_next(self, session_id: str) -> bool:
        try:
            async with self._deps.database.reading() as connection:
                claim = await store.claim_next(
                    connection, session_id, worker=self._worker, lease_s=self._deps.limits.lease_s
                )
        except AppError as error:
            log.warning("claim_failed", session_id=session_id, code=error.code)
            return False
        if claim is None:
            return False
        turn_id = claim.key.turn_id
        task = asyncio.create_task(self._run(claim), name=turn_id)
        self._running[turn_id] = (claim, task)
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            task.cancel()
            await asyncio.wait({task})
            raise
        finally:
            del self._running[turn_id]
        result = None if task.cancelled() else task.result()
        watched = self._watched.get(turn_id)
        if watched is not None and not watched.done() and result is not None:
            watched.set_result(result)
        return not (isinstance(result, ChatAnswer) and _has_last_word(claim, result.message))

    async def _run(self, claim: Claim) -> Result | None:
        """One turn, whatever happens in it. None where it turned out to be somebody else's."""
        with bound_contextvars(session_id=claim.key.session_id, turn_id=claim.key.turn_id):
            started = time.monotonic()
            model, guard = MeteredModel(self._deps.model), self._guard(claim)
            try:
                async with asyncio.timeout(self._deps.limits.timeout_s) as limit:
                    state = await self._answer(claim, model, guard)
                return await self._finish(claim, state, model, guard, started)
            except StaleTurn:
                log.warning("turn_lost", epoch=claim.epoch)
                await short_term.forget(self._deps.cache, claim.key.session_id)
                return None
            except asyncio.CancelledError:
                await self._fail(claim, failures.interrupted(), started)
                raise
            except AppError as error:
                failure = failures.lost_sight() if error.code == "storage_unavailable" else error
            except Exception as error:  # whatever a turn dies of, it ends with an error of its own
                failure = failures.turn_timeout(self._deps.limits.timeout_s) if limit.expired() else failures.internal()
                log.exception("turn_raised", error=type(error).__name__, exc_info=None if limit.expired() else error)
            await self._fail(claim, failure, started)
            return failure

    def _guard(self, claim: Claim) -> ToolGuard:
        deps = self._deps
        return ToolGuard(
            deps.catalog,
            deps.database,
            deps.fleet,
            deps.health_rules,
            deps.clock,
            session_id=claim.key.session_id,
            turn_id=claim.key.turn_id,
            stored=claim.tool_states,
            timeout_s=deps.agent_limits.run.timeout_s,
        )

    async def _answer(self, claim: Claim, model: MeteredModel, guard: ToolGuard) -> TurnState:
        deps = self._deps
        await guard.look_at_fleet()
        snapshot = await load_snapshot(deps.database, deps.cache, claim, limits=deps.limits.snapshot, now=deps.clock())
        context = TurnContext(
            owner=claim.owner,
            turn=claim.key,
            clock=deps.clock,
            model=model,
            guard=guard,
            cache=deps.cache,
            limits=deps.agent_limits,
            transaction=lambda: store.fenced_transaction(deps.database, claim),
        )
        return cast(TurnState, await deps.graph.ainvoke(snapshot, context=context))

    async def _finish(
        self, claim: Claim, state: TurnState, model: MeteredModel, guard: ToolGuard, started: float
    ) -> ChatAnswer:
        report = turn_report(state, model, duration_ms=_since(started))
        answer = state["answer"] or ""
        async with self._deps.database.reading() as connection:
            message = await store.finish_turn(connection, claim, answer=answer, report=report, now=self._deps.clock())
        calls = tuple(sorted(state.get("tool_calls", []), key=lambda call: call.tool_call_id))
        usage = asdict(report.usage)
        log.info("turn_finished", outcome="completed", tool_calls=len(calls), **usage, **guard.summary())
        return chat_answer(claim.key, message, report, calls)

    async def _fail(self, claim: Claim, error: AppError, started: float) -> None:
        """The row first, then whoever waits. Redis' copy of the session no longer tells everything: it goes."""
        log.warning("turn_finished", outcome="failed", code=error.code, duration_ms=_since(started))
        await short_term.forget(self._deps.cache, claim.key.session_id)
        self._unended.append((claim, error))
        with suppress(AppError):
            await self._end_failed()

    async def _end_failed(self) -> None:
        """What an outage kept from being written stays for the next upkeep, or its session would wait for a lease."""
        while self._unended:
            claim, error = self._unended[0]
            async with self._deps.database.reading() as connection:
                await store.fail_turn(connection, claim, error, now=self._deps.clock())
            with suppress(ValueError):  # two turns may fail at once
                self._unended.remove((claim, error))

    async def _keep_up(self) -> None:
        """Renews the leases of what runs here, picks up what a stopped process left behind, drops what has expired."""
        while True:
            try:
                await self._end_failed()
                await self._renew_leases()
                async with self._deps.database.reading() as connection:
                    if lapsed := await store.fail_lapsed(connection):
                        log.warning("turns_recovered", lapsed=lapsed)
                    for session_id in await store.sessions_waiting(connection):
                        self._queue.wake(session_id)
                    if dropped := await drop_expired(connection, now=self._deps.clock()):
                        log.info("results_expired", dropped=dropped)
            except AppError as error:
                log.warning("upkeep_failed", code=error.code)
            await asyncio.sleep(self._deps.limits.lease_s / 4)

    async def _renew_leases(self) -> None:
        running = dict(self._running)
        if not running:
            return
        claims = [claim for claim, _ in running.values()]
        async with self._deps.database.reading() as connection:
            ours = await store.renew_leases(connection, claims, lease_s=self._deps.limits.lease_s)
        for turn_id, (_, task) in running.items():
            if turn_id not in ours:
                task.cancel()


def _has_last_word(claim: Claim, answer: Message) -> bool:
    """Whether the answer follows right on what it answers. Then nothing waits: whoever accepts a message and whoever
    ends a turn take the session's next seq under the lock of its row, and who comes later sees the other's work.
    """
    return answer.seq == claim.key.turn_seq + 1


def chat_answer(turn: TurnKey, message: Message, report: TurnReport, calls: tuple[ToolCall, ...]) -> ChatAnswer:
    return ChatAnswer(
        session_id=turn.session_id,
        turn_id=turn.turn_id,
        status="completed",
        message=message,
        acknowledgement=report.acknowledgement,
        plan=report.plan,
        tool_calls=calls,
        web_search=report.web_search,
        memory_used=report.memory_used,
        usage=report.usage,
        model=report.model,
    )


def _since(started: float) -> int:
    return round((time.monotonic() - started) * 1000)
