"""Logins as users see them. Knows nothing of tokens, and imports nothing of the protocol."""

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Final, Literal

from segue.domain.doc import doc

CALLBACK_PATH: Final = "/mcp/oauth/callback"
DOCUMENT_PATH: Final = "/mcp/oauth/client.json"

LoginState = Literal["logged_in", "logged_out"]


@dataclass(frozen=True, slots=True)
class BegunLogin:
    """Where to log in."""

    url: Annotated[str, doc("Open it in a browser. It is for the caller only, and works once.")]
    expires_at: Annotated[datetime, doc("Until when the login has to be finished.")]


@dataclass(frozen=True, slots=True)
class McpLogin:
    """How a user stands with a server that asks for a login. No token is in it."""

    server: Annotated[str, doc("Its name in mcp.json.")]
    state: Annotated[LoginState, doc("Whether the caller is logged in there.")]
    since: Annotated[datetime | None, doc("Since when; null without a login.")]
    scope: Annotated[str | None, doc("What the login allows, in the server's own words.")]


@dataclass(frozen=True, slots=True)
class FinishedLogin:
    """Whose login the callback has finished. `key` is that of the question that steps wait with for it."""

    owner: str
    server: str
    key: str


class LoginRefused(Exception):
    """A callback that gives no user a login; the message says why, and what helps."""
