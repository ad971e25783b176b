"""Reads all rows of a user, as JSON that PostgreSQL writes: nothing is parsed, and little is in memory at a time.

Goes by the metadata of the tables as `erasure.py` does, so that what is exported and what is erased is the same.
"""

from collections.abc import AsyncIterator

from sqlalchemy import ARRAY, ColumnElement, Table, Text, cast, func, literal, select

from segue.db.engine import Database
from segue.db.erasure import BATCH, TABLES_OF_OWNERS, tables_of
from segue.db.models import sessions

LEFT_OUT = ("digest", "search")  # the hash of a secret, and what is made of a fact's words to find it
ROWS_AT_ONCE = 5  # a result may have ten megabytes


async def rows_of_user(database: Database, owner: str) -> AsyncIterator[tuple[str, str]]:
    """Yields the name of a table and a row of it, for every row of the user. Each table is read for itself."""
    for table in TABLES_OF_OWNERS:
        async for row in _rows(database, table, table.c.owner == owner):
            yield table.name, row
    seen = ""
    while True:
        mine = select(sessions.c.id).where(sessions.c.owner == owner, sessions.c.id > seen)
        async with database.read_only() as connection:
            batch = list((await connection.execute(mine.order_by(sessions.c.id).limit(BATCH))).scalars())
        if not batch:
            return
        seen = batch[-1]
        for table, belongs in tables_of(batch):
            async for row in _rows(database, table, belongs):
                yield table.name, row


async def _rows(database: Database, table: Table, belongs: ColumnElement[bool]) -> AsyncIterator[str]:
    kept = func.to_jsonb(table.table_valued()).op("-")(cast(literal(list(LEFT_OUT), ARRAY(Text)), ARRAY(Text)))
    statement = select(cast(kept, Text)).select_from(table).where(belongs)
    async with database.transaction() as connection:
        async for row in await connection.stream(statement.execution_options(yield_per=ROWS_AT_ONCE)):
            yield row[0]
