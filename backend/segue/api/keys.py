"""Routes for operators: the API keys of all users, where callers are known by them. HTTP only.

No answer but that of making a key has a secret, and no list has a digest.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated

from fastapi import Depends, Query, Response

from segue.api.deps import KeyId, Ops, ServicesDep, router_of
from segue.api.problem_codes import problems
from segue.api.schemas import Cursor, KeyRotation, KeyToMake, Limit, Page, decode_cursor, id_position, page
from segue.domain.doc import doc
from segue.domain.errors import AppError, InvalidRequest
from segue.domain.identity import MAX_USER_CHARS, Identity
from segue.identity.api_keys import ApiKey, ApiKeys, NewKey, create_key, list_keys, lock_key, revoke_key, rotate_key
from segue.identity.audit import record_act

router = router_of("ops", "/ops/keys")

REFUSED = problems("forbidden", "no_api_keys")
REFUSED_TO_MAKE = problems("forbidden", "no_api_keys", "beyond_own_scopes")
_POSITION = id_position("key")


@dataclass(frozen=True, slots=True)
class OpsKey:
    """An API key, without its secret."""

    id: Annotated[str, doc("Begins with `key_`.")]
    user: Annotated[str, doc("Whose it is.")]
    name: Annotated[str | None, doc("What it is for.")]
    scopes: Annotated[list[str], doc("What else it may do.")]
    groups: Annotated[list[str], doc("The groups that its user is in with it.")]
    works: Annotated[bool, doc("Whether it is let in now.")]
    created_at: Annotated[datetime, doc("When it was made.")]
    last_used_at: Annotated[datetime | None, doc("When it last came, to the minute.")]
    expires_at: Annotated[datetime | None, doc("When it ends; null for never.")]
    revoked_at: Annotated[datetime | None, doc("When it was revoked.")]


@dataclass(frozen=True, slots=True)
class OpsNewKey:
    """An API key that was just made."""

    key: Annotated[OpsKey, doc("As in the list.")]
    secret: Annotated[str, doc("What a client sends. It is not stored and is not shown again.")]


async def _api_keys(services: ServicesDep, _: Ops) -> ApiKeys:
    """Raises AppError `no_api_keys` if callers are known by something else."""
    if not isinstance(services.authenticator, ApiKeys):
        detail = "Callers are known by other means than API keys here: AUTH is `none` or `jwt`."
        raise AppError("no_api_keys", status=409, title="There are no API keys", detail=detail)
    return services.authenticator


KeysDep = Annotated[ApiKeys, Depends(_api_keys)]


@router.get("", responses=REFUSED)
async def list_api_keys(
    services: ServicesDep,
    _: KeysDep,
    *,
    user: Annotated[
        str | None, Query(max_length=MAX_USER_CHARS, pattern="^[^\x00]*$", description="Only those of this user.")
    ] = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Page[OpsKey]:
    """Lists the API keys of all users. Also those that work no more. For the scope `ops`, with AUTH=api_key."""
    after = decode_cursor(cursor, _POSITION)
    async with services.database.read_only() as connection:
        found = await list_keys(connection, user, after=after, limit=limit + 1)
    return page([_shown(key, services.clock()) for key in found], limit, lambda key: key.id)


@router.post("", status_code=201, responses=REFUSED_TO_MAKE)
async def create_api_key(
    body: KeyToMake,
    response: Response,
    services: ServicesDep,
    _: KeysDep,
    operator: Ops,
) -> OpsNewKey:
    """Makes an API key, and shows its secret this once. With no scope that the caller has not, and for another user
    only with `ops:content`: who has a user's key reads what that user said. For the scope `ops`, with AUTH=api_key.
    """
    _refuse_more_than(operator, body.user, body.scopes)
    now = services.clock()
    if body.expires_at is not None and body.expires_at <= now:
        detail = "`expires_at` has to be later than now."
        raise InvalidRequest(detail)
    async with services.database.transaction() as connection:
        made = await create_key(
            connection, body.user, scopes=body.scopes, name=body.name, now=now, expires_at=body.expires_at
        )
        details = {"key_id": made.key.id, "user": body.user, "scopes": made.key.scopes}
        await record_act(connection, operator, "create_key", details=details)
    return _told(made, now, response)


@router.post("/{key_id}/rotate", status_code=201, responses=REFUSED_TO_MAKE)
async def rotate_api_key(
    key_id: KeyId,
    response: Response,
    services: ServicesDep,
    keys: KeysDep,
    operator: Ops,
    body: KeyRotation | None = None,
) -> OpsNewKey:
    """Makes an API key like one that works, which ends after a while. What may be made is as for a new one. For the
    scope `ops`, with AUTH=api_key.
    """
    now, overlap = services.clock(), timedelta(seconds=(body or KeyRotation()).overlap_s)
    async with services.database.transaction() as connection:
        old = await lock_key(connection, key_id)
        _refuse_more_than(operator, old.owner, old.scopes)
        made = await rotate_key(connection, old, overlap=overlap, now=now)
        details = {"key_id": key_id, "user": old.owner, "by": made.key.id}
        await record_act(connection, operator, "rotate_key", details=details)
    keys.forget(key_id)
    return _told(made, now, response)


@router.delete("/{key_id}", status_code=204, responses=REFUSED)
async def revoke_api_key(key_id: KeyId, services: ServicesDep, keys: KeysDep, operator: Ops) -> None:
    """Revokes an API key. It is refused here at once, and by other processes within a second. For the scope `ops`,
    with AUTH=api_key.
    """
    async with services.database.transaction() as connection:
        revoked = await revoke_key(connection, key_id)
        details = {"key_id": key_id, "user": revoked.owner}
        await record_act(connection, operator, "revoke_key", details=details)
    keys.forget(key_id)


def _refuse_more_than(identity: Identity, user: str, scopes: Sequence[str]) -> None:
    needed = {*scopes} if user == identity.user else {*scopes, "ops:content"}
    if missing := sorted(needed - identity.scopes):
        detail = f"Your key lacks {', '.join(missing)}: it can make no key that may do more than it may itself."
        raise AppError("beyond_own_scopes", status=403, title="More than your own scopes", detail=detail)


def _shown(key: ApiKey, now: datetime) -> OpsKey:
    taken = ("id", "name", "scopes", "groups", "created_at", "last_used_at", "expires_at", "revoked_at")
    return OpsKey(user=key.owner, works=key.works(now), **{name: getattr(key, name) for name in taken})


def _told(made: NewKey, now: datetime, response: Response) -> OpsNewKey:
    response.headers["Cache-Control"] = "no-store"
    return OpsNewKey(_shown(made.key, now), made.secret)
