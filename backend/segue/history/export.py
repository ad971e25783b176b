"""Exports a session without secrets, as a Recording for `segue replay` or as Markdown; also samples recordings.

Not every model call has a row: a planner's answer, a synthesis and a call that waits for a yes have none. A recording
has their outcomes, and a replay answers those calls from these.
"""

import asyncio
import hashlib
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, Final

from sqlalchemy import Row

from segue.agent import plan_messages
from segue.db.engine import Connection, Database
from segue.domain import recording
from segue.domain.agent import DEFAULT_AGENT
from segue.domain.errors import AppError, app_error
from segue.domain.ids import Clock
from segue.domain.plan import Plan, decision_of
from segue.domain.redaction import secrets_in, without, without_secret_texts, without_secrets
from segue.domain.session import Message, Session, TurnReport
from segue.domain.tool import Tool, ToolCall, canonical_args
from segue.language.shown_call import TRANSLATIONS
from segue.log import log
from segue.memory.history import BY_PROGRAM, STEERED, list_messages
from segue.memory.session_store import get_session, those_there
from segue.plans.policy import WEB_SEARCH
from segue.plans.store import StoredPlan, list_plans
from segue.tools.availability import ToolAvailability
from segue.tools.results import StoredResult, list_calls, load_results
from segue.turns.chat_request import TurnRequest, request_of
from segue.turns.queries import ended_turns, report_of, status_of

MAX_MESSAGES = 20_000
MAX_RESULTS_BYTES = 10_000_000  # of all results together: each is searched for secrets
READ_BY_MODEL = "model_"  # the prefix of the rule in a verdict that a model gave
MAX_ARGS_CHARS = 300
MAX_FILE_BYTES: Final = 2_000_000  # of a sample: a longer session stays as it was recorded last
MAX_FILES: Final = 500  # the oldest go first
MAX_SAMPLED_BYTES: Final = 20_000  # of a result
SAMPLE_EVERY_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class StoredConversation:
    """The rows of a session's ended turns. `results` are by tool call id, without those `too_large`."""

    session: Session
    turns: Sequence[Row[Any]]
    messages: Mapping[str, list[Message]]
    calls: Mapping[str, ToolCall]
    results: Mapping[str, StoredResult]
    too_large: frozenset[str]
    plans: Sequence[Plan]


async def load_conversation(
    connection: Connection, owner: str, session_id: str, *, max_result_bytes: int, now: datetime
) -> StoredConversation:
    """Raises NotFound for a missing or foreign session, AppError `nothing_to_export`, `conversation_too_long`."""
    session = await get_session(connection, owner, session_id)
    rows = await ended_turns(connection, session_id)
    if not rows:
        raise app_error("nothing_to_export")
    messages: dict[str, list[Message]] = {row.id: [] for row in rows}
    stored = await list_messages(connection, owner, session_id, after=0, limit=MAX_MESSAGES + 1)
    if len(stored) > MAX_MESSAGES:
        raise app_error("conversation_too_long", at_most=MAX_MESSAGES)
    for message in stored:
        messages.get(message.turn_id, []).append(message)
    calls = await list_calls(connection, owner, session_id, limit=MAX_MESSAGES)
    fitting = _within(calls, max_result_bytes)
    return StoredConversation(
        session=session,
        turns=[row for row in rows if messages[row.id]],  # an edit may have taken a turn out between the statements
        messages=messages,
        calls={call.tool_call_id: call for call in calls},
        results=await load_results(connection, session_id, fitting, now=now),
        too_large=frozenset(call.tool_call_id for call in calls) - set(fitting),
        plans=await list_plans(connection, owner, session_id, before=None, limit=MAX_MESSAGES),
    )


