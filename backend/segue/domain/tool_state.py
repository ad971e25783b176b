"""The state of a tool in a session: one answer for operators, the model, the availability check and the log. Pure."""

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field

ToolStatus = Literal["available", "unavailable", "failed", "maintenance"]
ManualStatus = Literal["available", "unavailable", "maintenance"]
ReasonCode = Literal[
    "consecutive_failures",
    "unauthorized",
    "fleet_failed",
    "half_open",
    "missing_dependencies",
    "set_by_person",
    "refused_by_model",
    "succeeded",
    "reset",
    "state_unreadable",
]


@dataclass(frozen=True, slots=True)
class ToolState:
    """`status` is the tool's own in this session; `available` takes everything together: status, the time a failure
    lasts, dependencies and the fleet. `retry_at` is when a failed tool may be tried once.
    """

    status: ToolStatus
    available: bool
    reason: str | None
    reason_code: ReasonCode | None
    consecutive_failures: int
    execution_count: int
    last_updated: datetime | None
    last_success_time: datetime | None
    last_failure_time: datetime | None
    retry_at: datetime | None
    missing_dependencies: tuple[str, ...]
    suggested_actions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StatusMoved:
    """`turn_id` is the turn that caused it, null where a person did."""

    id: Annotated[str, Field(exclude=True)]  # only a position in the list
    tool: str
    from_: Annotated[ToolStatus, Field(serialization_alias="from")]
    to: ToolStatus
    reason: str | None
    reason_code: ReasonCode | None
    at: datetime
    turn_id: str | None


@dataclass(frozen=True, slots=True)
class ToolOverview:
    """The tool for everyone, and in how many sessions it has which status of its own."""

    fleet: ToolState
    sessions: dict[ToolStatus, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionToolState(ToolState):
    session_id: str
    tool: str
