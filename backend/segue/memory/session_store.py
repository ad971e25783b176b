"""Sessions, their titles, and users' feedback on answers. Every statement for a user has the owner in its predicate.
Owns `client_sessions`, `feedback` and `sessions`, but for what a turn and the summary set in it. `title_due_at` is when
a model is to write a title instead of the first words: infinity until the first answer, null once a user gives one.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from operator import lt
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert as upsert

from segue.db import models
from segue.db.engine import Connection
from segue.db.models import client_sessions, feedback, messages, plans, receipts, sessions, turns
from segue.db.rows import if_given, plan_of, readable, reader
from segue.domain.agent import DEFAULT_AGENT
from segue.domain.errors import existing
from segue.domain.ids import new_id
from segue.domain.plan import OPEN, Plan
from segue.domain.session import Feedback, FoundSession, Rating, Session, UnreadableSession

_UNANSWERED: sa.ColumnElement[datetime] = sa.literal_column("'infinity'::timestamptz", sessions.c.title_due_at.type)
TITLE_IS_DUE = sessions.c.title_due_at < _UNANSWERED  # as the index has it
SHOWN = tuple(name for name in Session.__dataclass_fields__ if name in sessions.c)

_PLAN_COLUMNS = {f"plan_{name}": plans.c[name] for name in Plan.__dataclass_fields__}


async def create_session(
    connection: Connection,
    owner: str,
    *,
    title: str | None,
    metadata: Mapping[str, Any],
    now: datetime,
    agent: str = DEFAULT_AGENT,
    time_zone: str = "",
    language: str | None = None,
) -> Session:
    """`time_zone` is empty if it is not known."""
    session_id = new_id("ses", now)
    columns: dict[str, Any] = {"title": title, "agent": agent, "language": language, "time_zone": time_zone}
    columns["metadata"] = dict(metadata)
    times = {"created_at": sa.func.now(), "updated_at": sa.func.now()}
    insertion = sa.insert(sessions).values(id=session_id, owner=owner, gaps=0, **columns, **times)
    at = (await connection.execute(insertion.returning(sessions.c.created_at))).scalar_one()
    begins: dict[str, Any] = {"archived": False, "pinned": False, "message_count": 0, "running_turn_id": None}
    begins |= {"time_zone": time_zone or "UTC", "created_at": at, "updated_at": at}
    return Session(id=session_id, **{**columns, **begins})


async def get_session(connection: Connection, owner: str, session_id: str) -> Session:
    """Raises NotFound if the session is missing or has another owner."""
    found = await connection.execute(_owned(owner).where(sessions.c.id == session_id))
    return readable_session(existing("session", found.one_or_none()))


async def find_named(connection: Connection, owner: str, client_id: str) -> Session | None:
    named = (client_sessions.c.owner == owner, client_sessions.c.client_id == client_id)
    session_id = sa.select(client_sessions.c.session_id).where(*named).scalar_subquery()
    row = (await connection.execute(_owned(owner).where(sessions.c.id == session_id))).one_or_none()
    return readable_session(row) if row is not None else None


async def name_session(
    connection: Connection, owner: str, client_id: str, session_id: str, *, instead_of: str | None = None
) -> bool:
    """Returns whether the session has this name now, not that of another one, unless that is `instead_of`."""
    insertion = upsert(client_sessions).values(owner=owner, client_id=client_id, session_id=session_id)
    named = insertion.on_conflict_do_update(
        index_elements=[client_sessions.c.owner, client_sessions.c.client_id],
        set_={"session_id": session_id},
        where=client_sessions.c.session_id.in_([session_id, instead_of or session_id]),
    )
    return await connection.scalar(named.returning(client_sessions.c.session_id)) is not None


async def check_session(connection: Connection, owner: str, session_id: str) -> None:
    """Raises NotFound as `get_session`, which reads more."""
    existing("session", await connection.scalar(_id_of(owner, session_id)))


async def lock_session(connection: Connection, owner: str, session_id: str) -> None:
    """Keeps other messages out until the caller's transaction ends. Raises NotFound as `get_session`."""
    existing("session", await connection.scalar(_id_of(owner, session_id).with_for_update(key_share=True)))


