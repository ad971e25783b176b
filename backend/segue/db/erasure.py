"""Deletes and counts all data of a user: rows by their owner or session, Redis keys by the names in them.

Goes by the metadata of the tables and the names of the keys, so that a table or key that is added later is covered.
"""

import re
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Annotated

from sqlalchemy import ColumnElement, Select, Table, delete, exists, func, literal, or_, select, union_all
from sqlalchemy.ext.asyncio import AsyncConnection

from segue.db import rate_limits
from segue.db.engine import Database
from segue.db.models import metadata, sessions, turns
from segue.db.redis import Cache, plan_cache_key, plans_of_owner_key, turn_places_key, user_feed_key
from segue.domain.doc import doc

BATCH = 20

_ID = re.compile(r"(?:ses|turn)_[0-9a-z]{26}")
Ids = Collection[str] | Select[tuple[str]]
TABLES_OF_OWNERS = tuple(table for table in metadata.sorted_tables if "owner" in table.c and table is not sessions)


@dataclass(frozen=True, slots=True)
class ErasedRows:
    """What was removed."""

    rows: Annotated[dict[str, int], doc("How many, by table.")]
    redis_keys: Annotated[int | None, doc("null if Redis could not be asked: its keys go within a day.")]


async def erase_user(database: Database, cache: Cache, owner: str) -> ErasedRows:
    """Deletes API keys first, so that no new request comes; then sessions, in batches within a statement's time limit.

    A process that runs a turn of the user stops it when it finds the row deleted.
    """
    rows: Counter[str] = Counter()
    await _delete_owned(database, owner, rows)
    deleted: set[str] = set()
    while True:
        async with database.transaction() as connection:
            mine = select(sessions.c.id).where(sessions.c.owner == owner).limit(BATCH)
            batch = list((await connection.execute(mine)).scalars())
            if not batch:
                break
            deleted.update(batch, await _lock_turns(connection, batch))
            rows.update(await _count(connection, tables_of(batch)))
            await connection.execute(delete(sessions).where(sessions.c.id.in_(batch)))
    await _delete_owned(database, owner, rows)  # a fact may have come from a session that was deleted later
    return ErasedRows(dict(rows), await cache.delete_where(lambda key: _is_of(key, owner, deleted)))


async def has_rows(database: Database, owner: str) -> bool:
    theirs = (exists().where(table.c.owner == owner) for table in (sessions, *TABLES_OF_OWNERS))
    async with database.read_only() as connection:
        return bool(await connection.scalar(select(or_(*theirs))))


async def count_user(database: Database, owner: str) -> dict[str, int]:
    """Returns how many rows a user has, by table. Each is counted for itself, within a statement's time limit."""
    rows: dict[str, int] = {}
    mine = select(sessions.c.id).where(sessions.c.owner == owner)
    for which in (*((table, table.c.owner == owner) for table in TABLES_OF_OWNERS), *tables_of(mine)):
        async with database.read_only() as connection:
            rows |= await _count(connection, [which])
    return rows


def belongs_to_sessions(table: Table, session_ids: Ids) -> ColumnElement[bool] | None:
    """Returns whether a row belongs to one of the sessions; None for a table that does not depend on sessions."""
    if table is sessions:
        return sessions.c.id.in_(session_ids)
    for key in sorted(table.foreign_keys, key=lambda key: key.column.table is not sessions):
        above = belongs_to_sessions(key.column.table, session_ids)
        if above is not None:
            return key.parent.in_(select(key.column).where(above))
    return None


def tables_of(session_ids: Ids) -> list[tuple[Table, ColumnElement[bool]]]:
    """Returns the tables that depend on sessions, each with the condition for the rows of these sessions."""
    conditions = (
        (table, belongs_to_sessions(table, session_ids))
        for table in metadata.sorted_tables
        if table not in TABLES_OF_OWNERS
    )
    return [(table, belongs) for table, belongs in conditions if belongs is not None]


async def _delete_owned(database: Database, owner: str, rows: Counter[str]) -> None:
    for table in TABLES_OF_OWNERS:
        async with database.transaction() as connection:
            removed = await connection.execute(delete(table).where(table.c.owner == owner))
        rows[table.name] += removed.rowcount


async def _lock_turns(connection: AsyncConnection, session_ids: Collection[str]) -> list[str]:
    """Locks turns before their sessions, in the order in which a turn ends, to avoid a deadlock."""
    statement = select(turns.c.id).where(turns.c.session_id.in_(session_ids)).with_for_update()
    return list((await connection.execute(statement)).scalars())


async def _count(connection: AsyncConnection, which: Iterable[tuple[Table, ColumnElement[bool]]]) -> dict[str, int]:
    """Returns how many rows of each table its condition holds for."""
    counts = [
        select(literal(table.name).label("name"), func.count().label("rows")).select_from(table).where(belongs)
        for table, belongs in which
    ]
    return {row.name: row.rows for row in await connection.execute(union_all(*counts))}


def _is_of(key: str, owner: str, ids: set[str]) -> bool:
    return (
        key in (plans_of_owner_key(owner), turn_places_key(owner), user_feed_key(owner))
        or key.startswith(plan_cache_key(owner, ""))
        or rate_limits.belongs_to(key, owner)
        or not ids.isdisjoint(_ID.findall(key))
    )
