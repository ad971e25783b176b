"""What a schema demands of those who write to it: its columns, and the rules over them."""

from dataclasses import dataclass

import asyncpg

COLUMNS = """
SELECT table_name || '.' || column_name AS name, udt_name || coalesce(character_maximum_length::text, '') AS type,
       is_nullable = 'NO' AS needed, column_default IS NOT NULL OR is_identity = 'YES' AS filled
FROM information_schema.columns WHERE table_schema = 'public' AND table_name <> 'alembic_version'
"""
RULES = """
WITH rules (name, at, keys) AS (
    SELECT pg_get_indexdef(i.indexrelid), i.indrelid, i.indkey::int2[]
    FROM pg_index i JOIN pg_class c ON c.oid = i.indrelid
    WHERE i.indisunique AND c.relnamespace = 'public'::regnamespace
    UNION ALL
    SELECT conname || ' ' || pg_get_constraintdef(oid), conrelid, conkey
    FROM pg_constraint WHERE contype IN ('c', 'f', 'x') AND connamespace = 'public'::regnamespace
)
SELECT name, array_agg(at::regclass::text || '.' || attname) AS columns
FROM rules JOIN pg_attribute ON attrelid = at AND attnum = ANY(keys) GROUP BY name
"""


@dataclass(frozen=True, slots=True)
class Column:
    """`needed` takes no null, `filled` has a default."""

    type: str
    needed: bool
    filled: bool


@dataclass(frozen=True, slots=True)
class Schema:
    """Columns by `table.column`, and what rows have to keep to (unique, check, foreign key) with its columns."""

    columns: dict[str, Column]
    rules: dict[str, frozenset[str]]

    @property
    def tables(self) -> set[str]:
        return {name.partition(".")[0] for name in self.columns}


async def schema(connection: asyncpg.Connection) -> Schema:
    columns = {
        row["name"]: Column(row["type"], row["needed"], row["filled"]) for row in await connection.fetch(COLUMNS)
    }
    rules = {row["name"]: frozenset(row["columns"]) for row in await connection.fetch(RULES)}
    return Schema(columns, rules)
