"""The tools that servers with logins listed last, for all processes, also before any connection is open.

Owns `mcp_tool_lists`. A list is that of the address it came from: under another one it counts as missing.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from mcp_types import Tool as McpTool
from pydantic import TypeAdapter, ValidationError
from pydantic_core import to_jsonable_python
from sqlalchemy import func, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from segue.db.models import mcp_tool_lists

_TOOLS: Final = TypeAdapter(list[McpTool])


async def listed_at(connection: AsyncConnection, server: str, url: str) -> datetime | None:
    lists = mcp_tool_lists.c
    last = select(lists.listed_at).where(lists.server == server, lists.url == url)
    at: datetime | None = (await connection.execute(last)).scalar_one_or_none()
    return at


async def load_list(connection: AsyncConnection, server: str, url: str) -> list[McpTool] | None:
    """Returns None if there is none, or none that this release can read."""
    lists = mcp_tool_lists.c
    last = select(lists.tools).where(lists.server == server, lists.url == url)
    try:
        return _TOOLS.validate_python((await connection.execute(last)).scalar_one_or_none())
    except ValidationError:
        return None


async def save_list(connection: AsyncConnection, server: str, url: str, tools: Sequence[McpTool]) -> datetime:
    written = to_jsonable_python(tools, by_alias=True, exclude_none=True)
    row = insert(mcp_tool_lists).values(server=server, url=url, tools=written, listed_at=func.clock_timestamp())
    changed = {name: row.excluded[name] for name in ("url", "tools", "listed_at")}
    stored = row.on_conflict_do_update(index_elements=["server"], set_=changed).returning(mcp_tool_lists.c.listed_at)
    at: datetime = (await connection.execute(stored)).scalar_one()
    return at
