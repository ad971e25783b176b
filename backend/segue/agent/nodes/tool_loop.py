"""Runs the open steps of the plan, or the model and its tools in turn, until something answers or a bound is reached.

A call that needs the user's yes does not run: it becomes a waiting step with its exact arguments, and the question ends
the turn.
"""

from collections.abc import Sequence
from typing import cast

from langchain_core.messages import BaseMessage
from langgraph.runtime import Runtime

from segue.agent import plan_messages, prompts, render_messages
from segue.agent.context import TurnContext
from segue.agent.plan_executor import blocked_tools, execute_plan, offer_plan
from segue.agent.reply import ModelCall, Reply, opaque_parts
from segue.agent.state import WEB_SEARCH, EarlierAttempt, TurnState, Update, web_search_report
from segue.agent.stream_reply import stream_reply
from segue.agent.tool_executor import HeldCall, TurnCalls, call_key, resume_calls, run_tool_calls
from segue.domain.events import SearchDecided
from segue.domain.plan import MAX_STEPS, Step
from segue.domain.tool import Tool
from segue.plans.policy import SearchDecision, needs_confirmation

MAX_QUERY_CHARS = 400


async def tool_loop(state: TurnState, runtime: Runtime[TurnContext]) -> Update:
    """Leaves `answer` at None if `respond` has to write it: the plan is over, or the loop reached a bound."""
    context = runtime.context
    turn = TurnCalls(context, context.guard.tools())
    note = state.get("note")
    conversation = prompts.with_note(state["prompt"], note) if note else list(state["prompt"])
    if state["earlier"] is not None:
        await _resume(turn, state, state["earlier"], conversation)
    search = await _search_first(turn, state, conversation)
    carry_out = _run_plan if state["plan_runs"] else _ask_and_call
    update = await carry_out(turn, state, conversation)
    update |= {"search": search, "tool_calls": turn.ledger}
    if (report := web_search_report(cast(TurnState, {**state, **update}))) != web_search_report(state):
        context.emit(SearchDecided(report))
    return {
        **update,
        "conversation": conversation,
        "references": turn.references,
        "message_count": state["message_count"] + turn.stored_messages,
    }


async def _resume(turn: TurnCalls, state: TurnState, earlier: EarlierAttempt, conversation: list[BaseMessage]) -> None:
    """Adds the calls of an attempt that was cut off to the conversation; those that had not ended are ended now."""
    # The call of a plan's running step is ended by the plan, which has to move in the same transaction.
    plan = state["touched_plan"].plan if state["plan_runs"] and state["touched_plan"] else None
    step = plan.running_step if plan else None
    calls = [each for each in earlier.calls if step is None or each.call.tool_call_id != step.tool_call_id]
    for request, answer in await resume_calls(turn, calls):
        render_messages.add_result(conversation, request, answer)
    if earlier.calls:
        conversation[:] = prompts.with_note(conversation, prompts.RESUMED)


async def _search_first(turn: TurnCalls, state: TurnState, conversation: list[BaseMessage]) -> SearchDecision:
    """Searches the web if the toggle or the message asks for it. Returns the decision, which an outage may change."""
    search, tool = state["search"], turn.tools.get(WEB_SEARCH)
    wanted = search.search and (state["force_web_search"] or not state["plan_runs"])
    if not wanted or tool is None or needs_confirmation(tool.spec, turn.context.limits.confirm):
        return search
    if not turn.context.guard.state(tool.spec).available:
        return SearchDecision(search=False, reason="unavailable")
    call = ModelCall(WEB_SEARCH, {"query": state["message"][:MAX_QUERY_CHARS]})
    conversation += (await run_tool_calls(turn, Reply("", (call,), 0, 0))).messages
    return search


async def _run_plan(turn: TurnCalls, state: TurnState, conversation: list[BaseMessage]) -> Update:
    stored = state["touched_plan"]
    if stored is None:
        raise AssertionError("the plan node leaves the plan that runs")
    run = await execute_plan(turn, stored, conversation)
    answer = None
    if run.plan.status == "waiting":
        answer = plan_messages.ask(run.plan, changed=run.changed, blocked=blocked_tools(turn, run.plan))
    return {"touched_plan": run.stored, "answer": answer}


async def _ask_and_call(turn: TurnCalls, state: TurnState, conversation: list[BaseMessage]) -> Update:
    context = turn.context
    for _ in range(context.limits.max_rounds):
        if turn.count >= context.limits.max_calls or context.model.nearly_spent:
            break
        # Recomputed each round: a call may have unlocked one tool and broken another.
        states = context.guard.states(tool.spec for tool in turn.tools.values())
        withheld = prompts.withheld_note(states)
        shown = prompts.with_note(conversation, withheld) if withheld else conversation
        offered = [tool.spec for name, tool in turn.tools.items() if states[name].available]
        reply, started = await stream_reply(context, shown, offered)
        if not reply.calls:
            return {"answer": reply.text, "started": started}
        ran = await run_tool_calls(turn, reply, started=started)
        conversation += ran.messages
        if ran.held:
            update = await _ask_for_yes(turn, state, reply, ran.held)
            return {**update, "started": None if ran.messages else started}
    return {"answer": None}


async def _ask_for_yes(turn: TurnCalls, state: TurnState, reply: Reply, held: Sequence[HeldCall]) -> Update:
    """Stores the held calls as a plan that waits at its first step, and asks for it after the model's text."""
    distinct: dict[tuple[str, str], HeldCall] = {}
    for call in held:
        distinct.setdefault(call_key(call.request), call)
    offered = list(distinct.values())[:MAX_STEPS]
    steps = tuple(
        Step(index, _first_line(call.tool), call.request.name, call.request.args)
        for index, call in enumerate(offered, start=1)
    )
    stored = await offer_plan(
        turn.context,
        goal=state["message"],
        origin_message_id=state["message_id"],
        steps=steps,
        opaque=opaque_parts(reply, (call.made for call in offered)),
    )
    run = await execute_plan(turn, stored, [])
    answer = "\n\n".join(part for part in (reply.text, plan_messages.ask(run.plan)) if part)
    return {"touched_plan": run.stored, "answer": answer}


def _first_line(tool: Tool) -> str:
    return tool.spec.description.strip().partition("\n")[0].partition(". ")[0][:200] or tool.spec.name
