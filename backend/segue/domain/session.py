"""Sessions, turns, messages, files, facts. Field names are part of the HTTP API; times are aware and in UTC."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import datetime
from typing import Annotated, Any, Final, Literal

import orjson

from segue.domain.agent import DEFAULT_AGENT
from segue.domain.errors import AppError, app_error
from segue.domain.field_types import IsUnreadable, doc
from segue.domain.plan import Plan, UnreadablePlan
from segue.domain.tool import ToolCall, TurnEffect, UnreadableCall
from segue.domain.visible import whole_before

Role = Literal["user", "assistant", "tool"]
TurnStatus = Literal["queued", "running", "completed", "failed", "cancelled"]
Verdict = Literal["confirm", "reject", "amend", "none"]
Strength = Literal["strong", "weak"]
Rating = Literal["up", "down"]

WRITTEN_BY: Final = "written_by"
OF_SERVICE = (WRITTEN_BY, "problem")
REASONING: Final = "reasoning"
# By the message of an answer.
SHOWN_OF_REPORT = ("model", "agent", "agent_gone", "asked_again", "finish_reason", REASONING, *OF_SERVICE)
EPOCHS = 1_000_000  # of a run: the epochs of the next one begin behind the next multiple
READ_ATTACHMENT: Final = "read_attachment"  # the tool that a file's text is the result of; only the engine calls it
MAKE_IMAGE: Final = "make_image"  # the same of an image that a model has made
MAX_ATTACHMENTS: Final = 10  # of a message
LEFT_OUT: Final = "[…]"
LONGEST_MESSAGE: Final = 100_000  # characters, whatever MAX_MESSAGE_CHARS is
SHOWN_BYTES: Final = 4000  # of the text of each, in the turn that it comes with
MAX_CONTENT_CHARS = 500
MAX_TITLE_WORDS_CHARS = 60
MIN_IMPORTANCE, MAX_IMPORTANCE = 1, 5
EXPLICIT_IMPORTANCE = 4  # of a fact that the user asked to have remembered


@dataclass(frozen=True, slots=True)
class TurnKey:
    """Identifies a turn."""

    session_id: str
    turn_id: str
    turn_seq: int  # the seq of the user message that opened it
    run: int = 0  # from 0: a turn that failed for now runs again when asked for again, with another event log


def turn_key(session_id: str, row: Any) -> TurnKey:
    """Returns the key of a row that has the columns `id`, `seq` and `epoch` of `turns`."""
    return TurnKey(session_id, row.id, row.seq, row.epoch // EPOCHS)


def turn_steered(reader: TurnKey) -> AppError:
    """Returns how a turn ends whose message another turn has read."""
    return app_error("turn_steered", extra=asdict(reader))


def reader_of(extra: Mapping[str, str | int]) -> TurnKey:
    return TurnKey(str(extra["session_id"]), str(extra["turn_id"]), int(extra["turn_seq"]), int(extra["run"]))


@dataclass(frozen=True, slots=True)
class TurnOptions:
    """What a client asks of one turn beside its message; a default stands for what it does not say."""

    output_schema: str | None = None  # of the answer, as JSON text: JSONB would not keep the order a model writes it in
    stop: tuple[str, ...] = ()  # this and the next two are of the model's calls for the answer
    max_tokens: int | None = None
    temperature: float | None = None
    instructions: str | None = None  # go behind the agent's own
    model: str | None = None  # in the place of the agent's
    page_tools: str | None = None  # those that the client runs itself, as JSON text for the same reason
    page: str | None = None  # what the client's page says of itself

    @property
    def given(self) -> dict[str, Any]:
        """Those that the client names, by name."""
        members = {each.name: getattr(self, each.name) for each in fields(self)}
        return {name: value for name, value in members.items() if value not in (None, ())}

    @property
    def sampling(self) -> dict[str, Any]:
        """What goes to the model with a request for its answer."""
        return {name: value for name, value in self.given.items() if name in ("temperature", "max_tokens")}

    @property
    def fingerprint(self) -> tuple[str, ...]:
        """What has to be the same in a request that comes again. Options that a later release adds change none."""
        return (f"options {orjson.dumps(self.given).decode()}",) if self.given else ()


NO_OPTIONS: Final = TurnOptions()


@dataclass(frozen=True, slots=True)
class Session:
    """A conversation of a user with an agent."""

    id: Annotated[str, doc("Begins with `ses_`.")]
    title: Annotated[str | None, doc("What the user called it, else how the first message begins, else null.")]
    agent: Annotated[str, doc("The id of the agent that answers.")]
    language: Annotated[str | None, doc("The tag of the language to answer in; null for the user's own.")]
    time_zone: Annotated[str, doc("The IANA name of the zone that times are read and said in.")]
    archived: Annotated[bool, doc("Whether `GET /sessions` lists it only with `archived=true`.")]
    pinned: Annotated[bool, doc("Whether the user has marked it.")]
    metadata: Annotated[dict[str, Any], doc("What the client keeps with it. The agent does not see it.")]
    created_at: Annotated[datetime, doc("When it was made.")]
    updated_at: Annotated[datetime, doc("When something last happened in it.")]
    message_count: Annotated[int, doc("How many messages its history has, those of tools too.")]
    running_turn_id: Annotated[str | None, doc("The turn that runs, if one does.")]
    pending_plan: Annotated[Plan | UnreadablePlan | None, doc("The plan that is open.")] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreadableSession(Session):
    """A session whose metadata this release cannot read."""

    unreadable: IsUnreadable


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundSession(Session):
    """A session that a search found."""

    snippet: Annotated[str, doc("The place in the title or in a message where what was searched for stands.")]
    message_id: Annotated[str | None, doc("That message; null if it stands in the title.")]


def first_words(message: str) -> str:
    """Returns a title for a session that begins with this message: whole words, if it has any that are short enough."""
    title = " ".join(message[: 4 * MAX_TITLE_WORDS_CHARS].split())
    if len(title) <= MAX_TITLE_WORDS_CHARS:
        return title
    cut = title[: whole_before(title, MAX_TITLE_WORDS_CHARS - 1)]
    words = cut.rpartition(" ")[0]
    return f"{words if len(words) > MAX_TITLE_WORDS_CHARS // 2 else cut}…"


@dataclass(frozen=True, slots=True)
class RequestedCall:
    """A call as the assistant asked for it."""

    id: Annotated[str, doc("The tool_call_id, which begins with `call_`.")]
    name: Annotated[str, doc("The tool's name.")]
    args: Annotated[dict[str, Any], doc("What the tool is called with.")]


@dataclass(frozen=True, slots=True)
class Source:
    """What an answer rests on: a page, a file, or a result of a tool or a part of it."""

    id: Annotated[str, doc("Its number: that of its mark in the text, `[1]`, if it has one there.")]
    title: Annotated[str, doc("What it is called.")]
    url: Annotated[str | None, doc("The address of a page.")] = None
    tool_call_id: Annotated[str | None, doc("The result that it is in.")] = None
    part: Annotated[str | None, doc("Where in that, as the `path` of a tool result.")] = None


@dataclass(frozen=True, slots=True)
class Message:
    """A stored message."""

    id: Annotated[str, doc("Begins with `msg_`.")]
    seq: Annotated[int, doc("Its place in the session, from 1. Never used twice.")]
    turn_id: Annotated[str, doc("The turn it is part of.")]
    role: Annotated[Role, doc("Who says it.")]
    content: Annotated[str | dict[str, Any], doc("The text; of a tool's message the reference to its result.")]
    created_at: Annotated[datetime, doc("When it was stored.")]
    tool_calls: Annotated[tuple[RequestedCall, ...], doc("What the assistant asks tools to do.")] = ()
    tool_call_id: Annotated[str | None, doc("Of a tool's message: the call it answers.")] = None
    cut_off: Annotated[bool, doc("Whether the user stopped the turn while the assistant said this.")] = False
    branch: Annotated[str | None, doc("The branch it is in; null if it is in the history.")] = None
    metadata: Annotated[dict[str, Any], doc("As `model`, `agent`, `reasoning`, `feedback`, `written_by`.")] = field(
        default_factory=dict
    )
    sources: Annotated[tuple[Source, ...], doc("What an answer rests on.")] = ()
    effects: Annotated[tuple[TurnEffect, ...], doc("Of an answer: what its turn changed, or may have changed.")] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreadableMessage(Message):
    """Stands for a row that this release cannot read. The model is not shown it."""

    unreadable: IsUnreadable


@dataclass(frozen=True, slots=True)
class AcknowledgementReport:
    """How the user's message was read beside the plan that waited."""

    verdict: Annotated[Verdict, doc("What it says to the plan; `none`: it is about something else.")] = "none"
    strength: Annotated[Strength | None, doc("Of a `confirm`. A weak one goes on with what only reads.")] = None
    rule: Annotated[str, doc("The rule that decided.")] = "no_rule"
    language: Annotated[str | None, doc("The language that the rule read it in.")] = None
    plan_id: Annotated[str | None, doc("The plan it was read for.")] = None
    plan_version: Annotated[int | None, doc("The version of that plan.")] = None


