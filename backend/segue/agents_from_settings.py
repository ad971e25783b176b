"""The agents that AGENTS_CONFIG declares, checked against the models and tools that there are. Makes none of them."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from segue.agents.config import AgentsFile, add_agents, agents_invalid, read_agents_file
from segue.config import Settings
from segue.domain.agent import DEFAULT_AGENT, OF_THE_ENGINE, Agent
from segue.mcp.config import read_mcp_config
from segue.plans.policy import WEB_SEARCH
from segue.secret_files import read_secrets
from segue.tools.catalog import BUILTIN
from segue.tools.native import native_tools
from segue.usage.prices import read_prices

MayExist = Callable[[str], bool]

WILDCARDS: Final = frozenset("*?[")


def declared_agents(
    settings: Settings, may_exist: MayExist, given: Mapping[str, Agent] = MappingProxyType({})
) -> dict[str, Agent]:
    """Returns the agents of the file and those `given`, by id, with the one that is always there. `may_exist` says
    whether there may be such a tool.

    Raises AppError `agents_invalid`, whose detail has a line for each fault.
    """
    path = settings.agents_config
    if path != Settings.model_fields["agents_config"].default and not path.exists():
        raise agents_invalid([f"AGENTS_CONFIG={path} does not exist. Correct it, or leave it out for one agent."])
    file = read_agents_file(path)
    add_agents(file, given)
    for agent_id, agent in file.agents.items():
        _check_models(file, agent_id, agent, settings)
        _check_tools(file, agent_id, agent, may_exist)
    default = file.agents.pop(DEFAULT_AGENT, Agent())
    for key in ("users", "groups"):
        if getattr(default, key) is not None:
            file.refuse(("agents", DEFAULT_AGENT, key), "cannot be: it answers in the place of agents that are gone")
    told = [default.instructions, _added_instructions(settings, file)]
    if file.faults:
        raise agents_invalid(file.faults)
    default = replace(default, instructions="\n\n".join(filter(None, told)))
    agents = {DEFAULT_AGENT: default, **file.agents}
    return {agent_id: _without_search(agent) for agent_id, agent in agents.items()}


def _check_models(file: AgentsFile, agent_id: str, agent: Agent, settings: Settings) -> None:
    for key, model in {"model": agent.model, "small_model": agent.small_model}.items():
        if model is None:
            continue
        fault = settings.fault_of_model(model, is_needed=settings.model_configured)
        if settings.cost_cap and read_prices(settings.prices_file).of(model) is None:
            fault = fault or f"has no price in the file PRICES_FILE, which {settings.cost_cap} needs"
        if fault:
            file.refuse(("agents", agent_id, key), f"is {model}, which {fault}")


def _check_tools(file: AgentsFile, agent_id: str, agent: Agent, may_exist: MayExist) -> None:
    """A name with a wildcard may fit nothing yet: a server may connect at any time."""
    for key, names in {"tools": agent.tools or (), "not_tools": agent.not_tools}.items():
        known = BUILTIN | OF_THE_ENGINE if key == "not_tools" else frozenset()  # also what is not offered now
        for name in names:
            if WILDCARDS.isdisjoint(name) and name not in known and not may_exist(name):
                file.refuse(("agents", agent_id, key), f"names {name}, and there is no such tool: see GET /tools")
    if agent.web_search and not may_exist(WEB_SEARCH):
        file.refuse(("agents", agent_id, "web_search"), "is true, and WEB_SEARCH_PROVIDER or DISABLED_TOOLS forbid it")


def _added_instructions(settings: Settings, file: AgentsFile) -> str:
    path = settings.instructions_file
    try:
        return path.read_text("utf-8-sig").strip() if path else ""
    except (OSError, UnicodeDecodeError):
        file.faults.append(f"INSTRUCTIONS_FILE={path} cannot be read as UTF-8 text. Correct it, or leave it out.")
        return ""


def _without_search(agent: Agent) -> Agent:
    return replace(agent, not_tools=(*agent.not_tools, WEB_SEARCH)) if agent.web_search is False else agent


def tools_before_start(settings: Settings) -> MayExist:
    """Returns what is known of tools before any server has been asked for its own. Raises AppError for mcp.json
    and for a native tool.
    """
    servers = read_mcp_config(settings.mcp_config, read_secrets(settings.secrets_dir)).servers.values()
    prefixes = tuple(server.prefix for server in servers if not server.off)
    off = {*settings.disabled_tools, *([WEB_SEARCH] if settings.web_search_provider == "none" else [])}
    known = (BUILTIN - off) | {tool.spec.name for tool in native_tools(disabled=settings.disabled_tools)}
    return lambda name: name in known or name.startswith(prefixes)
