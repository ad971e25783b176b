"""What waits for a user's yes over all their sessions."""

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Final

from sqlalchemy import Row, Select, func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from segue.db.models import plans, sessions, turns
from segue.db.rows import came_before, newest_first, plan_of
from segue.domain.field_types import doc
from segue.domain.plan import Plan, Step
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
    return (
        select(plans, sessions.c.owner, func.coalesce(turns.c.finished_at, plans.c.created_at).label("since"))
        .join(sessions, sessions.c.id == plans.c.session_id)
        .outerjoin(turns, turns.c.id == plans.c.asked_in)
        .where(_ASKS_USER, plans.c.expires_at > now, came_before(plans, before))
        .order_by(*newest_first(plans))
        .limit(limit)
    )


def _plan(row: Row[Any]) -> Plan:
    return plan_of({name: getattr(row, name) for name in Plan.__dataclass_fields__})
