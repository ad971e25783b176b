"""Brings a database to the newest revision, one process at a time."""

import asyncio

from alembic.config import Config
from alembic.script import ScriptDirectory
from alembic.script.revision import RevisionError
from alembic.util import CommandError
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from alembic import command
from segue.db.engine import Database
from segue.db.models import metadata
from segue.db.outages import cause_of
from segue.db.postgres_server import REVISION, SCRIPTS
from segue.domain.errors import app_error
from segue.log import log

_COLUMNS = text("""
SELECT table_name || '.' || column_name AS name,
       is_nullable = 'NO' AND column_default IS NULL AND is_identity = 'NO' AND is_generated = 'NEVER' AS required
FROM information_schema.columns WHERE table_schema = current_schema()
""")

MIGRATION_LOCK = 0x5E60E


def upgrade(database_url: str, *, revision: str = "head", schema: str | None = None) -> str | None:
    """Blocks, and runs its own event loop: call it in a thread if a loop runs already. Goes no further than to
    `revision`; `schema` is that of the tables if it is another than the connection's own.

    Leaves a database alone that a newer release has migrated, as after a rollback, and returns its revision; else None.
    Raises AppError `database_unreachable`, and `database_too_new` if this release cannot use what the newer one made.
    """
    try:
        command.upgrade(config(database_url, schema), revision)
    except CommandError as error:
        if not isinstance(error.__cause__, RevisionError):
            raise
        return asyncio.run(_usable_revision(database_url))
    except (OSError, DBAPIError) as error:
        cause = cause_of(error)
        reason = f"{cause.why}. {cause.mend}" if cause else error.orig if isinstance(error, DBAPIError) else error
        raise app_error("database_unreachable", why=reason) from error
    return None


async def _usable_revision(database_url: str) -> str:
    database = Database(database_url, pooler="transaction")
    try:
        async with database.read_only() as connection:
            revision = str(await connection.scalar(REVISION))
            required = {row.name: row.required for row in await connection.execute(_COLUMNS)}
    finally:
        await database.close()
    known = {f"{table.name}.{column.name}" for table in metadata.sorted_tables for column in table.c}
    new = (name for name in required.keys() - known if name.partition(".")[0] in metadata.tables and required[name])
    faults = [f"{name} is gone" for name in known - required.keys()] + [f"{name} has no default" for name in new]
    if faults:
        raise app_error("database_too_new", revision=revision, faults=", ".join(sorted(faults)))
    log.warning("schema_is_newer", revision=revision, consequence="what only a newer release can read is left alone")
    return revision


def missing_revisions(current: str | None) -> tuple[str, ...] | None:
    """Returns the revisions that a database at `current` lacks, oldest first; None if `current` is not a known one."""
    scripts = ScriptDirectory.from_config(config(""))
    try:
        missing = [step.revision for step in scripts.iterate_revisions("head", current or "base")]
    except RevisionError:
        return None
    return tuple(reversed(missing))


def config(database_url: str, schema: str | None = None) -> Config:
    made = Config()
    made.set_main_option("script_location", str(SCRIPTS).replace("%", "%%"))
    made.attributes |= {"database_url": database_url, "schema": schema}
    return made
