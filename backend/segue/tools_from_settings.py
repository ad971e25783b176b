"""The tools of the service itself, and what says which tools may be called, made from the settings."""

from contextlib import AsyncExitStack

import httpx2

from segue import limits_from_settings as limits
from segue.config import Settings
from segue.db.engine import Database
from segue.db.redis import Cache
from segue.domain.ids import Clock
from segue.domain.telemetry import Observe
from segue.domain.tool import Tool
from segue.memory.long_term import LongTermMemory
from segue.net.http_client import checked_client, tls_context
from segue.tools.availability import ToolAvailability
from segue.tools.builtin.get_tool_result import get_tool_result_tool
from segue.tools.builtin.remember import current_time_tool, remember_tool, search_memory_tool
from segue.tools.builtin.web_fetch import web_fetch_tool
from segue.tools.builtin.web_search import web_search_tool
from segue.tools.catalog import ToolCatalog
from segue.tools.states import GlobalToolState


def tool_availability(
    settings: Settings, catalog: ToolCatalog, database: Database, cache: Cache, *, clock: Clock, observe: Observe
) -> ToolAvailability:
    rules = limits.health_rules(settings)
    return ToolAvailability(
        catalog,
        database,
        GlobalToolState(cache, rules, observe, tells=settings.webhook_url is not None),
        rules=rules,
        clock=clock,
        observe=observe,
        timeout_s=settings.tool_timeout_s,
    )


async def builtin_tools(
    stack: AsyncExitStack, settings: Settings, database: Database, long_term: LongTermMemory
) -> tuple[Tool, ...]:
    fresh_bytes = limits.fresh_result_bytes(settings)
    fetching = await stack.enter_async_context(checked_client())
    tools = [
        current_time_tool(),
        web_fetch_tool(client=fetching),
        get_tool_result_tool(database, shown_bytes=fresh_bytes),
        remember_tool(long_term.remember),
        search_memory_tool(long_term.search),
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