@dataclass(frozen=True, slots=True)
class WebSearchReport:
    """Whether the web was searched."""

    requested: Annotated[bool, doc("Whether the request had `force_web_search`.")] = False
    performed: Annotated[bool, doc("Whether a search succeeded.")] = False
    reason: Annotated[str, doc("Why there was a search, or none: docs/api.md lists the reasons.")] = "not_requested"


@dataclass(frozen=True, slots=True)
class MemoryReport:
    """How much memory went into the turn."""

    short_term: Annotated[bool, doc("Whether the working memory of the session was there.")] = False
    long_term: Annotated[int, doc("How many durable facts the model was shown.")] = 0
    history_messages: Annotated[int, doc("How many earlier messages it was shown.")] = 0
    tool_results: Annotated[int, doc("How many earlier results it was shown, as references.")] = 0


@dataclass(frozen=True, slots=True)
class Usage:
    """What model calls took."""

    llm_calls: Annotated[int, doc("Calls of a model.")] = 0
    input_tokens: Annotated[int, doc("Tokens sent, as the provider counts them.")] = 0
    cached_tokens: Annotated[int, doc("Those of the input that the provider had cached.")] = 0
    output_tokens: Annotated[int, doc("Tokens received.")] = 0
    reasoning_tokens: Annotated[int, doc("Those of the output that were thought, not said.")] = 0
    estimated: Annotated[bool, doc("Whether the provider left some of them to be estimated.")] = False
    cost: Annotated[float | None, doc("In dollars; null if a model that was asked has no price.")] = None
    duration_ms: Annotated[int, doc("Milliseconds from when a process took the turn to its end.")] = 0


