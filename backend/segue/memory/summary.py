"""A session's rolling summary: what it says, up to which turn, and when it is due to be carried on.

A turn marks it as due in the statement that finishes it. A claim moves the due time ahead, further with every try, so
that what a process leaves undone another one does, and what fails is not tried at every turn.
"""

from dataclasses import dataclass
from datetime import timedelta

from sqlalchemy import ColumnElement, case, func, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from segue.db.models import sessions

MAX_SUMMARY_CHARS = 1500
MOST_DOUBLINGS = 6


@dataclass(frozen=True, slots=True)
class DueSummary:
    """`summary` covers the turns up to `after`; those up to `until` are to come in."""

    session_id: str
    summary: str | None
    after: int
    until: int


@dataclass(frozen=True, slots=True)
class SummaryStanding:
    """The summary covers the turns up to `covers_until_seq`; `due_until_seq` where it is to be carried on."""

    chars: int
    covers_until_seq: int
    due_until_seq: int | None
    tries: int


async def standing(connection: AsyncConnection, session_id: str) -> SummaryStanding:
    """For ops."""
    is_due = sessions.c.summary_due_at.is_not(None)
    statement = select(
        func.coalesce(func.length(sessions.c.summary), 0),
        sessions.c.summary_seq,
        case((is_due, sessions.c.summary_until)),
        sessions.c.summary_tries,
    )
    return SummaryStanding(*(await connection.execute(statement.where(sessions.c.id == session_id))).one())


def marked_due(cut_off: ColumnElement[int], seen_seq: ColumnElement[int]) -> dict[str, ColumnElement[object]]:
    """What a statement that finishes a turn sets in its session. `cut_off` is null where nothing is due.

    Only for a turn that saw the summary as it is, with none on its way: the next can then see how far the next step is.
    """
    falls_due = cut_off.is_not(None) & sessions.c.summary_due_at.is_(None) & (sessions.c.summary_seq == seen_seq)
    return {
        "summary_until": case((falls_due, cut_off), else_=sessions.c.summary_until),
        "summary_due_at": case((falls_due, func.now()), else_=sessions.c.summary_due_at),
    }


async def claim_due(connection: AsyncConnection, *, lease_s: float) -> DueSummary | None:
    """The summary that has been due for longest, now this process's for `lease_s`. None where none is."""
    is_due = sessions.c.summary_due_at <= func.now()
    longest = (
        select(sessions.c.id)
        .where(is_due)
        .order_by(sessions.c.summary_due_at)
        .limit(1)
        .with_for_update(skip_locked=True)
        .scalar_subquery()
    )
    wait = timedelta(seconds=lease_s) * func.power(2, func.least(sessions.c.summary_tries, MOST_DOUBLINGS))
    claimed = await connection.execute(
        update(sessions)
        .where(sessions.c.id == longest, is_due)
        .values(summary_due_at=func.now() + wait, summary_tries=sessions.c.summary_tries + 1)
        .returning(sessions.c.id, sessions.c.summary, sessions.c.summary_seq, sessions.c.summary_until)
    )
    row = claimed.one_or_none()
    return DueSummary(row.id, row.summary, row.summary_seq, row.summary_until) if row else None


async def store_summary(connection: AsyncConnection, due: DueSummary, summary: str | None, *, covers: int) -> bool:
    """Moves the summary on. False where another process has done so, or the session is gone."""
    more = sessions.c.summary_until > covers
    stored = await connection.execute(
        update(sessions)
        .where(sessions.c.id == due.session_id, sessions.c.summary_seq == due.after)
        .values(summary=summary, summary_seq=covers, summary_tries=0, summary_due_at=case((more, func.now())))
        .returning(sessions.c.id)
    )
    return stored.one_or_none() is not None
