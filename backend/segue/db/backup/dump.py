"""Copies every table into an archive, as of one moment, while the service runs.

What is in Redis is not copied: it is made again from rows (docs/decisions.md, 65).
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import datetime
from functools import partial
from typing import IO, Any, Final
from zipfile import ZipFile

import asyncpg
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from segue.db.backup.archive import FORMAT, Manifest, Member, TableCopy, add_manifest, new_archive
from segue.db.engine import Database
from segue.db.migrations import MIGRATION_LOCK, missing_revisions
from segue.db.models import metadata
from segue.domain.errors import AppError

# Called with a table and the bytes of it that have been copied so far.
OnProgress = Callable[[str, int], None]

MIGRATION_S: Final = 10.0  # for a process that is starting to look at the schema
ASK_AGAIN_S: Final = 0.2
LOCK_TIMEOUT_S: Final = 60.0
COPY_TIMEOUT_S: Final = 21_600.0  # of one table; a copy that is cut off is never taken for a whole one

_COLUMNS: Final = text("""
SELECT table_name, column_name,
       CASE WHEN is_identity = 'YES' THEN pg_get_serial_sequence(quote_ident(table_name), column_name) END AS sequence
FROM information_schema.columns
WHERE table_schema = current_schema() AND is_generated = 'NEVER' ORDER BY table_name, ordinal_position
""")
_IS_AT_REST: Final = text(f"""
SELECT CASE WHEN pg_try_advisory_lock_shared({MIGRATION_LOCK}) THEN pg_advisory_unlock_shared({MIGRATION_LOCK}) END
""")
_LAST: Final = "SELECT coalesce(pg_sequence_last_value($1::text::regclass), 0)"


async def back_up(database: Database, file: IO[bytes], *, version: str, progress: OnProgress) -> Manifest:
    """Writes the archive. Raises AppError `no_store`, `store_too_new`, `migrating`, `copy_failed`."""
    async with database.read_only() as connection:
        present = await _tables_to_copy(connection)
    async with database.transaction() as connection, driver_of(connection) as driver:
        await connection.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        # Before the first query, which fixes what is seen: a table that is rewritten later would be empty then.
        names = ", ".join(["alembic_version", *present])
        await driver.execute(f"LOCK TABLE {names} IN ACCESS SHARE MODE", timeout=LOCK_TIMEOUT_S)
        columns = await _columns(connection)
        revision = str(await current_revision(connection))
        made_at: datetime = (await connection.execute(text("SELECT clock_timestamp()"))).scalar_one()
        with new_archive(file) as archive:
            tables = {table: await _copy(driver, archive, table, columns[table], progress) for table in present}
            manifest = Manifest(FORMAT, version, revision, made_at, tables)
            add_manifest(archive, manifest)
    return manifest


async def _tables_to_copy(connection: AsyncConnection) -> list[str]:
    """Returns them in the order in which they can be filled. Raises what `back_up` does."""
    for _ in range(round(MIGRATION_S / ASK_AGAIN_S)):
        if await connection.scalar(_IS_AT_REST):
            break
        await asyncio.sleep(ASK_AGAIN_S)
    else:
        raise migrating()
    revision = await current_revision(connection)
    if revision is None:
        raise AppError("no_store", status=404, title="Nothing to back up", detail="The database is empty.")
    if missing_revisions(revision) is None:
        raise store_too_new(revision)
    present = await _columns(connection)
    return [table.name for table in metadata.sorted_tables if table.name in present]


async def current_revision(connection: AsyncConnection) -> str | None:
    """Returns None if no release has migrated the database."""
    if await connection.scalar(text("SELECT to_regclass('alembic_version')")) is None:
        return None
    revision: str | None = await connection.scalar(text("SELECT version_num FROM alembic_version"))
    return revision


def migrating() -> AppError:
    detail = "A process is migrating the database. Try again in a moment."
    return AppError("migrating", status=503, title="The database is being migrated", detail=detail, retryable=True)


def store_too_new(revision: str) -> AppError:
    detail = f"A newer release has migrated the database to {revision}. Use the `segue` of that release."
    return AppError("store_too_new", status=503, title="The database is too new", detail=detail)


@asynccontextmanager
async def driver_of(connection: AsyncConnection) -> AsyncIterator[Any]:
    """Yields asyncpg's connection, which knows COPY, for statements that take as long as their `timeout` says. Raises
    AppError `copy_failed` for an error of PostgreSQL.
    """
    driver: Any = (await connection.get_raw_connection()).driver_connection
    driver.forget()  # a transaction with statements of the driver's is not repeated
    try:
        await driver.execute("SET statement_timeout = 0")
        yield driver
    except (asyncpg.PostgresError, asyncpg.InterfaceError) as error:  # its words may hold a value of a row
        detail = f"PostgreSQL ended the copy ({type(error).__name__}); its log may say more. Nothing has changed."
        raise AppError("copy_failed", status=500, title="The copy failed", detail=detail) from error


async def _columns(connection: AsyncConnection) -> dict[str, dict[str, str | None]]:
    """Returns the sequence, if it has one, of each column of each table."""
    found: dict[str, dict[str, str | None]] = {}
    for row in await connection.execute(_COLUMNS):
        found.setdefault(row.table_name, {})[row.column_name] = row.sequence
    return found


async def _copy(
    driver: Any, archive: ZipFile, table: str, columns: dict[str, str | None], progress: OnProgress
) -> TableCopy:
    member = Member()
    with archive.open(table, "w", force_zip64=True) as out:

        async def keep(chunk: bytes) -> None:
            out.write(chunk)
            member.count(chunk)
            progress(table, member.size_bytes)

        copied = partial(driver.copy_from_table, table, columns=list(columns), output=keep)
        status = await copied(format="text", timeout=COPY_TIMEOUT_S)
    sequences = {column: await driver.fetchval(_LAST, sequence) for column, sequence in columns.items() if sequence}
    return TableCopy(tuple(columns), rows_of(status), member.size_bytes, member.sha256, sequences)


def rows_of(status: str) -> int:
    """Returns how many rows a COPY says it has copied: `COPY 12`."""
    return int(status.rpartition(" ")[2])
