"""The state of a turn in the graph: plain data, every key declared, and what is reported of it, the sources of the
answer among it. And its context, which never changes: identity, limits, and the live objects that nodes use.
"""

import re
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Protocol, TypedDict

from langchain_core.messages import BaseMessage
from sqlalchemy.ext.asyncio import AsyncConnection

from segue.agent.agent_settings import AgentSettings
from segue.agent.tool_choice import ToolChooser
from segue.db.redis import Cache
from segue.domain import session
from segue.domain.approval_rule import ApprovalRule
from segue.domain.errors import AppError
from segue.domain.events import Emit, SteerRead
from segue.domain.ids import Clock
from segue.domain.plan import NOT_CHOSEN, Plan
from segue.domain.telemetry import OpenSpan
from segue.domain.tool import CallEffect, EffectOutcome, Reference, Tool, ToolCall, ToolContext, TurnEffect
from segue.domain.user_request import UserAnswer
from segue.language.detect_language import ENGLISH
from segue.memory.history import NewMessage
from segue.memory.short_term import ShortTermMemory
from segue.models.metered_model import MeteredModel
from segue.plans.acknowledgement import Acknowledgement, conversation_language
from segue.plans.mandates import Use
from segue.plans.policy import WEB_SEARCH, SearchDecision, SearchReason
from segue.plans.store import StoredPlan
from segue.tools.availability import ToolGuard
from segue.tools.results import LedgerCall, PlanStep
from segue.tools.run import CallOutcome
from segue.tools.summaries import place_of

MAX_SOURCES = 50
MAX_CITING_CHARS = 100_000  # of an answer
MIN_TITLE_CHARS = 8  # shorter ones are words like others
MIN_ID_CHARS = 6


@dataclass(frozen=True, slots=True)
class StartedMessage:
    """A message whose first `chars` characters have been emitted, and whose end has not. One without any has calls that
    were emitted while the model wrote them.
    """

    message_id: str
    chars: int


@dataclass(frozen=True, slots=True)
class EarlierAttempt:
    """What is stored of a turn that was cut off: its calls, and the plan it made, decided or amended."""

    calls: tuple[LedgerCall, ...]
    plan: StoredPlan | None


class TurnInput(TypedDict):
    """The snapshot a turn starts from.

    message, message_id: the user's message. `message_count` counts the session's stored messages.
    attachments: what reading the message's `files` comes to, by their ids.
    prompt: what the model is shown: the system message, then the history, which ends with the user's message or with
        what an `earlier` attempt has added to it.
    prompt_parts: the parts of it before the user's message.
    cut_off: the seq of the last turn that should go into the summary, if it is time for that.
    earlier_results: references to the session's recent results, newest first.
    facts: what is known of the user, oldest first.
    open_plan: the session's open plan; `shown_plan` is its id and version when the message arrived.
    decided_plan: the plan whose button was pressed, if a button and not words is the message.
    amends: the message was sent as a change of `shown_plan`, however it reads.
    approves: a yes in it may be one to what was asked before; in a program's message none is.
    answered_turn_id: the turn that gave the session's last answer.
    answered: that answer, None if it came after the message.
    language: the session's, which is to be answered in; `said` are the texts that show which it is otherwise, those
        that tell most first.
    """

    message: str
    attachments: Mapping[str, CallOutcome]
    files: Sequence[session.Attached]
    message_id: str
    message_count: int
    force_web_search: bool
    prompt: list[BaseMessage]
    prompt_parts: tuple[session.PromptPart, ...]
    cut_off: int | None
    memory: ShortTermMemory | None
    earlier_results: tuple[Reference, ...]
    facts: list[session.Memory]
    open_plan: StoredPlan | None
    decided_plan: StoredPlan | None
    amends: bool
    approves: bool
    shown_plan: tuple[str, int] | None
    answered_turn_id: str | None
    answered: str | None
    language: str | None
    said: tuple[str, ...]
    earlier: EarlierAttempt | None


