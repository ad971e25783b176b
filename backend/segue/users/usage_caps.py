"""The rows of what model calls took, and of what calls that run may still take.

A row of `usage` is what an owner's session took of one model on one UTC day; it outlives the session, and counts for
each group that the user was in that day. A reservation counts while its turn is open under its epoch, or until its time
is up, so a dead process's reservation ends with its turn, and none is subtracted twice.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import date, timedelta
from decimal import Decimal
from typing import Annotated, Any, Final, Literal

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB, Insert, insert
from sqlalchemy.ext.asyncio import AsyncConnection

from segue.db.models import OPEN_TURNS, reservations, sessions, turns, usage, user_groups
from segue.db.rows import OWNER_LOCK
from segue.domain.field_types import doc
from segue.domain.identity import SPEAKS_FOR, Charge

Group = Literal["day", "model", "session", "user", "agent", "group"]
ChargesByDay = Mapping[tuple[date, str], Charge]  # by day and model

_COUNTS = ("calls", "input_tokens", "cached_tokens", "output_tokens", "reasoning_tokens")
BATCH: Final = 500
_BOOKED = (*_COUNTS, "unpriced_calls")
_TOTALS = ("key", *_COUNTS[1:], "estimated", "cost", "cost_complete")


def _finite(cost: sa.ColumnElement[Any]) -> sa.ColumnElement[Any]:
    """Returns null for NaN and infinity: one such row would make every sum useless."""
    return sa.case((cost < sa.literal_column("'Infinity'::numeric"), cost))


_COST = _finite(usage.c.cost)
IS_COMPLETE: Final = sa.func.bool_and(_COST.is_not(None) & (usage.c.unpriced_calls == 0))  # of a sum of costs
_OWNER = sa.bindparam("charged_owner", type_=sa.Text)
_KEYS: dict[Group, sa.ColumnElement[str]] = {
    "day": sa.func.to_char(usage.c.day, "YYYY-MM-DD"),
    "model": usage.c.model,
    "session": sa.func.coalesce(usage.c.session_id, ""),
    "user": usage.c.owner,
    "agent": sa.func.coalesce(sessions.c.agent, ""),
    "group": sa.func.coalesce(user_groups.c.name, ""),
}


@dataclass(frozen=True, slots=True)
class Reservation:
    """`holder` is a turn's id, or any name. It counts for `lasts_s` seconds even if no such turn is open."""

    owner: str
    holder: str
    epoch: int
    day: date
    tokens: int
    cost: Decimal
    lasts_s: float


@dataclass(frozen=True, slots=True)
class Standing:
    """What an owner, a group or all spent on a day, the cost that their other calls hold, and if more fits."""

    tokens: int
    cost: Decimal
    held_cost: Decimal
    fits: bool


@dataclass(frozen=True, slots=True)
class UsageTotal:
    """What was used in a group."""

    key: Annotated[str | None, doc("The day, model, session, user, group, or agent of the session now; null for none.")]
    llm_calls: Annotated[int, doc("Calls of a model.")]
    input_tokens: Annotated[int, doc("Tokens sent.")]
    cached_tokens: Annotated[int, doc("Those of the input that the provider had cached.")]
    output_tokens: Annotated[int, doc("Tokens received.")]
    reasoning_tokens: Annotated[int, doc("Those of the output that were thought, not said.")]
    estimated: Annotated[bool, doc("Whether some of them are estimated.")]
    cost: Annotated[float | None, doc("In dollars, of the calls that have a price; null if none has.")]
    cost_complete: Annotated[bool, doc("Whether that is all: false if a call had no price.")]


