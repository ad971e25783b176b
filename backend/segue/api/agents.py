"""Lists the agents that a session may have; ops see their instructions, and load the file anew."""

from dataclasses import dataclass
from typing import Annotated

from fastapi import Path

from segue.api.deps import IdentityDep, Ops, Parts, Services, router_of
from segue.api.problems import problems
from segue.api.schemas import AnyLimit, Page
from segue.domain.agent import LIMITS, TurnOption
from segue.domain.field_types import doc
from segue.domain.identity import Identity
from segue.domain.plan import Confirm, ConfirmWords, Planning
from segue.plans.policy import WEB_SEARCH
from segue.turns.turn_deps import Speaker
from segue.users.audit import record_act

AgentId = Annotated[str, Path(description="The id of an agent that `GET /agents` lists.")]

_AS_DECLARED = (
    "name", "description", "temperature", "reasoning_effort", "tools", "not_tools", "greeting", "examples", "options",
)  # fmt: skip

router = router_of("agents", "/agents")


@dataclass(frozen=True, slots=True)
class AgentDescription:
    """An agent that can answer in a session."""

    id: Annotated[str, doc("The agent's id, for `agent` of a session.")]
    name: Annotated[str, doc("The agent's name, for people.")]
    description: Annotated[str, doc("What the agent is for.")]
    instructions: Annotated[str | None, doc("The agent's instructions; null for callers without the scope `ops`.")]
    model: Annotated[str, doc("The model that answers, unless a message names another one.")]
    models: Annotated[tuple[str, ...], doc("The models that `model` of a message may name.")]
    small_model: Annotated[str, doc("The model that writes summaries and notes facts.")]
    temperature: Annotated[float | None, doc("The temperature of the model; null for its default.")]
    reasoning_effort: Annotated[str | None, doc("The reasoning effort of the model; null for its default.")]
    tools: Annotated[tuple[str, ...] | None, doc("Name patterns of the tools that the agent may use; null for all.")]
    not_tools: Annotated[tuple[str, ...], doc("Name patterns of tools that the agent may not use.")]
    confirm: Annotated[Confirm, doc("Which tool calls wait for the user's yes.")]
    confirm_words: Annotated[ConfirmWords, doc("Whether a yes to an offer in the model's own words can cover a call.")]
    planning: Annotated[Planning, doc("When the agent makes a plan for a message.")]
    max_rounds: Annotated[int, doc("How many times a turn may ask the model what to do next.")]
    max_tool_calls: Annotated[int, doc("How many tool calls a turn may make.")]
    max_parallel_calls: Annotated[int, doc("How many tool calls of a turn may run at once.")]
    web_search: Annotated[bool, doc("Whether the agent can search the web.")]
    greeting: Annotated[str | None, doc("A greeting to show in an empty session; null for none.")]
    examples: Annotated[tuple[str, ...], doc("Examples of messages to offer in an empty session.")]
    options: Annotated[tuple[TurnOption, ...], doc("Options that a client may set for a turn of the agent.")]


@router.get("")
async def list_agents(services: Parts, identity: IdentityDep, _: AnyLimit = 50) -> Page[AgentDescription]:
    """Lists the agents that the caller may use."""
    agents = services.agents.of(identity.user, identity.groups)
    return Page([_described(services, speaker, identity) for speaker in agents.values()], None)


@router.get("/{agent_id}")
async def get_agent(agent_id: AgentId, services: Parts, identity: IdentityDep) -> AgentDescription:
    """Shows one of the agents."""
    return _described(services, services.agents.check(agent_id, identity.user, identity.groups, status=404), identity)


@router.post("/reload", responses=problems("forbidden", "agents_invalid"))
async def reload_agents(services: Parts, operator: Ops) -> Page[AgentDescription]:
    """Reloads the file of agents in this process, and lists them all. Running turns keep the agents they began with; a
    file that cannot be used changes nothing. Needs the scope `ops`.
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
