"""Keeps one MCP server of `mcp.json` connected, and runs the calls of its tools.

One task holds the connection and opens the next. A caller only awaits a future, so a server that dies, hangs or lies
takes down its own tools and nothing else. Knows nothing of the other servers, of turns or of tool health.
"""

import asyncio
import math
from collections.abc import Callable, Mapping
from typing import Any, Final

import anyio
import structlog
from anyio.abc import TaskGroup
from mcp import Client, MCPError
from mcp.client.session import IncomingMessage
from mcp.client.subscriptions import SubscriptionLost
from mcp_types import CONNECTION_CLOSED, INVALID_PARAMS, CallToolResult, ToolListChangedNotification
from mcp_types import Tool as McpTool
from pydantic import ValidationError

from segue.domain.tool import DependencyGroup, Tool, ToolFailed, ToolLost, ToolRetry
from segue.mcp.budget import McpServerGone
from segue.mcp.config import McpServerConfig
from segue.mcp.connection import list_tools, must_listen, open_client, reason_of
from segue.mcp.tool_mapping import MAX_ERROR_CHARS, tools_of, value_of

_FIRST_PAUSE_S: Final = 0.5
_LONGEST_PAUSE_S: Final = 30.0
_LIST_PAUSE_S: Final = 0.2
_CLOSE_S: Final = 2.0

log = structlog.get_logger()


