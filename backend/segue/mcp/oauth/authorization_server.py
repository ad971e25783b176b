"""Requests to the authorization server of an MCP server: where users log in (RFC 9728, RFC 8414, OIDC), to register
Segue as a client (RFC 7591), and to give, renew and end tokens.

Others wrote all that is read here: each address is checked as the server's own is. Requests go over https, follow no
redirect, and have little time and few bytes; no word of an answer is shown or logged.
"""

import asyncio
import re
from base64 import b64encode
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final, Literal
from urllib.parse import quote, urlsplit

import httpx2
import orjson
from mcp.client.auth import OAuthFlowError, OAuthRegistrationError
from mcp.client.auth import utils as sdk
from mcp.client.auth.oauth2 import check_registration_usable
from mcp.shared.auth import OAuthClientMetadata, OAuthMetadata, OAuthToken, ProtectedResourceMetadata
from mcp.shared.auth_utils import check_resource_allowed, resource_url_from_server_url
from pydantic import AnyUrl, BaseModel, Field, ValidationError

from segue.domain.identity import is_loopback
from segue.log import log
from segue.mcp.mcp_config import McpServerConfig, OAuthClientConfig
from segue.net.addresses import NoSuchHost, NotPublic, allowed_for_operator, is_public_or_private
from segue.net.http_client import BodyTooLarge, answer_of, checked_client
from segue.tools.normalize import clean_text

MAX_BYTES: Final = 256 * 1024
MAX_URL_CHARS: Final = 4096
MAX_TOKEN_CHARS: Final = 16_384
WITHIN_S: Final = 15.0
PUBLIC: Final = "none"  # a client without a secret
_HTTP_OK: Final = (200, 201)
_PING: Final = {"jsonrpc": "2.0", "id": 0, "method": "ping"}
_ABOUT_SERVER: Final = "the metadata of the MCP server"
_ABOUT_AUTHORITY: Final = "the metadata of its authorization server"
_WHAT: Final = "the token endpoint"
_SENDABLE = re.compile(r"[\x21-\x7e]+")
_FOR_NOW: Final = ("temporarily_unavailable", "server_error", "slow_down")
_ERROR_CODE = re.compile(r"[a-z_]{1,64}")


class OAuthFault(Exception):
    """A login cannot go on; the message says why in our own words, with advice."""


class Asker:
    """Asks on behalf of one server of mcp.json."""

    def __init__(self, client: httpx2.AsyncClient, *, allow_plain: bool) -> None:
        self._client = client
        self._allow_plain = allow_plain

    def check(self, url: str, what: str) -> None:
        """Raises OAuthFault for an address that no secret may go to."""
        try:
            parts, _ = urlsplit(url), httpx2.URL(url)
            host, _ = parts.hostname or "", parts.port  # which raises for one that there is not
        except (httpx2.InvalidURL, ValueError):
            raise OAuthFault(f"{what} is no address") from None
        is_plain_allowed = self._allow_plain or is_loopback(host)
        if parts.scheme != "https" and not (parts.scheme == "http" and is_plain_allowed):
            raise OAuthFault(f"{what} is not an https address")
        if len(url) > MAX_URL_CHARS or parts.username is not None or parts.fragment:
            raise OAuthFault(f"{what} is no address that Segue uses: too long, or with a user or a fragment in it")

    async def ask(
        self,
        url: str,
        what: str,
        *,
        form: Mapping[str, str] | None = None,
        json: object = None,
        headers: Mapping[str, str] | None = None,
        is_stream: bool = False,
    ) -> httpx2.Response:
        """Gets an address, or posts `form` or `json`. Does not read a body that may be a stream. Raises OAuthFault."""
        self.check(url, what)
        accept = "application/json, text/event-stream" if is_stream else "application/json"
        method = "GET" if form is None and json is None else "POST"
        request = httpx2.Request(method, url, data=form, json=json, headers={"Accept": accept, **(headers or {})})
        try:
            async with asyncio.timeout(WITHIN_S):
                if is_stream:
                    head = await self._client.send(request, stream=True, follow_redirects=False)
                    await head.aclose()
                    return httpx2.Response(head.status_code, headers=head.headers, request=head.request)
                answer = await answer_of(self._client, request, max_bytes=MAX_BYTES)
        except (httpx2.HTTPError, httpx2.StreamError, NotPublic, NoSuchHost, TimeoutError) as error:
            raise OAuthFault(_why(error, what)) from None
        if answer.is_redirect:
            raise OAuthFault(f"{what} redirects elsewhere, which Segue does not follow")
        return answer


@asynccontextmanager
async def asking(config: McpServerConfig) -> AsyncIterator[Asker]:
    host = urlsplit(config.url or "").hostname or ""
    # `allow_private` means the operator's own networks, and no more: here others name the addresses.
    is_allowed = is_public_or_private if config.allow_private else allowed_for_operator(host, allow_private=False)
    async with checked_client(is_allowed=is_allowed, max_body_bytes=MAX_BYTES) as client:
        yield Asker(client, allow_plain=config.allow_private)


