"""What a turn starts from: the stored window and the working memory, rebuilt from Postgres where Redis has lost it."""

from datetime import datetime, timedelta

from sqlalchemy.ext.asyncio import AsyncConnection

from backend.agent.state import TurnInput
from backend.db.engine import Database
from backend.db.redis import Cache
from backend.memory import short_term
from backend.memory.history import last_exchange, load_window
from backend.memory.short_term import ShortTermMemory
from backend.plans.store import get_plan, open_plan
from backend.tools.results import recent_references
from backend.turn.store import Claim, EndedTurn, last_ended


async def load_snapshot(
    database: Database, cache: Cache, claim: Claim, *, history_limit: int, memory_ttl_s: int, now: datetime
) -> TurnInput:
    session_id = claim.key.session_id
    memory = await short_term.read(cache, session_id, last_turn_id=claim.last_turn_id)
    async with database.reading() as connection:
        window = await load_window(connection, claim.key, limit=history_limit)
        decided = await get_plan(connection, claim.decided_plan_id) if claim.decided_plan_id else None
        pending = await open_plan(connection, session_id) if claim.has_open_plan and not decided else None
        if memory is None and (last := await last_ended(connection, session_id)):
            stored = claim.message_count - 1
            memory, _ = await _rebuild(connection, session_id, last, message_count=stored, ttl_s=memory_ttl_s, now=now)
    opening = next(message for message in window if message.turn_id == claim.key.turn_id and message.role == "user")
    return TurnInput(
        message=str(opening.content),
        message_id=opening.id,
        force_web_search=claim.force_web_search,
        history=window,
        memory=memory,
        message_count=claim.message_count,
        open_plan=pending,
        decided_plan=decided,
        shown_plan=claim.shown_plan,
        answered_turn_id=claim.answered_turn_id,
    )


async def working_memory(
    database: Database, cache: Cache, session_id: str, *, message_count: int, ttl_s: int, now: datetime
) -> tuple[ShortTermMemory | None, int]:
    """A session's short-term memory as its next turn would see it, and the seconds it has left."""
    async with database.reading() as connection:
        last = await last_ended(connection, session_id)
    if last is None:
        return None, 0
    memory = await short_term.read(cache, session_id, last_turn_id=last.turn_id)
    if memory is not None:
        return memory, await short_term.seconds_left(cache, session_id)
    async with database.reading() as connection:
        return await _rebuild(connection, session_id, last, message_count=message_count, ttl_s=ttl_s, now=now)


async def _rebuild(
    connection: AsyncConnection, session_id: str, last: EndedTurn, *, message_count: int, ttl_s: int, now: datetime
) -> tuple[ShortTermMemory | None, int]:
    """What Redis would still hold, from the rows it is made of; `(None, 0)` where nothing is or its time is up."""
    left_s = int((last.finished_at + timedelta(seconds=ttl_s) - now).total_seconds())
    if left_s <= 0:
        return None, 0
    exchange = await last_exchange(connection, session_id)
    results = short_term.merge_results(await recent_references(connection, session_id), ())
    if exchange is None and not results:
        return None, 0
    opening, final = exchange or (None, None)
    memory = ShortTermMemory(
        session_id=session_id,
        turn_id=last.turn_id,
        last_user_message=opening,
        last_assistant_message=final,
        message_count=message_count,
        results=results,
    )
    return memory, left_s
