"""Decides what the turn does about plans: resume, cancel, amend, make, or skip. Runs nothing: `tool_loop` runs the plan
if `plan_runs` is set, and `respond` sends `answer`. A yes moves a plan by the same compare-and-set as a button.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, cast

from langgraph.runtime import Runtime

from segue.agent import plan_messages
from segue.agent.approval_requests import offer_plan
from segue.agent.planner import amend_plan, classify_reply, make_plan, read_answer
from segue.agent.prompts import TEXTS, VERDICT_NOTES, steers_in, with_plan
from segue.agent.state import TurnContext, TurnState, Update, carries_files, language_of
from segue.agent.turn_reports import acknowledgement_report, web_search_report
from segue.agent.unfinished_calls import settle_earlier
from segue.domain.events import PlanChanged
from segue.domain.plan import NOT_STARTED, Decision, Plan, Step, end, next_version, replace_open_steps, update_step
from segue.domain.session import Strength, Verdict
from segue.domain.tool import Effect
from segue.domain.user_request import UserRequest
from segue.language.utterance import own_words
from segue.plans import store
from segue.plans.acknowledgement import NEVER_A_YES, NOT_BEFORE, POSTPONES, Acknowledgement, chosen_of, classify
from segue.plans.asked_words import offer_in, question_in, question_of
from segue.plans.policy import should_plan
from segue.plans.store import StalePlan, StoredPlan
from segue.plans.value_origins import leaves, stands_in

SHORT_REPLY_CHARS = 80
READ_BY_MODEL = "model_confirm"
NOT_CHANGED = "not_changed"


async def plan(state: TurnState, runtime: Runtime[TurnContext]) -> Update:
    """Raises StalePlan if the plan was changed by a request that came in between."""
    context, settled = runtime.context, Update()
    if any(each.status == "unknown" for each in state["earlier_results"]):
        settled = await settle_earlier(context, state)
        state = cast(TurnState, {**state, **settled})
    update = settled | await _plan_update(context, state)
    known = cast(TurnState, {**state, **update})
    context.emit(acknowledgement_report(known))
    context.emit(web_search_report(known))
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
    ended: StoredPlan | None = None
    if stored.plan.status == "active":
        stored = await _settle(context, stored)
        ended = None if stored.plan.is_open else stored
    if ended is None and stored.plan.expires_at <= context.clock():
        # Upkeep may have ended the plan already; even then a yes meant it, and the user has not been told.
        ended = await _end_as_expired(context, stored) if stored.plan.is_open else stored
        if state["acknowledgement"].verdict != "none":
            return {"replied_to": (stored.plan.id, stored.plan.version)} | _close(ended, state)
    if ended is not None:
        return await _make_or_skip(context, state, ended=ended)
    answering = _leave_page if stored.plan.page_steps else partial(_answer_waiting, was_seen=was_seen)
    return await answering(context, state, stored)


async def _leave_page(context: TurnContext, state: TurnState, stored: StoredPlan) -> Update:
    """Cancels the page's calls: the user has written before their results came."""
    ended = await context.transact(store.swap, stored, end(stored.plan, "cancelled"))
    update = await _make_or_skip(context, state)
    tools = ", ".join(step.tool for step in stored.plan.page_steps if step.tool)
    return update | {"note": TEXTS["unheard"].format(tools=tools), "touched_plan": update["touched_plan"] or ended}


