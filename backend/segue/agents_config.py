"""Reads the agents that AGENTS_CONFIG declares, and checks their models and tools. Each fault has its line."""

import os
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Final

import orjson
from pydantic import Field, TypeAdapter, ValidationError

from segue.config import Settings
from segue.domain.agent import DEFAULT_AGENT, OF_THE_ENGINE, Agent
from segue.domain.approval_rule import ApprovalRule, RuleBound
from segue.domain.errors import AppError, app_error
from segue.log import log
from segue.mcp.mcp_config import read_mcp_config
from segue.plans.policy import WEB_SEARCH
from segue.secret_files import read_secrets
from segue.tools.builtin import BUILTIN, DEFINED
from segue.tools.native import native_tools
from segue.users.prices import read_prices

Place = tuple[str, ...]  # of a key: its tables' names and its own
MayExist = Callable[[str], bool]

FILE_KEY: Final = "instructions_file"
KEYS: Final = (*(each.name for each in fields(Agent)), FILE_KEY)
RULE_KEYS: Final = (*(each.name for each in fields(ApprovalRule)),)
WILDCARDS: Final = frozenset("*?[")

_ID: Final = TypeAdapter(Annotated[str, Field(pattern="^[a-z0-9][a-z0-9_-]{0,63}$")])
_AGENT: Final = TypeAdapter(Agent)


@dataclass(slots=True)
class AgentsFile:
    """The valid agents of a file by id, and a sentence for each fault in it."""

    path: Path
    text: str = ""
    agents: dict[str, Agent] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)

    def refuse(self, place: Place, what: str) -> None:
        line = _line_of(place, self.text)
        at = f"{self.path}, line {line}" if line else str(self.path)
        self.faults.append(f"{at}: {'.'.join(place)} {what.rstrip('.')}.")


def agents_invalid(faults: list[str]) -> AppError:
    return app_error("agents_invalid", faults="\n".join(faults))


def read_agents_file(path: Path) -> AgentsFile:
    """Returns what the file declares, nothing if there is none. Raises AppError `agents_invalid` if it is no TOML."""
    try:
        text = path.read_text("utf-8-sig")
        raw = tomllib.loads(text)
    except FileNotFoundError:
        return AgentsFile(path)
    except OSError as error:
        raise agents_invalid([f"{path} cannot be read: {error.strerror}."]) from None
    except UnicodeDecodeError:
        raise agents_invalid([f"{path} is not UTF-8 text: save it as UTF-8."]) from None
    except tomllib.TOMLDecodeError as error:
        raise agents_invalid([f"{path} is not TOML: {error}."]) from None
    file = AgentsFile(path, text)
    for name in raw.keys() - {"agents"}:
        file.refuse((name,), "is not known here: an agent is a table [agents.<id>]")
    declared = raw.get("agents", {})
    if not isinstance(declared, dict):
        file.refuse(("agents",), "should be tables [agents.<id>]")
        return file
    for agent_id, table in declared.items():
        _add(file, agent_id, table)
    return file


def add_agents(file: AgentsFile, given: Mapping[str, Agent]) -> None:
    """Adds the agents that a program gives to create_app, checked like those of the file."""
    for agent_id, agent in given.items():
        if agent_id in file.agents:
            file.refuse(("agents", agent_id), "is given to create_app too: rename one of them")
        else:
            _add(file, agent_id, asdict(agent))


def _add(file: AgentsFile, agent_id: str, table: Any) -> None:
    place = ("agents", agent_id)
    try:
        _ID.validate_python(agent_id)
        given = {"name": agent_id.capitalize(), **_with_instructions(file, place, table)}
        written = orjson.dumps(given, default=RuleBound.written)  # strict: JSON has no instances
        file.agents[agent_id] = _AGENT.validate_json(written)
    except ValidationError as error:
        for fault in error.errors(include_url=False, include_input=False):
            file.refuse((*place, *map(str, fault["loc"])), _what(fault))


def _with_instructions(file: AgentsFile, place: Place, table: Any) -> dict[str, Any]:
    """Returns the table with the text of its `instructions_file` as `instructions`."""
    if not isinstance(table, dict):
        file.refuse(place, "should be a table")
        return {}
    given = {key: value for key, value in table.items() if key != FILE_KEY}
    if (name := table.get(FILE_KEY)) is None:
        return given
    if "instructions" in table:
        file.refuse((*place, FILE_KEY), "stands beside instructions: give one of the two")
    try:
        return {**given, "instructions": (file.path.parent / str(name)).read_text("utf-8-sig").strip()}
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        file.refuse((*place, FILE_KEY), f"names {name}, which cannot be read: {why}")
        return given


