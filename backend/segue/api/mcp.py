"""Routes to the MCP servers of this process. HTTP only."""

from dataclasses import dataclass, replace
from typing import Annotated

from fastapi import Path

from segue.api.deps import Ops, Services, ServicesDep, router_of
from segue.api.problem_codes import problems
from segue.domain.doc import doc
from segue.domain.errors import NotFound
from segue.identity.audit import record_act
from segue.mcp.status import McpServerStatus
from segue.tools.definitions import definition_changes

router = router_of("ops", "/mcp/servers")

ConfiguredServer = Annotated[str, Path(max_length=64, description="A server of mcp.json that is not switched off.")]


@dataclass(frozen=True, slots=True)
class McpServerList:
    """The MCP servers of a process, all on one page, and what it made of mcp.json."""

    items: Annotated[list[McpServerStatus], doc("In the order of mcp.json.")]
    next_cursor: Annotated[None, doc("There is one page.")]
    refused: Annotated[str | None, doc("Why mcp.json as it is now was refused; null if it is what runs.")]
    ignored: Annotated[list[str], doc("Its keys that mean nothing here, each with the reason.")]


@router.get("", responses=problems("forbidden"))
async def list_mcp_servers(services: ServicesDep, _: Ops) -> McpServerList:
    """Lists the MCP servers as this process sees them: each process has its own connections. For the scope `ops`."""
    mcp = services.mcp
    return McpServerList(await _statuses(services), None, refused=mcp.refused, ignored=list(mcp.ignored))


@router.post("/{mcp_server}/reconnect", status_code=202, responses=problems("forbidden"))
async def reconnect_mcp_server(mcp_server: ConfiguredServer, services: ServicesDep, operator: Ops) -> McpServerStatus:
    """Ends the connection of this process to a server once its calls have ended, and opens the next at once; new calls
    wait for it. One at a time: a second request while that lasts changes nothing. For the scope `ops`.
    """
    await _status(services, mcp_server)
    async with services.database.transaction() as connection:
        await record_act(connection, operator, "reconnect_mcp_server", details={"server": mcp_server})
    services.mcp.reconnect(mcp_server)
    return await _status(services, mcp_server)


async def _statuses(services: Services) -> list[McpServerStatus]:
    changed = await definition_changes(services.database, services.tools.specs().values())
    return [
        replace(each, changes=[changed[tool] for tool in each.tools if tool in changed])
        for each in services.mcp.statuses()
    ]


async def _status(services: Services, name: str) -> McpServerStatus:
    for server in await _statuses(services):
        if server.name == name:
            return server
    raise NotFound("mcp_server")