async def _resume_own(context: TurnContext, state: TurnState, stored: StoredPlan) -> Update:
    """Goes on with this turn's plan after the turn was cut off. A yes that was not used up still holds."""
    shown = state["shown_plan"]
    own, read = shown is not None and shown[0] == stored.plan.id, state["acknowledgement"]
    # Of a yes that was read by the model nothing is kept but the plan.
    is_yes = state["decided_plan"] is None and read.verdict in ("confirm", "none")
    update: Update = {"replied_to": shown if own else None, "cautious": own and is_yes and read.strength != "strong"}
    if stored.plan.is_open and stored.granted_to is not None and stored.plan.expires_at <= context.clock():
        stored = await _end_as_expired(context, stored)
    if stored.plan.status in ("active", "waiting", "completed", "failed"):
        return update | _run(stored)
    if stored.plan.status == "superseded" and steers_in(state["prompt"]):
        return update | {"touched_plan": stored, "plan_runs": False, "note": with_plan(TEXTS["stopped"], stored.plan)}
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
    """Makes a plan if the message asks for several steps. A postscript tells of a plan that just `ended`."""
    read, verdict = state["acknowledgement"], state["acknowledgement"].verdict
    weak = read.strength == "weak"
    note = TEXTS["postponed"] if read.rule in POSTPONES else VERDICT_NOTES.get(verdict)
    if verdict in VERDICT_NOTES and (ended is not None or state["shown_plan"] is not None):
        note = TEXTS["too_late"]
    elif note is not None and offer_in(state["answered"]) is None:
        note = None  # nothing was offered that the message could answer
    skip: Update = {"note": note, "plan_runs": False, "touched_plan": ended, "cautious": weak}
    if ended is not None:
        skip["postscript"] = plan_messages.ended(ended.plan, language_of(state))
    mode = context.settings.planning
    has_called = state["earlier"] is not None and bool(state["earlier"].calls)
    if has_called or not should_plan(state["message"], mode=mode, verdict=verdict):
        return skip
    steps = await make_plan(context, state)
    if not steps or (len(steps) == 1 and mode != "always"):
        return skip
    new_plan = await offer_plan(context, state["message"], state["message_id"], steps)
    return skip | _run(new_plan) if new_plan else skip


async def _answer_waiting(context: TurnContext, state: TurnState, stored: StoredPlan, *, was_seen: bool) -> Update:
    """Reads the message as an answer to the waiting plan."""
    update: Update = {"replied_to": (stored.plan.id, stored.plan.version)}
    read = state["acknowledgement"]
    if read.verdict != "confirm":  # if this turn comes to nothing, a yes after it is not for what stood before
        await context.transact(store.mark_asked, stored, turn_id=None, reminded=False)
    asks = stored.plan.waiting_step.asks if stored.plan.waiting_step is not None else None
    if read.rule in POSTPONES:
        return update | await _postpone(context, state, stored, may_change=asks is None)
    if asks is not None:
        return update | await _answer_asking(context, state, stored, asks, was_seen=was_seen)
    read, chosen = await _read_reply(context, state, stored)
    may_approve = was_seen and stored.plan.waits_for is None and await _is_enough(context, state, stored, read)
    update |= {"acknowledgement": read, "cautious": read.strength == "weak"}
    match read.verdict:
        case "confirm" if not may_approve:
            return update | await _leave_waiting(context, stored, plan_messages.ask_again(stored, language_of(state)))
        case "confirm" | "reject":
            return update | await _decide(context, state, stored, read.verdict, chosen=chosen)
        case "amend":
            return update | await _amend(context, state, stored, read, may_approve=may_approve)
        case "none":
            return update | await _answer_something_else(context, state, stored)


async def _postpone(context: TurnContext, state: TurnState, stored: StoredPlan, *, may_change: bool) -> Update:
    """The plan waits, and the next yes is for it, unless the message changes it: `wait, make it 9 pm`."""
    read = state["acknowledgement"]
    if may_change and read.rule == NOT_BEFORE and await classify_reply(context, state, stored.plan) == "amend":
        read = replace(read, verdict="amend", rule="model_amend")
        return {"acknowledgement": read} | await _amend(context, state, stored, read, may_approve=False)
    waits = await _leave_waiting(context, stored, plan_messages.waits(stored, language_of(state)))
    return {"acknowledgement": replace(read, verdict="none")} | waits


async def _read_reply(
    context: TurnContext, state: TurnState, stored: StoredPlan
) -> tuple[Acknowledgement, frozenset[int] | None]:
    """Returns how a message is to be read and the steps it picks: by the rules, or by the model where these doubt."""
    read, waiting = state["acknowledgement"], stored.plan.waiting_steps
    if carries_files(state) or state["amends"]:
        return read, None
    if read.verdict == "amend" and (stored.reminded or stored.asked_in != state["answered_turn_id"]):
        offered = question_in(state["answered"])  # beside the plan: `Shall I also note it?`
        if offered is not None and classify(state["message"], question=offered).strength == "strong":
            return replace(read, verdict="none", rule="offer"), None
    if len(waiting) > 1:
        questions = {step.id: question_of(step.tool, step.description, step.args) for step in waiting}
        if chosen := chosen_of(state["message"], questions):
            return replace(read, verdict="confirm", rule="selection", strength="strong"), chosen
    is_unclear = len(state["message"]) <= SHORT_REPLY_CHARS and read.rule not in NEVER_A_YES
    if read.verdict not in ("amend", "none") or not (is_unclear or read.carries_yes or read.verdict == "amend"):
        return read, None
    reading = await classify_reply(context, state, stored.plan)
    if reading == "confirm" and read.carries_yes:
        return replace(read, verdict="confirm", rule="rules_and_model", strength="strong"), None
    if read.verdict != "amend" or reading == "question":  # otherwise a condition, or words that a planner has to read
        verdict: Verdict = "none" if reading == "question" else reading
        strength: Strength | None = "weak" if reading == "confirm" else None
        read = replace(read, rule=f"model_{reading}", verdict=verdict, strength=strength)
    return read, None


