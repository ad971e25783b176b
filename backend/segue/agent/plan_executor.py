"""Runs the open steps of a plan, one at a time, persisted before and after each.

A step that needs the user's yes waits with its exact arguments; a yes is consumed by the start of the step it was
given for. A step that fails ends the plan. Every change is a compare-and-set in the transaction of what caused it.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import orjson
from langchain_core.messages import AIMessage, BaseMessage
from sqlalchemy.ext.asyncio import AsyncConnection

from segue.agent import prompts, render_messages
from segue.agent.context import TurnContext
from segue.agent.stream_reply import ask, tell
from segue.agent.tool_executor import PreparedCall, RunCall, TurnCalls, record_start, run_again, run_and_record
from segue.domain.events import PlanChanged
from segue.domain.ids import new_id
from segue.domain.plan import NOT_STARTED, Plan, Step, new_plan, update_step
from segue.domain.session import RequestedCall
from segue.domain.tool import Tool, ToolCall, ToolFailed, ToolRetry, ToolSpec
from segue.memory import history
from segue.plans import store
from segue.plans.arguments import Unresolved, missing, referred_to, resolve
from segue.plans.policy import needs_confirmation
from segue.plans.store import StoredPlan
from segue.tools import results
from segue.tools.availability import refusal
from segue.tools.health import is_blocked
from segue.tools.normalize import clean
from segue.tools.paging import InvalidPath, at_path
from segue.tools.results import PlanStep
from segue.tools.run import Outcome, accepts, check_args

MAX_GOAL_CHARS = 500


@dataclass(slots=True)
class PlanRun:
    """A plan on its way. `changed` says that what had been approved is not what would run now."""

    stored: StoredPlan
    conversation: list[BaseMessage]
    done: TurnCalls
    values: dict[int, Any] = field(default_factory=dict)
    changed: bool = False

    @property
    def plan(self) -> Plan:
        return self.stored.plan


async def offer_plan(context: TurnContext, *, goal: str, origin_message_id: str, steps: tuple[Step, ...]) -> StoredPlan:
    """Stores a plan for the user's message, which is its goal; an open one before it is superseded."""
    now = context.clock()
    made = new_plan(
        new_id("plan", now),
        goal=goal[:MAX_GOAL_CHARS],
        origin_message_id=origin_message_id,
        steps=steps,
        created_at=now,
        expires_at=now + timedelta(seconds=context.limits.plan_ttl_s),
    )
    async with context.transaction() as connection:
        stored = await store.offer(
            connection, StoredPlan(made, context.turn.session_id, taken_on_by=context.turn.turn_id)
        )
    context.emit(PlanChanged(stored.plan))
    return stored


async def run_plan(
    context: TurnContext,
    stored: StoredPlan,
    tools: Mapping[str, Tool],
    *,
    conversation: list[BaseMessage],
    done: TurnCalls,
) -> PlanRun:
    """Until the plan waits or is over. A step that was cut off in an earlier attempt of the turn comes first; a yes to
    a plan one of whose tools has failed since is asked for again.
    """
    run = PlanRun(stored, conversation, done)
    if (cut_off := run.plan.running_step) is not None:
        await context.guard.refresh()
        await _take_up(context, run, cut_off, tools.get(cut_off.tool or ""))
    while run.plan.status == "active" and (step := run.plan.next_step) is not None:
        await context.guard.refresh()
        if run.stored.granted_to == context.turn.turn_id and _newly_blocked(context, run, tools):
            run.changed = True
            await _wait(context, run, step, tools, tool_hash=run.stored.tool_hash)
        elif step.tool is None:
            await _run_without_tool(context, run, step, tools)
        else:
            await _run_with_tool(context, run, step, tools)
    return run


def blocked_tools(context: TurnContext, plan: Plan, tools: Mapping[str, Tool]) -> dict[str, str]:
    """The tools of the open steps that cannot run now, whatever the plan does, each with the reason."""
    needed = dict.fromkeys(step.tool for step in plan.steps if step.status in NOT_STARTED and step.tool in tools)
    states = {name: context.guard.state(tools[name].spec) for name in needed if name}
    return {name: state.reason or state.status for name, state in states.items() if is_blocked(state)}