def _id_of(owner: str, session_id: str) -> sa.Select[tuple[str]]:
    return sa.select(sessions.c.id).where(sessions.c.id == session_id, sessions.c.owner == owner)


async def owner_of(connection: Connection, session_id: str) -> str:
    """Returns the owner of any session: for ops only. Raises NotFound if it is missing."""
    owner: str | None = await connection.scalar(sa.select(sessions.c.owner).where(sessions.c.id == session_id))
    return existing("session", owner)


async def list_sessions(
    connection: Connection,
    owner: str,
    *,
    archived: bool = False,
    pinned: bool | None = None,
    before: tuple[datetime, str] | None,
    limit: int,
) -> list[Session]:
    """Returns the latest active first; `before` is the activity and the id of the last session already seen."""
    is_behind = if_given(sa.tuple_(sessions.c.updated_at, sessions.c.id), before, lt)
    statement = shown().where(*in_list(owner, archived=archived, pinned=pinned), is_behind)
    latest = await connection.execute(statement.order_by(*latest_first(sessions)).limit(limit))
    return [readable_session(row) for row in latest]


def in_list(owner: str, *, archived: bool, pinned: bool | None) -> Sequence[sa.ColumnElement[bool]]:
    conditions = [sessions.c.owner == owner, sessions.c.archived.is_(archived)]
    return conditions if pinned is None else [*conditions, sessions.c.pinned.is_(pinned)]


def latest_first(of: sa.FromClause) -> Sequence[sa.ColumnElement[Any]]:
    return of.c.updated_at.desc(), of.c.id.desc()


async def update_session(connection: Connection, owner: str, session_id: str, *, changes: Mapping[str, Any]) -> Session:
    """`changes` are what a client may set. Archiving or pinning it does not count as activity. Raises NotFound."""
    if changes:
        if "title" in changes:
            changes = {**changes, "title_due_at": None}
        active = {} if changes.keys() <= {"archived", "pinned"} else {"updated_at": sa.func.now()}
        changed = sa.update(sessions).where(sessions.c.id == session_id, sessions.c.owner == owner)
        await connection.execute(changed.values({**changes, **active}))
    return await get_session(connection, owner, session_id)


def title_due_on_message() -> sa.ColumnElement[datetime | None]:
    """The columns that the statement accepting a message sets: a title that it gives may be improved."""
    return sa.case((sessions.c.title.is_(None), _UNANSWERED), else_=sessions.c.title_due_at)


def title_due_in_copy() -> sa.ColumnElement[datetime | None]:
    """The columns of a session's copy: a title still to be improved is improved after the copy's next answer."""
    return sa.case((sessions.c.title_due_at.is_not(None), _UNANSWERED))


def title_due_on_answer(improves: sa.ColumnElement[bool]) -> sa.ColumnElement[datetime | None]:
    """The columns that the statement finishing a turn sets, if titles are improved."""
    return sa.case((improves & (sessions.c.title_due_at == _UNANSWERED), sa.func.now()), else_=sessions.c.title_due_at)


async def those_there(connection: Connection, session_ids: Sequence[str]) -> set[str]:
    """Returns which of these sessions exist."""
    found = await connection.scalars(sa.select(sessions.c.id).where(sessions.c.id.in_(session_ids)))
    return set(found) if session_ids else set()


async def delete_session(connection: Connection, owner: str, session_id: str) -> None:
    """Deletes the session, its receipts and, by its foreign keys, all that is in it. Raises NotFound."""
    gone = sa.delete(sessions).where(sessions.c.id == session_id, sessions.c.owner == owner).returning(sessions.c.id)
    existing("session", await connection.scalar(gone))
    await connection.execute(sa.delete(receipts).where(receipts.c.session_id == session_id))


async def count_gaps(connection: Connection, session_id: str, *, again: bool) -> None:
    """Counts a session's `gaps` if they are not counted yet, or `again`, unless something happens in it meanwhile: a
    session older than that column has null, and a process of the release before leaves it as it is.
    """
    due = [] if again else [sessions.c.gaps.is_(None)]
    read = sa.select(sessions.c.next_seq, sessions.c.updated_at, _counted(sessions).label("message_count"))
    seen = read.where(sessions.c.id == session_id, *due).cte("seen")
    is_as_seen = (sessions.c.next_seq == seen.c.next_seq, sessions.c.updated_at == seen.c.updated_at)
    counted = sa.update(sessions).where(sessions.c.id == session_id, *is_as_seen)
    await connection.execute(counted.values(gaps=seen.c.next_seq - 1 - seen.c.message_count))


