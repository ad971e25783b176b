"""Facts about the Postgres server, and how much a session stores. Only reads.

Goes by the metadata of the tables, so that a table that is added later is counted.
"""

from dataclasses import dataclass

from sqlalchemy import Table, func, literal, select, text, union_all
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.sql.elements import ColumnElement

from segue.db.erasure import tables_of

_SERVER = text("""
SELECT current_setting('server_version') AS version,
       (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend') AS connections,
       current_setting('max_connections')::int AS max_connections,
       pg_database_size(current_database()) AS database_bytes,
       (SELECT extversion FROM pg_extension WHERE extname = 'vector') AS pgvector,
       to_regclass('alembic_version') IS NOT NULL AS is_migrated
""")
_REVISION = text("SELECT version_num FROM alembic_version")


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """`revision` is None for a database that was never migrated; `pgvector` is its version, None if not installed."""

    version: str
    connections: int
    max_connections: int
    database_bytes: int
    pgvector: str | None
    revision: str | None


@dataclass(frozen=True, slots=True)
class Share:
    """`bytes` as stored: compressed, without indexes."""

    rows: int
    bytes: int


async def look_at_server(connection: AsyncConnection) -> ServerFacts:
    facts = dict((await connection.execute(_SERVER)).mappings().one())
    is_migrated = facts.pop("is_migrated")
    return ServerFacts(**facts, revision=await connection.scalar(_REVISION) if is_migrated else None)


async def share_of_session(connection: AsyncConnection, session_id: str) -> dict[str, Share]:
    """Returns rows and bytes by table. Measures each column by itself, so that no payload is read."""
    shares = [
        select(literal(table.name).label("name"), func.count().label("rows"), _bytes(table).label("bytes"))
        .select_from(table)
        .where(belongs)
        for table, belongs in tables_of([session_id])
    ]
    return {row.name: Share(row.rows, int(row.bytes)) for row in await connection.execute(union_all(*shares))}


def _bytes(table: Table) -> ColumnElement[int]:
    of_row = [func.coalesce(func.pg_column_size(column), 0) for column in table.c]
    return func.coalesce(func.sum(sum(of_row[1:], of_row[0])), 0)
