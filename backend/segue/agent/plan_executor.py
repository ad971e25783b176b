"""Runs the open steps of a plan, one at a time, persisted before and after each.

A step that needs the user's yes waits with its exact arguments; the yes is consumed when that step starts. A step that
fails ends the plan. Every change is a compare-and-set in the transaction of what caused it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, Literal

from langchain_core.messages import AIMessage

from segue.agent import approval_requests, prompts, render_messages
from segue.agent.approval_requests import blocked_tools, swap_waiting
from segue.agent.call_approval import find_origins, proposed, runs_under_mandate, who_decides
from segue.agent.planner import complete_args
from segue.agent.state import TurnContext
from segue.agent.stream_reply import emit_message, stream_reply
from segue.agent.tool_executor import keep_answer, keep_made_images, record_start, run_call
from segue.agent.turn_calls import ReadyCall, SettledCall, TurnCalls, call_key, read_steers
from segue.agent.unfinished_calls import interrupted_call
from segue.db.engine import Connection
from segue.domain.approval_rule import WaitsFor, digest_of_call
from segue.domain.errors import NO_ROOM, AppError
from segue.domain.events import PlanChanged
from segue.domain.ids import new_id
from segue.domain.plan import NOT_STARTED, Plan, Step, end, update_step
from segue.domain.session import RequestedCall
from segue.domain.tool import PROPOSE_MANDATE, Tool, ToolFailed, ToolRetry, definition_of
from segue.domain.user_request import BY_PAGE, PAGE, answers_to, has_run_in_page
from segue.memory.history import NewMessage, append_message
from segue.models.refusals import gave_no_answer
from segue.plans import store
from segue.plans.mandates import MandateSpent
from segue.plans.plan_parser import Unresolved, referred_to
from segue.plans.policy import Deny
from segue.tools import results
from segue.tools.availability import refusal
from segue.tools.catalog import changed_since
from segue.tools.input_schema import check_args
from segue.tools.normalize import clean
from segue.tools.page_tools import answered_tool
from segue.tools.paging import InvalidPath
from segue.tools.results import PlanStep, StoredResult
from segue.tools.run import CallOutcome
from segue.tools.tool_health import is_blocked

Change = Literal["agent_changed", "tool_changed", "tool_blocked"]


@dataclass(slots=True)
class PlanRun:
    """A plan that is being executed."""

    turn: TurnCalls
    stored: store.StoredPlan
    values: dict[int, StoredResult] = field(default_factory=dict)  # what its steps gave, by step
    changed: Change | None = None  # why what runs now is not what the user approved: the question says it asks again
    differences: dict[str, tuple[str, ...]] = field(default_factory=dict)  # by tool, what changed in its definition
    steered: bool = False  # the user has said something else meanwhile, and so the plan is over
    problem: AppError | None = None  # why a step waits to which the model gave no answer, after tools had run

    @property
    def plan(self) -> Plan:
        return self.stored.plan

    @property
    def context(self) -> TurnContext:
        return self.turn.context

    @property
    def turn_id(self) -> str:
        return self.turn.context.turn.turn_id


async def execute_plan(turn: TurnCalls, stored: store.StoredPlan) -> PlanRun:
    """Runs steps until the plan waits or is over, or the user writes. Raises StalePlan."""
    run = PlanRun(turn, stored)
    turn.asked_in = stored.asked_in
    granted = _still_granted(run)
    if run.plan.running_step is not None:
        await _finish_interrupted(run, run.plan.running_step)
        await _read_steers(run)
    while not run.steered and run.plan.status == "active" and (step := run.plan.next_step) is not None:
        await _run_or_ask_again(run, step)
        await _read_steers(run)
    await _show_calls_of_page(run)
    if run.plan.status == "failed" and not run.steered:
        skipped = (step for step in granted if run.plan.steps[step.id - 1].status == "skipped")
        turn.approved |= {call_key(approval_requests.request_of(step)) for step in skipped}
    return run


def _still_granted(run: PlanRun) -> list[Step]:
    """Returns the steps that have a yes and have not started."""
    return [step for step in run.plan.steps if step.status in NOT_STARTED and run.stored.grants(step, run.turn_id)]


async def _finish_interrupted(run: PlanRun, step: Step) -> None:
    """Ends a step whose process died in its call, which is in the ledger: it runs again under its id, or is unknown."""
    await run.context.guard.refresh()
    answers = answers_to(run.stored.answers, step.id)
    call: ReadyCall | SettledCall
    if has_run_in_page(run.stored.answers, step.id):
        call = _call_of_page(run, step)
    else:
        approved, tool = step.requires_confirmation or bool(answers), run.turn.tools.get(step.tool or "")
        call = interrupted_call(approval_requests.request_of(step), tool, approved=approved, answers=answers)
    await _finish_call(run, step, call)


async def _run_or_ask_again(run: PlanRun, step: Step) -> None:
    """Runs a step, unless what was approved has changed: the yes was given to a plan that stood and could run."""
    await run.context.guard.refresh()
    is_granted = run.stored.granted_to == run.turn_id and not has_run_in_page(run.stored.answers, step.id)
    run.changed = _change(run, step) if is_granted else None
    if run.changed:
        await _note_differences(run, run.stored.made_with)
        await _hold(run, step, tool_hash=run.stored.tool_hash)
    else:
        await _run_step(run, step)


async def _show_calls_of_page(run: PlanRun) -> None:
    """Shows the model the page's calls, also those of steps that are skipped because an earlier one failed."""
    for step in run.plan.steps:
        if step.status == "skipped" and has_run_in_page(run.stored.answers, step.id):
            call = _call_of_page(run, step)
            await record_start(run.turn, "", [call.request])
            _show(run, step, call, await run_call(run.turn, call))


