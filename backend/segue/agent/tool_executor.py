"""Runs the tool calls of a turn: decides which may run, records their starts, runs them side by side, records each end.

The only place where the ledger, the history and a running tool meet. Each end is recorded at once, so a call that hangs
or fails loses no other's result. A call without an answer is settled by its tool's check, or stays unknown.
"""

import asyncio
from collections.abc import Awaitable, Callable, Container, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import timedelta
from functools import partial
from typing import Any, Final

from anyio import to_thread
from langchain_core.messages import ToolMessage

from segue.agent import prompts, render_messages
from segue.agent.call_approval import proposed, runs_under_mandate, unseen_unless_agreed, who_decides
from segue.agent.state import StartedMessage, TurnContext, WriteWithStart
from segue.agent.stream_reply import emit_message
from segue.agent.turn_calls import HeldCall, Prepared, ReadyCall, SettledCall, TurnCalls, call_key
from segue.db.engine import Connection
from segue.domain import events
from segue.domain.ids import new_id
from segue.domain.session import MAKE_IMAGE, READ_ATTACHMENT, SHOWN_BYTES, RequestedCall
from segue.domain.telemetry import ToolCalled, ToolOutcome
from segue.domain.tool import PROPOSE_MANDATE, Reference, SettlingCheck, Tool, ToolCall, ToolRetry, ToolSpec
from segue.domain.user_request import PAGE, ToolAsks
from segue.log import log
from segue.memory.history import NewMessage, append_message
from segue.models import traced_call
from segue.models.reply import ModelCall, Reply, opaque_parts
from segue.plans.mandates import MandateSpent
from segue.plans.policy import Deny
from segue.tools import results
from segue.tools.availability import refusal
from segue.tools.input_schema import accepts
from segue.tools.normalize import IMAGES, clean, make_payload
from segue.tools.paging import InvalidPath
from segue.tools.receipts import append_receipt
from segue.tools.run import CallOutcome, failed, lost, run_tool
from segue.tools.summaries import MAX_SUMMARY_CHARS, one_line
from segue.tools.unknown_outcomes import args_of_check, took_effect

MAX_IMAGES: Final = 10  # of those that a model has made in one reply
MAX_WAIT_S: Final = 30.0  # for a call that has not answered and has taken no effect yet

Offer = Callable[[Connection, TurnCalls, ReadyCall, ToolAsks], Awaitable[None]]
WriteWithEnd = Callable[[Connection, CallOutcome], Awaitable[None]]
CheckOutcomes = Callable[[Connection, Sequence[SettledCall]], Awaitable[Sequence[SettledCall]]]
StoredEnd = tuple[ToolCall, Reference, str]  # a call, its reference, and the id of the tool's message


async def run_tool_calls(
    turn: TurnCalls, reply: Reply, *, started: StartedMessage | None = None, offer: Offer | None = None
) -> tuple[bool, list[HeldCall]]:
    """Runs the calls of a reply that need no approval, equal ones once. Emits the reply's text if any call runs.
    Returns whether any did, and the calls that wait: for the client's page if there are any, else for the user's yes.
    `offer` makes a waiting step of a call whose tool asks the user something first.
    """
    context = turn.context
    await context.guard.refresh()
    prepared = [await _prepare(turn, call) for call in reply.calls[: context.settings.max_tool_calls - turn.count]]
    model_calls = {each.request.id: call for each, call in zip(prepared, reply.calls, strict=False)}
    while True:
        held_calls = [call for call in prepared if isinstance(call, HeldCall)]
        waiting = [call for call in held_calls if call.by_page] or held_calls
        runs = [call for call in prepared if not isinstance(call, HeldCall)]
        if not runs:
            return False, waiting
        new: dict[tuple[str, str], ReadyCall | SettledCall] = {}
        for call in runs:
            if call_key(call.request) not in turn.answers:
                new.setdefault(call_key(call.request), call)
        try:
            await _start(turn, reply, list(new.values()), model_calls, started)
            break
        except MandateSpent as spent:  # another turn has used up what these were to run under: they ask
            prepared = _asking(turn, prepared, spent.calls, model_calls)
    turn.count += len(runs)
    answers = turn.answers | await run_together(turn, new.values(), offer)
    opaque = opaque_parts(reply, (model_calls[call.request.id] for call in runs))
    message = render_messages.assistant_message(reply.text, [call.request for call in runs], opaque=opaque)
    results = (ToolMessage(answers[call_key(call.request)], tool_call_id=call.request.id) for call in runs)
    turn.conversation += [message, *results]
    turn.show_images()
    return True, waiting


