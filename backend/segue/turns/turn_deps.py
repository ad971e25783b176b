"""What running a turn needs, put together once by `main`."""

from dataclasses import dataclass

from segue.agent.graph import Graph
from segue.agent.tool_choice import ChoiceLimits, ToolSearch
from segue.db.engine import Database
from segue.db.redis import Cache
from segue.domain.ids import Clock
from segue.domain.telemetry import Observe, OpenSpan
from segue.events.event_log import EventLog
from segue.memory.long_term import LongTermMemory
from segue.memory.summary import DueSummary, DueTitle
from segue.tools.availability import ToolAvailability
from segue.turns.admission import Limiter
from segue.turns.jobs.learn_facts import DueExtraction, FactUpkeep
from segue.turns.jobs.leased_loop import JobLoop
from segue.turns.snapshot import Agents, ContextLimits
from segue.users.account import Books


@dataclass(frozen=True, slots=True)
class KeepLimits:
    """After how many days idle sessions, changes of tool states, what operators did, usage, and what turns did when are
    deleted. None and 0 keep for ever.
    """

    session_days: int | None
    change_days: int
    audit_days: int
    usage_days: int
    turn_detail_days: int


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