async def _read_steers(run: PlanRun) -> None:
    async def stop(connection: Connection) -> None:
        if run.plan.is_open:
            run.stored = await store.swap(connection, run.stored, end(run.plan, "superseded"))

    run.steered = await read_steers(run.turn, also=stop)
    if run.steered:
        run.turn.add_note(prompts.with_plan(prompts.TEXTS["stopped"], run.plan))
        run.context.emit(PlanChanged(run.plan))


def _change(run: PlanRun, step: Step) -> Change | None:
    """Returns what has changed since the user was asked, but for the step's tool, which is looked at when it runs."""
    if step.tool and not run.context.guard.may_use(step.tool):
        return None  # it fails: there is nothing to ask
    now, shown = approval_requests.made_with(run.context, run.plan), run.stored.made_with
    changed = [key for key, digest in now.items() if key != step.tool and shown.get(key, digest) != digest]
    if changed:
        return "agent_changed" if approval_requests.AGENT in changed else "tool_changed"
    return "tool_blocked" if blocked_tools(run.turn, run.plan).keys() - set(run.stored.blocked_tools) else None


async def _note_differences(run: PlanRun, shown: Mapping[str, str]) -> None:
    """Notes how tools differ from the definitions with these digests."""
    specs = {name: tool.spec for name, tool in run.context.guard.tools().items() if name in shown}
    changed = {name: spec for name, spec in specs.items() if definition_of(spec) != shown[name]}
    if changed:
        async with run.context.transaction() as connection:
            differences = {name: await changed_since(connection, shown[name], spec) for name, spec in changed.items()}
        run.differences = {name: what for name, what in differences.items() if what}


async def _run_step(run: PlanRun, step: Step) -> None:
    """Raises an AppError of NO_ROOM. Then, and if the model gives no answer after tools have run, the plan waits."""
    try:
        if step.tool is None:
            await _run_without_tool(run, step)
        elif has_run_in_page(run.stored.answers, step.id):
            await _start_call(run, step, _call_of_page(run, step))
        else:
            await _run_with_tool(run, step)
    except AppError as error:
        if gave_no_answer(error) and run.turn.count:
            run.problem = error
        elif error.code not in NO_ROOM:
            raise
        await _hold(run, step)
        if run.problem is None:
            raise


async def _run_without_tool(run: PlanRun, step: Step) -> None:
    """The model answers; its text is the step's result and part of the conversation."""
    context = run.context
    if step.requires_confirmation and not run.stored.grants(step, run.turn_id):
        await _hold(run, step)
        return
    do_it = prompts.TEXTS["do_step"].format(id=step.id, description=step.description)
    note = f"{prompts.with_plan(prompts.TEXTS['carrying_out'], run.plan)}\n{do_it}"
    messages, offered = prompts.with_instruction(run.turn.conversation, note), context.guard.offered(run.turn.tools)
    reply, started = await stream_reply(context, messages, offered, tool_choice="none")
    text = clean(await keep_made_images(run.turn, reply) if reply.images else reply.text)
    if not text:  # the endpoint does not heed that no tool is to be called
        await _fail(run, step, "the model wrote nothing")
        return
    message_id = emit_message(context, text, started)
    preview = text[: context.settings.tool_result_preview_chars]
    moved = update_step(run.plan, step.id, "complete", result_preview=preview)
    async with context.transaction() as connection:
        await append_message(connection, context.turn, NewMessage("assistant", text, context.clock(), id=message_id))
        run.stored = await store.swap(connection, run.stored, moved, texts={**run.stored.texts, str(step.id): text})
    context.emit(PlanChanged(run.plan))
    run.turn.stored_messages += 1
    run.turn.conversation.append(AIMessage(text))


