"""What this turn does about plans: resume, cancel, amend, make one, or leave it.

A waiting plan is answered by the message or not at all; a yes moves it by one compare-and-set, the same that a button
uses. Nothing is run here: `tool_loop` runs what this node leaves as `plan_runs`.
"""

from dataclasses import replace
from typing import cast

from langgraph.runtime import Runtime

from segue.agent import plan_messages
from segue.agent.context import TurnContext
from segue.agent.plan_executor import offer_plan
from segue.agent.planner import amend_plan, classify_reply, make_plan
from segue.agent.prompts import TOO_LATE, verdict_note, waiting_note
from segue.agent.state import TurnState, Update, acknowledgement_report, web_search_report
from segue.domain.events import AcknowledgementDetected, SearchDecided
from segue.domain.plan import Decision, Plan, Step, end, replace_open_steps, update_step
from segue.plans import store
from segue.plans.policy import should_plan
from segue.plans.store import PlanChanged, StoredPlan

SHORT_REPLY_CHARS = 80


async def plan(state: TurnState, runtime: Runtime[TurnContext]) -> Update:
    update = await _about_plans(state, runtime.context)
    known = cast(TurnState, {**state, **update})
    runtime.context.emit(AcknowledgementDetected(acknowledgement_report(known)))
    runtime.context.emit(SearchDecided(web_search_report(known)))
    return update


async def _about_plans(state: TurnState, context: TurnContext) -> Update:
    earlier = state["earlier"]
    if earlier is not None and earlier.plan is not None:
        return await _go_on(context, state, earlier.plan)
    decided = state["decided_plan"]
    if decided is not None:
        return await _after_decision(context, decided)
    stored = state["open_plan"]
    if stored is None or _is_for_a_later_turn(context, stored):
        return await _without_plan(context, state)
    seen = state["shown_plan"] == (stored.plan.id, stored.plan.version)
    if stored.plan.status == "active":
        stored = await _settle(context, stored)
        if not stored.plan.is_open:
            return await _without_plan(context, state, over=stored)
    return await _with_plan(context, state, stored, seen=seen)


async def _go_on(context: TurnContext, state: TurnState, stored: StoredPlan) -> Update:
    """This turn had taken the plan on when it was cut off: it goes on from where the plan stands.

    A yes that was given to this turn and not used up still holds, until it expires.
    """
    shown = state["shown_plan"]
    update: Update = {"replied_to": shown if shown and shown[0] == stored.plan.id else None}
    if stored.plan.is_open and stored.granted_to is not None and stored.plan.expires_at <= context.clock():
        async with context.transaction() as connection:
            stored = await store.swap(connection, stored, end(stored.plan, "expired"))
    match stored.plan.status:
        case "active" | "waiting" | "completed" | "failed":
            return update | _runs(stored)
        case _:
            return update | {"touched_plan": stored, "plan_runs": False, "answer": plan_messages.ended(stored.plan)}


async def _after_decision(context: TurnContext, decided: StoredPlan) -> Update:
    """A button was pressed: what it decided stands already, unless a turn in between has changed the plan."""
    update: Update = {"replied_to": (decided.plan.id, decided.plan.version - 1)}
    if decided.plan.is_open and decided.plan.expires_at <= context.clock():
        async with context.transaction() as connection:
            over = await store.swap(connection, decided, end(decided.plan, "expired"))
        return update | {"touched_plan": over, "plan_runs": False, "answer": plan_messages.ended(over.plan)}
    if decided.plan.status == "active" and decided.granted_to == context.turn.turn_id:
        return update | _runs(decided)
    if decided.plan.status == "cancelled":
        return update | {"touched_plan": decided, "plan_runs": False, "answer": plan_messages.ended(decided.plan)}
    raise PlanChanged


def _is_for_a_later_turn(context: TurnContext, stored: StoredPlan) -> bool:
    """Approved by a button while this turn was waiting for its own: ids sort by the time they were made."""
    return stored.granted_to is not None and stored.granted_to > context.turn.turn_id


async def _without_plan(context: TurnContext, state: TurnState, *, over: StoredPlan | None = None) -> Update:
    """Makes a plan where the message asks for several steps; otherwise the loop goes on without one.

    `over` is a plan that has just turned out to be at its end: the answer says so beside whatever it is about.
    """
    acknowledgement = state["acknowledgement"]
    note = verdict_note(acknowledgement.verdict)
    if note is not None and (over is not None or state["shown_plan"] is not None):
        note = TOO_LATE
    update: Update = {"note": note, "plan_runs": False, "touched_plan": over}
    if over is not None:
        update["postscript"] = plan_messages.ended(over.plan)
    if not should_plan(state["message"], mode=context.limits.planning, verdict=acknowledgement.verdict):
        return update
    if state["earlier"] is not None and state["earlier"].calls:
        return update
    steps = await make_plan(context, state)
    if not steps or (len(steps) == 1 and context.limits.planning != "always"):
        return update
    return update | _runs(
        await offer_plan(context, goal=state["message"], origin_message_id=state["message_id"], steps=steps)
    )


