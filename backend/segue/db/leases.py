"""Claims rows that are due for work, and lets one transaction at a time count what an owner has. A claim moves the due
time ahead: if its process dies, another one claims the row.

Knows a table by its `id` and the column of its due time. Callers say what else a claim changes, and who may claim.
"""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Final

from sqlalchemy import ColumnElement, Row, Table, Text, bindparam, func, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

# Lets one transaction at a time count what an owner has, by what is counted and whose: `attachments of ada`.
OWNER_LOCK: Final = select(func.pg_advisory_xact_lock(func.hashtextextended(bindparam("of_owner", type_=Text), 0)))


async def claim_row(
    connection: AsyncConnection,
    table: Table,
    due: str,
    *claimable: ColumnElement[bool],
    values: Mapping[str, Any],
    returning: Sequence[ColumnElement[Any]],
    joined: Sequence[ColumnElement[bool]] = (),
) -> Row[Any] | None:
    """Sets `values`, among them the next due time, in the claimable row that has been due for longest, and returns
    columns of it; None if there is none. `joined` joins it to rows of other tables that are in `returning`.
    """
    is_due = table.c[due] <= func.now()
    longest = select(table.c.id).where(is_due, *claimable).order_by(table.c[due]).limit(1)
    locked = longest.with_for_update(skip_locked=True).scalar_subquery()
    claimed = update(table).where(table.c.id == locked, is_due, *joined).values(dict(values)).returning(*returning)
    return (await connection.execute(claimed)).one_or_none()


async def postpone_row(
    connection: AsyncConnection, table: Table, due: str, row_id: str, *still: ColumnElement[bool], **values: Any
) -> None:
    """Sets `values`, among them the next due time, in a claimed row, unless it is not due any more."""
    await connection.execute(
        update(table).where(table.c.id == row_id, table.c[due].is_not(None), *still).values(values)
    )


def due_in(seconds: float) -> ColumnElement[Any]:
    return func.now() + timedelta(seconds=seconds)
