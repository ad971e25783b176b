"""The tools there are: the built-in ones and whatever the MCP servers offer right now.

Knows who offers a tool, not how it is run (`run.py`).
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from backend.domain.tool import Tool

Source = Callable[[], Iterable[Tool]]


@dataclass(frozen=True, slots=True)
class ToolCatalog:
    """`offered` is asked anew every time: MCP servers come and go."""

    builtin: tuple[Tool, ...]
    offered: Source = tuple

    def tools(self) -> Mapping[str, Tool]:
        """By name, built-in first. A server cannot take the name of a built-in tool."""
        known = {tool.spec.name: tool for tool in self.offered()}
        return {**known, **{tool.spec.name: tool for tool in self.builtin}}
