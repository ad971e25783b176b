"""A button on a plan that waits: the decision and the turn that carries it out, accepted together or not at all."""

from datetime import datetime

from sqlalchemy.ext.asyncio import AsyncConnection

from backend.domain.plan import Decision, end
from backend.memory.history import TurnKey
from backend.memory.sessions import get_session
from backend.plans import store as plans
from backend.plans.store import PlanChanged
from backend.turn.store import ChatRequest, a_turn_is_open, begin_turn

SAID: dict[Decision, str] = {"confirm": "👍", "reject": "👎"}


async def begin_decision(
    connection: AsyncConnection, owner: str, session_id: str, decision: Decision, *, version: int, now: datetime
) -> TurnKey | None:
    """In the caller's transaction. None where the plan has expired, which is then stored.

    A plan whose turn died on its way waits for a word too, though no step says so yet: its next turn settles it.
    Raises NotFound, AppError `no_open_plan`, and PlanChanged for every version but the one that waits.
    """
    await get_session(connection, owner, session_id)
    stored = await plans.open_plan(connection, session_id)
    if stored is None:
        raise plans.no_open_plan()
    if stored.plan.version != version:
        raise PlanChanged
    if stored.plan.status == "active":
        if await a_turn_is_open(connection, session_id):
            raise PlanChanged
        return await begin_turn(connection, owner, session_id, ChatRequest(SAID[decision]), now=now)
    if stored.plan.expires_at <= now:
        await plans.swap(connection, stored, end(stored.plan, "expired"))
        return None
    request = ChatRequest(SAID[decision], decided_plan_id=stored.plan.id)
    turn = await begin_turn(connection, owner, session_id, request, now=now)
    await plans.decide(connection, stored, decision, turn_id=turn.turn_id, now=now)
    return turn
