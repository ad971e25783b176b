"""The agents of this process as turns use them: with their models and limits. All are replaced together, or none.

A turn takes its agent when it starts and keeps it. Knows no file: `load` does.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass

import structlog

from segue.agent.context import AgentLimits
from segue.agent.llm.model_choice import Models
from segue.domain.agent import DEFAULT_AGENT, Agent
from segue.domain.errors import AppError
from segue.domain.identity import Identity

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Speaker:
    """An agent that turns can run with."""

    id: str
    agent: Agent
    digest: str
    models: Models
    limits: AgentLimits


class Agents:
    """`load` returns the agents by id; the default one is among them. It raises AppError if they cannot be used."""

    def __init__(self, load: Callable[[], Awaitable[Mapping[str, Speaker]]]) -> None:
        self._load = load
        self._loading = asyncio.Lock()
        self.known: Mapping[str, Speaker] = {}

    async def reload(self) -> None:
        """Raises AppError `agents_invalid`: then those that were known stay."""
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

    def groups_of(self, identity: Identity) -> tuple[str, ...]:
        """Returns the caller's groups that agents are for: an identity provider may send hundreds."""
        named = {group for each in self.known.values() for group in each.agent.groups or ()}
        return tuple(sorted(named & identity.groups))

    def speaker(self, agent_id: str, user: str, groups: Collection[str]) -> Speaker:
        """Returns the default agent in the place of one that is gone, or is not for this user."""
        return self.of(user, groups).get(agent_id) or self.known[DEFAULT_AGENT]

    def check(self, agent_id: str, user: str, groups: Collection[str], *, status: int) -> Speaker:
        """Raises AppError `unknown_agent`."""
        if (found := self.of(user, groups).get(agent_id)) is None:
            detail = f"There is no agent called {agent_id[:64]!r}. GET /agents lists those there are."
            raise AppError("unknown_agent", status=status, title="Unknown agent", detail=detail)
        return found
