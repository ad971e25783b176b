"""Identifies a caller by a credential: an Authenticator for each setting of AUTH, here `Anonymous` and that for API
keys. Owns the tables `api_keys` and `stream_tokens`. Knows nothing of HTTP.

A key is `segue_<id>_<secret>`: the id finds the row, the secret is compared in constant time. A process caches a row
for CHECK_EVERY_S, so a revoked key is refused everywhere after that time. A stream token reads the events of one turn
for a minute, for a browser's EventSource, which cannot send headers. Its times are the database's.

A signed link lets one person decide on one version of one plan without a key. Nothing of it is stored. It is signed
with the digest of that person's key and the webhook's secret: it ends with the key, and neither a reader of the
database nor the receiver of the webhook can forge one. A decision uses it up, because the plan gets a new version.
"""

import base64
import hashlib
import hmac
import re
import secrets
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from operator import gt
from typing import Annotated, Any, Final, Protocol

from sqlalchemy import ColumnElement, Row, bindparam, delete, func, insert, or_, select, update
from sqlalchemy.dialects.postgresql import distinct_on

from segue.db.engine import Connection, Database
from segue.db.models import api_keys, stream_tokens
from segue.db.outages import StorageUnavailable
from segue.db.rows import if_given, made_before, readable, reader
from segue.domain.errors import AppError, Unreadable, app_error, existing
from segue.domain.field_types import doc
from segue.domain.identity import LOCAL_USER, SCOPES, Identity, Operator
from segue.domain.ids import digest_of_secret, new_id
from segue.users.audit import record_act

TOKEN_LASTS = timedelta(minutes=1)
CHECK_EVERY_S = 1.0
MARK_USED_EVERY = timedelta(minutes=1)
MAX_CACHED = 10_000

_KEY = re.compile(r"segue_([0-9a-hjkmnp-tv-z]{26})_([0-9a-f]{64})")
_NO_DIGEST = "0" * 64
APPROVE_PATH: Final = "/approve/"
MAX_PEOPLE: Final = 20  # with a link in one event, which has to stay below 20 kB
_LINK_TOKEN: Final = re.compile(r"(([0-9a-z]{26})\.([0-9a-z]{26})\.([0-9]{1,9})\.([0-9]{1,12}))\.([\w-]{43})", re.ASCII)


class Unauthorized(AppError):
    """The client always gets the same text; `reason` is only for the log."""

    def __init__(self, reason: str) -> None:
        detail = "Send a valid key or token as `Authorization: Bearer …` or as `X-API-Key: …`."
        super().__init__("unauthorized", status=401, title="Not authenticated", detail=detail)
        self.reason = reason


class Authenticator(Protocol):
    async def identify(self, credential: str | None, *, for_metrics: bool = False) -> Identity:
        """Raises Unauthorized, or AppError with status 503 if the caller cannot be identified at the moment."""


class Anonymous:
    """AUTH=none: every caller is the one local user, with all scopes but that of speaking for others."""

    async def identify(self, credential: str | None, **_: bool) -> Identity:  # noqa: ARG002 (every caller is the same)
        return Identity(LOCAL_USER, frozenset(SCOPES) - {"act_as"}, is_everybody=True)


@dataclass(frozen=True, slots=True)
class ApiKey:
    """The row of a key: its digest, not the key. One that `is_unreadable` is refused: its rights are not known."""

    id: str
    owner: str
    name: str | None
    scopes: list[str]
    digest: str
    created_at: datetime
    last_used_at: datetime | None
    revoked_at: datetime | None
    expires_at: datetime | None
    rotated_to: str | None
    groups: list[str]
    roles: list[str]
    is_unreadable: bool = False

    @property
    def identity(self) -> Identity:
        return Identity(self.owner, frozenset(self.scopes), groups=frozenset(self.groups), roles=frozenset(self.roles))

    def works(self, now: datetime) -> bool:
        is_over = self.expires_at is not None and self.expires_at <= now
        return self.revoked_at is None and not is_over and not self.is_unreadable


@dataclass(frozen=True, slots=True)
class NewKey:
    """`secret` is the key itself, which is not stored and cannot be shown again."""

    key: ApiKey
    secret: str = field(repr=False)


async def create_key(
    connection: Connection,
    owner: str,
    key_id: str,
    *,
    by: Operator | None,
    scopes: Iterable[str],
    name: str | None,
    expires_at: datetime | None = None,
    groups: Iterable[str] = (),
    roles: Iterable[str] = (),
) -> NewKey:
    """The audit has it as done `by` this operator, unless that is None. Raises AppError `key_made` if there is a key of
    this id, whose secret cannot be shown again, and `idempotency_key_reused`.
    """
    if await made_before(connection, api_keys, None, key_id) is not None:
        raise app_error("key_made", extra={"key_id": key_id})
    secret = secrets.token_hex(32)
    key = {"id": key_id, "owner": owner, "name": name, "digest": digest_of_secret(secret), "expires_at": expires_at}
    may = {"scopes": sorted(set(scopes)), "groups": sorted(set(groups)), "roles": sorted(set(roles))}
    stored = insert(api_keys).values({**key, **may, "created_at": func.now()}).returning(*api_keys.c)
    made = _api_key((await connection.execute(stored)).one())
    if by is not None:
        await record_act(connection, by, "create_key", details={"key_id": key_id, "user": owner, "scopes": made.scopes})
    return NewKey(made, f"segue_{key_id.removeprefix('key_')}_{secret}")


