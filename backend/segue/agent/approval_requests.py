"""Makes plans that wait for the user. Calls become steps with their exact arguments, and the question ends the turn.
The plan keeps the digests of what its question shows. Runs no call.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final

from segue.agent import plan_messages, prompts
from segue.agent.call_approval import find_origins, who_decides
from segue.agent.state import TurnContext, Update, language_of, running_plan
from segue.agent.turn_calls import HeldCall, ReadyCall, TurnCalls, call_key
from segue.db.engine import Connection
from segue.domain.approval_rule import WaitsFor
from segue.domain.events import CallStarted, PlanChanged
from segue.domain.ids import new_id
from segue.domain.plan import MAX_STEPS, NOT_STARTED, Plan, Step, add_steps, page_call_id, update_step
from segue.domain.session import RequestedCall
from segue.domain.tool import PROPOSE_MANDATE, canonical_args, definition_of
from segue.domain.user_request import BY_PAGE, ToolAsks, UserAnswer, with_question
from segue.language.shown_call import translate
from segue.models.reply import Reply, opaque_parts
from segue.plans import store
from segue.plans.asked_words import offer_in
from segue.plans.store import StoredPlan
from segue.tools.normalize import clean
from segue.tools.summaries import one_line
from segue.tools.tool_health import is_blocked

MAX_DESCRIPTION_CHARS = 200
AGENT: Final = "<agent>"  # which is no name of a tool
GONE: Final = "There is no such tool now: its server is not connected, or no longer has it."


async def offer_plan(
    context: TurnContext,
    goal: str,
    origin: str,
    steps: Sequence[Step],
    *,
    plan_id: str | None = None,
    opaque: Mapping[str, Any] | None = None,
) -> StoredPlan | None:
    """Stores a new plan and returns it. The session's open plan, if any, is superseded. Returns None and stores nothing
    if that one is approved for a later turn. `goal` is what the user wants, `origin` the id of the message that says
    so. `opaque` is what came with the calls that are its steps, as `reply.opaque_parts` returns it.
    """
    offered = _new(context, goal, origin, steps, plan_id)
    stored = await context.transact(store.offer, replace(offered, opaque=clean(opaque)), context.turn)
    if stored is not None:
        context.emit(PlanChanged(stored.plan))
    return stored


def _new(context: TurnContext, goal: str, origin: str, steps: Sequence[Step], plan_id: str | None = None) -> StoredPlan:
    now = context.clock()
    plan = Plan(
        id=plan_id or new_id("plan", now),
        version=1,
        goal=goal[:500],
        status="active",
        current_step=1,
        origin_message_id=origin,
        expires_at=now + timedelta(seconds=context.settings.plan_ttl_s),
        created_at=now,
        steps=tuple(steps),
    )
    hashes = made_with(context, plan)
    return StoredPlan(plan, context.turn.session_id, taken_on_by=context.turn.turn_id, made_with=hashes)


async def ask_for_yes(turn: TurnCalls, reply: Reply, held_calls: Sequence[HeldCall]) -> Update:
    """Stores the held calls as a plan that waits for one yes, or for the page, unless an approved plan is to run."""
    context, distinct = turn.context, _distinct(held_calls)
    calls = sorted(distinct[:MAX_STEPS], key=lambda call: call.request.name != PROPOSE_MANDATE)
    steps = [_step(turn, call, number, alone=len(reply.calls) == 1) for number, call in enumerate(calls, start=1)]
    opaque = opaque_parts(reply, (call.model_call for call in calls))
    plan_id, version = _shown_plan(calls)
    stored = await offer_plan(context, *_goal(turn), steps, plan_id=plan_id, opaque=opaque)
    if stored is None:
        messages = prompts.with_instruction(turn.conversation, prompts.TEXTS["approved_first"])
        last_reply = await context.model.reply(messages, context.guard.offered(turn.tools), tool_choice="none")
        return {"answer": "\n\n".join(filter(None, (reply.text, last_reply.text))) or prompts.TEXTS["no_answer"]}
    stored = await _hold_calls(turn, stored, by_page=calls[0].by_page, version=version)
    for step in stored.plan.page_steps if stored.plan.version == version else ():
        call_id = page_call_id(stored.plan.id, version, step.id)
        context.emit(CallStarted(RequestedCall(call_id, step.tool or "", step.args or {}), ""))
    asked_for = await question(turn, stored, unseen=calls[0].unseen, left=len(distinct) - len(calls))
    return {"touched_plan": stored, "answer": "\n\n".join(filter(None, (reply.text or turn.account, asked_for)))}


def _shown_plan(calls: Sequence[HeldCall]) -> tuple[str | None, int]:
    """Returns the id and version of the plan whose steps followers saw these calls as, all in order, or (None, 0)."""
    plan_id, _, rest = (calls[0].model_call.id or "").partition(":") if calls[0].by_page else ("", "", "")
    version = int(rest.partition(":")[0] or 0)
    ids = [page_call_id(plan_id, version, number) for number, _ in enumerate(calls, start=1)]
    return (plan_id, version) if [call.model_call.id for call in calls] == ids else (None, 0)


async def _hold_calls(turn: TurnCalls, stored: StoredPlan, *, by_page: bool, version: int) -> StoredPlan:
    """Leaves all calls of a plan that was made of them to one yes, or to the page; if others decide on some, only those
    that the same people decide on. Returns the plan as it waits, at this version unless that has passed.
    """
    moved, tools = stored.plan, turn.context.guard.tools()
    for step in stored.plan.steps:
        tool = tools.get(step.tool or "")
        if by_page:
            moved = update_step(moved, step.id, "waiting", asks=BY_PAGE)
            continue
        waits = await who_decides(turn, request_of(step), tool) if tool else "self"
        if moved.waiting_step and not (moved.waits_for.asks_same(waits) if moved.waits_for else waits == "self"):
            break
        if moved.waiting_step and PROPOSE_MANDATE in (step.tool, moved.waiting_step.tool):
            break  # which takes a yes of its own
        # The keys of a proposal's bounds are arguments of its tool, and no values.
        schema = None if step.tool == PROPOSE_MANDATE else tool.spec.input_schema if tool else {}
        origin = await find_origins(turn, step.args or {}, schema)
        moved = expiring(update_step(moved, step.id, "waiting", args_origin=origin, waits_for=waits), waits)
    moved = replace(moved, version=max(moved.version, version))
    first = tools.get(stored.plan.steps[0].tool or "")
    tool_hash = definition_of(first.spec) if first else None
    stored = await turn.context.transact(swap_waiting, turn, stored, moved, tool_hash=tool_hash)
    turn.context.emit(PlanChanged(stored.plan))
    return stored


async def offer_asking(connection: Connection, turn: TurnCalls, call: ReadyCall, asks: ToolAsks) -> None:
    """Makes a call that has asked for something the step that waits, or a later one; not beside an approved plan."""
    step, asking = _step(turn, call), turn.asking
    if asking is not None:
        turn.asking = await store.swap(connection, asking, add_steps(asking.plan, [step]), tool_hash=asking.tool_hash)
        return
    offered = _new(turn.context, *_goal(turn), (step,))
    stored = await store.offer(connection, offered, turn.context.turn)
    if stored is not None:
        turn.asking = await hold_asking(connection, turn, stored, step, call, asks)


async def hold_asking(
    connection: Connection, turn: TurnCalls, stored: StoredPlan, step: Step, call: ReadyCall, asks: ToolAsks
) -> StoredPlan:
    """Makes the step wait for the user's answer."""
    fields = tuple((asks.request.schema or {}).get("properties", ()))
    request = replace(asks.request, source=call.tool.spec.source, fields=fields)
    open_answer = UserAnswer(step.id, request.key, state=asks.state, may_repeat=call.tool.spec.may_repeat)
    given = {"args": call.request.args, "tool_call_id": None, "asks": request, "waits_for": "self"}
    moved = update_step(stored.plan, step.id, "waiting", **given)
    stored = replace(stored, answers=with_question(stored.answers, open_answer))
    return await swap_waiting(connection, turn, stored, moved, tool_hash=definition_of(call.tool.spec))