@dataclass(frozen=True, slots=True)
class PromptPart:
    """A part of a request to the model."""

    part: Annotated[str, doc("What it is, as `instructions`, `tools` or `history`.")]
    tokens: Annotated[int, doc("How long it is, as the budget counts.")]
    cacheable: Annotated[bool, doc("Whether it stands before all that changes with every message.")]
    text: Annotated[str | None, doc("What it says, if that was asked for.")] = None


@dataclass(frozen=True, slots=True)
class PromptReport:
    """What a request to the model is made of, in its order, in tokens as the budget counts them."""

    parts: Annotated[tuple[PromptPart, ...], doc("In the order of the request.")]
    tokens: Annotated[int, doc("The sum of its parts.")]


@dataclass(frozen=True, slots=True)
class TurnError:
    """Why a turn failed or was cancelled, or had no words of a model, as the problem says."""

    code: Annotated[str, doc("The stable code of the problem.")]
    status: Annotated[int, doc("The HTTP status that a request which waits is answered with.")]
    title: Annotated[str, doc("What went wrong, in a few words.")]
    detail: Annotated[str, doc("What went wrong, and what to do.")]
    retryable: Annotated[bool, doc("Whether the same may succeed later.")]
    extra: Annotated[Mapping[str, str | int], doc("Members of this code.")] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TurnReport:
    """What a completed turn's row holds; its message and tool calls have rows of their own."""

    acknowledgement: AcknowledgementReport
    plan: Plan | None
    web_search: WebSearchReport
    memory_used: MemoryReport
    usage: Usage
    model: str
    agent: str | None = None  # the one that answered, None if it is the default one and the session's
    agent_gone: str | None = None  # the session's, if there was none of that name any more
    asked_again: str | None = None  # why a step that was approved waits for another yes
    finish_reason: Literal["length"] | None = None  # the answer reached its length limit
    is_structured: bool = False  # the answer is JSON as the client asked
    prompt: PromptReport | None = None  # the last request to the model, None for none; its row has it in `run`
    written_by: Literal["service"] | None = None  # because the model gave no answer
    problem: str | None = None  # the code of `error`
    error: TurnError | None = None  # why the model gave none
    sources: tuple[Source, ...] = ()
    reasoning: str | None = None  # what the model thought, where that is shown
    effects: tuple[TurnEffect, ...] = ()  # in the row: calls that wait for a yes, or that were denied


