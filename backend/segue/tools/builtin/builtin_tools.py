"""The tools of the service itself, made from the settings. A new one is added here."""

from collections.abc import Sequence
from contextlib import AsyncExitStack

import httpx2

from segue.db.engine import Database
from segue.domain.tool import Tool
from segue.net.http_client import checked_client, tls_context
from segue.tools.builtin import remember
from segue.tools.builtin.get_tool_result import get_tool_result_tool
from segue.tools.builtin.web_fetch import web_fetch_tool
from segue.tools.builtin.web_search import web_search_tool
from segue.tools.tool_settings import ToolSettings


async def builtin_tools(
    stack: AsyncExitStack,
    settings: ToolSettings,
    database: Database,
    facts: remember.UserFacts,
    search_said: remember.SearchSaid,
    own: Sequence[Tool],
) -> tuple[Tool, ...]:
    """`own` are those that a higher room makes."""
    tools = [
        remember.current_time_tool(),
        web_fetch_tool(client=await stack.enter_async_context(checked_client())),
        get_tool_result_tool(database, shown_bytes=settings.fresh_result_bytes),
        remember.remember_tool(facts),
        remember.forget_tool(facts),
        remember.search_memory_tool(facts),
        remember.search_conversation_tool(database, search_said),
        *own,
    ]
    if settings.web_search_provider != "none":
        searching = await stack.enter_async_context(httpx2.AsyncClient(verify=tls_context()))
        tools.append(
            web_search_tool(
                provider=settings.web_search_provider,
                client=searching,
                searxng_url=settings.searxng_url,
                tavily_api_key=settings.tavily_api_key,
            )
        )
    return tuple(tool for tool in tools if tool.spec.name not in settings.disabled_tools)
