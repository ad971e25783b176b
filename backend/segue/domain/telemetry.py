"""What is worth counting, told by whoever does it, and the shape of a span. Who counts and traces is `telemetry/`'s.

An observation is told once, after what it tells has been stored; telling it never waits and never raises.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Literal, Protocol

from segue.domain.plan import PlanStatus
from segue.domain.session import Verdict, WebSearchReport
from segue.domain.tool_state import ToolStatus

TurnOutcome = Literal["completed", "failed", "cancelled"]
Recovery = Literal["begun", "queued_again", "ended", "handed_back"]


@dataclass(frozen=True, slots=True)
class RequestAnswered:
    method: str
    status: int


@dataclass(frozen=True, slots=True)
class TurnEnded:
    """`code` is the error's. A turn that nobody was running when it ended has no times."""

    outcome: TurnOutcome
    code: str | None = None
    seconds: float | None = None
    queued_s: float | None = None
    verdict: Verdict | None = None
    web_search: WebSearchReport | None = None


@dataclass(frozen=True, slots=True)
class ModelCalled:
    """`outcome` is `answered`, the code of an error, or `cancelled`; the seconds are those of all its tries."""

    outcome: str
    seconds: float
    input_tokens: int = 0
    output_tokens: int = 0


@dataclass(frozen=True, slots=True)
class ModelRetried:
    pass


@dataclass(frozen=True, slots=True)
class ToolCalled:
    """`tool` is None for a name that is not in the catalog."""

    tool: str | None
    outcome: str
    seconds: float


@dataclass(frozen=True, slots=True)
class SessionToolStateChanged:
    """In one session."""

    tool: str
    status: ToolStatus


@dataclass(frozen=True, slots=True)
class GlobalToolStateChanged:
    """For all sessions."""

    tool: str
    failed: bool


@dataclass(frozen=True, slots=True)
class PlanEnded:
    status: PlanStatus
    count: int = 1


@dataclass(frozen=True, slots=True)
class TurnRecovered:
    action: Recovery


@dataclass(frozen=True, slots=True)
class RowsDeleted:
    """What has had its time; `size_bytes` where it is known."""

    kind: str
    rows: int
    size_bytes: int = 0


Observation = (
    RequestAnswered
    | TurnEnded
    | ModelCalled
    | ModelRetried
    | ToolCalled
    | SessionToolStateChanged
    | GlobalToolStateChanged
    | PlanEnded
    | TurnRecovered
    | RowsDeleted
)
Observe = Callable[[Observation], None]


def unobserved(_: Observation) -> None:
    """For a process that only looks, and counts nothing."""


class Span(Protocol):
    """A piece of work in a trace. `trace_id` and `traceparent` (W3C) are None where nothing is traced."""

    @property
    def trace_id(self) -> str | None: ...

    @property
    def traceparent(self) -> str | None: ...

    def set_attributes(self, **attributes: str | float) -> None: ...

    def fail(self, reason: str) -> None:
        """For work that went wrong without raising."""


class OpenSpan(Protocol):
    """The span of a block, below the one it stands in or below `parent`, a W3C traceparent from elsewhere."""

    def __call__(
        self, name: str, *, parent: str | None = None, **attributes: str | float
    ) -> AbstractContextManager[Span]: ...


def trace_of(span: Span) -> dict[str, str]:
    """What joins a line of the log to its trace; nothing where nothing is traced."""
    return {"trace_id": span.trace_id} if span.trace_id else {}
