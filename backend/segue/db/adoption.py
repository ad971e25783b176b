"""Gives all that one user has to another: what was said before there were keys becomes the user's who has one now.

Goes by the metadata of the tables, so that a table that is added later is covered. Works in small transactions beside
the service, and goes on where one that was killed has stopped.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from functools import partial

from sqlalchemy import ColumnElement, Table, delete, exists, func, literal, or_, select, tuple_, union_all, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection

from segue.db.engine import Database
from segue.db.models import OPEN_TURNS, api_keys, audit, memories, metadata, sessions, turns, user_limits

SESSIONS_AT_ONCE = 20
ROWS_AT_ONCE = 500
LOOK_AGAIN_S = 0.5
MAX_RACES = 10
ADOPTED = "adopt_user"

OF_USERS = tuple(
    (table, table.c[name]) for table in metadata.sorted_tables for name in ("owner", "actor") if name in table.c
)
IS_OPEN = turns.c.status.in_(OPEN_TURNS)
ABOUT_A_USER = (api_keys, user_limits, audit)  # a user may have these, and still nothing that another could mix with


Moved = tuple[str, int, int]  # the table, rows that were moved, rows that were left out


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
        counts = [
            select(literal(table.name).label("name"), func.count().label("rows")).where(column == self.from_)
            for table, column in OF_USERS
        ]
        async with self.database.read_only() as connection:
            found = await connection.execute(union_all(*counts))
        return {row.name: row.rows for row in found if row.rows}

    async def would_mix(self) -> bool:
        """Whether `to` has something that is not from an adoption that was begun before."""
        theirs = [exists().where(column == self.to) for table, column in OF_USERS if table not in ABOUT_A_USER]
        begun = exists().where(audit.c.action == ADOPTED, audit.c.details.contains(self._details))
        async with self.database.read_only() as connection:
            return bool(await connection.scalar(select(or_(*theirs) & ~begun)))

    async def run(self, *, wait_s: float) -> int:
        """Returns how many sessions are left, because a turn of theirs was open for all of `wait_s` seconds."""
        async with self.database.transaction() as connection:
            act = {"at": func.now(), "actor": "cli", "action": ADOPTED, "details": self._details}
            await connection.execute(audit.insert().values(act))
        left = await self._move_sessions(wait_s)
        for table, column in OF_USERS:
            if table is not sessions:
                await _until_done(partial(self._move_some_rows, table, column))
        return left

    @property
    def _details(self) -> dict[str, str]:
        return {"from": self.from_, "to": self.to}

    async def _move_sessions(self, wait_s: float) -> int:
        ends_at = time.monotonic() + wait_s
        while True:
            await _until_done(self._move_some_sessions)
            async with self.database.read_only() as connection:
                theirs = select(func.count()).where(sessions.c.owner == self.from_)
                left: int = (await connection.execute(theirs)).scalar_one()
            if not left or time.monotonic() > ends_at:
                return left
            await asyncio.sleep(LOOK_AGAIN_S)

    async def _move_some_sessions(self) -> int:
        """Moves sessions, with what has their ids, in one transaction. A turn that runs has read whose it is, and none
        is accepted while its session is locked: one with an open turn is left for later.
        """
        is_busy = exists().where(turns.c.session_id == sessions.c.id, IS_OPEN)
        idle = select(sessions.c.id).where(sessions.c.owner == self.from_, ~is_busy).limit(SESSIONS_AT_ONCE)
        async with self.database.transaction() as connection:
            locked = idle.with_for_update(key_share=True, skip_locked=True, of=sessions)
            batch = set((await connection.execute(locked)).scalars())
            begun = select(turns.c.session_id).where(turns.c.session_id.in_(batch), IS_OPEN)
            batch -= set((await connection.execute(begun)).scalars())
            moves = [await self._move(connection, sessions, sessions.c.owner, sessions.c.id.in_(batch))]
            for table, column in OF_USERS:
                if "session_id" in table.c and table is not audit:
                    moves.append(await self._move(connection, table, column, table.c.session_id.in_(batch)))
        self._count(moves)
        return len(batch)

    async def _move_some_rows(self, table: Table, column: ColumnElement[str]) -> int:
        """Leaves those of sessions that are left."""
        mine = select(*table.primary_key).where(column == self.from_).limit(ROWS_AT_ONCE)
        if "session_id" in table.c:
            is_left = exists().where(sessions.c.id == table.c.session_id, sessions.c.owner == self.from_)
            mine = mine.where(~is_left)
        async with self.database.transaction() as connection:
            rows = (await connection.execute(mine)).all()
            which = tuple_(*table.primary_key).in_([tuple(row) for row in rows])
            moves = [await self._move(connection, table, column, which)] if rows else []
        self._count(moves)
        return len(rows)

    async def _move(
        self, connection: AsyncConnection, table: Table, column: ColumnElement[str], which: ColumnElement[bool]
    ) -> Moved:
        """Of what both have, `to` keeps its own."""
        given, left_out = (column == self.from_, which), 0
        if column.name in table.primary_key.columns:
            theirs = table.alias("theirs")
            same = (theirs.c[each.name] == each for each in table.primary_key if each is not column)
            both = exists().where(theirs.c[column.name] == self.to, *same)
            left_out = (await connection.execute(delete(table).where(*given, both))).rowcount
        values: dict[str, object] = {column.name: self.to}
        if table is memories:
            values["superseded_by"] = self._same_fact()
        moved = (await connection.execute(update(table).where(*given).values(values))).rowcount
        return table.name, moved, left_out

    def _count(self, moves: Iterable[Moved]) -> None:
        for name, moved, left_out in moves:
            self.moved[name] += moved
            self.left_out[name] += left_out

    def _same_fact(self) -> ColumnElement[str]:
        """A fact that both know is replaced by that of `to`: a user is told a fact once."""
        theirs = memories.alias("theirs")
        same = select(theirs.c.id).where(
            theirs.c.owner == self.to,
            theirs.c.content_hash == memories.c.content_hash,
            theirs.c.superseded_by.is_(None),
        )
        return func.coalesce(memories.c.superseded_by, same.scalar_subquery())


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
