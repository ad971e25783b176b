"""One round of tool calls: sort out which may run, record that they will, run them side by side, record each.

The only place where the ledger, the history and a running tool meet. A call that ends is recorded at once, so that a
sibling that hangs, fails or is cancelled costs nobody else's result.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from langchain_core.messages import BaseMessage, ToolMessage

from backend.agent import prompts
from backend.agent.context import TurnContext
from backend.agent.model import ModelCall, Reply
from backend.domain.ids import new_id
from backend.domain.session import RequestedCall
from backend.domain.tool import Reference, Tool, ToolCall, ToolContext, canonical_args
from backend.memory import history
from backend.tools import results
from backend.tools.payload import clean
from backend.tools.run import Outcome, failed, run_tool


@dataclass(slots=True)
class TurnCalls:
    """What a turn has called so far. `answers` holds successes by tool and canonical arguments."""

    ledger: list[ToolCall] = field(default_factory=list)
    references: list[Reference] = field(default_factory=list)
    answers: dict[tuple[str, str], str] = field(default_factory=dict)
    count: int = 0
    stored_messages: int = 0


@dataclass(frozen=True, slots=True)
class PlannedCall:
    """A call under our own id. It runs where `tool` is there and `refusal` is not."""

    request: RequestedCall
    tool: Tool | None
    refusal: str | None

    @property
    def recorded(self) -> bool:
        return self.tool is None or not self.tool.spec.ephemeral

    @property
    def key(self) -> tuple[str, str]:
        return self.request.name, canonical_args(self.request.args)


async def run_round(
    context: TurnContext, reply: Reply, tools: Mapping[str, Tool], done: TurnCalls
) -> list[BaseMessage]:
    """The assistant's message and an answer to every call in it, as the model is to see them."""
    planned = [_plan(context, call, tools) for call in reply.calls[: context.limits.max_calls]]
    fresh = [call for call in planned if call.key not in done.answers]
    recorded = [call for call in fresh if call.recorded]
    if recorded:
        await _record_start(context, reply.text, [call.request for call in recorded])
        done.stored_messages += 1
    gate = asyncio.Semaphore(context.limits.max_parallel_calls)
    done.count += len(planned)
    try:
        async with asyncio.TaskGroup() as group:
            answers = [group.create_task(_answer(context, call, done, gate)) for call in planned]
    except ExceptionGroup as several:
        raise several.exceptions[0] from None
    return [
        prompts.assistant_message(reply.text, [call.request for call in planned]),
        *(
            ToolMessage(answer.result(), tool_call_id=call.request.id)
            for call, answer in zip(planned, answers, strict=True)
        ),
    ]


def _plan(context: TurnContext, call: ModelCall, tools: Mapping[str, Tool]) -> PlannedCall:
    request = RequestedCall(new_id("call", context.clock()), call.name[:128], clean(call.args or {}))
    tool = tools.get(call.name)
    if tool is None:
        offered = ", ".join(sorted(tools)[:40])
        return PlannedCall(request, None, f"There is no tool called {call.name[:128]!r}. There are: {offered}.")
    if call.args is None:
        return PlannedCall(request, tool, "The arguments were not a JSON object. Write them again as one.")
    return PlannedCall(request, tool, None)


async def _record_start(context: TurnContext, text: str, calls: Sequence[RequestedCall]) -> None:
    now = context.clock()
    async with context.transaction() as connection:
        message_id = await history.append_message(
            connection, context.turn, role="assistant", content=clean(text), now=now, tool_calls=calls
        )
        await results.start_calls(
            connection,
            session_id=context.turn.session_id,
            turn_id=context.turn.turn_id,
            message_id=message_id,
            calls=calls,
            now=now,
        )


async def _answer(context: TurnContext, call: PlannedCall, done: TurnCalls, gate: asyncio.Semaphore) -> str:
    if call.key in done.answers:
        return done.answers[call.key]
    async with gate:
        outcome = await _run(context, call)
    answer = prompts.fresh_result(outcome.payload, outcome.error, max_bytes=context.limits.inline_bytes)
    if call.recorded:
        await _record_end(context, call, outcome, done)
    if outcome.status == "succeeded" and call.recorded:
        done.answers[call.key] = answer
    return answer


async def _run(context: TurnContext, call: PlannedCall) -> Outcome:
    if call.tool is None or call.refusal is not None:
        return failed(call.refusal or "The call was refused.")
    identity = ToolContext(
        owner=context.owner,
        session_id=context.turn.session_id,
        turn_id=context.turn.turn_id,
        tool_call_id=call.request.id,
        now=context.clock(),
    )
    return await run_tool(call.tool, call.request.args, identity, limits=context.limits.run)


async def _record_end(context: TurnContext, call: PlannedCall, outcome: Outcome, done: TurnCalls) -> None:
    now = context.clock()
    async with context.transaction() as connection:
        ledger, reference = await results.finish_call(
            connection, call.request, outcome, now=now, retention=context.limits.retention
        )
        await history.append_message(
            connection,
            context.turn,
            role="tool",
            content=prompts.reference_content(reference),
            now=now,
            tool_call_id=call.request.id,
        )
    done.stored_messages += 1
    done.ledger.append(ledger)
    done.references.insert(0, reference)
