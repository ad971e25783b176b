"""Routes for operators: the users there are, the limits of each, and all that one has. HTTP only."""

from dataclasses import asdict, dataclass
from decimal import Decimal
from typing import Annotated

from fastapi import Path
from pydantic import AfterValidator, Field, TypeAdapter
from starlette.responses import StreamingResponse

from segue.api.deps import Ops, Services, ServicesDep, router_of
from segue.api.me import AS_LINES, ConfirmedUser, check_confirmed, erase_all, export_of
from segue.api.problem_codes import problems
from segue.api.schemas import Cursor, Limit, LimitsToSet, Page, decode_cursor, page
from segue.db.erasure import ErasedRows, has_rows
from segue.domain.doc import doc
from segue.domain.errors import AppError, NotFound
from segue.domain.identity import known_owner
from segue.identity.audit import record_act
from segue.turns.users import UserOverview, list_users
from segue.usage.user_limits import NO_OWN, Limits, OwnLimits, load_limits, set_limits

router = router_of("ops", "/ops/users")

UserName = Annotated[str, Path(max_length=500, description="A user, known or not."), AfterValidator(known_owner)]
EXPORT = {**AS_LINES, **problems("forbidden", "user_not_found")}
_POSITION: TypeAdapter[str] = TypeAdapter(Annotated[str, Field(max_length=500, pattern="^[^\x00]*$")])


@dataclass(frozen=True, slots=True)
class ShownLimits:
    """The limits of a user."""

    user: Annotated[str, doc("Who.")]
    own: Annotated[LimitsToSet, doc("What operators set for this user; null is the setting.")]
    in_force: Annotated[LimitsToSet, doc("What holds: this user's own, else the settings. 0 is no limit.")]


@dataclass(frozen=True, slots=True)
class OpsUser:
    """A user, what they have, and their limits."""

    overview: Annotated[UserOverview, doc("What they have and what today took.")]
    limits: Annotated[ShownLimits, doc("What they may use.")]


@router.get("", responses=problems("forbidden"))
async def list_all_users(services: ServicesDep, _: Ops, limit: Limit = 50, cursor: Cursor = None) -> Page[OpsUser]:
    """Lists the users there are. By name: who has a session, a key, usage or limits. For the scope `ops`."""
    after = decode_cursor(cursor, _POSITION)
    async with services.database.read_only() as connection:
        found = await list_users(connection, after=after, limit=limit + 1, now=services.clock())
        own = await load_limits(connection, [each.user for each in found])
    users = [OpsUser(each, _shown(services, each.user, own.get(each.user, NO_OWN))) for each in found]
    return page(users, limit, lambda each: each.overview.user)


@router.get("/{user}/limits", responses=problems("forbidden"))
async def get_user_limits(user: UserName, services: ServicesDep, _: Ops) -> ShownLimits:
    """Shows what a user may use. For the scope `ops`."""
    async with services.database.read_only() as connection:
        own = await load_limits(connection, [user])
    return _shown(services, user, own.get(user, NO_OWN))


@router.put("/{user}/limits", responses=problems("forbidden", "price_missing"))
async def set_user_limits(user: UserName, body: LimitsToSet, services: ServicesDep, operator: Ops) -> ShownLimits:
    """Sets what a user may use, in the place of the settings. All five at once: what is null or left out is the
    setting's. In force in every process within seconds. For the scope `ops`.
    """
    if body.cost_per_day:
        _refuse_without_prices(services)
    cost = None if body.cost_per_day is None else Decimal(str(body.cost_per_day))
    return await _set(services, user, OwnLimits(**{**body.model_dump(), "cost_per_day": cost}), operator)


@router.delete("/{user}/limits", responses=problems("forbidden"))
async def lift_user_limits(user: UserName, services: ServicesDep, operator: Ops) -> ShownLimits:
    """Puts the settings in force again for a user. For the scope `ops`."""
    return await _set(services, user, NO_OWN, operator)


@router.get("/{user}/export", response_class=StreamingResponse, responses=EXPORT)
async def export_any_user(user: UserName, services: ServicesDep, operator: Ops) -> StreamingResponse:
    """Exports every row that is stored of a user, as `segue export` does: `{"table": …, "row": …}` a line. Without the
    hashes of secrets. For the scopes `ops` and `ops:content`, as it has what was said.
    """
    if "ops:content" not in operator.scopes:
        detail = "This has what the user said: it is for callers with the scopes `ops` and `ops:content`."
        raise AppError("forbidden", status=403, title="Forbidden", detail=detail)
    await _check_exists(services, user)
    async with services.database.transaction() as connection:
        await record_act(connection, operator, "export_user", details={"user": user})
    return export_of(services, user)


@router.delete("/{user}", responses=problems("forbidden", "not_confirmed", "user_not_found"))
async def erase_any_user(user: UserName, services: ServicesDep, operator: Ops, confirm: ConfirmedUser) -> ErasedRows:
    """Removes all that is stored of a user, API keys too, as `segue erase` does, and revokes logins at MCP servers. It
    cannot be undone. One that was cut off goes on when it is repeated. For the scope `ops`.
    """
    check_confirmed(user, confirm)
    await _check_exists(services, user)
    async with services.database.transaction() as connection:
        await record_act(connection, operator, "erase_user", details={"user": user})
    return await erase_all(services, user)


async def _check_exists(services: Services, user: str) -> None:
    if not await has_rows(services.database, user):
        raise NotFound("user")


async def _set(services: Services, user: str, own: OwnLimits, operator: Ops) -> ShownLimits:
    shown = _shown(services, user, own)
    async with services.database.transaction() as connection:
        await set_limits(connection, user, own)
        details = {"user": user, **shown.own.model_dump(exclude_none=True)}
        await record_act(connection, operator, "set_user_limits", details=details)
    await services.limits.look()
    return shown


def _refuse_without_prices(services: Services) -> None:
    asked = [model for each in services.agents.known.values() for model in (each.models.main, each.models.small)]
    if unpriced := sorted({model.name for model in asked if model.tariff.price is None}):
        detail = f"A limit of cost needs a price of {', '.join(unpriced)} in the file PRICES_FILE."
        raise AppError("price_missing", status=422, title="A price is missing", detail=detail)


def _shown(services: Services, user: str, own: OwnLimits) -> ShownLimits:
    return ShownLimits(user, _numbers(own), _numbers(own.over(services.limits.usual)))


def _numbers(limits: OwnLimits | Limits) -> LimitsToSet:
    cost = limits.cost_per_day
    return LimitsToSet(**{**asdict(limits), "cost_per_day": None if cost is None else float(cost)})
