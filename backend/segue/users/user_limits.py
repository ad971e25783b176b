"""What one user may use: the settings, and what operators set for one user in their place. Owns `user_limits`.

Every process has all rows in memory and looks every two seconds whether they have changed, so that no request and no
turn asks for them.
"""

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, fields
from decimal import Decimal
from typing import Annotated, Final, Self

import structlog
from sqlalchemy import delete, func, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from segue.db.causes import OutageLog
from segue.db.engine import Database
from segue.db.models import user_limits
from segue.domain.doc import doc
from segue.domain.errors import AppError
from segue.domain.identity import NOTHING
from segue.users.user_settings import UserSettings
from segue.watch import Watch

log = structlog.get_logger()


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


async def set_limits(connection: AsyncConnection, owner: str, limits: OwnLimits) -> None:
    """Replaces all that was set for the owner."""
    if limits == NO_OWN:
        await connection.execute(delete(user_limits).where(user_limits.c.owner == owner))
        return
    made = insert(user_limits).values(owner=owner, **asdict(limits))
    changed = {name: made.excluded[name] for name in (*asdict(limits), "revision")}
    await connection.execute(made.on_conflict_do_update(index_elements=["owner"], set_=changed))


# Every change makes the sum of revisions larger or the number of rows another one.
_STATE = select(func.count(), func.coalesce(func.sum(user_limits.c.revision), 0))


class LimitsInForce(Watch):
    """The limits of every user, as they were two seconds ago at most. Enter it to keep them current. `total` is of
    all users together."""

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
            self._outage.fails(code=error.code)
            return
        self._outage.works()
        if own is None:
            return
        self._own, self._state = {owner: limits.over(self.usual) for owner, limits in own.items()}, state
        if own:
            log.info("limits_read", users=len(own))
