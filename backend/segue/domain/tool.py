"""What a tool is, how it may fail, and what is kept of a call.

Stdlib and pydantic only: no I/O, no clock. `tools/` runs and stores these, `agent/` shows them to the model.
"""

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

Effect = Literal["read_only", "write", "destructive"]
CallStatus = Literal["running", "succeeded", "failed", "unknown"]
GroupType = Literal["any", "all", "sequence"]


class ToolRetry(Exception):
    """The model can do better: the message says what to change. Never counts against the tool's health."""


class ToolFailed(Exception):
    """The tool ran, or tried to, and says it failed. The message is shown to the model and to the user."""


class ToolLost(ToolFailed):
    """The tool was asked and its answer never came: whether it took effect is unknown."""


class ToolUnauthorized(ToolFailed):
    """The tool's own credentials were refused: trying again cannot help before a person has seen to it."""


@dataclass(frozen=True, slots=True)
class ToolContext:
    """Who a tool runs for. Identity comes from here, never from arguments the model wrote."""

    owner: str
    session_id: str
    turn_id: str
    tool_call_id: str
    now: datetime


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
    """What everyone may know of a tool.

    `input_schema` is JSON Schema (draft 2020-12) of an object; `source` is `builtin` or `mcp:<server>`; `confirm`
    forces (True) or waives (False) the user's yes, None leaves it to `effect`. An `ephemeral` tool leaves no row in the
    ledger. `original_name` is the name the source itself uses. Every group of `depends_on` has to be satisfied.
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
    depends_on: tuple[DependencyGroup, ...] = ()

    @property
    def may_repeat(self) -> bool:
        """Whether a second run does no more harm than the first."""
        return self.effect == "read_only" or self.idempotent


@dataclass(frozen=True, slots=True)
class Tool:
    """A spec and the function behind it.

    The function gets validated arguments and returns anything JSON can hold (or text); it raises `ToolRetry` or
    `ToolFailed`. Time limits, recording and cleaning are `tools/run.py`'s, not the function's. `summarise` says in one
    line what a call with these arguments gave; without it the shape of the result does. `secrets` are texts that it
    knows and nobody may be told.
    """

    spec: ToolSpec
    run: ToolFunction
    summarise: Summarise | None = None
    secrets: frozenset[str] = field(default=frozenset(), repr=False)


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
    """One text for equal arguments, whatever the order of their keys."""
    return json.dumps(args, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
