"""The order of rows that have a `seq` of their own. Rows older than that column have 0, and their ids order them."""

from sqlalchemy import ColumnElement, Table, UnaryExpression, select, tuple_


def oldest_first(table: Table) -> tuple[ColumnElement[int], ColumnElement[str]]:
    return table.c.seq, table.c.id


def newest_first(table: Table) -> tuple[UnaryExpression[int], UnaryExpression[str]]:
    return table.c.seq.desc(), table.c.id.desc()


def came_before(table: Table, row_id: str) -> ColumnElement[bool]:
    """Returns a condition on a table: the row is older than the one with this id. No row is if there is none."""
    other = table.alias("other")
    seq = select(other.c.seq).where(other.c.id == row_id).scalar_subquery()
    return tuple_(*oldest_first(table)) < tuple_(seq, row_id)
