"""The spending of turns and jobs on models, charged to the owner. Owns `usage` and `user_groups`.

A row of `usage` sums an owner's session's use of one model on one UTC day; it outlives the session, and counts for each
group that the user was in that day. With a daily cap each call is reserved before it is made and booked after. Without
one, charges wait for the end of the turn.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from math import ceil
from operator import gt
from typing import Annotated, Any, Final, Literal
from uuid import uuid4
from weakref import WeakValueDictionary

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB, Insert, insert

from segue.db.engine import TRANSACTION_ID, Connection, Database, has_committed
from segue.db.models import reservations, sessions, turns, usage, user_groups
from segue.db.rows import if_given
from segue.domain.errors import AppError, app_error, rate_limited, service_limit_reached
from segue.domain.field_types import doc
from segue.domain.identity import COUNTS, NOTHING, Charge, total
from segue.domain.ids import Clock
from segue.log import log
from segue.users import limits
from segue.users.limits import NO_LIMITS, Limits, Reservation, Standing, finite

Group = Literal["day", "model", "session", "user", "agent", "group"]
ChargesByDay = Mapping[tuple[date, str], Charge]  # by day and model
Demand = Callable[[], Charge]  # the highest charge of a call
Payer = tuple[str, str]  # an owner, and a session of theirs; empty for what belongs to none

BATCH: Final = 500
_BOOKED = (*COUNTS, "unpriced_calls")
_TOTALS = ("key", *COUNTS[1:], "estimated", "cost", "cost_complete")

_COST = finite(usage.c.cost)
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
class UsageTotal:
    """What was used in a group: a day, model, session, user, agent or group of users."""

    key: Annotated[str | None, doc("A day, model, session, user or group, or the session's current agent; null: none.")]
    llm_calls: Annotated[int, doc("The number of model calls.")]
    input_tokens: Annotated[int, doc("Tokens sent to models.")]
    cached_tokens: Annotated[int, doc("The part of the input tokens that the provider had cached.")]
    output_tokens: Annotated[int, doc("Tokens received from models.")]
    reasoning_tokens: Annotated[int, doc("The part of the output tokens that was reasoning.")]
    estimated: Annotated[bool, doc("Whether some counts are estimates: the provider gave none.")]
    cost: Annotated[float | None, doc("Cost in US dollars of the calls that have a price; null if none has.")]
    cost_complete: Annotated[bool, doc("Whether `cost` is all: false if a call had no price.")]


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
            **{name: getattr(charge, name) for name in COUNTS},
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
    is_known = sa.or_(limits.is_known(_OWNER), sa.exists().where(reservations.c.owner == _OWNER))
    holder, under = sa.bindparam("held_by", type_=sa.Text), sa.bindparam("under", type_=sa.Integer)
    # What stored an answer has booked its charges too, perhaps unheard.
    is_answered = (turns.c.id == holder, turns.c.epoch == under, turns.c.status == "completed")
    unless_booked = ~sa.select(turns.c.id).where(*is_answered).exists()
    booked = booking(sa.select(session.c.id).scalar_subquery(), is_known, unless_booked).cte("booked")
    reserved = sa.delete(reservations).where(reservations.c.holder == holder)
    return sa.select(sa.literal(1)).add_cte(booked, reserved.where(reservations.c.epoch <= under).cte("released"))


_BOOK = _book()


async def book(
    connection: Connection, owner: str, session_id: str, charges: ChargesByDay, *, holder: str, epoch: int
) -> None:
    """Stores the charges, and releases the holder's reservation under this epoch or one before."""
    values = {"charged_session": session_id, "held_by": holder, "under": epoch, **charged(owner, charges)}
    await connection.execute(_BOOK, values)


async def note_groups(connection: Connection, owner: str, day: date, groups: Collection[str]) -> None:
    """Notes that a user was in these groups on a day. Does nothing for a user without a session."""
    is_known = sa.select(sessions.c.id).where(sessions.c.owner == owner).exists()  # an erased user stays erased
    names = sa.func.unnest(sa.cast(list(groups), sa.ARRAY(sa.Text)))
    rows = sa.select(sa.literal(owner), sa.literal(day), names).where(is_known)
    await connection.execute(insert(user_groups).from_select(["owner", "day", "name"], rows).on_conflict_do_nothing())


async def groups_of(connection: Connection, owner: str, day: date) -> list[str]:
    """Returns the groups that the user was in on the day, by name."""
    theirs = sa.select(user_groups.c.name).where(user_groups.c.owner == owner, user_groups.c.day == day)
    return list(await connection.scalars(theirs.order_by(user_groups.c.name)))


