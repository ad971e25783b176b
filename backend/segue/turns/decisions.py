"""A button on a plan that waits: the decision and the turn that carries it out, accepted together or not at all."""

from dataclasses import replace
from datetime import datetime

from sqlalchemy.ext.asyncio import AsyncConnection

from segue.domain.plan import Decision, end
from segue.memory.sessions import lock_session
from segue.plans import store as plans
from segue.plans.store import StalePlan
from segue.turns.admission import Admitted, admit_locked, turn_under
from segue.turns.store import ChatRequest, a_turn_is_open

SAID: dict[Decision, str] = {"confirm": "👍", "reject": "👎"}


async def begin_decision(
    connection: AsyncConnection,
    owner: str,
    session_id: str,
    decision: Decision,
    *,
    version: int,
    request: ChatRequest,
    now: datetime,
) -> Admitted | None:
    """In the caller's transaction; `request` says all but the message. None where the plan has expired, which by then
    is stored.

    A plan whose turn died on its way waits for a word too, though no step says so yet: its next turn settles it.
    Raises NotFound, AppError `no_open_plan`, and StalePlan for every version but the one that waits.
    """
    await lock_session(connection, owner, session_id)
    if (known := await turn_under(connection, owner, session_id, request.once)) is not None:
        return known
    stored = await plans.open_plan(connection, session_id)
    if stored is None:
        if await plans.newest_has_expired(connection, session_id):
            return None
        raise plans.no_open_plan()
    if stored.plan.version != version:
        raise StalePlan
    request = replace(request, message=SAID[decision])
    if stored.plan.status == "active":
        if await a_turn_is_open(connection, session_id):
            raise StalePlan
        return await admit_locked(connection, owner, session_id, request, now=now)
    if stored.plan.expires_at <= now:
        await plans.swap(connection, stored, end(stored.plan, "expired"))
        return None
    request = replace(request, decided_plan_id=stored.plan.id)
    admitted = await admit_locked(connection, owner, session_id, request, now=now)
    await plans.decide(connection, stored, decision, turn_id=admitted.turn.turn_id, now=now)
    return admitted
