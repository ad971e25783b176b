"""`segue backup` and `segue restore`: every table as of one moment, in one zip that is never read or written whole.

Redis is not copied: the rows are enough to rebuild it (docs/decisions.md). A restore fills a schema of its own, which
replaces the store's once all of it is checked. A killed restore leaves that schema, and the next one drops it.
"""

import asyncio
import hashlib
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from errno import EACCES, EINVAL, EIO, EISDIR, ENOENT
from functools import partial
from pathlib import Path
from typing import IO, Annotated, Any, Final
from zipfile import ZIP_DEFLATED, BadZipFile, ZipFile

import asyncpg
import typer
from pydantic import TypeAdapter, ValidationError
from rich import filesize
from rich.console import Console
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from segue import __version__
from segue.around.embedded.server_urls import OpenStores, ServerUrls, open_clients
from segue.around.store_commands import note, on_the_servers, print_counts
from segue.around.terminal import new_file, refusal
from segue.config import Settings
from segue.db.engine import Connection, Database
from segue.db.migrations import MIGRATION_LOCK, missing_revisions, upgrade
from segue.db.models import metadata
from segue.db.postgres_server import current_revision
from segue.domain.errors import AppError, app_error

FORMAT: Final = 1
COMPRESSION: Final = 1  # of 9: a fifth larger than at 6, in a third of the time
_MANIFEST: Final = "manifest.json"
_CHUNK_BYTES: Final = 262_144
# zipfile's NotImplementedError is of a compression or a version that it does not know.
_DAMAGED: Final = (BadZipFile, EOFError, KeyError, NotImplementedError, RuntimeError, ValidationError, zlib.error)
# The OSErrors of a file, not of the database. EINVAL: it has lost its beginning; None: a stream in it is broken.
_OF_FILES: Final = (None, EINVAL, EACCES, EIO, EISDIR, ENOENT)

RESTORE_LOCK: Final = 0x5E60F
SCHEMA: Final = "segue_restore"

ASK_AGAIN_S: Final = 0.2
MIGRATION_S: Final = 10.0  # for a process that is starting to look at the schema
OTHERS_S: Final = 3.0  # for a process that was just stopped to be gone, and a command to end
# Of one table, in six hours at most: a copy that is cut off is never taken for a whole one.
_AS_TEXT: Final[dict[str, Any]] = {"format": "text", "timeout": 21_600.0}
SWAP_TIMEOUT_S: Final = 600.0  # files of gigabytes are unlinked

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
_DROP_SCHEMA: Final = f"DROP SCHEMA IF EXISTS {SCHEMA} CASCADE"
_TABLES: Final = "SELECT table_name FROM information_schema.tables WHERE table_schema = $1"
_ALONE: Final = """
SELECT count(*) = 0 FROM pg_stat_activity
WHERE datname = current_database() AND application_name = 'segue' AND pid <> pg_backend_pid()
"""

# Called with a table and the bytes of it that have been copied so far.
OnProgress = Callable[[str, int], None]


# --- commands ---


@contextmanager
def _progress() -> Iterator[OnProgress]:
    """Says on a terminal which table is being copied, in one line."""
    with Console(stderr=True).status("") as line:
        yield lambda table, size_bytes: line.update(f"{table}  {filesize.decimal(size_bytes)}")


def _print_rows(manifest: "Manifest") -> None:
    print_counts({name: table.rows for name, table in manifest.tables.items() if table.rows}, err=True)


def backup(file: Annotated[Path, typer.Argument(help="A new file, for this account only.")]) -> None:
    """Copies every table as of one moment. Prints how many rows of each there are."""

    async def run(settings: Settings, urls: ServerUrls, stack: AsyncExitStack) -> Manifest:
        stores = _open_stores(settings, urls, stack)
        with new_file(file) as out, _progress() as progress:
            manifest = await back_up(stores.database, out, progress=progress)
        with suppress(AppError, DBAPIError):  # a server that only reads, a schema from before there was an audit
            await note(stores, "back_up", rows=manifest.rows)
        return manifest

    manifest = on_the_servers(run, needs_data=True)
    _print_rows(manifest)
    size = filesize.decimal(file.stat().st_size)
    typer.echo(f"{file} holds {manifest.rows} rows of {manifest.made_at:%Y-%m-%d %H:%M:%S} UTC in {size}.")