class TurnState(TurnInput, total=False):
    """What the nodes add.

    replied_to: the plan and version that the message answered.
    cautious: the user's yes was weak, so that what changes the world asks first.
    left_waiting: the plan that waits while the message is about something else.
    touched_plan: the plan this turn made, advanced or ended; `plan_runs` says that its open steps are to run now.
    note: an instruction to the model for this turn only.
    conversation: what the model has been shown in this turn.
    asked_again: why a step that the user approved waits for another yes.
    answer: None until something answers; `started` is its message if part of it was emitted already, `answer_id` the
        id it is stored under, `postscript` a text that follows it. It `is_structured` if it is JSON that fits the
        schema of the client. `problem` is why the model gave none: at the end, why the service wrote it.
    checked: by their ids, the calls that have settled some of earlier turns.
    tool_calls, references: the calls this turn made, in order, and the references to their results, newest first.
    found: what in these results has a title or an address.
    effects: what these calls changed or may have changed.
    """

    acknowledgement: Acknowledgement
    search: SearchDecision
    replied_to: tuple[str, int] | None
    cautious: bool
    left_waiting: StoredPlan | None
    touched_plan: StoredPlan | None
    plan_runs: bool
    asked_again: str | None
    note: str | None
    conversation: list[BaseMessage]
    answer: str | None
    started: StartedMessage | None
    answer_id: str
    is_structured: bool
    postscript: str | None
    problem: AppError | None
    checked: dict[str, tuple[ToolCall, Reference] | None]
    tool_calls: list[ToolCall]
    references: list[Reference]
    found: list[session.Source]
    effects: list[TurnEffect]


Update = dict[str, Any]


WriteWithStart = Callable[[AsyncConnection], Awaitable[None]]


class StartCalls(Protocol):
    """Stores a message and its calls; `also` is written in the same transaction. Those that run `under` a mandate are
    booked in it. `effects` has by id those of calls that may have one. Raises MandateSpent.
    """

    async def __call__(
        self,
        message: NewMessage,
        *,
        step: PlanStep | None = None,
        under: Mapping[str, Use] = MappingProxyType({}),
        effects: Mapping[str, CallEffect] = MappingProxyType({}),
        also: WriteWithStart | None = None,
    ) -> None: ...


@dataclass(frozen=True, slots=True)
class TurnContext:
    """The identity comes from the request, never from the model.

    `transaction` opens a short transaction that raises StaleTurn once another worker owns the turn, and so does
    `start_calls`, which stores calls before they run. `emit` takes an event, only after its commit. `is_steered`
    returns whether the user has said something to the turn since, and `read_steers` makes it part of the turn, in the
    caller's transaction. `has_listener` returns whether the turn has a follower who wants words as they come.
    `agent` is the id of the agent that answers, and `agent_digest` is its own. `options` are what the client asked of
    the turn. `approvals` are the agent's rules about who approves.
    """

    owner: str
    turn: session.TurnKey
    time_zone: str
    clock: Clock
    model: MeteredModel
    guard: ToolGuard
    agent: str
    agent_digest: str
    approvals: Sequence[ApprovalRule]
    options: session.TurnOptions
    chooser: ToolChooser
    cache: Cache
    settings: AgentSettings
    transaction: Callable[[], AbstractAsyncContextManager[AsyncConnection]]
    start_calls: StartCalls
    is_steered: Callable[[], Awaitable[bool]]
    read_steers: Callable[[AsyncConnection], Awaitable[Sequence[SteerRead]]]
    emit: Emit
    span: OpenSpan
    has_listener: Callable[[], Awaitable[bool]]

    def caller(self, tool_call_id: str, answers: tuple[UserAnswer, ...] = ()) -> ToolContext:
        """Returns what a tool, and the policy, is told of who a call is for; `answers` are to what it asked before."""
        return ToolContext(
            owner=self.owner,
            session_id=self.turn.session_id,
            turn_id=self.turn.turn_id,
            tool_call_id=tool_call_id,
            now=self.clock(),
            time_zone=self.time_zone,
            agent=self.agent,
            answers=answers,
            groups=self.guard.groups,
        )


def language_of(state: TurnState) -> str:
    """Returns the language (ISO 639-1) in which the engine speaks. To tell it takes half a millisecond."""
    return state["language"] or conversation_language(state["said"]) or ENGLISH


def running_plan(state: TurnState) -> Plan | None:
    """Returns the plan whose open steps the turn runs."""
    return state["touched_plan"].plan if state["plan_runs"] and state["touched_plan"] else None


def acknowledgement_report(state: TurnState) -> session.AcknowledgementReport:
    """Returns how the message was read. Complete only after the plan node has seen what it answers."""
    read, (plan_id, version) = state["acknowledgement"], state.get("replied_to") or (None, None)
    return session.AcknowledgementReport(
        read.verdict, read.strength, rule=read.rule, language=read.language, plan_id=plan_id, plan_version=version
    )


