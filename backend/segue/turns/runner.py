"""One turn that runs here, from its claim to the row that ends it. Whatever happens, it gets that row or goes back to
the queue. `worker.py` decides which turns run and when one stops; readers follow a turn through its event log.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import Literal, cast

from sqlalchemy.exc import StatementError
from structlog.contextvars import bound_contextvars

from segue.agent.prompts import TEXTS
from segue.agent.render_messages import request_parts
from segue.agent.state import TurnContext, TurnInput, TurnState
from segue.agent.stream_reply import MAX_REASONING_CHARS
from segue.agent.tool_choice import ToolChooser
from segue.agent.turn_reports import acknowledgement_report, held_of, sources_of, web_search_report
from segue.db.engine import outlast, outlasting
from segue.db.outages import StorageUnavailable
from segue.domain import session
from segue.domain.agent import DEFAULT_AGENT
from segue.domain.errors import AppError, Unreadable, app_error, turn_cancelled
from segue.domain.events import Event, ReasoningAdded, ReasoningEnded, SteerRead, TextEnded
from segue.domain.identity import current_user
from segue.domain.telemetry import RunTimeline, Span, TurnRecovered, trace_of
from segue.domain.tool import ToolChoice
from segue.events import user_feed
from segue.log import log
from segue.memory import short_term
from segue.memory.history import NewMessage
from segue.models.metered_model import MeteredModel
from segue.tools.availability import ToolGuard
from segue.tools.normalize import clean
from segue.tools.page_tools import page_tools
from segue.turns import call_starts, claims, terminations
from segue.turns.claims import Claim
from segue.turns.run_record import LONG_S, ModelWait, TurnActivity, TurnMetrics, memory_report
from segue.turns.snapshot import load_context
from segue.turns.turn_deps import Speaker, TurnDeps
from segue.users.usage import Account

CALLS_BESIDE_ROUNDS = 30  # readers of the message, planners, those who fill in steps of plans, the last words
Stop = Literal["cancelled", "handed_back", "lost"]


@dataclass(frozen=True, slots=True)
class RunEnd:
    """How a run ended without an answer: its `error`, None to queue it again. `cut_off` is what a user stopped."""

    claim: Claim
    error: AppError | None
    metrics: TurnMetrics
    account: Account
    timeline: RunTimeline
    cut_off: NewMessage | None = None


class UnstoredEnds:
    """Ends of runs that an outage kept from being stored, tried again so that no session waits for a lease."""

    def __init__(self, deps: TurnDeps, wake: Callable[[str], None]) -> None:
        self._deps = deps
        self._wake = wake
        self._ends: list[RunEnd] = []
        self._being_stored: list[RunEnd] = []

    async def add(self, end: RunEnd) -> None:
        """Stores an end, or keeps it until Postgres can be used. One that Postgres refuses is an internal error."""
        try:
            await self._store(end)
        except AppError:
            self._ends.append(end)
        except StatementError as refused:  # as it would be again; if the other one is too, recovery ends the turn
            log.warning("end_refused", turn_id=end.claim.key.turn_id, error=type(refused.orig).__name__)
            if end.error is None or end.error.code != "internal_error":
                failed = app_error("internal_error")
                await self.add(replace(end, error=failed, timeline=RunTimeline(), cut_off=None))

    def has(self, session_id: str) -> bool:
        """Whether an end of a turn of the session is kept."""
        return any(end.claim.key.session_id == session_id for end in (*self._being_stored, *self._ends))

    async def store(self) -> None:
        """Tries once more to store each end that is kept: one may wait for a lock for seconds."""
        for _ in range(len(self._ends)):
            self._being_stored = [self._ends.pop(0)]
            try:
                await self.add(self._being_stored[0])
            finally:
                self._being_stored = []

    async def _store(self, end: RunEnd) -> None:
        """Stores an end, then emits it to the readers of its turn."""
        deps, claim, error, ended = self._deps, end.claim, end.error, None
        async with end.account.booking() as connection:
            again = partial(terminations.requeue, connection, claim, timeout_s=deps.settings.turn_timeout_s)
            if error is None and not await again("storage_lost"):
                error = turn_cancelled()
            if error is not None:
                ended = await terminations.end_turn(
                    connection, claim, error, now=deps.clock(), timeline=end.timeline, cut_off=end.cut_off
                )
        if error is None:
            log.warning("turn_queued_again", turn_id=claim.key.turn_id, attempts=claim.attempt)
            deps.observe(TurnRecovered("queued_again"))
            self._wake(claim.key.session_id)
        elif ended is not None:
            end.metrics.record_end(ended[0])
            deps.events.end(claim.key, *ended, user=claim.owner)
            deps.sample(claim.owner, claim.request.origin.groups, claim.key.session_id)


def tools_of_turn(
    deps: TurnDeps, claim: Claim, speaker: Speaker, *, save: Callable[[ToolChoice], Awaitable[None]]
) -> tuple[ToolGuard, ToolChooser]:
    """Returns the tools of a claimed turn, and who chooses among them if there are too many for a request."""
    guard = ToolGuard(
        deps.tools,
        claim.key,
        claim.tool_states,
        holds=claim.tool_holds,
        agent=speaker.agent,
        who=(claim.owner, claim.request.origin.groups, speaker.id),
        page=page_tools(claim.request.options.page_tools) if claim.request.options.page_tools else {},
        is_summarised=claim.summary is not None,
    )
    rank = partial(deps.tool_search.rank, payer=(claim.owner, claim.key.session_id))
    tool_chooser = partial(ToolChooser, rank, guard, deps.settings, deps.tool_tokens)
    return guard, tool_chooser(stored=claim.tool_choice, seq=claim.key.turn_seq, save=save)


class TurnRun:
    """One run of a claimed turn. `stopped` is why it was stopped, None if it was not. `stored_messages` are those that
    its calls have stored, once it is finished. A run whose answer is being stored is not stopped any more: the guard in
    the statement decides.
    """

    def __init__(self, deps: TurnDeps, claim: Claim, unstored: UnstoredEnds, *, lease_s: float) -> None:
        self.claim = claim
        self.stopped: Stop | None = None
        self.stored_messages = 0
        self._deps = deps
        self._unstored = unstored
        self._lease_s = lease_s
        self._task: asyncio.Task[session.ChatAnswer | None] | None = None
        self._finishing = False
        self._began = time.monotonic()
        self._cut_off: NewMessage | None = None
        self._thought = ""
        speaker = deps.agents.speaker(claim.agent, claim.owner, claim.request.origin.groups)
        self._speaker = speaker.answering_with(claim.request.options.model)
        who, groups = (claim.owner, claim.key.session_id, claim.key.turn_id), claim.request.origin.groups
        self._account = Account(deps.books, *who, agent=self._speaker.id, epoch=claim.epoch, groups=groups)
        most_calls = self._speaker.settings.max_rounds + CALLS_BESIDE_ROUNDS
        self._model = MeteredModel(self._speaker.models, most_calls, self._account)
        # With a method of its own to save, the run would not be freed by itself.
        save = partial(call_starts.store_tool_choice, deps.database, claim)
        self._guard, self._chooser = tools_of_turn(deps, claim, self._speaker, save=save)
        self._metrics = TurnMetrics(claim, self._model, deps.observe, tools=self._guard.summary)

    def activity(self) -> TurnActivity | None:
        """Returns None for a run that is younger than LONG_S."""
        pending, clock = self._model.waits_for, time.monotonic()
        if clock - self._began < LONG_S:
            return None
        waits = ModelWait(pending[0], self._deps.clock() - timedelta(seconds=clock - pending[1])) if pending else None
        return TurnActivity(self.claim.epoch, self._metrics.node, waits, self._metrics.timeline())

    def start(self) -> asyncio.Task[session.ChatAnswer | None]:
        """Returns the task of the run; its result is None for a turn that ended without an answer or was lost."""
        self._task = asyncio.create_task(self._run(), name=self.claim.key.turn_id)
        return self._task

    def stop(self, why: Stop) -> asyncio.Task[session.ChatAnswer | None] | None:
        """Returns the task that ends soon, also if it was stopped before; None if the run was never started."""
        if self._task is not None and self.stopped is None and not self._finishing:
            self.stopped = why
            self._task.cancel()
        return self._task

    async def _run(self) -> session.ChatAnswer | None:
        key, origin = self.claim.key, self.claim.request.origin
        current_user.set(self.claim.owner)
        ids = {"session_id": key.session_id, "turn_id": key.turn_id}
        with (
            self._deps.span("turn", parent=origin.traceparent, attempt=self.claim.attempt, **ids) as span,
            bound_contextvars(request_id=origin.request_id, **ids, **trace_of(span)),
        ):
            try:
                return await self._run_to_an_end(span)
            finally:
                self._deps.events.close(key, epoch=self.claim.epoch)
                await self._account.close()

    async def _run_to_an_end(self, span: Span) -> session.ChatAnswer | None:
        """Returns None if the turn failed or another process holds its lease."""
        claim, timeout_s = self.claim, self._deps.settings.turn_timeout_s
        try:
            with outlasting(self._lease_s):  # after that another process may take the turn
                left_s = timeout_s if claim.left_s is None else min(timeout_s, claim.left_s)
                async with asyncio.timeout(left_s) as limit:
                    state = await self._answer()
                return await self._finish(state)
        except claims.StaleTurn:
            await self._lose()
            return None
        except asyncio.CancelledError:
            if self.stopped == "cancelled":
                await self._stop_for(turn_cancelled())
            elif self.stopped == "handed_back":
                await self._hand_back()
            else:
                await self._lose()
            raise
        except AppError as error:
            if isinstance(error, StorageUnavailable) and claim.attempt < terminations.MAX_ATTEMPTS:
                span.fail(error.code)
                log.warning("turn_cut_off", code=error.code)
                await self._stop_for(None)
                return None
            failure = app_error("storage_lost") if isinstance(error, StorageUnavailable) else error
        except Exception as error:  # a turn that fails in any way ends with an error of its own
            failure = app_error("turn_timeout" if limit.expired() else "internal_error", seconds=timeout_s)
            if failure.code == "internal_error":
                log.exception("turn_raised", error=type(error).__name__)
        span.fail(failure.code)
        await self._stop_for(failure)
        return None

    async def _answer(self) -> TurnState:
        deps, claim = self._deps, self.claim
        events = await deps.events.open(claim.key, epoch=claim.epoch, stream=claim.request.stream)
        deps.events.tell(claim.owner, user_feed.turn_started(claim.key, claim.title))
        if claim.is_unreadable:
            raise Unreadable("message")
        await self._guard.load_global_state()
        tools = self._guard, self._chooser
        state = await outlast(lambda: load_context(deps, claim, self._speaker, tools, now=deps.clock(), coming=None))
        self._metrics.start_from(state)
        events.give_up_calls({each.call.tool_call_id for each in state["earlier"].calls} if state["earlier"] else ())

        def emit(event: Event) -> None:
            self._metrics.count(event)
            if isinstance(event, TextEnded) and event.cut_off:
                text = clean(event.cut_off)
                self._cut_off = NewMessage("assistant", text, deps.clock(), id=event.message_id, cut_off=True)
            if isinstance(event, ReasoningAdded) and len(self._thought) < MAX_REASONING_CHARS:
                self._thought += event.text
            if isinstance(event, ReasoningEnded):
                self._thought += "\n\n"
            if isinstance(event, SteerRead):
                deps.events.end(event.was, session.turn_steered(claim.key))
            events.emit(event)

        context = TurnContext(
            owner=claim.owner,
            turn=claim.key,
            time_zone=claim.request.time_zone or "UTC",
            clock=deps.clock,
            model=self._model,
            guard=self._guard,
            chooser=self._chooser,
            cache=deps.cache,
            agent=self._speaker.id,
            agent_digest=self._speaker.digest,
            approvals=self._speaker.agent.approvals,
            options=claim.request.options,
            settings=self._speaker.settings,
            transaction=lambda: claims.fenced_transaction(deps.database, claim),
            start_calls=partial(call_starts.start_calls, deps.database, claim),
            is_steered=partial(call_starts.is_steered, deps.database, claim.key),
            read_steers=lambda connection: call_starts.read_steers(connection, claim),
            emit=emit,
            span=deps.span,
            has_listener=events.wants_tokens,
        )
        return await self._run_graph(state, context)

    async def _run_graph(self, state: TurnInput, context: TurnContext) -> TurnState:
        name, main = self._speaker.agent.name, self._speaker.models.main
        with self._deps.span("agent", agent=name, model=main.id, provider=main.traced_as) as span:
            # The older version of its output is made of the updates of each node too.
            ended = await self._deps.graph.ainvoke({"turn": {**state}}, context=context, version="v2")
            spent = self._account.total
            span.set_attributes(input_tokens=spent.input_tokens, output_tokens=spent.output_tokens)
        return cast(TurnState, ended.value["turn"])

    async def _finish(self, state: TurnState) -> session.ChatAnswer:
        claim, touched, problem = self.claim, state["touched_plan"], state.get("problem")
        is_gone = claim.agent != self._speaker.id
        report = session.TurnReport(
            acknowledgement=acknowledgement_report(state),
            plan=touched.plan if touched else None,
            web_search=web_search_report(state),
            memory_used=memory_report(state),
            usage=self._metrics.stop(),
            model=self._model.name,
            agent=self._speaker.id if self._speaker.id != DEFAULT_AGENT or is_gone else None,
            asked_again=state.get("asked_again"),
            agent_gone=claim.agent if is_gone else None,
            finish_reason="length" if self._model.finish_reason == "length" else None,
            is_structured=state.get("is_structured", False),
            prompt=await self._last_request(state),
            written_by="service" if problem else None,
            problem=problem.code if problem else None,
            error=session.TurnError(**terminations.error_row(problem), extra=clean(problem.extra)) if problem else None,
            reasoning=clean(self._thought[:MAX_REASONING_CHARS]).strip() or None,
            sources=sources_of(state),
            effects=held_of(state, self._guard.tools()),
        )
        self._finishing = True
        self.stored_messages = state["message_count"] - claim.message_count
        message = await outlast(lambda: self._store_answer(state, report))
        self._account.unbooked.clear()
        if state["facts"]:
            self._deps.fact_upkeep.mark_used(claim.owner, state["facts"])
        if self._deps.summaries is not None and state["cut_off"] is not None:
            self._deps.summaries.wake()
        if self._deps.titles is not None and claim.answered_turn_id is None:
            self._deps.titles.wake()
        report = replace(report, effects=session.with_held(state.get("effects", ()), report.effects))
        answer = session.chat_answer(claim.key, message, report, tuple(state.get("tool_calls", [])))
        self._deps.events.end(claim.key, answer, user=claim.owner)
        self._deps.sample(claim.owner, claim.request.origin.groups, claim.key.session_id)
        self._metrics.record_end()
        return answer

    async def _last_request(self, state: TurnState) -> session.PromptReport | None:
        if self._model.last_request is None:
            return None
        (messages, tools), deps = self._model.last_request, self._deps
        parts = partial(request_parts, state["prompt_parts"], messages, deps.tool_tokens(tools), deps.count)
        return await asyncio.to_thread(parts) if state.get("tool_calls") else parts()  # results may be megabytes

    async def _store_answer(self, state: TurnState, report: session.TurnReport) -> session.Message:
        note = TEXTS["by_service"].strip() if report.written_by else None
        answer = NewMessage("assistant", state["answer"] or "", self._deps.clock(), id=state["answer_id"], note=note)
        return await self._deps.database.write(
            terminations.finish_turn,
            self.claim,
            answer=answer,
            report=report,
            timeline=self._metrics.timeline(),
            cut_off=state["cut_off"],
            improves_title=self._deps.titles is not None,
            charges=self._account.unbooked,
        )

    async def _lose(self) -> None:
        log.warning("turn_lost", epoch=self.claim.epoch)
        await short_term.forget(self._deps.cache, self.claim.key.session_id)

    async def _hand_back(self) -> None:
        database, timeout_s = self._deps.database, self._deps.settings.turn_timeout_s
        try:
            handed = await database.write(terminations.requeue, self.claim, "handed_back", timeout_s=timeout_s)
        except AppError as error:
            log.warning("hand_back_failed", code=error.code)
            return
        if not handed:  # it is to be cancelled
            await self._stop_for(turn_cancelled())
            return
        log.info("turn_handed_back")
        self._deps.observe(TurnRecovered("handed_back"))

    async def _stop_for(self, error: AppError | None) -> None:
        """Ends the turn with an error, or queues it again. The session's memory in Redis goes: it lacks this turn."""
        timeline = self._metrics.timeline(self._metrics.stop())
        await short_term.forget(self._deps.cache, self.claim.key.session_id)
        cut_off = self._cut_off if self.stopped == "cancelled" else None
        await self._unstored.add(RunEnd(self.claim, error, self._metrics, self._account, timeline, cut_off))
