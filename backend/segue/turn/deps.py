"""What running a turn needs, put together once by `main`."""

from dataclasses import dataclass

from backend.agent.context import AgentLimits, Clock
from backend.agent.graph import Graph
from backend.agent.model import ChatModel
from backend.db.engine import Database
from backend.db.redis import Cache
from backend.domain.telemetry import Observe, OpenSpan
from backend.memory.long_term import LongTermMemory
from backend.tools.guard import NewGuard
from backend.turn.afterwards import Afterwards
from backend.turn.events import EventLog
from backend.turn.limiter import Limiter
from backend.turn.retention import KeepLimits
from backend.turn.snapshot import SnapshotLimits
from backend.turn.summaries import Summaries


@dataclass(frozen=True, slots=True)
class TurnLimits:
    """`concurrency` is how many turns a process runs at once; `grace_s` how long they have to end when it stops."""

    timeout_s: float
    lease_s: float
    grace_s: float
    snapshot: SnapshotLimits
    kept: KeepLimits
    concurrency: int


@dataclass(frozen=True, slots=True)
class TurnDeps:
    database: Database
    cache: Cache
    events: EventLog
    graph: Graph
    model: ChatModel
    new_guard: NewGuard
    limiter: Limiter
    clock: Clock
    long_term: LongTermMemory
    afterwards: Afterwards
    summaries: Summaries
    agent_limits: AgentLimits
    limits: TurnLimits
    observe: Observe
    span: OpenSpan
