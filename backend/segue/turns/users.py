"""All users: what each has, and what today took. Only reads, also the tables of other modules.

Of no user more than COUNTED sessions and turns are counted: an exact count would read all of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, time
from typing import Annotated, Any, Final

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    DateTime,
    Float,
    FromClause,
    Select,
    Text,
    bindparam,
    func,
    literal,
    select,
    union_all,
)
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.ext.asyncio import AsyncConnection

from segue.db.models import api_keys, sessions, turns, usage, user_limits
from segue.domain.doc import doc
from segue.usage.ledger import IS_COMPLETE

COUNTED: Final = 1_000


@dataclass(frozen=True, slots=True)
class UserOverview:
    """What a user has, and what today took. A day is one in UTC."""

    user: Annotated[str, doc("Who.")]
    keys: Annotated[int, doc("API keys that work.")]
    sessions: Annotated[int, doc("Sessions. 1,000 stands for as many or more.")]
    turns_today: Annotated[int, doc("Turns that were accepted today. 1,000 stands for as many or more.")]
    tokens_today: Annotated[int, doc("Tokens of the models, today.")]
    cost_today: Annotated[float | None, doc("What those with a price cost, in dollars; null if none has one.")]
    cost_complete: Annotated[bool, doc("Whether that is all: false if a call had no price.")]


def _names() -> Select[Any]:
    """Reads one entry of an index for each name, however many rows a user has."""

    def following(name: ColumnElement[str]) -> ColumnElement[str]:
        tables: tuple[FromClause, ...] = (sessions, api_keys, usage, user_limits)
        least = (select(func.min(each.c.owner)).where(each.c.owner > name).scalar_subquery() for each in tables)
        return func.least(*least).label("name")

    first = select(following(bindparam("after"))).cte("names", recursive=True)
    names = first.union_all(select(following(first.c.name)).where(first.c.name.is_not(None)))
    return select(names.c.name).where(names.c.name.is_not(None)).limit(bindparam("at_most"))


def _counts() -> Select[Any]:
    names = func.unnest(bindparam("names", type_=ARRAY(Text))).table_valued("name").render_derived("names")
    now, midnight = (bindparam(name, type_=DateTime(timezone=True)) for name in ("now", "midnight"))

    def latest(*conditions: ColumnElement[bool]) -> FromClause:
        """Sorted, so that PostgreSQL takes the index and does not look for a user's sessions among all."""
        of_user = select(sessions.c.id).where(sessions.c.owner == names.c.name, *conditions).correlate(names)
        kinds = (of_user.where(sessions.c.archived.is_(archived)) for archived in (False, True))
        return union_all(*(each.order_by(sessions.c.updated_at.desc()).limit(COUNTED) for each in kinds)).subquery()

    in_force = api_keys.c.revoked_at.is_(None) & func.coalesce(api_keys.c.expires_at > now, True)
    keys = select(func.count()).where(api_keys.c.owner == names.c.name, in_force).scalar_subquery()
    owned = select(func.count()).select_from(latest()).scalar_subquery()
    active = latest(sessions.c.updated_at >= midnight)
    newest = (
        select(turns.c.created_at, turns.c.status, turns.c.started_at)
        .where(turns.c.session_id == active.c.id)
        .order_by(turns.c.seq.desc())
        .limit(COUNTED)
        .lateral("newest")
    )
    ran = newest.c.started_at.is_not(None) | (newest.c.status != "completed")  # a copy of a fork's never did
    today = (newest.c.created_at >= midnight, ran)
    begun = select(literal(1)).join_from(active, newest, literal(value=True)).where(*today).correlate(names)
    turns_today = select(func.count()).select_from(begun.limit(COUNTED).subquery()).scalar_subquery()
    counts = {"keys": keys, "sessions": func.least(owned, COUNTED), "turns_today": turns_today}
    return select(names.c.name, *(count.label(name) for name, count in counts.items()))


_NAMES, _COUNTS = _names(), _counts()


async def list_users(
    connection: AsyncConnection, *, after: str | None, limit: int, now: datetime
) -> list[UserOverview]:
    """By name. A user is who has a session, a key, usage or limits."""
    found = await connection.execute(_NAMES, {"after": after or "", "at_most": limit})
    names = list(found.scalars())
    today = now.astimezone(UTC).date()
    midnight = datetime.combine(today, time(), UTC)
    times = {"now": now, "midnight": midnight}
    counts = {row.name: row for row in await connection.execute(_COUNTS, {"names": names, **times})}
    spent = {row.owner: row for row in await connection.execute(_spent(names, usage.c.day == today))}
    return [
        UserOverview(
            user=name,
            keys=counts[name].keys,
            sessions=counts[name].sessions,
            turns_today=counts[name].turns_today,
            tokens_today=spent[name].tokens if name in spent else 0,
            cost_today=spent[name].cost if name in spent else 0.0,
            cost_complete=spent[name].complete if name in spent else True,
        )
        for name in names
    ]


def _spent(names: Sequence[str], *conditions: ColumnElement[bool]) -> Select[Any]:
    cost = func.sum(usage.c.cost).cast(Float)
    tokens = func.sum(usage.c.input_tokens + usage.c.output_tokens).cast(BigInteger)
    of_names = usage.c.owner.in_(names)
    return (
        select(usage.c.owner, tokens.label("tokens"), cost.label("cost"), IS_COMPLETE.label("complete"))
        .where(of_names, *conditions)
        .group_by(usage.c.owner)
    )
