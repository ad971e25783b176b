"""The MCP servers of `mcp.json`: starts a supervisor for each, and gives every tool name to one of them.

Entered once per process, in the lifespan. How a server is kept connected is the supervisor's; turns, users and health
are unknown here.
"""

import asyncio
from collections.abc import Iterable
from typing import Final, Self

import anyio
import structlog

from segue.domain.errors import AppError
from segue.domain.tool import Tool
from segue.mcp.config import McpConfig
from segue.mcp.supervisor import Supervisor
from segue.tools.dependencies import unknown_members

_CLOSE_S: Final = 10.0
_APPLICATION: Final = ""  # owns the names of native tools; no server is called so

log = structlog.get_logger()


class McpServers:
    """All servers that are not switched off. Enter it to connect, leave it to end every child process.

    `taken` are names that no server's tool may have.
    `timeout_s` limits a call unless the server sets its own. Entering waits `start_timeout_s` at most; a server that
    needs longer, or fails, joins later. Entering raises AppError `mcp_name_collision` and `tool_dependencies_invalid`.
    """

    def __init__(
        self,
        config: McpConfig,
        *,
        timeout_s: float = 30.0,
        start_timeout_s: float = 4.0,
        handshake_timeout_s: float = 60.0,
        taken: Iterable[str] = (),
    ) -> None:
        self._start_timeout_s = start_timeout_s
        self._owners = dict.fromkeys(taken, _APPLICATION)
        self._conflict: AppError | None = None
        self._started = False
        self._tasks: list[asyncio.Task[None]] = []
        self._servers = [
            Supervisor(
                name,
                server,
                timeout_s=server.timeout_s or timeout_s,
                handshake_timeout_s=handshake_timeout_s,
                accept=self._accept,
            )
            for name, server in config.servers.items()
            if not server.off
        ]

    async def __aenter__(self) -> Self:
        self._tasks = [asyncio.create_task(server.run(), name=f"mcp:{server.name}") for server in self._servers]
        try:
            with anyio.move_on_after(self._start_timeout_s):
                for server in self._servers:
                    await server.tried.wait()
        except BaseException:
            await self._close()
            raise
        self._started = True
        if self._conflict:
            await self._close()
            raise self._conflict
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._close()

    def tools(self) -> tuple[Tool, ...]:
        """Returns the tools of every server that was ever connected, also while it reconnects."""
        return tuple(tool for server in self._servers for tool in server.tools)

    def states(self) -> dict[str, str]:
        """Returns `connecting`, `ready` or `failed: <why>` by server; no word of it comes from a server."""
        return {server.name: server.state for server in self._servers}

    async def _close(self) -> None:
        for server in self._servers:
            server.stop()
        if self._tasks:
            _, stuck = await asyncio.wait(self._tasks, timeout=_CLOSE_S)
            for task in stuck:
                task.cancel()

    def _accept(self, server: Supervisor, tools: list[Tool]) -> tuple[Tool, ...]:
        """Returns the tools whose names no other server has. A conflict stops the start; later it is only
        logged, as stopping the service over one server's list would take the others' tools with it.
        """
        unknown = unknown_members(server.dependencies, {tool.spec.original_name for tool in tools})
        if unknown and self._started:
            log.warning("mcp_dependencies_unknown", server=server.name, tools=unknown)
        elif unknown:
            self._conflict = self._conflict or _unknown_dependencies(server.name, unknown)
        for name in [name for name, owner in self._owners.items() if owner == server.name]:
            del self._owners[name]
        kept = []
        for tool in tools:
            owner = self._owners.setdefault(tool.spec.name, server.name)
            if owner == server.name:
                kept.append(tool)
            elif self._started:
                reason = f"{owner or 'a native tool'} has this name"
                log.warning("mcp_tool_skipped", server=server.name, tool=tool.spec.name, reason=reason)
            else:
                self._conflict = self._conflict or _collision(tool.spec.name, owner, server.name)
        return tuple(kept)


def _collision(name: str, first: str, second: str) -> AppError:
    both = f"The MCP servers {first} and {second} both offer a tool called {name}: give one of them"
    if first == _APPLICATION:
        both = f"The MCP server {second} offers a tool called {name}, as this application does: give the server"
    return AppError(
        "mcp_name_collision",
        status=500,
        title="Two MCP servers claim one tool name",
        detail=f"{both} another prefix in mcp.json, or list the tool under its disabled.",
    )


def _unknown_dependencies(server: str, names: tuple[str, ...]) -> AppError:
    return AppError(
        "tool_dependencies_invalid",
        status=500,
        title="A tool depends on one that does not exist",
        detail=f"depends_on of the MCP server {server} names tools it does not offer: {', '.join(names)}. Correct the "
        "names in mcp.json (they are the server's own, without prefix), or remove them.",
    )
