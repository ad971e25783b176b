"""The prompts that MCP servers offer to users. HTTP only."""

from typing import Annotated

from pydantic import Field

from segue.api.deps import IdentityDep, ServicesDep, router_of
from segue.api.mcp import ConfiguredServer
from segue.api.problem_codes import problems
from segue.api.schemas import Body, Page
from segue.mcp.prompt import FilledPrompt, McpPrompt

router = router_of("tools", "/mcp/prompts")


class WantedPrompt(Body):
    """Which prompt of a server, and what it is filled with."""

    name: Annotated[str, Field(max_length=200, description="One of the list.")]
    arguments: Annotated[dict[str, str], Field(default_factory=dict, max_length=20, description="By name.")]


@router.get("")
async def list_prompts(services: ServicesDep, identity: IdentityDep) -> Page[McpPrompt]:
    """Lists the prompts that the MCP servers offer, as they are worded there. A server that is away offers none."""
    return Page(await services.mcp.prompts(identity.user), None)


@router.post("/{mcp_server}", responses=problems("mcp_prompt_not_found", "mcp_server_failed"))
async def fill_prompt(
    mcp_server: ConfiguredServer, body: WantedPrompt, services: ServicesDep, identity: IdentityDep
) -> FilledPrompt:
    """Fills a prompt with its arguments. Nothing is sent to a session: the user says what they like of it."""
    return await services.mcp.fill_prompt(identity.user, mcp_server, body.name, body.arguments)