async def _with_plan(context: TurnContext, state: TurnState, stored: StoredPlan, *, seen: bool) -> Update:
    """`seen`: the message came when the plan stood as it stands. A yes that came before the question is no answer."""
    verdict = state["acknowledgement"].verdict
    if stored.plan.expires_at <= context.clock():
        return await _expire(context, state, stored)
    update: Update = {"replied_to": (stored.plan.id, stored.plan.version)}
    match verdict:
        case "confirm" if not seen or _answers_something_else(context, state, stored):
            return update | await _ask_again(context, stored)
        case "confirm" | "reject":
            return update | await _decide(context, stored, verdict)
        case "amend":
            return update | await _amend(context, state, stored)
        case _ if len(state["message"]) <= SHORT_REPLY_CHARS:
            return update | await _as_the_model_reads_it(context, state, stored, seen=seen)
        case _:
            return update | await _beside(context, state, stored)


async def _as_the_model_reads_it(context: TurnContext, state: TurnState, stored: StoredPlan, *, seen: bool) -> Update:
    reading = await classify_reply(context, state, stored.plan)
    report = replace(state["acknowledgement"], rule=f"model_{reading}")
    match reading:
        case "confirm" if not seen or _changes_the_world(context, stored.plan):
            return {"acknowledgement": report} | await _ask_again(context, stored)
        case "confirm" | "reject":
            report = replace(report, verdict=reading)
            return {"acknowledgement": report} | await _decide(context, stored, reading)
        case "amend":
            return {"acknowledgement": replace(report, verdict="amend")} | await _amend(context, state, stored)
        case _:
            return {"acknowledgement": report} | await _beside(context, state, stored)


async def _decide(context: TurnContext, stored: StoredPlan, decision: Decision) -> Update:
    async with context.transaction() as connection:
        decided = await store.decide(connection, stored, decision, turn_id=context.turn.turn_id, now=context.clock())
    if decided.plan.status == "active":
        return _runs(decided)
    return {"touched_plan": decided, "plan_runs": False, "answer": plan_messages.ended(decided.plan)}


async def _amend(context: TurnContext, state: TurnState, stored: StoredPlan) -> Update:
    """The rest of the plan as the user wants it now. What waited is asked about again."""
    steps = await amend_plan(context, state, stored.plan)
    if not steps:
        return await _ask_again(context, stored)
    asked = {
        step.tool
        for step in stored.plan.steps
        if step.status == "waiting" or (step.status == "pending" and step.requires_confirmation)
    }
    wanted = [replace(step, requires_confirmation=step.requires_confirmation or step.tool in asked) for step in steps]
    async with context.transaction() as connection:
        amended = await store.swap(
            connection, stored, replace_open_steps(stored.plan, wanted), taken_on_by=context.turn.turn_id
        )
    return _runs(amended)


async def _beside(context: TurnContext, state: TurnState, stored: StoredPlan) -> Update:
    """The message is about something else: it is answered, the plan waits on, and the answer says so once."""
    made = await _without_plan(context, state)
    if made["plan_runs"]:
        return made
    update: Update = {"note": waiting_note(stored.plan), "plan_runs": False, "touched_plan": None}
    if not stored.reminded:
        async with context.transaction() as connection:
            await store.mark_asked(connection, stored, turn_id=context.turn.turn_id, reminded=True)
        update["postscript"] = plan_messages.still_waiting(stored.plan)
    return update


async def _expire(context: TurnContext, state: TurnState, stored: StoredPlan) -> Update:
    """Nobody may have noticed yet; where somebody has, the user has not been told."""
    over = stored
    if stored.plan.is_open:
        async with context.transaction() as connection:
            over = await store.swap(connection, stored, end(stored.plan, "expired"))
    if state["acknowledgement"].verdict == "none":
        return await _without_plan(context, state, over=over)
    return {
        "replied_to": (stored.plan.id, stored.plan.version),
        "touched_plan": over,
        "plan_runs": False,
        "answer": plan_messages.ended(over.plan),
    }


async def _settle(context: TurnContext, stored: StoredPlan) -> StoredPlan:
    """A plan whose turn died on the way: what was running is unknown unless it may simply run again; the rest waits."""
    running = stored.plan.running_step
    moved: Plan = stored.plan
    if running is not None:
        moved = update_step(moved, running.id, "pending" if _may_repeat(context, running) else "unknown")
    elif (step := moved.next_step) is not None:
        moved = update_step(moved, step.id, "waiting")
    async with context.transaction() as connection:
        settled = await store.swap(connection, stored, moved)
    return settled if running is None or not settled.plan.is_open else await _settle(context, settled)


def _may_repeat(context: TurnContext, step: Step) -> bool:
    tool = context.guard.tools().get(step.tool or "")
    return tool is not None and tool.spec.may_repeat


def _changes_the_world(context: TurnContext, plan: Plan) -> bool:
    step = plan.waiting_step
    tool = context.guard.tools().get(step.tool or "") if step else None
    return step is not None and step.tool is not None and (tool is None or tool.spec.effect != "read_only")


async def _ask_again(context: TurnContext, stored: StoredPlan) -> Update:
    async with context.transaction() as connection:
        await store.mark_asked(connection, stored, turn_id=context.turn.turn_id, reminded=False)
    return {"touched_plan": stored, "plan_runs": False, "answer": plan_messages.ask(stored.plan, again=True)}


def _answers_something_else(context: TurnContext, state: TurnState, stored: StoredPlan) -> bool:
    """The last answer neither asked for this yes nor mentioned it: too little to change the world on."""
    return stored.asked_in != state["answered_turn_id"] and _changes_the_world(context, stored.plan)


def _runs(stored: StoredPlan) -> Update:
    return {"touched_plan": stored, "plan_runs": True}
