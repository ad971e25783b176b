"""What a tool is, how it may fail, and what a call leaves behind. No I/O, no clock."""

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

Effect = Literal["read_only", "write", "destructive"]
CallStatus = Literal["running", "succeeded", "failed", "unknown"]
GroupType = Literal["any", "all", "sequence"]


class ToolRetry(Exception):
    """The model can correct its call: the message says how. Does not count against the tool's health."""


class ToolFailed(Exception):
    """The tool reports that it failed. The model and the user see the message."""


class ToolLost(ToolFailed):
    """The tool was called and did not answer: whether it took effect is unknown."""


class ToolUnauthorized(ToolFailed):
    """The tool's own credentials were refused: no retry helps until a person has corrected them."""


@dataclass(frozen=True, slots=True)
class ToolContext:
    """The user and the turn that a tool runs for. Identity comes from here, never from the model's arguments.

    `time_zone` is the user's, an IANA name, `agent` the id of the agent that answers.
    """

    owner: str
    session_id: str
    turn_id: str
    tool_call_id: str
    now: datetime
    time_zone: str = "UTC"
    agent: str = ""


ToolFunction = Callable[[dict[str, Any], ToolContext], Awaitable[object]]
Summarise = Callable[[dict[str, Any], Any], str]


@dataclass(frozen=True, slots=True)
class DependencyGroup:
    """What has to have succeeded in the session first: one of `tools`, all of them, or all in this order.

    `optional` members never decide; they are only suggested.
    """

    type: GroupType
    tools: tuple[str, ...]
    optional: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """The description of a tool, without the function.

    `input_schema` is JSON Schema (draft 2020-12) of an object; `source` is `builtin`, `native` or `mcp:<server>`;
    `confirm` requires (True) or waives (False) the user's confirmation, None leaves it to `effect`. Calls of an
    `ephemeral` tool have no row in the ledger. `original_name` is the name at the source, `title` one for people, if it
    has any. Every group of `depends_on` must be satisfied.
    """

    name: str
    description: str
    input_schema: Mapping[str, Any]
    source: str = "builtin"
    effect: Effect = "read_only"
    idempotent: bool = False
    confirm: bool | None = None
    timeout_s: float | None = None
    ephemeral: bool = False
    original_name: str = ""
    title: str = ""
    depends_on: tuple[DependencyGroup, ...] = ()

    @property
    def may_repeat(self) -> bool:
        """Whether running a call again has no further effect."""
        return self.effect == "read_only" or self.idempotent


@dataclass(frozen=True, slots=True)
class Tool:
    """A spec and the function behind it.

    The function gets validated arguments and returns text or a JSON value; it raises `ToolRetry` or `ToolFailed`.
    Its caller enforces time limits, records and cleans. `summarise` returns one line about a call's result; without it
    the summary describes the result's shape. `secrets` are texts that are blanked in everything the tool returns.
    """

    spec: ToolSpec
    run: ToolFunction
    summarise: Summarise | None = None
    secrets: frozenset[str] = field(default=frozenset(), repr=False)


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """The tools that a session's requests have of more than they may have, in the order they came.

    `seq` is that of the turn that chose last.
    """

    names: tuple[str, ...]
    seq: int


@dataclass(frozen=True, slots=True)
class ToolCallMetadata:
    """`size_bytes` is the payload's size in UTF-8; the preview is bounded by TOOL_RESULT_PREVIEW_CHARS."""

    size_bytes: int
    summary: str
    truncated_preview: str


@dataclass(frozen=True, slots=True)
class ResultRef:
    session_id: str
    tool_call_id: str
    storage_type: Literal["tool_results"] = "tool_results"


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A row of the ledger: what was called and what came of it, without the payload."""

    tool_call_id: str
    tool_name: str
    args: dict[str, Any]
    status: CallStatus
    turn_id: str
    started_at: datetime
    duration_ms: int | None
    error: str | None
    metadata: ToolCallMetadata
    result_ref: ResultRef
    expires_at: datetime | None
    plan_id: str | None = None
    step_id: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreadableCall(ToolCall):
    """Stands for a row that this release cannot read: a call without arguments whose outcome is unknown."""

    unreadable: Literal[True]


@dataclass(frozen=True, slots=True)
class Reference:
    """What stands for a result wherever the model or a client looks at a conversation; the payload stays in storage."""

    tool_call_id: str
    tool_name: str
    args: dict[str, Any]
    status: CallStatus
    size_bytes: int
    summary: str
    preview: str
    identifiers: tuple[str, ...]


def canonical_args(args: Mapping[str, Any]) -> str:
    """The same JSON text for equal arguments, whatever the order of their keys."""
    return json.dumps(args, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