def restore(
    file: Annotated[Path, typer.Argument(help="What `segue backup` has written.", exists=True, dir_okay=False)],
    *,
    force: Annotated[bool, typer.Option("--force", help="Delete what is stored. It is kept if this fails.")] = False,
) -> None:
    """Restores all of it or nothing, at the newest schema. Turns that ran then go on once a service starts."""

    async def run(settings: Settings, urls: ServerUrls, stack: AsyncExitStack) -> tuple[Manifest, int | None]:
        stores = _open_stores(settings, urls, stack)
        with _progress() as progress:
            manifest = await fill_from(stores, file, force=force, progress=progress)
        await note(stores, "restore", made_at=manifest.made_at.isoformat(), rows=manifest.rows)
        return manifest, await stores.cache.delete_where(lambda key: key.startswith("segue:"))

    manifest, deleted = on_the_servers(run)
    _print_rows(manifest)
    typer.echo(f"Restored {manifest.rows} rows of {manifest.made_at:%Y-%m-%d %H:%M:%S} UTC from {file}.")
    if deleted is None:
        raise refusal("Redis could not be asked. Flush it before a service starts: it may know what is not stored.")


def _open_stores(settings: Settings, urls: ServerUrls, stack: AsyncExitStack) -> OpenStores:
    """Raises typer.Exit behind a pooler in transaction mode: what a copy sets for its session the service would get."""
    if settings.database_pooler == "transaction":
        raise refusal("A copy needs a session: give the DATABASE_URL that leads past the pooler, no DATABASE_POOLER.")
    return open_clients(stack, urls)


# --- the file ---


@dataclass(frozen=True, slots=True)
class TableCopy:
    """`sequences` are the last numbers used, by column. `size_bytes` and `sha256` are of the archive's member."""

    columns: tuple[str, ...]
    rows: int
    size_bytes: int
    sha256: str
    sequences: dict[str, int]


@dataclass(frozen=True, slots=True)
class Manifest:
    """`tables` in the order in which they can be filled; `revision` is that of the schema, `version` of the release."""

    format: int
    version: str
    revision: str
    made_at: datetime
    tables: dict[str, TableCopy]

    @property
    def rows(self) -> int:
        return sum(table.rows for table in self.tables.values())


_manifests: Final = TypeAdapter(Manifest)


class Member:
    """Counts the bytes of a table on its way into the archive or out of it, and reports the progress."""

    def __init__(self, table: str, progress: OnProgress) -> None:
        self.size_bytes = 0
        self._digest = hashlib.sha256()
        self._report = partial(progress, table)

    @property
    def sha256(self) -> str:
        return self._digest.hexdigest()

    def count(self, chunk: bytes) -> None:
        self.size_bytes += len(chunk)
        self._digest.update(chunk)
        self._report(self.size_bytes)


@contextmanager
def opened_archive(path: Path) -> Iterator[tuple[ZipFile, Manifest]]:
    """Raises AppError `backup_unreadable`, also for what is found to be damaged in the block."""
    try:
        if path.is_char_device():
            raise app_error("backup_unreadable", path=path, why="it is a device, which may have no end")
        with ZipFile(path) as archive:
            with archive.open(_MANIFEST) as file:
                manifest = _manifests.validate_json(file.read(1_000_000))
            if manifest.format != FORMAT:
                why = f"its format is {manifest.format}, and this release reads {FORMAT}"
                raise app_error("backup_unreadable", path=path, why=why)
            yield archive, manifest
    except _DAMAGED as error:
        raise app_error("backup_unreadable", path=path, why="it is damaged, or no backup") from error
    except OSError as error:
        if isinstance(error, ConnectionError | TimeoutError) or error.errno not in _OF_FILES:  # of the database
            raise
        why = error.strerror if error.strerror and error.errno != EINVAL else "it is damaged, or no backup"
        raise app_error("backup_unreadable", path=path, why=why) from error


