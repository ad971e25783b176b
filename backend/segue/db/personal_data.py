"""Reads all rows of a user, as JSON that PostgreSQL writes: nothing is parsed, and little is in memory at a time.

Goes by the metadata of the tables as `erasure.py` does, so that what is exported and what is erased is the same.
"""

from collections.abc import AsyncIterator

from sqlalchemy import ARRAY, ColumnElement, Table, Text, cast, func, literal, select, tuple_

from segue.db.engine import Database
from segue.db.erasure import TABLES_OF_OWNERS, tables_of
from segue.db.models import attachments, metadata, sessions, tool_results

# The hash of a secret, an encrypted one, and what is made of a fact's words to find it.
LEFT_OUT = ("digest", "sealed", "search")
# SQLAlchemy's cursor reads fifty rows at once, whatever it is told, and a result may have ten megabytes.
ROWS_AT_ONCE = dict.fromkeys(metadata.tables.values(), 50) | {tool_results: 1, attachments: 1}


async def rows_of_user(database: Database, owner: str) -> AsyncIterator[tuple[str, str]]:
    """Yields the name of a table and a row of it, for every row of the user. Each part is read for itself."""
    for table in TABLES_OF_OWNERS:
        async for row in _rows(database, table, table.c.owner == owner):
            yield table.name, row
    async with database.read_only() as connection:
        mine = list((await connection.execute(select(sessions.c.id).where(sessions.c.owner == owner))).scalars())
    for session_id in mine:
        for table, belongs in tables_of([session_id]):
            async for row in _rows(database, table, belongs):
                yield table.name, row


def line_of(table: str, row: str) -> str:
    """A row in a file of them."""
    return f'{{"table": "{table}", "row": {row}}}\n'


async def _rows(database: Database, table: Table, belongs: ColumnElement[bool]) -> AsyncIterator[str]:
    key, size = tuple_(*table.primary_key), ROWS_AT_ONCE[table]
    kept = func.to_jsonb(table.table_valued()).op("-")(cast(literal(list(LEFT_OUT), ARRAY(Text)), ARRAY(Text)))
    async with database.read_only() as connection:
        keys = (await connection.execute(select(*table.primary_key).where(belongs))).all()
    for at in range(0, len(keys), size):
        rows = (
            select(cast(kept, Text))
            .select_from(table)
            .where(belongs, key.in_([tuple(each) for each in keys[at : at + size]]))
        )
        async with database.read_only() as connection:
            found = list((await connection.execute(rows)).scalars())
        for row in found:
            yield row
