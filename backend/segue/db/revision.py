"""Whether the database is at the newest revision, asked without alembic: to import that and to read all migrations is a
tenth of a start, and most starts find nothing to migrate.
"""

from pathlib import Path
from typing import Final

from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from segue.db.engine import Database
from segue.domain.errors import AppError

_INSTALLED: Final = Path(__file__).with_name("alembic")  # in a wheel
SCRIPTS: Final = _INSTALLED if _INSTALLED.is_dir() else Path(__file__).resolve().parents[3] / "alembic"


def newest() -> str:
    """Returns the newest revision that this release knows: the number that the name of its file begins with."""
    return max(path.name.partition("_")[0] for path in (SCRIPTS / "versions").glob("[0-9]*.py"))


async def is_newest(database: Database) -> bool:
    """Returns False also if the database has no tables or does not answer: a migration then says what is wrong."""
    try:
        async with database.read_only() as connection:
            found = await connection.scalar(text("SELECT version_num FROM alembic_version"))
    except (AppError, DBAPIError):
        return False
    return bool(found == newest())
