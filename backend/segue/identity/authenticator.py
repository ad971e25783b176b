"""How a caller is told from the key or token of a request. Knows nothing of HTTP: `api/gate.py` brings the credential.

The three ways: nobody is asked (here), API keys (`keys.py`), tokens of an identity provider (`tokens.py`).
"""

from typing import Protocol

from segue.domain.errors import AppError
from segue.domain.identity import LOCAL_USER, SCOPES, Identity


class Unauthorized(AppError):
    """Says the same whatever was wrong; `reason` is for the log alone."""

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
        """Raises Unauthorized, and AppError with a 503 where it cannot be found out now."""


class Anonymous:
    """AUTH=none: everyone is the one local user, who may see everything."""

    async def identify(self, _credential: str | None) -> Identity:
        return Identity(LOCAL_USER, frozenset(SCOPES))