async def ask_for_answer(turn: TurnCalls, held_calls: Sequence[HeldCall]) -> Update:
    """Returns a call's question for the user. Calls of the same round that need a yes are later steps of its plan."""
    stored, context = turn.asking, turn.context
    if stored is None:
        raise AssertionError("a call has asked")
    if steps := [_step(turn, call, alone=False) for call in _distinct(held_calls)[:MAX_STEPS]]:
        stored = await context.transact(store.swap, stored, add_steps(stored.plan, steps), tool_hash=stored.tool_hash)
    context.emit(PlanChanged(stored.plan))
    return {"touched_plan": stored, "answer": plan_messages.ask(stored, language_of(turn.state)), "started": None}


async def swap_waiting(
    connection: Connection, turn: TurnCalls, stored: StoredPlan, moved: Plan, *, tool_hash: str | None
) -> StoredPlan:
    """Stores a plan that waits, with the digests and the blocked tools that its question to the user shows."""
    hashes, blocked = made_with(turn.context, moved), tuple(blocked_tools(turn, moved))
    stored, asked_in = replace(stored, made_with=hashes), turn.context.turn.turn_id
    return await store.swap(connection, stored, moved, tool_hash=tool_hash, asked_in=asked_in, blocked_tools=blocked)


async def question(turn: TurnCalls, stored: StoredPlan, **shown: Any) -> str:
    """Returns the question for a yes to the waiting steps, with what results say of them; "" for the page's steps."""
    if stored.plan.page_steps:
        return ""
    language, references = language_of(turn.state), (*turn.references, *turn.state["earlier_results"])
    about = plan_messages.known_thing
    known = {step.id: await about(turn, step, references, language) for step in stored.plan.waiting_steps}
    earlier = {(call.tool_name, canonical_args(call.args)): call for call in turn.recorded if call.plan_id is None}
    for step in stored.plan.waiting_steps:
        before, outcome = earlier.get(key := call_key(request_of(step))), ""
        if before is not None and before.status != "succeeded":
            outcome = plan_messages.outcome_line(before, turn.tools, language)
        elif key in turn.in_doubt:
            outcome = translate("call_unknown", language, description=plan_messages.called(key[0], turn.tools))
        known[step.id] = "\n\n".join(filter(None, (known[step.id], outcome)))
    results = {each.tool_call_id: each.tool_name for each in references}
    return plan_messages.ask(stored, language, known=known, results=results, **shown)


