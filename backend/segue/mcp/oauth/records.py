"""What a login is made of, as it is sealed in rows; and the token that a connection sends."""

from dataclasses import dataclass, field

from mcp.shared.auth import OAuthMetadata
from pydantic import BaseModel, ConfigDict, Field

from segue.mcp.oauth.tokens import OAuthClient, TokenSource


class LoginGrant(BaseModel):
    """What a user got at a server. Encrypted in its row, and read for that user and server only."""

    model_config = ConfigDict(frozen=True, hide_input_in_errors=True)

    owner: str
    server: str
    source: TokenSource
    access_token: str = Field(repr=False)
    refresh_token: str | None = Field(repr=False)


class LoginAttempt(BaseModel):
    """A login that was begun, with all that is needed to finish it."""

    model_config = ConfigDict(frozen=True, hide_input_in_errors=True)

    owner: str
    server: str
    source: TokenSource
    metadata: OAuthMetadata
    verifier: str = Field(repr=False)
    redirect_uri: str
    scope: str | None


class SealedClient(BaseModel):
    """What Segue is called at an authorization server, for one server of mcp.json."""

    model_config = ConfigDict(frozen=True, hide_input_in_errors=True)

    server: str
    issuer: str
    client: OAuthClient


@dataclass(frozen=True, slots=True)
class Access:
    """A token of one user at one server. `login` is the id of the login that it belongs to."""

    login: str
    token: str = field(repr=False)
