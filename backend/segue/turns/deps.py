"""What running a turn needs, put together once by `main`."""

from dataclasses import dataclass

from segue.agent.graph import Graph
from segue.agent.tool_choice.choice import ChoiceLimits
from segue.agent.tool_choice.search import ToolSearch
from segue.db.engine import Database
from segue.db.redis import Cache
from segue.domain.clock import Clock
from segue.domain.telemetry import Observe, OpenSpan
from segue.events.log import EventLog
from segue.jobs.fact_extraction import DueExtraction
from segue.jobs.fact_upkeep import FactUpkeep
from segue.jobs.leased_loop import JobLoop
from segue.memory.long_term import LongTermMemory
from segue.memory.summary import DueSummary
from segue.memory.titles import DueTitle
from segue.tools.availability import ToolAvailability
from segue.turns.agents import Agents
from segue.turns.context import ContextLimits
from segue.turns.limits import Limiter
from segue.turns.maintenance import KeepLimits
from segue.usage.account import Books


@dataclass(frozen=True, slots=True)
class TurnLimits:
    """`concurrency` is how many turns a process runs at once; `grace_s` how long they have to end when it stops."""

    timeout_s: float
    lease_s: float
    grace_s: float
    context: ContextLimits
    choice: ChoiceLimits
    kept: KeepLimits
    concurrency: int


@dataclass(frozen=True, slots=True)
class TurnDeps:
    database: Database
    cache: Cache
    events: EventLog
    graph: Graph
    agents: Agents
    tools: ToolAvailability
    tool_search: ToolSearch
    limiter: Limiter
    books: Books
    clock: Clock
    long_term: LongTermMemory
    fact_extraction: JobLoop[DueExtraction]
    fact_upkeep: FactUpkeep
    summaries: JobLoop[DueSummary]
    titles: JobLoop[DueTitle] | None
    limits: TurnLimits
    observe: Observe
    span: OpenSpan