async def _is_enough(context: TurnContext, state: TurnState, stored: StoredPlan, read: Acknowledgement) -> bool:
    """Returns whether a yes is enough for the steps that wait. What changes the world takes a strong one, to a question
    that the last answer asked or mentioned. A model's reading alone is enough for what can be undone, and for what
    cannot if it is the second in a row. After a change that could not be made, "ok" alone may not be about the plan.
    """
    effects = _effects(context, stored.plan)
    if effects <= {"read_only"}:
        return True
    if stored.asked_in != state["answered_turn_id"]:
        return False
    if read.rule == READ_BY_MODEL:
        return "destructive" not in effects or await _last_rule(context, state) == READ_BY_MODEL
    is_strong = read.strength == "strong" or read.carries_yes
    return is_strong and not (read.rule == "accept" and await _last_rule(context, state) == NOT_CHANGED)


async def _last_rule(context: TurnContext, state: TurnState) -> str | None:
    return await context.transact(store.rule_of, state["answered_turn_id"] or "")


async def _answer_asking(
    context: TurnContext, state: TurnState, stored: StoredPlan, asks: UserRequest, *, was_seen: bool
) -> Update:
    """Reads the message as an answer to what a tool asks. What is still missing is asked for again."""
    answer = await read_answer(context, state, stored.plan, asks)
    asked_last = stored.asked_in == state["answered_turn_id"]
    if answer.reading == "other":
        return await _answer_something_else(context, state, stored)
    if answer.reading == "decline":
        return await _decide(context, state, stored, "reject")
    values, step = dict(answer.values), stored.plan.waiting_step
    if answer.reading == "complete" and was_seen and (asked_last or _effects(context, stored.plan) <= {"read_only"}):
        return await _decide(context, state, stored, "confirm", answer=values)
    # A plan that was not seen is not what the words, or a program's, are about.
    if was_seen and step is not None and values != dict(asks.given or {}):
        moved = update_step(stored.plan, step.id, "waiting", asks=replace(asks, given=values))
        stored = await context.transact(store.swap, stored, moved, tool_hash=stored.tool_hash)
        context.emit(PlanChanged(stored.plan))
    return await _leave_waiting(context, stored, plan_messages.ask_again(stored, language_of(state)))


async def _decide(
    context: TurnContext, state: TurnState, stored: StoredPlan, decision: Decision, **options: Any
) -> Update:
    """`options` are what `store.decide` takes beside the decision: an `answer`, or the `chosen` steps."""
    turn_id, now = context.turn.turn_id, context.clock()
    decided = await context.transact(store.decide, stored, decision, turn_id=turn_id, now=now, **options)
    if decided.plan.status == "active":
        return _run(decided)
    if state["acknowledgement"].added or any(map(str.isdigit, state["message"])):  # `no, send it to Sara`, `I said 12`
        return {"touched_plan": decided, "plan_runs": False, "note": TEXTS["rejected"]}
    return _close(decided, state)


