"""Everything a user has, removed and counted: rows by what they hang on, Redis keys by whom or what they name.

Reads off the tables and the keys what there is, so that what is added later is removed too.
"""

import re
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass

from sqlalchemy import ColumnElement, Table, delete, func, literal, select, union_all
from sqlalchemy.ext.asyncio import AsyncConnection

from segue.db import rates
from segue.db.engine import Database
from segue.db.models import metadata, sessions, turns
from segue.db.redis import Cache, plan_cache_key, plans_of_owner_key, turn_places_key

BATCH = 20

_ID = re.compile(r"(?:ses|turn)_[0-9a-z]{26}")
_OF_OWNERS = tuple(table for table in metadata.sorted_tables if "owner" in table.c and table is not sessions)


@dataclass(frozen=True, slots=True)
class Erased:
    """`rows` by table; `redis_keys` is None where Redis could not be asked, and then they go when their time is up."""

    rows: dict[str, int]
    redis_keys: int | None


async def erase_user(database: Database, cache: Cache, owner: str) -> Erased:
    """API keys first, so that nobody begins anything meanwhile; then sessions, a batch in a statement's time.

    A turn that runs is stopped by the process that runs it, which finds its row gone.
    """
    rows: Counter[str] = Counter()
    await _delete_owned(database, owner, rows)
    gone: set[str] = set()
    while True:
        async with database.transaction() as connection:
            batch = await _some_sessions(connection, owner)
            if not batch:
                break
            gone.update(batch, await _lock_turns(connection, batch))
            rows.update(await _count(connection, batch))
            await connection.execute(delete(sessions).where(sessions.c.id.in_(batch)))
    await _delete_owned(database, owner, rows)  # a fact may have been noted from a session that was still there
    return Erased(dict(rows), await cache.delete_where(lambda key: _is_of(key, owner, gone)))


def hangs_on(table: Table, session_ids: Collection[str]) -> ColumnElement[bool] | None:
    """Whether a row of this table goes with these sessions; None for a table that does not hang on sessions."""
    if table is sessions:
        return sessions.c.id.in_(session_ids)
    for key in sorted(table.foreign_keys, key=lambda key: key.column.table is not sessions):
        above = hangs_on(key.column.table, session_ids)
        if above is not None:
            return key.parent.in_(select(key.column).where(above))
    return None


def tables_of(session_ids: Collection[str]) -> list[tuple[Table, ColumnElement[bool]]]:
    """The tables whose rows go with a session, and which rows those of these sessions are."""
    hanging = ((table, hangs_on(table, session_ids)) for table in metadata.sorted_tables if table not in _OF_OWNERS)
    return [(table, belongs) for table, belongs in hanging if belongs is not None]


async def _delete_owned(database: Database, owner: str, rows: Counter[str]) -> None:
    for table in _OF_OWNERS:
        async with database.transaction() as connection:
            removed = await connection.execute(delete(table).where(table.c.owner == owner))
        rows[table.name] += removed.rowcount


async def _some_sessions(connection: AsyncConnection, owner: str) -> list[str]:
    mine = select(sessions.c.id).where(sessions.c.owner == owner).limit(BATCH)
    return list((await connection.execute(mine)).scalars())


async def _lock_turns(connection: AsyncConnection, session_ids: Collection[str]) -> list[str]:
    """Before the sessions, as who ends a turn locks them, or each would wait for the other."""
    statement = select(turns.c.id).where(turns.c.session_id.in_(session_ids)).with_for_update()
    return list((await connection.execute(statement)).scalars())


async def _count(connection: AsyncConnection, session_ids: Collection[str]) -> dict[str, int]:
    """What goes with these sessions, by table."""
    counts = [
        select(literal(table.name).label("name"), func.count().label("rows")).select_from(table).where(belongs)
        for table, belongs in tables_of(session_ids)
    ]
    return {row.name: row.rows for row in await connection.execute(union_all(*counts))}


def _is_of(key: str, owner: str, ids: set[str]) -> bool:
    return (
        key in (plans_of_owner_key(owner), turn_places_key(owner))
        or key.startswith(plan_cache_key(owner, ""))
        or rates.belongs_to(key, owner)
        or not ids.isdisjoint(_ID.findall(key))
    )
