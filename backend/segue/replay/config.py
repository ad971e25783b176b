"""What a service needs to play some recordings: the tools of all of them, the settings they share. Pure."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from segue.domain.recording import RecordedSettings, RecordedTool, Recording
from segue.mcp.mapping import MAX_TOOLS

MANY = 10**6


class CannotPlay(Exception):
    """These recordings cannot be played, or not here; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Cast:
    tools: tuple[RecordedTool, ...]
    settings: RecordedSettings

    def environment(self, base_url: str) -> dict[str, str]:
        """Settings under which a service asks this model and these tools, and nobody else."""
        return {
            "OPENAI_BASE_URL": f"{base_url}/v1",
            "LLM_MODEL": "replay",
            "LLM_MAX_RETRIES": "0",
            "PLANNING": self.settings.planning,
            "CONFIRM": self.settings.confirm,
            "WEB_SEARCH_PROVIDER": "none",
            "DISABLED_TOOLS": ",".join(tool.name for tool in self.tools if tool.source == "builtin"),
            "TOOL_FLEET_THRESHOLD": str(MANY),  # what fails in one conversation is no matter of the others
        }

    def mcp_config(self, base_url: str) -> str:
        """The mcp.json: recorded names are whole, so there is no prefix."""
        server = {
            "url": f"{base_url}/mcp",
            "prefix": "",
            "confirm": [tool.name for tool in self.tools if tool.confirm],
            "depends_on": {
                tool.name: [{"type": group.type, "tools": group.tools, "optional": group.optional} for group in groups]
                for tool in self.tools
                if (groups := tool.depends_on)
            },
        }
        return json.dumps({"mcpServers": {"replay": server}})


def cast_of(recordings: Mapping[str, Recording]) -> Cast:
    """Of recordings by the names of their files. Raises CannotPlay where they do not fit together."""
    settings = {name: recording.settings for name, recording in recordings.items()}
    (first, shared), *others = settings.items()
    if other := next((name for name, own in others if own != shared), None):
        raise CannotPlay(f"{first} and {other} were recorded under different settings: replay them apart.")
    tools: dict[str, tuple[str, RecordedTool]] = {}
    for name, recording in recordings.items():
        for tool in recording.tools:
            origin, known = tools.setdefault(tool.name, (name, tool))
            if known != tool:
                raise CannotPlay(f"{tool.name} is another tool in {name} than in {origin}: replay them apart.")
    if len(tools) > MAX_TOOLS:
        raise CannotPlay(f"There are {len(tools)} tools in these recordings, over {MAX_TOOLS}: replay them apart.")
    return Cast(tuple(tool for _, tool in tools.values()), shared)


def tools_missing(cast: Cast, offered: Iterable[Mapping[str, str]]) -> list[str]:
    """The recorded tools that a service, by its GET /tools, does not take from an MCP server."""
    served = {tool["name"] for tool in offered if tool["source"] != "builtin"}
    return sorted(tool.name for tool in cast.tools if tool.name not in served)
