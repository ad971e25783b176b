"""The dependencies of a turn, and this process's agents: replaced together, or not at all. A turn keeps its agent."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field, replace

from segue.agent.agent_settings import AgentSettings
from segue.agent.graph import Graph
from segue.agent.tool_choice import CountToolTokens, ToolSearch
from segue.db.engine import Database
from segue.db.redis_keys import Cache
from segue.domain.agent import DEFAULT_AGENT, Agent
from segue.domain.errors import AppError, app_error
from segue.domain.ids import Clock
from segue.domain.telemetry import Observe, OpenSpan
from segue.events.event_log import EventLog
from segue.log import log
from segue.memory.history_window import CountTokens
from segue.memory.long_term import LongTermMemory
from segue.memory.summary import DueSummary
from segue.models.metered_model import Models
from segue.tools.availability import ToolAvailability
from segue.turns.admission import Limiter
from segue.turns.jobs.learn_facts import DueExtraction, FactUpkeep
from segue.turns.jobs.leased_loop import JobLoop
from segue.turns.jobs.summaries_and_titles import DueTitle
from segue.turns.turn_settings import TurnSettings
from segue.users.usage import Books


@dataclass(frozen=True, slots=True)
class Speaker:
    """An agent that turns can run with. `others` are by name the models that a request may ask for."""

    id: str
    agent: Agent
    digest: str
    models: Models
    settings: AgentSettings
    others: Mapping[str, Models] = field(default_factory=dict)

    def answering_with(self, name: str | None) -> "Speaker":
        """Returns the agent with the model that a request asked for, if it still allows it."""
        return replace(self, models=self.others[name]) if name is not None and name in self.others else self

    def check_model(self, name: str) -> None:
        """Raises AppError `option_not_allowed`."""
        if name not in (allowed := (self.models.main.name, *self.others)):
            raise app_error("model_not_allowed", allowed=", ".join(allowed), extra={"param": "model"})


class Agents:
    """`load` returns the agents by id; the default one is among them. It raises AppError if they cannot be used."""

    def __init__(self, load: Callable[[], Awaitable[Mapping[str, Speaker]]]) -> None:
        self._load = load
        self._loading = asyncio.Lock()
        self.known: Mapping[str, Speaker] = {}

    async def reload(self) -> None:
        """Raises AppError `agents_invalid`: then the agents stay as they were."""
        async with self._loading:
            self.known = await self._load()
        log.info("agents_loaded", agents=list(self.known))

    async def reload_if_valid(self) -> None:
        try:
            await self.reload()
        except AppError as error:
            log.warning("agents_refused", detail=error.detail)

    def of(self, user: str, groups: Collection[str]) -> dict[str, Speaker]:
        """Returns the agents that there are for a user in these groups, by id. The default one is among them."""
        return {each.id: each for each in self.known.values() if each.agent.is_for(user, groups)}

    def groups(self) -> frozenset[str]:
        """Returns the groups that agents are for."""
        return frozenset(group for each in self.known.values() for group in each.agent.groups or ())

    def speaker(self, agent_id: str, user: str, groups: Collection[str]) -> Speaker:
        """Returns the default agent in the place of one that is gone, or is not for this user."""
        return self._found(agent_id, user, groups) or self.known[DEFAULT_AGENT]

    def check(self, agent_id: str, user: str, groups: Collection[str], *, status: int) -> Speaker:
        """Raises AppError `unknown_agent`."""
        if (found := self._found(agent_id, user, groups)) is None:
            raise app_error("unknown_agent", name=agent_id[:64], status=status)
        return found

    def _found(self, agent_id: str, user: str, groups: Collection[str]) -> Speaker | None:
        found = self.known.get(agent_id)
        return found if found is not None and found.agent.is_for(user, groups) else None


def unsampled(owner: str, groups: Collection[str], session_id: str) -> None:
    """Records no session."""


@dataclass(frozen=True, kw_only=True)
class TurnDeps:
    """A job that is None has nothing to work with. `sample` takes owner, groups and session id of a turn that ended."""

    settings: TurnSettings
    database: Database
    cache: Cache
    events: EventLog
    graph: Graph
    agents: Agents
    tools: ToolAvailability
    tool_search: ToolSearch
    tool_tokens: CountToolTokens  # those that tools take in a request
    count: CountTokens  # the tokens of a text
    limiter: Limiter
    books: Books
    clock: Clock
    long_term: LongTermMemory
    fact_extraction: JobLoop[DueExtraction]
    fact_upkeep: FactUpkeep
    summaries: JobLoop[DueSummary] | None
    titles: JobLoop[DueTitle] | None
    sample: Callable[[str, Collection[str], str], None]
    observe: Observe
    span: OpenSpan
