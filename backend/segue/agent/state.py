"""The state of a turn in the graph, plain data, and its constant context: identity, limits and live objects."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, TypedDict

from langchain_core.messages import BaseMessage

from segue.agent.agent_settings import AgentSettings
from segue.agent.tool_choice import ToolChooser
from segue.db.engine import Asked, Connection, Loaded, Statements
from segue.db.redis_keys import Cache
from segue.domain import session
from segue.domain.approval_rule import ApprovalRule
from segue.domain.errors import AppError
from segue.domain.events import Emit, SteerRead
from segue.domain.ids import Clock
from segue.domain.plan import Plan
from segue.domain.telemetry import OpenSpan
from segue.domain.tool import CallEffect, Reference, ToolCall, ToolContext, TurnEffect
from segue.domain.user_request import UserAnswer
from segue.language.detect_language import ENGLISH
from segue.memory.history import NewMessage
from segue.memory.short_term import ShortTermMemory
from segue.models.metered_model import MeteredModel
from segue.plans.acknowledgement import Acknowledgement, conversation_language
from segue.plans.mandates import Use
from segue.plans.policy import SearchDecision
from segue.plans.store import StoredPlan
from segue.tools.availability import ToolGuard
from segue.tools.results import LedgerCall, PlanStep
from segue.tools.run import CallOutcome


@dataclass(frozen=True, slots=True)
class StartedMessage:
    """A message whose first `chars` characters have been emitted, and whose end has not."""

    message_id: str
    chars: int  # without any, it has calls that were emitted while the model wrote them


@dataclass(frozen=True, slots=True)
class EarlierAttempt:
    """The stored part of a turn that was cut off: its calls, and the plan it made, decided or amended."""

    calls: tuple[LedgerCall, ...]
    plan: StoredPlan | None


class TurnInput(TypedDict):
    """The snapshot a turn starts from."""

    message: str  # the user's
    attachments: Mapping[str, CallOutcome]  # what reading the `files` comes to, by their ids
    files: Sequence[session.Attached]
    message_id: str  # of the user's message
    message_count: int  # stored messages of the session
    force_web_search: bool
    prompt: list[BaseMessage]  # system message, then history: it ends with the message, or what `earlier` added to it
    prompt_parts: tuple[session.PromptPart, ...]  # those before the user's message
    cut_off: int | None  # seq of the last turn that should go into the summary, if it is time for that
    memory: ShortTermMemory | None
    earlier_results: tuple[Reference, ...]  # references to the session's recent results, newest first
    facts: list[session.Memory]  # what is known of the user, oldest first
    open_plan: StoredPlan | None  # the session's
    decided_plan: StoredPlan | None  # the one whose button was pressed, if a button and not words is the message
    amends: bool  # the message was sent as a change of `shown_plan`, however it reads
    approves: bool  # a yes in the message may be one to what was asked before; in a program's none is
    shown_plan: tuple[str, int] | None  # id and version of the open plan when the message arrived
    answered_turn_id: str | None  # the turn that gave the session's last answer
    answered: str | None  # that answer, None if it came after the message
    language: str | None  # the session's, which is to be answered in
    language_texts: tuple[str, ...]  # texts that show which language it is otherwise, those that tell most first
    earlier: EarlierAttempt | None


class TurnState(TurnInput, total=False):
    """What the nodes add to the snapshot."""

    acknowledgement: Acknowledgement
    search: SearchDecision
    replied_to: tuple[str, int] | None  # the plan and version that the message answered
    cautious: bool  # the user's yes was weak, so that what changes the world asks first
    left_waiting: StoredPlan | None  # waits while the message is about something else
    touched_plan: StoredPlan | None  # that this turn made, advanced or ended
    plan_runs: bool  # the open steps of `touched_plan` are to run now
    asked_again: str | None  # why a step that the user approved waits for another yes
    note: str | None  # an instruction to the model for this turn only
    conversation: list[BaseMessage]  # what the model has been shown in this turn
    answer: str | None  # None until something answers
    started: StartedMessage | None  # the answer's message, if part of it was emitted already
    answer_id: str  # that the answer is stored under
    is_structured: bool  # the answer is JSON that fits the schema of the client
    postscript: str | None  # a text that follows the answer
    problem: AppError | None  # why the model gave no answer; at the end, why the service wrote it
    checked: dict[str, tuple[ToolCall, Reference] | None]  # by id, calls that have settled some of earlier turns
    tool_calls: list[ToolCall]  # that this turn made, in order
    references: list[Reference]  # to the results of these calls, newest first
    found: list[session.Source]  # what in these results has a title or an address
    effects: list[TurnEffect]  # what these calls changed or may have changed


Update = dict[str, Any]
WriteWithStart = Callable[[Connection], Awaitable[None]]
StartCalls = Callable[
    [NewMessage, PlanStep | None, Mapping[str, Use], Mapping[str, CallEffect], WriteWithStart | None], Awaitable[None]
]


@dataclass(frozen=True, slots=True)
class TurnContext:
    """The identity comes from the request, never from the model. `transaction` opens a short one that raises StaleTurn
    once another worker owns the turn, and so does `start_calls`, which stores calls before they run.
    """

    owner: str
    turn: session.TurnKey
    time_zone: str
    clock: Clock
    model: MeteredModel
    guard: ToolGuard
    agent: str  # id of the agent that answers
    agent_digest: str  # of that agent
    approvals: Sequence[ApprovalRule]  # the agent's rules about who approves
    options: session.TurnOptions  # what the client asked of the turn
    chooser: ToolChooser
    cache: Cache
    settings: AgentSettings
    transaction: Callable[[], AbstractAsyncContextManager[Connection]]
    start_calls: StartCalls
    is_steered: Callable[[], Awaitable[bool]]  # whether the user has said something to the turn since
    read_steers: Callable[[Connection], Awaitable[Sequence[SteerRead]]]  # adds that, in the caller's transaction
    emit: Emit  # takes an event, only after its commit
    span: OpenSpan
    has_listener: Callable[[], Awaitable[bool]]  # whether the turn has a follower who wants words as they come

    async def transact(self, act: Statements[Asked, Loaded], *args: Asked.args, **named: Asked.kwargs) -> Loaded:
        """Returns what `act` does in one `transaction`: it gets a connection before its other arguments."""
        async with self.transaction() as connection:
            return await act(connection, *args, **named)

    def caller(self, tool_call_id: str, answers: tuple[UserAnswer, ...] = ()) -> ToolContext:
        """Returns whom a call is for, as a tool and the policy are told; `answers` are to its earlier questions."""
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
    """Returns the language (ISO 639-1) in which the engine speaks. Detecting it takes half a millisecond."""
    return state["language"] or conversation_language(state["language_texts"]) or ENGLISH


def running_plan(state: TurnState) -> Plan | None:
    """Returns the plan whose open steps the turn runs."""
    return state["touched_plan"].plan if state["plan_runs"] and state["touched_plan"] else None


def carries_files(state: TurnState) -> bool:  # beside the sources that a frontend found
    return not all(each.is_source for each in state["files"])
