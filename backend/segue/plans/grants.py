"""What a user allows for the rest of a session, by a button: that one definition of a tool runs unasked.

Owns the table `grants`. Which calls run under a grant is decided in `agent/session_grants.py`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated

from sqlalchemy import delete, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from segue.db.models import grants
from segue.domain.doc import doc
from segue.domain.tool import Tool, ToolSpec, definition_of


@dataclass(frozen=True, slots=True)
class Grant:
    """A yes that is remembered for a session."""

    tool: Annotated[str, doc("The tool that runs unasked.")]
    definition: Annotated[str, doc("The digest of its definition as the question showed it.")]
    in_force: Annotated[bool, doc("Whether the tool still has that definition, and may be granted. If not, it asks.")]
    plan_id: Annotated[str, doc("The plan whose step was approved.")]
    created_at: Annotated[datetime, doc("When the user decided.")]


async def remember(
    connection: AsyncConnection, session_id: str, tool: str, definition: str, *, plan_id: str, now: datetime
) -> None:
    """Stores a grant, in place of the one for another definition of the tool."""
    given = {"definition": definition, "plan_id": plan_id, "created_at": now}
    stored = insert(grants).values(session_id=session_id, tool=tool, **given)
    await connection.execute(stored.on_conflict_do_update(constraint=grants.primary_key, set_=given))


async def revoke(connection: AsyncConnection, session_id: str, tool: str) -> bool:
    """Returns whether there was one."""
    removed = delete(grants).where(grants.c.session_id == session_id, grants.c.tool == tool).returning(grants.c.tool)
    return (await connection.execute(removed)).one_or_none() is not None


def covers(spec: ToolSpec, granted: str | None) -> bool:
    """Returns whether a grant for the definition `granted` is one for the tool as it is now."""
    return granted == definition_of(spec) and not spec.always_asks


async def is_granted(connection: AsyncConnection, session_id: str, spec: ToolSpec) -> bool:
    """Returns whether the session has a grant for the tool as it is defined now."""
    found = select(grants.c.definition).where(grants.c.session_id == session_id, grants.c.tool == spec.name)
    return covers(spec, await connection.scalar(found))


async def list_grants(
    connection: AsyncConnection, session_id: str, tools: Mapping[str, Tool], *, after: str | None, limit: int
) -> list[Grant]:
    """Returns the grants of a session by the names of their tools; `after` is the last one seen."""
    statement = select(grants).where(grants.c.session_id == session_id).order_by(grants.c.tool).limit(limit)
    if after is not None:
        statement = statement.where(grants.c.tool > after)

    def in_force(tool: str, definition: str) -> bool:
        return tool in tools and covers(tools[tool].spec, definition)

    return [
        Grant(row.tool, row.definition, in_force(row.tool, row.definition), row.plan_id, row.created_at)
        for row in await connection.execute(statement)
    ]
