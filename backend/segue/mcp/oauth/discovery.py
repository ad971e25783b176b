"""Finds out where users log in for an MCP server, and what may be asked for there (RFC 9728, RFC 8414, OIDC).

Others wrote all that is read here: each address is checked as the server's own is, and nothing is taken on trust that
the next step could not check. Requests go over https, follow no redirect, and have little time and few bytes.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

import httpx2
from mcp.client.auth import OAuthFlowError
from mcp.client.auth.utils import (
    build_oauth_authorization_server_metadata_discovery_urls,
    build_protected_resource_metadata_discovery_urls,
    extract_resource_metadata_from_www_auth,
    extract_scope_from_www_auth,
    get_client_metadata_scopes,
    handle_auth_metadata_response,
    handle_protected_resource_response,
    issuers_match,
    validate_metadata_issuer,
)
from mcp.shared.auth import OAuthMetadata, ProtectedResourceMetadata
from mcp.shared.auth_utils import check_resource_allowed, resource_url_from_server_url

from segue.domain.identity import is_loopback
from segue.mcp.mcp_config import McpServerConfig
from segue.net.addresses import NoSuchHost, NotPublic, allowed_for_operator, is_public_or_private
from segue.net.http_client import BodyTooLarge, answer_of, checked_client
from segue.tools.normalize import clean_text

MAX_BYTES: Final = 256 * 1024
MAX_URL_CHARS: Final = 4096
WITHIN_S: Final = 15.0
HTTP_OK: Final = 200
HTTP_SERVER_ERROR: Final = 500
_PING: Final = {"jsonrpc": "2.0", "id": 0, "method": "ping"}
_ABOUT_SERVER: Final = "the metadata of the MCP server"
_ABOUT_AUTHORITY: Final = "the metadata of its authorization server"


class OAuthFault(Exception):
    """A login cannot go on; the message says why in our own words, and what helps."""


class Asker:
    """Asks on behalf of one server of mcp.json."""

    def __init__(self, client: httpx2.AsyncClient, *, allow_plain: bool) -> None:
        self._client = client
        self._allow_plain = allow_plain

    def check(self, url: str, what: str) -> None:
        """Raises OAuthFault for an address that no secret may go to."""
        parts = urlsplit(url)
        is_plain_allowed = self._allow_plain or is_loopback(parts.hostname or "")
        if parts.scheme != "https" and not (parts.scheme == "http" and is_plain_allowed):
            raise OAuthFault(f"{what} is not an https address")
        if len(url) > MAX_URL_CHARS or parts.username is not None or parts.fragment:
            raise OAuthFault(f"{what} is no address that Segue uses: too long, or with a user or a fragment in it")

    async def get(self, url: str, what: str) -> httpx2.Response:
        return await self._ask(httpx2.Request("GET", url, headers={"Accept": "application/json"}), what)

    async def post(
        self,
        url: str,
        what: str,
        *,
        form: Mapping[str, str] | None = None,
        json: object = None,
        headers: Mapping[str, str] | None = None,
    ) -> httpx2.Response:
        accept = {"Accept": "application/json", **(headers or {})}
        return await self._ask(httpx2.Request("POST", url, data=form, json=json, headers=accept), what)

    async def head_of(self, url: str, what: str, *, json: object) -> httpx2.Response:
        """Returns the status and headers of an answer, whose body is not read: it may be a stream."""
        self.check(url, what)
        accept = {"Accept": "application/json, text/event-stream"}
        try:
            async with asyncio.timeout(WITHIN_S):
                answer = await self._client.send(
                    httpx2.Request("POST", url, json=json, headers=accept), stream=True, follow_redirects=False
                )
                await answer.aclose()
        except (httpx2.HTTPError, NotPublic, NoSuchHost, TimeoutError) as error:
            raise OAuthFault(_why(error, what)) from None
        return httpx2.Response(answer.status_code, headers=answer.headers, request=answer.request)

    async def _ask(self, request: httpx2.Request, what: str) -> httpx2.Response:
        self.check(str(request.url), what)
        try:
            async with asyncio.timeout(WITHIN_S):
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
    """Where users log in. `scope` is what the server asks for, `resource` what tokens are for."""

    metadata: OAuthMetadata
    resource: str
    scope: str | None

    @property
    def issuer(self) -> str:
        return str(self.metadata.issuer)


async def discover(asker: Asker, url: str) -> Authority:
    """Raises OAuthFault."""
    challenge = await asker.head_of(url, "the MCP server", json=_PING)
    described = await _resource_metadata(asker, url, challenge)
    resource = resource_url_from_server_url(url)
    issuer = None
    if described is not None:
        if not check_resource_allowed(requested_resource=resource, configured_resource=str(described.resource)):
            raise OAuthFault(f"{_ABOUT_SERVER} are those of another resource")
        resource = str(described.resource)
        issuer = str(described.authorization_servers[0])
    metadata = await _authority_metadata(asker, url, issuer)
    _check_usable(asker, metadata)
    challenged = extract_scope_from_www_auth(challenge)
    scope = get_client_metadata_scopes(challenged, described, metadata, ["authorization_code", "refresh_token"])
    return Authority(metadata, resource, scope and clean_text(scope))


async def _resource_metadata(asker: Asker, url: str, challenge: httpx2.Response) -> ProtectedResourceMetadata | None:
    """Returns None for a server that describes nothing: then it is its own authorization server, as before 2025-06."""
    named = extract_resource_metadata_from_www_auth(challenge)
    for place in build_protected_resource_metadata_discovery_urls(named, url):
        answer = await asker.get(place, _ABOUT_SERVER)
        if answer.status_code >= HTTP_SERVER_ERROR:
            raise OAuthFault(f"{_ABOUT_SERVER} cannot be read (HTTP {answer.status_code})")
        if (found := await handle_protected_resource_response(answer)) is not None:
            return found
        if answer.status_code == HTTP_OK:
            raise OAuthFault(f"{_ABOUT_SERVER} are not as RFC 9728 has them")
    return None


async def _authority_metadata(asker: Asker, url: str, issuer: str | None) -> OAuthMetadata:
    for place in build_oauth_authorization_server_metadata_discovery_urls(issuer, url):
        _, found = await handle_auth_metadata_response(answer := await asker.get(place, _ABOUT_AUTHORITY))
        if found is not None:
            return _of_issuer(found, issuer, url)
        if answer.status_code == HTTP_OK:
            raise OAuthFault(f"{_ABOUT_AUTHORITY} are not as RFC 8414 has them")
    raise OAuthFault(f"{_ABOUT_AUTHORITY} are not there: is it a server with logins?")


def _of_issuer(found: OAuthMetadata, issuer: str | None, url: str) -> OAuthMetadata:
    """Raises OAuthFault for metadata of another issuer than the one that was asked (RFC 8414, 3.3)."""
    origin = str(httpx2.URL(url).copy_with(raw_path=b"/", fragment=None)).rstrip("/")
    if issuer is None and issuers_match(str(found.issuer), origin):
        return found
    try:
        validate_metadata_issuer(found, issuer or origin)
    except OAuthFlowError:
        raise OAuthFault(f"{_ABOUT_AUTHORITY} are those of another issuer") from None
    return found


def _check_usable(asker: Asker, metadata: OAuthMetadata) -> None:
    if "S256" not in (metadata.code_challenge_methods_supported or ()):
        raise OAuthFault("its authorization server does not say that it takes PKCE with S256")
    for name in ("authorization_endpoint", "token_endpoint", "registration_endpoint", "revocation_endpoint"):
        if (address := getattr(metadata, name)) is not None:
            asker.check(str(address), f"the {name} of its authorization server")
