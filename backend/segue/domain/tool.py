"""What a tool is, how it may fail, what a call leaves behind, and the tool's state in a session. No I/O, no clock."""

import json
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, Any, Final, Literal

from pydantic import Field

from segue.domain.field_types import IsUnreadable, doc
from segue.domain.ids import digest_of_json
from segue.domain.user_request import UserAnswer

Effect = Literal["read_only", "write", "destructive"]
ToolConfirm = bool | Literal["always_ask"]
CallStatus = Literal["running", "succeeded", "failed", "unknown"]
RememberFor = Literal["session"]
PROPOSE_MANDATE: Final = "propose_mandate"  # asks under every setting: what it stores outlasts them
END_MANDATES: Final = "end_mandates"
ApprovedHow = Literal["words", "button", "mandate", "approver"]
EffectOutcome = Literal["done", "failed", "unknown", "waits", "denied"]


class ToolRetry(Exception):
    """The model can correct its call: the message says how. Does not count against the tool's health."""


class ToolFailed(Exception):
    """The tool reports that it failed. The model and the user see the message."""


class ToolLost(ToolFailed):
    """The tool was called and did not answer: whether it took effect is unknown."""


class ToolUnauthorized(ToolFailed):
    """The tool's own credentials were refused: no retry helps until a person has corrected them."""


Reporter = Callable[[float, float | None, str | None], None]


@dataclass(frozen=True, slots=True)
class ToolContext:
    """The user and the turn that a tool runs for. Identity comes from here, never from the model's arguments. A slow
    tool may call `report(progress, total, message)` in the event loop: the user sees it, and its time starts anew.
    """

    owner: str
    session_id: str
    turn_id: str
    tool_call_id: str
    now: datetime
    time_zone: str = "UTC"  # the user's, an IANA name
    agent: str = ""  # the id of the agent that answers
    report: Reporter = field(default=lambda *_: None, repr=False, compare=False)
    answers: tuple[UserAnswer, ...] = ()  # the user's to what the same call asked before (ToolAsks), in order
    groups: tuple[str, ...] = ()  # those of the user's that something here is for


ToolFunction = Callable[[dict[str, Any], ToolContext], Awaitable[object]]
Summarise = Callable[[dict[str, Any], Any], str]


@dataclass(frozen=True, slots=True)
class DependencyGroup:
    """Tools that have to have succeeded in the session before another tool can be called."""

    type: Annotated[Literal["any", "all", "sequence"], doc("Whether one of `tools`, all, or all in order are needed.")]
    tools: Annotated[tuple[str, ...], doc("The names of the tools that have to have succeeded.")]
    optional: Annotated[tuple[str, ...], doc("Names of tools that are suggested but not needed.")] = ()


@dataclass(frozen=True, slots=True)
class SettlingCheck:
    """How to find out whether a call took effect that did not answer: by a call of another tool, which only reads."""

    tool: str
    args: Mapping[str, Any]  # a text is a JMESPath into the arguments of the call, every other value stands for itself
    done: str  # a JMESPath condition on what the other tool answers
    not_done: str | None = None  # such a condition too; without it the check can only show an effect


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """The description of a tool, without the function. `confirm` requires (True) or waives (False) the user's
    confirmation, None leaves it to `effect`; under `always_ask` each call is asked about, whatever was allowed before.
    """

    name: str
    description: str
    input_schema: Mapping[str, Any]  # JSON Schema (draft 2020-12) of an object
    source: str = "builtin"  # `builtin`, `native`, `page` or `mcp:<server>`
    effect: Effect = "read_only"
    idempotent: bool = False
    confirm: ToolConfirm | None = None
    timeout_s: float | None = None
    max_timeout_s: float | None = None  # of a call that reports progress, instead of `timeout_s`
    ephemeral: bool = False  # its calls have no row in the ledger
    original_name: str = ""  # the name at the source
    title: str = ""  # a name for people, if it has any
    depends_on: tuple[DependencyGroup, ...] = ()  # every group must be satisfied
    effect_guessed: bool = False  # from the tool's name, since neither server nor operator gave one
    verify: SettlingCheck | None = None  # settles a call that may have taken effect
    idempotency_arg: str = ""  # gets the call's id, not in the schema: made again under it, a call has no more effect

    @property
    def always_asks(self) -> bool:
        """Whether only a yes to the service's own question about a call lets it run, if anything has to."""
        return self.confirm == "always_ask"

    @property
    def may_repeat(self) -> bool:
        """Whether running a call again has no further effect."""
        return self.effect == "read_only" or self.idempotent

    @property
    def may_resume(self) -> bool:
        """Whether a call whose process died may be made again under its id. One under another id is another call."""
        return self.may_repeat or bool(self.idempotency_arg)


