"""The token endpoint of an authorization server: a code for tokens, a refresh token for new ones, and their end.

Knows no store and no user. What an endpoint answers is bounded, and no word of it is shown or logged.
"""

import re
from base64 import b64encode
from typing import Final
from urllib.parse import quote

import orjson
import structlog
from mcp.shared.auth import OAuthToken
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from segue.mcp.oauth.asking import Asker, OAuthFault
from segue.tools.normalize import clean_text

MAX_TOKEN_CHARS: Final = 16_384
_HTTP_OK: Final = (200, 201)
_REFUSES: Final = (400, 401, 403)
_SENDABLE = re.compile(r"[\x21-\x7e]+")
_ERROR_CODE = re.compile(r"[a-z_]{1,64}")
_WHAT: Final = "the token endpoint"

log = structlog.get_logger()


class TokenRefused(Exception):
    """The authorization server refuses a code or a refresh token for good; `code` is RFC 6749's."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


class OAuthClient(BaseModel):
    """What Segue is called at an authorization server. `auth` is the way that its secret is sent."""

    model_config = ConfigDict(frozen=True, hide_input_in_errors=True)

    client_id: str
    client_secret: str | None = Field(default=None, repr=False)
    auth: str = "none"
    expires_at: int | None = None  # of the secret, in seconds since 1970


class TokenSource(BaseModel):
    """Where tokens of one login come from, and what they are for."""

    model_config = ConfigDict(frozen=True, hide_input_in_errors=True)

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