def _newly_blocked(context: TurnContext, run: PlanRun, tools: Mapping[str, Tool]) -> bool:
    return not blocked_tools(context, run.plan, tools).keys() <= set(run.stored.blocked_tools)


def _definition_hash(spec: ToolSpec) -> str:
    """Of everything about a tool that a user's yes relies on."""
    shown = [spec.name, spec.description, spec.input_schema, spec.effect, spec.source]
    return hashlib.sha256(orjson.dumps(shown, option=orjson.OPT_SORT_KEYS)).hexdigest()[:32]


async def _run_without_tool(context: TurnContext, run: PlanRun, step: Step, tools: Mapping[str, Tool]) -> None:
    """The model answers; what it says is the step's result and part of the conversation."""
    if step.requires_confirmation and not run.stored.grants(step, context.turn.turn_id):
        await _wait(context, run, step, tools)
        return
    reply, spoken = await ask(context, prompts.with_note(run.conversation, prompts.answer_step(run.plan, step)))
    text = clean(reply.text) or prompts.NO_ANSWER
    said = tell(context, text, spoken)
    moved = update_step(run.plan, step.id, "complete", result_preview=text[: context.limits.retention.preview_chars])
    async with context.transaction() as connection:
        await history.append_message(
            connection, context.turn, role="assistant", content=text, now=context.clock(), message_id=said
        )
        run.stored = await store.swap(connection, run.stored, moved, texts={**run.stored.texts, str(step.id): text})
    context.emit(PlanChanged(run.plan))
    run.done.stored_messages += 1
    run.conversation.append(AIMessage(text))


async def _run_with_tool(context: TurnContext, run: PlanRun, step: Step, tools: Mapping[str, Tool]) -> None:
    tool = tools.get(step.tool or "")
    granted = run.stored.grants(step, context.turn.turn_id) and run.stored.tool_hash is not None
    if tool is None or is_blocked(state := context.guard.state(tool.spec)):
        await _without_its_tool(context, run, step, tools, granted=granted)
        return
    if locked := refusal(tool.spec, state):
        await _fail(context, run, step, locked)
        return
    shown = _definition_hash(tool.spec)
    as_shown = granted and run.stored.tool_hash == shown
    try:
        args = (step.args or {}) if as_shown else await _whole_args(context, run, step, tool)
        check_args(tool, args)
    except (Unresolved, ToolRetry, ToolFailed, InvalidPath) as reason:
        await _fail(context, run, step, str(reason))
        return
    must_ask = step.requires_confirmation or needs_confirmation(tool.spec, context.limits.confirm)
    if must_ask and not as_shown:
        run.changed = granted
        await _wait(context, run, step, tools, tool_hash=shown, args=args, requires_confirmation=True)
        return
    call = PreparedCall(RequestedCall(new_id("call", context.clock()), tool.spec.name, args), tool)
    await _execute(context, run, step, call)


async def _without_its_tool(
    context: TurnContext, run: PlanRun, step: Step, tools: Mapping[str, Tool], *, granted: bool
) -> None:
    """The step waits for its tool to come back: one that has failed is told by name, a server may only be slow. What
    nobody has approved and nobody offers any more has no way to run.
    """
    if step.tool not in tools and not granted:
        await _fail(context, run, step, f"{step.tool} is not available now")
        return
    run.changed = granted
    await _wait(context, run, step, tools, tool_hash=run.stored.tool_hash if granted else None)


async def _execute(context: TurnContext, run: PlanRun, step: Step, call: PreparedCall) -> None:
    request = call.request

    async def started(connection: AsyncConnection) -> None:
        moved = update_step(run.plan, step.id, "running", args=request.args, tool_call_id=request.id)
        run.stored = await store.swap(connection, run.stored, moved)

    place = PlanStep(run.plan.id, step.id)
    await record_start(context, "", [request], step=place, also=started)
    context.emit(PlanChanged(run.plan))
    run.done.stored_messages += 1
    run.done.count += 1
    await _conclude(context, run, step, call, run_and_record)


