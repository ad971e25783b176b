"""All that one user has: gives it to another user, counts it, reads it, deletes it.

Goes by the metadata of tables and the names of Redis keys, so later tables and keys are covered. It exports what it
erases, and the hashes of `receipts`, which stay. Works in small transactions, and resumes after a kill.
"""

import asyncio
import re
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError

from segue.db import models
from segue.db.engine import Connection, Database
from segue.db.models import OPEN_TURNS, audit, memories, metadata, receipts, sessions, turns
from segue.db.redis_keys import Cache, belongs_to, plan_cache_key, plans_of_owner_key, turn_places_key, user_feed_key
from segue.domain.field_types import doc

SESSIONS_AT_ONCE = 20
TURNS_AT_ONCE = 2_000
LOOK_AGAIN_S = 0.5
MAX_RACES = 10
KEYS_KNOWN_S = 2.0  # after a key is deleted: the second for which a process knows it, and one for what it let in

OF_USERS = tuple(
    (table, table.c[name]) for table in metadata.sorted_tables for name in ("owner", "actor") if name in table.c
)
IS_OPEN = turns.c.status.in_(OPEN_TURNS)
# A user may have these, and still nothing that another could mix with.
ABOUT_A_USER = (models.api_keys, models.user_limits, audit)
_ID = re.compile(r"(?:ses|turn)_[0-9a-z]{26}")
LEFT_OUT = ("digest", "sealed", "search")  # a secret's hash, an encrypted one, and what is made of a fact to find it
# SQLAlchemy's cursor reads fifty rows at once, whatever it is told, and a result may have ten megabytes.
ROWS_READ_AT_ONCE = dict.fromkeys(metadata.tables.values(), 50) | {models.tool_results: 1, models.attachments: 1}
TABLES_OF_OWNERS = tuple(table for table in metadata.sorted_tables if "owner" in table.c and table is not sessions)
_EVENTS = models.webhook_events
_OWNED = (  # whose a row is that no session takes with it: an event of a mandate for all of them only names its user
    *((table, table.c.owner) for table in TABLES_OF_OWNERS),
    (_EVENTS, sa.case((_EVENTS.c.session_id.is_(None), _EVENTS.c.data["user"].astext))),
)

Moved = tuple[str, int, int]  # the table, rows that were moved, rows that were left out
Ids = Collection[str] | sa.Select[tuple[str]]


