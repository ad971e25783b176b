"""What Segue asks of an authorization server: to register it as a client (RFC 7591), and to give, renew and end tokens.

Knows no store and no user. What an endpoint answers is bounded, and no word of it is shown or logged.
"""

import re
from base64 import b64encode
from typing import Any, Final, Literal
from urllib.parse import quote

import orjson
import structlog
from mcp.client.auth import OAuthRegistrationError
from mcp.client.auth.oauth2 import check_registration_usable
from mcp.client.auth.utils import (
    handle_registration_response,
    is_valid_client_metadata_url,
    should_use_client_metadata_url,
)
from mcp.shared.auth import OAuthClientMetadata, OAuthMetadata, OAuthToken, TokenEndpointAuthMethod
from pydantic import AnyUrl, BaseModel, ConfigDict, Field, ValidationError

from segue.domain.identity import is_loopback
from segue.mcp.mcp_config import OAuthClientConfig
from segue.mcp.oauth.discovery import Asker, Authority, OAuthFault
from segue.tools.normalize import clean_text

MAX_TOKEN_CHARS: Final = 16_384
_HTTP_OK: Final = (200, 201)
_REFUSES: Final = (400, 401, 403)
_SENDABLE = re.compile(r"[\x21-\x7e]+")
_ERROR_CODE = re.compile(r"[a-z_]{1,64}")
_WHAT: Final = "the token endpoint"
CLIENT_NAME: Final = "Segue"
PUBLIC: Final = "none"  # a client without a secret

log = structlog.get_logger()


class TokenRefused(Exception):
    """The authorization server refuses a code or a refresh token for good; `code` is RFC 6749's."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


class SealedValue(BaseModel):
    """Is stored encrypted, and not shown when it cannot be read."""

    model_config = ConfigDict(frozen=True, hide_input_in_errors=True)


class OAuthClient(SealedValue):
    """What Segue is called at an authorization server. `auth` is the way that its secret is sent."""

    client_id: str
    client_secret: str | None = Field(default=None, repr=False)
    auth: str = "none"
    expires_at: int | None = None  # of the secret, in seconds since 1970


class TokenSource(SealedValue):
    """Where tokens of one login come from, and what they are for."""

    url: str  # of the MCP server, as mcp.json had it
    issuer: str
    token_endpoint: str
    revocation_endpoint: str | None = None
    resource: str
    client: OAuthClient


async def exchange(asker: Asker, source: TokenSource, *, code: str, verifier: str, redirect_uri: str) -> OAuthToken:
    """Returns the tokens for a code. Raises TokenRefused and OAuthFault."""
    form = {
        "grant_type": "authorization_code",
        "code": code,
        "redirect_uri": redirect_uri,
        "code_verifier": verifier,
        "resource": source.resource,
    }
    return await _ask(asker, source, form)


async def refresh(asker: Asker, source: TokenSource, refresh_token: str, scope: str | None) -> OAuthToken:
    """Returns new tokens; what the answer leaves out stays as it was. Raises TokenRefused and OAuthFault."""
    form = {"grant_type": "refresh_token", "refresh_token": refresh_token, "resource": source.resource}
    renewed = await _ask(asker, source, form)
    kept = {"refresh_token": renewed.refresh_token or refresh_token, "scope": renewed.scope or scope}
    return renewed.model_copy(update=kept)


async def revoke(asker: Asker, source: TokenSource, token: str, kind: str) -> None:
    """Tells the authorization server that a token is not used any more (RFC 7009), if it wants to hear it."""
    if source.revocation_endpoint is None:
        return
    form, headers = _as_client(source.client, {"token": token, "token_type_hint": kind})
    try:
        answer = await asker.post(source.revocation_endpoint, "the revocation endpoint", form=form, headers=headers)
    except OAuthFault as fault:
        log.warning("mcp_token_not_revoked", reason=str(fault))
        return
    if answer.status_code not in _HTTP_OK:
        log.warning("mcp_token_not_revoked", reason=f"HTTP {answer.status_code}")


async def _ask(asker: Asker, source: TokenSource, form: dict[str, str]) -> OAuthToken:
    form, headers = _as_client(source.client, form)
    answer = await asker.post(source.token_endpoint, _WHAT, form=form, headers=headers)
    if answer.status_code in _REFUSES:
        raise TokenRefused(_error_code(answer.content))
    if answer.status_code not in _HTTP_OK:
        raise OAuthFault(f"{_WHAT} answered HTTP {answer.status_code}")
    try:
        tokens = OAuthToken.model_validate_json(answer.content)
    except ValidationError:
        raise OAuthFault(f"{_WHAT} gave no bearer token") from None
    for token in (tokens.access_token, tokens.refresh_token or "none"):
        if len(token) > MAX_TOKEN_CHARS or not _SENDABLE.fullmatch(token):
            raise OAuthFault(f"{_WHAT} gave a token that cannot be sent")
    return tokens.model_copy(update={"scope": tokens.scope and clean_text(tokens.scope)})


def _as_client(client: OAuthClient, form: dict[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Returns the form and the headers of a request that says which client asks (RFC 6749, 2.3.1)."""
    secret = client.client_secret
    if secret is None or client.auth == "none":
        return {**form, "client_id": client.client_id}, {}
    if client.auth == "client_secret_post":
        return {**form, "client_id": client.client_id, "client_secret": secret}, {}
    pair = f"{quote(client.client_id, safe='')}:{quote(secret, safe='')}"
    return form, {"Authorization": f"Basic {b64encode(pair.encode()).decode()}"}


