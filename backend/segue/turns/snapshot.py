"""The snapshot a turn starts from: history, results, facts, plans, short-term memory (rebuilt if Redis lost it)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Row

from segue.agent.prompts import CAME_AT, TOOLS_SHOWN, Instructions, confirmation_line, instructions_of
from segue.agent.render_messages import SessionContent, build_prompt
from segue.agent.state import EarlierAttempt, TurnInput
from segue.agent.tool_choice import ToolChooser, ToolNeeds
from segue.db.engine import Connection, Database
from segue.db.redis_keys import Cache
from segue.domain.errors import Unreadable
from segue.domain.ids import local_time
from segue.domain.plan import Plan
from segue.domain.session import Attached, Memory, Message
from segue.domain.tool import Reference
from segue.memory import short_term
from segue.memory.history import StoredWindow, last_exchange, load_window
from segue.memory.history_window import WindowLimits
from segue.plans.store import StoredPlan, get_plan, plan_in_question, plan_of_turn
from segue.tools.attachment_store import read_attached
from segue.tools.availability import ToolGuard
from segue.tools.results import StoredResult, load_results, recent_references, recorded_calls
from segue.turns.claims import Claim
from segue.turns.queries import last_ended
from segue.turns.turn_deps import Speaker, TurnDeps

TurnTools = tuple[ToolGuard, ToolChooser]  # the tools of a turn, and who chooses among them
TOKEN_BYTES = 4  # about; more opaque parts than would fill the window are not even loaded


@dataclass(frozen=True, slots=True)
class _InStores:
    """A session as the stores have it. `known` are its recent results, `in_view` the bytes of those that the model is
    about to see at least as references, by tool call, and `kept` those of them that are small and still there.
    """

    window: StoredWindow
    messages: Sequence[Message]
    pending: StoredPlan | None
    decided: StoredPlan | None
    earlier: EarlierAttempt | None
    memory: short_term.ShortTermMemory | None
    known: tuple[Reference, ...]
    beyond_summary: tuple[Reference, ...]
    in_view: Mapping[str, int]
    kept: Mapping[str, StoredResult]

    def opening(self, turn_id: str) -> Message:
        """Returns the user's message that the turn answers. Raises Unreadable."""
        of_turn = (each for each in self.messages if each.turn_id == turn_id and each.role == "user")
        if (found := next(of_turn, None)) is None:
            raise Unreadable("message")
        return found


async def load_context(
    deps: TurnDeps, claim: Claim, speaker: Speaker, tools: TurnTools, *, now: datetime, coming: Message | None
) -> TurnInput:
    """Returns the snapshot that a turn starts from, for its agent and tools. `coming` is the user's message if it is
    not stored. Raises Unreadable if the turn's own message or plan cannot be read.
    """
    guard, chooser = tools
    instructions = _instructions(speaker, guard, claim)  # before the chooser adds tools of its own
    stored = await _read(deps, claim, speaker, now=now, coming=coming)
    opening = stored.opening(claim.key.turn_id)
    message = str(opening.content)
    files = [Attached(**each) for each in opening.metadata.get("attachments", ())]
    attachments = await deps.database.read(read_attached, claim.key.session_id, files) if files else {}
    payer = claim.owner, claim.key.session_id
    facts = await deps.long_term.given(payer, message, now=now) if message and claim.knows_facts else []
    content = await _content(deps, claim, stored, chooser, facts, instructions)
    tokens, summarises = deps.settings.context_token_budget, deps.summaries is not None
    prompt = build_prompt(content, WindowLimits(deps.settings.history_limit, tokens, summarises=summarises), deps.count)
    return TurnInput(
        message=message,
        attachments=attachments,
        files=files,
        message_id=opening.id,
        force_web_search=claim.request.force_web_search,
        message_count=claim.message_count,
        prompt=prompt.messages,
        prompt_parts=prompt.before,
        cut_off=prompt.cut_off,
        memory=stored.memory,
        earlier_results=stored.known,
        facts=facts,
        open_plan=stored.pending,
        decided_plan=stored.decided,
        amends=claim.request.amends,
        approves=claim.request.approves,
        shown_plan=claim.request.shown_plan,
        answered_turn_id=claim.answered_turn_id,
        answered=_answered(stored.messages, opening, claim.answered_turn_id),
        language=claim.request.language,
        language_texts=_language_texts(stored.messages),
        earlier=stored.earlier,
    )


