"""Titles that a session is to get of a model in the place of its first words. Owns `sessions.title_due_at`.

It is infinity from the message that gave a title on, and a time once the title is due, moved ahead by each claim. A
title that a user gives takes it away.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import ColumnElement, case, func, literal_column, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from segue.db.models import sessions

_UNANSWERED: ColumnElement[datetime] = literal_column("'infinity'::timestamptz", sessions.c.title_due_at.type)


@dataclass(frozen=True, slots=True)
class DueTitle:
    """`title` are the first words, `language` is the one to answer in, None for the user's."""

    owner: str
    session_id: str
    title: str
    language: str | None


def marked() -> ColumnElement[datetime | None]:
    """What the statement that accepts a message sets: a title that it gives may be improved."""
    return case((sessions.c.title.is_(None), _UNANSWERED), else_=sessions.c.title_due_at)


def copied() -> ColumnElement[datetime | None]:
    """What a copy of a session has: a title that is still to be improved is, after the copy's next answer."""
    return case((sessions.c.title_due_at.is_not(None), _UNANSWERED))


def due(improves: ColumnElement[bool]) -> ColumnElement[datetime | None]:
    """What the statement that finishes a turn sets, if titles are improved."""
    answered = improves & (sessions.c.title_due_at == _UNANSWERED)
    return case((answered, func.now()), else_=sessions.c.title_due_at)


async def claim_due(connection: AsyncConnection, *, lease_s: float) -> DueTitle | None:
    """Claims the title due for longest, for `lease_s` seconds. Returns None if none is due."""
    is_due = (sessions.c.title_due_at < _UNANSWERED, sessions.c.title_due_at <= func.now())
    longest = select(sessions.c.id).where(*is_due).order_by(sessions.c.title_due_at).limit(1)
    claimed = await connection.execute(
        update(sessions)
        .where(sessions.c.id == longest.with_for_update(skip_locked=True).scalar_subquery(), *is_due)
        .values(title_due_at=func.now() + timedelta(seconds=lease_s))
        .returning(sessions.c.owner, sessions.c.id, sessions.c.title, sessions.c.language)
    )
    row = claimed.one_or_none()
    return DueTitle(row.owner, row.id, row.title or "", row.language) if row else None


async def settle(connection: AsyncConnection, job: DueTitle, title: str | None) -> bool:
    """Stores a title, None to leave the first words for good. Returns False if it is None, or if the session has
    another title by now.
    """
    still_due = (sessions.c.id == job.session_id, sessions.c.title_due_at.is_not(None))
    if title is None:
        await connection.execute(update(sessions).where(*still_due).values(title_due_at=None))
        return False
    given = update(sessions).where(*still_due, sessions.c.title == job.title).values(title=title, title_due_at=None)
    return (await connection.execute(given.returning(sessions.c.id))).one_or_none() is not None


async def give_back(connection: AsyncConnection, job: DueTitle, *, wait_s: float) -> None:
    """Makes a claimed title due again in `wait_s` seconds."""
    still_due = (sessions.c.id == job.session_id, sessions.c.title_due_at.is_not(None))
    due_at = func.now() + timedelta(seconds=wait_s)
    await connection.execute(update(sessions).where(*still_due).values(title_due_at=due_at))
