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
NO_WORDS: Final = "📎"  # what the user says in a message that has only files
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
    """A conversation between a user and an agent."""

    id: Annotated[str, doc("The id of the session, which begins with `ses_`.")]
    title: Annotated[str | None, doc("A client's title, else one made from the first message; null before that.")]
    agent: Annotated[str, doc("The id of the agent that answers in the session.")]
    language: Annotated[str | None, doc("The tag of the language to answer in, such as `it`; null: the user's own.")]
    time_zone: Annotated[str, doc("The IANA time zone in which times are read and said, such as `Europe/Rome`.")]
    archived: Annotated[bool, doc("Whether the session is archived: listed only with `archived=true`.")]
    pinned: Annotated[bool, doc("Whether the user has pinned the session.")]
    metadata: Annotated[dict[str, Any], doc("Data that the client keeps with the session. The agent does not see it.")]
    created_at: Annotated[datetime, doc("When the session was created.")]
    updated_at: Annotated[datetime, doc("When something last happened in the session.")]
    message_count: Annotated[int, doc("The number of messages in the history, including those of tools.")]
    running_turn_id: Annotated[str | None, doc("The id of the turn that is running; null if none is.")]
    pending_plan: Annotated[Plan | UnreadablePlan | None, doc("The session's open plan; null if there is none.")] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreadableSession(Session):
    """A session whose metadata this release cannot read."""

    unreadable: IsUnreadable


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundSession(Session):
    """A session that a search found."""

    snippet: Annotated[str, doc("An excerpt of the title or message around the words that were searched for.")]
    message_id: Annotated[str | None, doc("The id of the message that matched; null if the title did.")]


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
    """A tool call as the assistant requested it."""

    id: Annotated[str, doc("The id of the tool call, which begins with `call_`.")]
    name: Annotated[str, doc("The name of the tool.")]
    args: Annotated[dict[str, Any], doc("The arguments of the call.")]


@dataclass(frozen=True, slots=True)
class Source:
    """Something that an answer rests on: a page, a file, or a tool result or a part of it."""

    id: Annotated[str, doc("The number of the source: that of its mark in the text, `[1]`, if it has one there.")]
    title: Annotated[str, doc("The title of the source.")]
    url: Annotated[str | None, doc("The address of the source if it is a page, else null.")] = None
    tool_call_id: Annotated[str | None, doc("The id of the tool call whose result contains it, if any.")] = None
    part: Annotated[str | None, doc("Where in that result the source is, as the `path` of a tool result.")] = None


@dataclass(frozen=True, slots=True)
class Message:
    """A message of a session."""

    id: Annotated[str, doc("The id of the message, which begins with `msg_`.")]
    seq: Annotated[int, doc("The position of the message in its session, from 1. Never used twice.")]
    turn_id: Annotated[str, doc("The id of the turn that the message is part of.")]
    role: Annotated[Role, doc("Who wrote the message.")]
    content: Annotated[str | dict[str, Any], doc("The text. For the role `tool`, a reference to the tool's result.")]
    created_at: Annotated[datetime, doc("When the message was stored.")]
    tool_calls: Annotated[tuple[RequestedCall, ...], doc("The tool calls that the assistant requests.")] = ()
    tool_call_id: Annotated[str | None, doc("For the role `tool`, the id of the call that it answers.")] = None
    cut_off: Annotated[bool, doc("Whether the user stopped the turn while the assistant was saying this.")] = False
    branch: Annotated[str | None, doc("The id of the message's branch; null if it is in the history.")] = None
    metadata: Annotated[dict[str, Any], doc("Facts such as `model` and `feedback`.")] = field(default_factory=dict)
    sources: Annotated[tuple[Source, ...], doc("For an answer, the sources that it rests on.")] = ()
    effects: Annotated[tuple[TurnEffect, ...], doc("For an answer, what its turn changed or may have changed.")] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreadableMessage(Message):
    """A message that this release cannot read. The model is not shown it."""

    unreadable: IsUnreadable


@dataclass(frozen=True, slots=True)
class AcknowledgementReport:
    """How the user's message was read as a reply to the plan that was waiting."""

    verdict: Annotated[Verdict, doc("What the message says to the plan; `none`: it is about something else.")] = "none"
    strength: Annotated[Strength | None, doc("For `confirm` only. After a `weak` one only what reads goes on.")] = None
    rule: Annotated[str, doc("The name of the rule that decided.")] = "no_rule"
    language: Annotated[str | None, doc("The tag of the language that the rule read it in; null if none.")] = None
    plan_id: Annotated[str | None, doc("The id of the plan that was waiting; null if none was.")] = None
    plan_version: Annotated[int | None, doc("The version of that plan; null without a plan.")] = None


