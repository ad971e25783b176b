"""Tools of MCP servers in the test's own process, whose schemas are made once. The SDK makes them for each server anew,
in 3 ms for each tool: a fifth of a test's time went into those of the shelf.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from types import CodeType
from typing import Any, TypeVar

from mcp.server.mcpserver.tools import Tool

Function = TypeVar("Function", bound=Callable[..., Any])

_MADE: dict[CodeType, Tool] = {}


@dataclass(frozen=True, slots=True)
class Tools:
    """`listed` is what `MCPServer(tools=…)` takes."""

    listed: list[Tool] = field(default_factory=list)

    def tool(self, **options: Any) -> Callable[[Function], Function]:
        """A decorator for a function within another one, as `MCPServer.tool` is. What the function says of itself, and
        the options, have to be the same each time that it is defined.
        """

        def add(function: Function) -> Function:
            if function.__code__ not in _MADE:
                _MADE[function.__code__] = Tool.from_function(function, **options)
            self.listed.append(_MADE[function.__code__].model_copy(update={"fn": function}))
            return function

        return add