async def _start(
    turn: TurnCalls,
    reply: Reply,
    calls: Sequence[ReadyCall | SettledCall],
    model_calls: Mapping[str, ModelCall],
    started: StartedMessage | None,
) -> None:
    """Records the calls of a reply that have a row, and emits its text. Raises MandateSpent, and has done nothing."""
    message_id = started.message_id if started else new_id("msg", turn.context.clock())

    def say() -> None:
        if reply.text:
            emit_message(turn.context, reply.text, started, message_id=message_id)

    for call in calls:
        if isinstance(call, ReadyCall):
            turn.note_effect(call.request, call.tool, turn.yes if call.approved else None)
    if recorded := [call.request for call in calls if _is_recorded(call.tool)]:
        opaque = opaque_parts(reply, (model_calls[request.id] for request in recorded))
        await record_start(turn, reply.text, recorded, message_id=message_id, opaque=opaque, say=say)
    else:
        say()


def _asking(
    turn: TurnCalls, prepared: Sequence[Prepared], ids: Container[str], model_calls: Mapping[str, ModelCall]
) -> list[Prepared]:
    """Returns the calls of which those with these ids, and their equals, wait for a yes."""
    spent = {call_key(call.request) for call in prepared if call.request.id in ids}
    asking = list(prepared)
    for at, call in enumerate(prepared):
        if isinstance(call, ReadyCall) and call_key(call.request) in spent:
            turn.under.pop(call.request.id, None)
            asking[at] = HeldCall(call.request, call.tool, model_calls[call.request.id])
    return asking


async def record_known(turn: TurnCalls, calls: Sequence[SettledCall], check: CheckOutcomes | None = None) -> None:
    """Stores calls with outcomes known before they start, in one transaction, and shows them to the model. `check`
    returns the calls with their outcomes by then.
    """
    ends: list[StoredEnd] = []
    requests = [call.request for call in calls]

    async def end_all(connection: Connection) -> None:
        nonlocal calls
        if check is not None:
            calls = await check(connection, calls)
        ends.extend([await _store_end(connection, turn.context, call.request, call.outcome) for call in calls])

    await record_start(turn, "", requests, also=end_all)
    turn.conversation.append(render_messages.assistant_message("", requests))
    for call, end in zip(calls, ends, strict=True):
        _emit_end(turn, end)
        turn.keep_images(call.request, call.outcome)
        answer = keep_answer(turn, call.request, call.tool, call.outcome)
        turn.conversation.append(ToolMessage(answer, tool_call_id=call.request.id))
    turn.count += sum(call.request.name != READ_ATTACHMENT for call in calls)
    turn.show_images()


async def keep_made_images(turn: TurnCalls, reply: Reply) -> str:
    """Stores images that the model made, as a tool's files are. Returns the words or, without any, what was made."""
    max_bytes, now = turn.context.settings.tool_result_max_bytes, turn.context.clock()
    read, calls = partial(make_payload, max_bytes=max_bytes), []
    for payload in await to_thread.run_sync(lambda: [read({"image": url}) for url in reply.images[:MAX_IMAGES]]):
        if images := [part for part in payload.parts if part.kind in IMAGES]:
            summary = f"{images[0].media_type}, {images[0].size_bytes / 1000:.1f} kB"
            outcome = CallOutcome("succeeded", payload, None, 0, summary=summary, gist=summary)
            calls.append(SettledCall(RequestedCall(new_id("call", now), MAKE_IMAGE, {}), None, outcome))
    if calls:
        await record_known(turn, calls)
    made_lines = "\n".join(f"✓ {MAKE_IMAGE}: {call.outcome.summary}" for call in calls)
    return reply.text or made_lines or prompts.TEXTS["no_answer"]


