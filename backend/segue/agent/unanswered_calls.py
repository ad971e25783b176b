"""Calls that have had no answer: of an attempt that was cut off, and of earlier turns that ended before they did.

Those that do no harm are made again under their ids, the others are settled by the checks of their tools as far as
these can tell. What stays open is unknown. Above it are the plan, which has calls of both kinds, and the tool loop.
"""

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Final

from langchain_core.messages import BaseMessage

from segue.agent.context import TurnContext
from segue.agent.render_messages import add_result
from segue.agent.state import TurnState, Update
from segue.agent.tool_executor import Offer, ReadyCall, SettledCall, keep_answer, run_together, verified
from segue.agent.turn_calls import TurnCalls, call_key
from segue.domain.plan import StepStatus
from segue.domain.session import RequestedCall
from segue.domain.tool import Reference, Tool, ToolCall
from segue.domain.user_request import UserAnswer
from segue.memory.history import replace_result
from segue.plans import store
from segue.plans.store import StoredPlan
from segue.tools import results
from segue.tools.receipts import append_receipt
from segue.tools.results import LedgerCall
from segue.tools.run import CallOutcome, lost

MAX_SETTLED: Final = 5  # of earlier turns, at the beginning of one


async def resume_calls(
    turn: TurnCalls, earlier: Sequence[LedgerCall], *, offer: Offer | None
) -> list[tuple[RequestedCall, str]]:
    """Returns what the calls of an attempt that was cut off gave. Those that had not ended are ended now."""
    ended: list[tuple[RequestedCall, str]] = []
    cut_off: list[ReadyCall | SettledCall] = []
    for recorded in earlier:
        request = RequestedCall(recorded.call.tool_call_id, recorded.call.tool_name, recorded.call.args)
        tool = turn.tools.get(request.name)
        if recorded.outcome is None:
            turn.ledger[request.id] = None
            cut_off.append(interrupted_call(request, tool))
            continue
        turn.ledger[request.id] = recorded.call, recorded.reference
        turn.keep_images(request, recorded.outcome)
        ended.append((request, keep_answer(turn, request, tool, recorded.outcome)))
    turn.count += len(earlier)
    answers = await run_together(turn, cut_off, offer)
    return ended + [(call.request, answers[call_key(call.request)]) for call in cut_off]


def interrupted_call(
    request: RequestedCall, tool: Tool | None, *, approved: bool = False, answers: tuple[UserAnswer, ...] = ()
) -> ReadyCall | SettledCall:
    """Returns what is left to do for a call whose process died in it: it runs again only if that does no harm."""
    if tool is not None and tool.spec.may_resume:
        return ReadyCall(request, tool, approved, answers)
    return SettledCall(request, tool, lost(request.name))


async def settle_earlier(context: TurnContext, state: TurnState) -> Update:
    """Has the checks of tools find out what became of calls of earlier turns whose outcome is unknown, the newest
    first. Returns what that changes of what the turn starts from. What the checks cannot tell stays as it is.
    """
    tools = context.guard.tools()
    unknown = [each for each in state["earlier_results"] if each.status == "unknown" and each.tool_name in tools]
    ids = [each.tool_call_id for each in unknown if tools[each.tool_name].spec.verify][:MAX_SETTLED]
    if not ids:
        return {}
    async with context.transaction() as connection:
        open_calls = await results.unknown_calls(connection, context.turn.session_id, ids)
    await context.guard.refresh()
    turn, prompt, known = TurnCalls(context, tools), list(state["prompt"]), list(state["earlier_results"])
    plan = state["open_plan"]
    for call in open_calls:
        request = RequestedCall(call.tool_call_id, call.tool_name, call.args)
        outcome = await verified(turn, request, tools[call.tool_name], lost(call.tool_name))
        if outcome.settled_by is None:
            continue
        moved = await _store(turn, call, replace(outcome, duration_ms=call.duration_ms or 0), prompt, known)
        if moved is not None and plan is not None and plan.plan.id == moved.plan.id:
            plan = moved if moved.plan.is_open else None
    return {
        "prompt": prompt,
        "earlier_results": tuple(known),
        "open_plan": plan,
        "checked": dict(turn.ledger),
        "tool_calls": turn.recorded,
        "references": turn.references,
        "message_count": state["message_count"] + turn.stored_messages,
    }


async def _store(
    turn: TurnCalls, call: ToolCall, outcome: CallOutcome, prompt: list[BaseMessage], known: list[Reference]
) -> StoredPlan | None:
    """Stores what became of a call, in the ledger, in the history and in its plan, which is returned."""
    context, moved = turn.context, None
    request = RequestedCall(call.tool_call_id, call.tool_name, call.args)
    async with context.transaction() as connection:
        _, reference = await results.finish_call(
            connection, request, outcome, now=context.clock(), settings=context.settings, was="unknown"
        )
        await replace_result(connection, call.tool_call_id, asdict(reference))
        await append_receipt(connection, call.tool_call_id)
        if call.plan_id is not None and call.step_id is not None:
            became: StepStatus = "complete" if outcome.status == "succeeded" else "failed"
            moved = await store.settle_step(
                connection, call.plan_id, call.step_id, became, preview=outcome.gist or None, error=outcome.error
            )
    known[:] = [reference if each.tool_call_id == request.id else each for each in known]
    add_result(prompt, request, keep_answer(turn, request, turn.tools[request.name], outcome))
    return moved
