"""The state of a tool in a session: one answer for operators, the model, the availability check and the log. Pure."""

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field

from segue.domain.doc import doc

ToolStatus = Literal["available", "unavailable", "failed", "maintenance"]
ManualStatus = Literal["available", "unavailable", "maintenance"]
ReasonCode = Literal[
    "consecutive_failures",
    "unauthorized",
    "fleet_failed",
    "half_open",
    "server_away",
    "missing_dependencies",
    "set_by_person",
    "set_for_all",
    "refused_by_model",
    "succeeded",
    "reset",
    "state_unreadable",
]


@dataclass(frozen=True, slots=True)
class ToolState:
    """How a tool is doing."""

    status: Annotated[ToolStatus, doc("The tool's own in this session, unless operators set one for all.")]
    available: Annotated[bool, doc("Whether it can be called: status, dependencies and the fleet together.")]
    reason: Annotated[str | None, doc("Why, to read.")]
    reason_code: Annotated[ReasonCode | None, doc("Why, for programs.")]
    consecutive_failures: Annotated[int | None, doc("Failures since the last success; null for everyone.")]
    execution_count: Annotated[int | None, doc("How often it ran in the session; null for everyone.")]
    last_updated: Annotated[datetime | None, doc("When the state last changed.")]
    last_success_time: Annotated[datetime | None, doc("When it last succeeded.")]
    last_failure_time: Annotated[datetime | None, doc("When it last failed.")]
    retry_at: Annotated[
        datetime | None, doc("When a failed tool may be tried once, or what operators set for all ends.")
    ]
    missing_dependencies: Annotated[tuple[str, ...], doc("Tools that have to succeed first.")]
    suggested_actions: Annotated[tuple[str, ...], doc("What to do about it, to read.")]


@dataclass(frozen=True, slots=True)
class StatusMoved:
    """A change of a tool's status."""

    id: Annotated[str, Field(exclude=True)]  # only a position in the list
    tool: Annotated[str, doc("The tool.")]
    from_: Annotated[ToolStatus, Field(serialization_alias="from", description="Its status before.")]
    to: Annotated[ToolStatus, doc("Its status after.")]
    reason: Annotated[str | None, doc("Why, to read.")]
    reason_code: Annotated[ReasonCode | None, doc("Why, for programs.")]
    at: Annotated[datetime, doc("When.")]
    turn_id: Annotated[str | None, doc("The turn that caused it, null if a person did.")]


@dataclass(frozen=True, slots=True)
class ToolOverview:
    """The tool for everyone, and in how many sessions it has which status of its own."""

    fleet: Annotated[
        ToolState, doc("For everyone; its server as this process sees it. What only sessions count is null.")
    ]
    sessions: Annotated[dict[ToolStatus, int], doc("In how many sessions it has which status of its own.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionToolState(ToolState):
    """How a tool is doing in a session."""

    session_id: Annotated[str, doc("The session.")]
    tool: Annotated[str, doc("The tool.")]
