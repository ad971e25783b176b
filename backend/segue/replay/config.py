"""What a service needs to play recordings: the tools of all of them and the settings that they share. Pure."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from segue.domain.recording import RecordedSettings, RecordedTool, Recording
from segue.mcp.packing import MAX_TOOLS

RESULTS_IN_VIEW = 5  # of the newest; how many more there is room for depends on their size
MANY = 10**6
OUTSIDE = ("web_fetch", "remember")  # built-in tools with effects that a recording cannot stand in for


class CannotPlay(Exception):
    """These recordings cannot be played, or not here; the message says what to do."""


@dataclass(frozen=True, slots=True)
class RealModel:
    """A model that is asked in place of the recording, and the settings that lead to it."""

    name: str
    settings: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class ReplayConfig:
    """The model must be shown the newest `results_in_view` results of earlier turns; equal calls count once."""

    tools: tuple[RecordedTool, ...]
    settings: RecordedSettings
    model: RealModel | None = None
    results_in_view: int = RESULTS_IN_VIEW

    @property
    def model_name(self) -> str:
        return self.model.name if self.model else "replay"

    def environment(self, base_url: str) -> dict[str, str]:
        """Returns settings with which a service uses only this model and these tools."""
        disabled = [tool.name for tool in self.tools if tool.source == "builtin"]
        asked: Mapping[str, str] = {"OPENAI_BASE_URL": f"{base_url}/v1", "LLM_MAX_RETRIES": "0"}
        if self.model is not None:
            asked, disabled = self.model.settings, [*disabled, *OUTSIDE]
        return {
            **asked,
            "LLM_MODEL": self.model_name,
            "PLANNING": self.settings.planning,
            "CONFIRM": self.settings.confirm,
            "CONFIRM_WORDS": self.settings.confirm_words,
            "WEB_SEARCH_PROVIDER": "none",
            "DISABLED_TOOLS": ",".join(disabled),
            "TOOL_FLEET_THRESHOLD": str(MANY),  # a failure in one conversation must not reach the others
        }

    def mcp_config(self, base_url: str) -> str:
        """Returns the text of mcp.json. Recorded names are complete, so there is no prefix."""
        server = {
            "url": f"{base_url}/mcp",
            "prefix": "",
            "confirm": {tool.name: tool.confirm for tool in self.tools if tool.confirm},
            "depends_on": {
                tool.name: [{"type": group.type, "tools": group.tools, "optional": group.optional} for group in groups]
                for tool in self.tools
                if (groups := tool.depends_on)
            },
        }
        return json.dumps({"mcpServers": {"replay": server}})


def replay_config(recordings: Mapping[str, Recording], model: RealModel | None = None) -> ReplayConfig:
    """Takes recordings by file name. Raises CannotPlay if their settings or tools contradict each other."""
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
    return ReplayConfig(tuple(tool for _, tool in tools.values()), shared, model)


def tools_missing(config: ReplayConfig, offered: Iterable[Mapping[str, str]]) -> list[str]:
    """Returns the recorded tools that are not among the MCP tools which GET /tools offered."""
    served = {tool["name"] for tool in offered if tool["source"] != "builtin"}
    return sorted(tool.name for tool in config.tools if tool.name not in served)