def _why(error: Exception, what: str) -> str:
    match error:
        case BodyTooLarge():
            return f"{what} answers with more than {MAX_BYTES // 1024} kB"
        case NotPublic():
            return f"{what} is at a private address"
        case NoSuchHost():
            return f"{what} is at a host that does not exist"
        case TimeoutError() | httpx2.TimeoutException():
            return f"{what} did not answer in time"
        case _:
            return f"{what} cannot be reached ({type(error).__name__})"


@dataclass(frozen=True, slots=True)
class Authority:
    """Where users log in. `scope` is the one that the server asks for, `resource` the one that tokens are for."""

    metadata: OAuthMetadata
    resource: str
    scope: str | None

    @property
    def issuer(self) -> str:
        return str(self.metadata.issuer)


async def discover(asker: Asker, url: str) -> Authority:
    """Raises OAuthFault."""
    challenge = await asker.ask(url, "the MCP server", json=_PING, is_stream=True)
    described = await _resource_metadata(asker, url, challenge)
    resource = resource_url_from_server_url(url)
    issuer = None
    if described is not None:
        if not check_resource_allowed(requested_resource=resource, configured_resource=str(described.resource)):
            raise OAuthFault(f"{_ABOUT_SERVER} are those of another resource")
        resource = str(described.resource)
        issuer = str(described.authorization_servers[0])
    metadata = await _authority_metadata(asker, url, issuer)
    if "S256" not in (metadata.code_challenge_methods_supported or ()):
        raise OAuthFault("its authorization server does not say that it takes PKCE with S256")
    for name in ("authorization_endpoint", "token_endpoint", "registration_endpoint", "revocation_endpoint"):
        if (address := getattr(metadata, name)) is not None:
            asker.check(str(address), f"the {name} of its authorization server")
    challenged = sdk.extract_scope_from_www_auth(challenge)
    scope = sdk.get_client_metadata_scopes(challenged, described, metadata, ["authorization_code", "refresh_token"])
    return Authority(metadata, resource, scope and clean_text(scope))


async def _resource_metadata(asker: Asker, url: str, challenge: httpx2.Response) -> ProtectedResourceMetadata | None:
    """Returns None for a server that describes nothing: then it is its own authorization server, as before 2025-06."""
    named = sdk.extract_resource_metadata_from_www_auth(challenge)
    for place in sdk.build_protected_resource_metadata_discovery_urls(named, url):
        answer = await asker.ask(place, _ABOUT_SERVER)
        if answer.is_server_error:
            raise OAuthFault(f"{_ABOUT_SERVER} cannot be read (HTTP {answer.status_code})")
        if (found := await sdk.handle_protected_resource_response(answer)) is not None:
            return found
        if _is_said(answer):
            raise OAuthFault(f"{_ABOUT_SERVER} are not as RFC 9728 has them")
    return None


def _is_said(answer: httpx2.Response) -> bool:
    """Whether metadata that cannot be read stand at a place. Many sites have a web page at every address."""
    return answer.status_code == httpx2.codes.OK and not answer.content.lstrip().startswith(b"<")


async def _authority_metadata(asker: Asker, url: str, issuer: str | None) -> OAuthMetadata:
    """Raises OAuthFault, also for metadata of another issuer than the one that was asked (RFC 8414, 3.3)."""
    for place in sdk.build_oauth_authorization_server_metadata_discovery_urls(issuer, url):
        _, found = await sdk.handle_auth_metadata_response(answer := await asker.ask(place, _ABOUT_AUTHORITY))
        if found is not None:
            origin = str(httpx2.URL(url).copy_with(raw_path=b"/", fragment=None)).rstrip("/")
            if issuer is None and sdk.issuers_match(str(found.issuer), origin):
                return found
            try:
                sdk.validate_metadata_issuer(found, issuer or origin)
            except OAuthFlowError:
                raise OAuthFault(f"{_ABOUT_AUTHORITY} are those of another issuer") from None
            return found
        if _is_said(answer):
            raise OAuthFault(f"{_ABOUT_AUTHORITY} are not as RFC 8414 has them")
    raise OAuthFault(f"{_ABOUT_AUTHORITY} are not there: is it a server with logins?")


class TokenRefused(Exception):
    """The authorization server refuses a code or a refresh token for good; the message is the code of RFC 6749."""


class SealedValue(BaseModel, frozen=True, hide_input_in_errors=True):
    """Is stored encrypted, and not shown when it cannot be read."""


