"""What one user may use, and what a turn or a job spends on models, charged to its owner. Owns `user_limits`.

Every process holds all rows and checks every two seconds for changes, so no request and no turn asks. With a daily cap
each call is reserved before it is made and booked after. Without one, charges wait for the end of the turn.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from functools import partial
from math import ceil
from typing import Annotated, Any, Final, Self
from uuid import uuid4
from weakref import WeakValueDictionary

from sqlalchemy import ColumnElement, delete, func, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from segue.db.engine import TRANSACTION_ID, Database, has_committed
from segue.db.models import user_limits
from segue.db.outages import OutageLog
from segue.domain import turn_errors
from segue.domain.errors import AppError
from segue.domain.field_types import doc
from segue.domain.identity import NOTHING, Charge, total
from segue.domain.ids import Clock
from segue.log import log
from segue.users import usage_caps
from segue.users.usage_caps import Reservation, Standing
from segue.users.user_settings import UserSettings
from segue.watch import Watch


@dataclass(frozen=True, slots=True)
class Limits:
    """What one user may use. 0 is no limit. A day is one in UTC."""

    requests_per_minute: Annotated[int, doc("Requests.")] = 0
    turns_per_minute: Annotated[int, doc("Turns.")] = 0
    concurrent_turns: Annotated[int, doc("Open turns.")] = 0
    tokens_per_day: Annotated[int, doc("Tokens of the models.")] = 0
    cost_per_day: Annotated[Decimal, doc("What they cost, in dollars.")] = NOTHING

    @property
    def has_caps(self) -> bool:
        """Whether there is a limit for a day."""
        return bool(self.tokens_per_day or self.cost_per_day)


@dataclass(frozen=True, slots=True)
class OwnLimits:
    """What stands in the place of the settings. None leaves the setting in force."""

    requests_per_minute: int | None = None
    turns_per_minute: int | None = None
    concurrent_turns: int | None = None
    tokens_per_day: int | None = None
    cost_per_day: Decimal | None = None

    def over(self, usual: Limits) -> Limits:
        return Limits(**{**asdict(usual), **{name: value for name, value in asdict(self).items() if value is not None}})


NO_LIMITS: Final = Limits()
NO_OWN: Final = OwnLimits()
_OWN = tuple(user_limits.c[field.name] for field in fields(OwnLimits))


async def load_limits(connection: AsyncConnection, owners: Collection[str] | None = None) -> dict[str, OwnLimits]:
    """Returns what is set, by owner; for all owners if none are given."""
    statement = select(user_limits.c.owner, *_OWN)
    if owners is not None:
        statement = statement.where(user_limits.c.owner.in_(owners))
    rows = (await connection.execute(statement)).mappings()
    return {row["owner"]: OwnLimits(**{column.name: row[column.name] for column in _OWN}) for row in rows}


async def set_limits(
    connection: AsyncConnection, owner: str, limits: OwnLimits, *, keeps_rest: bool = False
) -> OwnLimits:
    """Sets limits of the owner: with `keeps_rest` those that are not None, else all. Returns what is set then."""
    if limits == NO_OWN and not keeps_rest:
        await connection.execute(delete(user_limits).where(user_limits.c.owner == owner))
        return limits
    made = insert(user_limits).values(owner=owner, **asdict(limits))
    changed: dict[str, ColumnElement[Any]] = {name: made.excluded[name] for name in (*asdict(limits), "revision")}
    if keeps_rest:
        changed |= {column.name: func.coalesce(changed[column.name], column) for column in _OWN}
    stored = made.on_conflict_do_update(index_elements=["owner"], set_=changed).returning(*_OWN)
    return OwnLimits(**(await connection.execute(stored)).mappings().one())


# Every change makes the sum of revisions larger or the number of rows another one.
_STATE = select(func.count(), func.coalesce(func.sum(user_limits.c.revision), 0))


class LimitsInForce(Watch):
    """The limits of every user, two seconds old at most while it is entered. `total` is of all users together."""

    def __init__(self, database: Database, settings: UserSettings) -> None:
        super().__init__("the limits of users", self.look)
        self.usual = Limits(**{each.name: getattr(settings, f"limit_{each.name}") for each in fields(Limits)})
        self.total = Limits(
            tokens_per_day=settings.limit_total_tokens_per_day, cost_per_day=settings.limit_total_cost_per_day
        )
        self._database = database
        self._own: Mapping[str, Limits] = {}
        self._state: object = None
        self._outage = OutageLog("limits_not_read", "limits_are_current")

    def of(self, user: str) -> Limits:
        return self._own.get(user, self.usual)

    async def __aenter__(self) -> Self:
        await self.look()
        return await super().__aenter__()

    async def look(self) -> None:
        """Reads the rows if they have changed. Those that were known stay if PostgreSQL does not answer."""
        try:
            async with self._database.read_only() as connection:
                state = tuple((await connection.execute(_STATE)).one())
                own = await load_limits(connection) if state != self._state else None
        except AppError as error:
            self._outage.fails(error)
            return
        self._outage.works()
        if own is None:
            return
        self._own, self._state = {owner: limits.over(self.usual) for owner, limits in own.items()}, state
        if own:
            log.info("limits_read", users=len(own))


NOTHING_SPENT: Final = Charge("", calls=0, cost=NOTHING)
MOST_ENTERED: Final = 100_000
ASK_AGAIN_S: Final = 2  # when calls that run will have ended is not known


@dataclass(frozen=True, slots=True)
class Books:
    """Opens accounts. Knows the caps of each owner, those of all together (`total`) and of groups, and the day.
    `turnstiles` let one reservation of an owner, or of all if a cap is for several, into the database at a time: those
    that wait hold no connection. `entered` are owners whose groups of a day are noted.
    """

    database: Database
    clock: Clock
    limits_of: Callable[[str], Limits]
    total: Limits = NO_LIMITS
    groups: Mapping[str, Limits] = field(default_factory=dict)
    entered: set[tuple[str, date, str]] = field(default_factory=set)
    turnstiles: WeakValueDictionary[str, asyncio.Lock] = field(default_factory=WeakValueDictionary)

    def today(self) -> date:
        return self.clock().astimezone(UTC).date()

    @asynccontextmanager
    async def job(self, owner: str, session_id: str, *, lasts_s: float) -> AsyncIterator["Account"]:
        """Yields the account of a job, and books what it spent. What it reserves counts for `lasts_s` seconds."""
        account = Account(self, owner, session_id, uuid4().hex, lasts_s=lasts_s)
        try:
            yield account
        finally:
            await account.close()

    async def reserve(
        self,
        owner: str,
        holder: str,
        most: Callable[[], Charge],
        *,
        epoch: int = 0,
        lasts_s: float = 0,
        groups: Collection[str] = (),
    ) -> date:
        """Notes the owner's groups. Returns the day to charge. Raises `rate_limited`, `service_limit_reached`."""
        day = self.today()
        await self._enter(owner, day, groups)
        if self.is_capped(owner):
            charge = most()
            wanted = Reservation(owner, holder, epoch, day, charge.tokens, charge.cost or NOTHING, lasts_s)
            turnstile = self.turnstiles.setdefault("" if self._caps_several else owner, asyncio.Lock())
            async with turnstile, self.database.transaction() as connection:
                if self.total.has_caps:
                    await self._reserve(connection, wanted, self.total, among="")
                for group in await usage_caps.groups_of(connection, owner, day) if self.groups else ():
                    if (cap := self.groups.get(group, NO_LIMITS)).has_caps:
                        await self._reserve(connection, wanted, cap, among=group)
                await self._reserve(connection, wanted, self.limits_of(owner))
        return day

    def is_capped(self, owner: str) -> bool:
        return self._caps_several or self.limits_of(owner).has_caps

    @property
    def _caps_several(self) -> bool:
        return self.total.has_caps or any(cap.has_caps for cap in self.groups.values())

    async def _enter(self, owner: str, day: date, groups: Collection[str]) -> None:
        if new := {(owner, day, group) for group in groups} - self.entered:
            await self.database.write(usage_caps.enter_groups, owner, day, groups)
            if len(self.entered) >= MOST_ENTERED or not any(each[1] == day for each in self.entered):
                self.entered.clear()
            self.entered.update(new)

    async def _reserve(
        self, connection: AsyncConnection, wanted: Reservation, limits: Limits, *, among: str | None = None
    ) -> None:
        ask = usage_caps.reserve if among is None else partial(usage_caps.fits, group=among)
        standing = await ask(connection, wanted, token_cap=limits.tokens_per_day, cost_cap=limits.cost_per_day)
        if not standing.fits:
            raise self._refusal(wanted, standing, limits, among=among)

    async def release(self, owner: str, holder: str) -> None:
        if self.is_capped(owner):
            await self.database.write(usage_caps.release, holder)

    def _refusal(self, wanted: Reservation, standing: Standing, limits: Limits, *, among: str | None) -> AppError:
        """Names the cap, and says when it lifts: with the next day, or as soon as calls that run take less."""
        now = self.clock().astimezone(UTC)
        spent_tokens, spent_cost = standing.tokens + wanted.tokens, standing.cost + wanted.cost
        too_costly = bool(limits.cost_per_day) and spent_cost + standing.held_cost > limits.cost_per_day
        spent = spent_cost > limits.cost_per_day if too_costly else spent_tokens > limits.tokens_per_day
        tomorrow = datetime.combine(wanted.day + timedelta(days=1), time(), UTC)
        wait_s = max(ceil((tomorrow - now).total_seconds()), 1) if spent else ASK_AGAIN_S
        limit = "cost_per_day" if too_costly else "tokens_per_day"
        if among is not None:
            return turn_errors.service_limit_reached(f"{'group' if among else 'total'}_{limit}", wait_s, group=among)
        at_most = f"${limits.cost_per_day:f}" if too_costly else limits.tokens_per_day
        return turn_errors.rate_limited(limit, at_most, wait_s)


