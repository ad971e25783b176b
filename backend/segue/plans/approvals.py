"""What waits for a user's yes over all their sessions, and what a user allows for the rest of a session.

A grant lets one definition of a tool run unasked; `agent/agreed_calls.py` decides which calls run under it. Owns the
table `grants`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Final

from sqlalchemy import Row, Select, delete, func, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from segue.db.models import grants, plans, sessions, turns
from segue.db.rows import came_before, newest_first, plan_of
from segue.domain.field_types import doc
from segue.domain.plan import Plan, Step
from segue.domain.tool import Tool, ToolSpec, definition_of
from segue.domain.user_request import PAGE
from segue.plans.store import is_open


@dataclass(frozen=True, slots=True)
class Approval:
    """A plan that waits for the user's yes."""

    session_id: Annotated[str, doc("The session that waits.")]
    plan_id: Annotated[str, doc("Its plan.")]
    version: Annotated[int, doc("For the decision.")]
    step: Annotated[Step | None, doc("The step that waits; null if this release cannot read the plan.")]
    since: Annotated[datetime, doc("When the user was asked.")]


@dataclass(frozen=True, slots=True)
class OpsApproval:
    """A plan of any user that waits for their yes, without its words and arguments."""

    session_id: Annotated[str, doc("The session that waits.")]
    user: Annotated[str, doc("Whose it is.")]
    plan_id: Annotated[str, doc("Its plan.")]
    version: Annotated[int, doc("Grows with every change.")]
    tool: Annotated[str | None, doc("What the step that waits calls; null if this release cannot read the plan.")]
    since: Annotated[datetime, doc("When the user was asked.")]
    expires_at: Annotated[datetime, doc("Until when it waits.")]


# What waits for the client's page asks the user nothing.
_ASKS_USER: Final = (plans.c.status == "waiting") & ~plans.c.steps.contains([{"asks": {"mode": PAGE}}])


async def count_approvals(connection: AsyncConnection, *, now: datetime) -> int:
    """Returns how many plans of all users wait for a yes."""
    waiting = select(func.count()).where(_ASKS_USER, is_open(), plans.c.expires_at > now)
    return (await connection.execute(waiting)).scalar_one()


async def list_approvals(
    connection: AsyncConnection, owner: str, *, before: str | None, limit: int, now: datetime
) -> list[Approval]:
    """Returns the newest plans first; `before` is the id of the last one seen. Those that have expired do not wait."""
    rows = await connection.execute(_waiting(before, limit, now).where(sessions.c.owner == owner))
    return [Approval(row.session_id, row.id, row.version, _plan(row).waiting_step, row.since) for row in rows]


async def list_all_approvals(
    connection: AsyncConnection, *, before: str | None, limit: int, now: datetime
) -> list[OpsApproval]:
    """As `list_approvals`, of all users."""
    rows = await connection.execute(_waiting(before, limit, now).where(is_open()))
    return [
        OpsApproval(
            session_id=row.session_id,
            user=row.owner,
            plan_id=row.id,
            version=row.version,
            tool=step.tool if (step := _plan(row).waiting_step) else None,
            since=row.since,
            expires_at=row.expires_at,
        )
        for row in rows
    ]


def _waiting(before: str | None, limit: int, now: datetime) -> Select[Any]:
    statement = (
        select(plans, sessions.c.owner, func.coalesce(turns.c.finished_at, plans.c.created_at).label("since"))
        .join(sessions, sessions.c.id == plans.c.session_id)
        .outerjoin(turns, turns.c.id == plans.c.asked_in)
        .where(_ASKS_USER, plans.c.expires_at > now)
        .order_by(*newest_first(plans))
        .limit(limit)
    )
    return statement if before is None else statement.where(came_before(plans, before))


def _plan(row: Row[Any]) -> Plan:
    return plan_of({name: getattr(row, name) for name in Plan.__dataclass_fields__})


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
