"""Routes for operators: users, their limits and data, API keys. Only the answer that makes a key has a secret."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Annotated
from urllib.parse import unquote

from fastapi import Depends, Path, Query
from pydantic import AfterValidator
from starlette.responses import StreamingResponse
from starlette.routing import Match
from starlette.types import Scope

from segue.api.chat import Client
from segue.api.deps import KeyId, Ops, Parts, Services, StrictJsonRoute, require_content, router_of
from segue.api.me import AS_LINES, ConfirmedUser, erase_all, export_of
from segue.api.problems import problems
from segue.api.schemas import BY_NAME, KeyRotation, KeyToMake, LimitsToSet, NameFilter, Page, Paged, id_position
from segue.db.user_data import ErasedRows, has_rows
from segue.domain.errors import InvalidRequest, NotFound, app_error
from segue.domain.field_types import doc
from segue.domain.identity import Identity, known_owner
from segue.domain.ids import new_id
from segue.history.operator_figures import UserOverview, list_users
from segue.users.api_keys import ApiKey, ApiKeys, create_key, list_keys, lock_key, revoke_key, rotate_key
from segue.users.audit import record_act
from segue.users.limits import NO_OWN, OwnLimits, load_limits, set_limits


class _UserRoute(StrictJsonRoute):
    """Takes a `%2F` for part of the name: `DELETE /ops/users/ada%2Flimits` erases `ada/limits`."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        sent = (scope.get("raw_path") or b"").decode("latin-1")
        if "%2f" not in sent.lower():
            return super().matches(scope)
        match, child = super().matches({**scope, "path": sent})
        if match is not Match.NONE:
            child["path_params"] = {name: unquote(value) for name, value in child["path_params"].items()}
        return match, child


keys_router = router_of("ops", "/ops/keys")
router = router_of("ops", "/ops/users", _UserRoute)

EXPORT = {**AS_LINES, **problems("forbidden", "user_not_found")}
REFUSED = problems("forbidden", "no_api_keys")
REFUSED_TO_ROTATE = problems("forbidden", "no_api_keys", "beyond_own_scopes", "key_rotated")
_KEY_POSITION = id_position("key")
_OF_KEY = ("id", "name", "scopes", "groups", "roles", "created_at", "last_used_at", "expires_at", "revoked_at")

OfUser = Annotated[NameFilter, Query(description="Lists only the keys of this user.")]
_NAME_IS = "The name of a user, known or not; write `/` in it as `%2F`."
UserName = Annotated[str, Path(max_length=500, description=_NAME_IS), AfterValidator(known_owner)]


@dataclass(frozen=True, slots=True)
class OpsKey:
    """An API key, without its secret."""

    id: Annotated[str, doc("The key's id; begins with `key_`.")]
    user: Annotated[str, doc("The user whom the key belongs to.")]
    name: Annotated[str | None, doc("What the key is for; null if not given.")]
    scopes: Annotated[list[str], doc("The scopes of the key.")]
    groups: Annotated[list[str], doc("The groups that the key puts its user in.")]
    roles: Annotated[list[str], doc("The roles that the key gives its user.")]
    works: Annotated[bool, doc("Whether the key is accepted now.")]
    created_at: Annotated[datetime, doc("When the key was made (UTC).")]
    last_used_at: Annotated[datetime | None, doc("When the key was last used, to the minute; null if it never was.")]
    expires_at: Annotated[datetime | None, doc("When the key expires; null if it never does.")]
    revoked_at: Annotated[datetime | None, doc("When the key was revoked; null if it was not.")]


@dataclass(frozen=True, slots=True)
class OpsNewKey:
    """An API key that was just made."""

    key: Annotated[OpsKey, doc("The key, as `GET /ops/keys` lists it.")]
    secret: Annotated[str, doc("The secret that a client sends. It is not stored and is not shown again.")]


async def _api_keys(services: Parts, _: Ops) -> ApiKeys:
    """Raises AppError `no_api_keys` if callers are known by something else."""
    if not isinstance(services.authenticator, ApiKeys):
        raise app_error("no_api_keys")
    return services.authenticator


