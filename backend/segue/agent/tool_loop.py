"""Runs the open steps of the plan, then the model and its tools in turn, until something answers or a bound is reached.

A call that needs the user's yes does not run: it becomes a waiting step with its exact arguments, and the question ends
the turn. Calls of one reply are one question. Files of the message are shown as results of calls by the engine.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from langchain_core.messages import BaseMessage
from langgraph.runtime import Runtime
from sqlalchemy.ext.asyncio import AsyncConnection

from segue.agent import plan_messages, prompts, render_messages
from segue.agent.agreed_calls import agreement_in
from segue.agent.plan_executor import PlanRun, blocked_tools, execute_plan, hold_calls, offer_asking, offer_plan
from segue.agent.plan_messages import known_things
from segue.agent.state import EarlierAttempt, TurnContext, TurnState, Update, language_of, web_search_report
from segue.agent.stream_reply import stream_reply
from segue.agent.tool_executor import (
    HeldCall,
    Offer,
    ReadyCall,
    SettledCall,
    keep_made_images,
    record_known,
    resume_calls,
    run_tool_calls,
)
from segue.agent.turn_calls import TurnCalls, call_key, mark_refused, read_steers
from segue.domain.errors import AppError
from segue.domain.events import PlanChanged, SearchDecided, TextEnded
from segue.domain.ids import new_id
from segue.domain.plan import MAX_STEPS, Step, add_steps
from segue.domain.session import READ_ATTACHMENT, RequestedCall
from segue.domain.tool import PROPOSE_MANDATE, ApprovedHow, EffectApproval, Tool, ToolSpec
from segue.domain.user_request import ToolAsks
from segue.language.shown_call import translate
from segue.language.utterance import own_words
from segue.memory.fact_cues import FACT_WORDS, index_words
from segue.models.chat_model import MAX_EMPTY_ANSWERS
from segue.models.refusals import gave_no_answer
from segue.models.reply import ModelCall, Reply, opaque_parts
from segue.plans import store
from segue.plans.policy import WEB_SEARCH, SearchDecision, gives_leave, web_query, without_forbidden
from segue.plans.store import StoredPlan
from segue.tools.availability import ToolGuard
from segue.tools.summaries import one_line

MAX_DESCRIPTION_CHARS = 200
WEB_TOOLS = frozenset({WEB_SEARCH, "web_fetch"})


async def tool_loop(state: TurnState, runtime: Runtime[TurnContext]) -> Update:
    """Leaves `answer` at None if `respond` has to write it: the loop reached a bound, or the model gave no answer."""
    context = runtime.context
    context.guard.proposes = _proposes(state)
    tools = without_forbidden(context.guard.tools(), state["search"])
    turn = TurnCalls(context, tools, cautious=state.get("cautious", False), facts=state["facts"])
    turn.ledger |= state.get("checked", {})
    turn.count += len(turn.ledger)
    turn.brought_by = None if state["approves"] else state["message_id"]
    turn.yes, turn.asked_in = _yes(context, state), state["answered_turn_id"]
    read = state["acknowledgement"]
    if read.carries_yes or read.verdict == "confirm":
        turn.agreement = agreement_in(state)
    note, schema = state.get("note"), context.options.output_schema
    conversation = prompts.with_note(state["prompt"], note) if note else list(state["prompt"])
    if schema is not None:
        conversation = prompts.with_note(conversation, prompts.fenced_lines(prompts.STRUCTURED, [schema]))
    if state["earlier"] is not None:
        await _resume(turn, state, state["earlier"], conversation)
    await _show_attachments(turn, state, conversation)
    search = await _search_first(turn, state, conversation)
    if turn.asking is not None:  # by a call of the attempt that was cut off
        update = await _ask_for_answer(turn, state, (), conversation)
    elif state["plan_runs"]:
        update = await _run_plan(turn, state, conversation)
    else:
        update = await _ask_and_call(turn, state, conversation)
    update |= {"search": search, "tool_calls": turn.recorded}
    if (report := web_search_report(cast(TurnState, {**state, **update}))) != web_search_report(state):
        context.emit(SearchDecided(report))
    return {
        **update,
        "conversation": conversation,
        "references": turn.references,
        "found": turn.found,
        "effects": turn.changed,
        "message_count": state["message_count"] + turn.stored_messages,
    }


def _yes(context: TurnContext, state: TurnState) -> EffectApproval | None:
    """Returns what the message is for each call that it approves."""
    how: ApprovedHow = "words" if state["decided_plan"] is None else "button"
    return EffectApproval(how, context.owner, state["message_id"]) if state["approves"] else None


def _proposes(state: TurnState) -> bool:
    """Returns whether a standing approval may be given: the message gives leave, or it is a step that the plan runs."""
    plan = state["touched_plan"].plan if state["plan_runs"] and state["touched_plan"] else None
    if plan is None:
        return gives_leave(own_words(state["message"]))
    return any(step.tool == PROPOSE_MANDATE for step in plan.steps)


async def _resume(turn: TurnCalls, state: TurnState, earlier: EarlierAttempt, conversation: list[BaseMessage]) -> None:
    """Adds the calls of an attempt that was cut off to the conversation; those that had not ended are ended now."""
    turn.effects |= {each.call.tool_call_id: each.effect for each in earlier.calls if each.effect}
    # The call of a plan's running step is ended by the plan, which has to move in the same transaction.
    plan = state["touched_plan"].plan if state["plan_runs"] and state["touched_plan"] else None
    step = plan.running_step if plan else None
    calls = [each for each in earlier.calls if step is None or each.call.tool_call_id != step.tool_call_id]
    offer = None if plan and plan.is_open else _offer(state, conversation)
    for request, answer in await resume_calls(turn, calls, offer=offer):
        render_messages.add_result(conversation, request, answer)
    conversation += turn.new_images()
    if earlier.calls:
        conversation[:] = prompts.with_note(conversation, prompts.RESUMED)


async def _show_attachments(turn: TurnCalls, state: TurnState, conversation: list[BaseMessage]) -> None:
    """Adds the beginning of each file of the message. Calls of an attempt that was cut off stand."""
    attachments = state["attachments"]
    if not attachments:
        return
    read = {
        str(call.args["attachment_id"]): RequestedCall(call.tool_call_id, call.tool_name, call.args)
        for call in turn.recorded
        if call.tool_name == READ_ATTACHMENT
    }
    for attachment_id, request in read.items():
        if attachment_id in attachments:
            turn.keep_images(request, attachments[attachment_id])
    now = turn.context.clock()
    calls = [
        SettledCall(RequestedCall(new_id("call", now), READ_ATTACHMENT, {"attachment_id": each}), None, outcome)
        for each, outcome in attachments.items()
        if each not in read
    ]
    if calls:
        conversation += await record_known(turn, calls)
    conversation += turn.new_images()


async def _search_first(turn: TurnCalls, state: TurnState, conversation: list[BaseMessage]) -> SearchDecision:
    """Searches the web for the question that a message is. Returns the decision, which an outage may change."""
    search, tool = state["search"], turn.tools.get(WEB_SEARCH)
    if search.reason == "forbidden":
        conversation[:] = prompts.with_note(conversation, prompts.SEARCH_FORBIDDEN)
    if not search.search or state["plan_runs"]:
        return search
    if tool is None or not turn.context.guard.state(tool.spec).available:
        return SearchDecision(search=False, reason="unavailable")
    query = web_query(state["message"])
    if query and not state["attachments"] and not _is_about_results(state):
        call = ModelCall(WEB_SEARCH, {"query": query})
        shown, held = await run_tool_calls(turn, Reply("", (call,), 0, 0))
        if not held:
            conversation += shown
            return search
    conversation[:] = prompts.with_note(conversation, prompts.SEARCH_WANTED)
    return search


def _is_about_results(state: TurnState) -> bool:
    """Returns whether the message has a word from an earlier result, such as a name: an engine must not learn it."""
    references = (reference for reference in state["earlier_results"] if reference.tool_name not in WEB_TOOLS)
    found = " ".join(f"{each.summary} {each.preview} {' '.join(each.identifiers)}" for each in references)
    said, known = ({word for word in index_words(text).split() if len(word) > 1} for text in (state["message"], found))
    return not (said & known) <= FACT_WORDS.now.ignored


async def _run_plan(turn: TurnCalls, state: TurnState, conversation: list[BaseMessage]) -> Update:
    stored = state["touched_plan"]
    if stored is None:
        raise AssertionError("the plan node leaves the plan that runs")
    run = await execute_plan(turn, stored, conversation)
    if run.problem is not None:
        answer = f"{translate('no_words', language_of(state))}\n\n{await _question(turn, state, run.stored)}"
        return {"touched_plan": run.stored, "answer": answer, "problem": run.problem}
    if run.plan.status != "waiting":
        return await _go_on(turn, state, run, conversation)
    blocked = blocked_tools(turn, run.plan)
    is_away = run.changed == "tool_blocked" and run.plan.waiting_steps[0].tool in blocked
    answer = await _question(
        turn,
        state,
        run.stored,
        changed=run.differences if run.changed and not is_away else None,
        blocked=blocked,
        is_away=is_away,
    )
    return {"touched_plan": run.stored, "answer": answer, "asked_again": run.changed}


async def _go_on(turn: TurnCalls, state: TurnState, run: PlanRun, conversation: list[BaseMessage]) -> Update:
    """Goes on as any turn does."""
    if not run.steered:
        note = prompts.with_plan(f"{prompts.CARRIED_OUT} {run.plan.status}:", run.plan)
        conversation[:] = prompts.with_note(conversation, note)
    update = await _ask_and_call(turn, state, conversation, has_acted=not run.steered)
    return {"touched_plan": run.stored, "plan_runs": not run.steered, **update}


async def _ask_and_call(
    turn: TurnCalls, state: TurnState, conversation: list[BaseMessage], *, has_acted: bool = False
) -> Update:
    """Leaves the answer to `respond` if the model gives none to a turn that has acted."""
    try:
        return await _rounds(turn, state, conversation)
    except AppError as error:
        if not gave_no_answer(error) or not (has_acted or turn.has_acted):
            raise
        return {"answer": None, "problem": error}


async def _rounds(turn: TurnCalls, state: TurnState, conversation: list[BaseMessage]) -> Update:
    context, has_called = turn.context, turn.count > 0
    for _ in range(context.settings.max_rounds):
        if has_called:
            await read_steers(turn, conversation)
        if turn.count >= context.settings.max_tool_calls or context.model.nearly_spent:
            break
        # Made anew each round: a call may have unlocked one tool and broken another.
        request = plain_request(context.guard, turn.tools, conversation)
        tries = 1 if turn.has_acted else MAX_EMPTY_ANSWERS
        reply, started = await stream_reply(context, *request, empty_tries=tries)
        if reply.left_out or reply.opaque_is_dead:
            await mark_refused(turn, reply, conversation)
        text = await keep_made_images(turn, reply, conversation) if reply.images else reply.text
        if not reply.calls:
            return {"answer": text, "started": started}
        has_called = True
        shown, held = await run_tool_calls(turn, reply, started=started, offer=_offer(state, conversation))
        conversation += shown
        await context.chooser.add(call.name for call in reply.calls)
        if turn.asking is not None:
            return await _ask_for_answer(turn, state, held, conversation)
        if held and await context.is_steered():
            if started and not shown:  # what it asked for is asked for anew, or not at all
                context.emit(TextEnded(started.message_id))
        elif held:
            rest = replace(reply, text="") if shown and held[0].by_page else reply
            update = await _ask_for_yes(turn, state, rest, held, conversation)
            return {**update, "started": None if shown else started}
    return {"answer": None}


def plain_request(
    guard: ToolGuard, tools: Mapping[str, Tool], conversation: Sequence[BaseMessage]
) -> tuple[Sequence[BaseMessage], list[ToolSpec]]:
    """Returns what the model is shown if it is simply asked for its next reply, and the tools it is offered."""
    withheld = prompts.withheld_note(guard.states(tool.spec for tool in guard.chosen(tools).values()))
    return prompts.with_note(conversation, withheld) if withheld else conversation, guard.offered(tools)


async def _ask_for_yes(
    turn: TurnCalls, state: TurnState, reply: Reply, held: Sequence[HeldCall], conversation: list[BaseMessage]
) -> Update:
    """Stores the held calls as a plan that waits for one yes, or for the page. Stores nothing if an approved plan is
    about to run.
    """
    context, wanted = turn.context, _wanted(state, conversation)
    offered = _distinct(held)
    steps = [
        _step(state, wanted, call, number, alone=len(offered) == 1) for number, call in enumerate(offered, start=1)
    ]
    opaque = opaque_parts(reply, (call.made for call in offered))
    stored = await offer_plan(context, wanted, _origin(state), steps, opaque=opaque)
    if stored is None:
        asked = prompts.with_instruction(conversation, prompts.APPROVED_FIRST)
        said = await context.model.reply(asked, context.guard.offered(turn.tools), tool_choice="none")
        return {"answer": "\n\n".join(filter(None, (reply.text, said.text))) or prompts.NO_ANSWER}
    stored = await hold_calls(turn, stored, by_page=offered[0].by_page)
    question = await _question(turn, state, stored, unseen=offered[0].unseen)
    return {"touched_plan": stored, "answer": "\n\n".join(filter(None, (reply.text, question)))}


async def _question(turn: TurnCalls, state: TurnState, stored: StoredPlan, **shown: Any) -> str:
    """Returns the question for a yes to the steps that wait, with what the session's results say of them. What waits
    for the page asks the user nothing.
    """
    if stored.plan.page_steps:
        return ""
    references = (*turn.references, *state["earlier_results"])
    known = await known_things(turn, stored.plan.waiting_steps, references)
    results = {each.tool_call_id: each.tool_name for each in references}
    return plan_messages.ask(stored, language_of(state), known=known, results=results, **shown)


def _offer(state: TurnState, conversation: Sequence[BaseMessage]) -> Offer:
    wanted = _wanted(state, conversation)

    async def offer(connection: AsyncConnection, turn: TurnCalls, call: ReadyCall, asks: ToolAsks) -> None:
        step = _step(state, wanted, call)
        await offer_asking(connection, turn, call, asks, step, goal=wanted, origin=_origin(state))

    return offer


async def _ask_for_answer(
    turn: TurnCalls, state: TurnState, held: Sequence[HeldCall], conversation: Sequence[BaseMessage]
) -> Update:
    """Asks what a call has asked. Calls of the same round that need a yes are later steps of its plan."""
    stored, context = turn.asking, turn.context
    if stored is None:
        raise AssertionError("a call has asked")
    wanted = _wanted(state, conversation)
    if steps := [_step(state, wanted, call, alone=False) for call in _distinct(held)]:
        async with context.transaction() as connection:
            stored = await store.swap(connection, stored, add_steps(stored.plan, steps), tool_hash=stored.tool_hash)
    context.emit(PlanChanged(stored.plan))
    return {"touched_plan": stored, "answer": plan_messages.ask(stored, language_of(state)), "started": None}


def _distinct(held: Sequence[HeldCall]) -> list[HeldCall]:
    distinct: dict[tuple[str, str], HeldCall] = {}
    for call in held:
        distinct.setdefault(call_key(call.request), call)
    return list(distinct.values())[:MAX_STEPS]


def _wanted(state: TurnState, conversation: Sequence[BaseMessage]) -> str:
    """Returns what the user wants, in their words: behind a button what the plan was for."""
    decided = state["decided_plan"]
    return "\n".join([decided.plan.goal if decided else state["message"], *prompts.steers_in(conversation)])


def _origin(state: TurnState) -> str:
    """Returns the id of the message that says so."""
    return state["decided_plan"].plan.origin_message_id if state["decided_plan"] else state["message_id"]


def _step(state: TurnState, wanted: str, call: HeldCall | ReadyCall, number: int = 1, *, alone: bool = True) -> Step:
    """Returns the step that makes a call, described for the user: by the tool's title, by what the user `wanted` if the
    call is `alone`, or by the tool's name. The tool's own description is written for models.
    """
    spec, read = call.tool.spec, state["acknowledgement"]
    description = plan_messages.called(spec.name, {spec.name: call.tool})
    if not spec.title and alone and read.verdict in ("none", "amend") and not read.carries_yes:
        description = one_line(wanted, MAX_DESCRIPTION_CHARS)
    return Step(number, description, call.request.name, call.request.args)
