"""An MCP server at which each user logs in: a connection per user, opened by that user's first call.

A connection is made with the token of one login and carries only calls of its user. The tools are those that were
listed last, by any user's connection, since a list for each user would cost every turn a query. Before the first login
there is one tool, to log in.
"""

import asyncio
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any, Final

import anyio
import structlog
from mcp_types import Tool as McpTool

from segue.db.engine import Database
from segue.db.outages import StorageUnavailable
from segue.domain.errors import AppError
from segue.domain.ids import utc_now
from segue.domain.tool import DependencyGroup, Tool, ToolContext, ToolFailed, ToolRetry, ToolSpec
from segue.domain.user_request import ToolAsks
from segue.mcp.mcp_config import McpServerConfig
from segue.mcp.oauth import store
from segue.mcp.oauth.connections import Bearer, CallWithToken, UserConnections, call_with_token
from segue.mcp.oauth.discovery import OAuthFault
from segue.mcp.oauth.login_tokens import Access
from segue.mcp.oauth.logins import Logins, login_request
from segue.mcp.status import LeftOut, McpServerStatus
from segue.mcp.supervisor import Supervisor
from segue.mcp.tool_mapping import tools_of

LOOK_EVERY_S: Final = 10.0
_LOGIN_TOOL: Final = "log_in_to_"

log = structlog.get_logger()