@dataclass(frozen=True, slots=True)
class Adoption:
    """`from_` gives, `to` takes. `moved` counts rows by table, `left_out` those of which `to` has its own."""

    database: Database
    from_: str
    to: str
    moved: Counter[str] = field(default_factory=Counter)
    left_out: Counter[str] = field(default_factory=Counter)

    async def rows(self) -> dict[str, int]:
        """Returns how many rows there are to move, by table."""
        counts = await self.database.read(_count, [(table, column == self.from_) for table, column in OF_USERS])
        return {table: rows for table, rows in counts.items() if rows}

    async def would_mix(self) -> bool:
        """Whether `to` has something that is not from an adoption that was begun before."""
        theirs = [sa.exists().where(column == self.to) for table, column in OF_USERS if table not in ABOUT_A_USER]
        begun = sa.exists().where(audit.c.action == "adopt_user", audit.c.details.contains(self.details))
        return bool(await self.database.read(Connection.scalar, sa.select(sa.or_(*theirs) & ~begun)))

    async def run(self, *, wait_s: float) -> int:
        """Returns how many sessions are left, because a turn of theirs was open for all of `wait_s` seconds."""
        ends_at = time.monotonic() + wait_s
        while True:
            await _until_done(self._move_some_sessions)
            theirs = sa.select(sa.func.count()).where(sessions.c.owner == self.from_)
            left: int = await self.database.read(Connection.scalar, theirs)
            if not left or time.monotonic() > ends_at:
                break
            await asyncio.sleep(LOOK_AGAIN_S)
        for table, column in OF_USERS:
            if table is not sessions:
                await _until_done(partial(self._move_some_rows, table, column))
        return left

    @property
    def details(self) -> dict[str, str]:
        """Returns what the audit has of it. Record that before `run`: then an interrupted one may be run again."""
        return {"from": self.from_, "to": self.to}

    async def _move_some_sessions(self) -> int:
        """Moves sessions, with what has their ids, in one transaction. A turn that runs has read whose it is, and none
        is accepted while its session is locked: one with an open turn is left for later.
        """
        is_busy = sa.exists().where(turns.c.session_id == sessions.c.id, IS_OPEN)
        idle = sa.select(sessions.c.id).where(sessions.c.owner == self.from_, ~is_busy).limit(SESSIONS_AT_ONCE)
        async with self.database.transaction() as connection:
            locked = idle.with_for_update(key_share=True, skip_locked=True, of=sessions)
            batch = set((await connection.execute(locked)).scalars())
            begun = sa.select(turns.c.session_id).where(turns.c.session_id.in_(batch), IS_OPEN)
            batch -= set((await connection.execute(begun)).scalars())
            moves = [await self._move(connection, sessions, sessions.c.owner, sessions.c.id.in_(batch))]
            for table, column in OF_USERS:
                if "session_id" in table.c and table is not audit:
                    moves.append(await self._move(connection, table, column, table.c.session_id.in_(batch)))
        self._count(moves)
        return len(batch)

    async def _move_some_rows(self, table: sa.Table, column: sa.ColumnElement[str]) -> int:
        """Leaves those of sessions that are left."""
        mine = sa.select(*table.primary_key).where(column == self.from_).limit(500)
        if "session_id" in table.c:
            mine = mine.where(~sa.exists().where(sessions.c.id == table.c.session_id, sessions.c.owner == self.from_))
        async with self.database.transaction() as connection:
            rows = (await connection.execute(mine)).all()
            which = sa.tuple_(*table.primary_key).in_([tuple(row) for row in rows])
            moves = [await self._move(connection, table, column, which)] if rows else []
        self._count(moves)
        return len(rows)

    async def _move(
        self, connection: Connection, table: sa.Table, column: sa.ColumnElement[str], which: sa.ColumnElement[bool]
    ) -> Moved:
        """Of what both have, `to` keeps its own."""
        given, left_out = (column == self.from_, which), 0
        if column.name in table.primary_key.columns:
            theirs = table.alias("theirs")
            same = (theirs.c[each.name] == each for each in table.primary_key if each is not column)
            both = sa.exists().where(theirs.c[column.name] == self.to, *same)
            left_out = (await connection.execute(sa.delete(table).where(*given, both))).rowcount
        values: dict[str, object] = {column.name: self.to}
        if table is memories:  # a fact that both know is replaced by that of `to`: a user is told a fact once
            known = table.alias("known")
            kept = sa.select(known.c.id).where(known.c.owner == self.to, known.c.superseded_by.is_(None))
            kept = kept.where(known.c.content_hash == table.c.content_hash)
            values["superseded_by"] = sa.func.coalesce(table.c.superseded_by, kept.scalar_subquery())
        return table.name, (await connection.execute(sa.update(table).where(*given).values(values))).rowcount, left_out

    def _count(self, moves: Iterable[Moved]) -> None:
        for name, moved, left_out in moves:
            self.moved[name] += moved
            self.left_out[name] += left_out


async def _until_done(some: Callable[[], Awaitable[int]]) -> None:
    """`some` moves a few rows and returns how many."""
    races = 0
    while True:
        try:
            if not await some():
                return
        except IntegrityError:  # `to` has got the same at this moment, and keeps it the next time
            races += 1
            if races == MAX_RACES:
                raise


@dataclass(frozen=True, slots=True)
class ErasedRows:
    """What was deleted."""

    rows: Annotated[dict[str, int], doc("The number of deleted rows, by table.")]
    redis_keys: Annotated[int | None, doc("The number of deleted keys; null if Redis was away: they go within a day.")]


async def erase_user(database: Database, cache: Cache, owner: str) -> ErasedRows:
    """Deletes all, then what came with an API key a process still knew. A running turn stops once its row is gone."""
    rows: Counter[str] = Counter()
    deleted = await _erase(database, owner, rows)
    if rows[models.api_keys.name]:
        await asyncio.sleep(KEYS_KNOWN_S)
        deleted |= await _erase(database, owner, rows)
    return ErasedRows(dict(rows), await cache.delete_where(lambda key: _is_of(key, owner, deleted)))


async def _erase(database: Database, owner: str, rows: Counter[str]) -> set[str]:
    """Deletes API keys, then turns and sessions, in batches that keep to the time limit. Counts rows, returns ids."""
    await _delete_owned(database, owner, rows)
    mine = sa.select(sessions.c.id).where(sessions.c.owner == owner)
    for which in tables_of(mine):
        rows.update(await database.read(_count, [which]))
    deleted: set[str] = set()
    while turn_ids := await database.transact(_delete_turns, mine):
        deleted.update(turn_ids)
    while True:
        async with database.transaction() as connection:
            batch = list((await connection.execute(mine.limit(SESSIONS_AT_ONCE))).scalars())
            if not batch:
                break
            # Turns are locked before their sessions, as when a turn ends, to avoid a deadlock.
            locked = sa.select(turns.c.id).where(turns.c.session_id.in_(batch)).with_for_update()
            deleted.update(batch, (await connection.execute(locked)).scalars())
            await connection.execute(sa.delete(sessions).where(sessions.c.id.in_(batch)))
    await _delete_owned(database, owner, rows)  # a fact may have come from a session that was deleted later
    return deleted


