"""What PostgreSQL reads for the statements of a function: the statements run again as they were, explained."""

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import event
from sqlalchemy.ext.asyncio import AsyncConnection

EXPLAIN = "EXPLAIN (ANALYZE, TIMING off, FORMAT json) "
SCANS = ("Seq Scan", "Index Scan", "Index Only Scan", "Bitmap Index Scan")


@dataclass(slots=True)
class Reading:
    """`rows` are those of tables and entries of indexes that were looked at, also those that did not fit."""

    rows: float = 0
    indexes: set[str] = field(default_factory=set)


@asynccontextmanager
async def explained(connection: AsyncConnection) -> AsyncIterator[Reading]:
    """Says after the block what the statements in it read, which have to be such that only read."""
    statements: list[tuple[str, Any]] = []

    def note(_: object, __: object, statement: str, parameters: Any, *___: object) -> None:
        statements.append((statement, parameters))

    listened = connection.sync_connection
    event.listen(listened, "before_cursor_execute", note)
    reading = Reading()
    yield reading
    event.remove(listened, "before_cursor_execute", note)
    for statement, parameters in statements:
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