async def list_keys(
    connection: Connection, owner: str | None, *, after: str | None = None, limit: int | None = None
) -> list[ApiKey]:
    """Returns keys in the order of their ids, those after one; of all owners if none is given."""
    conditions = if_given(api_keys.c.owner, owner), if_given(api_keys.c.id, after, gt)
    statement = select(api_keys).where(*conditions).order_by(api_keys.c.id).limit(limit)
    return [_api_key(row) for row in await connection.execute(statement)]


async def lock_key(connection: Connection, key_id: str) -> ApiKey:
    """Raises NotFound for a key that no longer works, Unreadable if its rights are not known."""
    row = existing("key", (await connection.execute(_VALID.with_for_update(), {"key_id": key_id})).one_or_none())
    if (key := _api_key(row)).is_unreadable:
        raise Unreadable("key")
    return key


async def rotate_key(connection: Connection, old: ApiKey, *, by: Operator, overlap: timedelta, now: datetime) -> NewKey:
    """Returns a key like a locked one: of its user, rights, name and term. The old key ends after the overlap, and the
    audit has it. Raises AppError `key_rotated` for one that was rotated before: the end that it has is not its term.
    """
    if old.rotated_to is not None:
        raise app_error("key_rotated", old=old)
    expires_at = None if old.expires_at is None else now + (old.expires_at - old.created_at)
    may = {"scopes": old.scopes, "groups": old.groups, "roles": old.roles}
    key_id = new_id("key", now)
    new_key = await create_key(connection, old.owner, key_id, by=None, **may, name=old.name, expires_at=expires_at)
    ends = {"expires_at": func.least(api_keys.c.expires_at, func.now() + overlap), "rotated_to": new_key.key.id}
    await connection.execute(update(api_keys).where(api_keys.c.id == old.id).values(ends))
    await record_act(connection, by, "rotate_key", details={"key_id": old.id, "user": old.owner, "by": new_key.key.id})
    return new_key


async def revoke_key(connection: Connection, key_id: str, *, by: Operator) -> ApiKey:
    """The audit has it. Raises NotFound for an unknown key and for one that was revoked before."""
    is_it = (api_keys.c.id == key_id, api_keys.c.revoked_at.is_(None))
    revoked = update(api_keys).where(*is_it).values(revoked_at=func.now()).returning(*api_keys.c)
    key = _api_key(existing("key", (await connection.execute(revoked)).one_or_none()))
    await record_act(connection, by, "revoke_key", details={"key_id": key_id, "user": key.owner})
    return key


class ApiKeys:
    """The Authenticator for API keys."""

    def __init__(self, database: Database, clock: Callable[[], datetime]) -> None:
        self._database = database
        self._clock = clock
        self._cached: dict[str, tuple[float, ApiKey]] = {}

    async def identify(self, credential: str | None, *, for_metrics: bool = False) -> Identity:
        parts = _KEY.fullmatch(credential) if credential else None
        if parts is None:
            raise Unauthorized("no_key" if credential is None else "not_a_key")
        key_id, is_away = f"key_{parts[1]}", False
        try:
            key = await self._find(key_id)
        except StorageUnavailable:  # which metrics have to tell: to a key that was read before
            key, is_away = self._cached.get(key_id, (0.0, None))[1], True
            if key is None or not for_metrics:
                raise
        is_right = hmac.compare_digest(key.digest if key else _NO_DIGEST, digest_of_secret(parts[2]))
        now = self._clock()
        if key is None or not is_right or not key.works(now):
            raise Unauthorized("wrong_key")
        if not is_away and (key.last_used_at is None or now - key.last_used_at >= MARK_USED_EVERY):
            used = await self._database.write(Connection.execute, _USED, {"key_id": key.id, "used_at": now})
            if (row := used.one_or_none()) is not None:
                self._cache(row)
        return key.identity

    def forget(self, key_id: str) -> None:
        """Makes the next use of the key read its row anew."""
        self._cached.pop(key_id, None)

    async def _find(self, key_id: str) -> ApiKey | None:
        read_at, key = self._cached.get(key_id, (float("-inf"), None))
        if time.monotonic() - read_at < CHECK_EVERY_S:
            return key
        row = (await self._database.read(Connection.execute, _VALID, {"key_id": key_id})).one_or_none()
        self._cached.pop(key_id, None)
        if row is None:
            return None
        if len(self._cached) >= MAX_CACHED:
            del self._cached[next(iter(self._cached))]
        return self._cache(row)

    def _cache(self, row: Row[Any]) -> ApiKey:
        key = _api_key(row)
        self._cached[key.id] = time.monotonic(), key
        return key


