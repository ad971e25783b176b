"""Runs the open steps of the plan, then the model and its tools in turn, until something answers or a bound is reached.

A call that needs the user's yes does not run: it becomes a waiting step with its exact arguments, and the question ends
the turn. Calls of one reply are one question. Files of the message are shown as results of calls by the engine.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import cast

from langchain_core.messages import BaseMessage
from langgraph.runtime import Runtime

from segue.agent import plan_messages, prompts
from segue.agent.approval_requests import ask_for_answer, ask_for_yes, blocked_tools, offer_asking, question
from segue.agent.call_approval import agreement_in
from segue.agent.plan_executor import execute_plan
from segue.agent.state import StartedMessage, TurnContext, TurnState, Update, language_of, running_plan
from segue.agent.stream_reply import stream_reply
from segue.agent.tool_executor import keep_made_images, record_known, run_tool_calls
from segue.agent.turn_calls import SettledCall, TurnCalls, mark_refused, read_steers
from segue.agent.turn_reports import web_search_report
from segue.agent.unfinished_calls import resume_calls
from segue.db.engine import Connection
from segue.domain.errors import AppError
from segue.domain.events import CallGivenUp, TextEnded
from segue.domain.ids import new_id
from segue.domain.session import READ_ATTACHMENT, RequestedCall
from segue.domain.tool import PROPOSE_MANDATE, ApprovedHow, EffectApproval, Tool, ToolSpec
from segue.language.shown_call import translate
from segue.language.utterance import own_words
from segue.memory.fact_cues import FACT_WORDS, index_words
from segue.models.chat_model import MAX_EMPTY_ANSWERS
from segue.models.refusals import gave_no_answer
from segue.models.reply import ModelCall, Reply
from segue.plans.policy import WEB_SEARCH, SearchDecision, gives_leave, speaks_of_asking, web_query, without_forbidden
from segue.plans.store import version_to_come
from segue.tools.attachment_store import GONE, kept_files
from segue.tools.availability import ToolGuard
from segue.tools.run import CallOutcome

WEB_TOOLS = frozenset({WEB_SEARCH, "web_fetch"})


async def tool_loop(state: TurnState, runtime: Runtime[TurnContext]) -> Update:
    """Leaves `answer` at None if `respond` has to write it: the loop reached a bound, or the model gave no answer."""
    context = runtime.context
    turn = _calls_of(context, state)
    if note := state.get("note"):
        turn.add_note(note)
    if (schema := context.options.output_schema) is not None:
        turn.add_note(prompts.fenced_lines(prompts.TEXTS["structured"], [schema]))
    if state["earlier"] is not None:
        await resume_calls(turn, state["earlier"].calls, offer_asking)
    if state["attachments"]:
        await _show_attachments(turn, state["attachments"])
    search = await _search_first(turn)
    if turn.asking is not None:  # by a call of the attempt that was cut off
        update = await ask_for_answer(turn, ())
    elif state["plan_runs"]:
        update = await _run_plan(turn)
    else:
        update = await _ask_and_call(turn)
    update |= {"search": search, "conversation": turn.conversation}
    update["message_count"] = state["message_count"] + turn.stored_messages
    if turn.ledger:
        changes = {"tool_calls": turn.recorded, "references": turn.references, "effects": turn.changed}
        update |= changes | {"found": turn.found}
    if (report := web_search_report(cast(TurnState, {**state, **update}))) != web_search_report(state):
        context.emit(report)
    return update


def _calls_of(context: TurnContext, state: TurnState) -> TurnCalls:
    """Returns the calls of a turn that begins, and the agreement that its message gives. A standing approval may be
    given if the message gives leave, or if a step of the running plan is one.
    """
    plan = running_plan(state) if state["plan_runs"] else None
    is_planned = any(step.tool == PROPOSE_MANDATE for step in plan.steps) if plan else None
    context.guard.proposes = gives_leave(own_words(state["message"])) if is_planned is None else is_planned
    context.guard.ends = speaks_of_asking(own_words(state["message"]))
    tools, read = without_forbidden(context.guard.tools(), state["search"]), state["acknowledgement"]
    turn = TurnCalls(context, state, tools, list(state["prompt"]), asked_in=state["answered_turn_id"])
    turn.ledger |= state.get("checked", {})
    turn.count += len(turn.ledger)
    if state["approves"]:
        how: ApprovedHow = "words" if state["decided_plan"] is None else "button"
        turn.yes = EffectApproval(how, context.owner, state["message_id"])
    if read.carries_yes or read.verdict == "confirm":
        turn.agreement = agreement_in(state)
    return turn


async def _show_attachments(turn: TurnCalls, attachments: Mapping[str, CallOutcome]) -> None:
    """Adds the beginning of each file of the message. Calls of an attempt that was cut off stand."""
    reads = [call for call in turn.recorded if call.tool_name == READ_ATTACHMENT]
    read = {str(call.args["attachment_id"]): call for call in reads}
    for attachment_id, call in read.items():
        if attachment_id in attachments:
            turn.keep_images(RequestedCall(call.tool_call_id, call.tool_name, call.args), attachments[attachment_id])
    now = turn.context.clock()
    calls = [
        SettledCall(RequestedCall(new_id("call", now), READ_ATTACHMENT, {"attachment_id": each}), None, outcome)
        for each, outcome in attachments.items()
        if each not in read
    ]
    if calls:
        await record_known(turn, calls, _without_deleted)
    turn.show_images()


async def _without_deleted(connection: Connection, calls: Sequence[SettledCall]) -> list[SettledCall]:
    """The files were read when the turn began, and may have been deleted since."""
    kept = await kept_files(connection, [call.request.args["attachment_id"] for call in calls])
    return [call if call.request.args["attachment_id"] in kept else replace(call, outcome=GONE) for call in calls]


async def _search_first(turn: TurnCalls) -> SearchDecision:
    """Searches the web for the message's question. Returns the decision, which an outage may change."""
    state, tool = turn.state, turn.tools.get(WEB_SEARCH)
    search = state["search"]
    if search.reason == "forbidden":
        turn.add_note(prompts.TEXTS["search_forbidden"])
    if not search.search or state["plan_runs"]:
        return search
    if tool is None or not turn.context.guard.state(tool.spec).available:
        return SearchDecision(search=False, reason="unavailable")
    query = web_query(state["message"])
    if query and not state["attachments"] and not _is_about_results(state):
        _, held_calls = await run_tool_calls(turn, Reply("", (ModelCall(WEB_SEARCH, {"query": query}),), 0, 0))
        if not held_calls:
            return search
    turn.add_note(prompts.TEXTS["search_wanted"])
    return search


