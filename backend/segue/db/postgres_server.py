"""Facts about the Postgres server, and whether its schema is that of this release. All processes use its time of day,
since a machine's clock may be wrong or be set. The revision is read without alembic, whose import is slow.
"""

import asyncio
import time
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Final, Self

from sqlalchemy import Table, func, literal, select, text, union_all
from sqlalchemy.sql.elements import ColumnElement

from segue.db.engine import Connection, Database
from segue.db.user_data import tables_of
from segue.domain.errors import AppError, app_error
from segue.domain.ids import Clock, utc_now
from segue.log import log
from segue.watch import Watch

_SERVER = text("""
SELECT current_setting('server_version') AS version,
       (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend') AS connections,
       current_setting('max_connections')::int AS max_connections,
       pg_database_size(current_database()) AS database_bytes,
       (SELECT extversion FROM pg_extension WHERE extname = 'vector') AS pgvector
""")
REVISION = text("SELECT version_num FROM alembic_version")
_TIME = text("SELECT clock_timestamp()")
WRONG_S: Final = 1.0  # a difference worth a line in the log


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


async def look_at_server(connection: Connection) -> ServerFacts:
    facts = (await connection.execute(_SERVER)).mappings().one()
    return ServerFacts(**facts, revision=await current_revision(connection))


async def current_revision(connection: Connection) -> str | None:
    """Returns None if no release has migrated the database."""
    if await connection.scalar(text("SELECT to_regclass('alembic_version')")) is None:
        return None
    revision: str | None = await connection.scalar(REVISION)
    return revision


async def share_of_session(connection: Connection, session_id: str) -> dict[str, Share]:
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


class StoreClock(Watch):
    """A Clock that follows PostgreSQL's while it is entered. Until PostgreSQL answers it is the machine's."""

    def __init__(self, database: Database, machine: Clock = utc_now) -> None:
        super().__init__("the clock of PostgreSQL", self._ask, every_s=10.0)
        self._database = database
        self._zero = machine() - _elapsed()

    def __call__(self) -> datetime:
        return self._zero + _elapsed()

    async def __aenter__(self) -> Self:
        await self._ask()
        return await super().__aenter__()

    async def _ask(self) -> None:
        """Moves this clock only if it cannot be right: PostgreSQL read its own between question and answer."""
        asked_at = _elapsed()
        try:
            store_time: datetime = await self._database.read(Connection.scalar, _TIME)
        except AppError as error:
            log.warning("clock_not_read", code=error.code)
            return
        right = min(max(self._zero, store_time - _elapsed()), store_time - asked_at)
        off_s = (self._zero - right).total_seconds()
        if abs(off_s) > WRONG_S:
            log.warning("clock_differs_from_postgres", ahead_s=round(off_s, 1))
        self._zero = right


def _elapsed() -> timedelta:
    """Counts also while the machine sleeps: Linux's monotonic clock stops then."""
    boot = getattr(time, "CLOCK_BOOTTIME", None)
    return timedelta(seconds=time.monotonic() if boot is None else time.clock_gettime(boot))


_INSTALLED: Final = Path(__file__).with_name("alembic")  # in a wheel
SCRIPTS: Final = _INSTALLED if _INSTALLED.is_dir() else Path(__file__).resolve().parents[3] / "alembic"


@cache  # the files of a release stay
def newest() -> str:
    """Returns the newest revision that this release knows: the number that the name of its file begins with."""
    return max(path.name.partition("_")[0] for path in (SCRIPTS / "versions").glob("[0-9]*.py"))


async def ensure_schema(database: Database, url: str, *, migrates: bool) -> None:
    """Brings the database to the newest revision if it `migrates`. Raises what `upgrade` raises; without `migrates`
    AppError `database_too_old` if a revision is missing, and nothing if the database does not answer.
    """
    try:
        revision = await database.read(current_revision) or ""
    except AppError:
        revision = "" if migrates else newest()
    if migrates and revision != newest():
        from segue.db.migrations import upgrade  # noqa: PLC0415 (alembic is not needed if there is nothing to migrate)

        await asyncio.to_thread(upgrade, url)
    elif revision < newest():
        raise app_error("database_too_old", revision=revision or "none", newest=newest())
