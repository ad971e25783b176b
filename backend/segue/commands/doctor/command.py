"""`segue doctor`: what is wrong with the service, or with one session, and what to do about it."""

import asyncio
from contextlib import AsyncExitStack
from typing import Annotated

import typer

from segue.commands.doctor.report import Report
from segue.commands.doctor.service import look_at_mcp, look_at_service, mcp_servers
from segue.commands.doctor.session import SESSION_PARTS, look_at_session
from segue.commands.doctor.stores import OpenStores, look_at_stores, opened
from segue.commands.terminal import refusal, settings_with
from segue.config import Settings
from segue.db.clock import StoreClock
from segue.domain.clock import utc_now
from segue.domain.errors import AppError, NotFound
from segue.domain.telemetry import unobserved
from segue.log import configure_logging
from segue.mcp.servers import McpServers
from segue.memory.long_term import LongTermMemory
from segue.tools.catalog import ToolCatalog
from segue.tools.native import native_tools
from segue.tools_from_settings import builtin_tools, tool_availability


def doctor(
    session: Annotated[str | None, typer.Argument(help="A session's id: what it waits for, and why.")] = None,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was found as JSON.")] = False,
) -> None:
    """Prints a report. Exits with 0 if nothing is wrong, 1 if something is, 2 if there is no such session."""
    settings = settings_with()
    configure_logging(level="critical", log_format=settings.log_format)  # the report says what is wrong
    try:
        report = asyncio.run(examine(settings, session))
    except NotFound as error:
        raise refusal(
            f"{error.detail} `segue chat` and GET /sessions list the ids; DATA_DIR and DATABASE_URL say where."
        ) from error
    now = utc_now()
    typer.echo(report.json_text(now) if as_json else "\n".join(report.lines(now)))
    raise typer.Exit(code=int(not report.healthy))


async def examine(settings: Settings, session_id: str | None = None) -> Report:
    """Returns what is found about the service, or about one session. Raises NotFound if there is no such session."""
    report = Report(f"Session {session_id}" if session_id else "Segue", dict.fromkeys(SESSION_PARTS))
    async with AsyncExitStack() as stack:
        stores: OpenStores | None = None
        try:
            stores = await opened(stack, settings)
        except AppError as error:
            report.problem("stores", error.detail, "Nothing can be said of what is stored before that.")
        mcp = await mcp_servers(stack, settings, report)
        found = await look_at_stores(stores, report)
        if session_id is None:
            await look_at_service(settings, stores, found, mcp, report)
            return report
        look_at_mcp(mcp, report)
        if stores is not None and found.has_schema:
            await _examine_session(stack, settings, session_id, stores, mcp, report)
    return report


async def _examine_session(
    stack: AsyncExitStack, settings: Settings, session_id: str, stores: OpenStores, mcp: McpServers, report: Report
) -> None:
    builtin = await builtin_tools(stack, settings, stores.database, LongTermMemory(stores.database))
    clock = await stack.enter_async_context(StoreClock(stores.database))
    try:
        catalog = ToolCatalog((*builtin, *native_tools(disabled=settings.disabled_tools)), mcp.tools)
        tools = tool_availability(settings, catalog, stores.database, stores.cache, clock=clock, observe=unobserved)
        await look_at_session(session_id, stores, tools, clock, report)
    except NotFound:
        raise
    except AppError as error:
        report.problem("session", f"It could not be read: {error.detail}", "Ask again in a moment.")