@dataclass(frozen=True, slots=True)
class WebSearchReport:
    """Whether the web was searched in a turn, and why."""

    requested: Annotated[bool, doc("Whether the request set `force_web_search`.")] = False
    performed: Annotated[bool, doc("Whether a web search succeeded.")] = False
    reason: Annotated[str, doc("Why the web was searched or not. docs/api.md lists the reasons.")] = "not_requested"


@dataclass(frozen=True, slots=True)
class MemoryReport:
    """How much of what the service remembers went into a turn."""

    short_term: Annotated[bool, doc("Whether the session's short-term memory was available.")] = False
    long_term: Annotated[int, doc("The number of stored facts that the model was shown.")] = 0
    history_messages: Annotated[int, doc("The number of earlier messages that the model was shown.")] = 0
    tool_results: Annotated[int, doc("The number of earlier tool results it was shown as references.")] = 0


@dataclass(frozen=True, slots=True)
class Usage:
    """What model calls used."""

    llm_calls: Annotated[int, doc("The number of model calls.")] = 0
    input_tokens: Annotated[int, doc("Tokens sent to models, as the provider counts them.")] = 0
    cached_tokens: Annotated[int, doc("The part of the input tokens that the provider had cached.")] = 0
    output_tokens: Annotated[int, doc("Tokens received from models.")] = 0
    reasoning_tokens: Annotated[int, doc("The part of the output tokens that was reasoning.")] = 0
    estimated: Annotated[bool, doc("Whether some counts are estimates: the provider gave none.")] = False
    cost: Annotated[float | None, doc("Cost in US dollars; null if a model that was called has no price.")] = None
    duration_ms: Annotated[int, doc("Milliseconds from when a process took the turn to the turn's end.")] = 0


@dataclass(frozen=True, slots=True)
class PromptPart:
    """A part of a request to the model."""

    part: Annotated[str, doc("The name of the part, such as `instructions`, `tools` or `history`.")]
    tokens: Annotated[int, doc("The length of the part in tokens, as the context budget counts them.")]
    cacheable: Annotated[bool, doc("Whether the part precedes everything that changes with each message.")]
    text: Annotated[str | None, doc("The text of the part; null unless it was asked for.")] = None


@dataclass(frozen=True, slots=True)
class PromptReport:
    """The parts of a request to the model, in tokens as the context budget counts them."""

    parts: Annotated[tuple[PromptPart, ...], doc("The parts, in the order of the request.")]
    tokens: Annotated[int, doc("The total length of the request in tokens.")]


@dataclass(frozen=True, slots=True)
class TurnError:
    """Why a turn failed or was cancelled, or why no model wrote its answer, as its problem says."""

    code: Annotated[str, doc("The stable code of the error, such as `model_unavailable`.")]
    status: Annotated[int, doc("The HTTP status that a request waiting for the turn gets.")]
    title: Annotated[str, doc("What went wrong, in a few words.")]
    detail: Annotated[str, doc("What went wrong, and what to do about it.")]
    retryable: Annotated[bool, doc("Whether the same request may succeed later.")]
    extra: Annotated[Mapping[str, str | int], doc("Further members that the code has.")] = field(default_factory=dict)


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
    """The answer of a completed turn."""

    session_id: Annotated[str, doc("The id of the session.")]
    turn_id: Annotated[str, doc("The id of the turn, which begins with `turn_`.")]
    status: Annotated[Literal["completed"], doc("Always `completed`: any other end of a turn is a problem.")]
    message: Annotated[Message, doc("The message with the assistant's answer.")]
    acknowledgement: Annotated[AcknowledgementReport, doc("How the message was read as a reply to a plan.")]
    plan: Annotated[Plan | None, doc("The plan that the turn made, advanced or ended; null if there is none.")]
    tool_calls: Annotated[tuple[ToolCall | UnreadableCall, ...], doc("The turn's tool calls, without their results.")]
    web_search: Annotated[WebSearchReport, doc("Whether the web was searched in the turn, and why.")]
    memory_used: Annotated[MemoryReport, doc("What the model was shown of what is remembered.")]
    usage: Annotated[Usage, doc("What the model calls of the turn used.")]
    model: Annotated[str, doc("The name of the model that answered.")]
    output: Annotated[Any, doc("With `output_schema`, the answer as JSON; null while a plan waits.")] = None
    sources: Annotated[tuple[Source, ...], doc("The sources that the answer rests on.")] = ()
    effects: Annotated[tuple[TurnEffect, ...], doc("What the turn changed, may have changed or waits to change.")] = ()


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
    """A turn: one user message and what comes of it."""

    turn_id: Annotated[str, doc("The id of the turn, which begins with `turn_`.")]
    session_id: Annotated[str, doc("The id of the session that the turn is in.")]
    status: Annotated[TurnStatus, doc("`queued` and `running` are open. A repeated request may rerun a failed turn.")]
    attempts: Annotated[int, doc("The number of times that a process began to run the turn.")]
    created_at: Annotated[datetime, doc("When the user's message was accepted.")]
    started_at: Annotated[datetime | None, doc("When the last attempt began; null before the first one.")]
    finished_at: Annotated[datetime | None, doc("When the turn ended; null while it is open.")]
    error: Annotated[TurnError | None, doc("Why the turn failed or was cancelled, or why no model wrote its answer.")]
    prompt: Annotated[PromptReport | None, doc("The parts of its last request to a model; null unless completed.")]
    answer: Annotated[ChatAnswer | None, doc("The answer of the turn; null unless it has completed.")]
    branch: Annotated[str | None, doc("The id of the turn's branch; null if it is in the history.")] = None


