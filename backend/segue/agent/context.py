"""What a run of the graph depends on and never changes: identity, limits, and the live objects that nodes use.

What a turn learns and changes is in `state.py`.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol

from sqlalchemy.ext.asyncio import AsyncConnection

from segue.agent.agent_settings import AgentSettings
from segue.agent.tool_choice import ToolChooser
from segue.db.redis import Cache
from segue.domain.approval_rule import ApprovalRule
from segue.domain.events import Emit, SteerRead
from segue.domain.ids import Clock
from segue.domain.session import TurnKey, TurnOptions
from segue.domain.telemetry import OpenSpan
from segue.domain.tool import ToolContext
from segue.domain.user_request import UserAnswer
from segue.memory.history import NewMessage
from segue.models.metered_model import MeteredModel
from segue.plans.mandates import Use
from segue.tools.availability import ToolGuard
from segue.tools.results import PlanStep

WriteWithStart = Callable[[AsyncConnection], Awaitable[None]]


class StartCalls(Protocol):
    """Stores a message and its calls; `also` is written in the same transaction. Those that run `under` a mandate are
    booked in it. Raises MandateSpent.
    """

    async def __call__(
        self,
        message: NewMessage,
        *,
        step: PlanStep | None = None,
        under: Mapping[str, Use] = MappingProxyType({}),
        also: WriteWithStart | None = None,
    ) -> None: ...


@dataclass(frozen=True, slots=True)
class TurnContext:
    """The identity comes from the request, never from the model.

    `transaction` opens a short transaction that raises StaleTurn once another worker owns the turn, and so does
    `start_calls`, which stores calls before they run. `emit` takes an event, only after its commit. `is_steered`
    returns whether the user has said something to the turn since, and `read_steers` makes it part of the turn, in the
    caller's transaction. `has_listener` returns whether the turn has a follower who wants words as they come.
    `agent` is the id of the agent that answers, and `agent_digest` is its own. `options` are what the client asked of
    the turn. `approvals` are the agent's rules about who approves.
    """

    owner: str
    turn: TurnKey
    time_zone: str
    clock: Clock
    model: MeteredModel
    guard: ToolGuard
    agent: str
    agent_digest: str
    approvals: Sequence[ApprovalRule]
    options: TurnOptions
    chooser: ToolChooser
    cache: Cache
    settings: AgentSettings
    transaction: Callable[[], AbstractAsyncContextManager[AsyncConnection]]
    start_calls: StartCalls
    is_steered: Callable[[], Awaitable[bool]]
    read_steers: Callable[[AsyncConnection], Awaitable[Sequence[SteerRead]]]
    emit: Emit
    span: OpenSpan
    has_listener: Callable[[], Awaitable[bool]]

    def caller(self, tool_call_id: str, answers: tuple[UserAnswer, ...] = ()) -> ToolContext:
        """Returns what a tool, and the policy, is told of who a call is for; `answers` are to what it asked before."""
        return ToolContext(
            owner=self.owner,
            session_id=self.turn.session_id,
            turn_id=self.turn.turn_id,
            tool_call_id=tool_call_id,
            now=self.clock(),
            time_zone=self.time_zone,
            agent=self.agent,
            answers=answers,
            groups=self.guard.groups,
        )
