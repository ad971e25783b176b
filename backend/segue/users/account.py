"""What a turn or a job spends on models, charged to its owner.

With a cap for a day, each call is reserved before it is made and booked after it. Without one, charges wait until the
turn ends, and cost no statement of their own.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from math import ceil
from typing import Final
from uuid import uuid4
from weakref import WeakValueDictionary

import structlog
from sqlalchemy.ext.asyncio import AsyncConnection

from segue.db.engine import Database
from segue.domain import turn_errors
from segue.domain.errors import AppError
from segue.domain.identity import NOTHING, Charge, total
from segue.domain.ids import Clock
from segue.users import ledger
from segue.users.ledger import Reservation, Standing
from segue.users.user_limits import NO_LIMITS, Limits

NOTHING_SPENT: Final = Charge("", calls=0, cost=NOTHING)
ASK_AGAIN_S: Final = 2  # when calls that run will have ended is not known

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Books:
    """Opens accounts. Knows the caps of each owner, those of all together (`total`) and the day. `turnstiles` let one
    reservation of an owner, or of all with a total, into the database at a time: those that wait hold no connection.
    """

    database: Database
    clock: Clock
    limits_of: Callable[[str], Limits]
    total: Limits = NO_LIMITS
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
        self, owner: str, holder: str, most: Callable[[], Charge], *, epoch: int = 0, lasts_s: float = 0
    ) -> date:
        """Returns the day to charge. Raises AppError `rate_limited` or `service_limit_reached` if a cap has no room."""
        day = self.today()
        if self.is_capped(owner):
            charge = most()
            wanted = Reservation(owner, holder, epoch, day, charge.tokens, charge.cost or NOTHING, lasts_s)
            turnstile = self.turnstiles.setdefault("" if self.total.has_caps else owner, asyncio.Lock())
            async with turnstile, self.database.transaction() as connection:
                if self.total.has_caps:
                    await self._reserve(connection, wanted, self.total, of_all=True)
                await self._reserve(connection, wanted, self.limits_of(owner))
        return day

    def is_capped(self, owner: str) -> bool:
        return self.total.has_caps or self.limits_of(owner).has_caps

    async def _reserve(
        self, connection: AsyncConnection, wanted: Reservation, limits: Limits, *, of_all: bool = False
    ) -> None:
        token_cap, cost_cap = limits.tokens_per_day, limits.cost_per_day
        standing = await ledger.reserve(connection, wanted, token_cap=token_cap, cost_cap=cost_cap, of_all=of_all)
        if not standing.reserved:
            raise self._refusal(wanted, standing, limits, of_all=of_all)

    async def release(self, owner: str, holder: str) -> None:
        if self.is_capped(owner):
            async with self.database.autocommit() as connection:
                await ledger.release(connection, holder)

    def _refusal(self, wanted: Reservation, standing: Standing, limits: Limits, *, of_all: bool) -> AppError:
        """Names the cap, and says when it lifts: with the next day, or as soon as calls that run take less."""
        now = self.clock().astimezone(UTC)
        spent_tokens, spent_cost = standing.tokens + wanted.tokens, standing.cost + wanted.cost
        too_costly = bool(limits.cost_per_day) and spent_cost + standing.held_cost > limits.cost_per_day
        spent = spent_cost > limits.cost_per_day if too_costly else spent_tokens > limits.tokens_per_day
        tomorrow = datetime.combine(wanted.day + timedelta(days=1), time(), UTC)
        wait_s = max(ceil((tomorrow - now).total_seconds()), 1) if spent else ASK_AGAIN_S
        limit = "cost_per_day" if too_costly else "tokens_per_day"
        if of_all:
            return turn_errors.service_limit_reached(f"total_{limit}", wait_s)
        at_most = f"${limits.cost_per_day:f}" if too_costly else limits.tokens_per_day
        return turn_errors.rate_limited(limit, at_most, wait_s)


@dataclass(slots=True, eq=False)
class Account:
    """`total` is what was spent up to now; `agent` is the id of the one that spends it, empty for a job.

    `unbooked` is what another statement may book, by day and model, which `booked` confirms.
    """

    books: Books
    owner: str
    session_id: str
    holder: str
    agent: str = ""
    epoch: int = 0
    lasts_s: float = 0
    total: Charge = NOTHING_SPENT
    unbooked: dict[tuple[date, str], Charge] = field(default_factory=dict)
    _day: date = field(init=False)

    def __post_init__(self) -> None:
        self._day = self.books.today()

    async def reserve(self, most: Callable[[], Charge]) -> None:
        """Reserves what a call may take at most, before it is made. Raises what `Books.reserve` raises."""
        if self.unbooked:  # of a call that failed
            await self.settle()
        self._day = await self.books.reserve(self.owner, self.holder, most, epoch=self.epoch, lasts_s=self.lasts_s)

    def add(self, charge: Charge) -> None:
        """Charges the day on which the call was reserved."""
        self.total = total((self.total, charge))
        self._add_unbooked((self._day, charge.model), charge)

    async def settle(self) -> None:
        """With a cap: books what was added, and gives back what was reserved."""
        if self.books.is_capped(self.owner):
            async with self.books.database.autocommit() as connection:
                await self.book(connection)

    async def book(self, connection: AsyncConnection) -> None:
        """Books what was added since the last time, and gives back what was reserved."""
        unbooked, self.unbooked = self.unbooked, {}
        try:
            await ledger.book(connection, self.owner, self.session_id, unbooked, holder=self.holder, epoch=self.epoch)
        except BaseException:
            for key, charge in unbooked.items():
                self._add_unbooked(key, charge)
            raise

    def booked(self) -> None:
        self.unbooked = {}

    async def close(self) -> None:
        """Books the rest. An outage may lose it."""
        if not self.unbooked and not self.books.is_capped(self.owner):
            return
        try:
            async with self.books.database.autocommit() as connection:
                await self.book(connection)
        except AppError as error:
            lost = sum(each.tokens for each in self.unbooked.values())
            log.warning("usage_not_booked", code=error.code, tokens=lost)

    def _add_unbooked(self, key: tuple[date, str], charge: Charge) -> None:
        known = self.unbooked.get(key)
        self.unbooked[key] = charge if known is None else total((known, charge), charge.model)
