"""JWT_JWKS_URL: the provider's keys, kept while they are fresh, fetched again in the background and never all at once.

A provider that is away or slow costs nobody a wait as long as the key of a token is known and was seen within an hour.
"""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Self

import httpx2
import jwt
import orjson
import structlog

from segue.domain.errors import AppError
from segue.identity.tokens import VerificationKey, public_algorithms

FRESH_S = 300.0
TRUSTED_S = 3600.0  # a key the provider has withdrawn counts no longer than this, even if it cannot be asked
ASK_EVERY_S = 10.0  # also bounds what tokens with invented key ids can cause
RETRY_S = 1.0
FETCH_TIMEOUT_S = 5.0

log = structlog.get_logger()


class KeySet:
    """For as long as it is entered; `clock` counts seconds."""

    def __init__(self, url: str, client: httpx2.AsyncClient, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._url = url
        self._client = client
        self._clock = clock
        self._keys: dict[str | None, VerificationKey] = {}
        self._read_at = self._next_at = float("-inf")
        self._reading: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._reading is not None:
            self._reading.cancel()
            with suppress(asyncio.CancelledError):
                await self._reading

    async def find(self, key_id: str | None) -> VerificationKey | None:
        """Raises AppError `identity_unavailable` where the provider's keys cannot be known."""
        key, age = self._choose(key_id), self._age()
        if key is not None and age < FRESH_S:
            return key
        reading = self._read_again()
        if key is None or age >= TRUSTED_S:
            if reading is not None:
                await asyncio.shield(reading)
            if self._age() >= TRUSTED_S:
                raise _unavailable()
            key = self._choose(key_id)
        return key

    def _choose(self, key_id: str | None) -> VerificationKey | None:
        if key_id is None and len(self._keys) == 1:
            return next(iter(self._keys.values()))
        return self._keys.get(key_id)

    def _age(self) -> float:
        return self._clock() - self._read_at

    def _read_again(self) -> asyncio.Task[None] | None:
        """The fetch that is under way or starts now; None where the last one was a moment ago."""
        if self._reading is None and self._clock() >= self._next_at:
            self._reading = asyncio.create_task(self._read(), name="the keys of the identity provider")
        return self._reading

    async def _read(self) -> None:
        pause = RETRY_S
        try:
            async with asyncio.timeout(FETCH_TIMEOUT_S):
                response = (await self._client.get(self._url)).raise_for_status()
            self._keys = _usable(orjson.loads(response.content))
            self._read_at = self._clock()
            pause = ASK_EVERY_S
        except (httpx2.HTTPError, TimeoutError, orjson.JSONDecodeError) as error:
            log.warning("jwks_unreachable", error=type(error).__name__)
        finally:
            self._next_at = self._clock() + pause
            self._reading = None


def _usable(document: Any) -> dict[str | None, VerificationKey]:
    """The public signing keys, by id. A secret does not become one by being published."""
    keys: dict[str | None, VerificationKey] = {}
    for entry in document.get("keys", []) if isinstance(document, dict) else []:
        key = _verification_key(entry) if isinstance(entry, dict) else None
        if key is not None:
            keys[entry.get("kid")] = key
    if not keys:
        log.warning("jwks_without_keys")
    return keys


def _verification_key(entry: dict[str, Any]) -> VerificationKey | None:
    if entry.get("use", "sig") != "sig":
        return None
    try:
        public = jwt.PyJWK(entry).key
    except (jwt.PyJWTError, ValueError, TypeError):
        return None
    algorithms = tuple(name for name in public_algorithms(public) if name == entry.get("alg", name))
    return VerificationKey(public, algorithms) if algorithms else None


def _unavailable() -> AppError:
    return AppError(
        "identity_unavailable",
        status=503,
        title="The identity provider cannot be reached",
        detail="Whose token this is cannot be found out now. Try again in a moment.",
        retryable=True,
        extra={"retry_after_s": 2},
    )