_WORDS = ("scopes", "groups", "roles")


def _api_key(row: Row[Any]) -> ApiKey:
    columns = {column.name: getattr(row, column.name) for column in api_keys.c}
    read = {name: readable(reader(list[str]), columns[name], "api_keys", row.id) for name in _WORDS}
    known = {name: words or [] for name, words in read.items()}
    return ApiKey(**{**columns, **known}, is_unreadable=None in read.values())


_WORKS: tuple[ColumnElement[bool], ...] = (
    api_keys.c.revoked_at.is_(None),
    or_(api_keys.c.expires_at.is_(None), api_keys.c.expires_at > func.now()),
)
_IS_VALID = (api_keys.c.id == bindparam("key_id"), *_WORKS)
_VALID = select(api_keys).where(*_IS_VALID)
_USED = update(api_keys).where(*_IS_VALID).values(last_used_at=bindparam("used_at")).returning(*api_keys.c)


@dataclass(frozen=True, slots=True)
class StreamToken:
    """A token that opens the events of one turn without an API key."""

    token: Annotated[str, doc("The token, for `?token=` of this turn's events.")]
    expires_at: Annotated[datetime, doc("When the token expires: no stream can be opened with it after that.")]


async def create_token(connection: Connection, owner: str, turn_id: str) -> StreamToken:
    """Makes a token and deletes those that have expired. `owner` has to be that of the turn."""
    await connection.execute(delete(stream_tokens).where(stream_tokens.c.expires_at < func.now()))
    token = f"stream_{secrets.token_hex(32)}"
    row = {"digest": digest_of_secret(token), "owner": owner, "turn_id": turn_id}
    insertion = insert(stream_tokens).values(**row, expires_at=func.now() + TOKEN_LASTS)
    return StreamToken(token, (await connection.execute(insertion.returning(stream_tokens.c.expires_at))).scalar_one())


async def user_of_stream_token(connection: Connection, token: str, turn_id: str) -> str | None:
    """Returns the user, None for a token that is unknown, has expired or is for another turn."""
    is_it = (stream_tokens.c.digest == digest_of_secret(token), stream_tokens.c.turn_id == turn_id)
    valid = select(stream_tokens.c.owner).where(*is_it, stream_tokens.c.expires_at > func.now())
    return (await connection.execute(valid)).scalar_one_or_none()


@dataclass(frozen=True, slots=True)
class OpenedLink:
    """The content of a genuine link: who decides on which version of a plan. It may be too old."""

    identity: Identity
    plan_id: str
    version: int
    until: datetime


@dataclass(frozen=True, slots=True)
class ApprovalLinks:
    """Each of the `secrets` opens links, the first makes them: two while one is replaced, none without a webhook."""

    database: Database
    secrets: Sequence[bytes] = field(repr=False)
    base_url: str

    async def make(
        self, plan_id: str, version: int, until: datetime, *, group: str, but: Collection[str] = ()
    ) -> list[dict[str, Any]]:
        """Returns a link, as the webhook has it, for each user with a key of this group or role, apart from `but`."""
        of_group = or_(api_keys.c.groups.contains([group]), api_keys.c.roles.contains([group]))
        theirs = select(api_keys).where(of_group, api_keys.c.owner.not_in(but), *_WORKS)
        newest = theirs.ext(distinct_on(api_keys.c.owner)).order_by(api_keys.c.owner, api_keys.c.created_at.desc())
        found = list(map(_api_key, await self.database.read(Connection.execute, newest.limit(MAX_PEOPLE))))
        claims = f"{plan_id.removeprefix('plan_')}.{version}.{int(until.timestamp())}"
        links = ((key.owner, self._token(key, claims)) for key in found if not key.is_unreadable)
        return [{"user": owner, "url": f"{self.base_url}{APPROVE_PATH}{token}"} for owner, token in links]

    async def open(self, token: str) -> OpenedLink | None:
        """Returns the content of a link, None if it is not genuine or its person's key no longer works."""
        found = _LINK_TOKEN.fullmatch(token)
        if found is None:
            return None
        row = (await self.database.read(Connection.execute, _VALID, {"key_id": f"key_{found[2]}"})).one_or_none()
        key = None if row is None else _api_key(row)
        if key is None or key.is_unreadable:
            return None
        expected = (_signature(each, key, found[1]) for each in self.secrets)
        if not any(hmac.compare_digest(found[6], each) for each in expected):
            return None
        return OpenedLink(key.identity, f"plan_{found[3]}", int(found[4]), datetime.fromtimestamp(int(found[5]), UTC))

    def _token(self, key: ApiKey, claims: str) -> str:
        text = f"{key.id.removeprefix('key_')}.{claims}"
        return f"{text}.{_signature(self.secrets[0], key, text)}"


def _signature(secret: bytes, key: ApiKey, text: str) -> str:
    signed = hmac.new(secret, f"approve.{key.digest}.{text}".encode(), hashlib.sha256).digest()
    return base64.urlsafe_b64encode(signed).decode().rstrip("=")
