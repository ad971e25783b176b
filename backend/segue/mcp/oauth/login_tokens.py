"""Users' tokens at MCP servers: sealed, and renewed by one process at a time. Owns `mcp_logins` and `mcp_clients`.

Each sealed text names its owner and server. No transaction is open while a server is asked. Times are the database's.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final, TypeVar

from cryptography.fernet import Fernet, InvalidToken, MultiFernet
from mcp.shared.auth import OAuthMetadata, OAuthToken
from pydantic import Field, ValidationError
from sqlalchemy import ColumnElement, Delete, Insert, Table, Update, case, delete, func, or_, select, update
from sqlalchemy.dialects.postgresql import insert

from segue.db.engine import Connection, Database
from segue.db.models import mcp_clients, mcp_logins
from segue.domain.ids import Clock, new_id
from segue.log import log
from segue.mcp.mcp_config import McpServerConfig
from segue.mcp.oauth import authorization_server
from segue.mcp.oauth.authorization_server import OAuthClient, OAuthFault, SealedValue, TokenRefused, TokenSource

Sealed = TypeVar("Sealed", bound=SealedValue)
SETTLED_S: Final = 5.0
_TOKENS: Final = {"access_token", "refresh_token"}
_LONGEST_S: Final = 365 * 24 * 3600
REFRESH_LASTS: Final = timedelta(seconds=40)
_COLUMNS: Final = (
    *(mcp_logins.c[name] for name in ("owner", "server", "id", "version", "sealed", "scope", "created_at")),
    func.coalesce(mcp_logins.c.expires_at < func.now() + timedelta(seconds=30), False).label("is_stale"),
    func.coalesce(mcp_logins.c.refreshing_until > func.now(), False).label("is_refreshing"),
)


class Seal:
    """The first key seals, each of them opens: a new key is put before the old ones."""

    def __init__(self, keys: Sequence[str]) -> None:
        self._keys = MultiFernet([Fernet(key) for key in keys])

    def seal(self, value: SealedValue) -> str:
        return self.seal_text(value.model_dump_json())

    def seal_text(self, text: str) -> str:
        return self._keys.encrypt(text.encode()).decode()

    def open(self, kind: type[Sealed], sealed: str) -> Sealed | None:
        """Returns None if no key opens it, or if another release has written it."""
        text = self.open_text(sealed)
        try:
            return kind.model_validate_json(text) if text is not None else None
        except ValidationError:
            return None

    def open_text(self, sealed: str) -> bytes | None:
        """Returns None if no key opens it."""
        try:
            return self._keys.decrypt(sealed)
        except InvalidToken:
            return None


class LoginGrant(SealedValue):
    """A user's tokens at a server. Encrypted in its row, and read for that user and server only."""

    owner: str
    server: str
    source: TokenSource
    access_token: str = Field(repr=False)
    refresh_token: str | None = Field(repr=False)


class LoginAttempt(SealedValue):
    """A login that was begun, with all that is needed to finish it."""

    owner: str
    server: str
    source: TokenSource
    metadata: OAuthMetadata
    verifier: str = Field(repr=False)
    redirect_uri: str
    scope: str | None


class SealedClient(SealedValue):
    """Segue as a client of an authorization server, for one server of mcp.json."""

    server: str
    issuer: str
    client: OAuthClient


@dataclass(frozen=True, slots=True)
class Access:
    """A token of one user at one server. `login` is the id of the login that it belongs to."""

    login: str
    token: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class LoginRow:
    """`id` is that of the login, `version` counts its tokens. `is_stale`: its token has expired, or will at once."""

    owner: str
    server: str
    id: str
    version: int
    sealed: str
    scope: str | None
    created_at: datetime
    is_stale: bool
    is_refreshing: bool


Servers = Callable[[], Mapping[str, McpServerConfig]]