class PersonalServer:
    """Stands where a Supervisor does: `state`, `tools` and `tried` are the same, for all users together."""

    away = False  # one user's connection may be; the others' are not

    def __init__(
        self,
        name: str,
        config: McpServerConfig,
        logins: Logins,
        database: Database,
        connections: UserConnections,
        *,
        timeout_s: float,
        accept: Callable[["PersonalServer", list[Tool]], tuple[Tool, ...]],
    ) -> None:
        self.name = name
        self.state, self.since = "connecting", utc_now()
        self.tools: tuple[Tool, ...] = ()
        self.tried = asyncio.Event()
        self.config = config
        self._logins = logins
        self._database = database
        self._connections = connections
        self._timeout_s = timeout_s
        self._accept = accept
        self._listed: list[McpTool] | None = None
        self._left_out: list[LeftOut] = []
        self._listed_at: datetime | None = None
        self._stopping = asyncio.Event()
        self._retired = False

    @property
    def dependencies(self) -> Mapping[str, tuple[DependencyGroup, ...]]:
        """Those of the tools that are listed: before the first login there are none."""
        return self.config.dependencies if self._listed is not None else {}

    @property
    def status(self) -> McpServerStatus:
        names = [tool.spec.name for tool in self.tools]
        return McpServerStatus(self.name, self.state, self.since, names, self._left_out, None, None, [])

    async def run(self) -> None:
        """Follows what other processes list, and closes connections that are idle, until `stop`."""
        try:
            while not self._stopping.is_set():
                try:
                    await self._follow_list()
                except StorageUnavailable:
                    log.warning("mcp_tool_list_not_read", server=self.name)
                self._set_ready()
                self._connections.close_idle()
                with anyio.move_on_after(LOOK_EVERY_S):
                    await self._stopping.wait()
        finally:
            await self._connections.close()
            await self._logins.grants.settled()

    def stop(self) -> None:
        self._stopping.set()

    def reconnect(self) -> None:
        """Connects anew for every user, with that user's next call."""
        self._connections.retire()

    async def retire(self) -> None:
        """Refuses new calls, lets those that run end, and closes: mcp.json has another definition now, or none."""
        self._retired = True
        await self._connections.end()
        self.stop()

    async def welcome(self, owner: str) -> None:
        """Connects for a user who has just logged in, so that the tools are there. Raises ToolFailed."""
        access = await self._access(owner)
        if access is not None:
            await self._take_over(await self._connections.of(owner, access))

    async def _follow_list(self) -> None:
        url = self.config.url or ""
        async with self._database.read_only() as connection:
            at = await store.listed_at(connection, self.name, url)
            if self.tools and at == self._listed_at:
                return
            listed = await store.load_list(connection, self.name, url)
        await self._offer(listed, at)

    async def _offer(self, listed: list[McpTool] | None, at: datetime | None) -> None:
        made = [self._login_tool()]
        if listed is not None:
            bound, self._left_out = await asyncio.to_thread(
                tools_of, self.name, self.config, listed, _not_called, self._timeout_s
            )
            made += [replace(tool, run=partial(self._run, tool.spec)) for tool in bound]
        self._listed, self._listed_at = listed, at
        self.tools = self._accept(self, made)

    async def _take_over(self, supervisor: Supervisor) -> None:
        """Offers to all what one user's connection has listed, here and in other processes."""
        listed = supervisor.listed
        if listed is None or listed == self._listed:
            return
        async with self._database.transaction() as connection:
            at = await store.save_list(connection, self.name, self.config.url or "", listed)
        await self._offer(listed, at)
        log.info("mcp_tools_listed", server=self.name, tools=len(self.tools))

    async def _run(self, spec: ToolSpec, arguments: dict[str, Any], context: ToolContext) -> object:
        """Runs a tool as the user's own connection has it; asks for a login if there is none."""
        supervisor, access = await self._connected(context)
        tool = next((each for each in supervisor.tools if each.spec.name == spec.name), None)
        if tool is None:
            raise ToolFailed(
                f"The MCP server {self.name} does not offer {spec.name} to this user now ({supervisor.state})."
            )
        asked = CallWithToken()
        token = call_with_token.set(asked)
        try:
            with self._connections.in_use(context.owner):
                return await tool.run(arguments, context)
        except (ToolFailed, ToolRetry):
            if not asked.is_refused:
                raise
        finally:
            call_with_token.reset(token)
        raise await self._refused(context, access, asked)

    async def _log_in(self, _: dict[str, Any], context: ToolContext) -> object:
        supervisor = (await self._connected(context))[0]
        names = ", ".join(tool.spec.name for tool in supervisor.tools)
        return f"The user is logged in at {self.name}. Its tools can be called now: {names}"

    async def _connected(self, context: ToolContext) -> tuple[Supervisor, Access]:
        """Returns the user's connection. Raises what asks for a login, ToolRetry and ToolFailed."""
        if self._retired:
            raise ToolRetry("Nothing was run: mcp.json has changed. Call the tool again if it is still offered.")
        access = await self._access(context.owner)
        if access is None:
            raise await self._needs_login(context)
        supervisor = await self._connections.of(context.owner, access)
        if supervisor.state != "ready" and await self._access(context.owner) is None:
            raise await self._needs_login(context)
        await self._take_over(supervisor)
        return supervisor, access

    async def _access(self, owner: str) -> Access | None:
        try:
            return await self._logins.grants.access(owner, self.name)
        except OAuthFault as fault:
            raise ToolFailed(f"The user's login at {self.name} could not be renewed: {fault}.") from None

    async def _refused(self, context: ToolContext, access: Access, asked: CallWithToken) -> Exception:
        """What a call ends with that the server did not let in. It has done nothing."""
        if asked.scope is None:
            if asked.is_renewed:  # it takes no token of this login: they are for another server, or of a closed account
                await self._logins.grants.forget(context.owner, self.name, access.login)
            now = await self._access(context.owner)
            if now is not None and now.login == access.login:
                return ToolFailed(f"The MCP server {self.name} does not take the user's login now. Try again later.")
        return await self._needs_login(context, asked.scope)

    async def _needs_login(self, context: ToolContext, scope: str | None = None) -> Exception:
        try:
            begun = await self._logins.begin(context.owner, self.name, scope=scope)
        except AppError as error:
            return ToolFailed(error.detail)
        return ToolAsks(login_request(self.name, begun.url))

    def _login_tool(self) -> Tool:
        name = re.sub(r"[^a-zA-Z0-9_-]", "_", f"{self.config.prefix}{_LOGIN_TOOL}{self.name}")[:64]
        spec = ToolSpec(
            name=name,
            description=f"Asks the user to log in at {self.name}, whose tools can be called after that.",
            input_schema={"type": "object", "properties": {}},
            source=f"mcp:{self.name}",
            original_name=name,
            timeout_s=self._timeout_s,
        )
        return Tool(spec, self._log_in, audience=self.config.audience)

    def _set_ready(self) -> None:
        if self.state != "ready":
            self.state, self.since = "ready", utc_now()
            log.info("mcp_server_ready", server=self.name, tools=len(self.tools))
        self.tried.set()


class PersonalServers:
    """What all servers with logins share."""

    def __init__(self, logins: Logins, database: Database) -> None:
        self.logins = logins
        self._database = database

    def of(
        self,
        name: str,
        config: McpServerConfig,
        supervised: Callable[..., Supervisor],
        *,
        timeout_s: float,
        accept: Callable[["PersonalServer", list[Tool]], tuple[Tool, ...]],
    ) -> PersonalServer:
        """`supervised` makes the supervisor of one connection."""

        def connect(bearer: Bearer) -> Supervisor:
            return supervised(accept=lambda _, tools: tuple(tools), auth=bearer)

        grants, url = self.logins.grants, config.url or ""
        connections = UserConnections(name, url, grants, connect, timeout_s=timeout_s)
        return PersonalServer(
            name, config, self.logins, self._database, connections, timeout_s=timeout_s, accept=accept
        )


async def _not_called(*_: object, **__: object) -> object:
    raise TypeError("a tool of a server with logins runs in its user's connection")
