"""An MCP server at which each user logs in: a bounded number of connections, one per user, opened by a call.

A connection carries only its user's calls, with the token of one login, renewed once if the server refuses it: a
refused request has not run, so it is sent again. A user has the tools that their own connection listed last, kept with
their login; before it, those of `mcp_tool_lists`, which this owns, by address. Both are read beside the turns.
"""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from contextvars import ContextVar
from dataclasses import KW_ONLY, dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final

import anyio
import httpx2
import orjson
from mcp.client.auth.utils import extract_field_from_www_auth, extract_scope_from_www_auth
from mcp_types import Tool as McpTool
from pydantic import TypeAdapter, ValidationError
from sqlalchemy import func, select, update
from sqlalchemy.dialects.postgresql import insert

from segue.db.engine import Connection
from segue.db.models import mcp_logins, mcp_tool_lists
from segue.db.outages import StorageUnavailable
from segue.domain.errors import AppError
from segue.domain.ids import digest_of_json, offered_name, utc_now
from segue.domain.tool import Tool, ToolContext, ToolFailed, ToolRetry, ToolSpec
from segue.domain.user_request import ToolAsks
from segue.log import log
from segue.mcp.mcp_config import McpServerConfig
from segue.mcp.oauth.authorization_server import OAuthFault
from segue.mcp.oauth.login_tokens import Access, Grants
from segue.mcp.oauth.logins import Logins, login_request
from segue.mcp.status import LeftOut, McpServerStatus
from segue.mcp.supervisor import Supervisor
from segue.mcp.tool_mapping import tools_of
from segue.tools.run import not_called
from segue.tools.tool_health import ServerAway

LOOK_EVERY_S: Final = 10.0
MAX_CONNECTIONS: Final = 50
MAX_OWN_LISTS: Final = 200  # that users have, each of which many may have
MAX_KEPT_BYTES: Final = 256 * 1024  # of a list with a login
IDLE_S: Final = 300.0
_CLOSE_S: Final = 5.0
_TOOLS: Final = TypeAdapter(list[McpTool])


@dataclass(slots=True)
class CallWithToken:
    """A call that is on its way."""

    is_refused: bool = False  # its last request was not let in, and so did nothing
    is_renewed: bool = False  # its token was a new one then
    scope: str | None = None  # what the user's login would have to allow


call_with_token: ContextVar[CallWithToken | None] = ContextVar("call_with_token", default=None)


class Bearer(httpx2.Auth):
    """`renew` returns another token than the one refused, or None. The token goes to the origin of `url` only."""

    def __init__(self, url: str, access: Access, renew: Callable[[Access], Awaitable[Access | None]]) -> None:
        self._origin = _origin(httpx2.URL(url))
        self._renew = renew
        self.access = access

    async def async_auth_flow(self, request: httpx2.Request) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        if _origin(request.url) != self._origin:
            yield request
            return
        sent = self.access
        response = yield _with(request, sent)
        if response.status_code == httpx2.codes.UNAUTHORIZED and (other := await self._other_than(sent)) is not None:
            self.access = other
            response = yield _with(request, other)
        if (call := call_with_token.get()) is not None:
            error = extract_field_from_www_auth(response, "error")
            is_short = response.status_code == httpx2.codes.FORBIDDEN and error == "insufficient_scope"
            call.is_renewed = self.access != sent
            call.is_refused = is_short or response.status_code == httpx2.codes.UNAUTHORIZED
            scope = extract_scope_from_www_auth(response) if is_short else None
            call.scope = scope[:1000] if scope else None

    async def _other_than(self, refused: Access) -> Access | None:
        if self.access != refused:  # a call beside this one was quicker
            return self.access
        with suppress(OAuthFault, AppError):  # the caller is told, and the next call tries again
            return await self._renew(refused)
        return None


def _with(request: httpx2.Request, access: Access) -> httpx2.Request:
    request.headers["Authorization"] = f"Bearer {access.token}"
    return request


def _origin(url: httpx2.URL) -> tuple[str, str, int | None]:
    return url.scheme, url.host, url.port


@dataclass(slots=True)
class UserConnection:
    """`calls` are on their way now, or wait for the handshake; `used_at` is when the last one ended."""

    bearer: Bearer
    supervisor: Supervisor
    running: asyncio.Task[None]
    used_at: float
    calls: int = 0


