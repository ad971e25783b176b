"""Finds out where users log in for an MCP server, and what may be asked for there (RFC 9728, RFC 8414, OIDC).

Everything read here was written by others: it names addresses, each of which is checked, and nothing is taken on trust
that the next step could not check.
"""

from dataclasses import dataclass
from typing import Final

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

from segue.mcp.oauth.asking import Asker, OAuthFault
from segue.tools.normalize import clean_text

HTTP_OK: Final = 200
HTTP_SERVER_ERROR: Final = 500
_PING: Final = {"jsonrpc": "2.0", "id": 0, "method": "ping"}
_ABOUT_SERVER: Final = "the metadata of the MCP server"
_ABOUT_AUTHORITY: Final = "the metadata of its authorization server"


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