KeysDep = Annotated[ApiKeys, Depends(_api_keys)]


@keys_router.get("", responses=REFUSED)
async def list_api_keys(services: Parts, _: KeysDep, paging: Paged, *, user: OfUser = None) -> Page[OpsKey]:
    """Lists the API keys of all users. Includes revoked and expired ones. Needs the scope `ops`, and AUTH=api_key."""
    found = await services.read(list_keys, user, **paging.behind(_KEY_POSITION, "after"))
    return paging.page([_shown_key(key, services.clock()) for key in found], lambda key: key.id)


@keys_router.post("", status_code=201, responses=problems("forbidden", "no_api_keys", "beyond_own_scopes", "key_made"))
async def create_api_key(body: KeyToMake, client: Client, _: KeysDep, ops: Ops) -> OpsNewKey:
    """Creates an API key, and shows its secret this once. The key can have only scopes that the caller has. One for
    another user, which reads what that user said, also needs `ops:content`. Needs the scope `ops`, and AUTH=api_key.
    """
    _refuse_more_than(ops, Identity(body.user, frozenset(body.scopes)))
    now = client.services.clock()
    if body.expires_at is not None and body.expires_at <= now:
        raise InvalidRequest("`expires_at` has to be later than now.")
    of = body.user, client.id_of("key", body) or new_id("key", now)
    new_key = await client.services.database.transact(
        create_key, *of, by=ops, scopes=body.scopes, name=body.name, expires_at=body.expires_at
    )
    return OpsNewKey(_shown_key(new_key.key, now), new_key.secret)


@keys_router.post("/{key_id}/rotate", status_code=201, responses=REFUSED_TO_ROTATE)
async def rotate_api_key(
    key_id: KeyId, services: Parts, keys: KeysDep, ops: Ops, body: KeyRotation | None = None
) -> OpsNewKey:
    """Replaces an API key by a new one like it. The old key works for `overlap_s` more seconds. The rules of
    `POST /ops/keys` apply. Needs the scope `ops`, and AUTH=api_key.
    """
    now, overlap = services.clock(), timedelta(seconds=(body or KeyRotation()).overlap_s)
    async with services.database.transaction() as connection:
        old = await lock_key(connection, key_id)
        _refuse_more_than(ops, old.identity)
        new_key = await rotate_key(connection, old, by=ops, overlap=overlap, now=now)
    keys.forget(key_id)
    return OpsNewKey(_shown_key(new_key.key, now), new_key.secret)


@keys_router.delete("/{key_id}", status_code=204, responses=REFUSED)
async def revoke_api_key(key_id: KeyId, services: Parts, keys: KeysDep, operator: Ops) -> None:
    """Revokes an API key. Every process refuses it within a second. Needs the scope `ops`, and AUTH=api_key."""
    await services.database.transact(revoke_key, key_id, by=operator)
    keys.forget(key_id)


def _refuse_more_than(own: Identity, other: Identity) -> None:
    """Groups count too: they decide on approvals, which operators do not."""
    scopes = other.scopes if other.user == own.user else other.scopes | {"ops:content"}
    lacks = (scopes - own.scopes, other.groups - own.groups, other.roles - own.roles)
    if missing := [name for names in lacks for name in sorted(names)]:
        raise app_error("beyond_own_scopes", missing=", ".join(missing))


def _shown_key(key: ApiKey, now: datetime) -> OpsKey:
    return OpsKey(user=key.owner, works=key.works(now), **{name: getattr(key, name) for name in _OF_KEY})


@dataclass(frozen=True, slots=True)
class ShownLimits:
    """The limits of a user."""

    user: Annotated[str, doc("The user to whom the limits apply.")]
    own: Annotated[LimitsToSet, doc("The limits that operators set for this user; null is the setting.")]
    in_force: Annotated[LimitsToSet, doc("The limits in force: the user's own, else the settings. 0 is no limit.")]


@dataclass(frozen=True, slots=True)
class OpsUser:
    """A user, with their data and limits."""

    overview: Annotated[UserOverview, doc("The user's sessions, keys and usage of today.")]
    limits: Annotated[ShownLimits, doc("The user's limits.")]