def booking(session_id: sa.ColumnElement[Any], *conditions: sa.ColumnElement[bool]) -> Insert:
    """Returns the statement that adds the charges of `charged` to an owner's rows, if the conditions hold."""
    counted = [sa.column(name, sa.BigInteger) for name in _BOOKED]
    columns: list[sa.ColumnElement[Any]] = [sa.column("day", sa.Date), sa.column("model", sa.Text), *counted]
    given = (
        sa.func.jsonb_to_recordset(sa.bindparam("charges", type_=JSONB))
        .table_valued(*columns, sa.column("estimated", sa.Boolean), sa.column("cost", sa.Numeric))
        .render_derived("given", with_types=True)
    )
    names = ["day", "model", *_BOOKED, "estimated", "cost"]
    rows = sa.select(_OWNER, session_id, *(given.c[name] for name in names)).where(*conditions)
    made = insert(usage).from_select(["owner", "session_id", *names], rows)
    unpriced = sa.case((usage.c.cost.is_(None), usage.c.calls), else_=usage.c.unpriced_calls)  # an older release's too
    before: dict[str, sa.ColumnElement[Any]] = {**usage.c, "unpriced_calls": unpriced}
    added = {name: before[name] + made.excluded[name] for name in _BOOKED}
    cost = sa.func.coalesce(usage.c.cost + made.excluded.cost, usage.c.cost, made.excluded.cost)
    return made.on_conflict_do_update(
        index_elements=[usage.c.session_id, usage.c.day, usage.c.model],
        index_where=usage.c.session_id.is_not(None),
        set_={**added, "cost": cost, "estimated": usage.c.estimated | made.excluded.estimated},
    )


def charged(owner: str, charges: ChargesByDay) -> dict[str, Any]:
    """Returns the parameters of a statement that has a `booking` in it."""
    rows = [
        {
            "day": day.isoformat(),
            "model": model,
            **{name: getattr(charge, name) for name in _COUNTS},
            "unpriced_calls": charge.calls if charge.cost is None else 0,
            "estimated": charge.estimated,
            "cost": None if charge.cost is None else str(charge.cost),
        }
        for (day, model), charge in charges.items()
    ]
    return {"charged_owner": owner, "charges": rows}


def _book() -> sa.Select[Any]:
    # The lock keeps the session until the commit, so that erasing its owner finds the row.
    kept = sa.select(sessions.c.id).where(sessions.c.id == sa.bindparam("charged_session"))
    session = kept.with_for_update(read=True, key_share=True).cte("kept")
    is_known = sa.or_(  # an erased user stays erased
        sa.select(sessions.c.id).where(sessions.c.owner == _OWNER).exists(),
        sa.select(reservations.c.holder).where(reservations.c.owner == _OWNER).exists(),
    )
    booked = booking(sa.select(session.c.id).scalar_subquery(), is_known).cte("booked")
    held = sa.delete(reservations).where(reservations.c.holder == sa.bindparam("held_by"))
    released = held.where(reservations.c.epoch <= sa.bindparam("under", type_=sa.Integer)).cte("released")
    return sa.select(sa.literal(1)).add_cte(booked, released)


_BOOK = _book()


async def book(
    connection: AsyncConnection, owner: str, session_id: str, charges: ChargesByDay, *, holder: str, epoch: int
) -> None:
    """Stores what was used, and releases what its holder had reserved under this epoch or one before."""
    values = {"charged_session": session_id, "held_by": holder, "under": epoch, **charged(owner, charges)}
    await connection.execute(_BOOK, values)


async def release(connection: AsyncConnection, holder: str) -> None:
    await connection.execute(sa.delete(reservations).where(reservations.c.holder == holder))


async def enter_groups(connection: AsyncConnection, owner: str, day: date, groups: Collection[str]) -> None:
    """Notes that a user was in these groups on a day. Of a user who has no session it notes nothing."""
    is_known = sa.select(sessions.c.id).where(sessions.c.owner == owner).exists()  # an erased user stays erased
    names = sa.func.unnest(sa.cast(list(groups), sa.ARRAY(sa.Text)))
    rows = sa.select(sa.literal(owner), sa.literal(day), names).where(is_known)
    added = insert(user_groups).from_select(["owner", "day", "name"], rows)
    await connection.execute(added.on_conflict_do_nothing())


async def groups_of(connection: AsyncConnection, owner: str, day: date) -> list[str]:
    """Returns the groups that the user was in on the day, by name."""
    theirs = sa.select(user_groups.c.name).where(user_groups.c.owner == owner, user_groups.c.day == day)
    return list(await connection.scalars(theirs.order_by(user_groups.c.name)))