async def back_up(database: Database, file: IO[bytes], *, progress: OnProgress) -> Manifest:
    """Writes the archive. Raises AppError `no_store`, `store_too_new`, `migrating`, `copy_failed`."""
    async with database.read_only() as connection:
        if not await _becomes_true(lambda: connection.scalar(_IS_AT_REST), MIGRATION_S):
            raise app_error("migrating")
        if (found := await current_revision(connection)) is None:
            raise app_error("no_store")
        if missing_revisions(found) is None:
            raise app_error("store_too_new", revision=found)
        present = await _ours(connection)
    async with database.transaction() as connection, driver_of(connection) as driver:
        await connection.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        # Before the first query, which fixes what is seen: a table that is rewritten later would be empty then.
        names = ", ".join(["alembic_version", *present])
        await driver.execute(f"LOCK TABLE {names} IN ACCESS SHARE MODE", timeout=60.0)
        columns = await _columns(connection)
        revision = str(await current_revision(connection))
        made_at: datetime = (await connection.execute(text("SELECT clock_timestamp()"))).scalar_one()
        with ZipFile(file, "w", ZIP_DEFLATED, compresslevel=COMPRESSION) as archive:
            tables = {table: await _copy(driver, archive, table, columns[table], progress) for table in present}
            manifest = Manifest(FORMAT, __version__, revision, made_at, tables)
            archive.writestr(_MANIFEST, _manifests.dump_json(manifest, indent=2))
    return manifest


@asynccontextmanager
async def driver_of(connection: Connection) -> AsyncIterator[Any]:
    """Yields asyncpg's connection, which knows COPY; statements take their `timeout`. Raises AppError `copy_failed`."""
    driver: Any = (await connection.get_raw_connection()).driver_connection
    driver.forget()  # a transaction with statements of the driver's is not repeated
    try:
        await driver.execute("SET statement_timeout = 0")
        yield driver
    except (asyncpg.PostgresError, asyncpg.InterfaceError, ConnectionError, TimeoutError) as error:
        ended = f"ended the copy ({type(error).__name__}); its log may say more"  # its words may hold a value of a row
        why = "did not answer in time" if isinstance(error, TimeoutError) else ended
        raise app_error("copy_failed", why=why) from error


async def _columns(connection: Connection) -> dict[str, dict[str, str | None]]:
    """Returns the sequence, if it has one, of each column of each table."""
    found: dict[str, dict[str, str | None]] = {}
    for row in await connection.execute(_COLUMNS):
        found.setdefault(row.table_name, {})[row.column_name] = row.sequence
    return found


async def _copy(
    driver: Any, archive: ZipFile, table: str, columns: dict[str, str | None], progress: OnProgress
) -> TableCopy:
    member = Member(table, progress)
    with archive.open(table, "w", force_zip64=True) as out:

        async def keep(chunk: bytes) -> None:
            out.write(chunk)
            member.count(chunk)

        status = await driver.copy_from_table(table, columns=list(columns), output=keep, **_AS_TEXT)
    sequences = {column: await driver.fetchval(_LAST, sequence) for column, sequence in columns.items() if sequence}
    return TableCopy(tuple(columns), rows_of(status), member.size_bytes, member.sha256, sequences)


def rows_of(status: str) -> int:
    """Returns how many rows a COPY says it has copied: `COPY 12`."""
    return int(status.rpartition(" ")[2])


async def _becomes_true(question: Callable[[], Awaitable[Any]], within_s: float) -> bool:
    for _ in range(round(within_s / ASK_AGAIN_S)):
        if await question():
            return True
        await asyncio.sleep(ASK_AGAIN_S)
    return False


async def fill_from(stores: OpenStores, path: Path, *, force: bool, progress: OnProgress) -> Manifest:
    """Puts what the archive holds in the place of what is stored, at the newest schema. Raises AppError
    `backup_unreadable`, `backup_too_new`, `store_too_new`, `store_in_use`, `store_not_empty` without `force`,
    `restoring` and `copy_failed`. What was stored is still there then.
    """
    with opened_archive(path) as (archive, manifest):
        if missing_revisions(manifest.revision) is None:
            raise app_error("backup_too_new", path=path, made=manifest)
        async with stores.database.autocommit() as connection, driver_of(connection) as driver:
            await _refuse_target(connection, driver, force=force)
            async with _restore_schema(driver):
                await asyncio.to_thread(upgrade, stores.urls.database_url, revision=manifest.revision, schema=SCHEMA)
                await _fill(driver, archive, manifest, progress)
                await asyncio.to_thread(upgrade, stores.urls.database_url, schema=SCHEMA)
                async with driver.transaction():
                    await _swap(connection, driver, force=force)
    return manifest


