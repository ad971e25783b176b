"""The tokens of users at MCP servers: kept sealed, renewed by one process at a time, given to the user they are of.

What is sealed names its owner and server, so that a row cannot be read as that of another user. No transaction is open
while a server is asked. Knows nothing of how a login comes about.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

import structlog
from cryptography.fernet import Fernet, InvalidToken, MultiFernet
from mcp.shared.auth import OAuthMetadata, OAuthToken
from pydantic import Field, ValidationError

from segue.db.engine import Database
from segue.domain.ids import Clock, new_id
from segue.mcp.mcp_config import McpServerConfig
from segue.mcp.oauth import store
from segue.mcp.oauth.authorization_server import (
    OAuthClient,
    OAuthFault,
    SealedValue,
    TokenRefused,
    TokenSource,
    asking,
    refresh,
    revoke,
)
from segue.mcp.oauth.store import LoginRow

Sealed = TypeVar("Sealed", bound=SealedValue)
SETTLED_S: Final = 5.0
_LOOK_AGAIN_S: Final = 0.2
_LONGEST_S: Final = 365 * 24 * 3600

log = structlog.get_logger()


class Seal:
    """The first key seals, each of them opens: a new key is put before the old ones."""

    def __init__(self, keys: Sequence[str]) -> None:
        self._keys = MultiFernet([Fernet(key) for key in keys])

    def seal(self, value: SealedValue) -> str:
        return self.seal_text(value.model_dump_json())

    def seal_text(self, text: str) -> str:
        return self._keys.encrypt(text.encode()).decode()

    def open(self, kind: type[Sealed], sealed: str) -> Sealed | None:
        """Returns None for what no key opens, and for what another release has written."""
        text = self.open_text(sealed)
        try:
            return kind.model_validate_json(text) if text is not None else None
        except ValidationError:
            return None

    def open_text(self, sealed: str) -> bytes | None:
        """Returns None for what no key opens."""
        try:
            return self._keys.decrypt(sealed)
        except InvalidToken:
            return None


class LoginGrant(SealedValue):
    """What a user got at a server. Encrypted in its row, and read for that user and server only."""

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
    """What Segue is called at an authorization server, for one server of mcp.json."""

    server: str
    issuer: str
    client: OAuthClient


@dataclass(frozen=True, slots=True)
class Access:
    """A token of one user at one server. `login` is the id of the login that it belongs to."""

    login: str
    token: str = field(repr=False)


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
        """Returns a token that has not expired; None if the user has to log in. Raises OAuthFault if the token cannot
        be renewed now.
        """
        row = await self.row(owner, server)
        if row is None or (grant := self.opened(row)) is None:
            return None
        return await self._renew(row, grant) if row.is_stale else Access(row.id, grant.access_token)

    async def renewed(self, owner: str, server: str, refused: Access) -> Access | None:
        """Returns another token than the one that the server has refused, of the same login; None if there is none.
        Raises OAuthFault as `access` does.
        """
        row = await self.row(owner, server)
        if row is None or row.id != refused.login or (grant := self.opened(row)) is None:
            return None
        if grant.access_token != refused.token:
            return Access(row.id, grant.access_token)
        return await self._renew(row, grant)

    async def row(self, owner: str, server: str) -> LoginRow | None:
        async with self._database.read_only() as connection:
            return await store.load_login(connection, owner, server)

    async def rows(self, owner: str) -> list[LoginRow]:
        """Returns what is stored of a user, also what does not open any more."""
        async with self._database.read_only() as connection:
            return await store.load_logins(connection, owner)

    def opened(self, row: LoginRow) -> LoginGrant | None:
        """Returns None for what was given to another user, for another server or address, or sealed with a lost key."""
        grant = self._seal.open(LoginGrant, row.sealed)
        config = self._servers().get(row.server)
        if grant is None or config is None or (grant.owner, grant.server) != (row.owner, row.server):
            return None
        is_trusted = config.oauth is None or config.oauth.takes(grant.source.issuer)
        return grant if grant.source.url == config.url and is_trusted else None

    async def save(self, attempt: LoginAttempt, got: OAuthToken) -> None:
        grant = LoginGrant(
            owner=attempt.owner,
            server=attempt.server,
            source=attempt.source,
            access_token=got.access_token,
            refresh_token=got.refresh_token,
        )
        values = {
            "owner": attempt.owner,
            "server": attempt.server,
            "id": new_id("login", self._clock()),
            "sealed": self._seal.seal(grant),
            "scope": got.scope or attempt.scope,
        }
        async with self._database.transaction() as connection:
            await store.save_login(connection, values, _lasts_s(got))

    async def end(self, owner: str, server: str) -> bool:
        """Deletes a login, then tells its authorization server. Returns False if there was none."""
        async with self._database.transaction() as connection:
            row = await store.delete_login(connection, owner, server)
        if row is not None and (grant := self.opened(row)) is not None:
            await self._revoke(grant)
        return row is not None

    async def settled(self) -> None:
        """Returns when no token is being renewed here, or after SETTLED_S."""
        if self._refreshing:
            await asyncio.wait(set(self._refreshing), timeout=SETTLED_S)

    async def forget(self, owner: str, server: str, login: str) -> None:
        """Deletes a login that the server does not take. One that came later stays."""
        row = await self.row(owner, server)
        if row is not None and row.id == login:
            await self._forget(row)

    async def forget_client(self, server: str, source: TokenSource, fault: Exception) -> None:
        """Lets Segue be registered anew where it is not known any more."""
        if isinstance(fault, TokenRefused) and fault.code == "invalid_client":
            async with self._database.transaction() as connection:
                await store.delete_clients(connection, server, source.issuer)

    async def _renew(self, row: LoginRow, grant: LoginGrant) -> Access | None:
        """One process at a time asks; the others wait for what it got."""
        if grant.refresh_token is None:
            await self._forget(row)
            return None
        async with self._database.transaction() as connection:
            is_mine = await store.begin_refresh(connection, row)
        if not is_mine:
            return await self._await_refresh(row)
        # It goes on if the call is cancelled: the old refresh token may be used up, and the new one is to be kept.
        refreshing = asyncio.create_task(self._refresh(row, grant, grant.refresh_token))
        self._refreshing.add(refreshing)
        refreshing.add_done_callback(self._refreshed)
        return await asyncio.shield(refreshing)

    def _refreshed(self, task: asyncio.Task[Access | None]) -> None:
        """Retrieves what it raised, in case that the call which waited is gone: else asyncio would log that."""
        self._refreshing.discard(task)
        if not task.cancelled():
            task.exception()

    async def _refresh(self, row: LoginRow, grant: LoginGrant, refresh_token: str) -> Access | None:
        try:
            async with asking(self._config(row.server)) as asker:
                got = await refresh(asker, grant.source, refresh_token, row.scope)
        except TokenRefused as refused:
            log.info("mcp_login_over", server=row.server, reason=refused.code)
            await self._forget(row)
            await self.forget_client(row.server, grant.source, refused)
            return None
        except OAuthFault as fault:
            log.warning("mcp_login_not_renewed", server=row.server, reason=str(fault))
            async with self._database.transaction() as connection:
                await store.end_refresh(connection, row, {}, None)
            raise
        renewed = grant.model_copy(update={"access_token": got.access_token, "refresh_token": got.refresh_token})
        values = {"sealed": self._seal.seal(renewed), "scope": got.scope}
        async with self._database.transaction() as connection:
            is_there = await store.end_refresh(connection, row, values, _lasts_s(got))
        if is_there:
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
            await asyncio.sleep(_LOOK_AGAIN_S)

    def _config(self, server: str) -> McpServerConfig:
        if (config := self._servers().get(server)) is None:
            raise OAuthFault("mcp.json has no such server any more")
        return config

    async def _revoke(self, grant: LoginGrant) -> None:
        """Does nothing for a server that has left mcp.json: how to reach it is not known any more."""
        if grant.server not in self._servers():
            return
        async with asking(self._config(grant.server)) as asker:
            for kind in ("refresh_token", "access_token"):
                if (token := getattr(grant, kind)) is not None:
                    await revoke(asker, grant.source, token, kind)

    async def _forget(self, row: LoginRow) -> None:
        async with self._database.transaction() as connection:
            await store.delete_as_read(connection, row)


def _lasts_s(got: OAuthToken) -> int | None:
    return None if got.expires_in is None else min(max(got.expires_in, 0), _LONGEST_S)