def web_search_report(state: TurnState) -> session.WebSearchReport:
    """Returns whether a search was asked for and made, and why or why not. Complete only after the tool loop."""
    search = state["search"]
    ended = [call.status == "succeeded" for call in state.get("tool_calls", []) if call.tool_name == WEB_SEARCH]
    reason: SearchReason = search.reason
    if any(ended):
        plan = running_plan(state)
        is_planned = plan is not None and any(step.tool == WEB_SEARCH for step in plan.steps)
        reason = search.reason if search.search else "plan" if is_planned else "model"
    elif search.search:
        reason = "failed" if ended else "offered"
    return session.WebSearchReport(requested=state["force_web_search"], performed=any(ended), reason=reason)


def held_of(state: TurnState, tools: Mapping[str, Tool]) -> tuple[TurnEffect, ...]:
    """Returns the steps of the turn's plan that wait for a yes to change something, and those the user said no to. What
    waits for the client's page asks the user nothing.
    """
    plan = state["touched_plan"].plan if state["touched_plan"] else None
    held = []
    for step in plan.steps if plan and not plan.page_steps else ():
        is_over = step.requires_confirmation and plan is not None and plan.status == "cancelled"
        is_denied = step.status == "skipped" and (is_over or step.error == NOT_CHOSEN)
        spec = tools[step.tool].spec if step.tool and step.tool in tools else None
        if step.tool and (is_denied or step.status == "waiting") and (spec is None or spec.effect != "read_only"):
            outcome: EffectOutcome = "denied" if is_denied else "waits"
            title = (spec.title or spec.original_name) if spec else ""
            held.append(TurnEffect(None, step.tool, title or step.tool, step.args or {}, outcome))
    return tuple(held)


def carries_files(state: TurnState) -> bool:  # beside the sources that a frontend found
    return not all(each.is_source for each in state["files"])


def sources_of(state: TurnState) -> tuple[session.Source, ...]:
    """Returns what the answer rests on: the message's files, then, in the order of the text, what it names of results
    by an address, a title or an identifier; if it names none, the pages that were read for it. A turn without files and
    results costs nothing.
    """
    results = (*state.get("references", ()), *state["earlier_results"])
    if state.get("problem") or not (state["files"] or results):
        return ()
    answer = (state["answer"] or "")[:MAX_CITING_CHARS]
    named = sorted(_named(answer, state.get("found", ()), results), key=lambda each: each[0])
    read = [each for each in state.get("found", ()) if each.url and each.part is None]
    used = [each for _, each in named] or read
    distinct = dict[object, session.Source]()
    for each in used:
        distinct.setdefault(each.url or (each.tool_call_id, each.part), each)
    return _numbered(answer, [*_files(state), *distinct.values()][:MAX_SOURCES])


def _files(state: TurnState) -> Iterator[session.Source]:
    calls = state.get("tool_calls", ())
    made = {call.args.get("attachment_id"): call for call in calls if call.tool_name == session.READ_ATTACHMENT}
    for file in state["files"]:
        if file.mark != session.LEFT_OUT and file.id in made and made[file.id].status == "succeeded":
            yield session.Source((file.mark or "").strip("[]"), file.name, tool_call_id=made[file.id].tool_call_id)


def _named(
    answer: str, found: Sequence[session.Source], results: Sequence[Reference]
) -> Iterator[tuple[int, session.Source]]:
    """Yields where in the answer each source is named first, and the source."""
    folded, cited = answer.casefold(), set[str | None]()
    for each in found:
        at = place_of(each.url, answer) if each.url else None
        if at is None and len(each.title) >= MIN_TITLE_CHARS:
            at = place_of(each.title.casefold(), folded)
        if at is not None:
            cited |= {each.url, each.tool_call_id}
            yield at, each
    for result in results:
        is_page = {text: text.startswith(("http://", "https://")) for text in result.identifiers}
        for text in sorted(is_page, key=is_page.__getitem__, reverse=True):
            url = text if is_page[text] else None
            if len(text) < MIN_ID_CHARS or (url or result.tool_call_id) in cited:
                continue
            if (at := place_of(text, answer)) is not None:
                cited |= {url, result.tool_call_id}
                yield at, session.Source("", url or result.summary, url, result.tool_call_id)


def _numbered(answer: str, sources: Sequence[session.Source]) -> tuple[session.Source, ...]:
    """Gives each source without a mark the number of its link in the text, or the next one that is free."""
    ids = {each.id for each in sources}
    numbered = []
    for each in sources:
        made = each.url and re.search(rf"\[(\d{{1,3}})\]\({re.escape(each.url)}", answer)
        free = (str(number) for number in range(1, len(sources) + len(ids) + 1) if str(number) not in ids)
        number = each.id or (made[1] if made and made[1] not in ids else next(free))
        ids.add(number)
        numbered.append(replace(each, id=number))
    return tuple(numbered)