@asynccontextmanager
async def _restore_schema(driver: Any) -> AsyncIterator[None]:
    """Keeps an empty schema for the block. One process restores at a time; raises AppError `restoring` for another."""
    if not await driver.fetchval(f"SELECT pg_try_advisory_lock({RESTORE_LOCK})"):
        raise app_error("restoring")
    try:
        await driver.execute(f"{_DROP_SCHEMA}; CREATE SCHEMA {SCHEMA}", timeout=SWAP_TIMEOUT_S)
        yield
    finally:
        if not driver.is_closed():
            await driver.execute(_DROP_SCHEMA, timeout=SWAP_TIMEOUT_S)
            await driver.execute(f"SELECT pg_advisory_unlock({RESTORE_LOCK})")


async def _refuse_target(connection: Connection, driver: Any, *, force: bool) -> None:
    revision = await current_revision(connection)
    if revision is not None and missing_revisions(revision) is None:
        raise app_error("store_too_new", revision=revision)
    if not await _becomes_true(lambda: driver.fetchval(_ALONE), OTHERS_S):
        raise app_error("store_in_use")
    exists = "SELECT EXISTS (SELECT FROM {})"
    stored = [table for table in await _ours(connection) if await driver.fetchval(exists.format(table))]
    if stored and not force:
        raise app_error("store_not_empty", tables=", ".join(stored))


async def _ours(connection: Connection) -> list[str]:
    """Returns which of our tables there are, in the order in which they can be filled."""
    present = await _columns(connection)
    return [table.name for table in metadata.sorted_tables if table.name in present]


async def _fill(driver: Any, archive: ZipFile, manifest: Manifest, progress: OnProgress) -> None:
    tables = {row["table_name"] for row in await driver.fetch(_TABLES, SCHEMA)} - {"alembic_version"}
    if tables != manifest.tables.keys():
        raise app_error("backup_unreadable", path=archive.filename, why=f"it has other tables than {manifest.revision}")
    for name, table in manifest.tables.items():
        await _fill_table(driver, archive, name, table, progress)
    await driver.execute(f"ANALYZE {', '.join(f'{SCHEMA}.{name}' for name in tables)}", timeout=SWAP_TIMEOUT_S)


async def _fill_table(driver: Any, archive: ZipFile, name: str, table: TableCopy, progress: OnProgress) -> None:
    member = Member(name, progress)

    async def chunks() -> AsyncIterator[bytes]:
        with archive.open(name) as file:  # at its end the library checks it against its CRC
            while chunk := file.read(_CHUNK_BYTES):
                member.count(chunk)
                yield chunk

    status = await driver.copy_to_table(name, source=chunks(), columns=table.columns, schema_name=SCHEMA, **_AS_TEXT)
    if (rows_of(status), member.size_bytes, member.sha256) != (table.rows, table.size_bytes, table.sha256):
        raise app_error("backup_unreadable", path=archive.filename, why=f"{name} is not what was backed up")
    for column, last in table.sequences.items():
        if last:
            await driver.execute("SELECT setval(pg_get_serial_sequence($1, $2), $3)", f"{SCHEMA}.{name}", column, last)


async def _swap(connection: Connection, driver: Any, *, force: bool) -> None:
    """In one transaction: a reader finds the tables from before or those of the backup, whole."""
    await driver.execute("SET LOCAL lock_timeout = '10s'")
    if not await driver.fetchval(f"SELECT pg_try_advisory_xact_lock({MIGRATION_LOCK})"):
        raise app_error("migrating")
    await _refuse_target(connection, driver, force=force)
    own = await driver.fetchval("SELECT quote_ident(current_schema())")
    before = ", ".join(["alembic_version", *await _ours(connection)])
    await driver.execute(f"DROP TABLE IF EXISTS {before}", timeout=SWAP_TIMEOUT_S)
    for row in await driver.fetch(_TABLES, SCHEMA):
        await driver.execute(f"ALTER TABLE {SCHEMA}.{row['table_name']} SET SCHEMA {own}")