def _error_code(body: bytes) -> str:
    try:
        code = orjson.loads(body)["error"]
    except (ValueError, KeyError, TypeError):
        return "refused"
    return code if isinstance(code, str) and _ERROR_CODE.fullmatch(code) else "refused"


def described_client(
    redirect_uri: str, auth: TokenEndpointAuthMethod | None, scope: str | None = None
) -> dict[str, Any]:
    """Returns how Segue describes itself to an authorization server. `auth` is the way a secret is sent."""
    kind: Literal["native", "web"] = "native" if is_loopback(AnyUrl(redirect_uri).host or "") else "web"
    described = OAuthClientMetadata(
        redirect_uris=[AnyUrl(redirect_uri)],
        client_name=CLIENT_NAME,
        application_type=kind,
        token_endpoint_auth_method=auth,
        scope=scope,
    )
    return described.model_dump(by_alias=True, mode="json", exclude_none=True)


def known_client(authority: Authority, config: OAuthClientConfig, document_url: str) -> OAuthClient | None:
    """Returns the client that needs no registration; None if there is none."""
    if config.client_id is None:
        valid = document_url if is_valid_client_metadata_url(document_url) else None
        by_document = should_use_client_metadata_url(authority.metadata, valid)
        return OAuthClient(client_id=document_url) if by_document else None
    if config.client_secret is None:
        return OAuthClient(client_id=config.client_id)
    taken = authority.metadata.token_endpoint_auth_methods_supported or ["client_secret_basic"]
    auth = "client_secret_basic" if "client_secret_basic" in taken else "client_secret_post"
    return OAuthClient(client_id=config.client_id, client_secret=config.client_secret.get_secret_value(), auth=auth)


async def register(asker: Asker, authority: Authority, redirect_uri: str) -> OAuthClient:
    """Raises OAuthFault."""
    endpoint = authority.metadata.registration_endpoint
    if endpoint is None:
        raise OAuthFault(
            "its authorization server registers no clients by itself: register Segue there with the redirect address "
            f'{redirect_uri}, and put "oauth": {{"client_id": "…"}} into mcp.json'
        )
    wanted = described_client(redirect_uri, _wanted(authority.metadata), authority.scope)
    answer = await asker.post(str(endpoint), "the registration endpoint", json=wanted)
    try:
        given = await handle_registration_response(answer)
        check_registration_usable(given)
    except OAuthRegistrationError:
        raise OAuthFault(f"its authorization server did not register Segue (HTTP {answer.status_code})") from None
    if max(len(given.client_id), len(given.client_secret or "")) > MAX_TOKEN_CHARS:
        raise OAuthFault("its authorization server registered Segue under a name that is too long")
    auth = given.token_endpoint_auth_method or ("client_secret_basic" if given.client_secret else "none")
    return OAuthClient(
        client_id=given.client_id,
        client_secret=given.client_secret,
        auth=auth,
        expires_at=given.client_secret_expires_at or None,
    )


def _wanted(metadata: OAuthMetadata) -> TokenEndpointAuthMethod | None:
    """Without a secret if that is possible: PKCE is the proof. Otherwise the server chooses."""
    supported = metadata.token_endpoint_auth_methods_supported
    return PUBLIC if supported is None or PUBLIC in supported else None