def make_recording(
    conversation: StoredConversation,
    tools: Mapping[str, Tool],
    settings: recording.RecordedSettings,
    *,
    offered: Collection[str] = (),
) -> recording.Recording:
    """`offered` tools are defined in it even if none was called. Call it in a thread: it may take long."""
    recorder = _Recorder(conversation)
    recorded = [recorder.turn(row) for row in conversation.turns]
    members = recording.Recording(
        format="segue-recording",
        version=recording.VERSION,
        title=conversation.session.title,
        agent=None if conversation.session.agent == DEFAULT_AGENT else conversation.session.agent,
        language=conversation.session.language,
        time_zone=conversation.session.time_zone,
        metadata=conversation.session.metadata,
        settings=settings,
        tools=tuple(_definitions(recorded, tools, offered)),
        turns=tuple(recorded),
    ).model_dump(mode="json")
    definitions = {"tools": without_secret_texts(members.pop("tools"))}
    repeated = [secret for secret in secrets_in(members) if not any(secret in name for name in tools)]
    return recording.Recording.model_validate(without(without_secrets(members) | definitions, repeated))


@dataclass(slots=True)
class _Recorder:
    """Goes through the turns in order. `numbers` counts plans by id, `standing` is the plan that was touched last."""

    conversation: StoredConversation
    numbers: dict[str, int] = field(default_factory=dict)
    standing: Plan | None = None

    def turn(self, row: Row[Any]) -> recording.RecordedTurn:
        opening, *rest = self.conversation.messages[row.id]
        request, report, status = request_of(row.request, row.id), report_of(row), status_of(row)
        # A failed turn has no report, but may have made a plan.
        plans = (plan for plan in self.conversation.plans if plan.origin_message_id == opening.id)
        plan = report.plan if report else next(plans, None)
        decided = decision_of(opening.content) if request and request.decided_plan_id else None
        answer = str(rest.pop().content) if rest and status == "completed" else None
        turn = recording.RecordedTurn(
            message=str(opening.content),
            decision="amend" if request and request.amends else decided,
            args=self._typed(request, plan) if request and request.args_changed else None,
            remember=request.remember if request else None,
            force_web_search=request is not None and request.force_web_search,
            approves=BY_PROGRAM not in opening.metadata,
            rounds=tuple(_rounds(rest, self.conversation, report, opening)),
            plan=self._numbered(plan) if plan else None,
            status="failed" if status in ("queued", "running") else status,
            answer=answer,
            said=_models_part(answer, plan, self.standing, self.conversation.session.id),
            **_reported(report),
        )
        self.standing = plan or self.standing
        return turn

    def _typed(self, request: TurnRequest, plan: Plan | None) -> dict[str, Any] | None:
        """Returns the arguments that the step has since, which waited with others."""
        if self.standing is None or self.standing.waiting_step is None:
            return None
        stored = (each for each in self.conversation.plans if each.id == request.decided_plan_id)
        decided, waited = plan or next(stored, None), self.standing.waiting_step.id
        return next((step.args for step in decided.steps if step.id == waited), None) if decided else None

    def _numbered(self, plan: Plan) -> recording.RecordedPlan:
        return recording.RecordedPlan(
            number=self.numbers.setdefault(plan.id, len(self.numbers) + 1),
            version=plan.version,
            status=plan.status,
            steps=tuple(recording.RecordedStep.model_validate(step, from_attributes=True) for step in plan.steps),
        )


def _rounds(
    messages: Iterable[Message], conversation: StoredConversation, report: TurnReport | None, opening: Message
) -> Iterable[recording.Round]:
    """Returns the rounds of the turn. Unreadable messages are left out."""
    references = {message.tool_call_id: message.content for message in messages if isinstance(message.content, dict)}
    spoken = [message for message in messages if message.role != "tool"]
    for index, message in enumerate(spoken):
        if message.role == "user":
            yield recording.Round(by="user", text=str(message.content))
            continue
        ledger = [conversation.calls[call.id] for call in message.tool_calls if call.id in conversation.calls]
        if not ledger or ledger[0].plan_id:
            by = "plan"
        elif index == 0 and _was_searched_first(report, ledger, str(opening.content)):
            by = "search"
        else:
            by = "model"
        calls = (_call(call, conversation, references.get(call.tool_call_id)) for call in ledger)
        yield recording.Round(by=by, text=str(message.content), calls=tuple(calls))