def answer_metadata(report: Any) -> dict[str, Any]:
    """Returns what an answer's message says of its turn: SHOWN_OF_REPORT, but not the default agent."""
    shown = {name: getattr(report, name) for name in SHOWN_OF_REPORT}
    shown["agent"] = shown["agent"] if shown["agent"] != DEFAULT_AGENT else None
    return {name: value for name, value in shown.items() if value is not None}


@dataclass(frozen=True, slots=True)
class ChatAnswer:
    """The end of a turn that completed."""

    session_id: Annotated[str, doc("The session.")]
    turn_id: Annotated[str, doc("The turn, which begins with `turn_`.")]
    status: Annotated[Literal["completed"], doc("An answer is of a completed turn; any other end is a problem.")]
    message: Annotated[Message, doc("What the assistant says.")]
    acknowledgement: Annotated[AcknowledgementReport, doc("How the user's message was read.")]
    plan: Annotated[Plan | None, doc("The plan that this turn made, advanced or ended.")]
    tool_calls: Annotated[tuple[ToolCall | UnreadableCall, ...], doc("What this turn ran, without the results.")]
    web_search: Annotated[WebSearchReport, doc("Whether the web was searched, and why.")]
    memory_used: Annotated[MemoryReport, doc("What the model was shown of what was known.")]
    usage: Annotated[Usage, doc("What the turn took.")]
    model: Annotated[str, doc("The model that answered.")]
    output: Annotated[Any, doc("With `output_schema`: the answer as JSON that fits it; null while a plan waits.")] = (
        None
    )
    sources: Annotated[tuple[Source, ...], doc("What the answer rests on.")] = ()
    effects: Annotated[tuple[TurnEffect, ...], doc("What the turn changed, may have changed, or waits to change.")] = ()


TurnAnswer = ChatAnswer | AppError


def with_held(made: Sequence[TurnEffect], held: Sequence[TurnEffect]) -> tuple[TurnEffect, ...]:
    """Returns what calls did and what others wait to do. One that has asked something first is told as waiting."""
    waits = [(each.tool, each.args) for each in held if each.outcome == "waits"]
    return (*(each for each in made if each.outcome != "failed" or (each.tool, each.args) not in waits), *held)


def chat_answer(turn: TurnKey, message: Message, report: TurnReport, calls: tuple[ToolCall, ...]) -> ChatAnswer:
    """`report` has the effects of the calls too."""
    shown = {name: getattr(report, name) for name in ("sources", "effects")}
    return ChatAnswer(
        session_id=turn.session_id,
        turn_id=turn.turn_id,
        status="completed",
        message=replace(message, metadata=answer_metadata(report), **shown),
        tool_calls=calls,
        output=orjson.loads(str(message.content)) if report.is_structured else None,
        **{name: getattr(report, name) for name in TurnReport.__slots__ if name in ChatAnswer.__slots__},
    )