@router.get("", responses=problems("forbidden"))
async def list_all_users(services: Parts, _: Ops, paging: Paged) -> Page[OpsUser]:
    """Lists all users who have a session, a key, usage or limits. Ordered by name. Needs the scope `ops`."""
    async with services.database.read_only() as connection:
        found = await list_users(connection, **paging.behind(BY_NAME, "after"), now=services.clock())
        own = await load_limits(connection, [each.user for each in found])
    users = [OpsUser(each, _shown_limits(services, each.user, own.get(each.user, NO_OWN))) for each in found]
    return paging.page(users, lambda each: each.overview.user)


@router.get("/{user:path}/limits", responses=problems("forbidden"))
async def get_user_limits(user: UserName, services: Parts, _: Ops) -> ShownLimits:
    """Shows the limits of a user. Needs the scope `ops`."""
    return _shown_limits(services, user, (await services.read(load_limits, [user])).get(user, NO_OWN))


@router.put("/{user:path}/limits", responses=problems("forbidden", "price_missing"))
async def set_user_limits(user: UserName, body: LimitsToSet, services: Parts, operator: Ops) -> ShownLimits:
    """Sets the limits of a user, in place of those in the settings. Sets all five: what is null or left out is as in
    the settings. In force in every process within seconds. Needs the scope `ops`.
    """
    known = (models for each in services.agents.known.values() for models in (each.models, *each.others.values()))
    models = [model for each in known for model in (each.main, each.small)]
    unpriced = sorted({*services.long_term.unpriced, *(name for model in models for name in model.unpriced)})
    if body.cost_per_day and unpriced:
        raise app_error("price_missing", models=", ".join(unpriced))
    cost = None if body.cost_per_day is None else Decimal(str(body.cost_per_day))
    return await _set(services, user, OwnLimits(**{**body.model_dump(), "cost_per_day": cost}), operator)


@router.delete("/{user:path}/limits", responses=problems("forbidden"))
async def lift_user_limits(user: UserName, services: Parts, operator: Ops) -> ShownLimits:
    """Removes the limits of a user, so that those in the settings apply. Needs the scope `ops`."""
    return await _set(services, user, NO_OWN, operator)


@router.get("/{user:path}/export", response_class=StreamingResponse, responses=EXPORT)
async def export_any_user(user: UserName, services: Parts, operator: Ops) -> StreamingResponse:
    """Exports all that is stored about a user, as `segue export` does. Each line is `{"table": …, "row": …}`; hashes of
    secrets are left out. Needs the scopes `ops` and `ops:content`, since it has what was said.
    """
    require_content(operator)
    await _check_exists(services, user)
    await services.database.transact(record_act, operator, "export_user", details={"user": user})
    return export_of(services, user)


@router.delete("/{user:path}", responses=problems("forbidden", "not_confirmed", "user_not_found"))
async def erase_any_user(user: UserName, services: Parts, operator: Ops, confirm: ConfirmedUser) -> ErasedRows:
    """Erases all that is stored about a user, API keys too, as `segue erase` does. Also ends logins at MCP servers. It
    cannot be undone. If the request is cut off, repeat it to finish. Needs the scope `ops`.
    """
    if confirm != user:
        raise app_error("not_confirmed")
    await _check_exists(services, user)
    await services.database.transact(record_act, operator, "erase_user", details={"user": user})
    return await erase_all(services, user)


async def _check_exists(services: Services, user: str) -> None:
    if not await has_rows(services.database, user):
        raise NotFound("user")


async def _set(services: Services, user: str, own: OwnLimits, operator: Ops) -> ShownLimits:
    await services.database.transact(set_limits, user, own, by=operator)
    await services.limits.look()
    return _shown_limits(services, user, own)


def _shown_limits(services: Services, user: str, own: OwnLimits) -> ShownLimits:
    limits = own, own.over(services.limits.usual)
    return ShownLimits(user, *(LimitsToSet.model_validate(each, from_attributes=True, strict=False) for each in limits))