def _standing(counts: Callable[[sa.ColumnElement[str]], sa.ColumnElement[bool]] | None = None) -> sa.Select[Any]:
    """Returns what was spent and is held on a day, by the owners that count or by all, and whether it fits."""
    tokens, cost = sa.bindparam("more_tokens", type_=sa.BigInteger), sa.bindparam("more_cost", type_=sa.Numeric)
    cap, cost_cap = sa.bindparam("token_cap", type_=sa.BigInteger), sa.bindparam("cost_cap", type_=sa.Numeric)
    spent = _sums(usage.c.input_tokens + usage.c.output_tokens, _COST).where(usage.c.day == _DAY)
    held = _sums(reservations.c.tokens, _finite(reservations.c.cost))
    held = held.where(reservations.c.holder != _HOLDER, reservations.c.day == _DAY, _STILL_HELD)
    if counts is not None:
        spent, held = spent.where(counts(usage.c.owner)), held.where(counts(reservations.c.owner))
    spent_rows, held_rows = spent.cte("spent"), held.cte("held")
    fits = sa.and_(
        sa.or_(cap == 0, spent_rows.c.tokens + held_rows.c.tokens + tokens <= cap),
        sa.or_(cost_cap == 0, spent_rows.c.cost + held_rows.c.cost + cost <= cost_cap),
    )
    sums = spent_rows.c.tokens, spent_rows.c.cost, held_rows.c.cost.label("held_cost")
    return sa.select(*sums, fits.label("fits")).select_from(spent_rows.join(held_rows, sa.literal(True)))


def _reserve() -> sa.Select[Any]:
    """To be run under the lock of `reserve`: it reads what other reservations have committed. Nothing is reserved for a
    turn that is gone, perhaps with its user: the lock keeps one that is there until the commit.
    """
    owner = sa.bindparam("of_owner", type_=sa.Text)
    standing = _standing(lambda column: column == owner)
    *sums, fits = standing.selected_columns
    others = reservations.c.owner == owner, reservations.c.holder != _HOLDER
    before = (reservations.c.holder == _HOLDER) & (reservations.c.epoch < sa.bindparam("at_epoch"))
    over = sa.delete(reservations).where(sa.or_(before, sa.and_(*others, sa.not_(_STILL_HELD)))).cte("over")
    row: dict[str, sa.ColumnElement[Any]] = {
        "holder": _HOLDER,
        "epoch": sa.bindparam("at_epoch", type_=sa.Integer),
        "owner": owner,
        "day": _DAY,
        "tokens": sa.bindparam("more_tokens", type_=sa.BigInteger),
        "cost": sa.bindparam("more_cost", type_=sa.Numeric),
        "until": sa.func.now() + sa.bindparam("lasts", type_=sa.Interval),
    }
    turn = sa.select(turns.c.id).where(turns.c.id == _HOLDER).with_for_update(read=True, key_share=True).cte("turn")
    is_there = sa.or_(sa.bindparam("at_epoch") == 0, sa.select(turn.c.id).exists())
    made = insert(reservations).from_select([*row], standing.with_only_columns(*row.values()).where(fits, is_there))
    changed = {name: made.excluded[name] for name in ("day", "tokens", "cost", "until")}
    keys = [reservations.c.holder, reservations.c.epoch]
    reserved = made.on_conflict_do_update(index_elements=keys, set_=changed).returning(reservations.c.holder)
    return standing.with_only_columns(*sums, sa.select(reserved.cte("reserved")).exists().label("fits")).add_cte(over)


def _sums(tokens: sa.ColumnElement[int], cost: sa.ColumnElement[Any]) -> sa.Select[Any]:
    return sa.select(
        sa.func.coalesce(sa.func.sum(tokens), 0).cast(sa.BigInteger).label("tokens"),
        sa.func.coalesce(sa.func.sum(cost), 0).label("cost"),
    )


