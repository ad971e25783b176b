"""Sessions, turns and messages, as the stores return them and the API sends them.

The field names are part of the HTTP API. Times are aware and in UTC.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from segue.domain.agent import DEFAULT_AGENT
from segue.domain.errors import AppError
from segue.domain.plan import Plan, UnreadablePlan
from segue.domain.tool import ToolCall, UnreadableCall

Role = Literal["user", "assistant", "tool"]
TurnStatus = Literal["queued", "running", "completed", "failed", "cancelled"]
Verdict = Literal["confirm", "reject", "amend", "none"]
Strength = Literal["strong", "weak"]
Rating = Literal["up", "down"]

EPOCHS = 1_000_000  # of a run: the epochs of the next one begin behind the next multiple


@dataclass(frozen=True, slots=True)
class TurnKey:
    """Identifies a turn; `turn_seq` is the seq of the user message that opened it. `run` counts from 0: a turn that
    failed for now is run again when it is asked for again, and has another event log then.
    """

    session_id: str
    turn_id: str
    turn_seq: int
    run: int = 0


@dataclass(frozen=True, slots=True)
class Session:
    """`title` is what the user gave it, or else how the first message begins."""

    id: str
    title: str | None
    agent: str
    language: str | None
    time_zone: str
    archived: bool
    pinned: bool
    metadata: dict[str, Any]
    created_at: datetime
    updated_at: datetime
    message_count: int
    running_turn_id: str | None
    pending_plan: Plan | UnreadablePlan | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreadableSession(Session):
    """A session whose metadata this release cannot read."""

    unreadable: Literal[True]


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundSession(Session):
    """`snippet` is the place in the title or in a message where what was searched for stands."""

    snippet: str


@dataclass(frozen=True, slots=True)
class RequestedCall:
    """A call as the assistant asked for it."""

    id: str
    name: str
    args: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Message:
    """A stored message. The content of a tool message is the reference to its result, never the result.

    `cut_off`: the user stopped the turn while the assistant said this. `branch` is the one it is in, None if it is in
    the history.
    """

    id: str
    seq: int
    turn_id: str
    role: Role
    content: str | dict[str, Any]
    created_at: datetime
    tool_calls: tuple[RequestedCall, ...] = ()
    tool_call_id: str | None = None
    cut_off: bool = False
    branch: str | None = None
    metadata: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreadableMessage(Message):
    """Stands for a row that this release cannot read. The model is not shown it."""

    unreadable: Literal[True]


@dataclass(frozen=True, slots=True)
class AcknowledgementReport:
    verdict: Verdict = "none"
    strength: Strength | None = None
    rule: str = "no_rule"
    language: str | None = None
    plan_id: str | None = None
    plan_version: int | None = None


@dataclass(frozen=True, slots=True)
class WebSearchReport:
    requested: bool = False
    performed: bool = False
    reason: str = "not_requested"


@dataclass(frozen=True, slots=True)
class MemoryReport:
    short_term: bool = False
    long_term: int = 0
    history_messages: int = 0
    tool_results: int = 0


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens as the provider counted them, or `estimated`; `duration_ms` from claim to finish.

    `cached_tokens` are part of the input, `reasoning_tokens` of the output. `cost` is in dollars, None if a model that
    was asked has no price.
    """

    llm_calls: int = 0
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0
    estimated: bool = False
    cost: float | None = None
    duration_ms: int = 0


@dataclass(frozen=True, slots=True)
class PromptPart:
    """A part of a request to the model. `cacheable` is one that stands before what changes with every message."""

    part: str
    tokens: int
    cacheable: bool


@dataclass(frozen=True, slots=True)
class PromptReport:
    """What a request to the model is made of, in its order, in tokens as the budget counts them."""

    parts: tuple[PromptPart, ...]
    tokens: int


@dataclass(frozen=True, slots=True)
class TurnReport:
    """What a completed turn's row holds; its message and tool calls have rows of their own.

    `agent` is the one that answered; `agent_gone` that of the session, if there was none of that name any more.
    `asked_again` is why a step that was approved waits for another yes. `prompt` is the last request to the model, None
    if the turn made none.
    """

    acknowledgement: AcknowledgementReport
    plan: Plan | None
    web_search: WebSearchReport
    memory_used: MemoryReport
    usage: Usage
    model: str
    agent: str | None = None
    agent_gone: str | None = None
    asked_again: str | None = None
    prompt: PromptReport | None = None


def answer_metadata(model: str, agent: str | None, agent_gone: str | None, asked_again: str | None) -> dict[str, Any]:
    """Returns what the message of an answer says of its turn. The default agent is not mentioned."""
    told = {"agent": agent if agent != DEFAULT_AGENT else None, "agent_gone": agent_gone, "asked_again": asked_again}
    return {"model": model} | {name: value for name, value in told.items() if value is not None}


@dataclass(frozen=True, slots=True)
class TurnError:
    """Why a turn failed or was cancelled, as the problem said; `extra` has the problem's own members."""

    code: str
    status: int
    title: str
    detail: str
    retryable: bool
    extra: Mapping[str, str | int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ChatAnswer:
    session_id: str
    turn_id: str
    status: Literal["completed"]
    message: Message
    acknowledgement: AcknowledgementReport
    plan: Plan | None
    tool_calls: tuple[ToolCall | UnreadableCall, ...]
    web_search: WebSearchReport
    memory_used: MemoryReport
    usage: Usage
    model: str


Outcome = ChatAnswer | AppError


@dataclass(frozen=True, slots=True)
class Turn:
    """How a turn stands. `attempts` counts the processes that have begun it, `started_at` is when the last one did.
    `prompt` is what a completed turn asked of the model last.
    """

    turn_id: str
    session_id: str
    status: TurnStatus
    attempts: int
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    error: TurnError | None
    prompt: PromptReport | None
    answer: ChatAnswer | None


@dataclass(frozen=True, slots=True)
class Feedback:
    """What a user thinks of an answer, as operators read it."""

    message_id: str
    session_id: str
    turn_id: str
    user: str
    rating: Rating
    comment: str | None
    created_at: datetime


@dataclass(frozen=True, slots=True)
class TurnSummary:
    """What a page of history shows of a turn. `acknowledgement` is None until the turn has completed."""

    turn_id: str
    status: TurnStatus
    acknowledgement: AcknowledgementReport | None
    plan_id: str | None
    tool_calls: tuple[ToolCall | UnreadableCall, ...]
    error: TurnError | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageOfTurn(Message):
    """A message that stands for its turn: the answer, or the user's message of a turn without one."""

    turn: TurnSummary