def _is_about_results(state: TurnState) -> bool:
    """Returns whether the message has a word from an earlier result, such as a name: an engine must not learn it."""
    references = (reference for reference in state["earlier_results"] if reference.tool_name not in WEB_TOOLS)
    found = " ".join(f"{each.summary} {each.preview} {' '.join(each.identifiers)}" for each in references)
    words, known = ({word for word in index_words(text).split() if len(word) > 1} for text in (state["message"], found))
    return not (words & known) <= FACT_WORDS.now.ignored


async def _run_plan(turn: TurnCalls) -> Update:
    """Runs the plan. If it is over then, the turn goes on as any does."""
    stored = turn.state["touched_plan"]
    if stored is None:
        raise AssertionError("the plan node leaves the plan that runs")
    run = await execute_plan(turn, stored)
    if run.problem is not None:
        answer = f"{translate('no_words', language_of(turn.state))}\n\n{await question(turn, run.stored)}"
        return {"touched_plan": run.stored, "answer": answer, "problem": run.problem}
    if run.plan.status != "waiting":
        if not run.steered:
            turn.add_note(prompts.with_plan(f"{prompts.TEXTS['carried_out']} {run.plan.status}:", run.plan))
            turn.account = plan_messages.ended(run.plan, language_of(turn.state))
        update = await _ask_and_call(turn, has_acted=not run.steered)
        return {"touched_plan": run.stored, "plan_runs": not run.steered, **update}
    blocked = blocked_tools(turn, run.plan)
    is_away = run.changed == "tool_blocked" and run.plan.waiting_steps[0].tool in blocked
    changed = run.differences if run.changed and not is_away else None
    answer = await question(turn, run.stored, changed=changed, blocked=blocked, is_away=is_away)
    return {"touched_plan": run.stored, "answer": answer, "asked_again": run.changed}


async def _ask_and_call(turn: TurnCalls, *, has_acted: bool = False) -> Update:
    """Leaves the answer to `respond` if the model gives none to a turn that has acted."""
    try:
        return await _rounds(turn)
    except AppError as error:
        if not gave_no_answer(error) or not (has_acted or turn.count):
            raise
        return {"answer": None, "problem": error}


async def _rounds(turn: TurnCalls) -> Update:
    context, has_called = turn.context, turn.count > 0
    for _ in range(context.settings.max_rounds):
        if has_called:
            await read_steers(turn)
        if turn.count >= context.settings.max_tool_calls or context.model.nearly_spent:
            break
        # Made anew each round: a call may have unlocked one tool and broken another.
        request = plain_request(context.guard, turn.tools, turn.conversation)
        tries = 1 if turn.count else MAX_EMPTY_ANSWERS
        version = await context.transact(version_to_come, context.turn.session_id) if context.guard.page else 0
        new_ids = partial(turn.new_ids, version)
        reply, started = await stream_reply(context, *request, empty_tries=tries, new_ids=new_ids)
        if reply.left_out or reply.opaque_is_dead:
            await mark_refused(turn, reply)
        text = await keep_made_images(turn, reply) if reply.images else reply.text
        if not reply.calls:
            return {"answer": text, "started": started}
        has_called = True
        update = await _make_calls(turn, reply, started)
        for call in reply.calls:
            if call.id is not None and call.id not in turn.ledger:  # one too many, or the same as another
                context.emit(CallGivenUp(call.id))
        if update is not None:
            return update
    return {"answer": None}


async def _make_calls(turn: TurnCalls, reply: Reply, started: StartedMessage | None) -> Update | None:
    """Runs the calls of a reply. Returns the turn's last update if some of them wait."""
    context = turn.context
    has_run, held_calls = await run_tool_calls(turn, reply, started=started, offer=offer_asking)
    await context.chooser.add(call.name for call in reply.calls)
    if turn.asking is not None:
        return await ask_for_answer(turn, held_calls)
    if held_calls and await context.is_steered():
        if started and started.chars and not has_run:  # what it asked for is asked for anew, or not at all
            context.emit(TextEnded(started.message_id))
    elif held_calls:
        rest = replace(reply, text="") if has_run and held_calls[0].by_page else reply
        return {**await ask_for_yes(turn, rest, held_calls), "started": None if has_run else started}
    return None


def plain_request(
    guard: ToolGuard, tools: Mapping[str, Tool], conversation: Sequence[BaseMessage]
) -> tuple[Sequence[BaseMessage], list[ToolSpec]]:
    """Returns the messages that ask the model for its next reply, and the tools it is offered."""
    withheld = prompts.withheld_note(guard.states(tool.spec for tool in guard.chosen(tools).values()))
    return prompts.with_note(conversation, withheld) if withheld else conversation, guard.offered(tools)