async def _run_with_tool(run: PlanRun, step: Step) -> None:
    """Runs the step's call, or holds it for a yes or for the client's page, or fails it."""
    context, stored, tool = run.context, run.stored, run.turn.tools.get(step.tool or "")
    granted = stored.grants(step, run.turn_id) and stored.tool_hash is not None
    if tool is None and (not granted or not context.guard.may_use(step.tool or "")):
        await _fail(run, step, f"{step.tool} is not available now")
        return
    if tool is None or is_blocked(state := context.guard.state(tool.spec)):
        # The step waits for its tool: one that failed may recover, and an approved one's server may only be slow.
        run.changed = "tool_blocked" if granted else None
        await _hold(run, step, tool_hash=stored.tool_hash if granted else None)
        return
    if locked := refusal(tool.spec, state):
        await _fail(run, step, locked)
        return
    # The yes is bound to the definition that was shown: a server that changed its tool since is asked about again.
    as_shown = granted and stored.tool_hash == definition_of(tool.spec)
    try:
        args = step.args or {}
        if not as_shown:
            args = await complete_args(run.turn, run.plan, step, tool, await _values_for(run, step))
        check_args(tool, args)
        if tool.spec.name == PROPOSE_MANDATE and not as_shown:
            args = await proposed(run.turn, args)
    except (Unresolved, ToolRetry, ToolFailed, InvalidPath) as reason:
        await _fail(run, step, str(reason))
        return
    await _run_ready(run, step, tool, args, as_shown=as_shown)


async def _run_ready(run: PlanRun, step: Step, tool: Tool, args: dict[str, Any], *, as_shown: bool) -> None:
    """Runs a call whose arguments are complete, or holds it. It needs no other yes if it is `as_shown` with one."""
    request = RequestedCall(new_id("call", run.context.clock()), tool.spec.name, args)
    ruling = await run.turn.ruling(request, tool)
    waits = "self" if isinstance(ruling, Deny) else await who_decides(run.turn, request, tool)
    others, call = step.others if as_shown else None, digest_of_call(request.name, args)
    is_held = waits != "self" and not (others and others.cover(waits, call))
    asks = run.turn.needs_yes(request, tool, ruling) or (step.requires_confirmation and not isinstance(ruling, Deny))
    if is_held or (asks and not as_shown and not await runs_under_mandate(run.turn, request, tool, ruling)):
        await _hold_for_yes(run, step, tool, args, waits)
        return
    if tool.spec.source == PAGE and not isinstance(ruling, Deny):
        shown = {"args": args, "asks": BY_PAGE, "waits_for": "self", "others": step.others}
        await _hold(run, step, tool_hash=definition_of(tool.spec), **shown)
        return
    answers = answers_to(run.stored.answers, step.id)
    try:
        await _start_call(run, step, ReadyCall(request, tool, approved=as_shown, answers=answers))
    except MandateSpent:  # another turn has used up what it was to run under
        await _hold_for_yes(run, step, tool, args)


def _call_of_page(run: PlanRun, step: Step) -> ReadyCall:
    """Returns the call that ends with the page's result, whatever has become of its tool since."""
    request = replace(approval_requests.request_of(step), id=step.tool_call_id or new_id("call", run.context.clock()))
    run.turn.by_page.add(request.id)
    return ReadyCall(request, answered_tool(request.name), True, answers_to(run.stored.answers, step.id))


async def _start_call(run: PlanRun, step: Step, call: ReadyCall) -> None:
    request = call.request

    async def move_to_running(connection: Connection) -> None:
        moved = update_step(run.plan, step.id, "running", args=request.args, tool_call_id=request.id)
        left, shown = run.stored.granted_behind(step, run.turn_id), run.stored.made_with
        tool_hash = shown.get(moved.next_step.tool or "") if left and moved.next_step else None
        run.stored = await store.swap(connection, run.stored, moved, grant=left, tool_hash=tool_hash)

    yes = run.turn.yes if call.approved and request.id not in run.turn.by_page else None
    if yes and step.others and step.others.agree:  # those whom it waited for, and not the user in this turn
        yes = replace(yes, how="approver", by=", ".join(step.others.yes_by))
    run.turn.note_effect(request, call.tool, yes)
    plan_step, opaque = PlanStep(run.plan.id, step.id), run.stored.opaque_of(step)
    await record_start(run.turn, "", [request], opaque=opaque, step=plan_step, also=move_to_running)
    run.context.emit(PlanChanged(run.plan))
    run.turn.count += 1
    await _finish_call(run, step, call)