class Grants:
    """`servers` are those of mcp.json that ask for a login."""

    def __init__(self, database: Database, seal: Seal, servers: Servers, clock: Clock) -> None:
        self._database = database
        self._seal = seal
        self._servers = servers
        self._clock = clock
        self._refreshing: set[asyncio.Task[Access | None]] = set()

    async def access(self, owner: str, server: str) -> Access | None:
        """Returns a valid token; None if the user has to log in. Raises OAuthFault if it cannot be renewed now."""
        row = await self.row(owner, server)
        if row is None or (grant := self.opened(row)) is None:
            return None
        return await self._renew(row, grant) if row.is_stale else Access(row.id, grant.access_token)

    async def renewed(self, owner: str, server: str, refused: Access) -> Access | None:
        """Returns another token of the same login than the refused one, or None. Raises OAuthFault as `access` does."""
        row = await self.row(owner, server)
        if row is None or row.id != refused.login or (grant := self.opened(row)) is None:
            return None
        if grant.access_token != refused.token:
            return Access(row.id, grant.access_token)
        return await self._renew(row, grant)

    async def row(self, owner: str, server: str) -> LoginRow | None:
        return next((row for row in await self.rows(owner) if row.server == server), None)

    async def rows(self, owner: str) -> list[LoginRow]:
        """Returns a user's rows, also those that no longer open."""
        mine = select(*_COLUMNS).where(mcp_logins.c.owner == owner).order_by(mcp_logins.c.server)
        async with self._database.read_only() as connection:
            return [LoginRow(**row._asdict()) for row in await connection.execute(mine)]

    def opened(self, row: LoginRow) -> LoginGrant | None:
        """Returns None if it belongs to another user, server or address, or was sealed with a lost key."""
        grant = self._seal.open(LoginGrant, row.sealed)
        config = self._servers().get(row.server)
        if grant is None or config is None or (grant.owner, grant.server) != (row.owner, row.server):
            return None
        is_trusted = config.oauth is None or config.oauth.takes(grant.source.issuer)
        return grant if grant.source.url == config.url and is_trusted else None

    async def save(self, attempt: LoginAttempt, got: OAuthToken) -> None:
        """Stores a new login in the place of any other."""
        place = {"owner": attempt.owner, "server": attempt.server}
        grant = LoginGrant(**place, source=attempt.source, **got.model_dump(include=_TOKENS))
        row = {"id": new_id("login", self._clock()), "version": 1, "created_at": func.now()}
        row |= {**self._kept(grant, got), "scope": got.scope or attempt.scope}
        statement = insert(mcp_logins).values(place | row)
        changed = {name: statement.excluded[name] for name in row}
        await self._change(statement.on_conflict_do_update(index_elements=["owner", "server"], set_=changed))

    def _kept(self, grant: LoginGrant, got: OAuthToken) -> dict[str, Any]:
        lasts_s, sealed = got.expires_in, self._seal.seal(grant)
        expires_at = None if lasts_s is None else func.now() + timedelta(seconds=min(max(lasts_s, 0), _LONGEST_S))
        return {"sealed": sealed, "scope": got.scope, "expires_at": expires_at, "refreshing_until": None}

    async def end(self, owner: str, server: str) -> bool:
        """Deletes a login, then tells its authorization server. Returns False if there was none."""
        mine = delete(mcp_logins).where(mcp_logins.c.owner == owner, mcp_logins.c.server == server)
        async with self._database.transaction() as connection:
            ended = (await connection.execute(mine.returning(*_COLUMNS))).one_or_none()
        if ended is not None and (grant := self.opened(LoginRow(**ended._asdict()))) is not None:
            await self._revoke(grant)
        return ended is not None

    async def settled(self) -> None:
        """Returns when no token is being renewed here, or after SETTLED_S."""
        if self._refreshing:
            await asyncio.wait(set(self._refreshing), timeout=SETTLED_S)

    async def forget(self, owner: str, server: str, login: str) -> None:
        """Deletes a login that the server does not take. One that came later stays."""
        columns = mcp_logins.c
        mine = (columns.owner == owner, columns.server == server, columns.id == login)
        await self._change(delete(mcp_logins).where(*mine))

    async def forget_client(self, server: str, source: TokenSource, fault: Exception) -> None:
        """Lets Segue register anew at a server that no longer knows it."""
        if isinstance(fault, TokenRefused) and str(fault) == "invalid_client":
            known = (mcp_clients.c.server == server, mcp_clients.c.issuer == source.issuer)
            await self._change(delete(mcp_clients).where(*known))

    async def _renew(self, row: LoginRow, grant: LoginGrant) -> Access | None:
        """One process at a time asks; the others wait for its tokens."""
        if grant.refresh_token is None:
            await self._forget(row)
            return None
        is_free = or_(mcp_logins.c.refreshing_until.is_(None), mcp_logins.c.refreshing_until < func.now())
        taken = update(mcp_logins).where(*_as_read(row), is_free)
        if not await self._change(taken.values(refreshing_until=func.now() + REFRESH_LASTS)):
            return await self._await_refresh(row)
        # It goes on if the call is cancelled: the old refresh token may be used up, and the new one is to be kept.
        refreshing = asyncio.create_task(self._refresh(row, grant, grant.refresh_token))
        self._refreshing.add(refreshing)
        refreshing.add_done_callback(self._refreshing.discard)
        # In case the waiting call is gone: asyncio would log an error that nothing has retrieved.
        refreshing.add_done_callback(lambda task: None if task.cancelled() else task.exception())
        return await asyncio.shield(refreshing)

    async def _refresh(self, row: LoginRow, grant: LoginGrant, refresh_token: str) -> Access | None:
        try:
            async with authorization_server.asking(self._config(row.server)) as asker:
                got = await authorization_server.refresh(asker, grant.source, refresh_token, row.scope)
        except TokenRefused as refused:
            log.info("mcp_login_over", server=row.server, reason=str(refused))
            await self._forget(row)
            await self.forget_client(row.server, grant.source, refused)
            return None
        except OAuthFault as fault:
            log.warning("mcp_login_not_renewed", server=row.server, reason=str(fault))
            await self._change(update(mcp_logins).where(*_as_read(row)).values(refreshing_until=None))
            raise
        renewed = grant.model_copy(update=got.model_dump(include=_TOKENS))
        values = {"version": row.version + 1, **self._kept(renewed, got)}
        if await self._change(update(mcp_logins).where(*_as_read(row)).values(values)):
            return Access(row.id, got.access_token)
        await self._revoke(renewed)  # the user has logged out, or in anew, meanwhile
        return None

    async def _await_refresh(self, row: LoginRow) -> Access | None:
        """A process that dies while it asks holds the others up until its time is over."""
        while True:
            found = await self.row(row.owner, row.server)
            if found is None or found.id != row.id or (grant := self.opened(found)) is None:
                return None
            if found.version != row.version:
                return Access(found.id, grant.access_token)
            if not found.is_refreshing:
                return await self._renew(found, grant)
            await asyncio.sleep(0.2)

    def _config(self, server: str) -> McpServerConfig:
        if (config := self._servers().get(server)) is None:
            raise OAuthFault("mcp.json has no such server any more")
        return config

    async def _revoke(self, grant: LoginGrant) -> None:
        """Does nothing for a server that has left mcp.json: its address is no longer known."""
        if grant.server not in self._servers():
            return
        async with authorization_server.asking(self._config(grant.server)) as asker:
            for kind in ("refresh_token", "access_token"):
                if (token := getattr(grant, kind)) is not None:
                    await authorization_server.revoke(asker, grant.source, token, kind)

    async def _forget(self, row: LoginRow) -> None:
        """Deletes a login, unless it or its tokens are newer."""
        await self._change(delete(mcp_logins).where(*_as_read(row)))

    async def _change(self, statement: Insert | Update | Delete) -> bool:
        """Returns whether there was a row to change."""
        async with self._database.transaction() as connection:
            return (await connection.execute(statement)).rowcount > 0