async def _amend(
    context: TurnContext, state: TurnState, stored: StoredPlan, read: Acknowledgement, *, may_approve: bool
) -> Update:
    """Replaces the open steps. Asks again about those that waited, unless a yes states each changed value."""
    steps = await amend_plan(context, state, stored.plan)
    before = [step for step in stored.plan.steps if step.status in NOT_STARTED]
    if not steps or list(map(_call_of, steps)) == list(map(_call_of, before)):
        same = next_version(stored.plan)  # only what is said after this can approve the plan
        unchanged: Update = {"tool_hash": stored.tool_hash, "asked_in": context.turn.turn_id}
        stored = await context.transact(store.swap, stored, same, **unchanged)
        answer = plan_messages.not_changed(stored, language_of(state))
        return {"acknowledgement": replace(read, rule=NOT_CHANGED)} | _answered(stored, answer)
    guarded = {step.tool for step in before if step.status == "waiting" or step.requires_confirmation}
    new = [replace(step, requires_confirmation=step.requires_confirmation or step.tool in guarded) for step in steps]
    amended = replace_open_steps(stored.plan, new)
    done, waiting = len(stored.plan.started_steps), len(stored.plan.waiting_steps)
    # Of the steps that were asked about: what follows them is asked about when it comes (`yes, and then mail it`).
    is_same = _differ_in_words_of(own_words(state["message"]), new[:waiting], before[:waiting])
    is_approved = read.carries_yes and may_approve and is_same
    turn_id, changed = context.turn.turn_id, replace(stored, opaque=None, answers=())  # which are of the old calls
    grant, tool_hash = ((turn_id, done + waiting), stored.tool_hash) if is_approved else (None, None)
    stored = await context.transact(store.swap, changed, amended, taken_on_by=turn_id, grant=grant, tool_hash=tool_hash)
    return _run(stored)


def _call_of(step: Step) -> tuple[str | None, object]:
    return step.tool, step.args if step.tool else step.description


def _differ_in_words_of(message: str, steps: Sequence[Step], before: Sequence[Step]) -> bool:
    """Returns whether steps make the calls of those before, but for values that the message has to the letter."""
    if [step.tool for step in steps] != [step.tool for step in before]:
        return False
    for step, other in zip(steps, before, strict=True):
        values, old = dict(leaves(step.args or {})), dict(leaves(other.args or {}))
        changed = [value for path, value in values.items() if value != old.get(path)]
        if values.keys() != old.keys() or not all(stands_in(value, message) for value in changed):
            return False
    return True


async def _leave_waiting(context: TurnContext, stored: StoredPlan, answer: str) -> Update:
    await context.transact(store.mark_asked, stored, turn_id=context.turn.turn_id, reminded=False)
    return _answered(stored, answer)


async def _answer_something_else(context: TurnContext, state: TurnState, stored: StoredPlan) -> Update:
    """Answers a message about something else. The plan keeps waiting, and the first such answer says so."""
    update = await _make_or_skip(context, state) | {"left_waiting": stored}
    if update["plan_runs"]:
        return update
    note = with_plan(TEXTS["waiting"], stored.plan)
    update = {"note": note, "plan_runs": False, "touched_plan": None, "left_waiting": stored}
    if not stored.reminded:
        await context.transact(store.mark_asked, stored, turn_id=context.turn.turn_id, reminded=True)
        update["postscript"] = plan_messages.still_waiting(stored, language_of(state))
    return update


async def _settle(context: TurnContext, stored: StoredPlan) -> StoredPlan:
    """Settles a plan whose turn died: a running step is unknown unless it may be repeated, and the next one waits."""
    running, moved = stored.plan.running_step, stored.plan
    if running is not None:
        tool = context.guard.tools().get(running.tool or "")
        moved = update_step(moved, running.id, "pending" if tool is not None and tool.spec.may_repeat else "unknown")
    elif (step := moved.next_step) is not None:
        moved = update_step(moved, step.id, "waiting", others=None)
    settled = await context.transact(store.swap, stored, moved)
    return settled if running is None or not settled.plan.is_open else await _settle(context, settled)


async def _end_as_expired(context: TurnContext, stored: StoredPlan) -> StoredPlan:
    return await context.transact(store.swap, stored, end(stored.plan, "expired"))


def _effects(context: TurnContext, plan: Plan) -> set[Effect]:
    """Returns what the steps that wait may do; a tool that is not there now may do anything."""
    tools = context.guard.tools()
    names = (step.tool for step in plan.waiting_steps if step.tool)
    return {tools[name].spec.effect if name in tools else "destructive" for name in names}


def _run(stored: StoredPlan) -> Update:
    return {"touched_plan": stored, "plan_runs": True}


def _close(stored: StoredPlan, state: TurnState) -> Update:
    return _answered(stored, plan_messages.ended(stored.plan, language_of(state)))


def _answered(stored: StoredPlan, answer: str) -> Update:
    return {"touched_plan": stored, "plan_runs": False, "answer": answer}