async def drop_old_usage(connection: Connection, *, before: date) -> int:
    """Deletes at most BATCH rows of days before then, and returns how many."""
    old = sa.select(usage.c.id).where(usage.c.day < before).limit(BATCH).with_for_update(skip_locked=True).cte("old")
    await connection.execute(sa.delete(user_groups).where(user_groups.c.day < before))
    return (await connection.execute(sa.delete(usage).where(usage.c.id.in_(sa.select(old.c.id))))).rowcount


async def list_usage(
    connection: Connection, owner: str | None, *, first: date, last: date, by: Group, after: str | None, limit: int
) -> list[UsageTotal]:
    """Returns the use from the first to the last day, by ascending key; of all owners if none is given."""
    key = _KEYS[by]
    statement = (
        sa.select(
            sa.func.nullif(key, "").label("key"),
            *(sa.func.sum(usage.c[name]).cast(sa.BigInteger).label(name) for name in COUNTS),
            sa.func.bool_or(usage.c.estimated).label("estimated"),
            sa.func.sum(_COST).cast(sa.Float).label("cost"),
            IS_COMPLETE.label("cost_complete"),
        )
        .where(usage.c.day.between(first, last), if_given(usage.c.owner, owner), if_given(key, after, gt))
        .group_by(key)
        .order_by(key)
        .limit(limit)
    )
    if by == "agent":
        statement = statement.outerjoin_from(usage, sessions, sessions.c.id == usage.c.session_id)
    if by == "group":
        on_the_day = (user_groups.c.owner == usage.c.owner) & (user_groups.c.day == usage.c.day)
        statement = statement.outerjoin_from(usage, user_groups, on_the_day)
    rows = (await connection.execute(statement)).mappings()
    return [UsageTotal(llm_calls=row["calls"], **{name: row[name] for name in _TOTALS}) for row in rows]


NOTHING_SPENT: Final = Charge("", calls=0, cost=NOTHING)
MOST_NOTED: Final = 100_000
ASK_AGAIN_S: Final = 2  # when calls that run will have ended is not known


@dataclass(frozen=True, slots=True)
class Books:
    """Opens accounts. Knows the caps, and the day. `locks` let one reservation of an owner, or of all if a cap is for
    several, into the database at a time: those that wait hold no connection.
    """

    database: Database
    clock: Clock
    limits_of: Callable[[str], Limits]  # the caps of each owner
    total: Limits = NO_LIMITS  # those of all together
    groups: Mapping[str, Limits] = field(default_factory=dict)  # and of groups
    noted: set[tuple[str, date, str]] = field(default_factory=set)  # owners whose groups of a day are stored
    locks: WeakValueDictionary[str, asyncio.Lock] = field(default_factory=WeakValueDictionary)

    def today(self) -> date:
        return self.clock().astimezone(UTC).date()

    @asynccontextmanager
    async def job(self, owner: str, session_id: str, *, lasts_s: float) -> AsyncIterator["Account"]:
        """Yields the account of a job, and books its charges. Its reservations count for `lasts_s` seconds."""
        account = Account(self, owner, session_id, uuid4().hex, epoch=-1, lasts_s=lasts_s)
        try:
            yield account
        finally:
            await account.close()

    async def reserve(
        self, owner: str, holder: str, most: Demand, *, epoch: int = 0, lasts_s: float = 0, groups: Collection[str] = ()
    ) -> date:
        """Notes groups. Returns the day to charge. Raises `rate_limited`, `service_limit_reached`, `price_missing`."""
        day = self.today()
        await self._note_groups(owner, day, groups)
        if self.is_capped(owner):
            charge = most()
            if charge.cost is None and self.limits_of(owner).cost_per_day:
                raise app_error("limit_price_missing", model=charge.model)
            reservation = Reservation(owner, holder, epoch, day, charge.tokens, charge.cost or NOTHING, lasts_s)
            lock = self.locks.setdefault("" if self._caps_several else owner, asyncio.Lock())
            async with lock, self.database.transaction() as connection:
                if self.total.has_caps:
                    await self._reserve(connection, reservation, self.total, among="")
                for group in await groups_of(connection, owner, day) if self.groups else ():
                    if (cap := self.groups.get(group, NO_LIMITS)).has_caps:
                        await self._reserve(connection, reservation, cap, among=group)
                await self._reserve(connection, reservation, self.limits_of(owner))
        return day

    def is_capped(self, owner: str) -> bool:
        return self._caps_several or self.limits_of(owner).has_caps

    @property
    def _caps_several(self) -> bool:
        return self.total.has_caps or any(cap.has_caps for cap in self.groups.values())

    async def _note_groups(self, owner: str, day: date, groups: Collection[str]) -> None:
        if new := {(owner, day, group) for group in groups} - self.noted:
            await self.database.write(note_groups, owner, day, groups)
            if len(self.noted) >= MOST_NOTED or not any(each[1] == day for each in self.noted):
                self.noted.clear()
            self.noted.update(new)

    async def _reserve(
        self, connection: Connection, reservation: Reservation, cap: Limits, *, among: str | None = None
    ) -> None:
        if among is None:
            standing = await limits.make_reservation(connection, reservation, cap)
        else:
            standing = await limits.has_room(connection, reservation, cap, group=among)
        if not standing.fits:
            raise self._refusal(reservation, standing, cap, among=among)

    async def release(self, owner: str, holder: str) -> None:
        if self.is_capped(owner):
            await self.database.write(limits.release_reservations, holder)

    def _refusal(self, reservation: Reservation, standing: Standing, cap: Limits, *, among: str | None) -> AppError:
        """Names the cap, and says when it lifts: with the next day, or as soon as running calls take less."""
        spent_tokens, spent_cost = standing.tokens + reservation.tokens, standing.cost + reservation.cost
        too_costly = bool(cap.cost_per_day) and spent_cost + standing.held_cost > cap.cost_per_day
        spent = spent_cost > cap.cost_per_day if too_costly else spent_tokens > cap.tokens_per_day
        tomorrow = datetime.combine(reservation.day + timedelta(days=1), time(), UTC)
        wait_s = max(ceil((tomorrow - self.clock()).total_seconds()), 1) if spent else ASK_AGAIN_S
        limit = "cost_per_day" if too_costly else "tokens_per_day"
        if among is not None:
            return service_limit_reached(f"{'group' if among else 'total'}_{limit}", wait_s, group=among)
        return rate_limited(limit, f"${cap.cost_per_day:f}" if too_costly else cap.tokens_per_day, wait_s)


