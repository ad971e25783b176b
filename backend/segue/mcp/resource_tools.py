"""`mcp_list_resources` and `mcp_read_resource`: one pair for all MCP servers, there while some server has resources.

A failure here is reported, and counts against no tool: one server's failure must not take the resources of others away.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING, Any, Final

from segue.domain.tool import Tool, ToolContext, ToolFailed, ToolRetry, ToolSpec

if TYPE_CHECKING:  # mcp takes a second
    from segue.mcp.supervisor import Supervisor

MAX_URI_CHARS: Final = 2000
LIST: Final = ToolSpec(
    name="mcp_list_resources",
    description=(
        "List what the connected servers have to read: documents, files, records, each with its `uri`; and templates, "
        "whose places in braces you fill in to get one. Read one with mcp_read_resource."
    ),
    input_schema={
        "type": "object",
        "properties": {"server": {"type": "string", "maxLength": 64, "description": "Only of this one"}},
        "additionalProperties": False,
    },
)
READ: Final = ToolSpec(
    name="mcp_read_resource",
    description=(
        "Read one resource of a server: its `uri` as mcp_list_resources lists it, as a result links to it if it is "
        "listed too, or made by filling in a template's places."
    ),
    input_schema={
        "type": "object",
        "properties": {
            "server": {"type": "string", "maxLength": 64, "description": "The server that lists it"},
            "uri": {"type": "string", "maxLength": MAX_URI_CHARS},
        },
        "required": ["server", "uri"],
        "additionalProperties": False,
    },
)


def may_use(server: "Supervisor", owner: str, groups: Iterable[str], agent: str | None = None) -> bool:
    """Returns whether a user in these groups may use what the server offers with the agent, or with any agent."""
    audience = server.config.audience
    return audience is None or audience.admits(owner, groups, agent)


class ResourceTools:
    """`servers` returns the servers there are now."""

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
            made = Tool(LIST, self._list, secrets=secrets), Tool(READ, self._read, secrets=secrets)
            self._made = secrets, tuple(tool for tool in made if tool.spec.name not in self._disabled)
        return self._made[1]

    def _having(self) -> "list[Supervisor]":
        return [server for server in self._servers() if server.offers.has_resources]

    def _for(self, context: ToolContext) -> "dict[str, Supervisor]":
        who = context.owner, context.groups, context.agent
        return {server.name: server for server in self._having() if may_use(server, *who)}

    def _named(self, name: str, context: ToolContext) -> "Supervisor":
        having = self._for(context)
        if name not in having:
            raise ToolRetry(f"There is no server {name!r} with resources. There are: {', '.join(having)}.")
        return having[name]

    async def _list(self, args: dict[str, Any], context: ToolContext) -> object:
        wanted = [self._named(args["server"], context)] if "server" in args else list(self._for(context).values())
        listed = await asyncio.gather(*(_resources_of(server) for server in wanted))
        return [resource for resources in listed for resource in resources]

    async def _read(self, args: dict[str, Any], context: ToolContext) -> object:
        server = self._named(args["server"], context)
        try:
            return await server.offers.read(args["uri"])
        except ToolFailed as failed:
            raise ToolRetry(f"{failed} Other servers are not concerned.") from None


async def _resources_of(server: "Supervisor") -> list[dict[str, Any]]:
    try:
        found = await server.offers.resources()
    except (ToolFailed, ToolRetry) as failed:
        return [{"server": server.name, "not_listed": str(failed)}]
    return [{"server": server.name, **each} for each in (*found.listed, *found.templates)]
