"""Observations of what the service counts, the interface of a span, and what a run did when, in ms since its process
took it. An observation is emitted once, after the commit of what it counts; emitting never waits and never raises.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, Protocol

from segue.domain.identity import Charge
from segue.domain.plan import PlanStatus
from segue.domain.session import Usage, Verdict, WebSearchReport
from segue.domain.tool import ToolStatus

TurnOutcome = Literal["completed", "failed", "cancelled"]
ToolOutcome = Literal["succeeded", "failed", "unauthorized", "bad_arguments", "refused", "asks", "unknown"]
WebhookOutcome = Literal["delivered", "failed", "gone", "given_up"]
MAX_CALLS: Final = 100


@dataclass(frozen=True, slots=True)
class RequestAnswered:
    """`route` is the template of the path, None if none fits; `seconds` last until the answer has ended."""

    method: str
    status: int
    route: str | None
    seconds: float


@dataclass(frozen=True, slots=True)
class TurnEnded:
    """`code` is the error's. A turn that ended while no process ran it has no times."""

    outcome: TurnOutcome
    code: str | None = None
    seconds: float | None = None
    queued_s: float | None = None
    verdict: Verdict | None = None
    web_search: WebSearchReport | None = None


@dataclass(frozen=True, slots=True)
class ModelCalled:
    """`outcome` is `answered`, an error's code, or `cancelled`; `seconds` includes all tries."""

    outcome: str
    seconds: float


@dataclass(frozen=True, slots=True)
class ModelCharged:
    """What a call took, also one that gave no answer. `agent` is the id of who asked, empty outside of turns."""

    charge: Charge
    agent: str = ""


@dataclass(frozen=True, slots=True)
class ModelRetried:
    pass


@dataclass(frozen=True, slots=True)
class ToolCalled:
    """Also a call without a row. `tool` is None if the model named a tool that does not exist."""

    tool: str | None
    outcome: ToolOutcome
    seconds: float


@dataclass(frozen=True, slots=True)
class SessionToolStateChanged:
    """A tool's status changed in one session."""

    tool: str
    status: ToolStatus


@dataclass(frozen=True, slots=True)
class GlobalToolStateChanged:
    """A tool has failed, or works again, for all sessions."""

    tool: str
    failed: bool


@dataclass(frozen=True, slots=True)
class PlanEnded:
    status: PlanStatus
    count: int = 1


@dataclass(frozen=True, slots=True)
class TurnRecovered:
    action: Literal["begun", "queued_again", "ended", "handed_back"]


@dataclass(frozen=True, slots=True)
class RowsDeleted:
    """Retention deleted expired rows of one kind. `size_bytes` is 0 if it is not known."""

    kind: str
    rows: int
    size_bytes: int = 0


@dataclass(frozen=True, slots=True)
class WebhookTried:
    """An event was posted to the operator's webhook. All outcomes but `failed` are final."""

    outcome: WebhookOutcome


@dataclass(frozen=True, slots=True)
class LoopLagged:
    """A timer of the event loop was late by this long, which may be nothing."""

    seconds: float


_OfTurn = TurnEnded | TurnRecovered | PlanEnded | ModelCalled | ModelCharged | ModelRetried
_OfTool = ToolCalled | SessionToolStateChanged | GlobalToolStateChanged
Observation = _OfTurn | _OfTool | RequestAnswered | RowsDeleted | WebhookTried | LoopLagged
Observe = Callable[[Observation], None]


def unobserved(_: Observation) -> None:
    """Counts nothing: for a process without metrics."""


# The W3C traceparent of the innermost open span, for those that are asked from within it; None if tracing is off.
current_traceparent: Final[ContextVar[str | None]] = ContextVar("current_traceparent", default=None)

Attribute = str | float | Sequence[str]


class Span:
    """One operation in a trace; this one is in none, as tracing is off. `content` says whether to set what was said,
    too. A name of an attribute that has a dot is one of OpenTelemetry's.
    """

    content = False
    trace_id: str | None = None  # None while tracing is off
    traceparent: str | None = None  # likewise (W3C)

    def set_attributes(self, **attributes: Attribute) -> None: ...

    def add_event(self, name: str, **attributes: Attribute) -> None: ...

    def fail(self, reason: str) -> None:
        """Marks the span as failed, for work that failed without raising."""


class OpenSpan(Protocol):
    """Opens a span for a block: a child of the current span, or of `parent`, a W3C traceparent."""

    def __call__(
        self, name: str, *, parent: str | None = None, **attributes: Attribute
    ) -> AbstractContextManager[Span]: ...


def trace_of(span: Span) -> dict[str, str]:
    """The fields that link a log line to its trace; empty if tracing is off."""
    return {"trace_id": span.trace_id} if span.trace_id else {}


@dataclass(frozen=True, slots=True)
class Backlog:
    """Open turns of all processes, `lapsed` of them running without a lease; `oldest_s` the longest wait to run."""

    queued: int
    running: int
    lapsed: int
    oldest_s: float


_UNTRACED: Final = nullcontext(Span())


def untraced(name: str, *, parent: str | None = None, **attributes: Attribute) -> AbstractContextManager[Span]:  # noqa: ARG001 (OpenSpan's)
    return _UNTRACED


class NodeRun(NamedTuple):
    """`duration_ms` is None if the node had not ended. Stored as ModelRun is, as an array: every turn has some."""

    node: str
    at_ms: int
    duration_ms: int | None = None


class ModelRun(NamedTuple):
    """A call of a model, with all its tries. `first_token_ms` is None if no client read the answer as it came."""

    model: str
    at_ms: int
    duration_ms: int
    first_token_ms: int | None
    retries: int
    outcome: str
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    cost: float | None


@dataclass(frozen=True, slots=True)
class RunTimeline:
    """Of the last run. `left_out` counts calls of models after MAX_CALLS, `usage` is that of a run without a report."""

    nodes: tuple[NodeRun, ...] = ()
    model_calls: tuple[ModelRun, ...] = ()
    left_out: int = 0
    usage: Usage | None = None
