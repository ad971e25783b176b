"""All users: what each has, and what today took. Only reads, also the tables of other modules."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, time
from typing import Annotated, Any

from sqlalchemy import BigInteger, ColumnElement, Float, FromClause, Select, bindparam, case, func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from segue.db.models import api_keys, sessions, turns, usage, user_limits
from segue.domain.doc import doc
from segue.domain.ids import first_id
from segue.turns.figures import SKEW


@dataclass(frozen=True, slots=True)
class UserOverview:
    """What a user has, and what today took. A day is one in UTC."""

    user: Annotated[str, doc("Who.")]
    keys: Annotated[int, doc("API keys that work.")]
    sessions: Annotated[int, doc("Sessions.")]
    turns_today: Annotated[int, doc("Turns that were accepted today.")]
    tokens_today: Annotated[int, doc("Tokens of the models, today.")]
    cost_today: Annotated[float | None, doc("What they cost, in dollars; null if a part has no price.")]


def _names() -> Select[Any]:
    """Reads one entry of an index for each name, however many rows a user has."""

    def following(name: ColumnElement[str]) -> ColumnElement[str]:
        tables: tuple[FromClause, ...] = (sessions, api_keys, usage, user_limits)
        least = (select(func.min(each.c.owner)).where(each.c.owner > name).scalar_subquery() for each in tables)
        return func.least(*least).label("name")

    first = select(following(bindparam("after"))).cte("names", recursive=True)
    names = first.union_all(select(following(first.c.name)).where(first.c.name.is_not(None)))
    return select(names.c.name).where(names.c.name.is_not(None)).limit(bindparam("at_most"))


_NAMES = _names()


async def list_users(
    connection: AsyncConnection, *, after: str | None, limit: int, now: datetime
) -> list[UserOverview]:
    """By name. A user is who has a session, a key, usage or limits."""
    found = await connection.execute(_NAMES, {"after": after or "", "at_most": limit})
    names = list(found.scalars())
    today = now.astimezone(UTC).date()
    midnight = datetime.combine(today, time(), UTC)
    in_force = api_keys.c.revoked_at.is_(None) & func.coalesce(api_keys.c.expires_at > now, True)
    keys = await _counted(connection, api_keys, names, in_force)
    owned = await _counted(connection, sessions, names)
    of_today = sessions.join(turns, turns.c.session_id == sessions.c.id)
    today_on = (
        turns.c.id >= first_id("turn", midnight - SKEW),  # the primary key has them by time
        turns.c.created_at >= midnight,
        sessions.c.updated_at >= midnight,
    )
    begun = await _counted(connection, of_today, names, *today_on, owner=sessions.c.owner)
    spent = {row.owner: row for row in await connection.execute(_spent(names, usage.c.day == today))}
    return [
        UserOverview(
            user=name,
            keys=keys.get(name, 0),
            sessions=owned.get(name, 0),
            turns_today=begun.get(name, 0),
            tokens_today=spent[name].tokens if name in spent else 0,
            cost_today=spent[name].cost if name in spent else 0.0,
        )
        for name in names
    ]


async def _counted(
    connection: AsyncConnection,
    table: FromClause,
    names: Sequence[str],
    *conditions: ColumnElement[bool],
    owner: ColumnElement[str] | None = None,
) -> dict[str, int]:
    by = table.c.owner if owner is None else owner
    counted = select(by, func.count().label("rows")).select_from(table).where(by.in_(names), *conditions).group_by(by)
    return {row[0]: row.rows for row in await connection.execute(counted)}


def _spent(names: Sequence[str], *conditions: ColumnElement[bool]) -> Select[Any]:
    cost = case((func.count() == func.count(usage.c.cost), func.sum(usage.c.cost))).cast(Float)
    tokens = func.sum(usage.c.input_tokens + usage.c.output_tokens).cast(BigInteger)
    of_names = usage.c.owner.in_(names)
    return (
        select(usage.c.owner, tokens.label("tokens"), cost.label("cost"))
        .where(of_names, *conditions)
        .group_by(usage.c.owner)
    )
