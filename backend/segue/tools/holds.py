"""Tools that operators took out of all sessions, until they give them back or a time comes. Owns `tool_holds`.

The statements that read a session's states read the holds with them: a turn pays no query for one.
"""

from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any

from sqlalchemy import ScalarSelect, delete, func, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from segue.db.models import tool_holds
from segue.db.reading import readable, reader
from segue.tools.health import ToolHold

_read_hold = reader(ToolHold)


def all_holds() -> ScalarSelect[Any]:
    """Returns all holds as one value for another module's statement; `read_holds` reads it."""
    fields = ("status", "reason", "until")
    hold = func.jsonb_build_object(*(each for name in fields for each in (name, tool_holds.c[name])))
    return select(func.jsonb_object_agg(tool_holds.c.tool, hold)).scalar_subquery()


def read_holds(value: Mapping[str, Any] | None) -> dict[str, ToolHold]:
    """Returns by tool what `all_holds` selected, also those whose time is over; none that cannot be read."""
    read = {tool: readable(_read_hold, hold, "tool_holds", tool) for tool, hold in (value or {}).items()}
    return {tool: hold for tool, hold in read.items() if hold is not None}


async def load_holds(connection: AsyncConnection) -> dict[str, ToolHold]:
    return read_holds(await connection.scalar(select(all_holds())))


async def set_hold(connection: AsyncConnection, tool: str, hold: ToolHold, *, now: datetime) -> None:
    values = {"status": hold.status, "reason": hold.reason, "until": hold.until, "since": now}
    new = insert(tool_holds).values(tool=tool, **values)
    await connection.execute(new.on_conflict_do_update(index_elements=["tool"], set_=values))


async def lift_holds(connection: AsyncConnection, tools: Collection[str]) -> None:
    await connection.execute(delete(tool_holds).where(tool_holds.c.tool.in_(list(tools))))