def definition_of(spec: ToolSpec) -> str:
    """Returns a digest of everything about a tool that a user's yes relies on."""
    shown: list[object] = [spec.name, spec.description, spec.input_schema, spec.effect, spec.source]
    shown += [said for said in (spec.title, spec.idempotent, spec.idempotency_arg) if said]
    return digest_of_json(shown)[:32]


@dataclass(frozen=True, slots=True)
class Audience:
    """Who may use a tool: agents by their ids, and users by name or by a group. None is all of them."""

    agents: frozenset[str] | None = None
    users: frozenset[str] | None = None
    groups: frozenset[str] | None = None
    within: frozenset[str] | None = None  # only those of them who are also in one of these groups

    @property
    def named_groups(self) -> frozenset[str]:
        return (self.groups or frozenset()) | (self.within or frozenset())

    def admits(self, owner: str, groups: Iterable[str], agent: str | None) -> bool:
        """Without an agent: whether any may. `groups` are the owner's."""
        is_for_all = self.users is None and self.groups is None
        is_one = is_for_all or owner in (self.users or ()) or not (self.groups or frozenset()).isdisjoint(groups)
        is_within = self.within is None or not self.within.isdisjoint(groups)
        return is_one and is_within and (self.agents is None or agent is None or agent in self.agents)


@dataclass(frozen=True, slots=True)
class Tool:
    """A spec and the function behind it, which gets validated arguments, returns text or a JSON value, and raises
    `ToolRetry` or `ToolFailed`. Its caller enforces time limits, records and cleans.
    """

    spec: ToolSpec
    run: ToolFunction
    summarise: Summarise | None = None  # one line about a call's result; without it the summary describes its shape
    secrets: frozenset[str] = field(default=frozenset(), repr=False)  # blanked in everything the tool returns
    audience: Audience | None = None  # for a user who is not of it, there is no such tool


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """The tools that a session's requests have of more than they may have, in the order they came."""

    names: tuple[str, ...]
    seq: int  # of the turn that chose last
    later: tuple[tuple[int, tuple[str, ...]], ...] = ()  # came since, by the seq of the turn whose message shows them


@dataclass(frozen=True, slots=True)
class EffectApproval:
    """Who approved a tool call, and how."""

    how: Annotated[ApprovedHow, doc("By words, a button, a mandate, or a person who approves for others.")]
    by: Annotated[str, doc("The user who said yes.")]
    message_id: Annotated[str | None, doc("The id of the message with the yes; a button has one too.")] = None
    mandate_id: Annotated[str | None, doc("The id of the mandate under which it ran without asking.")] = None


@dataclass(frozen=True, slots=True)
class CallEffect:
    """What is kept, as a call starts, of one that may change something or was approved."""

    kind: Effect
    title: str
    definition: str  # the digest of its tool
    denied: bool = False  # by the operator's policy: it never ran
    asked_in: str | None = None  # the turn whose answer asked for it
    approved_by: EffectApproval | None = None