def _as_read(row: LoginRow) -> list[ColumnElement[bool]]:
    return [mcp_logins.c[name] == getattr(row, name) for name in ("owner", "server", "id", "version")]


async def reseal(connection: Connection, seal: Seal, table: Table) -> int:
    """Seals all rows with the first key: the others are then needed no more. Returns how many they were. Each is a
    statement of its own, and leaves a row that was changed meanwhile, or that no key opens.
    """
    columns, changed = (*table.primary_key, table.c.sealed), 0
    for row in (await connection.execute(select(*columns))).all():
        if (text := seal.open_text(row.sealed)) is not None:
            as_read = [column == value for column, value in zip(columns, row, strict=True)]
            anew = update(table).where(*as_read).values(sealed=seal.seal_text(text.decode()))
            changed += (await connection.execute(anew)).rowcount
    return changed


async def load_client(connection: Connection, server: str, issuer: str, redirect_uri: str) -> str | None:
    clients = mcp_clients.c
    this = (clients.server == server, clients.issuer == issuer, clients.redirect_uri == redirect_uri)
    return await connection.scalar(select(clients.sealed).where(*this))


async def save_client(
    connection: Connection, server: str, issuer: str, redirect_uri: str, sealed: str, replaced: str | None
) -> str:
    """Returns the stored client: another process's if it was quicker to replace the one that both had found."""
    place = {"server": server, "issuer": issuer, "redirect_uri": redirect_uri}
    made = insert(mcp_clients).values(**place, sealed=sealed, created_at=func.now())
    changed = {"sealed": case((mcp_clients.c.sealed == replaced, made.excluded.sealed), else_=mcp_clients.c.sealed)}
    stored = made.on_conflict_do_update(index_elements=list(place), set_=changed).returning(mcp_clients.c.sealed)
    kept: str = (await connection.execute(stored)).scalar_one()
    return kept
