"""Identifies a caller by a credential. Knows nothing of HTTP.

An Authenticator for each setting of AUTH: `Anonymous` here, API keys and the tokens of an identity provider beside it.
"""

from typing import Protocol

from segue.domain.errors import AppError
from segue.domain.identity import LOCAL_USER, SCOPES, Identity


class Unauthorized(AppError):
    """The client always gets the same text; `reason` is only for the log."""

    def __init__(self, reason: str) -> None:
        super().__init__(
            "unauthorized",
            status=401,
            title="Not authenticated",
            detail="Send a valid key or token as `Authorization: Bearer …` or as `X-API-Key: …`.",
        )
        self.reason = reason


class Authenticator(Protocol):
    async def identify(self, credential: str | None) -> Identity:
        """Raises Unauthorized, or AppError with status 503 if the caller cannot be identified at the moment."""


class Anonymous:
    """AUTH=none: every caller is the one local user, with all scopes but that of speaking for others."""

    async def identify(self, _credential: str | None) -> Identity:
        return Identity(LOCAL_USER, frozenset(SCOPES) - {"act_as"}, is_everybody=True)