async def _delete_turns(connection: Connection, of_sessions: sa.Select[Any]) -> Sequence[str]:
    some = sa.select(turns.c.id).where(turns.c.session_id.in_(of_sessions)).limit(TURNS_AT_ONCE)
    deleted = await connection.execute(sa.delete(turns).where(turns.c.id.in_(some)).returning(turns.c.id))
    return deleted.scalars().all()


async def has_rows(database: Database, owner: str) -> bool:
    theirs = (sa.exists().where(whose == owner) for _, whose in ((sessions, sessions.c.owner), *_OWNED))
    return bool(await database.read(Connection.scalar, sa.select(sa.or_(*theirs))))


async def count_user(database: Database, owner: str) -> dict[str, int]:
    """Returns how many rows a user has, by table. Each is counted for itself, within a statement's time limit."""
    rows: Counter[str] = Counter()
    mine = sa.select(sessions.c.id).where(sessions.c.owner == owner)
    for which in (*((table, whose == owner) for table, whose in _OWNED), *tables_of(mine)):
        rows.update(await database.read(_count, [which]))
    return rows


def belongs_to_sessions(table: sa.Table, session_ids: Ids) -> sa.ColumnElement[bool] | None:
    """Returns whether a row belongs to one of the sessions; None for a table that does not depend on sessions."""
    if table is sessions:
        return sessions.c.id.in_(session_ids)
    for key in sorted(table.foreign_keys, key=lambda key: key.column.table is not sessions):
        above = belongs_to_sessions(key.column.table, session_ids)
        if above is not None:
            return key.parent.in_(sa.select(key.column).where(above))
    return None


def tables_of(session_ids: Ids) -> list[tuple[sa.Table, sa.ColumnElement[bool]]]:
    """Returns the tables that depend on sessions, each with the condition for the rows of these sessions."""
    others = [table for table in metadata.sorted_tables if table not in TABLES_OF_OWNERS]
    conditions = ((table, belongs_to_sessions(table, session_ids)) for table in others)
    return [(table, belongs) for table, belongs in conditions if belongs is not None]


async def _delete_owned(database: Database, owner: str, rows: Counter[str]) -> None:
    for table, whose in _OWNED:
        removed = await database.transact(Connection.execute, sa.delete(table).where(whose == owner))
        rows[table.name] += removed.rowcount


async def _count(connection: Connection, of: Iterable[tuple[sa.Table, sa.ColumnElement[bool]]]) -> dict[str, int]:
    """Returns how many rows of each table its condition holds for."""
    counts = [
        sa.select(sa.literal(table.name).label("name"), sa.func.count().label("rows")).select_from(table).where(belongs)
        for table, belongs in of
    ]
    return {row.name: row.rows for row in await connection.execute(sa.union_all(*counts))}


def _is_of(key: str, owner: str, ids: set[str]) -> bool:
    own = (plans_of_owner_key(owner), turn_places_key(owner), user_feed_key(owner))
    is_own = key in own or key.startswith(plan_cache_key(owner, "")) or belongs_to(key, owner)
    return is_own or not ids.isdisjoint(_ID.findall(key))


async def rows_of_user(database: Database, owner: str) -> AsyncIterator[tuple[str, str]]:
    """Yields the name of a table and a row of it, for every row of the user. Each part is read for itself."""
    for table, whose in _OWNED:
        async for row in _rows(database, table, whose == owner):
            yield table.name, row
    mine = sa.select(sessions.c.id).where(sessions.c.owner == owner)
    for session_id in list(await database.read(Connection.scalars, mine)):
        for table, belongs in (*tables_of([session_id]), (receipts, receipts.c.session_id == session_id)):
            async for row in _rows(database, table, belongs):
                yield table.name, row


def line_of(table: str, row: str) -> str:
    """A row in a file of them."""
    return f'{{"table": "{table}", "row": {row}}}\n'


async def _rows(database: Database, table: sa.Table, belongs: sa.ColumnElement[bool]) -> AsyncIterator[str]:
    key, size = sa.tuple_(*table.primary_key), ROWS_READ_AT_ONCE[table]
    left_out = sa.cast(sa.literal(list(LEFT_OUT), sa.ARRAY(sa.Text)), sa.ARRAY(sa.Text))
    shown = sa.cast(sa.func.to_jsonb(table.table_valued()).op("-")(left_out), sa.Text)
    keys = (await database.read(Connection.execute, sa.select(*table.primary_key).where(belongs))).all()
    for at in range(0, len(keys), size):
        part = key.in_([tuple(each) for each in keys[at : at + size]])
        rows = sa.select(shown).select_from(table).where(belongs, part)
        for row in list(await database.read(Connection.scalars, rows)):
            yield row