class Supervisor:
    """One server. `state` is `connecting`, `ready` or `failed: <why>`; `tools` stay while it reconnects.

    `accept` returns those of the server's tools that may be offered. `tried` is set after the first attempt to connect.
    """

    def __init__(
        self,
        name: str,
        config: McpServerConfig,
        *,
        timeout_s: float,
        handshake_timeout_s: float,
        accept: Callable[["Supervisor", list[Tool]], tuple[Tool, ...]],
    ) -> None:
        self.name = name
        self.state = "connecting"
        self.tools: tuple[Tool, ...] = ()
        self.tried = asyncio.Event()
        self._config = config
        self._timeout_s = timeout_s
        self._handshake_timeout_s = handshake_timeout_s
        self._accept = accept
        self._listed: list[McpTool] | None = None
        self._connection: tuple[Client, TaskGroup] | None = None
        self._in_doubt = asyncio.Event()
        self._stopping = asyncio.Event()
        self._ready_at = math.inf
        self._scope: anyio.CancelScope | None = None

    @property
    def dependencies(self) -> Mapping[str, tuple[DependencyGroup, ...]]:
        """By the server's own names, what the tools that are not disabled depend on."""
        return {tool: of for tool, of in self._config.depends_on.items() if tool not in self._config.disabled}

    async def run(self) -> None:
        """Connects, and connects again with growing pauses when a connection ends, until `stop`."""
        pause = _FIRST_PAUSE_S
        with anyio.CancelScope() as self._scope:
            while not self._stopping.is_set():
                try:
                    await self._hold_connection()
                except Exception as error:  # noqa: BLE001 (a connection may end in anything; the next one is tried)
                    if anyio.current_time() - self._ready_at > _LONGEST_PAUSE_S:
                        pause = _FIRST_PAUSE_S
                    self._set_failed(reason_of(error), pause)
                with anyio.move_on_after(pause):
                    await self._stopping.wait()
                pause = min(pause * 2, _LONGEST_PAUSE_S)

    def stop(self) -> None:
        """Closes the connection within two seconds, or gives up at once if there is none yet."""
        self._stopping.set()
        self._in_doubt.set()
        if self._scope is None:
            return
        if self._connection is None:
            self._scope.cancel()
        else:
            self._scope.deadline = anyio.current_time() + _CLOSE_S

    async def call(self, name: str, arguments: dict[str, Any], *, wrapped: bool) -> object:
        """Returns what a tool returned. Raises ToolRetry, ToolFailed; cancelling it cancels the remote call."""
        if self._connection is None:
            raise ToolFailed(f"The MCP server {self.name} is not connected ({self.state}); it is being tried again.")
        client, calls = self._connection
        answer: asyncio.Future[CallToolResult] = asyncio.get_running_loop().create_future()
        scope = anyio.CancelScope()
        calls.start_soon(self._answer, client, name, arguments, scope, answer)
        try:
            async with asyncio.timeout(self._timeout_s):
                result = await answer
        except TimeoutError:
            self._in_doubt.set()
            raise ToolLost(f"{name} did not answer within {self._timeout_s:g} s.") from None
        finally:
            scope.cancel()
        return value_of(result, wrapped=wrapped)

    async def _answer(
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
        except Exception as raised:  # noqa: BLE001 (any error of the SDK belongs to this caller, not to the other calls)
            error = raised
            self._in_doubt.set()
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

    async def _hold_connection(self) -> None:
        """One connection, from the handshake to its end; returns only after `stop`."""
        with anyio.fail_after(self._handshake_timeout_s) as handshake:
            async with open_client(self.name, self._config, self._on_notification) as client:
                await self._load_tools(client)
                handshake.deadline = math.inf
                async with anyio.create_task_group() as calls:
                    if must_listen(client):
                        calls.start_soon(self._listen, client)
                    self._set_ready(client, calls)
                    try:
                        await self._watch(client)
                    finally:
                        self._connection = None
                        self.state = "failed: the connection ended"
                        calls.cancel_scope.cancel()

    def _set_ready(self, client: Client, calls: TaskGroup) -> None:
        self._connection = (client, calls)
        self._ready_at = anyio.current_time()
        self.state = "ready"
        self.tried.set()
        log.info("mcp_server_ready", server=self.name, protocol=client.protocol_version, tools=len(self.tools))

    def _set_failed(self, reason: str, pause: float) -> None:
        self.state = f"failed: {reason}"
        self._ready_at = math.inf
        self.tried.set()
        log.warning("mcp_server_failed", server=self.name, reason=reason, retry_in_s=pause)

    async def _watch(self, client: Client) -> None:
        """Lists the tools again after a change and after an error: a server that cannot even list them is gone.

        The pause grows while each listing is followed by the next, and starts anew after a quiet time.
        """
        pause, listed_at = _LIST_PAUSE_S, -math.inf
        while True:
            await self._in_doubt.wait()
            self._in_doubt.clear()
            is_quiet = anyio.current_time() - listed_at > 2 * pause
            pause = _LIST_PAUSE_S if is_quiet else min(2 * pause, _LONGEST_PAUSE_S)
            if self._stopping.is_set():
                return
            with anyio.move_on_after(self._timeout_s) as listing:
                await self._load_tools(client)
            if listing.cancelled_caught:
                raise McpServerGone("it stopped answering")
            listed_at = anyio.current_time()
            with anyio.move_on_after(pause):
                await self._stopping.wait()

    async def _load_tools(self, client: Client) -> None:
        listed = await list_tools(client)
        if listed == self._listed:
            return
        names = {tool.name for tool in listed}
        for setting in ("confirm", "disabled"):
            if unknown := sorted(getattr(self._config, setting) - names):
                log.warning("mcp_config_unknown_tools", server=self.name, setting=setting, tools=unknown)
        # In a thread: two hundred large schemas take seconds.
        tools = await asyncio.to_thread(tools_of, self.name, self._config, listed, self.call, self._timeout_s)
        self.tools = self._accept(self, tools)
        self._listed = listed

    async def _on_notification(self, message: IncomingMessage) -> None:
        if isinstance(message, ToolListChangedNotification):
            self._in_doubt.set()

    async def _listen(self, client: Client) -> None:
        """Keeps open the stream of changes that a server of 2026-07-28 offers; its loss is the first sign of an end."""
        while True:
            try:
                async with client.listen(tools_list_changed=True) as changes:
                    async for _ in changes:
                        self._in_doubt.set()
            except MCPError:
                return
            except SubscriptionLost:
                log.debug("mcp_listen_lost", server=self.name)
            self._in_doubt.set()
            await anyio.sleep(_FIRST_PAUSE_S)