@dataclass(eq=False, repr=False)
class UserConnections:
    """`connect` makes a supervisor whose requests are authorized so, `url` is the server's."""

    server: str
    url: str
    grants: Grants
    connect: Callable[..., Supervisor]
    timeout_s: float
    _open: OrderedDict[str, UserConnection] = field(default_factory=OrderedDict)
    _closing: set[asyncio.Task[None]] = field(default_factory=set)

    @asynccontextmanager
    async def of(self, owner: str, access: Access) -> AsyncIterator[Supervisor]:
        """Yields a user's connection once tried, and keeps it open. One without calls makes room. Raises ToolRetry."""
        found = self._open.get(owner)
        if found is None or found.bearer.access.login != access.login:
            self.retire(owner)
            found = self._opened(owner, access)
        self._open.move_to_end(owner)
        found.bearer.access = access
        found.calls += 1
        try:
            with anyio.move_on_after(self.timeout_s):
                await found.supervisor.tried.wait()
            yield found.supervisor
        finally:
            found.calls -= 1
            found.used_at = anyio.current_time()

    def rest(self, owner: str) -> ServerAway | None:
        """A connection that fails is no reason: the next call opens it anew, or asks for a login."""
        return found.supervisor.rest if (found := self._open.get(owner)) else None

    def retire(self, owner: str | None = None) -> None:
        """Closes the connection of a user, or of all, once its calls have ended. Their next calls open new ones."""
        for each in [owner] if owner is not None else list(self._open):
            if (gone := self._open.pop(each, None)) is not None:
                closing = asyncio.create_task(_closed(gone), name=f"mcp:{self.server} ends")
                self._closing.add(closing)
                closing.add_done_callback(self._closing.discard)

    def close_idle(self) -> None:
        now = anyio.current_time()
        idle = [owner for owner, each in self._open.items() if not each.calls and now - each.used_at > IDLE_S]
        for owner in idle:
            self.retire(owner)

    async def end(self) -> None:
        """Lets the calls that run end, and closes."""
        await asyncio.gather(*(each.supervisor.retire() for each in self._open.values()))

    async def close(self) -> None:
        """Ends the calls that still run."""
        for each in self._open.values():
            each.supervisor.stop()
        self.retire()
        if self._closing:
            _, stuck = await asyncio.wait(set(self._closing), timeout=_CLOSE_S)
            for task in stuck:
                task.cancel()

    def _opened(self, owner: str, access: Access) -> UserConnection:
        if len(self._open) >= MAX_CONNECTIONS:
            idle = next((owner for owner, each in self._open.items() if not each.calls), None)
            if idle is None:
                raise ToolRetry(f"Too many users call the MCP server {self.server} at once. Try again later.")
            self.retire(idle)
        bearer = Bearer(self.url, access, partial(self.grants.renewed, owner, self.server))
        supervisor = self.connect(auth=bearer)
        running = asyncio.create_task(supervisor.run(), name=f"mcp:{self.server}")
        self._open[owner] = UserConnection(bearer, supervisor, running, anyio.current_time())
        return self._open[owner]


async def _closed(gone: UserConnection) -> None:
    await gone.supervisor.retire("the user's connection was closed")
    await gone.running


