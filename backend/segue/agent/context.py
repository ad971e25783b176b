"""What a run of the graph depends on and never changes: identity, limits, and the live objects that nodes use."""

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field

from sqlalchemy.ext.asyncio import AsyncConnection

from segue.agent.model import MeteredModel, ModelBudget
from segue.db.redis import Cache
from segue.domain.clock import Clock
from segue.domain.events import Emit
from segue.domain.plan import Confirm, Planning
from segue.domain.session import TurnKey
from segue.domain.telemetry import OpenSpan
from segue.tools.availability import ToolGuard
from segue.tools.retention import Retention
from segue.tools.run import RunLimits


@dataclass(frozen=True, slots=True)
class AgentLimits:
    """Bounds of one turn; `model` are those on what it may ask of the model.

    The model is shown `fresh_result_bytes` of a result in the turn that made it.
    """

    run: RunLimits
    retention: Retention
    memory_ttl_s: int
    fresh_result_bytes: int
    planning: Planning
    confirm: Confirm
    plan_ttl_s: int
    model: ModelBudget = field(default_factory=ModelBudget)
    max_rounds: int = 10
    max_calls: int = 40
    max_parallel_calls: int = 8


@dataclass(frozen=True, slots=True)
class TurnContext:
    """`transaction` opens a short transaction that is refused with StaleTurn once another worker owns the turn.

    `emit` tells whoever follows the turn what happens in it, once it is committed; `listened` says whether somebody
    wants the model's words as they come.
    """

    owner: str
    turn: TurnKey
    clock: Clock
    model: MeteredModel
    guard: ToolGuard
    cache: Cache
    limits: AgentLimits
    transaction: Callable[[], AbstractAsyncContextManager[AsyncConnection]]
    emit: Emit
    span: OpenSpan
    listened: Callable[[], Awaitable[bool]]
