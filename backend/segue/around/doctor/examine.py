"""Examines the whole service, or one session: for `segue doctor`, which opens what it needs, and for GET /ops/doctor.

`examine_stores`, `examine_service` and `examine_session` look and add to the report (`report.py`).
"""

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from segue.around.doctor.examine_service import look_at_mcp, look_at_service, mcp_servers
from segue.around.doctor.examine_stores import look_at_stores, opened
from segue.around.doctor.report import Diagnosis
from segue.around.store_clients import OpenStores
from segue.config import Settings
from segue.domain.errors import AppError
from segue.domain.ids import Clock
from segue.secret_files import SecretFiles
from segue.tools.availability import ToolAvailability

if TYPE_CHECKING:
    from segue.mcp.mcp_servers import McpServers


@dataclass(frozen=True, slots=True)
class Doctor:
    """Examines the service that it is part of, with its own stores and MCP servers. One examination at a time."""

    settings: Settings
    stores: OpenStores
    mcp: "McpServers | None"
    tools: ToolAvailability
    clock: Clock
    files: SecretFiles
    turnstile: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def examine(self, session_id: str | None, *, words: bool) -> dict[str, Any]:
        """Returns what `segue doctor --json` prints. Without `words` it holds no text of users. Raises NotFound."""
        report = Diagnosis.of(session_id)
        async with self.turnstile:
            own = self.tools, self.clock
            await _look(
                self.settings, self.stores, self.mcp, report, session_id, own=own, words=words, files=self.files
            )
        return report.as_json(self.clock())


async def examine(settings: Settings, session_id: str | None = None) -> Diagnosis:
    """Returns the report about the service, or about one session. Raises NotFound if there is no such session."""
    report = Diagnosis.of(session_id)
    async with AsyncExitStack() as stack:
        stores: OpenStores | None = None
        try:
            stores = await opened(stack, settings)
        except AppError as error:
            report.problem("stores", error.detail, "Nothing can be said of what is stored before that.")
        mcp = await mcp_servers(stack, settings, report)
        await _look(settings, stores, mcp, report, session_id)
    return report


async def _look(
    settings: Settings,
    stores: OpenStores | None,
    mcp: "McpServers | None",
    report: Diagnosis,
    session_id: str | None,
    *,
    own: tuple[ToolAvailability, Clock] | None = None,
    words: bool = True,
    files: SecretFiles | None = None,
) -> None:
    found = await look_at_stores(stores, report)
    if session_id is None:
        await look_at_service(settings, stores, found, mcp, report, files=files)
        return
    look_at_mcp(mcp, report)
    if stores is not None and found.has_schema:
        from segue.around.doctor.examine_session import look_at_session  # noqa: PLC0415 (the tools take seconds)

        await look_at_session(settings, session_id, stores, mcp, report, own=own, words=words)