@dataclass(slots=True, eq=False)
class Account:
    """`unbooked` has charges by day and model that another statement may book, and then clears."""

    books: Books
    owner: str
    session_id: str
    holder: str
    agent: str = ""  # the id of the one that spends it, empty for a job
    epoch: int = 0
    lasts_s: float = 0
    groups: Collection[str] = ()
    total: Charge = NOTHING_SPENT  # what was spent up to now
    unbooked: dict[tuple[date, str], Charge] = field(default_factory=dict)
    _unconfirmed: tuple[str, dict[tuple[date, str], Charge]] | None = None  # a transaction, and what it may have booked
    _day: date = field(init=False)

    def __post_init__(self) -> None:
        self._day = self.books.today()

    async def reserve(self, most: Demand) -> None:
        """Reserves a call's highest charge before it is made. Raises the errors of `Books.reserve`."""
        if self.unbooked or self._unconfirmed:  # of a call that failed, or whose booking was not answered
            await self.settle()
        terms: Mapping[str, Any] = {"epoch": self.epoch, "lasts_s": self.lasts_s, "groups": self.groups}
        self._day = await self.books.reserve(self.owner, self.holder, most, **terms)

    def add(self, charge: Charge) -> None:
        """Charges the day on which the call was reserved."""
        self.total = total((self.total, charge))
        self._add_unbooked({(self._day, charge.model): charge})

    async def settle(self) -> None:
        """With a cap: books the added charges, and releases the reservation."""
        if self.books.is_capped(self.owner):
            async with self.booking():
                pass

    @asynccontextmanager
    async def booking(self) -> AsyncIterator[Connection]:
        """Books charges since the last time once, releases the reservation, and commits the block's writes."""
        await self._settle_unconfirmed()
        charges, self.unbooked = self.unbooked, {}
        whose, transaction = (self.owner, self.session_id), None
        try:
            async with self.books.database.transaction() as connection:
                await book(connection, *whose, charges, holder=self.holder, epoch=self.epoch)
                yield connection
                transaction = await connection.scalar(TRANSACTION_ID)
        except BaseException:
            if transaction is not None:
                self._unconfirmed = transaction, charges
            else:
                self._add_unbooked(charges)
            raise

    async def _settle_unconfirmed(self) -> None:
        """Finds out whether a transaction whose commit was in doubt booked its charges; if not, they are unbooked."""
        unconfirmed, self._unconfirmed = self._unconfirmed, None
        if unconfirmed is not None:
            try:
                if not await self.books.database.read(has_committed, unconfirmed[0]):
                    self._add_unbooked(unconfirmed[1])
            except BaseException:
                self._unconfirmed = unconfirmed
                raise

    async def close(self) -> None:
        """Books the rest. An outage may lose it."""
        if not (self.unbooked or self._unconfirmed or self.books.is_capped(self.owner)):
            return
        try:
            async with self.booking():
                pass
        except AppError as error:
            log.warning("usage_not_booked", code=error.code, tokens=sum(each.tokens for each in self.unbooked.values()))

    def _add_unbooked(self, charges: ChargesByDay) -> None:
        for key, charge in charges.items():
            known = self.unbooked.get(key)
            self.unbooked[key] = charge if known is None else total((known, charge), charge.model)
