"""The MCP servers of `mcp.json`, each held by one owner task that connects, reconnects and runs the calls.

A caller only awaits a future: a server that dies, hangs or lies takes down its own tools and nothing else. Above stand
`main` (which enters `McpServers`) and `tools/catalog.py`; turns, users and health are unknown here.
"""

import asyncio
import math
from collections.abc import Callable
from types import TracebackType
from typing import Any, Final, Self

import anyio
import structlog
from anyio.abc import TaskGroup
from mcp import Client, MCPError
from mcp.client.session import IncomingMessage
from mcp.client.subscriptions import SubscriptionLost
from mcp_types import CONNECTION_CLOSED, INVALID_PARAMS, CallToolResult, ToolListChangedNotification
from mcp_types import Tool as McpTool
from pydantic import ValidationError

from segue.domain.errors import AppError
from segue.domain.tool import Tool, ToolFailed, ToolLost, ToolRetry
from segue.mcp.config import McpConfig, McpServerConfig
from segue.mcp.connection import list_tools, must_listen, open_client, reason_of
from segue.mcp.mapping import MAX_ERROR_CHARS, tools_of, value_of
from segue.mcp.stdio import McpServerGone
from segue.tools.dependencies import unknown_members

_FIRST_PAUSE_S: Final = 0.5
_LONGEST_PAUSE_S: Final = 30.0
_LOOK_PAUSE_S: Final = 0.2
_FAREWELL_S: Final = 2.0
_CLOSE_S: Final = 10.0

log = structlog.get_logger()

Claim = Callable[["_Server", list[Tool]], tuple[Tool, ...]]


class McpServers:
    """All servers that are not switched off. Enter it to connect, leave it to end every child process.

    `timeout_s` is a call's limit where a server sets none; `start_timeout_s` is how long entering waits: a server that
    needs longer, or fails, does not stop the others and joins later. Raises AppError `mcp_name_collision` on entering.
    """

    def __init__(
        self,
        config: McpConfig,
        *,
        timeout_s: float = 30.0,
        start_timeout_s: float = 4.0,
        handshake_timeout_s: float = 60.0,
    ) -> None:
        self._start_timeout_s = start_timeout_s
        self._owners: dict[str, str] = {}
        self._clash: AppError | None = None
        self._started = False
        self._tasks: list[asyncio.Task[None]] = []
        self._servers = [
            _Server(name, server, server.timeout_s or timeout_s, handshake_timeout_s, self._claim)
            for name, server in config.servers.items()
            if not server.off
        ]

    async def __aenter__(self) -> Self:
        self._tasks = [asyncio.create_task(server.keep(), name=f"mcp:{server.name}") for server in self._servers]
        try:
            with anyio.move_on_after(self._start_timeout_s):
                for server in self._servers:
                    await server.settled.wait()
        except BaseException:
            await self._close()
            raise
        self._started = True
        if self._clash:
            await self._close()
            raise self._clash
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._close()

    def tools(self) -> tuple[Tool, ...]:
        """The tools of every server that was ever connected, also while it reconnects."""
        return tuple(tool for server in self._servers for tool in server.tools)

    def states(self) -> dict[str, str]:
        """By server: `connecting`, `ready` or `failed: <why>`; no word in it comes from a server."""
        return {server.name: server.state for server in self._servers}

    async def _close(self) -> None:
        for server in self._servers:
            server.leave()
        if self._tasks:
            _, stuck = await asyncio.wait(self._tasks, timeout=_CLOSE_S)
            for task in stuck:
                task.cancel()

    def _claim(self, server: "_Server", tools: list[Tool]) -> tuple[Tool, ...]:
        """The tools whose names are free or already the server's own."""
        unknown = unknown_members(server.dependencies, {tool.spec.original_name for tool in tools})
        if unknown and self._started:
            log.warning("mcp_dependencies_unknown", server=server.name, tools=unknown)
        elif unknown:
            self._clash = self._clash or _unknown_dependencies(server.name, unknown)
        for name in [name for name, owner in self._owners.items() if owner == server.name]:
            del self._owners[name]
        kept = []
        for tool in tools:
            owner = self._owners.setdefault(tool.spec.name, server.name)
            if owner == server.name:
                kept.append(tool)
            elif self._started:
                log.warning(
                    "mcp_tool_skipped", server=server.name, tool=tool.spec.name, reason=f"{owner} has this name"
                )
            else:
                self._clash = self._clash or _collision(tool.spec.name, owner, server.name)
        return tuple(kept)