async def _finish_call(run: PlanRun, step: Step, call: ReadyCall | SettledCall) -> None:
    async def move_to_end(connection: Connection, outcome: CallOutcome) -> None:
        if outcome.asks is not None and isinstance(call, ReadyCall):
            granted = _still_granted(run)  # the answer goes on with what the same yes was for
            run.stored = await approval_requests.hold_asking(connection, run.turn, run.stored, step, call, outcome.asks)
            for each in granted:
                moved = update_step(run.plan, each.id, "waiting")
                run.stored = await swap_waiting(connection, run.turn, run.stored, moved, tool_hash=run.stored.tool_hash)
            return
        if outcome.status == "succeeded":
            moved = update_step(run.plan, step.id, "complete", result_preview=outcome.gist)
        else:
            moved = update_step(run.plan, step.id, outcome.status, error=outcome.error)
        left = run.stored.granted_behind(step, run.turn_id)
        ended = replace(run.stored, answers=tuple(each for each in run.stored.answers if each.step != step.id))
        run.stored = await store.swap(connection, ended, moved, grant=left, tool_hash=run.stored.tool_hash)

    outcome = await run_call(run.turn, call, also=move_to_end)
    run.context.emit(PlanChanged(run.plan))
    run.values[step.id] = StoredResult(outcome.payload.kind, outcome.payload.text)
    _show(run, step, call, outcome)


def _show(run: PlanRun, step: Step, call: ReadyCall | SettledCall, outcome: CallOutcome) -> None:
    """Adds a call's result to the conversation."""
    answer = keep_answer(run.turn, call.request, call.tool, outcome)
    opaque = run.stored.opaque_of(step)  # it goes back with the arguments as the model wrote them
    shown = call.request if opaque else render_messages.shown_call(call.request, brief=False)
    render_messages.add_result(run.turn.conversation, shown, answer, opaque=opaque)
    run.turn.show_images()


async def _values_for(run: PlanRun, step: Step) -> Mapping[int, StoredResult]:
    """Returns the results of earlier steps, by step; loads those of earlier turns that this step refers to."""
    missing = referred_to(step.args) - run.values.keys()
    to_load = {
        earlier.tool_call_id: earlier.id
        for earlier in run.plan.steps
        if earlier.id in missing and earlier.status == "complete" and earlier.tool_call_id
    }
    if to_load:
        context = run.context
        loaded = await context.transact(results.load_results, context.turn.session_id, to_load, now=context.clock())
        run.values.update({to_load[call_id]: result for call_id, result in loaded.items()})
    return {**{int(step_id): StoredResult("text", text) for step_id, text in run.stored.texts.items()}, **run.values}


async def _fail(run: PlanRun, step: Step, error: str) -> None:
    moved = update_step(run.plan, step.id, "failed", error=error)
    run.stored = await run.context.transact(store.swap, run.stored, moved)
    run.context.emit(PlanChanged(run.plan))


async def _hold_for_yes(
    run: PlanRun, step: Step, tool: Tool, args: dict[str, Any], waits: WaitsFor | Literal["self"] = "self"
) -> None:
    known, definition = step.args_origin if args == step.args else None, definition_of(tool.spec)
    if run.stored.grants(step, run.turn_id) and run.stored.tool_hash not in (None, definition):
        run.changed = "tool_changed"
        await _note_differences(run, {tool.spec.name: run.stored.tool_hash or ""})
    of_others = {"args_origin": known or await find_origins(run.turn, args, tool.spec.input_schema), "waits_for": waits}
    await _hold(run, step, tool_hash=definition, args=args, requires_confirmation=True, **of_others)


async def _hold(run: PlanRun, step: Step, *, tool_hash: str | None = None, **shown: Any) -> None:
    """Makes the step wait for the user's yes; `shown` are the fields of the step that the question shows."""
    moved = update_step(run.plan, step.id, "waiting", **{"others": None, **shown})
    if "waits_for" in shown:  # a question has its own time, whatever one before it had
        moved = replace(moved, expires_at=run.context.clock() + timedelta(seconds=run.context.settings.plan_ttl_s))
    moved = approval_requests.expiring(moved, shown.get("waits_for"))
    run.stored = await run.context.transact(swap_waiting, run.turn, run.stored, moved, tool_hash=tool_hash)
    run.context.emit(PlanChanged(run.plan))
