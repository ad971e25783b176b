"""Limits of users, of which every process holds all rows, and reservations for calls that run.

The rows of limits are looked at every two seconds for changes, so no request and no turn asks. A reservation counts
while its turn is open under its epoch, or until its time is up, so a dead process's reservation ends with its turn, and
none is subtracted twice. Owns `user_limits` and `reservations`.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass, fields
from datetime import date, timedelta
from decimal import Decimal
from typing import Annotated, Any, Final, Self

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert

from segue.db.engine import Connection, Database
from segue.db.models import OPEN_TURNS, memories, reservations, sessions, turns, usage, user_groups, user_limits
from segue.db.outages import OutageLog
from segue.db.rows import OWNER_LOCK, if_given
from segue.domain.errors import AppError
from segue.domain.field_types import doc
from segue.domain.identity import NOTHING, SPEAKS_FOR, Operator
from segue.log import log
from segue.users.audit import record_act
from segue.users.user_settings import UserSettings
from segue.watch import Watch


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one user. 0 means no limit. Days are in UTC."""

    requests_per_minute: Annotated[int, doc("The most requests in a minute.")] = 0
    turns_per_minute: Annotated[int, doc("The most turns in a minute.")] = 0
    concurrent_turns: Annotated[int, doc("The most turns that are open at once.")] = 0
    tokens_per_day: Annotated[int, doc("The most tokens of models in a day.")] = 0
    cost_per_day: Annotated[Decimal, doc("The highest cost of models in a day, in US dollars.")] = NOTHING

    @property
    def has_caps(self) -> bool:
        """Whether there is a limit for a day."""
        return bool(self.tokens_per_day or self.cost_per_day)


@dataclass(frozen=True, slots=True)
class OwnLimits:
    """Values in place of the settings. None leaves the setting in force."""

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


async def load_limits(connection: Connection, owners: Collection[str] | None = None) -> dict[str, OwnLimits]:
    """Returns the limits that are set, by owner; for all owners if none are given."""
    known = if_given(user_limits.c.owner, owners, sa.ColumnElement.in_)
    rows = (await connection.execute(sa.select(user_limits.c.owner, *_OWN).where(known))).mappings()
    return {row["owner"]: OwnLimits(**{column.name: row[column.name] for column in _OWN}) for row in rows}


async def set_limits(
    connection: Connection, owner: str, limits: OwnLimits, *, by: Operator, keeps_rest: bool = False
) -> OwnLimits:
    """Sets limits of the owner: with `keeps_rest` those that are not None, else all. Returns and audits them all."""
    if limits == NO_OWN and not keeps_rest:
        await connection.execute(sa.delete(user_limits).where(user_limits.c.owner == owner))
        own = limits
    else:
        new = insert(user_limits).values(owner=owner, **asdict(limits))
        changed: dict[str, sa.ColumnElement[Any]] = {name: new.excluded[name] for name in (*asdict(limits), "revision")}
        if keeps_rest:
            changed |= {column.name: sa.func.coalesce(changed[column.name], column) for column in _OWN}
        stored = new.on_conflict_do_update(index_elements=["owner"], set_=changed).returning(*_OWN)
        own = OwnLimits(**(await connection.execute(stored)).mappings().one())
    shown = {name: value if value is None else float(value) for name, value in asdict(own).items()}
    await record_act(connection, by, "set_user_limits", details={"user": owner, **shown})
    return own


# Every change makes the sum of revisions larger or the number of rows another one.
_STATE = sa.select(sa.func.count(), sa.func.coalesce(sa.func.sum(user_limits.c.revision), 0))


class LimitsInForce(Watch):
    """The limits of every user, two seconds old at most while it is entered. `total` is of all users together."""

    def __init__(self, database: Database, settings: UserSettings) -> None:
        super().__init__("the limits of users", self.look)
        self.usual = Limits(**{each.name: getattr(settings, f"limit_{each.name}") for each in fields(Limits)})
        tokens, cost = settings.limit_total_tokens_per_day, settings.limit_total_cost_per_day
        self.total = Limits(tokens_per_day=tokens, cost_per_day=cost)
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
        """Reads the rows if they have changed. The known ones stay if PostgreSQL does not answer."""
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


def finite(cost: sa.ColumnElement[Any]) -> sa.ColumnElement[Any]:
    """Returns null for NaN and infinity: one such row would make every sum useless."""
    return sa.case((cost < sa.literal_column("'Infinity'::numeric"), cost))


