"""Examines the service, or one session: for `segue doctor`, which opens what it needs, and for a service that runs."""

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from segue.around.doctor.of_service import look_at_mcp, look_at_service, mcp_servers
from segue.around.doctor.of_stores import OpenStores, look_at_stores, opened
from segue.around.doctor.report import SESSION_PARTS, Diagnosis
from segue.config import Settings
from segue.domain.errors import AppError
from segue.domain.ids import Clock
from segue.tools.availability import ToolAvailability

if TYPE_CHECKING:
    from segue.mcp.mcp_servers import McpServers


@dataclass(frozen=True, slots=True)
class Doctor:
    """Examines the service that it is part of, with its own stores and MCP servers. One at a time."""

    settings: Settings
    stores: OpenStores
    mcp: "McpServers | None"
    tools: ToolAvailability
    clock: Clock
    turnstile: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def examine(self, session_id: str | None, *, words: bool) -> dict[str, Any]:
        """Returns what `segue doctor --json` prints. Without `words` it has none of what was said. Raises NotFound."""
        report = _report(session_id)
        async with self.turnstile:
            found = await look_at_stores(self.stores, report)
            if session_id is None:
                await look_at_service(self.settings, self.stores, found, self.mcp, report)
            else:
                look_at_mcp(self.mcp, report)
                if found.has_schema:
                    from segue.around.doctor.of_session import look_at_session  # noqa: PLC0415 (as below)

                    await look_at_session(session_id, self.stores, self.tools, self.clock, report, words=words)
        return report.as_json(self.clock())


async def examine(settings: Settings, session_id: str | None = None) -> Diagnosis:
    """Returns what is found about the service, or about one session. Raises NotFound if there is no such session."""
    report = _report(session_id)
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
            from segue.around.doctor.of_session import examine_session  # noqa: PLC0415 (the tools take seconds)

            await examine_session(stack, settings, session_id, stores, mcp, report)
    return report


def _report(session_id: str | None) -> Diagnosis:
    return Diagnosis(f"Session {session_id}" if session_id else "Segue", dict.fromkeys(SESSION_PARTS))
