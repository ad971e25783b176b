"""The tools of this process: the built-in and the native ones, and those that the MCP servers offer now.

Knows who offers a tool, not how it runs (`run.py`) or whether it may (`availability.py`).
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from segue.domain.errors import AppError
from segue.domain.tool import Tool
from segue.tools.dependencies import check_groups, unknown_members

BUILTIN: Final = frozenset(
    {"current_time", "get_tool_result", "remember", "search_memory", "web_fetch", "web_search"}
)  # all that a service may have

ToolSource = Callable[[], Iterable[Tool]]


@dataclass(frozen=True, slots=True)
class ToolCatalog:
    """`offered` and `away` are called each time, since MCP servers come and go. `away` returns why a source of tools
    is not there.
    """

    own: tuple[Tool, ...]
    offered: ToolSource = tuple
    away: Callable[[], Mapping[str, str]] = dict

    def __post_init__(self) -> None:
        """Raises AppError `tool_invalid` if two own tools have one name, depend on unknown tools or on each other in a
        circle.
        """
        twice = [name for name, times in Counter(tool.spec.name for tool in self.own).items() if times > 1]
        if twice:
            raise _invalid(f"two tools are called {twice[0]}: rename one, or take a built-in one away (DISABLED_TOOLS)")
        depends_on = {tool.spec.name: tool.spec.depends_on for tool in self.own if not tool.spec.ephemeral}
        try:
            check_groups(depends_on)
        except ValueError as error:
            raise _invalid(str(error)) from None
        if unknown := unknown_members(depends_on, depends_on):
            raise _invalid(f"tools depend on tools that do not exist: {', '.join(unknown)}")

    def tools(self) -> Mapping[str, Tool]:
        """Returns all tools by name. A server cannot take the name of an own tool."""
        known = {tool.spec.name: tool for tool in self.offered()}
        return {**known, **{tool.spec.name: tool for tool in self.own}}


def _invalid(why: str) -> AppError:
    return AppError("tool_invalid", status=500, title="A tool cannot be used", detail=f"{why[0].upper()}{why[1:]}.")
