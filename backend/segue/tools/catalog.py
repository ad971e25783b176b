"""The tools of this process: the built-in ones and those that the MCP servers offer now.

Knows who offers a tool, not how it runs (`run.py`) or whether it may (`availability.py`).
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from segue.domain.tool import Tool
from segue.tools.dependencies import check_groups, unknown_members

Source = Callable[[], Iterable[Tool]]


@dataclass(frozen=True, slots=True)
class ToolCatalog:
    """`offered` is called each time, since MCP servers come and go."""

    builtin: tuple[Tool, ...]
    offered: Source = tuple

    def __post_init__(self) -> None:
        """Raises ValueError if built-in tools depend on unknown tools or on each other in a circle."""
        depends_on = {tool.spec.name: tool.spec.depends_on for tool in self.builtin if not tool.spec.ephemeral}
        check_groups(depends_on)
        if unknown := unknown_members(depends_on, depends_on):
            raise ValueError(f"built-in tools depend on tools that do not exist: {', '.join(unknown)}")

    def tools(self) -> Mapping[str, Tool]:
        """Returns all tools by name. A server cannot take the name of a built-in tool."""
        known = {tool.spec.name: tool for tool in self.offered()}
        return {**known, **{tool.spec.name: tool for tool in self.builtin}}