async def record_start(
    turn: TurnCalls,
    text: str,
    calls: Sequence[RequestedCall],
    *,
    message_id: str | None = None,
    opaque: Mapping[str, Any] | None = None,
    step: results.PlanStep | None = None,
    also: WriteWithStart | None = None,
    say: Callable[[], None] = lambda: None,
) -> None:
    """Stores the assistant's message and a ledger row for each call before anything runs, in one transaction that books
    what runs under mandates. `say` emits the text once it is committed. Raises MandateSpent.
    """
    context, now = turn.context, turn.context.clock()
    message_id = message_id or new_id("msg", now)
    given = clean(opaque) if opaque else None
    message = NewMessage("assistant", clean(text), now, id=message_id, tool_calls=calls, opaque=given)
    under = {call.id: turn.under[call.id] for call in calls if call.id in turn.under}
    await context.start_calls(message, step, under, turn.effects, also)
    say()
    turn.stored_messages += 1
    for call in calls:
        if call.id not in turn.by_page:
            context.emit(events.CallStarted(call, message_id))
        if call.id in under:
            log.info("mandate_used", tool=call.name, tool_call_id=call.id, mandate_id=under[call.id].mandate_id)
            context.emit(events.MandateUsed(call.id, call.name, under[call.id].mandate_id))


async def run_call(turn: TurnCalls, call: ReadyCall | SettledCall, *, also: WriteWithEnd | None = None) -> CallOutcome:
    """Runs a call if it may run at this moment, records its outcome, and returns that."""
    turn.ledger.setdefault(call.request.id, None)
    call = await _ruled(turn, call)
    if isinstance(call, SettledCall):
        outcome = await verified(turn, call.request, call.tool, call.outcome)
        await _record_end(turn, call, outcome, also)
        return outcome
    # A half-open tool has one try in all processes: it is held until the outcome is stored.
    async with turn.context.guard.admitting(call.tool.spec) as refused:
        outcome = failed(refused) if refused else await _run(turn.context, call)
        outcome = await verified(turn, call.request, call.tool, outcome)
        await _record_end(turn, call, outcome, also)
    turn.keep_images(call.request, outcome)
    return outcome


async def verified(turn: TurnCalls, request: RequestedCall, tool: Tool | None, outcome: CallOutcome) -> CallOutcome:
    """Returns the outcome of a call as its tool's check finds it, if it may have taken effect. The check is a call of
    its own. A check that finds no effect counts only once the call's timeout has passed: a server may still be at work.
    """
    if outcome.status != "unknown" or tool is None or tool.spec.verify is None:
        return outcome
    check = await _check(turn, request, tool.spec, tool.spec.verify)
    left_s = 0.0
    if check is not None and not check[2]:
        context, allowed_s = turn.context, tool.spec.timeout_s or turn.context.settings.tool_timeout_s
        began = await context.transact(results.started_at, request.id)
        left_s = (began + timedelta(seconds=allowed_s) - context.clock()).total_seconds()
    if left_s > MAX_WAIT_S:
        return outcome
    if left_s > 0:
        await asyncio.sleep(left_s)
        check = await _check(turn, request, tool.spec, tool.spec.verify)
    if check is None:
        return outcome
    call_id, found, has_effect = check
    checked_with = tool.spec.verify.tool
    log.info("call_settled", tool=request.name, tool_call_id=request.id, settled_by=call_id, took_effect=has_effect)
    if not has_effect:
        error = prompts.TEXTS["no_effect"].format(tool=request.name, check=checked_with, tool_call_id=call_id)
        return replace(outcome, status="failed", error=error, settled_by=call_id)
    shows = {"took_effect": True, "checked_with": checked_with, "tool_call_id": call_id, "found": found.gist}
    payload = make_payload(shows, max_bytes=turn.context.settings.tool_result_max_bytes)
    summary = one_line(f"took effect, as {checked_with} shows: {found.gist}", MAX_SUMMARY_CHARS)
    return CallOutcome(
        "succeeded", payload, None, outcome.duration_ms, None, summary, found.identifiers, summary, settled_by=call_id
    )