@dataclass(slots=True, eq=False)
class Account:
    """`total` is what was spent up to now; `agent` is the id of the one that spends it, empty for a job. `unbooked` is
    what another statement may book, by day and model, and clears then.
    """

    books: Books
    owner: str
    session_id: str
    holder: str
    agent: str = ""
    epoch: int = 0
    lasts_s: float = 0
    groups: Collection[str] = ()
    total: Charge = NOTHING_SPENT
    unbooked: dict[tuple[date, str], Charge] = field(default_factory=dict)
    _unheard: tuple[str, dict[tuple[date, str], Charge]] | None = None  # a transaction, and what it may have booked
    _day: date = field(init=False)

    def __post_init__(self) -> None:
        self._day = self.books.today()

    async def reserve(self, most: Callable[[], Charge]) -> None:
        """Reserves what a call may take at most, before it is made. Raises what `Books.reserve` raises."""
        if self.unbooked or self._unheard:  # of a call that failed, or whose booking was not answered
            await self.settle()
        held: Mapping[str, Any] = {"epoch": self.epoch, "lasts_s": self.lasts_s, "groups": self.groups}
        self._day = await self.books.reserve(self.owner, self.holder, most, **held)

    def add(self, charge: Charge) -> None:
        """Charges the day on which the call was reserved."""
        self.total = total((self.total, charge))
        self._add_unbooked((self._day, charge.model), charge)

    async def settle(self) -> None:
        """With a cap: books what was added, and gives back what was reserved."""
        if self.books.is_capped(self.owner):
            async with self.booking():
                pass

    @asynccontextmanager
    async def booking(self) -> AsyncIterator[AsyncConnection]:
        """Books what was added since the last time, once though the word of the commit is lost, and gives back what was
        reserved, with what the block commits.
        """
        await self._hear()
        charges, self.unbooked = self.unbooked, {}
        whose, transaction = (self.owner, self.session_id), None
        try:
            async with self.books.database.transaction() as connection:
                await usage_caps.book(connection, *whose, charges, holder=self.holder, epoch=self.epoch)
                yield connection
                transaction = await connection.scalar(TRANSACTION_ID)
        except BaseException:
            if transaction is not None:
                self._unheard = transaction, charges
            else:
                self._put_back(charges)
            raise

    async def _hear(self) -> None:
        """Finds out whether the transaction that was not heard of has booked its charges; if not, they are unbooked."""
        unheard, self._unheard = self._unheard, None
        if unheard is not None:
            try:
                if not await self.books.database.read(has_committed, unheard[0]):
                    self._put_back(unheard[1])
            except BaseException:
                self._unheard = unheard
                raise

    async def close(self) -> None:
        """Books the rest. An outage may lose it."""
        if not (self.unbooked or self._unheard or self.books.is_capped(self.owner)):
            return
        try:
            async with self.booking():
                pass
        except AppError as error:
            lost = sum(each.tokens for each in self.unbooked.values())
            log.warning("usage_not_booked", code=error.code, tokens=lost)

    def _put_back(self, charges: usage_caps.ChargesByDay) -> None:
        for key, charge in charges.items():
            self._add_unbooked(key, charge)

    def _add_unbooked(self, key: tuple[date, str], charge: Charge) -> None:
        known = self.unbooked.get(key)
        self.unbooked[key] = charge if known is None else total((known, charge), charge.model)
