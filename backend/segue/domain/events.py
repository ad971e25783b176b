"""The events that the agent emits while a turn runs; a report is one as it is. Knows no encoding and no follower."""

from collections.abc import Callable
from dataclasses import dataclass

from segue.domain.plan import Plan
from segue.domain.session import AcknowledgementReport, Message, RequestedCall, TurnKey, WebSearchReport
from segue.domain.telemetry import ToolCalled
from segue.domain.tool import Reference, ToolState, TurnEffect


@dataclass(frozen=True, slots=True)
class StepStarted:
    """A node of the graph, not a step of a plan."""

    name: str


@dataclass(frozen=True, slots=True)
class StepFinished:
    name: str


@dataclass(frozen=True, slots=True)
class PlanChanged:
    plan: Plan


@dataclass(frozen=True, slots=True)
class CallBegun:
    """The model writes a call that will run unasked. CallStarted follows under the same id, or else CallGivenUp."""

    tool_call_id: str
    tool_name: str
    message_id: str


@dataclass(frozen=True, slots=True)
class ArgumentsAdded:
    """The next piece of the arguments of such a call, as JSON. All of them together lack at least the last `}`."""

    tool_call_id: str
    text: str


@dataclass(frozen=True, slots=True)
class CallGivenUp:
    """A call that has begun will not be made: the answer broke off, or it came out otherwise."""

    tool_call_id: str


@dataclass(frozen=True, slots=True)
class CallStarted:
    """`message_id` is the assistant's message that asks for the call."""

    call: RequestedCall
    message_id: str


@dataclass(frozen=True, slots=True)
class MandateUsed:
    """A call that would have waited for a yes runs under a mandate of the user's."""

    tool_call_id: str
    tool_name: str
    mandate_id: str


@dataclass(frozen=True, slots=True)
class CallProgressed:
    """How far a running call is, as its tool counts; `total` and `message` only if the tool says them."""

    tool_call_id: str
    progress: float
    total: float | None
    message: str | None


@dataclass(frozen=True, slots=True)
class CallEnded:
    """`message_id` is the tool message that holds the reference."""

    reference: Reference
    message_id: str


@dataclass(frozen=True, slots=True)
class ToolStateChanged:
    """The tool's status in the session has changed."""

    tool_name: str
    state: ToolState


@dataclass(frozen=True, slots=True)
class SteerRead:
    """The turn has read a message that came while it ran. `was` is the turn that the message would have been."""

    message: Message
    was: TurnKey


@dataclass(frozen=True, slots=True)
class EffectsListed:
    """What the turn has changed, may have changed, or waits to change: once, behind the words of its answer."""

    effects: tuple[TurnEffect, ...]


@dataclass(frozen=True, slots=True)
class TextStarted:
    message_id: str


@dataclass(frozen=True, slots=True)
class TextAdded:
    message_id: str
    text: str


@dataclass(frozen=True, slots=True)
class TextEnded:
    """`cut_off` is what had been said of a message that its turn was stopped in."""

    message_id: str
    cut_off: str | None = None


@dataclass(frozen=True, slots=True)
class ReasoningStarted:
    """The model thinks aloud. What it thinks is no part of the answer, and can be read again with it."""

    message_id: str


@dataclass(frozen=True, slots=True)
class ReasoningAdded:
    message_id: str
    text: str


@dataclass(frozen=True, slots=True)
class ReasoningEnded:
    message_id: str


_OfTurn = StepStarted | StepFinished | AcknowledgementReport | WebSearchReport | PlanChanged | SteerRead | EffectsListed
_OfCall = CallStarted | MandateUsed | CallProgressed | CallEnded | ToolCalled | ToolStateChanged
_OfText = TextStarted | TextAdded | TextEnded | ReasoningStarted | ReasoningAdded | ReasoningEnded
Event = _OfTurn | _OfCall | CallBegun | ArgumentsAdded | CallGivenUp | _OfText
Emit = Callable[[Event], None]