def _what(fault: Any) -> str:
    if not fault["loc"]:
        return "is no id of an agent: lower-case letters, digits, _ and -, at most 64"
    if fault["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
        of, keys = ("a rule", RULE_KEYS) if "approvals" in fault["loc"] else ("an agent", KEYS)
        return f"is no key of {of}. There are {', '.join(keys)}"
    if fault["type"] == "string_pattern_mismatch":
        return "should be one line that does not begin with a space"
    return str(fault["msg"]).replace("Input should", "should")


def _line_of(place: Place, text: str) -> int | None:
    """Returns the line of a key, or else of its table; None if the table is not written as `[agents.<id>]`."""
    path = r"\.\s*".join(rf"""["']?{re.escape(name)}["']?\s*""" for name in place[:2])
    if (table := re.search(rf"^\s*\[?\s*{path}[].=]", text, re.MULTILINE)) is None:
        return None
    rest = re.split(r"^\s*\[", text[table.end() :], maxsplit=1, flags=re.MULTILINE)[0]
    key = re.search(rf"^\s*{re.escape(place[2])}\s*=", rest, re.MULTILINE) if place[2:] else None
    return text.count("\n", 0, table.end() + (key.end() if key else 0)) + 1


def declared_agents(
    settings: Settings, may_exist: MayExist, given: Mapping[str, Agent] = MappingProxyType({})
) -> dict[str, Agent]:
    """Returns the agents of the file and those `given`, by id; the default one is always among them. `may_exist` says
    whether there may be a tool of a name. Raises AppError `agents_invalid`, with a line for each fault.
    """
    path = settings.agents_config
    if path != Settings.model_fields["agents_config"].default and not os.access(path, os.F_OK):
        raise agents_invalid([f"AGENTS_CONFIG={path} cannot be read. Correct it, or leave it out for one agent."])
    file = read_agents_file(path)
    add_agents(file, given)
    for agent_id, agent in file.agents.items():
        _check_models(file, agent_id, agent, settings)
        _check_tools(file, agent_id, agent, may_exist)
    default = file.agents.pop(DEFAULT_AGENT, Agent())
    for key in ("users", "groups"):
        if getattr(default, key) is not None:
            file.refuse(("agents", DEFAULT_AGENT, key), "cannot be: it answers in the place of agents that are gone")
    instructions = [default.instructions, _added_instructions(settings, file)]
    if file.faults:
        raise agents_invalid(file.faults)
    default = replace(default, instructions="\n\n".join(filter(None, instructions)))
    agents = {DEFAULT_AGENT: default, **file.agents}
    for agent_id, agent in agents.items():
        if agent.web_search is False:
            agents[agent_id] = replace(agent, not_tools=(*agent.not_tools, WEB_SEARCH))
    return agents


def _check_models(file: AgentsFile, agent_id: str, agent: Agent, settings: Settings) -> None:
    named = [("model", agent.model), ("small_model", agent.small_model), *(("models", each) for each in agent.models)]
    for key, model in named:
        if model is None:
            continue
        fault = settings.fault_of_model(model, is_needed=settings.model_configured)
        if settings.cost_cap and read_prices(settings.prices_file).of(model) is None:
            fault = fault or f"has no price in the file PRICES_FILE, which {settings.cost_cap} needs"
        if fault:
            file.refuse(("agents", agent_id, key), f"is {model}, which {fault}")


def _check_tools(file: AgentsFile, agent_id: str, agent: Agent, may_exist: MayExist) -> None:
    """A name with a wildcard may match nothing yet: a server may connect at any time."""
    ruled = tuple(rule.tool for rule in agent.approvals)
    for key, names in {"tools": agent.tools or (), "not_tools": agent.not_tools, "approvals": ruled}.items():
        known = BUILTIN | OF_THE_ENGINE if key == "not_tools" else frozenset()  # also tools that are not offered now
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


def tools_before_start(settings: Settings) -> MayExist:
    """Returns which tools there may be before MCP servers list theirs. Raises AppError if a file or tool is invalid."""
    servers = read_mcp_config(settings.mcp_config, read_secrets(settings.secrets_dir)).servers.values()
    prefixes = tuple(server.prefix for server in servers if not server.off)
    off = {*settings.disabled_tools, *([WEB_SEARCH] if settings.web_search_provider == "none" else [])}
    native = {tool.spec.name for tool in native_tools()}
    for name in sorted({*settings.disabled_tools} - DEFINED - native):
        log.warning("tool_not_disabled", tool=name, advice="correct DISABLED_TOOLS; tools of servers: mcp.json")
    known = (BUILTIN - off) | (native - {*settings.disabled_tools})
    return lambda name: name in known or name.startswith(prefixes)
