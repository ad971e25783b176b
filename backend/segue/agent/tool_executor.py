"""Tool calls: sort out which may run, record that they will, run them side by side, record each as it ends.

The only place where the ledger, the history and a running tool meet. A call that ends is recorded at once, so that a
sibling that hangs, fails or is cancelled costs nobody else's result.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Protocol

from langchain_core.messages import BaseMessage, ToolMessage
from sqlalchemy.ext.asyncio import AsyncConnection

from segue.agent import render_messages
from segue.agent.context import TurnContext
from segue.agent.model import ModelCall, Reply
from segue.agent.stream_reply import Spoken, tell
from segue.domain.events import CallEnded, CallStarted, ToolOutcome, ToolRan, ToolStateChanged
from segue.domain.ids import new_id
from segue.domain.session import RequestedCall
from segue.domain.tool import Reference, Tool, ToolCall, ToolContext, canonical_args
from segue.memory import history
from segue.plans.policy import needs_confirmation
from segue.tools import results
from segue.tools.availability import refusal
from segue.tools.normalize import clean
from segue.tools.results import PlanStep, RecordedCall
from segue.tools.run import Outcome, accepts, failed, lost, run_tool

AlsoWrite = Callable[[AsyncConnection], Awaitable[None]]
AlsoRecord = Callable[[AsyncConnection, Outcome, ToolCall], Awaitable[None]]


class RunCall(Protocol):
    """Runs a call and records what comes of it; `also` writes in the same transaction."""

    async def __call__(
        self, context: TurnContext, call: "PreparedCall", done: "TurnCalls", *, also: AlsoRecord | None = None
    ) -> Outcome: ...


@dataclass(slots=True)
class TurnCalls:
    """What a turn has called so far.

    `answers` holds what is not run a second time, by tool and canonical arguments: what succeeded, and what may have.
    """

    ledger: list[ToolCall] = field(default_factory=list)
    references: list[Reference] = field(default_factory=list)
    answers: dict[tuple[str, str], str] = field(default_factory=dict)
    count: int = 0
    stored_messages: int = 0


@dataclass(frozen=True, slots=True)
class PreparedCall:
    """A call under our own id. It runs where `tool` is there and `refusal` is not."""

    request: RequestedCall
    tool: Tool | None
    refusal: str | None = None

    @property
    def recorded(self) -> bool:
        return self.tool is None or not self.tool.spec.ephemeral

    @property
    def key(self) -> tuple[str, str]:
        return self.request.name, canonical_args(self.request.args)


@dataclass(frozen=True, slots=True)
class Round:
    """What the model is to see of a round, and the calls in it that wait for the user's yes."""

    messages: list[BaseMessage]
    held: list[PreparedCall]


async def run_round(
    context: TurnContext, reply: Reply, tools: Mapping[str, Tool], done: TurnCalls, *, spoken: Spoken | None = None
) -> Round:
    """The assistant's message and an answer to every call in it that may run without asking; equal calls run once.

    What the assistant says beside its calls is told to its end, unless none of them runs.
    """
    await context.guard.refresh()
    prepared = [_prepare(context, call, tools) for call in reply.calls[: context.limits.max_calls - done.count]]
    held = [call for call in prepared if _is_held(call, context)]
    runs = [call for call in prepared if call not in held]
    fresh = {call.key: call for call in reversed(runs) if call.key not in done.answers}
    recorded = [call for call in runs if call.recorded and call in fresh.values()]
    message_id = tell(context, reply.text, spoken) if runs and reply.text else None
    if recorded:
        await record_start(context, reply.text, [call.request for call in recorded], message_id=message_id)
        done.stored_messages += 1
    done.count += len(runs)
    answers = done.answers | await _together(context, list(fresh.values())[::-1], done)
    if not runs:
        return Round([], held)
    said = render_messages.assistant_message(reply.text, [call.request for call in runs])
    return Round([said, *(ToolMessage(answers[call.key], tool_call_id=call.request.id) for call in runs)], held)


async def record_start(
    context: TurnContext,
    text: str,
    calls: Sequence[RequestedCall],
    *,
    message_id: str | None = None,
    step: PlanStep | None = None,
    also: AlsoWrite | None = None,
) -> None:
    """Stores the assistant's message and a ledger row for each call before anything runs, in one transaction."""
    now = context.clock()
    async with context.transaction() as connection:
        message_id = await history.append_message(
            connection,
            context.turn,
            role="assistant",
            content=clean(text),
            now=now,
            message_id=message_id,
            tool_calls=calls,
        )
        await results.start_calls(
            connection,
            session_id=context.turn.session_id,
            turn_id=context.turn.turn_id,
            message_id=message_id,
            calls=calls,
            now=now,
            step=step,
        )
        if also is not None:
            await also(connection)
    for call in calls:
        context.emit(CallStarted(call, message_id))


async def run_and_record(
    context: TurnContext, call: PreparedCall, done: TurnCalls, *, also: AlsoRecord | None = None
) -> Outcome:
    """Runs a call if its tool may run now. A tool that is tried out stays so until the outcome is stored."""
    if call.tool is None or call.refusal is not None:
        outcome = failed(call.refusal or "The call was refused.")
        await _record_end(context, call, outcome, done, also=also)
        return outcome
    async with context.guard.admitting(call.tool.spec) as refused:
        outcome = failed(refused) if refused else await _run(context, call.tool, call.request)
        await _record_end(context, call, outcome, done, also=also)
    return outcome