async def _read(deps: TurnDeps, claim: Claim, speaker: Speaker, *, now: datetime, coming: Message | None) -> _InStores:
    session_id, turn_id, settings = claim.key.session_id, claim.key.turn_id, deps.settings
    memory = None
    if claim.last_turn_id is not None:
        memory = await short_term.read(deps.cache, session_id, last_turn_id=claim.last_turn_id)
    async with deps.database.read_only() as connection:
        window = await load_window(
            connection,
            claim.key,
            after=min(claim.summary_seq, claim.key.turn_seq - 1),  # a turn that is run again may be in the summary
            limit=settings.history_limit,
            made_by=speaker.models.main.made_by,
            opaque_bytes=settings.context_token_budget * TOKEN_BYTES,
        )
        messages = [*window.messages, coming] if coming else window.messages
        decided = await get_plan(connection, claim.request.decided_plan_id) if claim.request.decided_plan_id else None
        earlier = None
        if claim.epoch > 1:
            calls = await recorded_calls(connection, turn_id)
            earlier = EarlierAttempt(calls, await plan_of_turn(connection, turn_id, session_id))
        pending = None
        if claim.has_plan_in_question and not decided:
            pending = await plan_in_question(connection, session_id, answered_turn_id=claim.answered_turn_id)
        known = memory.tool_results if memory else ()
        if memory is None and claim.last_turn_id and (last := await last_ended(connection, session_id)):
            known = await _known_results(connection, session_id)
            before, ttl_s = claim.message_count - 1, settings.short_term_memory_ttl
            memory, _ = await _rebuild(connection, session_id, last, known, message_count=before, ttl_s=ttl_s, now=now)
        beyond_summary = _beyond_summary(window, known)
        in_view: dict[str, int] = {reference.tool_call_id: reference.size_bytes for reference in beyond_summary}
        shown = [message.content for message in messages if isinstance(message.content, dict)]
        in_view |= {reference["tool_call_id"]: reference.get("size_bytes", 0) for reference in shown}
        most = settings.tool_result_inline_bytes
        kept = await load_results(connection, session_id, in_view, now=now, max_bytes=most) if in_view else {}
    return _InStores(window, messages, pending, decided, earlier, memory, known, beyond_summary, in_view, kept)


async def _content(
    deps: TurnDeps, claim: Claim, stored: _InStores, chooser: ToolChooser, facts: Sequence[Memory], own: Instructions
) -> SessionContent:
    """Returns the content of the prompt, and chooses the tools of the turn."""
    opening, kept = stored.opening(claim.key.turn_id), stored.kept
    inline = _inline(stored, claim.key.turn_id, max_bytes=deps.settings.fresh_result_bytes) if kept else {}
    plan = in_question.plan if (in_question := stored.pending or stored.decided) else None
    tool_tokens = await chooser.choose(_tool_needs(str(opening.content), stored.messages, stored.known, plan))
    later_tools = chooser.definitions()
    now = local_time(opening.created_at, claim.request.time_zone)  # the same if the turn is run again
    today = now.replace(hour=0, minute=0, second=0, microsecond=0)
    return SessionContent(
        summary=claim.summary,
        references=claim.references,
        now=now,
        facts=facts,
        plan=plan,
        history=[_with_notes(each, later_tools, now, today) for each in stored.messages],
        earlier=stored.beyond_summary,
        inline=inline,
        expired=frozenset(call_id for call_id, size in stored.in_view.items() if size and call_id not in kept),
        opaque=stored.window.opaque,
        instructions=own,
        language=claim.request.language,
        tool_tokens=tool_tokens,
        page=claim.request.options.page,
    )


def _instructions(speaker: Speaker, guard: ToolGuard, claim: Claim) -> Instructions:
    """Returns the agent's instructions for the turn, also on the tools that the turn may use."""
    specs, settings = [tool.spec for tool in guard.tools().values()], speaker.settings
    confirmation = confirmation_line(specs, settings.confirm, has_rule=settings.before_call is not None)
    is_gone, from_client = speaker.id != claim.agent, claim.request.options.instructions
    return instructions_of(speaker.agent, claim.owner, confirmation, from_client=from_client, is_gone=is_gone)


