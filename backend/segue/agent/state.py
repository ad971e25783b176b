"""The state of a turn in the graph, plain data, and its constant context: identity, limits and live objects."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, TypedDict

from langchain_core.messages import BaseMessage
from sqlalchemy.ext.asyncio import AsyncConnection

from segue.agent.agent_settings import AgentSettings
from segue.agent.tool_choice import ToolChooser
from segue.db.engine import Asked, Loaded, Statements
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
StartCalls = Callable[
    [NewMessage, PlanStep | None, Mapping[str, Use], Mapping[str, CallEffect], WriteWithStart | None], Awaitable[None]
]


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

    async def transact(self, act: Statements[Asked, Loaded], *args: Asked.args, **named: Asked.kwargs) -> Loaded:
        """Returns what `act` does in one `transaction`: it gets a connection before its other arguments."""
        async with self.transaction() as connection:
            return await act(connection, *args, **named)

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


def carries_files(state: TurnState) -> bool:  # beside the sources that a frontend found
    return not all(each.is_source for each in state["files"])
