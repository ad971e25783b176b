"""What Segue is called at an authorization server: as mcp.json says, by the address of its own description, or as the
server registers it (RFC 7591). Knows no store.
"""

from typing import Any, Final, Literal

from mcp.client.auth import OAuthRegistrationError
from mcp.client.auth.oauth2 import check_registration_usable
from mcp.client.auth.utils import (
    handle_registration_response,
    is_valid_client_metadata_url,
    should_use_client_metadata_url,
)
from mcp.shared.auth import OAuthClientMetadata, OAuthMetadata, TokenEndpointAuthMethod
from pydantic import AnyUrl

from segue.domain.identity import is_loopback
from segue.mcp.oauth.asking import Asker, OAuthFault
from segue.mcp.oauth.config import OAuthClientConfig
from segue.mcp.oauth.discovery import Authority
from segue.mcp.oauth.tokens import MAX_TOKEN_CHARS, OAuthClient

CLIENT_NAME: Final = "Segue"
PUBLIC: Final = "none"  # a client without a secret


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