async def _check(
    turn: TurnCalls, request: RequestedCall, spec: ToolSpec, check: SettlingCheck
) -> tuple[str, CallOutcome, bool] | None:
    """Makes the call that checks another. Returns its id, its outcome and what it shows; None if it could not tell."""
    reads = turn.tools.get(check.tool)
    if reads is None or reads.spec.effect != "read_only" or reads.spec.confirm:
        return None
    sent = {**request.args, spec.idempotency_arg: request.id} if spec.idempotency_arg else request.args
    try:
        args = await args_of_check(check, sent)
    except InvalidPath:
        return None
    call = RequestedCall(new_id("call", turn.context.clock()), check.tool, args)
    turn.count += 1
    await record_start(turn, "", [call])
    found = await run_call(turn, ReadyCall(call, reads))
    shows = await took_effect(check, found)
    return None if shows is None else (call.id, found, shows)


async def _ruled(turn: TurnCalls, call: ReadyCall | SettledCall) -> ReadyCall | SettledCall:
    """Returns the call under the policy's ruling of now. One it would ask about now was allowed when it first ran."""
    if isinstance(call, SettledCall):
        return call
    ruling = await turn.ruling(call.request, call.tool)
    turn.rulings.pop(call_key(call.request), None)
    match ruling:
        case Deny(reason):
            denied = failed(prompts.TEXTS["denied"].format(tool=call.request.name, reason=reason))
            return SettledCall(call.request, call.tool, denied)
        case "ask" if not call.approved:
            return SettledCall(call.request, call.tool, lost(call.request.name))
        case _:
            return call


async def _prepare(turn: TurnCalls, call: ModelCall) -> Prepared:
    prepared = await _ready(turn, call)
    request, tool = prepared.request, prepared.tool
    if not isinstance(prepared, ReadyCall) or tool is None or tool.spec.source != PAGE:
        return prepared
    runs_not = call_key(request) in turn.answers or not accepts(tool, request.args)
    if runs_not or isinstance(await turn.ruling(request, tool), Deny):
        return prepared
    return HeldCall(request, tool, call, by_page=True)


async def _ready(turn: TurnCalls, call: ModelCall) -> Prepared:
    context, tool = turn.context, turn.tools.get(call.name)
    shown_as = call.id if tool is None or tool.spec.source != PAGE else None  # the page's ids are no others'
    request = RequestedCall(shown_as or new_id("call", context.clock()), call.name, clean(call.args or {}))
    if tool is None:
        offered = ", ".join(sorted(context.guard.chosen(turn.tools))[:40])
        return SettledCall(request, None, failed(f"There is no tool called {call.name!r}. There are: {offered}."))
    if call.args is None:
        return SettledCall(request, tool, failed("The arguments were not a JSON object. Write them again as one."))
    locked = refusal(tool.spec, context.guard.state(tool.spec))
    if tool.spec.name == PROPOSE_MANDATE and not locked:
        try:
            request = replace(request, args=await proposed(turn, request.args))
        except ToolRetry as why:
            locked = str(why)
    return SettledCall(request, tool, failed(locked)) if locked else await _approved(turn, request, tool, call)


async def _approved(turn: TurnCalls, request: RequestedCall, tool: Tool, call: ModelCall) -> ReadyCall | HeldCall:
    """Returns the call as one that runs, or that waits for a yes. One that fails anyway, or is denied, needs none."""
    ruling = await turn.ruling(request, tool)
    if call_key(request) in turn.answers or isinstance(ruling, Deny) or not accepts(tool, request.args):
        return ReadyCall(request, tool)
    if turn.context.approvals and await who_decides(turn, request, tool) != "self":
        return HeldCall(request, tool, call)
    if not turn.needs_yes(request, tool, ruling):
        return ReadyCall(request, tool)
    if call_key(request) in turn.approved:
        turn.approved.remove(call_key(request))
        unseen = None
    else:  # no yes in words answers what a rule of the operator's asks
        unseen = await unseen_unless_agreed(turn, request, tool) if ruling == "allow" else {}
    if unseen is None:
        return ReadyCall(request, tool, approved=True)
    is_allowed = await runs_under_mandate(turn, request, tool, ruling)
    return ReadyCall(request, tool) if is_allowed else HeldCall(request, tool, call, unseen)


