"""The logins of users at MCP servers: begun with a link, finished by the callback, renewed, ended.

Owns `mcp_login_attempts`: all is in PostgreSQL, so the callback may come to another process. No transaction is open
while a server is asked. A token leaves only to its own user's connection. Times are the database's.
"""

import secrets
from datetime import datetime, timedelta
from typing import Any, Final
from urllib.parse import urlencode, urlsplit

from mcp.client.auth import OAuthFlowError
from mcp.client.auth.oauth2 import PKCEParameters
from mcp.client.auth.utils import union_scopes, validate_authorization_response_iss
from sqlalchemy import Row, delete, func, select
from sqlalchemy.dialects.postgresql import insert

from segue.db.engine import Connection, Database
from segue.db.models import mcp_login_attempts
from segue.domain.errors import app_error, existing
from segue.domain.ids import Clock, digest_of_secret
from segue.domain.user_request import UserRequest
from segue.log import log
from segue.mcp.mcp_config import McpServerConfig, OAuthClientConfig
from segue.mcp.oauth import authorization_server
from segue.mcp.oauth.authorization_server import Asker, Authority, OAuthClient, OAuthFault, TokenRefused, TokenSource
from segue.mcp.oauth.login_tokens import Grants, LoginAttempt, Seal, SealedClient, Servers, load_client, save_client
from segue.mcp.status import CALLBACK_PATH, DOCUMENT_PATH, BegunLogin, FinishedLogin, LoginRefused, McpLogin

ATTEMPT_LASTS: Final = timedelta(minutes=30)
ATTEMPTS: Final = 10  # of a user at a server
_DENIED: Final = "access_denied"


class Logins:
    """`servers` are those of mcp.json that ask for a login, `base_url` is where browsers reach this service."""

    def __init__(self, database: Database, seal: Seal, servers: Servers, base_url: str, clock: Clock) -> None:
        self.database = database
        self._seal = seal
        self._servers = servers
        self._clock = clock
        self._document_url = base_url + DOCUMENT_PATH
        self.redirect_uri = base_url + CALLBACK_PATH
        self.grants = Grants(database, seal, servers, clock)

    def document(self) -> dict[str, Any]:
        """Returns how Segue describes itself to an authorization server that reads it there."""
        described = authorization_server.described_client(self.redirect_uri, authorization_server.PUBLIC, None)
        return {"client_id": self._document_url, **described}

    async def begin(self, owner: str, server: str, *, scope: str | None = None) -> BegunLogin:
        """Returns a link for this user. `scope` is the one that the previous login lacked. Raises AppError
        `mcp_server_not_found` and `mcp_login_unavailable`.
        """
        config = self._config(server)
        before = await self.grants.row(owner, server)
        try:
            async with authorization_server.asking(config) as asker:
                authority = await authorization_server.discover(asker, config.url or "")
                if not _oauth(config).takes(authority.issuer):
                    raise OAuthFault("it names another issuer than the one in mcp.json")  # noqa: TRY301 (as what `discover` raises)
                client = await self._client(asker, server, authority, _oauth(config))
        except OAuthFault as fault:
            log.warning("mcp_login_unavailable", server=server, reason=str(fault))
            raise app_error("mcp_login_unavailable", server=server, fault=fault) from None
        configured = _oauth(config).scopes
        scopes = authority.scope if configured is None else " ".join(configured) or None
        if scope:
            scopes = union_scopes(before.scope if before else None, scope)
        proof = PKCEParameters.generate()
        attempt = LoginAttempt(
            owner=owner,
            server=server,
            source=_source(config, authority, client),
            metadata=authority.metadata,
            verifier=proof.code_verifier,
            redirect_uri=self.redirect_uri,
            scope=scopes,
        )
        state = secrets.token_urlsafe(32)
        until = await self.database.transact(_save_attempt, state, owner, server, self._seal.seal(attempt))
        log.info("mcp_login_begun", server=server)
        return BegunLogin(_link(attempt, state, proof.code_challenge), until)

    async def begun(self, state: str, *, take: bool = False) -> LoginAttempt:
        """Returns a login that can be finished; if it is to `take` it, once. Raises LoginRefused."""
        found = await self.database.transact(_attempt_of, state, take=take)
        attempt = found and self._seal.open(LoginAttempt, found.sealed)
        if not found or not attempt or (attempt.owner, attempt.server) != (found.owner, found.server):
            raise LoginRefused("This link was used before, or is too old. Ask for a new one.")
        return attempt

    async def finish(self, state: str, *, code: str | None, iss: str | None, error: str | None) -> FinishedLogin:
        """Takes the parameters of a browser that an authorization server sends back. Raises LoginRefused."""
        attempt = await self.begun(state, take=True)
        self._check_answer(attempt, iss, error)
        if not code:
            raise LoginRefused("The server sent no code back. Ask for a new link.")
        try:
            async with authorization_server.asking(self._config_of(attempt)) as asker:
                got = await authorization_server.exchange(
                    asker, attempt.source, code=code, verifier=attempt.verifier, redirect_uri=attempt.redirect_uri
                )
        except (OAuthFault, TokenRefused) as fault:
            log.warning("mcp_login_failed", server=attempt.server, reason=str(fault))
            await self.grants.forget_client(attempt.server, attempt.source, fault)
            raise LoginRefused("The server did not give what the login needs. Ask for a new link.") from None
        await self.grants.save(attempt, got)
        log.info("mcp_login_finished", server=attempt.server)
        request = login_request(attempt.server, str(attempt.metadata.authorization_endpoint))
        return FinishedLogin(attempt.owner, attempt.server, request.key)

    async def of(self, owner: str) -> list[McpLogin]:
        rows = [row for row in await self.grants.rows(owner) if self.grants.opened(row)]
        found = {each.server: McpLogin(each.server, "logged_in", each.created_at, each.scope) for each in rows}
        return [found.get(name) or McpLogin(name, "logged_out", None, None) for name in sorted(self._servers())]

    async def end(self, owner: str, server: str) -> bool:
        """Also at its authorization server. Returns False if there was none. Raises AppError `mcp_server_not_found`."""
        self._config(server)
        return await self.grants.end(owner, server)

    async def end_all(self, owner: str) -> None:
        for row in await self.grants.rows(owner):
            await self.grants.end(owner, row.server)

    def _check_answer(self, attempt: LoginAttempt, iss: str | None, error: str | None) -> None:
        try:
            validate_authorization_response_iss(iss, attempt.metadata)
        except OAuthFlowError:
            log.warning("mcp_login_failed", server=attempt.server, reason="the answer is of another issuer")
            raise LoginRefused("The answer came from another server than the one that was asked.") from None
        if error is not None:
            log.info("mcp_login_failed", server=attempt.server, reason="denied" if error == _DENIED else "refused")
            why = "was declined" if error == _DENIED else "was refused by the server"
            raise LoginRefused(f"The login {why}. Ask for a new link to try again.")

    async def _client(self, asker: Asker, server: str, authority: Authority, config: OAuthClientConfig) -> OAuthClient:
        if (known := authorization_server.known_client(authority, config, self._document_url)) is not None:
            return known
        found = await self.database.read(load_client, server, authority.issuer, self.redirect_uri)
        if (usable := self._registered(found, server, authority.issuer)) is not None:
            return usable
        client = await authorization_server.register(asker, authority, self.redirect_uri)
        sealed = self._seal.seal(SealedClient(server=server, issuer=authority.issuer, client=client))
        kept = await self.database.transact(save_client, server, authority.issuer, self.redirect_uri, sealed, found)
        return self._registered(kept, server, authority.issuer) or client

    def _registered(self, sealed: str | None, server: str, issuer: str) -> OAuthClient | None:
        opened = sealed and self._seal.open(SealedClient, sealed)
        if not opened or (opened.server, opened.issuer) != (server, issuer):
            return None
        expires_at = opened.client.expires_at
        return opened.client if expires_at is None or expires_at >= self._clock().timestamp() else None

    def _config(self, server: str) -> McpServerConfig:
        return existing("mcp_server", self._servers().get(server))

    def _config_of(self, attempt: LoginAttempt) -> McpServerConfig:
        config, source = self._servers().get(attempt.server), attempt.source
        if config is None or config.url != source.url or not _oauth(config).takes(source.issuer):
            raise LoginRefused("The server is not the one any more that this link was for. Ask for a new one.")
        return config


