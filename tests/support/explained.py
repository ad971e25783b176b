"""The statements that are sent to PostgreSQL, and what it reads for them: they run again as they were, explained."""

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Engine, event
from sqlalchemy.ext.asyncio import AsyncConnection

EXPLAIN = "EXPLAIN (ANALYZE, TIMING off, FORMAT json) "
SCANS = ("Seq Scan", "Index Scan", "Index Only Scan", "Bitmap Index Scan")


@dataclass(slots=True)
class Reading:
    """`rows` are those of tables and entries of indexes that were looked at, also those that did not fit."""

    rows: float = 0
    indexes: set[str] = field(default_factory=set)


@contextmanager
def statements(sent_by: object = Engine) -> Iterator[list[tuple[str, tuple[Any, ...]]]]:
    """Every statement sent to Postgres inside the block, with its parameters."""
    seen: list[tuple[str, tuple[Any, ...]]] = []

    def keep(_: object, __: object, statement: str, parameters: tuple[Any, ...], *___: object) -> None:
        seen.append((statement, parameters))

    event.listen(sent_by, "before_cursor_execute", keep)
    try:
        yield seen
    finally:
        event.remove(sent_by, "before_cursor_execute", keep)


@asynccontextmanager
async def explained(connection: AsyncConnection) -> AsyncIterator[Reading]:
    """Says after the block what the statements in it read. They run once more."""
    reading = Reading()
    with statements(connection.sync_connection) as sent:
        yield reading
    for statement, parameters in sent:
        [plan] = (await connection.exec_driver_sql(EXPLAIN + statement, parameters)).scalar_one()
        for scan in _scans(plan["Plan"]):
            removed = sum(scan.get(f"Rows Removed by {why}", 0) for why in ("Filter", "Index Recheck"))
            reading.rows += (scan["Actual Rows"] + removed) * scan["Actual Loops"]
            reading.indexes.update([scan["Index Name"]] if "Index Name" in scan else [])


def _scans(node: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    if node["Node Type"] in SCANS:
        yield node
    for each in node.get("Plans", ()):
        yield from _scans(each)
