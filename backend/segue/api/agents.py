"""Lists the agents that a session may have; ops see their instructions, and load the file anew."""

from dataclasses import dataclass
from typing import Annotated

from fastapi import Path

from segue.api.deps import IdentityDep, Ops, Services, ServicesDep, router_of
from segue.api.problems import problems
from segue.api.schemas import AnyLimit, Page
from segue.domain.agent import LIMITS, TurnOption
from segue.domain.field_types import doc
from segue.domain.identity import Identity
from segue.domain.plan import Confirm, ConfirmWords, Planning
from segue.plans.policy import WEB_SEARCH
from segue.turns.turn_deps import Speaker
from segue.users.audit import record_act

AgentId = Annotated[str, Path(description="One of the list.")]

_AS_DECLARED = (
    "name", "description", "temperature", "reasoning_effort", "tools", "not_tools", "greeting", "examples", "options",
)  # fmt: skip

router = router_of("agents", "/agents")


@dataclass(frozen=True, slots=True)
class AgentDescription:
    """Who can answer in a session."""

    id: Annotated[str, doc("For `agent` of a session.")]
    name: Annotated[str, doc("What it is called.")]
    description: Annotated[str, doc("What it is for.")]
    instructions: Annotated[str | None, doc("Null for callers without the scope `ops`.")]
    model: Annotated[str, doc("The model that answers.")]
    models: Annotated[tuple[str, ...], doc("What `model` of a message may be.")]
    small_model: Annotated[str, doc("The model for summaries and facts.")]
    temperature: Annotated[float | None, doc("As the model gets it; null for its default.")]
    reasoning_effort: Annotated[str | None, doc("As the model gets it; null for its default.")]
    tools: Annotated[tuple[str, ...] | None, doc("Patterns of the tools it may use; null for all.")]
    not_tools: Annotated[tuple[str, ...], doc("Patterns of those it may not.")]
    confirm: Annotated[Confirm, doc("Which calls wait for the user's yes.")]
    confirm_words: Annotated[ConfirmWords, doc("Whether a yes to what it has shown in its own words covers a call.")]
    planning: Annotated[Planning, doc("When it makes a plan.")]
    max_rounds: Annotated[int, doc("How often a turn may ask the model what to do next.")]
    max_tool_calls: Annotated[int, doc("How many calls of tools a turn may make.")]
    max_parallel_calls: Annotated[int, doc("How many of them run at once.")]
    web_search: Annotated[bool, doc("Whether it can search the web.")]
    greeting: Annotated[str | None, doc("To show in an empty session.")]
    examples: Annotated[tuple[str, ...], doc("Messages to offer there.")]
    options: Annotated[tuple[TurnOption, ...], doc("What a client may ask of a turn of its.")]


@router.get("")
async def list_agents(services: ServicesDep, identity: IdentityDep, _: AnyLimit = 50) -> Page[AgentDescription]:
    """Lists the agents that a session of the caller's may have."""
    agents = services.agents.of(identity.user, identity.groups)
    return Page([_described(services, speaker, identity) for speaker in agents.values()], None)


@router.get("/{agent_id}")
async def get_agent(agent_id: AgentId, services: ServicesDep, identity: IdentityDep) -> AgentDescription:
    """Shows an agent."""
    return _described(services, services.agents.check(agent_id, identity.user, identity.groups, status=404), identity)


@router.post("/reload", responses=problems("forbidden", "agents_invalid"))
async def reload_agents(services: ServicesDep, operator: Ops) -> Page[AgentDescription]:
    """Loads the file of agents anew. In this process: turns that run keep the agents they began with, and a file that
    cannot be used changes nothing. Lists all that there are. For the scope `ops`.
    """
    await services.database.transact(record_act, operator, "reload_agents")
    await services.agents.reload()
    return Page([_described(services, speaker, operator) for speaker in services.agents.known.values()], None)


def _described(services: Services, speaker: Speaker, identity: Identity) -> AgentDescription:
    agent = speaker.agent
    return AgentDescription(
        id=speaker.id,
        instructions=agent.instructions if "ops" in identity.scopes else None,
        model=speaker.models.main.name,
        models=tuple(dict.fromkeys((speaker.models.main.name, *speaker.others))),
        small_model=speaker.models.small.name,
        web_search=WEB_SEARCH in services.tools.tools() and agent.may_use(WEB_SEARCH),
        **{name: getattr(agent, name) for name in _AS_DECLARED},
        **{name: getattr(speaker.settings, name) for name in LIMITS},
    )