class OAuthClient(SealedValue):
    """Segue as a client of an authorization server. `auth` is the way that its secret is sent."""

    client_id: str
    client_secret: str | None = Field(default=None, repr=False)
    auth: str = "none"
    expires_at: int | None = None  # of the secret, in seconds since 1970


class TokenSource(SealedValue):
    """The source of one login's tokens, and their resource."""

    url: str  # of the MCP server, as mcp.json had it
    issuer: str
    token_endpoint: str
    revocation_endpoint: str | None = None
    resource: str
    client: OAuthClient


async def exchange(asker: Asker, source: TokenSource, *, code: str, verifier: str, redirect_uri: str) -> OAuthToken:
    """Returns the tokens for a code. Raises TokenRefused and OAuthFault."""
    fields = {"code": code, "redirect_uri": redirect_uri, "code_verifier": verifier, "resource": source.resource}
    return await _ask(asker, source, {"grant_type": "authorization_code", **fields})


async def refresh(asker: Asker, source: TokenSource, refresh_token: str, scope: str | None) -> OAuthToken:
    """Returns new tokens; fields that the answer leaves out stay as they were. Raises TokenRefused and OAuthFault."""
    form = {"grant_type": "refresh_token", "refresh_token": refresh_token, "resource": source.resource}
    renewed = await _ask(asker, source, form)
    kept = {"refresh_token": renewed.refresh_token or refresh_token, "scope": renewed.scope or scope}
    return renewed.model_copy(update=kept)


async def revoke(asker: Asker, source: TokenSource, token: str, kind: str) -> None:
    """Tells the authorization server that a token is no longer used (RFC 7009), if it has an endpoint for that."""
    if source.revocation_endpoint is None:
        return
    form, headers = _as_client(source.client, {"token": token, "token_type_hint": kind})
    try:
        answer = await asker.ask(source.revocation_endpoint, "the revocation endpoint", form=form, headers=headers)
    except OAuthFault as fault:
        log.warning("mcp_token_not_revoked", reason=str(fault))
        return
    if answer.status_code not in _HTTP_OK:
        log.warning("mcp_token_not_revoked", reason=f"HTTP {answer.status_code}")


async def _ask(asker: Asker, source: TokenSource, form: dict[str, str]) -> OAuthToken:
    form, headers = _as_client(source.client, form)
    answer = await asker.ask(source.token_endpoint, _WHAT, form=form, headers=headers)
    try:
        code = orjson.loads(answer.content)["error"]
    except (ValueError, KeyError, TypeError):
        code = None
    # A 403 without a code is a firewall's.
    if code in _FOR_NOW or answer.status_code not in (*_HTTP_OK, 400, 401, *([403] if code else ())):
        raise OAuthFault(f"{_WHAT} answered HTTP {answer.status_code}")
    if code or answer.status_code not in _HTTP_OK:  # GitHub says with 200 that it refuses
        raise TokenRefused(code if isinstance(code, str) and _ERROR_CODE.fullmatch(code) else "refused")
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


def described_client(redirect_uri: str, auth: Literal["none"] | None, scope: str | None) -> dict[str, Any]:
    """Returns how Segue describes itself to an authorization server. Without `auth` it chooses how secrets are sent."""
    described = OAuthClientMetadata(
        redirect_uris=[AnyUrl(redirect_uri)],
        client_name="Segue",
        application_type="native" if is_loopback(AnyUrl(redirect_uri).host or "") else "web",
        token_endpoint_auth_method=auth,
        scope=scope,
    )
    return described.model_dump(by_alias=True, mode="json", exclude_none=True)


def known_client(authority: Authority, config: OAuthClientConfig, document_url: str) -> OAuthClient | None:
    """Returns the client that needs no registration; None if there is none."""
    if config.client_id is None:
        valid = document_url if sdk.is_valid_client_metadata_url(document_url) else None
        by_document = sdk.should_use_client_metadata_url(authority.metadata, valid)
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
    # Without a secret if that is possible: PKCE is the proof. Otherwise the server chooses.
    supported = authority.metadata.token_endpoint_auth_methods_supported
    is_public = supported is None or PUBLIC in supported
    description = described_client(redirect_uri, PUBLIC if is_public else None, authority.scope)
    answer = await asker.ask(str(endpoint), "the registration endpoint", json=description)
    try:
        client = await sdk.handle_registration_response(answer)
        check_registration_usable(client)
    except OAuthRegistrationError:
        raise OAuthFault(f"its authorization server did not register Segue (HTTP {answer.status_code})") from None
    if max(len(client.client_id), len(client.client_secret or "")) > MAX_TOKEN_CHARS:
        raise OAuthFault("its authorization server registered Segue under a name that is too long")
    way = client.token_endpoint_auth_method or ("client_secret_basic" if client.client_secret else "none")
    until = client.client_secret_expires_at or None
    return OAuthClient(client_id=client.client_id, client_secret=client.client_secret, auth=way, expires_at=until)