def _call(call: ToolCall, conversation: StoredConversation, reference: Any) -> recording.RecordedCall:
    """A result that is not stored is replaced by its reference, which names what later calls may need."""
    status = "unknown" if call.status == "running" else call.status
    recorded = recording.RecordedCall(tool=call.tool_name, args=call.args, status=status, error=call.error)
    if kept := conversation.results.get(call.tool_call_id):
        return recorded.model_copy(update={"result": kept.shown()})
    if call.metadata.size_bytes == 0 or reference is None:
        return recorded
    shown = {name: reference[name] for name in ("summary", "preview", "identifiers") if name in reference}
    omitted = "too_large" if call.tool_call_id in conversation.too_large else "expired"
    return recorded.model_copy(update={"result": shown, "omitted": omitted})


def _was_searched_first(report: TurnReport | None, ledger: Sequence[ToolCall], message: str) -> bool:
    if report is None or report.web_search.reason not in {"asked_for", "forced", "failed"} or len(ledger) != 1:
        return False
    return (ledger[0].tool_name, ledger[0].args) == (WEB_SEARCH, {"query": message.strip()})


def _models_part(answer: str | None, plan: Plan | None, standing: Plan | None, session_id: str) -> str | None:
    """Returns the model's part of an answer that has words of the engine in it; None if all of it is the model's."""
    if answer is None:
        return None
    if plan and standing and (notice := _ending(answer, partial(plan_messages.superseded, standing))):
        answer = answer.removesuffix(f"\n\n{notice}")
    if plan is not None and plan.waiting_step is not None:
        openings = (plan_messages.opening(plan, language) for language in TRANSLATIONS.now)
        return next((answer[: answer.rfind(opening)].rstrip() for opening in openings if opening in answer), "")
    waiting = StoredPlan(standing, session_id) if standing else None
    tell = partial(plan_messages.ended, plan) if plan else waiting and partial(plan_messages.still_waiting, waiting)
    ending = _ending(answer, tell) if tell else ""
    return answer.removesuffix(f"\n\n{ending}") if ending and answer != ending else None


def _ending(answer: str, tell: Callable[[str], str]) -> str:
    """Returns the engine's words at the end of an answer, in whatever language they are; "" if there are none."""
    return next((ending for ending in map(tell, TRANSLATIONS.now) if ending and answer.endswith(ending)), "")


def _reported(report: TurnReport | None) -> dict[str, Any]:
    """Returns how the message was read, also by the model if the rules could not read it, and the usage of its calls:
    None if no tokens were counted, as for the offline model.
    """
    if report is None:
        return {}
    read, used = report.acknowledgement, report.usage
    return {
        "acknowledgement": recording.RecordedAcknowledgement.model_validate(read, from_attributes=True),
        "reading": read.rule.removeprefix(READ_BY_MODEL) if read.rule.startswith(READ_BY_MODEL) else None,
        "usage": recording.RecordedUsage.model_validate(used, from_attributes=True) if used.input_tokens else None,
    }


def _definitions(
    recorded: Iterable[recording.RecordedTurn], tools: Mapping[str, Tool], offered: Collection[str]
) -> Iterable[recording.RecordedTool]:
    """Returns the tools offered, called or planned, and those they depend on. A deleted one takes any arguments."""
    called = {(call.tool, call.status) for turn in recorded for call in turn.calls}
    planned = {step.tool for turn in recorded if turn.plan for step in turn.plan.steps if step.tool}
    names, known = [*offered, *(name for name, _ in called), *planned], set[str]()
    while names:
        name = names.pop()
        if name in known:
            continue
        known.add(name)
        if name in tools:
            names += [member for group in tools[name].spec.depends_on for member in (*group.tools, *group.optional)]
    for name in sorted(known):
        if name in tools:
            yield recording.RecordedTool.model_validate(tools[name].spec, from_attributes=True)
        elif (name, "succeeded") in called:
            yield recording.RecordedTool(name=name, input_schema={"type": "object"})


def _within(calls: Iterable[ToolCall], max_result_bytes: int) -> list[str]:
    """Returns the calls whose results are recorded: none too large, oldest first up to MAX_RESULTS_BYTES."""
    left, fitting = MAX_RESULTS_BYTES, []
    for call in reversed(list(calls)):
        size = call.metadata.size_bytes
        if 0 < size <= min(max_result_bytes, left):
            left -= size
            fitting.append(call.tool_call_id)
    return fitting


