"""Decides what the turn does about plans: resume, cancel, amend or make one, or skip.

A message answers a waiting plan or leaves it as it is; a yes moves it by the same compare-and-set as a button. Nothing
runs here: `tool_loop` runs the plan if this node sets `plan_runs`, and `respond` sends `answer` if it sets that.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

from langgraph.runtime import Runtime

from segue.agent import plan_messages
from segue.agent.context import TurnContext
from segue.agent.llm.answer_schemas import Reading
from segue.agent.plan_executor import offer_plan
from segue.agent.planner import amend_plan, classify_reply, make_plan
from segue.agent.prompts import TOO_LATE, VERDICT_NOTES, steers_in, stopped_note, waiting_note
from segue.agent.state import TurnState, Update, acknowledgement_report, language_of, web_search_report
from segue.agent.user_answers import read_answer
from segue.domain.events import AcknowledgementDetected, PlanChanged, SearchDecided
from segue.domain.plan import Decision, Plan, end, replace_open_steps, update_step
from segue.domain.session import Strength, Verdict
from segue.domain.user_request import UserRequest
from segue.plans import store
from segue.plans.acknowledgement import NEVER_A_YES, Acknowledgement
from segue.plans.policy import should_plan
from segue.plans.question import asked_in
from segue.plans.store import StalePlan, StoredPlan

SHORT_REPLY_CHARS = 80


async def plan(state: TurnState, runtime: Runtime[TurnContext]) -> Update:
    """Raises StalePlan if the plan was changed by a request that came in between."""
    context = runtime.context
    update = await _plan_update(context, state)
    known = cast(TurnState, {**state, **update})
    context.emit(AcknowledgementDetected(acknowledgement_report(known)))
    context.emit(SearchDecided(web_search_report(known)))
    return update


async def _plan_update(context: TurnContext, state: TurnState) -> Update:
    earlier, decided, stored = state["earlier"], state["decided_plan"], state["open_plan"]
    if earlier is not None and earlier.plan is not None:
        return await _resume_own(context, state, earlier.plan)
    if decided is not None:
        return await _resume_decided(context, state, decided)
    # A yes that was sent before the question stood as it does is no answer to it.
    was_seen = stored is not None and state["shown_plan"] == (stored.plan.id, stored.plan.version)
    if state["amends"] and not was_seen:
        raise StalePlan
    if stored is None or stored.is_for_a_later_turn(context.turn):
        return await _make_or_skip(context, state)
    if stored.plan.status == "active":
        stored = await _settle(context, stored)
        if not stored.plan.is_open:
            return await _make_or_skip(context, state, ended=stored)
    if stored.plan.expires_at <= context.clock():
        return await _expire_waiting(context, state, stored)
    return await _answer_waiting(context, state, stored, was_seen=was_seen)


async def _resume_own(context: TurnContext, state: TurnState, stored: StoredPlan) -> Update:
    """Goes on with the plan this turn had taken on when it was cut off. A yes it had not used up still holds."""
    shown = state["shown_plan"]
    own = shown is not None and shown[0] == stored.plan.id
    update: Update = {"replied_to": shown if own else None, "cautious": own and _was_weak(state)}
    if stored.plan.is_open and stored.granted_to is not None and stored.plan.expires_at <= context.clock():
        stored = await _end_as_expired(context, stored)
    if stored.plan.status in ("active", "waiting", "completed", "failed"):
        return update | _run(stored)
    if stored.plan.status == "superseded" and steers_in(state["prompt"]):
        return update | {"touched_plan": stored, "plan_runs": False, "note": stopped_note(stored.plan)}
    return update | _close(stored, state)


async def _resume_decided(context: TurnContext, state: TurnState, decided: StoredPlan) -> Update:
    """Carries out what a button decided. Raises StalePlan if a turn in between has changed the plan."""
    update: Update = {"replied_to": (decided.plan.id, decided.plan.version - 1)}
    if decided.plan.is_open and decided.plan.expires_at <= context.clock():
        return update | _close(await _end_as_expired(context, decided), state)
    if decided.plan.status == "active" and decided.granted_to == context.turn.turn_id:
        return update | _run(decided)
    if decided.plan.status == "cancelled":
        return update | _close(decided, state)
    raise StalePlan


async def _make_or_skip(context: TurnContext, state: TurnState, *, ended: StoredPlan | None = None) -> Update:
    """Makes a plan if the message asks for several steps. `ended` just did: a postscript of the answer says so."""
    verdict, weak = state["acknowledgement"].verdict, state["acknowledgement"].strength == "weak"
    note = VERDICT_NOTES.get(verdict)
    if weak and asked_in(state["answered"]) is None:
        note = None  # praise of an answer that asked for nothing
    elif note is not None and (ended is not None or state["shown_plan"] is not None):
        note = TOO_LATE
    skip: Update = {"note": note, "plan_runs": False, "touched_plan": ended, "cautious": weak}
    if ended is not None:
        skip["postscript"] = plan_messages.ended(ended.plan, language_of(state))
    mode = context.limits.planning
    has_called = state["earlier"] is not None and bool(state["earlier"].calls)
    if has_called or not should_plan(state["message"], mode=mode, verdict=verdict):
        return skip
    steps = await make_plan(context, state)
    if not steps or (len(steps) == 1 and mode != "always"):
        return skip
    made = await offer_plan(context, goal=state["message"], origin_message_id=state["message_id"], steps=steps)
    return skip | _run(made) if made else skip


async def _answer_waiting(context: TurnContext, state: TurnState, stored: StoredPlan, *, was_seen: bool) -> Update:
    """Reads the message as an answer to the waiting plan: by the rules, or by the model if it is short and unclear."""
    if stored.plan.waiting_step is not None and stored.plan.waiting_step.asks is not None:
        return await _answer_asking(context, state, stored, stored.plan.waiting_step.asks, was_seen=was_seen)
    acknowledgement = state["acknowledgement"]
    reading: Reading = acknowledgement.verdict
    is_short = len(state["message"]) <= SHORT_REPLY_CHARS
    if reading == "none" and is_short and acknowledgement.rule not in NEVER_A_YES:
        reading = await classify_reply(context, state, stored.plan)
        reading = "amend" if reading == "confirm" and state["attachments"] else reading
        acknowledgement = _read_by_model(acknowledgement, reading)
    # What changes the world takes a strong yes, to a question that the last answer asked or mentioned.
    is_sure = acknowledgement.strength == "strong" and stored.asked_in == state["answered_turn_id"]
    may_approve = was_seen and (is_sure or not _changes_the_world(context, stored.plan))
    update: Update = {"replied_to": (stored.plan.id, stored.plan.version), "acknowledgement": acknowledgement}
    update["cautious"] = acknowledgement.strength == "weak"
    match reading:
        case "confirm" if not may_approve:
            return update | await _ask_again(context, state, stored)
        case "confirm" | "reject":
            return update | await _decide(context, state, stored, reading)
        case "amend":
            return update | await _amend(context, state, stored)
        case "question" | "none":
            return update | await _answer_beside(context, state, stored)


async def _answer_asking(
    context: TurnContext, state: TurnState, stored: StoredPlan, asks: UserRequest, *, was_seen: bool
) -> Update:
    """Reads the message as an answer to what a tool asks. What is still missing is asked for again."""
    answer = await read_answer(context, state, stored.plan, asks)
    update: Update = {"replied_to": (stored.plan.id, stored.plan.version)}
    asked_last = stored.asked_in == state["answered_turn_id"]
    if answer.reading == "other":
        return update | await _answer_beside(context, state, stored)
    if answer.reading == "decline":
        return update | await _decide(context, state, stored, "reject")
    if answer.reading == "complete" and was_seen and (asked_last or not _changes_the_world(context, stored.plan)):
        return update | await _decide(context, state, stored, "confirm", answer=dict(answer.values))
    if was_seen:  # else the words are to another question, or a program's
        stored = await _keep_given(context, stored, asks, answer.values)
    return update | await _ask_again(context, state, stored)


async def _keep_given(
    context: TurnContext, stored: StoredPlan, asks: UserRequest, given: Mapping[str, Any]
) -> StoredPlan:
    if stored.plan.waiting_step is None or dict(given) == dict(asks.given or {}):
        return stored
    moved = update_step(stored.plan, stored.plan.waiting_step.id, "waiting", asks=replace(asks, given=dict(given)))
    async with context.transaction() as connection:
        stored = await store.swap(connection, stored, moved, tool_hash=stored.tool_hash)
    context.emit(PlanChanged(stored.plan))
    return stored


def _read_by_model(unread: Acknowledgement, reading: Reading) -> Acknowledgement:
    verdict: Verdict = "none" if reading == "question" else reading
    strength: Strength | None = "weak" if reading == "confirm" else None
    return replace(unread, rule=f"model_{reading}", verdict=verdict, strength=strength)


def _was_weak(state: TurnState) -> bool:
    """Returns whether the yes that took the plan on was weak. Of one read by the model nothing is kept but the plan."""
    read = state["acknowledgement"]
    return state["decided_plan"] is None and read.verdict in ("confirm", "none") and read.strength != "strong"


async def _decide(
    context: TurnContext,
    state: TurnState,
    stored: StoredPlan,
    decision: Decision,
    *,
    answer: dict[str, Any] | None = None,
) -> Update:
    turn_id, now = context.turn.turn_id, context.clock()
    async with context.transaction() as connection:
        decided = await store.decide(connection, stored, decision, turn_id=turn_id, now=now, answer=answer)
    return _run(decided) if decided.plan.status == "active" else _close(decided, state)


async def _amend(context: TurnContext, state: TurnState, stored: StoredPlan) -> Update:
    """Replaces the open steps by what the user wants now. Tools that waited for a yes are asked about again."""
    steps = await amend_plan(context, state, stored.plan)
    if not steps:
        return await _ask_again(context, state, stored)
    asked = {
        step.tool
        for step in stored.plan.steps
        if step.status == "waiting" or (step.status == "pending" and step.requires_confirmation)
    }
    wanted = [replace(step, requires_confirmation=step.requires_confirmation or step.tool in asked) for step in steps]
    amended = replace_open_steps(stored.plan, wanted)
    async with context.transaction() as connection:
        changed = replace(stored, opaque=None, answers=())  # the new steps are not the calls that these are of
        stored = await store.swap(connection, changed, amended, taken_on_by=context.turn.turn_id)
    return _run(stored)


async def _ask_again(context: TurnContext, state: TurnState, stored: StoredPlan) -> Update:
    async with context.transaction() as connection:
        await store.mark_asked(connection, stored, turn_id=context.turn.turn_id, reminded=False)
    return {
        "touched_plan": stored,
        "plan_runs": False,
        "answer": plan_messages.ask_again(stored, language_of(state)),
    }


async def _answer_beside(context: TurnContext, state: TurnState, stored: StoredPlan) -> Update:
    """Answers a message about something else. The plan waits on, and one answer of these says so."""
    update = await _make_or_skip(context, state) | {"beside": stored}
    if update["plan_runs"]:
        return update
    update = {"note": waiting_note(stored.plan), "plan_runs": False, "touched_plan": None, "beside": stored}
    if not stored.reminded:
        async with context.transaction() as connection:
            await store.mark_asked(connection, stored, turn_id=context.turn.turn_id, reminded=True)
        update["postscript"] = plan_messages.still_waiting(stored, language_of(state))
    return update


async def _expire_waiting(context: TurnContext, state: TurnState, stored: StoredPlan) -> Update:
    # Upkeep may have ended the plan already; even then a yes meant it, and the user has not been told.
    expired = await _end_as_expired(context, stored) if stored.plan.is_open else stored
    if state["acknowledgement"].verdict == "none":
        return await _make_or_skip(context, state, ended=expired)
    return {"replied_to": (stored.plan.id, stored.plan.version)} | _close(expired, state)


async def _settle(context: TurnContext, stored: StoredPlan) -> StoredPlan:
    """Settles a plan whose turn died: a running step is unknown unless it may be repeated, and the next one waits."""
    running, moved = stored.plan.running_step, stored.plan
    if running is not None:
        tool = context.guard.tools().get(running.tool or "")
        may_repeat = tool is not None and tool.spec.may_repeat
        moved = update_step(moved, running.id, "pending" if may_repeat else "unknown")
    elif (step := moved.next_step) is not None:
        moved = update_step(moved, step.id, "waiting")
    async with context.transaction() as connection:
        settled = await store.swap(connection, stored, moved)
    return settled if running is None or not settled.plan.is_open else await _settle(context, settled)


async def _end_as_expired(context: TurnContext, stored: StoredPlan) -> StoredPlan:
    async with context.transaction() as connection:
        return await store.swap(connection, stored, end(stored.plan, "expired"))


def _changes_the_world(context: TurnContext, plan: Plan) -> bool:
    step = plan.waiting_step
    tool = context.guard.tools().get(step.tool or "") if step else None
    return step is not None and step.tool is not None and (tool is None or tool.spec.effect != "read_only")


def _run(stored: StoredPlan) -> Update:
    return {"touched_plan": stored, "plan_runs": True}


def _close(stored: StoredPlan, state: TurnState) -> Update:
    answer = plan_messages.ended(stored.plan, language_of(state))
    return {"touched_plan": stored, "plan_runs": False, "answer": answer}