_DAY, _HOLDER = sa.bindparam("on_day", type_=sa.Date), sa.bindparam("by_holder", type_=sa.Text)
_IS_OPEN = (turns.c.id == reservations.c.holder) & turns.c.status.in_(OPEN_TURNS)
_RUNS = sa.select(turns.c.id).where(_IS_OPEN, turns.c.epoch <= reservations.c.epoch).exists()
_STILL_HELD = sa.or_(reservations.c.until > sa.func.now(), _RUNS)
_RESERVE = _reserve()
_MEMBERS = sa.select(user_groups.c.owner).where(
    user_groups.c.name == sa.bindparam("of_group", type_=sa.Text), user_groups.c.day == _DAY
)
_FITS_ALL, _FITS_GROUP = _standing(), _standing(lambda column: column.in_(_MEMBERS))


async def reserve(connection: AsyncConnection, wanted: Reservation, *, token_cap: int, cost_cap: Decimal) -> Standing:
    """Reserves in place of what the holder has under this epoch or before, if the owner's day has room; 0 is no cap,
    and no turn's epoch. In a transaction, which holds the lock of the owner's reservations until its end.
    """
    values = {"of_owner": wanted.owner, "at_epoch": wanted.epoch, "lasts": timedelta(seconds=wanted.lasts_s)}
    caps = {"token_cap": token_cap, "cost_cap": cost_cap}
    return await _stand(connection, wanted, _RESERVE, {**values, **caps}, lock=wanted.owner)


async def fits(
    connection: AsyncConnection, wanted: Reservation, group: str, *, token_cap: int, cost_cap: Decimal
) -> Standing:
    """Returns whether the day of all in a group together has room, of all owners if it is empty, and reserves nothing.
    In a transaction, which holds the lock of these until its end.
    """
    values = {"of_group": group} if group else {}
    caps = {"token_cap": token_cap, "cost_cap": cost_cap}
    lock = f"{SPEAKS_FOR}{group}" if group else ""  # no owner begins like this
    return await _stand(connection, wanted, _FITS_GROUP if group else _FITS_ALL, {**values, **caps}, lock=lock)


async def _stand(
    connection: AsyncConnection, wanted: Reservation, statement: sa.Select[Any], values: Mapping[str, Any], *, lock: str
) -> Standing:
    await connection.execute(OWNER_LOCK, {"of_owner": lock})
    more = {"more_tokens": wanted.tokens, "more_cost": wanted.cost, "on_day": wanted.day, "by_holder": wanted.holder}
    return Standing(**(await connection.execute(statement, {**more, **values})).mappings().one())


async def drop_old_usage(connection: AsyncConnection, *, before: date) -> int:
    """Deletes at most BATCH rows of days before then, and returns how many."""
    old = sa.select(usage.c.id).where(usage.c.day < before).limit(BATCH).with_for_update(skip_locked=True).cte("old")
    await connection.execute(sa.delete(user_groups).where(user_groups.c.day < before))
    return (await connection.execute(sa.delete(usage).where(usage.c.id.in_(sa.select(old.c.id))))).rowcount


async def list_usage(
    connection: AsyncConnection, owner: str | None, *, first: date, last: date, by: Group, after: str | None, limit: int
) -> list[UsageTotal]:
    """Returns what was used from the first to the last day, by ascending key; of all owners without one."""
    key = _KEYS[by]
    statement = (
        sa.select(
            sa.func.nullif(key, "").label("key"),
            *(sa.func.sum(usage.c[name]).cast(sa.BigInteger).label(name) for name in _COUNTS),
            sa.func.bool_or(usage.c.estimated).label("estimated"),
            sa.func.sum(_COST).cast(sa.Float).label("cost"),
            IS_COMPLETE.label("cost_complete"),
        )
        .where(usage.c.day.between(first, last))
        .group_by(key)
        .order_by(key)
        .limit(limit)
    )
    if by == "agent":
        statement = statement.outerjoin_from(usage, sessions, sessions.c.id == usage.c.session_id)
    if by == "group":
        on_the_day = (user_groups.c.owner == usage.c.owner) & (user_groups.c.day == usage.c.day)
        statement = statement.outerjoin_from(usage, user_groups, on_the_day)
    if owner is not None:
        statement = statement.where(usage.c.owner == owner)
    if after is not None:
        statement = statement.where(key > after)
    rows = (await connection.execute(statement)).mappings()
    return [UsageTotal(llm_calls=row["calls"], **{name: row[name] for name in _TOTALS}) for row in rows]