async def run_together(
    turn: TurnCalls, calls: Iterable[ReadyCall | SettledCall], offer: Offer | None
) -> dict[tuple[str, str], str]:
    """Returns by `call_key` the text that the model is shown for each call."""
    gate = asyncio.Semaphore(turn.context.settings.max_parallel_calls)

    async def answer(call: ReadyCall | SettledCall) -> str:
        async def hold(connection: Connection, outcome: CallOutcome) -> None:
            if outcome.asks is not None and offer is not None and isinstance(call, ReadyCall):
                await offer(connection, turn, call, outcome.asks)

        async with gate:
            outcome = await run_call(turn, call, also=hold)
        return keep_answer(turn, call.request, call.tool, outcome)

    try:
        async with asyncio.TaskGroup() as group:
            answers = {call_key(call.request): group.create_task(answer(call)) for call in calls}
    except ExceptionGroup as several:
        raise several.exceptions[0] from None
    return {key: task.result() for key, task in answers.items()}


async def _run(context: TurnContext, call: ReadyCall) -> CallOutcome:
    identity = context.caller(call.request.id, call.answers)
    if _is_recorded(call.tool):
        call_id = call.request.id
        identity = replace(identity, report=lambda *made: context.emit(events.CallProgressed(call_id, *made)))
    with context.span("tool", tool=call.tool.spec.name, tool_call_id=call.request.id) as span:
        outcome = await run_tool(call.tool, call.request.args, identity, settings=context.settings)
        ended = _tool_outcome(outcome)
        if span.trace_id:
            span.set_attributes(outcome=ended, **traced_call.described(call.tool.spec))
        if span.content:
            output = outcome.payload.shown_text or outcome.error or ""
            span.set_attributes(**traced_call.executed(call.request.args, output))
        if ended != "succeeded":
            span.fail(ended)
    return outcome


async def _record_end(
    turn: TurnCalls, call: ReadyCall | SettledCall, outcome: CallOutcome, also: WriteWithEnd | None
) -> None:
    """Stores the outcome, the payload, the tool message and the tool's state, in one transaction."""
    context, tool = turn.context, call.tool
    known = tool if tool is None or tool.spec.source != PAGE else None  # clients name theirs as they like
    context.emit(ToolCalled(known.spec.name if known else None, _tool_outcome(outcome), outcome.duration_ms / 1000))
    if not _is_recorded(tool):
        return
    async with context.transaction() as connection:
        end = await _store_end(connection, context, call.request, outcome)
        if call.request.id in turn.effects:
            await append_receipt(connection, call.request.id)
        if also is not None:
            await also(connection, outcome)
        changed = await context.guard.record(connection, known.spec, outcome) if known else None
    if tool is not None and changed is not None:
        await context.guard.committed(tool.spec, changed)
        if changed.moved:
            context.emit(events.ToolStateChanged(tool.spec.name, context.guard.state(tool.spec)))
    _emit_end(turn, end)


async def _store_end(
    connection: Connection, context: TurnContext, request: RequestedCall, outcome: CallOutcome
) -> StoredEnd:
    now = context.clock()
    call, reference = await results.finish_call(connection, request, outcome, now=now, settings=context.settings)
    message = NewMessage("tool", asdict(reference), now, tool_call_id=request.id)
    return call, reference, await append_message(connection, context.turn, message)


def _emit_end(turn: TurnCalls, end: StoredEnd) -> None:
    call, reference, message_id = end
    turn.stored_messages += 1
    turn.ledger[call.tool_call_id] = call, reference
    if call.tool_call_id not in turn.by_page:
        turn.context.emit(events.CallEnded(reference, message_id))


def keep_answer(turn: TurnCalls, request: RequestedCall, tool: Tool | None, outcome: CallOutcome) -> str:
    """Returns the model's text for a call that has ended. One that took effect, or may have, is not run again."""
    max_bytes = SHOWN_BYTES if request.name == READ_ATTACHMENT else turn.context.settings.fresh_result_bytes
    answer = render_messages.fresh_result(request.id, outcome, max_bytes=max_bytes)
    if outcome.status != "failed" and _is_recorded(tool):
        turn.answers[call_key(request)] = answer
    turn.keep_sources(request, outcome)
    return answer


def _is_recorded(tool: Tool | None) -> bool:
    """An ephemeral tool's calls leave no row and no message."""
    return tool is None or not tool.spec.ephemeral


def _tool_outcome(outcome: CallOutcome) -> ToolOutcome:
    match outcome.status, outcome.fault:
        case "failed", "arguments":
            return "bad_arguments"
        case "failed", "unauthorized" | "refused" | "asks" as fault:
            return fault
        case status, _:
            return status
