"""Fills the store from an archive: beside the tables that are there, and in their place once all of it is checked.

Until then no reader sees anything of it; a process that is killed leaves a schema that the next restore drops.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final
from zipfile import ZipFile

from sqlalchemy.ext.asyncio import AsyncConnection

from segue.db.backup.archive import Manifest, Member, TableCopy, chunks_of, opened_archive, unreadable
from segue.db.backup.dump import (
    ASK_AGAIN_S,
    COPY_TIMEOUT_S,
    OnProgress,
    current_revision,
    driver_of,
    migrating,
    rows_of,
    store_too_new,
)
from segue.db.engine import Database
from segue.db.migrations import MIGRATION_LOCK, missing_revisions, upgrade
from segue.db.models import metadata
from segue.domain.errors import AppError

RESTORE_LOCK: Final = 0x5E60F
SCHEMA: Final = "segue_restore"
_DROP_SCHEMA: Final = f"DROP SCHEMA IF EXISTS {SCHEMA} CASCADE"
OTHERS_S: Final = 3.0  # for a process that was just stopped to be gone, and a command to end
SWAP_LOCK_TIMEOUT: Final = "10s"
SWAP_TIMEOUT_S: Final = 600.0  # files of gigabytes are unlinked

_TABLES: Final = "SELECT table_name FROM information_schema.tables WHERE table_schema = $1"
_OTHERS: Final = """
SELECT count(*) FROM pg_stat_activity
WHERE datname = current_database() AND application_name = 'segue' AND pid <> pg_backend_pid()
"""


async def restore(database: Database, database_url: str, path: Path, *, force: bool, progress: OnProgress) -> Manifest:
    """Puts what the archive holds in the place of what is stored, at the newest schema.

    Raises AppError `backup_unreadable`, `backup_too_new`, `store_too_new`, `store_in_use`, `store_not_empty` without
    `force`, `restoring` and `copy_failed`. What was stored is still there then.
    """
    with opened_archive(path) as (archive, manifest):
        if missing_revisions(manifest.revision) is None:
            raise _backup_too_new(path, manifest)
        async with database.autocommit() as connection, driver_of(connection) as driver:
            await _refuse_target(connection, driver, force=force)
            async with _beside(driver):
                await asyncio.to_thread(upgrade, database_url, revision=manifest.revision, schema=SCHEMA)
                await _fill(driver, archive, manifest, progress)
                await asyncio.to_thread(upgrade, database_url, schema=SCHEMA)
                async with driver.transaction():
                    await _swap(connection, driver, force=force)
    return manifest


@asynccontextmanager
async def _beside(driver: Any) -> AsyncIterator[None]:
    """Within the block there is an empty schema beside the store's. One process restores at a time."""
    if not await driver.fetchval(f"SELECT pg_try_advisory_lock({RESTORE_LOCK})"):
        detail = "Another process restores into this database. Wait for it, or end it."
        raise AppError("restoring", status=409, title="A restore is under way", detail=detail)
    try:
        await driver.execute(f"{_DROP_SCHEMA}; CREATE SCHEMA {SCHEMA}", timeout=SWAP_TIMEOUT_S)
        yield
    finally:
        if not driver.is_closed():
            await driver.execute(_DROP_SCHEMA, timeout=SWAP_TIMEOUT_S)
            await driver.execute(f"SELECT pg_advisory_unlock({RESTORE_LOCK})")


async def _refuse_target(connection: AsyncConnection, driver: Any, *, force: bool) -> None:
    revision = await current_revision(connection)
    if revision is not None and missing_revisions(revision) is None:
        raise store_too_new(revision)
    for _ in range(round(OTHERS_S / ASK_AGAIN_S)):
        if not await driver.fetchval(_OTHERS):
            break
        await asyncio.sleep(ASK_AGAIN_S)
    else:
        detail = "Another process of Segue uses this database. Stop it first: what it holds would not fit any more."
        raise AppError("store_in_use", status=409, title="The database is in use", detail=detail)
    stored = [
        table
        for table in await _ours(driver)
        if await driver.fetchval(f"SELECT EXISTS (SELECT FROM {table})")  # noqa: S608 (a table of ours)
    ]
    if stored and not force:
        detail = f"The database is not empty: {', '.join(stored)}. --force deletes all of it for the backup."
        raise AppError("store_not_empty", status=409, title="The database is not empty", detail=detail)


async def _ours(driver: Any) -> list[str]:
    """Returns which of our tables there are, without that of the migrations."""
    own = await driver.fetchval("SELECT current_schema()")
    present = {row["table_name"] for row in await driver.fetch(_TABLES, own)}
    return [table.name for table in metadata.sorted_tables if table.name in present]


async def _fill(driver: Any, archive: ZipFile, manifest: Manifest, progress: OnProgress) -> None:
    made = {row["table_name"] for row in await driver.fetch(_TABLES, SCHEMA)} - {"alembic_version"}
    if made != manifest.tables.keys():
        raise unreadable(str(archive.filename), f"it has other tables than {manifest.revision}")
    for name, table in manifest.tables.items():
        await _fill_table(driver, archive, name, table, progress)
    await driver.execute(f"ANALYZE {', '.join(f'{SCHEMA}.{name}' for name in made)}", timeout=SWAP_TIMEOUT_S)


async def _fill_table(driver: Any, archive: ZipFile, name: str, table: TableCopy, progress: OnProgress) -> None:
    member = Member()
    status = await driver.copy_to_table(
        name,
        source=_told(chunks_of(archive, name, member), lambda: progress(name, member.size_bytes)),
        columns=table.columns,
        schema_name=SCHEMA,
        format="text",
        timeout=COPY_TIMEOUT_S,
    )
    if (rows_of(status), member.size_bytes, member.sha256) != (table.rows, table.size_bytes, table.sha256):
        raise unreadable(str(archive.filename), f"{name} is not what was backed up")
    for column, last in table.sequences.items():
        if last:
            await driver.execute("SELECT setval(pg_get_serial_sequence($1, $2), $3)", f"{SCHEMA}.{name}", column, last)


async def _told(chunks: AsyncIterator[bytes], tell: Callable[[], None]) -> AsyncIterator[bytes]:
    async for chunk in chunks:
        tell()
        yield chunk


async def _swap(connection: AsyncConnection, driver: Any, *, force: bool) -> None:
    """In one transaction: a reader finds the tables from before or those of the backup, whole."""
    await driver.execute(f"SET LOCAL lock_timeout = '{SWAP_LOCK_TIMEOUT}'")
    if not await driver.fetchval(f"SELECT pg_try_advisory_xact_lock({MIGRATION_LOCK})"):
        raise migrating()
    await _refuse_target(connection, driver, force=force)
    own = await driver.fetchval("SELECT quote_ident(current_schema())")
    before = ", ".join(["alembic_version", *await _ours(driver)])
    await driver.execute(f"DROP TABLE IF EXISTS {before}", timeout=SWAP_TIMEOUT_S)
    for row in await driver.fetch(_TABLES, SCHEMA):
        await driver.execute(f"ALTER TABLE {SCHEMA}.{row['table_name']} SET SCHEMA {own}")


def _backup_too_new(path: Path, manifest: Manifest) -> AppError:
    detail = (
        f"{path} was made by Segue {manifest.version} at schema {manifest.revision}, which this release does not know."
        " Restore it with that release or a newer one."
    )
    return AppError("backup_too_new", status=409, title="The backup is too new", detail=detail)