def _counted(of: sa.FromClause) -> sa.ColumnElement[int]:
    of_session = (messages.c.session_id == of.c.id, messages.c.branch.is_(None))
    return sa.select(sa.func.count()).where(*of_session).correlate(of).scalar_subquery()


def _owned(owner: str) -> sa.Select[Any]:
    return shown().where(sessions.c.owner == owner)


def shown(of: sa.FromClause = sessions) -> sa.Select[Any]:
    """Returns a statement that reads what `readable_session` takes, of `sessions` or of a selection of its rows."""
    runs = sa.select(turns.c.id).where(turns.c.session_id == of.c.id, turns.c.status == models.RUNNING)
    running = runs.scalar_subquery().label("running_turn_id")
    pending = (plans.c.session_id == of.c.id) & plans.c.status.in_(models.written(*sorted(OPEN)))
    columns = (of.c[name] for name in SHOWN)
    count = sa.func.coalesce(of.c.next_seq - 1 - of.c.gaps, _counted(of)).label("message_count")
    pending_plan = (column.label(name) for name, column in _PLAN_COLUMNS.items())
    return sa.select(*columns, count, running, *pending_plan).select_from(of.outerjoin(plans, pending))


def readable_session(row: sa.Row[Any], *, hit: Sequence[Any] | None = None) -> Session:
    """Returns an UnreadableSession for a row that cannot be read, a FoundSession with a `hit`: snippet and message."""
    columns = {name: getattr(row, name) for name in (*SHOWN, "message_count", "running_turn_id")}
    plan = {name.removeprefix("plan_"): getattr(row, name) for name in _PLAN_COLUMNS}
    columns["time_zone"] = row.time_zone or "UTC"
    columns["pending_plan"] = plan_of(plan) if plan["id"] else None
    if readable(reader(dict[str, Any]), row.metadata, "sessions", row.id) is None:
        return UnreadableSession(**{**columns, "metadata": {}}, unreadable=True)
    return Session(**columns) if hit is None else FoundSession(**columns, snippet=hit[0], message_id=hit[1])


async def set_feedback(connection: Connection, message_id: str, *, rating: Rating | None, comment: str | None) -> None:
    """Replaces the feedback on a message; without a rating it is deleted."""
    if rating is None:
        await connection.execute(sa.delete(feedback).where(feedback.c.message_id == message_id))
        return
    new = upsert(feedback).values(message_id=message_id, rating=rating, comment=comment, created_at=sa.func.now())
    changes = {name: new.excluded[name] for name in ("rating", "comment", "created_at")}
    await connection.execute(new.on_conflict_do_update(index_elements=["message_id"], set_=changes))


async def feedback_on(connection: Connection, message_ids: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Returns the `feedback` of a message's metadata by its id, of those that have one."""
    rows = await connection.execute(sa.select(feedback).where(feedback.c.message_id.in_(message_ids)))
    return {row.message_id: {"feedback": {"rating": row.rating, "comment": row.comment}} for row in rows}


async def list_feedback(
    connection: Connection, *, rating: Rating | None, before: int | None, limit: int
) -> list[tuple[Feedback, int]]:
    """Returns the feedback of all users, newest first, each with its seq: for ops only."""
    of_answer = (messages.c.session_id, messages.c.turn_id, sessions.c.owner.label("user"))
    statement = sa.select(feedback, *of_answer).join(messages, messages.c.id == feedback.c.message_id)
    statement = statement.join(sessions, sessions.c.id == messages.c.session_id)
    statement = statement.where(if_given(feedback.c.rating, rating), if_given(feedback.c.seq, before, lt))
    rows = await connection.execute(statement.order_by(feedback.c.seq.desc()).limit(limit))
    return [(Feedback(**{name: getattr(row, name) for name in Feedback.__slots__}), row.seq) for row in rows]