@dataclass(frozen=True, slots=True)
class ToolCallMetadata:
    """A description of a tool result, without the result itself."""

    size_bytes: Annotated[int, doc("The size of the result in bytes of UTF-8.")]
    summary: Annotated[str, doc("A summary of the result in one line.")]
    truncated_preview: Annotated[str, doc("The result's first characters, at most TOOL_RESULT_PREVIEW_CHARS.")]
    grant: Annotated[RememberFor | None, doc("Set if it ran without asking, by a mandate for its session.")] = None
    mandate: Annotated[str | None, doc("The id of the mandate under which it ran without asking.")] = None
    covered: Annotated[
        Mapping[str, str] | None, doc("For a call under a mandate: origins of its values by path, as in `args_origin`.")
    ] = None


@dataclass(frozen=True, slots=True)
class ResultRef:
    """Where the result of a tool call is stored."""

    session_id: Annotated[str, doc("The id of the session.")]
    tool_call_id: Annotated[str, doc("The id of the tool call.")]
    storage_type: Annotated[Literal["tool_results"], doc("The kind of storage.")] = "tool_results"


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool call and its outcome, without the result."""

    tool_call_id: Annotated[str, doc("The id of the tool call, which begins with `call_`.")]
    tool_name: Annotated[str, doc("The name of the tool that was called.")]
    args: Annotated[dict[str, Any], doc("The arguments of the call.")]
    status: Annotated[CallStatus, doc("The status; `unknown`: no answer came, and it may have taken effect.")]
    turn_id: Annotated[str, doc("The id of the turn that made the call.")]
    started_at: Annotated[datetime, doc("When the call started.")]
    duration_ms: Annotated[int | None, doc("Milliseconds from start to end; null until the call has ended.")]
    error: Annotated[str | None, doc("Why the call failed, or why its outcome is unknown; else null.")]
    metadata: Annotated[ToolCallMetadata, doc("A description of the call's result.")]
    result_ref: Annotated[ResultRef, doc("Where the result of the call is stored.")]
    expires_at: Annotated[datetime | None, doc("Until when the result is kept; null if none is stored.")]
    plan_id: Annotated[str | None, doc("The id of the plan that the call is a step of, if any.")] = None
    step_id: Annotated[int | None, doc("The number of that step in the plan, if any.")] = None
    branch: Annotated[str | None, doc("The id of its turn's branch; null if it is in the history.")] = None
    settled_by: Annotated[str | None, doc("The id of the check's call that settled an unknown outcome.")] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreadableCall(ToolCall):
    """A tool call that this release cannot read: without arguments, and with an unknown outcome."""

    unreadable: IsUnreadable


@dataclass(frozen=True, slots=True)
class TurnEffect:
    """What a turn changed, may have changed, or has not changed yet: a call of a tool that does not only read."""

    tool_call_id: Annotated[str | None, doc("The id of the tool call; null for one that was not made.")]
    tool: Annotated[str, doc("The name of the tool.")]
    title: Annotated[str, doc("The name of the tool as people read it.")]
    args: Annotated[dict[str, Any], doc("The arguments that the tool was, or would be, called with.")]
    outcome: Annotated[EffectOutcome, doc("`unknown`: it may have taken effect. `denied`: by the user or the policy.")]
    approved_by: Annotated[EffectApproval | None, doc("Who approved the call; null if nobody did or had to.")] = None


def effect_of(call: ToolCall, made: CallEffect) -> TurnEffect | None:
    """Returns None for a call that only read."""
    if made.kind == "read_only":
        return None
    outcome = effect_outcome(call, made)
    return TurnEffect(call.tool_call_id, call.tool_name, made.title, call.args, outcome, made.approved_by)


def effect_outcome(call: ToolCall, made: CallEffect | None) -> EffectOutcome:
    failed: EffectOutcome = "denied" if made is not None and made.denied else "failed"
    return "done" if call.status == "succeeded" else failed if call.status == "failed" else "unknown"


@dataclass(frozen=True, slots=True)
class Reference:
    """A reference to a tool result, which stands for it in a conversation. The result itself stays in storage."""

    tool_call_id: Annotated[str, doc("The id of the tool call that the result is of.")]
    tool_name: Annotated[str, doc("The name of the tool that was called.")]
    args: Annotated[dict[str, Any], doc("The arguments of the call.")]
    status: Annotated[CallStatus, doc("The status of the call.")]
    size_bytes: Annotated[int, doc("The size of the result in bytes of UTF-8.")]
    summary: Annotated[str, doc("A summary of the result in one line.")]
    preview: Annotated[str, doc("The beginning of the result.")]
    identifiers: Annotated[tuple[str, ...], doc("The ids and addresses that the result contains.")]


def canonical_args(args: Mapping[str, Any]) -> str:
    """The same JSON text for equal arguments, whatever the order of their keys."""
    return json.dumps(args, sort_keys=True, ensure_ascii=False, separators=(",", ":"))


ToolStatus = Literal["available", "unavailable", "failed", "maintenance"]
ManualStatus = Literal["available", "unavailable", "maintenance"]
ReasonCode = Literal[
    "consecutive_failures", "unauthorized", "fleet_failed", "half_open", "server_away", "missing_dependencies",
    "set_by_person", "set_for_all", "refused_by_model", "succeeded", "reset", "state_unreadable",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class ToolState:
    """Whether a tool can be called, and how its last calls went."""

    status: Annotated[ToolStatus, doc("The tool's status in this session, or the one set for all sessions.")]
    available: Annotated[bool, doc("Whether it can be called: statuses here and for all, and dependencies, allow it.")]
    reason: Annotated[str | None, doc("Why the tool has this state, in words for people.")]
    reason_code: Annotated[ReasonCode | None, doc("Why the tool has this state, as a code for programs.")]
    consecutive_failures: Annotated[int | None, doc("Failures in a row; null in a state for all sessions.")]
    execution_count: Annotated[int | None, doc("How often it ran in the session; null in a state for all sessions.")]
    last_updated: Annotated[datetime | None, doc("When the state last changed.")]
    last_success_time: Annotated[datetime | None, doc("When the tool last succeeded; null if never.")]
    last_failure_time: Annotated[datetime | None, doc("When the tool last failed; null if never.")]
    retry_at: Annotated[datetime | None, doc("When it may be tried again, or an operator's or server's pause ends.")]
    missing_dependencies: Annotated[tuple[str, ...], doc("The names of tools that have to succeed first.")]
    suggested_actions: Annotated[tuple[str, ...], doc("What to do about the state, in words for people.")]


@dataclass(frozen=True, slots=True)
class StatusMoved:
    """A change of a tool's status in a session."""

    id: Annotated[str, Field(exclude=True)]  # only a position in the list
    tool: Annotated[str, doc("The name of the tool.")]
    from_: Annotated[ToolStatus, Field(serialization_alias="from", description="The status before.")]
    to: Annotated[ToolStatus, doc("The status after the change.")]
    reason: Annotated[str | None, doc("Why the status changed, in words for people.")]
    reason_code: Annotated[ReasonCode | None, doc("Why the status changed, as a code for programs.")]
    at: Annotated[datetime, doc("When the status changed.")]
    turn_id: Annotated[str | None, doc("The id of the turn that caused the change; null if a person did.")]


@dataclass(frozen=True, slots=True)
class ToolOverview:
    """The state of a tool for all sessions, and the number of sessions by status."""

    fleet: Annotated[ToolState, doc("The state for all sessions, with the tool's server as this process sees it.")]
    sessions: Annotated[dict[ToolStatus, int], doc("The number of sessions by the tool's own status in them.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionToolState(ToolState):
    """The state of a tool in a session."""

    session_id: Annotated[str, doc("The id of the session.")]
    tool: Annotated[str, doc("The name of the tool.")]
