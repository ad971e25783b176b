"""The open steps of the plan, or the model and its tools in turn, until something answers or the bounds are reached.

A call that needs the user's yes is not run: it becomes a waiting step with its exact arguments and the turn ends with
the question.
"""

from collections.abc import Mapping, Sequence
from typing import cast

from langchain_core.messages import BaseMessage
from langgraph.runtime import Runtime

from segue.agent import plan_messages, prompts, render_messages
from segue.agent.context import TurnContext
from segue.agent.model import ModelCall, Reply
from segue.agent.plan_executor import blocked_tools, offer_plan, run_plan
from segue.agent.state import WEB_SEARCH, EarlierAttempt, TurnState, Update, web_search_report
from segue.agent.stream_reply import Spoken, ask
from segue.agent.tool_executor import PreparedCall, TurnCalls, run_round, take_up
from segue.domain.events import SearchDecided
from segue.domain.plan import MAX_STEPS, Step
from segue.domain.tool import Tool
from segue.plans.policy import SearchDecision, needs_confirmation

MAX_QUERY_CHARS = 400


async def tool_loop(state: TurnState, runtime: Runtime[TurnContext]) -> Update:
    """Leaves `answer` at None where `respond` has to write it: a plan is over, or the loop ran into its bounds."""
    context = runtime.context
    tools = context.guard.tools()
    done = TurnCalls()
    conversation = prompts.assemble(state, note=state.get("note"))
    search = state["search"]
    if state["earlier"] is not None:
        await _take_up(context, state, state["earlier"], tools, conversation, done)
    if _searches_first(context, state, tools):
        if context.guard.state(tools[WEB_SEARCH].spec).available:
            conversation += (await run_round(context, _search_call(state["message"]), tools, done)).messages
        else:
            search = SearchDecision(search=False, reason="unavailable")
    if state["plan_runs"]:
        update = await _run_the_plan(context, state, tools, conversation, done)
    else:
        update = await _loop(context, state, tools, conversation, done)
    update |= {"search": search, "tool_calls": done.ledger}
    if (report := web_search_report(cast(TurnState, {**state, **update}))) != web_search_report(state):
        context.emit(SearchDecided(report))
    return {
        **update,
        "conversation": conversation,
        "references": done.references,
        "message_count": state["message_count"] + done.stored_messages,
    }


async def _take_up(
    context: TurnContext,
    state: TurnState,
    earlier: EarlierAttempt,
    tools: Mapping[str, Tool],
    conversation: list[BaseMessage],
    done: TurnCalls,
) -> None:
    """The turn goes on where it was cut off: what it has called is told, what was running is run again or unknown.

    The call of a plan's step is ended by the plan, which has to move with it.
    """
    plan = state["touched_plan"].plan if state["plan_runs"] and state["touched_plan"] else None
    step = plan.running_step if plan else None
    calls = [each for each in earlier.calls if step is None or each.call.tool_call_id != step.tool_call_id]
    for request, answer in await take_up(context, calls, tools, done):
        render_messages.tell(conversation, request, answer)
    if earlier.calls:
        conversation[:] = prompts.with_note(conversation, prompts.TAKEN_UP)


async def _run_the_plan(
    context: TurnContext,
    state: TurnState,
    tools: Mapping[str, Tool],
    conversation: list[BaseMessage],
    done: TurnCalls,
) -> Update:
    stored = state["touched_plan"]
    if stored is None:
        raise AssertionError("the plan node leaves the plan that runs")
    run = await run_plan(context, stored, tools, conversation=conversation, done=done)
    waits = run.plan.status == "waiting"
    blocked = blocked_tools(context, run.plan, tools)
    answer = plan_messages.ask(run.plan, changed=run.changed, blocked=blocked) if waits else None
    return {"touched_plan": run.stored, "answer": answer}


async def _loop(
    context: TurnContext,
    state: TurnState,
    tools: Mapping[str, Tool],
    conversation: list[BaseMessage],
    done: TurnCalls,
) -> Update:
    for _ in range(context.limits.max_rounds):
        if done.count >= context.limits.max_calls or context.model.nearly_spent:
            break
        reply, spoken = await _ask_the_model(context, tools, conversation)
        if not reply.calls:
            return {"answer": reply.text, "spoken": spoken}
        ran = await run_round(context, reply, tools, done, spoken=spoken)
        conversation += ran.messages
        if ran.held:
            update = await _ask(context, state, reply, tools, ran.held, done)
            return {**update, "spoken": None if ran.messages else spoken}
    return {"answer": None}


async def _ask_the_model(
    context: TurnContext, tools: Mapping[str, Tool], conversation: Sequence[BaseMessage]
) -> tuple[Reply, Spoken | None]:
    """With the tools that may run as things stand now, and what keeps the others from it."""
    states = context.guard.states(tools.values())
    offered = [tool.spec for name, tool in tools.items() if states[name].available]
    if withheld := prompts.withheld_note(states):
        conversation = prompts.with_note(conversation, withheld)
    return await ask(context, conversation, offered)


async def _ask(
    context: TurnContext,
    state: TurnState,
    reply: Reply,
    tools: Mapping[str, Tool],
    held: Sequence[PreparedCall],
    done: TurnCalls,
) -> Update:
    """The calls that need a yes, as a plan of their own that waits at its first step."""
    distinct = list({call.key: call for call in reversed(held)}.values())[::-1]
    steps = tuple(
        Step(index, _first_line(tools[call.request.name]), call.request.name, call.request.args)
        for index, call in enumerate(distinct[:MAX_STEPS], start=1)
    )
    stored = await offer_plan(context, goal=state["message"], origin_message_id=state["message_id"], steps=steps)
    run = await run_plan(context, stored, tools, conversation=[], done=done)
    answer = "\n\n".join(part for part in (reply.text, plan_messages.ask(run.plan)) if part)
    return {"touched_plan": run.stored, "answer": answer}


def _first_line(tool: Tool) -> str:
    return tool.spec.description.strip().partition("\n")[0].partition(". ")[0][:200] or tool.spec.name


def _searches_first(context: TurnContext, state: TurnState, tools: Mapping[str, Tool]) -> bool:
    """The toggle is honoured, or the message asks for the web in words and no plan takes care of it."""
    wanted = state["search"].search and (state["force_web_search"] or not state["plan_runs"])
    tool = tools.get(WEB_SEARCH)
    return wanted and tool is not None and not needs_confirmation(tool.spec, context.limits.confirm)


def _search_call(message: str) -> Reply:
    """The search the user asked for, as an ordinary call ahead of the model's own."""
    return Reply("", (ModelCall(WEB_SEARCH, {"query": message[:MAX_QUERY_CHARS]}),), 0, 0)