def _tool_needs(message: str, window: Sequence[Message], known: Sequence[Reference], plan: Plan | None) -> ToolNeeds:
    planned = (step.tool for step in plan.steps if step.tool) if plan else ()
    called = (call.name for each in reversed(window) for call in each.tool_calls)
    user_texts = {each.seq: str(each.content) for each in window if each.role == "user"}
    used = tuple(dict.fromkeys([*planned, *called, *(result.tool_name for result in known)]))
    return ToolNeeds(message, list(user_texts.values()), used, user_texts.keys())


def _with_notes(message: Message, later: Mapping[int, Sequence[object]], now: datetime, today: datetime) -> Message:
    """Returns a message of the user's with the definitions of the tools that came with it and, unless it is of today,
    with when it came: "tomorrow" in it is past.
    """
    if message.role != "user":
        return message
    more: dict[str, object] = {TOOLS_SHOWN: tools} if (tools := later.get(message.seq)) else {}
    if message.created_at < today:
        more[CAME_AT] = message.created_at.astimezone(now.tzinfo)
    return replace(message, metadata={**message.metadata, **more}) if more else message


def _answered(window: Sequence[Message], opening: Message, turn_id: str | None) -> str | None:
    """Returns the answer of a turn if the user had it before the message came."""
    for each in reversed(window):
        if each.turn_id == turn_id and each.role == "assistant" and not each.tool_calls:
            return str(each.content) if each.seq < opening.seq else None
    return None


def _language_texts(window: Sequence[Message]) -> tuple[str, ...]:
    """Returns the texts, the user's before the assistant's, the newest first."""
    texts = [(message.role, message.content) for message in reversed(window) if isinstance(message.content, str)]
    return tuple(text for _, text in sorted(texts, key=lambda each: each[0] != "user"))


def _beyond_summary(stored: StoredWindow, known: Sequence[Reference]) -> tuple[Reference, ...]:
    """Returns the results that have to be listed if the turns that made them do not fit. Those that the summary covers
    were listed with it. While the window holds all turns since, the list stays the same, for providers' caches.
    """
    if not (known and stored.is_whole):
        return tuple(known)
    in_window = {message.tool_call_id for message in stored.messages}
    return tuple(reference for reference in known if reference.tool_call_id in in_window)


def _inline(stored: _InStores, turn_id: str, *, max_bytes: int) -> dict[str, str]:
    """Returns the small successful results of ended turns by tool call: of each turn the first, up to `max_bytes`."""
    inline: dict[str, str] = {}
    room: dict[str, int] = {turn_id: 0}
    for message in stored.messages:
        if not isinstance(message.content, dict) or message.content["status"] != "succeeded":
            continue
        result = stored.kept.get(message.content["tool_call_id"])
        left = room.get(message.turn_id, max_bytes)
        if result is not None and result.content is not None and message.content["size_bytes"] <= left:
            room[message.turn_id] = left - message.content["size_bytes"]
            inline[message.content["tool_call_id"]] = result.shown_text()
    return inline


async def working_memory(
    database: Database, cache: Cache, session_id: str, *, message_count: int, ttl_s: int, now: datetime
) -> tuple[short_term.ShortTermMemory | None, int]:
    """Returns a session's short-term memory as its next turn would see it, and the seconds it has left."""
    last = await database.read(last_ended, session_id)
    if last is None:
        return None, 0
    memory = await short_term.read(cache, session_id, last_turn_id=last.turn_id)
    if memory is not None:
        return memory, await short_term.ttl_s(cache, session_id)
    async with database.read_only() as connection:
        results = await _known_results(connection, session_id)
        return await _rebuild(connection, session_id, last, results, message_count=message_count, ttl_s=ttl_s, now=now)


async def _known_results(connection: Connection, session_id: str) -> tuple[Reference, ...]:
    return short_term.merge_results(await recent_references(connection, session_id), ())


async def _rebuild(
    connection: Connection,
    session_id: str,
    last: Row[Any],
    results: tuple[Reference, ...],
    *,
    message_count: int,
    ttl_s: int,
    now: datetime,
) -> tuple[short_term.ShortTermMemory | None, int]:
    """Rebuilds from rows the memory that Redis would still hold. Returns `(None, 0)` if there is none or it expired."""
    left_s = int((last.finished_at + timedelta(seconds=ttl_s) - now).total_seconds())
    if left_s <= 0:
        return None, 0
    exchange = await last_exchange(connection, session_id)
    if exchange is None and not results:
        return None, 0
    opening, final = exchange or (None, None)
    return short_term.ShortTermMemory(session_id, last.turn_id, opening, final, message_count, results), left_s
