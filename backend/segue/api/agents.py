"""Lists the agents that a session may have; ops see their instructions, and load the file anew."""

from dataclasses import dataclass

from fastapi import APIRouter

from segue.api.deps import IdentityDep, Ops, Services, ServicesDep
from segue.api.problems import PROBLEMS
from segue.api.schemas import Page
from segue.domain.identity import Identity
from segue.domain.plan import Confirm, Planning
from segue.plans.policy import WEB_SEARCH
from segue.turns.agents import Speaker

router = APIRouter(prefix="/agents", tags=["agents"], responses=PROBLEMS)


@dataclass(frozen=True, slots=True)
class AgentDescription:
    """`tools` and `not_tools` are patterns; null for all tools. `instructions` is null for callers without the scope
    ops.
    """

    id: str
    name: str
    description: str
    instructions: str | None
    model: str
    small_model: str
    temperature: float | None
    reasoning_effort: str | None
    tools: tuple[str, ...] | None
    not_tools: tuple[str, ...]
    confirm: Confirm
    planning: Planning
    web_search: bool
    greeting: str | None
    examples: tuple[str, ...]


@router.get("")
async def list_agents(services: ServicesDep, identity: IdentityDep) -> Page[AgentDescription]:
    return _all(services, identity)


@router.get("/{agent_id}")
async def get_agent(agent_id: str, services: ServicesDep, identity: IdentityDep) -> AgentDescription:
    return _described(services, services.agents.check(agent_id, status=404), identity)


@router.post("/reload")
async def reload_agents(services: ServicesDep, identity: IdentityDep, _: Ops) -> Page[AgentDescription]:
    """In this process. Turns that run keep the agents they began with; a file that cannot be used changes nothing."""
    await services.agents.reload()
    return _all(services, identity)


def _all(services: Services, identity: Identity) -> Page[AgentDescription]:
    return Page([_described(services, speaker, identity) for speaker in services.agents.known.values()], None)


def _described(services: Services, speaker: Speaker, identity: Identity) -> AgentDescription:
    agent = speaker.agent
    return AgentDescription(
        id=speaker.id,
        name=agent.name,
        description=agent.description,
        instructions=agent.instructions if "ops" in identity.scopes else None,
        model=speaker.models.main.name,
        small_model=speaker.models.small.name,
        temperature=agent.temperature,
        reasoning_effort=agent.reasoning_effort,
        tools=agent.tools,
        not_tools=agent.not_tools,
        confirm=speaker.limits.confirm,
        planning=speaker.limits.planning,
        web_search=WEB_SEARCH in services.tools.tools() and agent.may_use(WEB_SEARCH),
        greeting=agent.greeting,
        examples=agent.examples,
    )