@dataclass(eq=False, repr=False)
class PersonalServer:
    """Stands where a Supervisor does, for all users together. `supervised` makes that of one user's connection."""

    name: str
    config: McpServerConfig
    logins: Logins
    supervised: Callable[..., Supervisor]
    _: KW_ONLY
    timeout_s: float
    accept: Callable[["PersonalServer", list[Tool]], tuple[Tool, ...]]

    def __post_init__(self) -> None:
        self.state, self.since = "connecting", utc_now()
        self.tools: tuple[Tool, ...] = ()
        self.tried = asyncio.Event()
        connect = partial(self.supervised, accept=lambda _, tools: tuple(tools))
        url, grants = self.config.url or "", self.logins.grants
        self._connections = UserConnections(self.name, url, grants, connect, self.timeout_s)
        self.away = self._connections.rest
        self.listed: list[McpTool] | None = None  # of `tools`, for users who have no own
        self._source = f"{digest_of_json(url)[:16]}:"
        self._own: dict[str, str] = {}  # by user the digest of their list
        self._own_at = datetime.min.replace(year=2, tzinfo=UTC)
        self._lists: OrderedDict[str, tuple[list[McpTool], tuple[Tool, ...]]] = OrderedDict()
        self._left_out: list[LeftOut] = []
        self._listed_at: datetime | None = None
        self._stopping = asyncio.Event()
        self._retired = False

    @property
    def status(self) -> McpServerStatus:
        names = [tool.spec.name for tool in self.tools]
        return McpServerStatus(self.name, self.state, self.since, names, self._left_out, None, None, [])

    async def run(self) -> None:
        """Follows the lists of other processes, and closes idle connections, until `stop`."""
        try:
            while not self._stopping.is_set():
                try:
                    await self._follow_list()
                    await self._follow_own()
                except StorageUnavailable:
                    log.warning("mcp_tool_list_not_read", server=self.name)
                if self.state != "ready":
                    self.state, self.since = "ready", utc_now()
                    log.info("mcp_server_ready", server=self.name, tools=len(self.tools))
                self.tried.set()
                self._connections.close_idle()
                with anyio.move_on_after(LOOK_EVERY_S):
                    await self._stopping.wait()
        finally:
            await self._connections.close()
            await self.logins.grants.settled()

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
        """Connects for a user who has just logged in, so that the tools are there. Raises ToolFailed, ToolRetry."""
        access = await self._access(owner)
        if access is not None:
            async with self._connections.of(owner, access) as supervisor:
                await self._take_over(owner, supervisor, is_new=True)

    def tools_of(self, owner: str) -> tuple[Tool, ...]:
        """Returns the tools as the user's connection has listed them, else those for all."""
        own = self._lists.get(self._own.get(owner, ""))
        return own[1] if own else self.tools

    async def _follow_list(self) -> None:
        url = self.config.url or ""
        async with self.logins.database.read_only() as connection:
            mine = (mcp_tool_lists.c.server == self.name, mcp_tool_lists.c.url == url)
            at = await connection.scalar(select(mcp_tool_lists.c.listed_at).where(*mine))
            if self.tools and at == self._listed_at:
                return
            stored = await connection.scalar(select(mcp_tool_lists.c.tools).where(*mine))
        listed = None
        with suppress(ValidationError):  # there is none, or none that this release can read
            listed = _TOOLS.validate_python(stored)
        await self._offer(listed, at)

    async def _offer(self, listed: list[McpTool] | None, at: datetime | None) -> None:
        tools, self._left_out = await self._made(listed or [])
        self.listed, self._listed_at = listed, at
        self.tools = self.accept(self, tools)

    async def _made(self, listed: list[McpTool]) -> tuple[list[Tool], list[LeftOut]]:
        of = self.name, self.config, listed, not_called, self.timeout_s
        made, left_out = await asyncio.to_thread(tools_of, *of)
        return [self._login_tool(), *(replace(tool, run=partial(self._run, tool.spec)) for tool in made)], left_out

    async def _follow_own(self) -> None:
        """Learns which lists users have, from before and from other processes; what many have is read once."""
        of, database = mcp_logins.c, self.logins.database
        mine = of.server == self.name, of.tools_digest.startswith(self._source)
        since = self._own_at - timedelta(minutes=1)  # one may have been committed late
        found = select(of.owner, of.tools_digest, of.tools_at).where(*mine, of.tools_at > since).order_by(of.tools_at)
        rows = (await database.read(Connection.execute, found)).all()
        for owner, digest, self._own_at in rows:
            self._own[owner] = digest
        owners = {digest: owner for owner, digest, _ in rows if digest not in self._lists}
        for digest, owner in list(owners.items())[-MAX_OWN_LISTS:]:
            async with database.read_only() as connection:
                stored = select(of.tools).where(*mine, of.owner == owner, of.tools_digest == digest)
                tools = await connection.scalar(stored)
            with suppress(ValidationError):
                await self._keep(digest, _TOOLS.validate_python(tools))

    async def _keep(self, digest: str, listed: list[McpTool]) -> None:
        if digest not in self._lists:
            self._lists[digest] = listed, tuple((await self._made(listed))[0])
        if len(self._lists) > MAX_OWN_LISTS:
            self._lists.popitem(last=False)

    async def _take_over(self, owner: str, supervisor: Supervisor, *, is_new: bool = False) -> None:
        """Offers to a user the tools that their connection has listed: to all others too, here and in other processes,
        if the user has just logged in, or had the same tools as they until now.
        """
        listed, before = supervisor.listed, self._lists.get(self._own.get(owner, ""), (None,))[0]
        if listed is None or (listed == before and not is_new):
            return
        tools = _TOOLS.dump_python(listed, mode="json", by_alias=True, exclude_none=True)
        self._own[owner] = digest = self._source + digest_of_json(tools)
        await self._keep(digest, listed)
        kept = {"tools": tools, "tools_digest": digest, "tools_at": func.clock_timestamp()}
        kept = kept if len(orjson.dumps(tools)) <= MAX_KEPT_BYTES else dict.fromkeys(kept)
        mine = update(mcp_logins).where(mcp_logins.c.owner == owner, mcp_logins.c.server == self.name)
        await self.logins.database.transact(Connection.execute, mine.values(kept))
        if listed == self.listed or not (is_new or self.listed in (None, before)):
            return
        row = {"server": self.name, "url": self.config.url or "", "tools": tools, "listed_at": func.clock_timestamp()}
        insertion = insert(mcp_tool_lists).values(row)
        changed = {name: insertion.excluded[name] for name in row if name != "server"}
        stored = insertion.on_conflict_do_update(index_elements=["server"], set_=changed)
        at = await self.logins.database.transact(Connection.scalar, stored.returning(mcp_tool_lists.c.listed_at))
        await self._offer(listed, at)
        log.info("mcp_tools_listed", server=self.name, tools=len(self.tools))

    async def _run(self, spec: ToolSpec, arguments: dict[str, Any], context: ToolContext) -> object:
        """Runs a tool as the user's own connection has it; asks for a login if there is none."""
        async with self._connected(context) as (supervisor, access):
            tool = next((each for each in supervisor.tools if each.spec.name == spec.name), None)
            if tool is None:
                why = f"The MCP server {self.name} does not offer {spec.name} to this user now ({supervisor.state})."
                raise ToolFailed(why)
            supervisor.check(spec)
            call = CallWithToken()
            token = call_with_token.set(call)
            try:
                return await tool.run(arguments, context)
            except (ToolFailed, ToolRetry):
                if not call.is_refused:
                    raise
            finally:
                call_with_token.reset(token)
        if call.scope is None:  # the server did not let the call in: it has done nothing
            if call.is_renewed:  # it takes no token of this login: they are for another server, or of a closed account
                await self.logins.grants.forget(context.owner, self.name, access.login)
            now = await self._access(context.owner)
            if now is not None and now.login == access.login:
                raise ToolFailed(f"The MCP server {self.name} does not take the user's login now. Try again later.")
        raise await self._needs_login(context, call.scope)

    @asynccontextmanager
    async def _connected(self, context: ToolContext) -> AsyncIterator[tuple[Supervisor, Access]]:
        """Yields the user's connection. Raises a request for a login, ToolRetry and ToolFailed."""
        if self._retired:
            raise ToolRetry("Nothing was run: mcp.json has changed. Call the tool again if it is still offered.")
        access = await self._access(context.owner)
        if access is None:
            raise await self._needs_login(context)
        async with self._connections.of(context.owner, access) as supervisor:
            if supervisor.state != "ready" and await self._access(context.owner) is None:
                raise await self._needs_login(context)
            await self._take_over(context.owner, supervisor)
            yield supervisor, access

    async def _access(self, owner: str) -> Access | None:
        try:
            return await self.logins.grants.access(owner, self.name)
        except OAuthFault as fault:
            raise ToolFailed(f"The user's login at {self.name} could not be renewed: {fault}.") from None

    async def _needs_login(self, context: ToolContext, scope: str | None = None) -> Exception:
        try:
            begun = await self.logins.begin(context.owner, self.name, scope=scope)
        except AppError as error:
            return ToolFailed(error.detail)
        return ToolAsks(login_request(self.name, begun.url))

    def _login_tool(self) -> Tool:
        name = offered_name(f"{self.config.prefix}log_in_to_{self.name}")
        spec = ToolSpec(
            name=name,
            description=f"Asks the user to log in at {self.name}, whose tools can be called after that.",
            input_schema={"type": "object", "properties": {}},
            source=f"mcp:{self.name}",
            original_name=name,
            timeout_s=self.timeout_s,
        )

        async def run(_: dict[str, Any], context: ToolContext) -> object:
            async with self._connected(context) as connected:
                names = ", ".join(tool.spec.name for tool in connected[0].tools)
            return f"The user is logged in at {self.name}. Its tools can be called now: {names}"

        return Tool(spec, run, audience=self.config.audience_of())
