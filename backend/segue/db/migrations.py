"""Brings a database to the newest revision, one process at a time."""

from pathlib import Path

from alembic.config import Config
from alembic.script import ScriptDirectory
from alembic.script.revision import RevisionError
from sqlalchemy.exc import DBAPIError

from alembic import command
from segue.domain.errors import AppError

INSTALLED = Path(__file__).with_name("alembic")  # in a wheel
SCRIPTS = INSTALLED if INSTALLED.is_dir() else Path(__file__).resolve().parents[3] / "alembic"


def upgrade(database_url: str) -> None:
    """Blocks, and runs its own event loop: call it in a thread if a loop runs already.

    Raises AppError `database_unreachable`.
    """
    try:
        command.upgrade(config(database_url), "head")
    except (OSError, DBAPIError) as error:
        reason = error.orig if isinstance(error, DBAPIError) else error
        raise AppError(
            "database_unreachable",
            status=503,
            title="The database cannot be migrated",
            detail=f"The database at DATABASE_URL cannot be reached or migrated: {reason}",
            retryable=True,
        ) from error


def missing_revisions(current: str | None) -> tuple[str, ...] | None:
    """Returns the revisions that a database at `current` lacks, oldest first; None if `current` is not a known one."""
    scripts = ScriptDirectory.from_config(config(""))
    try:
        missing = [step.revision for step in scripts.iterate_revisions("head", current or "base")]
    except RevisionError:
        return None
    return tuple(reversed(missing))


def config(database_url: str) -> Config:
    made = Config()
    made.set_main_option("script_location", str(SCRIPTS).replace("%", "%%"))
    made.attributes["database_url"] = database_url
    return made