def login_request(server: str, link: str) -> UserRequest:
    """Returns the request that a user log in. Its key is the same for each link of a server."""
    return UserRequest("url", f"Log in at {server} to go on.", url=link)


def _oauth(config: McpServerConfig) -> OAuthClientConfig:
    return config.oauth or OAuthClientConfig()


def _source(config: McpServerConfig, authority: Authority, client: OAuthClient) -> TokenSource:
    metadata = authority.metadata
    return TokenSource(
        url=config.url or "",
        issuer=authority.issuer,
        token_endpoint=str(metadata.token_endpoint),
        revocation_endpoint=str(metadata.revocation_endpoint) if metadata.revocation_endpoint else None,
        resource=authority.resource,
        client=client,
    )


def _link(attempt: LoginAttempt, state: str, challenge: str) -> str:
    endpoint = str(attempt.metadata.authorization_endpoint)
    query = {"response_type": "code", "client_id": attempt.source.client.client_id, "state": state}
    query |= {"redirect_uri": attempt.redirect_uri, "resource": attempt.source.resource}
    query |= {"code_challenge": challenge, "code_challenge_method": "S256"}
    if attempt.scope:
        query["scope"] = attempt.scope
        if "offline_access" in attempt.scope.split():
            query["prompt"] = "consent"  # OpenID Connect gives no refresh token without
    return f"{endpoint}{'&' if urlsplit(endpoint).query else '?'}{urlencode(query)}"


async def _save_attempt(connection: Connection, state: str, owner: str, server: str, sealed: str) -> datetime:
    """Returns until when the login can be finished. The oldest attempts of a user make room."""
    attempts = mcp_login_attempts
    is_mine = (attempts.c.owner == owner) & (attempts.c.server == server)
    newest = select(attempts.c.digest).order_by(attempts.c.expires_at.desc(), attempts.c.digest)
    kept = newest.where(is_mine, attempts.c.expires_at > func.now()).limit(ATTEMPTS - 1)
    old = (attempts.c.expires_at <= func.now()) | (is_mine & attempts.c.digest.not_in(kept))
    await connection.execute(delete(attempts).where(old))
    insertion = insert(attempts).values(
        digest=digest_of_secret(state), owner=owner, server=server, sealed=sealed, expires_at=func.now() + ATTEMPT_LASTS
    )
    until: datetime = (await connection.execute(insertion.returning(attempts.c.expires_at))).scalar_one()
    return until


async def _attempt_of(connection: Connection, state: str, *, take: bool) -> Row[*tuple[Any, ...]] | None:
    """Returns owner, server and the sealed text; if it is to `take` it, once: a second caller gets None."""
    of = mcp_login_attempts.c
    is_it = of.digest == digest_of_secret(state), of.expires_at > func.now()
    columns = of.owner, of.server, of.sealed
    taken = delete(mcp_login_attempts).where(*is_it).returning(*columns)
    return (await connection.execute(taken if take else select(*columns).where(*is_it))).one_or_none()
