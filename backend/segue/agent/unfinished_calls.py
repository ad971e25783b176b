"""Calls that were open when their attempt was cut off or their turn ended. They are made again under their ids if that
does no harm, or settled by the checks of their tools; the rest stays unknown.
"""

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Final, Literal

from segue.agent import prompts, render_messages
from segue.agent.state import TurnContext, TurnState, Update, running_plan
from segue.agent.tool_executor import Offer, keep_answer, run_together, verified
from segue.agent.turn_calls import ReadyCall, SettledCall, TurnCalls, call_key
from segue.domain.session import READ_ATTACHMENT, RequestedCall
from segue.domain.tool import Reference, Tool, ToolCall
from segue.domain.user_request import UserAnswer
from segue.memory.history import replace_result
from segue.plans import store
from segue.tools import results
from segue.tools.receipts import append_receipt
from segue.tools.run import CallOutcome, lost

MAX_SETTLED: Final = 5  # of earlier turns, at the beginning of one


async def resume_calls(turn: TurnCalls, earlier: Sequence[results.LedgerCall], offer: Offer) -> None:
    """Adds the calls of an attempt that was cut off to the conversation. Those that had not ended are ended now."""
    turn.effects |= {each.call.tool_call_id: each.effect for each in earlier if each.effect}
    # The call of a plan's running step is ended by the plan, which has to move in the same transaction.
    plan = running_plan(turn.state)
    of_plan = plan.running_step.tool_call_id if plan and plan.running_step else None
    calls = [each for each in earlier if each.call.tool_call_id != of_plan]
    ended: list[tuple[RequestedCall, str]] = []
    cut_off: list[ReadyCall | SettledCall] = []
    for recorded in calls:
        request = RequestedCall(recorded.call.tool_call_id, recorded.call.tool_name, recorded.call.args)
        tool = turn.tools.get(request.name)
        if recorded.outcome is None:
            turn.ledger[request.id] = None
            cut_off.append(interrupted_call(request, tool))
            continue
        turn.ledger[request.id] = recorded.call, recorded.reference
        turn.keep_images(request, recorded.outcome)
        ended.append((request, keep_answer(turn, request, tool, recorded.outcome)))
    turn.count += sum(each.call.tool_name != READ_ATTACHMENT for each in calls)
    answers = await run_together(turn, cut_off, None if plan and plan.is_open else offer)
    ended += [(call.request, answers[call_key(call.request)]) for call in cut_off]
    for request, answer in ended:
        render_messages.add_result(turn.conversation, request, answer)
    turn.show_images()
    if earlier:
        turn.add_note(prompts.TEXTS["resumed"])


def interrupted_call(
    request: RequestedCall, tool: Tool | None, *, approved: bool = False, answers: tuple[UserAnswer, ...] = ()
) -> ReadyCall | SettledCall:
    """Returns a call whose process died in it as one to run again, if that does no harm, or as settled."""
    if tool is not None and tool.spec.may_resume:
        return ReadyCall(request, tool, approved, answers)
    return SettledCall(request, tool, lost(request.name))


async def settle_earlier(context: TurnContext, state: TurnState) -> Update:
    """Has tools' checks settle unknown calls of earlier turns, newest first. Returns what that changes for the turn."""
    tools, known = context.guard.tools(), state["earlier_results"]
    unknown = [each for each in known if each.status == "unknown" and each.tool_name in tools]
    ids = [each.tool_call_id for each in unknown if tools[each.tool_name].spec.verify][:MAX_SETTLED]
    if not ids:
        return {}
    open_calls = await context.transact(results.unknown_calls, context.turn.session_id, ids)
    await context.guard.refresh()
    turn, plan = TurnCalls(context, state, tools, list(state["prompt"])), state["open_plan"]
    settled: dict[str, Reference] = {}
    for call in open_calls:
        request = RequestedCall(call.tool_call_id, call.tool_name, call.args)
        outcome = await verified(turn, request, tools[call.tool_name], lost(call.tool_name))
        if outcome.settled_by is None:
            continue
        outcome = replace(outcome, duration_ms=call.duration_ms or 0)
        settled[request.id], moved = await _store_settled(context, call, request, outcome)
        render_messages.add_result(turn.conversation, request, keep_answer(turn, request, tools[request.name], outcome))
        if moved is not None and plan is not None and plan.plan.id == moved.plan.id:
            plan = moved if moved.plan.is_open else None
    return {
        "prompt": turn.conversation,
        "earlier_results": tuple(settled.get(each.tool_call_id, each) for each in known),
        "open_plan": plan,
        "checked": dict(turn.ledger),
        "tool_calls": turn.recorded,
        "references": turn.references,
        "message_count": state["message_count"] + turn.stored_messages,
    }


async def _store_settled(
    context: TurnContext, call: ToolCall, request: RequestedCall, outcome: CallOutcome
) -> tuple[Reference, store.StoredPlan | None]:
    """Stores a call's outcome in the ledger, in the history and in its plan."""
    moved = None
    async with context.transaction() as connection:
        _, reference = await results.finish_call(
            connection, request, outcome, now=context.clock(), settings=context.settings, was="unknown"
        )
        await replace_result(connection, request.id, asdict(reference))
        await append_receipt(connection, request.id)
        if call.plan_id is not None and call.step_id is not None:
            became: Literal["complete", "failed"] = "complete" if outcome.status == "succeeded" else "failed"
            found = {"result_preview": outcome.gist or None, "error": outcome.error}
            moved = await store.settle_step(connection, call.plan_id, call.step_id, became, **found)
    return reference, moved
