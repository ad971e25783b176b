"""What users think of answers. Owns the table `feedback`."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import delete, func, select
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.ext.asyncio import AsyncConnection

from segue.db.models import feedback, messages, sessions
from segue.domain.session import Feedback, Rating


async def set_feedback(
    connection: AsyncConnection, message_id: str, *, rating: Rating | None, comment: str | None
) -> None:
    """Replaces what was said of a message before; without a rating nothing is left of it."""
    if rating is None:
        await connection.execute(delete(feedback).where(feedback.c.message_id == message_id))
        return
    new = upsert(feedback).values(message_id=message_id, rating=rating, comment=comment, created_at=func.now())
    said = {name: new.excluded[name] for name in ("rating", "comment", "created_at")}
    await connection.execute(new.on_conflict_do_update(index_elements=["message_id"], set_=said))


async def feedback_on(connection: AsyncConnection, message_ids: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Returns the `feedback` of a message's metadata by its id, of those that have one."""
    statement = select(feedback).where(feedback.c.message_id.in_(message_ids))
    rows = await connection.execute(statement)
    return {row.message_id: {"feedback": {"rating": row.rating, "comment": row.comment}} for row in rows}


async def list_feedback(
    connection: AsyncConnection, *, rating: Rating | None, before: int | None, limit: int
) -> list[tuple[Feedback, int]]:
    """Returns that of all users, newest first, each with its seq: for ops only."""
    statement = (
        select(feedback, messages.c.session_id, messages.c.turn_id, sessions.c.owner.label("user"))
        .join(messages, messages.c.id == feedback.c.message_id)
        .join(sessions, sessions.c.id == messages.c.session_id)
        .order_by(feedback.c.seq.desc())
        .limit(limit)
    )
    if rating is not None:
        statement = statement.where(feedback.c.rating == rating)
    if before is not None:
        statement = statement.where(feedback.c.seq < before)
    rows = await connection.execute(statement)
    return [(Feedback(**{name: getattr(row, name) for name in Feedback.__slots__}), row.seq) for row in rows]