@dataclass(frozen=True, slots=True)
class Feedback:
    """A user's rating of an answer, as operators see it."""

    message_id: Annotated[str, doc("The id of the answer that was rated.")]
    session_id: Annotated[str, doc("The id of the session that the answer is in.")]
    turn_id: Annotated[str, doc("The id of the turn that the answer is of.")]
    user: Annotated[str, doc("The user who rated the answer.")]
    rating: Annotated[Rating, doc("What the user thinks of the answer.")]
    comment: Annotated[str | None, doc("The user's comment; null if there is none.")]
    created_at: Annotated[datetime, doc("When the answer was rated.")]


@dataclass(frozen=True, slots=True)
class TurnSummary:
    """A turn, as a page of messages shows it."""

    turn_id: Annotated[str, doc("The id of the turn, which begins with `turn_`.")]
    status: Annotated[TurnStatus, doc("The status of the turn; `queued` and `running` are open.")]
    acknowledgement: Annotated[AcknowledgementReport | None, doc("How its message was read; null unless completed.")]
    plan_id: Annotated[str | None, doc("The id of the plan that the turn made, advanced or ended, if any.")]
    tool_calls: Annotated[tuple[ToolCall | UnreadableCall, ...], doc("The turn's tool calls, without their results.")]
    error: Annotated[TurnError | None, doc("Why the turn failed or was cancelled, or why no model wrote its answer.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageOfTurn(Message):
    """A message that stands for its turn: the answer, or the user's message of a turn without one."""

    turn: Annotated[TurnSummary, doc("A summary of the turn.")]


@dataclass(frozen=True, slots=True)
class _File:
    id: Annotated[str, doc("The id of the file, which begins with `att_`.")]
    name: Annotated[str, doc("The name of the user's file.")]
    media_type: Annotated[str, doc("The media type of the content, whatever the file's name says.")]
    size_bytes: Annotated[int, doc("The size of the file in bytes.")]


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
    """A file that was uploaded to a session."""

    summary: Annotated[str, doc("A description of the content in one line.")]


MemoryKind = Literal["fact", "preference", "personal_info", "contact", "project"]


@dataclass(frozen=True, slots=True)
class Memory:
    """A fact about the caller that is remembered across sessions."""

    id: Annotated[str, doc("The id of the fact, which begins with `mem_`.")]
    kind: Annotated[MemoryKind, doc("What the fact is about.")]
    content: Annotated[str, doc("The fact, in a sentence.")]
    importance: Annotated[int, doc("From 1 to 5. The model is shown the more important facts of those that fit.")]
    created_at: Annotated[datetime, doc("When the fact was noted.")]
    last_used_at: Annotated[datetime | None, doc("When the model was last shown the fact; null if never.")] = None
    session_id: Annotated[str | None, doc("The id of the session it was told in, even if deleted; else null.")] = None
    message_id: Annotated[str | None, doc("The id of the message that told it; null if there is none.")] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreadableMemory(Memory):
    """A fact of a kind that this release does not know."""

    unreadable: IsUnreadable


@dataclass(frozen=True, slots=True)
class NewFact:
    """A fact to store. `supersedes` is the id of the fact that it corrects."""

    content: str
    kind: MemoryKind
    importance: int = EXPLICIT_IMPORTANCE
    supersedes: str | None = None
