"""One turn that runs here, from its claim to the row that ends it.

Whatever happens in it, it ends with a row that says so, or goes back to whoever takes it next. `worker.py` decides
which turns run and when one is to stop; whoever follows it is told through `events.py`.
"""

import asyncio
from contextlib import suppress
from typing import Literal, cast

import structlog
from structlog.contextvars import bound_contextvars

from segue.agent.context import TurnContext
from segue.agent.model import MeteredModel
from segue.agent.state import TurnState
from segue.domain import turn_errors
from segue.domain.errors import AppError
from segue.domain.session import ChatAnswer
from segue.domain.telemetry import Span, TurnRecovered, trace_of
from segue.memory import short_term
from segue.turns import store, terminations
from segue.turns.deps import TurnDeps
from segue.turns.load_context import load_snapshot
from segue.turns.queries import chat_answer
from segue.turns.report import turn_report
from segue.turns.store import Claim, StaleTurn
from segue.turns.turn_metrics import Tally

Stop = Literal["cancelled", "handed_back", "lost"]

log = structlog.get_logger()


class Unended:
    """Ends that an outage kept from being written stay for the next try, or their sessions would wait for a lease."""

    def __init__(self, deps: TurnDeps) -> None:
        self._deps = deps
        self._ends: list[tuple[Claim, AppError, Tally]] = []

    async def add(self, claim: Claim, error: AppError, tally: Tally) -> None:
        self._ends.append((claim, error, tally))
        with suppress(AppError):
            await self.write()

    async def write(self) -> None:
        """The row first, then whoever waits. Raises AppError `storage_unavailable`."""
        while self._ends:
            claim, error, tally = self._ends[0]
            async with self._deps.database.autocommit() as connection:
                ended = await terminations.end_turn(connection, claim, error, now=self._deps.clock())
            with suppress(ValueError):  # two turns may fail at once
                self._ends.remove((claim, error, tally))
            if ended:
                tally.tell_end(error)
                self._deps.events.end(claim.key, error)


class TurnRun:
    """Runs from when it is made. `stopped` is why it was told to stop, once it was. One whose answer is being stored is
    past that: whether it is stored in time is for the row to say.
    """

    def __init__(self, deps: TurnDeps, claim: Claim, unended: Unended) -> None:
        self.claim = claim
        self.stopped: Stop | None = None
        self._deps = deps
        self._unended = unended
        self._finishing = False
        self._model = MeteredModel(deps.model, deps.agent_limits.model)
        key = claim.key
        self._guard = deps.new_guard(session_id=key.session_id, turn_id=key.turn_id, stored=claim.tool_states)
        self._tally = Tally(claim, self._model, deps.observe, tools=self._guard.summary)
        self.task = asyncio.create_task(self._run(), name=key.turn_id)

    def stop(self, why: Stop) -> None:
        if self.stopped is None and not self._finishing:
            self.stopped = why
            self.task.cancel()

    async def _run(self) -> ChatAnswer | None:
        key, origin, model = self.claim.key, self.claim.origin, self._model
        ids = {"session_id": key.session_id, "turn_id": key.turn_id}
        with (
            self._deps.span("turn", parent=origin.traceparent, attempt=self.claim.attempt, **ids) as span,
            bound_contextvars(request_id=origin.request_id, **ids, **trace_of(span)),
        ):
            try:
                return await self._run_to_an_end(span)
            finally:
                self._deps.events.close(key, epoch=self.claim.epoch)
                await self._deps.limiter.spend(self.claim.owner, model.input_tokens + model.output_tokens)

    async def _run_to_an_end(self, span: Span) -> ChatAnswer | None:
        """One turn, whatever happens in it. None where it has no answer, or turned out to be somebody else's."""
        claim, timeout_s = self.claim, self._deps.limits.timeout_s
        try:
            async with asyncio.timeout(timeout_s if claim.left_s is None else claim.left_s) as limit:
                state = await self._answer()
            return await self._finish(state)
        except StaleTurn:
            log.warning("turn_lost", epoch=claim.epoch)
            await short_term.forget(self._deps.cache, claim.key.session_id)
            return None
        except asyncio.CancelledError:
            await self._obey()
            raise
        except AppError as error:
            failure = turn_errors.storage_lost() if error.code == "storage_unavailable" else error
        except Exception as error:  # whatever a turn dies of, it ends with an error of its own
            failure = turn_errors.turn_timeout(timeout_s) if limit.expired() else turn_errors.internal()
            log.exception("turn_raised", error=type(error).__name__, exc_info=None if limit.expired() else error)
        span.fail(failure.code)
        await self._fail(failure)
        return None

    async def _answer(self) -> TurnState:
        deps, claim = self._deps, self.claim
        events = await deps.events.open(claim.key, epoch=claim.epoch, stream=claim.stream)
        await self._guard.look_at_fleet()
        snapshot = await load_snapshot(
            deps.database, deps.cache, deps.long_term, claim, limits=deps.limits.snapshot, now=deps.clock()
        )
        self._tally.begins_with(snapshot)
        context = TurnContext(
            owner=claim.owner,
            turn=claim.key,
            clock=deps.clock,
            model=self._model,
            guard=self._guard,
            cache=deps.cache,
            limits=deps.agent_limits,
            transaction=lambda: store.fenced_transaction(deps.database, claim),
            emit=self._tally.hearing(events.emit),
            span=deps.span,
            listened=events.wants_tokens,
        )
        return cast(TurnState, await deps.graph.ainvoke(snapshot, context=context))

    async def _finish(self, state: TurnState) -> ChatAnswer:
        claim = self.claim
        report = turn_report(state, self._tally.stop(), model=self._model.name)
        self._finishing = True
        async with self._deps.database.autocommit() as connection:
            message = await store.finish_turn(
                connection,
                claim,
                answer=state["answer"] or "",
                message_id=state["answer_id"],
                report=report,
                cut_off=state["cut_off"],
                now=self._deps.clock(),
            )
        self._deps.fact_upkeep.mark_used(claim.owner, state["facts"])
        if state["cut_off"] is not None:
            self._deps.summaries.wake()
        calls = tuple(sorted(state.get("tool_calls", []), key=lambda call: call.tool_call_id))
        answer = chat_answer(claim.key, message, report, calls)
        self._deps.events.end(claim.key, answer)
        self._tally.tell_end()
        return answer

    async def _obey(self) -> None:
        match self.stopped:
            case "cancelled":
                await self._fail(turn_errors.cancelled())
            case "handed_back":
                await self._hand_back()
            case _:
                log.warning("turn_lost", epoch=self.claim.epoch)

    async def _hand_back(self) -> None:
        try:
            async with self._deps.database.autocommit() as connection:
                handed = await terminations.hand_back(connection, self.claim, timeout_s=self._deps.limits.timeout_s)
        except AppError as error:
            log.warning("hand_back_failed", code=error.code)
            return
        if not handed:  # somebody wants it cancelled
            await self._fail(turn_errors.cancelled())
            return
        log.info("turn_handed_back")
        self._deps.observe(TurnRecovered("handed_back"))

    async def _fail(self, error: AppError) -> None:
        """Redis' copy of the session no longer tells everything: it goes."""
        self._tally.stop()
        await short_term.forget(self._deps.cache, self.claim.key.session_id)
        await self._unended.add(self.claim, error, self._tally)