def made_with(context: TurnContext, plan: Plan) -> dict[str, str]:
    """Returns the digests of the agent, and by name of the tools of the open steps."""
    tools = context.guard.tools()
    names = {step.tool for step in plan.steps if step.status in NOT_STARTED and step.tool in tools}
    hashes = {name: definition_of(tools[name].spec) for name in sorted(filter(None, names))}
    return {**hashes, AGENT: context.agent_digest}


def blocked_tools(turn: TurnCalls, plan: Plan) -> dict[str, str]:
    """Returns the tools of the open steps that cannot run now, whatever the plan does, each with the reason."""
    guard, tools = turn.context.guard, turn.context.guard.tools()
    needed = dict.fromkeys(step.tool for step in plan.steps if step.status in NOT_STARTED and step.tool)
    gone = {name: GONE for name in needed if name not in tools and guard.may_use(name)}
    states = guard.states(turn.tools[name].spec for name in needed if name in turn.tools)
    return gone | {name: state.reason or state.status for name, state in states.items() if is_blocked(state)}


def expiring(plan: Plan, waits: object) -> Plan:
    """Returns a plan that expires when the rule says that the question does."""
    return replace(plan, expires_at=waits.expires_at) if isinstance(waits, WaitsFor) and waits.expires_at else plan


def request_of(step: Step) -> RequestedCall:
    """Returns a step's call, without an id if it has not started."""
    return RequestedCall(step.tool_call_id or "", step.tool or "", step.args or {})


def _distinct(held_calls: Sequence[HeldCall]) -> list[HeldCall]:
    distinct: dict[tuple[str, str], HeldCall] = {}
    for call in held_calls:
        distinct.setdefault(call_key(call.request), call)
    return list(distinct.values())


def _goal(turn: TurnCalls) -> tuple[str, str]:
    """Returns the goal in the user's words, and the id of the message that states it: of a yes, what it answered."""
    state, decided = turn.state, turn.state["decided_plan"]
    is_yes = state["acknowledgement"].verdict == "confirm"
    plan = decided.plan if decided else running_plan(state) if is_yes else None
    offer = offer_in(state["answered"]) if is_yes else None
    goal = "\n".join([plan.goal if plan else offer or state["message"], *prompts.steers_in(turn.conversation)])
    return goal, plan.origin_message_id if plan else state["message_id"]


def _step(turn: TurnCalls, call: HeldCall | ReadyCall, number: int = 1, *, alone: bool = True) -> Step:
    """Returns a call's step, described by the tool's title, by the goal if it is `alone`, or by the tool's name."""
    needs_yes = isinstance(call, HeldCall) and not call.by_page  # also in a later turn, after a stronger reply
    spec, read = call.tool.spec, turn.state["acknowledgement"]
    description = plan_messages.called(spec.name, {spec.name: call.tool})
    if not spec.title and alone and read.verdict in ("none", "amend") and not read.carries_yes:
        description = one_line(_goal(turn)[0], MAX_DESCRIPTION_CHARS)
    return Step(number, description, call.request.name, call.request.args, requires_confirmation=needs_yes)