@dataclass(frozen=True, slots=True)
class Turn:
    """How a turn stands: one user message and what comes of it."""

    turn_id: Annotated[str, doc("Begins with `turn_`.")]
    session_id: Annotated[str, doc("The session it is in.")]
    status: Annotated[
        TurnStatus, doc("`queued` and `running` are open; a repeated request may run a failed one again.")
    ]
    attempts: Annotated[int, doc("How many processes have begun it.")]
    created_at: Annotated[datetime, doc("When the message was accepted.")]
    started_at: Annotated[datetime | None, doc("When the last process began it.")]
    finished_at: Annotated[datetime | None, doc("When it ended.")]
    error: Annotated[TurnError | None, doc("Why it failed or was cancelled, or why no model wrote its answer.")]
    prompt: Annotated[PromptReport | None, doc("What a completed turn asked of the model last.")]
    answer: Annotated[ChatAnswer | None, doc("What a completed turn was answered with.")]
    branch: Annotated[str | None, doc("The branch it is in; null if it is in the history.")] = None


@dataclass(frozen=True, slots=True)
class Feedback:
    """What a user thinks of an answer, as operators read it."""

    message_id: Annotated[str, doc("The answer that was rated.")]
    session_id: Annotated[str, doc("The session it is in.")]
    turn_id: Annotated[str, doc("The turn it answered.")]
    user: Annotated[str, doc("Who rated it.")]
    rating: Annotated[Rating, doc("What the user thinks of it.")]
    comment: Annotated[str | None, doc("What the user wrote.")]
    created_at: Annotated[datetime, doc("When it was rated.")]


@dataclass(frozen=True, slots=True)
class TurnSummary:
    """What a page of history shows of a turn."""

    turn_id: Annotated[str, doc("Begins with `turn_`.")]
    status: Annotated[TurnStatus, doc("`queued` and `running` are open.")]
    acknowledgement: Annotated[AcknowledgementReport | None, doc("Null until the turn has completed.")]
    plan_id: Annotated[str | None, doc("The plan that it made, advanced or ended.")]
    tool_calls: Annotated[tuple[ToolCall | UnreadableCall, ...], doc("What it ran, without the results.")]
    error: Annotated[TurnError | None, doc("Why it failed or was cancelled, or why no model wrote its answer.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageOfTurn(Message):
    """A message that stands for its turn: the answer, or the user's message of a turn without one."""

    turn: Annotated[TurnSummary, doc("How the turn went.")]


@dataclass(frozen=True, slots=True)
class _File:
    id: Annotated[str, doc("Begins with `att_`.")]
    name: Annotated[str, doc("What the user's file is called.")]
    media_type: Annotated[str, doc("What its content is, whatever its name says.")]
    size_bytes: Annotated[int, doc("The size of the file.")]


@dataclass(frozen=True, slots=True)
class Attached(_File):
    """What a message says of a file that it carries. The `mark` of one that the user did not attach is how texts refer
    to it: LEFT_OUT, where the message leaves out what is in it, or that of a source that a frontend found, as `[1]`.
    """

    mark: str | None = None

    @property
    def is_source(self) -> bool:
        return self.mark not in (None, LEFT_OUT)


@dataclass(frozen=True, slots=True)
class Attachment(_File):
    """A file of a session."""

    summary: Annotated[str, doc("What is in it, in one line.")]


MemoryKind = Literal["fact", "preference", "personal_info", "contact", "project"]


@dataclass(frozen=True, slots=True)
class Memory:
    """A durable fact about the caller."""

    id: Annotated[str, doc("Begins with `mem_`.")]
    kind: Annotated[MemoryKind, doc("What it is about.")]
    content: Annotated[str, doc("The fact, in a sentence.")]
    importance: Annotated[int, doc("From 1 to 5: the model is shown what matters more.")]
    created_at: Annotated[datetime, doc("When it was noted.")]
    last_used_at: Annotated[datetime | None, doc("When the model was last shown it.")] = None
    session_id: Annotated[str | None, doc("Where it was told, also of a session that was deleted.")] = None
    message_id: Annotated[str | None, doc("The message that told it.")] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreadableMemory(Memory):
    """A memory of a kind that this release does not know."""

    unreadable: IsUnreadable


@dataclass(frozen=True, slots=True)
class NewFact:
    """A fact to store. `supersedes` is the id of the fact that it corrects."""

    content: str
    kind: MemoryKind
    importance: int = EXPLICIT_IMPORTANCE
    supersedes: str | None = None
