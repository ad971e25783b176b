"""The prompts of all servers for a user: lists them, and has one filled. Errors are the client's, not a model's."""

import asyncio
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import structlog

from segue.domain.errors import AppError, NotFound
from segue.domain.redaction import without
from segue.domain.tool import ToolFailed, ToolRetry
from segue.mcp.prompt import FilledPrompt, McpPrompt, PromptMessage
from segue.mcp.resource_tools import may_use

if TYPE_CHECKING:  # mcp takes a second
    from segue.mcp.supervisor import Supervisor

log = structlog.get_logger()


async def prompts_of(servers: "Iterable[Supervisor]", owner: str) -> list[McpPrompt]:
    """Returns those of the servers that the user may use and that can list them now, in the order of the servers."""
    listed = await asyncio.gather(
        *(_listed(server) for server in servers if server.offers.has_prompts and may_use(server, owner))
    )
    return [prompt for prompts in listed for prompt in prompts]


async def fill_prompt(server: "Supervisor", name: str, arguments: Mapping[str, str]) -> FilledPrompt:
    """Raises AppError `mcp_prompt_not_found`, `invalid_request` and `mcp_server_failed`."""
    try:
        prompts = await server.offers.prompts() if server.offers.has_prompts else ()
        known = next((prompt for prompt in prompts if prompt.name == name), None)
        if known is None:
            raise NotFound("mcp_prompt")
        if errors := _errors(known, arguments):
            detail = "The prompt takes other arguments: GET /mcp/prompts lists them."
            raise AppError("invalid_request", status=422, title="Invalid request", detail=detail, errors=errors)
        return _without_secrets(await server.offers.fill(name, arguments), server.config.secrets)
    except (ToolFailed, ToolRetry) as failed:
        detail = without(str(failed), server.config.secrets)
        raise AppError("mcp_server_failed", status=502, title="The MCP server failed", detail=detail) from None


async def _listed(server: "Supervisor") -> tuple[McpPrompt, ...]:
    try:
        return await server.offers.prompts()
    except (ToolFailed, ToolRetry):
        log.info("mcp_prompts_not_listed", server=server.name)
        return ()


def _errors(prompt: McpPrompt, given: Mapping[str, str]) -> list[dict[str, Any]]:
    known = {argument.name for argument in prompt.arguments}
    missing = [each.name for each in prompt.arguments if each.required and each.name not in given]
    return [
        *({"loc": ["body", "arguments", name], "msg": "Field required", "type": "missing"} for name in missing),
        *(
            {"loc": ["body", "arguments", name], "msg": "The prompt has no such argument", "type": "extra_forbidden"}
            for name in given
            if name not in known
        ),
    ]


def _without_secrets(filled: FilledPrompt, secrets: frozenset[str]) -> FilledPrompt:
    messages = [PromptMessage(each.role, without(each.content, secrets)) for each in filled.messages]
    return FilledPrompt(without(filled.description, secrets), messages)