def _collision(name: str, first: str, second: str) -> AppError:
    return AppError(
        "mcp_name_collision",
        status=500,
        title="Two MCP servers claim one tool name",
        detail=f"The MCP servers {first} and {second} both offer a tool called {name}: give one of them another prefix "
        "in mcp.json, or list the tool under its disabled.",
    )


def _unknown_dependencies(server: str, names: tuple[str, ...]) -> AppError:
    return AppError(
        "tool_dependencies_invalid",
        status=500,
        title="A tool depends on one that does not exist",
        detail=f"depends_on of the MCP server {server} names tools it does not offer: {', '.join(names)}. Correct the "
        "names in mcp.json (they are the server's own, without prefix), or remove them.",
    )


class _Server:
    def __init__(
        self, name: str, config: McpServerConfig, timeout_s: float, handshake_timeout_s: float, claim: Claim
    ) -> None:
        self.name = name
        self.state = "connecting"
        self.tools: tuple[Tool, ...] = ()
        self.settled = asyncio.Event()
        self.dependencies = {tool: of for tool, of in config.depends_on.items() if tool not in config.disabled}
        self._config = config
        self._timeout_s = timeout_s
        self._handshake_timeout_s = handshake_timeout_s
        self._claim = claim
        self._listed: list[McpTool] | None = None
        self._connection: tuple[Client, TaskGroup] | None = None
        self._look_again = asyncio.Event()
        self._leaving = asyncio.Event()
        self._ready_at = math.inf
        self._life: anyio.CancelScope | None = None

    async def keep(self) -> None:
        """The owner task: holds a connection, opens the next one when it ends, until `leave`."""
        pause = _FIRST_PAUSE_S
        with anyio.CancelScope() as self._life:
            while not self._leaving.is_set():
                try:
                    await self._hold()
                except Exception as error:  # noqa: BLE001 (a connection may end in anything; the next one is tried)
                    if anyio.current_time() - self._ready_at > _LONGEST_PAUSE_S:
                        pause = _FIRST_PAUSE_S
                    self._failed(reason_of(error), pause)
                with anyio.move_on_after(pause):
                    await self._leaving.wait()
                pause = min(pause * 2, _LONGEST_PAUSE_S)

    def leave(self) -> None:
        """Ends the connection: in order where there is one, at once where one is only being made."""
        self._leaving.set()
        self._look_again.set()
        if self._life is None:
            return
        if self._connection is None:
            self._life.cancel()
        else:
            self._life.deadline = anyio.current_time() + _FAREWELL_S

    async def call(self, name: str, arguments: dict[str, Any], *, wrapped: bool) -> object:
        """Runs one tool. Raises ToolRetry, ToolFailed; a caller that is cancelled cancels the remote call."""
        if self._connection is None:
            raise ToolFailed(f"The MCP server {self.name} is not connected ({self.state}); it is being tried again.")
        client, calls = self._connection
        answer: asyncio.Future[CallToolResult] = asyncio.get_running_loop().create_future()
        scope = anyio.CancelScope()
        calls.start_soon(self._ask, client, name, arguments, scope, answer)
        try:
            async with asyncio.timeout(self._timeout_s):
                result = await answer
        except TimeoutError:
            self._look_again.set()
            raise ToolLost(f"{name} did not answer within {self._timeout_s:g} s.") from None
        finally:
            scope.cancel()
        return value_of(result, wrapped=wrapped)

    async def _ask(
        self,
        client: Client,
        name: str,
        arguments: dict[str, Any],
        scope: anyio.CancelScope,
        answer: asyncio.Future[CallToolResult],
    ) -> None:
        error: Exception = MCPError(CONNECTION_CLOSED, "Connection closed")
        try:
            with scope:
                result = await client.call_tool(name, arguments)
                if not answer.done():
                    answer.set_result(result)
        except Exception as raised:  # noqa: BLE001 (whatever the SDK raises is the caller's, not the other calls')
            error = raised
            self._look_again.set()
        finally:
            if not answer.done():
                answer.set_exception(self._as_tool_error(error))

    def _as_tool_error(self, error: Exception) -> ToolRetry | ToolFailed:
        match error:
            case MCPError(code=code, message=message) if code == INVALID_PARAMS:
                return ToolRetry(message[:MAX_ERROR_CHARS])
            case MCPError(code=code) if code == CONNECTION_CLOSED:
                return ToolLost(
                    f"The connection to the MCP server {self.name} was lost before it answered: "
                    "whether the call took effect is unknown."
                )
            case MCPError(message=message):
                return ToolFailed(f"The MCP server {self.name} refused: {message[:MAX_ERROR_CHARS]}")
            case RuntimeError() | ValidationError():
                return ToolFailed(f"The MCP server {self.name} gave an answer that breaks its own declaration.")
            case _:
                return ToolFailed(f"The MCP server {self.name} could not be asked ({type(error).__name__}).")

    async def _hold(self) -> None:
        """One connection, from the handshake to its end; returns only when leaving."""
        with anyio.fail_after(self._handshake_timeout_s) as handshake:
            async with open_client(self.name, self._config, self._notified) as client:
                await self._look(client)
                handshake.deadline = math.inf
                async with anyio.create_task_group() as calls:
                    if must_listen(client):
                        calls.start_soon(self._listen, client)
                    self._ready(client, calls)
                    try:
                        await self._watch(client)
                    finally:
                        self._connection = None
                        self.state = "failed: the connection ended"
                        calls.cancel_scope.cancel()

    def _ready(self, client: Client, calls: TaskGroup) -> None:
        self._connection = (client, calls)
        self._ready_at = anyio.current_time()
        self.state = "ready"
        self.settled.set()
        log.info("mcp_server_ready", server=self.name, protocol=client.protocol_version, tools=len(self.tools))

    def _failed(self, reason: str, pause: float) -> None:
        self.state = f"failed: {reason}"
        self._ready_at = math.inf
        self.settled.set()
        log.warning("mcp_server_failed", server=self.name, reason=reason, retry_in_s=pause)

    async def _watch(self, client: Client) -> None:
        """Lists the tools again after a change and after any doubt: a server that cannot even list is gone."""
        while True:
            await self._look_again.wait()
            self._look_again.clear()
            if self._leaving.is_set():
                return
            with anyio.move_on_after(self._timeout_s) as look:
                await self._look(client)
            if look.cancelled_caught:
                raise McpServerGone("it stopped answering")
            with anyio.move_on_after(_LOOK_PAUSE_S):
                await self._leaving.wait()

    async def _look(self, client: Client) -> None:
        listed = await list_tools(client)
        if listed == self._listed:
            return
        names = {tool.name for tool in listed}
        for setting in ("confirm", "disabled"):
            if unknown := sorted(getattr(self._config, setting) - names):
                log.warning("mcp_config_unknown_tools", server=self.name, setting=setting, tools=unknown)
        self.tools = self._claim(self, tools_of(self.name, self._config, listed, self.call, self._timeout_s))
        self._listed = listed

    async def _notified(self, message: IncomingMessage) -> None:
        if isinstance(message, ToolListChangedNotification):
            self._look_again.set()

    async def _listen(self, client: Client) -> None:
        """Keeps the stream of changes open that a server of 2026-07-28 wants; its loss is the first sign of an end."""
        while True:
            try:
                async with client.listen(tools_list_changed=True) as changes:
                    async for _ in changes:
                        self._look_again.set()
            except MCPError:
                return
            except SubscriptionLost:
                log.debug("mcp_listen_lost", server=self.name)
            self._look_again.set()
            await anyio.sleep(_FIRST_PAUSE_S)