async def _record_end(
    context: TurnContext, call: PreparedCall, outcome: Outcome, done: TurnCalls, *, also: AlsoRecord | None
) -> None:
    """Stores the outcome, the payload, the tool message and the tool's state, in one transaction."""
    context.emit(ToolRan(call.tool.spec.name if call.tool else None, _told_outcome(outcome), outcome.duration_ms))
    if not call.recorded:
        return
    now = context.clock()
    async with context.transaction() as connection:
        ledger, reference = await results.finish_call(
            connection, call.request, outcome, now=now, retention=context.limits.retention
        )
        message_id = await history.append_message(
            connection,
            context.turn,
            role="tool",
            content=asdict(reference),
            now=now,
            tool_call_id=call.request.id,
        )
        if also is not None:
            await also(connection, outcome, ledger)
        changed = await context.guard.record(connection, call.tool.spec, outcome) if call.tool else None
    if changed is not None and call.tool is not None:
        await context.guard.settle(call.tool.spec, changed)
        if changed.moved:
            context.emit(ToolStateChanged(call.tool.spec.name, context.guard.state(call.tool.spec)))
    done.stored_messages += 1
    done.ledger.append(ledger)
    done.references.insert(0, reference)
    context.emit(CallEnded(reference, message_id))


async def _run(context: TurnContext, tool: Tool, call: RequestedCall) -> Outcome:
    identity = ToolContext(
        owner=context.owner,
        session_id=context.turn.session_id,
        turn_id=context.turn.turn_id,
        tool_call_id=call.id,
        now=context.clock(),
    )
    with context.span("tool", tool=tool.spec.name, tool_call_id=call.id) as span:
        outcome = await run_tool(tool, call.args, identity, limits=context.limits.run)
        span.set_attributes(outcome=_told_outcome(outcome))
    return outcome


def _told_outcome(outcome: Outcome) -> ToolOutcome:
    match outcome.status, outcome.fault:
        case "failed", "arguments":
            return "bad_arguments"
        case "failed", "unauthorized" | "refused" as fault:
            return fault
        case status, _:
            return status


async def run_again(
    context: TurnContext, call: PreparedCall, done: TurnCalls, *, also: AlsoRecord | None = None
) -> Outcome:
    """A call whose process died in it. Only what does no harm a second time is run."""
    if call.tool is not None and call.tool.spec.may_repeat:
        return await run_and_record(context, call, done, also=also)
    outcome = lost(call.request.name)
    await _record_end(context, call, outcome, done, also=also)
    return outcome


async def take_up(
    context: TurnContext, earlier: Sequence[RecordedCall], tools: Mapping[str, Tool], done: TurnCalls
) -> list[tuple[RequestedCall, str]]:
    """What every call of an attempt that was cut off gave; one that had not ended is ended now."""
    told: list[tuple[RequestedCall, str]] = []
    cut_off: list[PreparedCall] = []
    for recorded in earlier:
        request = RequestedCall(recorded.call.tool_call_id, recorded.call.tool_name, recorded.call.args)
        call = PreparedCall(request, tools.get(request.name))
        if recorded.outcome is None:
            cut_off.append(call)
            continue
        done.ledger.append(recorded.call)
        done.references.insert(0, recorded.reference)
        told.append((request, _note_down(context, call, recorded.outcome, done)))
    done.count += len(earlier)
    answers = await _together(context, cut_off, done, run=run_again)
    return told + [(call.request, answers[call.key]) for call in cut_off]


def _prepare(context: TurnContext, call: ModelCall, tools: Mapping[str, Tool]) -> PreparedCall:
    request = RequestedCall(new_id("call", context.clock()), call.name, clean(call.args or {}))
    tool = tools.get(call.name)
    if tool is None:
        offered = ", ".join(sorted(tools)[:40])
        return PreparedCall(request, None, f"There is no tool called {call.name!r}. There are: {offered}.")
    if call.args is None:
        return PreparedCall(request, tool, "The arguments were not a JSON object. Write them again as one.")
    return PreparedCall(request, tool, refusal(tool.spec, context.guard.state(tool.spec)))


def _is_held(call: PreparedCall, context: TurnContext) -> bool:
    """Whether the user is to be asked first. Nobody is asked about a call that could not run anyway."""
    if call.tool is None or call.refusal or not needs_confirmation(call.tool.spec, context.limits.confirm):
        return False
    return accepts(call.tool, call.request.args)


async def _together(
    context: TurnContext, calls: Sequence[PreparedCall], done: TurnCalls, *, run: RunCall = run_and_record
) -> dict[tuple[str, str], str]:
    """What the model is told of each, by tool and arguments."""
    gate = asyncio.Semaphore(context.limits.max_parallel_calls)
    try:
        async with asyncio.TaskGroup() as group:
            answers = {call.key: group.create_task(_answer(context, call, done, gate, run)) for call in calls}
    except ExceptionGroup as several:
        raise several.exceptions[0] from None
    return {key: answer.result() for key, answer in answers.items()}


async def _answer(
    context: TurnContext, call: PreparedCall, done: TurnCalls, gate: asyncio.Semaphore, run: RunCall
) -> str:
    async with gate:
        outcome = await run(context, call, done)
    return _note_down(context, call, outcome, done)


def _note_down(context: TurnContext, call: PreparedCall, outcome: Outcome, done: TurnCalls) -> str:
    answer = render_messages.fresh_result(call.request.id, outcome, max_bytes=context.limits.fresh_result_bytes)
    if outcome.status != "failed" and call.recorded:
        done.answers[call.key] = answer
    return answer
