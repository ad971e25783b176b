"""The MCP servers of `mcp.json`: a supervisor for each, one owner for each tool name, their prompts and resources.
Entered once per process. The mcp package takes a second to import, so it is imported only if there are servers.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, Self, cast

import anyio

from segue.domain.errors import app_error, existing
from segue.domain.redaction import without
from segue.domain.tool import Tool, ToolContext, ToolFailed, ToolRetry, ToolSpec
from segue.log import log
from segue.mcp.mcp_config import McpConfig, McpServerConfig
from segue.mcp.status import FilledPrompt, McpPrompt, McpServerStatus, PromptMessage
from segue.tools.builtin import defined
from segue.tools.tool_health import ServerAway, unknown_members
from segue.tools.unknown_outcomes import unfit

if TYPE_CHECKING:
    from segue.mcp.oauth.logins import Logins
    from segue.mcp.oauth.personal_server import PersonalServer
    from segue.mcp.supervisor import Supervisor

    Server = Supervisor | PersonalServer
    MakeLogins = Callable[[Callable[[], Mapping[str, McpServerConfig]]], Logins]

MAX_GUESSED_SHOWN: Final = 20

_CLOSE_S: Final = 10.0
_APPLICATION: Final = ""  # owns the names of native tools; no server is called so


@dataclass(eq=False, repr=False)
class McpServers:
    """All servers that are not switched off. Enter it to connect, leave it to end every child process.

    `make_logins` makes the logins of users, given what returns the servers at which each logs in, whose resources and
    prompts are left out; it may raise AppError. Entering raises AppError `mcp_name_collision`,
    `tool_dependencies_invalid` and `tool_verify_invalid`. `refused` says why mcp.json, as it is on disk, is not what
    runs; None if it is. `servers` are those there are now.
    """

    config: McpConfig
    _: KW_ONLY
    timeout_s: float = 30.0  # of a call, unless the server sets its own
    start_timeout_s: float = 4.0  # of entering; a server that needs longer, or fails, joins later
    handshake_timeout_s: float = 60.0
    taken: Collection[str] = ()  # names that no server's tool may have
    make_logins: "MakeLogins | None" = None
    listed: Callable[[str, list[ToolSpec]], None] | None = None  # is told the source and the tools of each list
    disabled: Collection[str] = ()  # tools for resources that are not offered

    def __post_init__(self) -> None:
        self.logins: Logins | None = None
        self.refused: str | None = None
        self._tasks: dict[Server, asyncio.Task[None]] = {}
        self._leaving: set[asyncio.Task[None]] = set()
        self._joined: frozenset[Server] = frozenset()
        self._offered: dict[Server, Sequence[Tool]] = {}  # also the tools whose names others have
        self.servers = [self._made(name, server) for name, server in _wanted(self.config).items()]
        self._resources = ResourceTools(self._shared, self.disabled)

    async def __aenter__(self) -> Self:
        try:
            await self._start(self.servers)
            self._join(self.servers)
        except BaseException:
            await self._close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._close()

    def tools(self, owner: str = "") -> tuple[Tool, ...]:
        """Returns the tools of every server that was ever connected, also while it reconnects, and those for resources
        if some server has any. A server's own tool of such a name stands in its place. A server may define its tools
        otherwise for the `owner`, but has none of another's name.
        """
        return (*self._resources.tools(), *(tool for server in self.servers for tool in self._tools_of(server, owner)))

    def _tools_of(self, server: "Server", owner: str) -> Iterable[Tool]:
        if (own := server.tools_of(owner)) is server.tools:
            return own
        taken = {tool.spec.name for other in self.servers if other is not server for tool in other.tools}
        return (tool for tool in own if tool.spec.name not in taken)

    def states(self) -> dict[str, str]:
        """Returns `connecting`, `ready` or `failed: <why>` by server; no word of it comes from a server."""
        return {server.name: server.state for server in self.servers}

    def away(self, owner: str = "") -> dict[str, ServerAway]:
        """Returns by source of its tools why a server that was connected is not, if it could not be connected again, or
        has asked to be left alone: one with logins, over the owner's connection.
        """
        return {f"mcp:{server.name}": away for server in self.servers if (away := server.away(owner))}

    def statuses(self) -> list[McpServerStatus]:
        return [server.status for server in self.servers]

    def unknown_tools(self) -> dict[str, list[str]]:
        """Returns by server the tools that mcp.json names and the server does not list, with the keys."""
        return {server.name: server.unknown for server in self._shared() if server.unknown}

    def awaited_prefixes(self) -> tuple[str, ...]:
        """Returns the prefixes of tools of servers that are not connected."""
        return tuple(server.config.prefix for server in self.servers if server.state != "ready")

    def agents(self) -> frozenset[str]:
        """Returns the ids of agents that servers are limited to."""
        return frozenset[str]().union(*(server.config.agents or () for server in self.servers))

    def groups(self) -> frozenset[str]:
        """Returns the groups that servers, and tools of theirs, are limited to."""
        return frozenset[str]().union(*(server.config.named_groups for server in self.servers))

    def login_servers(self, owner: str, groups: Iterable[str]) -> set[str]:
        """Returns the servers at which the user may log in."""
        return {each.name for each in self.servers if each.config.oauth and may_use(each, owner, groups)}

    def reconnect(self, name: str) -> bool:
        """Connects a server anew; other servers do not notice. Returns False if there is none of this name."""
        for server in (found := [each for each in self.servers if each.name == name]):
            server.reconnect()
        return bool(found)

    async def welcome(self, owner: str, name: str) -> None:
        """Lists a server's tools for a user who has just logged in. If it fails, the user's first call does."""
        from segue.mcp.oauth.personal_server import PersonalServer  # noqa: PLC0415 (needed with such servers only)

        for server in self.servers:
            if server.name == name and isinstance(server, PersonalServer):
                with suppress(ToolFailed, ToolRetry), anyio.move_on_after(5.0):
                    await server.welcome(owner)

    def _shared(self) -> "list[Supervisor]":
        """Returns the servers whose connection is for all users."""
        shared = (server for server in self.servers if server.config.oauth is None or self.make_logins is None)
        return [cast("Supervisor", server) for server in shared]

    async def prompts(self, owner: str, groups: Iterable[str]) -> list[McpPrompt]:
        """Returns the prompts of all servers that the user may use; one that cannot list them now has none."""
        having = [each for each in self._shared() if each.offers.has_prompts and may_use(each, owner, groups)]
        return [prompt for prompts in await asyncio.gather(*map(_listed, having)) for prompt in prompts]

    async def fill_prompt(
        self, owner: str, groups: Iterable[str], server: str, name: str, arguments: Mapping[str, str]
    ) -> FilledPrompt:
        """Raises AppError `mcp_server_not_found`, `mcp_prompt_not_found`, `invalid_request`, `mcp_server_failed`."""
        found = (each for each in self._shared() if each.name == server and may_use(each, owner, groups))
        chosen = existing("mcp_server", next(found, None))
        offers, secrets = chosen.offers, chosen.config.secrets
        try:
            prompts = await offers.prompts() if offers.has_prompts else ()
            known = existing("mcp_prompt", next((prompt for prompt in prompts if prompt.name == name), None))
            if errors := _errors(known, arguments):
                raise app_error("prompt_arguments", errors=errors)
            filled = await offers.fill(name, arguments)
        except (ToolFailed, ToolRetry) as failed:
            raise app_error("mcp_server_failed", why=without(str(failed), secrets)) from None
        messages = [PromptMessage(each.role, without(each.content, secrets)) for each in filled.messages]
        return FilledPrompt(without(filled.description, secrets), messages)

    async def apply(self, config: McpConfig) -> None:
        """Starts the servers that are new or defined otherwise, then ends those that are not wanted, once their calls
        have ended; the others do not notice. Raises AppError as entering does: then everything is as it was.
        """
        configs = _wanted(config)
        kept = {server.name: server for server in self.servers if configs.get(server.name) == server.config}
        if configs.keys() - kept.keys():
            await asyncio.to_thread(import_module, "segue.mcp.supervisor")  # a second, if these are the first
        fresh = {name: self._made(name, server) for name, server in configs.items() if name not in kept}
        after, before = [{**kept, **fresh}[name] for name in configs], self.servers
        try:
            await self._start(fresh.values())
            self._join(after)
        except BaseException:
            self._retire(fresh.values())
            raise
        self.servers, self.config = after, config
        gone = [server for server in before if server not in after]
        self._retire(gone)
        if fresh or gone:
            old, new = {server.name for server in gone}, fresh.keys()
            changes = {"added": sorted(new - old), "changed": sorted(new & old), "removed": sorted(old - new)}
            log.info("mcp_config_read", **changes)

    def _made(self, name: str, config: McpServerConfig) -> "Server":
        """Raises AppError if users are to log in there and their tokens cannot be kept."""
        from segue.mcp.supervisor import Supervisor  # noqa: PLC0415 (see above)

        timeout_s, handshake_timeout_s = config.timeout_s or self.timeout_s, self.handshake_timeout_s
        supervised = partial(Supervisor, name, config, timeout_s=timeout_s, handshake_timeout_s=handshake_timeout_s)
        if config.oauth is None or self.make_logins is None:
            return supervised(accept=self._accept)
        from segue.mcp.oauth.personal_server import PersonalServer  # noqa: PLC0415 (needed with such servers only)

        if self.logins is None:
            self.logins = self.make_logins(lambda: self.config.with_logins)
        return PersonalServer(name, config, self.logins, supervised, timeout_s=timeout_s, accept=self._accept)

    async def _start(self, servers: Iterable["Server"]) -> None:
        """Returns once each has tried to connect, or after the time for it."""
        for server in servers:
            self._tasks[server] = asyncio.create_task(server.run(), name=f"mcp:{server.name}")
        with anyio.move_on_after(self.start_timeout_s):
            for server in servers:
                await server.tried.wait()

    def _retire(self, servers: Iterable["Server"]) -> None:
        for server in servers:
            ending = asyncio.create_task(self._end(server), name=f"mcp:{server.name} ends")
            self._leaving.add(ending)
            ending.add_done_callback(self._leaving.discard)

    async def _end(self, server: "Server") -> None:
        await server.retire()
        await asyncio.wait({self._tasks[server]}, timeout=_CLOSE_S)
        self._tasks.pop(server).cancel()

    async def _close(self) -> None:
        for ending in self._leaving:
            ending.cancel()
        for server in self._tasks:
            server.stop()
        if self._tasks:
            _, stuck = await asyncio.wait(self._tasks.values(), timeout=_CLOSE_S)
            for task in stuck:
                task.cancel()

    def _join(self, servers: Sequence["Server"]) -> None:
        """From now on these own the names of their tools. Raises AppError if two have one, or what mcp.json depends
        on or verifies by is missing; later that is only logged: to end the service would take the others' tools too.
        """
        owners = dict.fromkeys(self.taken, _APPLICATION)
        for server in servers:
            if server.state == "ready":
                _check_named(server)
            for tool in server.tools:
                if (owner := owners.setdefault(tool.spec.name, server.name)) != server.name:
                    row = "mcp_name_taken" if owner == _APPLICATION else "mcp_name_collision"
                    raise app_error(row, name=tool.spec.name, first=owner, second=server.name)
        self._joined = frozenset(servers)
        self._offered = {server: self._offered.get(server, ()) for server in servers}
        for server in servers:
            server.tools = self._accept(server, self._offered[server])

    def _tell(self, server: "Server", tools: Sequence[Tool]) -> None:
        if guessed := [tool.spec.name for tool in tools if tool.spec.effect_guessed]:
            log.info("mcp_effects_guessed", server=server.name, count=len(guessed), tools=guessed[:MAX_GUESSED_SHOWN])
        if self.listed is not None:
            self.listed(f"mcp:{server.name}", [tool.spec for tool in tools])

    def _accept(self, server: "Server", tools: Sequence[Tool]) -> tuple[Tool, ...]:
        """Returns the tools to offer: all before the server has joined. Names that it gives up go to others."""
        self._offered[server] = tools
        if server not in self._joined:
            return tuple(tools)
        if unknown := _unknown_dependencies(server, tools):
            log.warning("mcp_dependencies_unknown", server=server.name, tools=unknown)
        for each in (server, *self._joined - {server}):
            before, each.tools = each.tools, self._own(each)
            if each is server or each.tools != before:
                self._tell(each, each.tools)
        return server.tools

    def _own(self, server: "Server") -> tuple[Tool, ...]:
        """Returns the tools whose names no other server has."""
        owners = dict.fromkeys(self.taken, _APPLICATION)
        for other in self._joined - {server}:
            owners |= {tool.spec.name: other.name for tool in other.tools}
        for name in (tool.spec.name for tool in self._offered[server] if tool.spec.name in owners):
            reason = f"{owners[name] or 'a native tool'} has this name"
            log.warning("mcp_tool_skipped", server=server.name, tool=name, reason=reason)
        return tuple(tool for tool in self._offered[server] if tool.spec.name not in owners)


def _wanted(config: McpConfig) -> dict[str, McpServerConfig]:
    return {name: server for name, server in config.servers.items() if not server.off}


def _unknown_dependencies(server: "Server", tools: Iterable[Tool]) -> tuple[str, ...]:
    """Returns nothing for a server that has listed no tools: at one with logins, before the first."""
    depends_on = server.config.dependencies if server.listed is not None else {}
    return unknown_members(depends_on, {tool.spec.original_name for tool in tools})


def _check_named(server: "Server") -> None:
    """Raises AppError if mcp.json names tools in `depends_on` or `verify` that the server does not offer."""
    if unknown := _unknown_dependencies(server, server.tools):
        raise app_error("tool_dependencies_invalid", server=server.name, unknown=", ".join(unknown))
    offered = {tool.spec.original_name: tool.spec for tool in server.tools}
    checks = ((name, check) for name, check in server.config.verify.items() if server.config.offers(name))
    whys = [f"{name} does not exist" if name not in offered else unfit(name, check, offered) for name, check in checks]
    if why := "; ".join(filter(None, whys)):
        raise app_error("tool_verify_invalid", server=server.name, why=why)


async def _listed(server: "Supervisor") -> tuple[McpPrompt, ...]:
    try:
        return await server.offers.prompts()
    except (ToolFailed, ToolRetry):
        log.info("mcp_prompts_not_listed", server=server.name)
        return ()


def _errors(prompt: McpPrompt, args: Mapping[str, str]) -> list[dict[str, Any]]:
    known = {argument.name: argument.required for argument in prompt.arguments}
    errors = [(name, "Field required", "missing") for name, required in known.items() if required and name not in args]
    errors += [(name, "The prompt has no such argument", "extra_forbidden") for name in args if name not in known]
    return [{"loc": ["body", "arguments", name], "msg": message, "type": kind} for name, message, kind in errors]


def may_use(server: "Server", owner: str, groups: Iterable[str], agent: str | None = None) -> bool:
    """Returns whether a user in these groups may use what the server offers with the agent, or with any agent."""
    audience = server.config.audience_of()
    return audience is None or audience.admits(owner, groups, agent)


class ResourceTools:
    """`servers` returns those there are now. A failure counts against no tool: it would take others' resources away."""

    def __init__(self, servers: "Callable[[], Iterable[Supervisor]]", disabled: Collection[str]) -> None:
        self._servers = servers
        self._disabled = disabled
        self._made: tuple[frozenset[str], tuple[Tool, ...]] | None = None

    def tools(self) -> tuple[Tool, ...]:
        """Returns the same two while the servers' secrets are the same: no answer may have them."""
        having = self._having()
        if not having:
            return ()
        secrets = frozenset[str]().union(*(server.config.secrets for server in having))
        if self._made is None or self._made[0] != secrets:
            runs = {"mcp_list_resources": self._list, "mcp_read_resource": self._read}
            named = [(name, run) for name, run in runs.items() if name not in self._disabled]
            self._made = secrets, tuple(Tool(defined(name), run, secrets=secrets) for name, run in named)
        return self._made[1]

    def _having(self) -> "list[Supervisor]":
        return [server for server in self._servers() if server.offers.has_resources]

    def _wanted(self, args: dict[str, Any], context: ToolContext) -> "list[Supervisor]":
        """Returns the server that is named, or all that the user may use."""
        who = context.owner, context.groups, context.agent
        having = {server.name: server for server in self._having() if may_use(server, *who)}
        if (name := args.get("server")) is None:
            return list(having.values())
        if name not in having:
            raise ToolRetry(f"There is no server {name!r} with resources. There are: {', '.join(having)}.")
        return [having[name]]

    async def _list(self, args: dict[str, Any], context: ToolContext) -> object:
        listed = await asyncio.gather(*map(_resources_of, self._wanted(args, context)))
        return [resource for resources in listed for resource in resources]

    async def _read(self, args: dict[str, Any], context: ToolContext) -> object:
        [server] = self._wanted(args, context)
        try:
            return await server.offers.read(context.session_id, args["uri"])
        except ToolFailed as failed:
            raise ToolRetry(f"{failed} Other servers are not concerned.") from None


async def _resources_of(server: "Supervisor") -> list[dict[str, Any]]:
    try:
        found = await server.offers.resources()
    except (ToolFailed, ToolRetry) as failed:
        return [{"server": server.name, "not_listed": str(failed)}]
    return [{"server": server.name, **each} for each in (*found.listed, *found.templates)]