def is_known(owner: sa.ColumnElement[str]) -> sa.ColumnElement[bool]:
    """Whether an owner has sessions or facts: an erased user stays erased."""
    return sa.or_(*(sa.exists().where(table.c.owner == owner) for table in (sessions, memories)))


def _standing(counts: Callable[[sa.ColumnElement[str]], sa.ColumnElement[bool]] | None = None) -> sa.Select[Any]:
    """Returns the sums spent and reserved on a day, by the owners that count or by all, and whether more fits."""
    tokens, cost = sa.bindparam("more_tokens", type_=sa.BigInteger), sa.bindparam("more_cost", type_=sa.Numeric)
    cap, cost_cap = sa.bindparam("token_cap", type_=sa.BigInteger), sa.bindparam("cost_cap", type_=sa.Numeric)
    spent = _sums(usage.c.input_tokens + usage.c.output_tokens, finite(usage.c.cost)).where(usage.c.day == _DAY)
    reserved = _sums(reservations.c.tokens, finite(reservations.c.cost))
    reserved = reserved.where(reservations.c.holder != _HOLDER, reservations.c.day == _DAY, _STILL_HELD)
    if counts is not None:
        spent, reserved = spent.where(counts(usage.c.owner)), reserved.where(counts(reservations.c.owner))
    spent_rows, held_rows = spent.cte("spent"), reserved.cte("held")
    fits = sa.and_(
        sa.or_(cap == 0, spent_rows.c.tokens + held_rows.c.tokens + tokens <= cap),
        sa.or_(cost_cap == 0, spent_rows.c.cost + held_rows.c.cost + cost <= cost_cap),
    )
    sums = spent_rows.c.tokens, spent_rows.c.cost, held_rows.c.cost.label("held_cost")
    return sa.select(*sums, fits.label("fits")).select_from(spent_rows.join(held_rows, sa.literal(True)))


def _reserve() -> sa.Select[Any]:
    """Reads what other reservations have committed, so it has to run under the lock of the owner. Nothing is reserved
    for a turn that is gone, perhaps with its user: the lock keeps one that is there until the commit.
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
    is_job = sa.bindparam("at_epoch") < 0
    is_there = sa.or_(sa.bindparam("at_epoch") == 0, is_job & is_known(owner), sa.select(turn.c.id).exists())
    new = insert(reservations).from_select([*row], standing.with_only_columns(*row.values()).where(fits, is_there))
    changed = {name: new.excluded[name] for name in ("day", "tokens", "cost", "until")}
    keys = [reservations.c.holder, reservations.c.epoch]
    reserved = new.on_conflict_do_update(index_elements=keys, set_=changed).returning(reservations.c.holder)
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


async def make_reservation(connection: Connection, wanted: Reservation, limits: Limits) -> Standing:
    """Reserves in place of the holder's reservation under this epoch or before, if the owner's day has room; 0 is no
    turn's epoch. In a transaction, which holds the lock of the owner's reservations until its end.
    """
    held = {"at_epoch": wanted.epoch, "lasts": timedelta(seconds=wanted.lasts_s)}
    return await _stand(connection, _RESERVE, wanted, limits, lock=wanted.owner, of_owner=wanted.owner, **held)


async def has_room(connection: Connection, wanted: Reservation, limits: Limits, *, group: str) -> Standing:
    """Returns whether the day of all in a group together has room, of all owners if it is empty, and reserves nothing.
    In a transaction, which holds the lock of these until its end.
    """
    if not group:
        return await _stand(connection, _FITS_ALL, wanted, limits, lock="")
    lock = f"{SPEAKS_FOR}{group}"  # no owner begins like this
    return await _stand(connection, _FITS_GROUP, wanted, limits, lock=lock, of_group=group)


async def _stand(
    connection: Connection, asks: sa.Select[Any], wanted: Reservation, limits: Limits, *, lock: str, **values: Any
) -> Standing:
    await connection.execute(OWNER_LOCK, {"of_owner": lock})
    more = {"more_tokens": wanted.tokens, "more_cost": wanted.cost, "on_day": wanted.day, "by_holder": wanted.holder}
    caps = {"token_cap": limits.tokens_per_day, "cost_cap": limits.cost_per_day}
    return Standing(**(await connection.execute(asks, {**more, **caps, **values})).mappings().one())


async def drop_stale_reservations(connection: Connection) -> None:
    """Deletes those of dead processes whose owners have reserved nothing since."""
    await connection.execute(sa.delete(reservations).where(reservations.c.until < sa.func.now() - timedelta(days=1)))


async def release_reservations(connection: Connection, holder: str) -> None:
    await connection.execute(sa.delete(reservations).where(reservations.c.holder == holder))
