"""Reads `agents.toml`: who may answer in a session. What is wrong with it is told with the line it stands in.

Knows the file alone: whether its models and tools exist is asked by `agents_from_settings.py`.
"""

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, Final

import orjson
from pydantic import Field, TypeAdapter, ValidationError

from segue.domain.agent import Agent
from segue.domain.errors import AppError

Place = tuple[str, ...]  # of a key: its tables' names and its own

FILE_KEY: Final = "instructions_file"
KEYS: Final = (*(each.name for each in fields(Agent)), FILE_KEY)

_ID: Final = TypeAdapter(Annotated[str, Field(pattern="^[a-z0-9][a-z0-9_-]{0,63}$")])
_AGENT: Final = TypeAdapter(Agent)


@dataclass(slots=True)
class AgentsFile:
    """The agents a file declares, by id, as far as they can be read, and a sentence for each thing that is wrong."""

    path: Path
    lines: dict[Place, int] = field(default_factory=dict)
    agents: dict[str, Agent] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)

    def refuse(self, place: Place, what: str) -> None:
        at = next((place[:end] for end in range(len(place), 0, -1) if place[:end] in self.lines), None)
        line = f", line {self.lines[at]}" if at else ""
        self.faults.append(f"{self.path}{line}: {'.'.join(place)} {what.rstrip('.')}.")


def agents_invalid(faults: list[str]) -> AppError:
    return AppError("agents_invalid", status=422, title="The agents cannot be used", detail="\n".join(faults))


def read_agents_file(path: Path) -> AgentsFile:
    """Returns what the file declares: nothing if there is none. Raises AppError `agents_invalid` if it is no TOML."""
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
    file = AgentsFile(path, _lines(text))
    for name in raw.keys() - {"agents"}:
        file.refuse((name,), "is not known here: an agent is a table [agents.<id>]")
    declared = raw.get("agents", {})
    if not isinstance(declared, dict):
        file.refuse(("agents",), "should be tables [agents.<id>]")
        return file
    for agent_id, table in declared.items():
        if (agent := _agent(file, agent_id, table)) is not None:
            file.agents[agent_id] = agent
    return file


def add_agents(file: AgentsFile, given: Mapping[str, Agent]) -> None:
    """Adds agents that a program declares, checked as those of the file."""
    for agent_id, agent in given.items():
        if agent_id in file.agents:
            file.refuse(("agents", agent_id), "is given to create_app too: rename one of them")
        elif (checked := _agent(file, agent_id, asdict(agent))) is not None:
            file.agents[agent_id] = checked


def _agent(file: AgentsFile, agent_id: str, table: Any) -> Agent | None:
    place = ("agents", agent_id)
    try:
        _ID.validate_python(agent_id)
        given = {"name": agent_id.capitalize(), **_with_instructions(file, place, table)}
        return _AGENT.validate_json(orjson.dumps(given))  # which has no instances, so strict is strict
    except ValidationError as error:
        for fault in error.errors(include_url=False, include_input=False):
            file.refuse((*place, *map(str, fault["loc"])), _what(fault))
    return None


def _with_instructions(file: AgentsFile, place: Place, table: Any) -> dict[str, Any]:
    """Returns the table with the text of its instructions_file in the place of that."""
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
        return f"is no key of an agent. There are {', '.join(KEYS)}"
    if fault["type"] == "string_pattern_mismatch":
        return "should be one line that begins with a letter, not a space"
    return str(fault["msg"]).replace("Input should", "should")


def _lines(text: str) -> dict[Place, int]:
    """Returns the line in which each table and key begins."""
    lines: dict[Place, int] = {}
    for place, line in _places(text):
        for end in range(1, len(place) + 1):
            lines.setdefault(place[:end], line)
    return lines


def _places(text: str) -> Iterator[tuple[Place, int]]:
    """Reads a TOML text statement by statement: one is the lines up to the first that are TOML by themselves."""
    table: Place = ()
    lines, begun = text.split("\n"), 0
    for end in range(1, len(lines) + 1):
        try:
            found = tomllib.loads("\n".join(lines[begun:end]))
        except tomllib.TOMLDecodeError:
            continue
        path = _only_path(found)
        if lines[begun].lstrip().startswith("["):
            table, path = path, ()
        if found:
            yield (*table, *path), begun + 1
        begun = end


def _only_path(value: Any) -> Place:
    """The names that lead into a value through tables that have one name each."""
    if not isinstance(value, dict) or len(value) != 1:
        return ()
    [(name, inner)] = value.items()
    return (name, *_only_path(inner))