def as_markdown(conversation: StoredConversation) -> str:
    """Takes long for a long conversation: call it in a thread."""
    session = conversation.session
    parts = [f"# {session.title or 'Conversation'}", f"{session.created_at:%Y-%m-%d %H:%M} UTC"]
    for row in conversation.turns:
        for message in conversation.messages[row.id]:
            parts += _shown(message, conversation)
    return str(without_secret_texts("\n\n".join(parts))) + "\n"


def _shown(message: Message, conversation: StoredConversation) -> Iterator[str]:
    if message.role == "tool":
        return
    decision = decision_of(message.content) if message.role == "user" else None
    text = f"({decision})" if decision else str(message.content)
    meanwhile = " (meanwhile)" if STEERED in message.metadata else ""
    yield f"## {message.role.capitalize()}, {message.created_at:%Y-%m-%d %H:%M}{meanwhile}"
    if files := message.metadata.get("attachments"):
        lines = (f"- `` {_plain(each['name'])} `` ({each['media_type']}, {each['size_bytes']} bytes)" for each in files)
        yield "\n".join(lines)
    if text:
        yield f"{text} […]" if message.cut_off else text
    calls_made = (conversation.calls[call.id] for call in message.tool_calls if call.id in conversation.calls)
    if calls := "\n".join(map(_line, calls_made)):
        yield calls


def _line(call: ToolCall) -> str:
    """Returns a call as a line of code, so that nothing in arguments and results is read as Markdown."""
    args = canonical_args(call.args)
    args = args if len(args) <= MAX_ARGS_CHARS else f"{args[:MAX_ARGS_CHARS]}…"
    return f"- `` {_plain(f'{call.tool_name} {args}: {call.status}. {call.metadata.summary}')} ``"


def _plain(text: str) -> str:
    return " ".join(text.replace("`", "'").split())


@dataclass(frozen=True, slots=True)
class Samples:
    """Recordings of a share of the sessions, from 0 to 1, for `segue rehearse`. RECORD_SAMPLE is the consent to them. A
    session's id decides whether it is in the sample, in every process alike. The process that answered notes it, and
    writes its file in `folder` when it looks. It also drops recordings that left the sample, so that 0 empties it.
    """

    folder: Path
    share: float
    database: Database
    tools: ToolAvailability
    settings: recording.RecordedSettings
    clock: Clock
    due: dict[str, tuple[str, Collection[str]]] = field(default_factory=dict)

    def note(self, owner: str, groups: Collection[str], session_id: str) -> None:
        if self._is_in(session_id):
            self.due[session_id] = owner, groups

    def _is_in(self, session_id: str) -> bool:
        return int.from_bytes(hashlib.sha256(session_id.encode()).digest()[:6]) < self.share * 2**48

    async def look(self) -> None:
        work = [partial(self._write, *self.due.pop(session_id), session_id) for session_id in list(self.due)]
        for each in (*work, partial(self._drop)):
            try:
                await each()
            except (AppError, OSError) as error:
                log.warning("sample_failed", error=str(error))

    async def _write(self, owner: str, groups: Collection[str], session_id: str) -> None:
        """Writes a recording with every tool that was offered: another model may call others."""
        load = partial(load_conversation, max_result_bytes=MAX_SAMPLED_BYTES, now=self.clock())
        conversation = await self.database.read(load, owner, session_id)
        tools = self.tools.tools_for(owner, groups)
        offered = {name for name, tool in tools.items() if tool.spec.source != "builtin"}
        recorded = await asyncio.to_thread(make_recording, conversation, tools, self.settings, offered=offered)
        if len(text := recording.recording_text(recorded).encode()) <= MAX_FILE_BYTES:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # so that no other account reads them
            part = self.folder / f"{session_id}.{os.getpid()}"
            part.write_bytes(text)
            part.replace(part.with_suffix(".json"))

    async def _drop(self) -> None:
        files = sorted(self.folder.glob("ses_*"), key=lambda file: file.stat().st_mtime)
        there = await self.database.read(those_there, [file.stem for file in files])
        kept = [file for file in files if file.stem in there and self._is_in(file.stem)][-MAX_FILES:]
        for file in set(files).difference(kept):
            file.unlink(missing_ok=True)