async def _take_up(context: TurnContext, run: PlanRun, step: Step, tool: Tool | None) -> None:
    """The step's call stands in the ledger: it runs again under its own id, or nobody can say what came of it."""
    call = PreparedCall(RequestedCall(step.tool_call_id or "", step.tool or "", step.args or {}), tool)
    await _conclude(context, run, step, call, run_again)


async def _conclude(context: TurnContext, run: PlanRun, step: Step, call: PreparedCall, run_call: RunCall) -> None:
    async def ended(connection: AsyncConnection, outcome: Outcome, ledger: ToolCall) -> None:
        run.stored = await store.swap(connection, run.stored, _after(run.plan, step, outcome, ledger))

    outcome = await run_call(context, call, run.done, also=ended)
    context.emit(PlanChanged(run.plan))
    run.values[step.id] = outcome.payload.value
    answer = render_messages.fresh_result(call.request.id, outcome, max_bytes=context.limits.fresh_result_bytes)
    render_messages.tell(run.conversation, call.request, answer)


def _after(plan: Plan, step: Step, outcome: Outcome, ledger: ToolCall) -> Plan:
    if outcome.status != "succeeded":
        return update_step(plan, step.id, outcome.status, error=outcome.error)
    return update_step(plan, step.id, "complete", result_preview=ledger.metadata.summary)


async def _whole_args(context: TurnContext, run: PlanRun, step: Step, tool: Tool) -> dict[str, Any]:
    """References resolved, what is still open filled by one model call bound to the tool. Raises Unresolved."""
    args = resolve(step.args, await _values(context, run, step), at_path=at_path)
    open_arguments = missing(args, tool.spec.input_schema, step.args or ())
    if not open_arguments and accepts(tool, args):
        return args
    note = prompts.fill_step(run.plan, step, args, open_arguments)
    reply = await context.model.reply(prompts.with_note(run.conversation, note), [tool.spec], must_call=True)
    filled = next((call.args for call in reply.calls if call.name == tool.spec.name and call.args is not None), {})
    whole: dict[str, Any] = clean({**filled, **args} if accepts(tool, {**filled, **args}) else filled)
    if still_open := missing(whole, tool.spec.input_schema, step.args or ()):
        raise Unresolved(f"{', '.join(still_open)} could not be found for {tool.spec.name}")
    return whole


async def _values(context: TurnContext, run: PlanRun, step: Step) -> Mapping[int, Any]:
    """What the steps that this one refers to have produced: known in this turn, or loaded by their tool call."""
    wanted = referred_to(step.args) - run.values.keys()
    lacking = {
        done.tool_call_id: done.id
        for done in run.plan.steps
        if done.id in wanted and done.status == "complete" and done.tool_call_id
    }
    if lacking:
        async with context.transaction() as connection:
            loaded = await results.load_results(connection, context.turn.session_id, lacking, now=context.clock())
        run.values.update({lacking[call_id]: result.value() for call_id, result in loaded.items()})
    written = {int(step_id): text for step_id, text in run.stored.texts.items()}
    return {**written, **run.values}


async def _fail(context: TurnContext, run: PlanRun, step: Step, error: str) -> None:
    async with context.transaction() as connection:
        run.stored = await store.swap(connection, run.stored, update_step(run.plan, step.id, "failed", error=error))
    context.emit(PlanChanged(run.plan))


async def _wait(
    context: TurnContext,
    run: PlanRun,
    step: Step,
    tools: Mapping[str, Tool],
    *,
    tool_hash: str | None = None,
    **shown: Any,
) -> None:
    """Leaves the step to the user's yes, with what the question shows of it."""
    moved = update_step(run.plan, step.id, "waiting", **shown)
    blocked = tuple(blocked_tools(context, moved, tools))
    async with context.transaction() as connection:
        run.stored = await store.swap(
            connection,
            run.stored,
            moved,
            tool_hash=tool_hash,
            asked_in=context.turn.turn_id,
            blocked_tools=blocked,
        )
    context.emit(PlanChanged(run.plan))
