"""What rows and keys hold, as objects; how rows are ordered, and how those that are due for work are claimed.

Garbage, or what a newer release wrote, harms only its own row: rows are read with `readable`, and an unreadable one is
replaced by a stand-in (`unreadable`). A dataclass member that has its default is not stored, so changing a default
changes old rows. Rows are ordered by `seq`; those older than that column have 0 and are ordered by id.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import Field, dataclass, fields, is_dataclass
from datetime import timedelta
from functools import cache
from operator import eq
from typing import Annotated, Any, Final, TypeVar

import orjson
from pydantic import AfterValidator, TypeAdapter, ValidationError
from sqlalchemy import ColumnElement, Row, Table, UnaryExpression, bindparam, func, select, true, tuple_, update
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.sql.base import Executable
from sqlalchemy.types import Interval, Text

from segue.domain.errors import app_error
from segue.domain.ids import OF_BODY
from segue.domain.plan import Plan, UnreadablePlan, known_status
from segue.log import log

Parsed = TypeVar("Parsed")
Position = tuple[int, str]  # a row's seq and id

unreadable_reads: Final[Counter[str]] = Counter()  # by table, since the process started; read at each scrape


def reader(kind: type[Parsed], check: Callable[[Parsed], Parsed] = lambda value: value) -> Callable[[Any], Parsed]:
    """Returns what makes a `kind` of plain values, as JSON can hold. It ignores members of a newer release, and raises
    pydantic's ValidationError for all else. `check` raises ValueError for what is of that kind and still cannot be.
    """
    stored: Any = kind  # mypy takes the hash of a kind for that of its values
    validate: Callable[[Any], Parsed] = _adapter(stored, check).validate_python
    return validate


@cache  # of as many kinds as are stored: making one takes a millisecond, and each row asks for its own
def _adapter(kind: Any, check: Any) -> TypeAdapter[Any]:
    return TypeAdapter(Annotated[kind, AfterValidator(_writable), AfterValidator(check)])


def readable(read: Callable[[Any], Parsed], value: Any, table: str, row_id: str) -> Parsed | None:
    """Returns what `read` makes of a row; None if it cannot, which is counted and logged without a value."""
    if (found := cached(read, value)) is None:
        note_unreadable(table, row_id)
    return found


def cached(read: Callable[[Any], Parsed], value: Any) -> Parsed | None:
    """Returns what `read` makes of a value in Redis; None if it cannot, because another release has put it there."""
    try:
        return read(value)
    except ValidationError:
        return None


def note_unreadable(table: str, row_id: str) -> None:
    unreadable_reads[table] += 1
    log.warning("row_unreadable", table=table, id=row_id)


@dataclass(frozen=True, slots=True)
class _Opaque:
    by: str
    message: dict[str, Any]
    calls: list[dict[str, Any] | None]


def opaque_of(value: Any, table: str, row_id: str) -> Mapping[str, Any] | None:
    """Returns what a provider wants back with a message or a plan, None if there is nothing or it cannot be read."""
    return None if value is None or readable(reader(_Opaque), value, table, row_id) is None else value


def plan_of(columns: Mapping[str, Any]) -> Plan:
    """Returns the plan in the columns of `plans`, an UnreadablePlan if they cannot be read."""
    plan = readable(reader(Plan, _can_go_on), columns, "plans", columns["id"])
    if plan is not None:
        return plan
    plain: dict[str, Any] = {name: columns[name] for name in Plan.__dataclass_fields__.keys() - {"status", "steps"}}
    return UnreadablePlan(**plain, status=known_status(columns["status"]), steps=(), unreadable=True)


def _writable(value: Parsed) -> Parsed:
    try:
        orjson.dumps(value, default=tuple)
    except TypeError as error:  # an integer beyond 64 bits
        raise ValueError from error
    return value


def _can_go_on(plan: Plan) -> Plan:
    """Refuses steps out of order, and an open plan with nothing left to do: no transition leads out of these."""
    if [step.id for step in plan.steps] != list(range(1, len(plan.steps) + 1)):
        raise ValueError("its steps are not numbered")
    if plan.is_open and plan.next_step is None and plan.running_step is None:
        raise ValueError("it is open and has no open step")
    return plan


# The figures of operators count turns by it, in this release and in the one before.
_ALWAYS_STORED: Final = frozenset({"llm_calls"})


def without_defaults(value: Any) -> Any:
    """Returns members of a dataclass, and of dataclasses that are members of it. Anything else is returned as it is."""
    if (kinds := _members_of(value.__class__)) is None:
        return value
    members = [(each.name, each.default, getattr(value, each.name)) for each in kinds]
    stored = ((name, each) for name, default, each in members if each != default or name in _ALWAYS_STORED)
    return {name: without_defaults(each) for name, each in stored}


@cache  # of as many classes as are stored
def _members_of(kind: type) -> tuple[Field[Any], ...] | None:
    return fields(kind) if is_dataclass(kind) else None


def oldest_first(table: Table) -> tuple[ColumnElement[int], ColumnElement[str]]:
    return table.c.seq, table.c.id


def newest_first(table: Table) -> tuple[UnaryExpression[int], UnaryExpression[str]]:
    return table.c.seq.desc(), table.c.id.desc()


def older_than(table: Table, row: Position | str | None) -> ColumnElement[bool]:
    """The condition that a row is older than the one at this position, which may have been deleted; true without one.
    An id alone of a deleted row counts as the id before it, which a clock that was set back may have misplaced.
    """
    if row is None:
        return true()
    if not isinstance(row, str):
        return tuple_(*oldest_first(table)) < row
    other = table.alias("other")
    seq = select(other.c.seq).where(other.c.id <= row).order_by(other.c.id.desc()).limit(1).scalar_subquery()
    return tuple_(*oldest_first(table)) < tuple_(seq, row)


def if_given(
    column: ColumnElement[Any], value: object, is_it: Callable[[Any, Any], ColumnElement[bool]] = eq
) -> ColumnElement[bool]:
    """The condition that the column equals the value, or that `is_it` makes of the two; true without a value."""
    return true() if value is None else is_it(column, value)


# Lets one transaction at a time count what an owner has, by what is counted and whose: `attachments of ada`.
OWNER_LOCK: Final = select(func.pg_advisory_xact_lock(func.hashtextextended(bindparam("of_owner", type_=Text), 0)))


async def made_before(
    connection: AsyncConnection, table: Table, owner: str | None, row_id: str | None, *, locks: bool = True
) -> Row[Any] | None:
    """Returns the row of this id, if there is one of the owner's, or anyone's without an owner. If it `locks`, no other
    makes it until the transaction ends. Raises AppError `idempotency_key_reused` for one of the key and another body.
    """
    if row_id is None:
        return None
    if locks:
        await connection.execute(OWNER_LOCK, {"of_owner": f"{table.name} of {owner}"})
    found = select(table).where(table.c.id.startswith(row_id[:-OF_BODY], autoescape=True))
    made = (await connection.execute(found.where(if_given(table.c.owner, owner)))).one_or_none()
    if made is not None and made.id != row_id:
        raise app_error("idempotency_key_reused")
    return made


LEASE: Final = bindparam("lease", type_=Interval)  # of a row that is claimed
LEASED: Final = func.now() + LEASE


def claiming(
    table: Table,
    due: str,
    *claimable: ColumnElement[bool],
    read: Iterable[ColumnElement[Any]],
    joined: Sequence[ColumnElement[bool]] = (),
    **values: ColumnElement[Any],
) -> Executable:
    """Returns the statement for `claim_row`, to be built once: it makes the claimable row that has been due for longest
    due after the lease, and sets `values`. `joined` are joins to other tables of which it has `read` columns.
    """
    is_due = table.c[due] <= func.now()
    longest = select(table.c.id).where(is_due, *claimable).order_by(table.c[due]).limit(1)
    locked = longest.with_for_update(skip_locked=True).scalar_subquery()
    return update(table).where(table.c.id == locked, is_due, *joined).values({due: LEASED, **values}).returning(*read)


async def claim_row(connection: AsyncConnection, claim: Executable, *, lease_s: float) -> Row[Any] | None:
    """Returns the columns of the row, None if none is due. If the process dies, another claims it after the lease."""
    return (await connection.execute(claim, {"lease": timedelta(seconds=lease_s)})).one_or_none()


async def postpone_row(
    connection: AsyncConnection, /, table: Table, due: str, row_id: str, *still: ColumnElement[bool], **values: Any
) -> None:
    """Sets `values`, among them the next due time, in a claimed row, unless it is not due any more."""
    is_claimed = (table.c.id == row_id, table.c[due].is_not(None), *still)
    await connection.execute(update(table).where(*is_claimed).values(values))


def due_in(seconds: float) -> ColumnElement[Any]:
    return func.now() + timedelta(seconds=seconds)
