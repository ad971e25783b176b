"""What waits for a user's yes, over all their sessions. Only reads."""

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from segue.db.models import plans, sessions, turns
from segue.db.order import came_before, newest_first
from segue.db.reading import plan_of
from segue.domain.doc import doc
from segue.domain.plan import Plan, Step


@dataclass(frozen=True, slots=True)
class Approval:
    """A plan that waits for the user's yes."""

    session_id: Annotated[str, doc("The session that waits.")]
    plan_id: Annotated[str, doc("Its plan.")]
    version: Annotated[int, doc("For the decision.")]
    step: Annotated[Step | None, doc("The step that waits; null if this release cannot read the plan.")]
    since: Annotated[datetime, doc("When the user was asked.")]


async def list_approvals(
    connection: AsyncConnection, owner: str, *, before: str | None, limit: int, now: datetime
) -> list[Approval]:
    """Returns the newest plans first; `before` is the id of the last one seen. Those that have expired do not wait."""
    statement = (
        select(plans, func.coalesce(turns.c.finished_at, plans.c.created_at).label("since"))
        .join(sessions, sessions.c.id == plans.c.session_id)
        .outerjoin(turns, turns.c.id == plans.c.asked_in)
        .where(sessions.c.owner == owner, plans.c.status == "waiting", plans.c.expires_at > now)
        .order_by(*newest_first(plans))
        .limit(limit)
    )
    if before is not None:
        statement = statement.where(came_before(plans, before))
    found = []
    for row in await connection.execute(statement):
        plan: Plan = plan_of({name: getattr(row, name) for name in Plan.__dataclass_fields__})
        found.append(Approval(row.session_id, plan.id, plan.version, plan.waiting_step, row.since))
    return found
