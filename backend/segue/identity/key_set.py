"""JWT_JWKS_URL: the public keys of the identity provider, cached, and fetched again in the background.

While the provider is slow or down, tokens are still checked against keys read within the last hour, without a wait.
PyJWT's own client fetches under a lock, and every request would wait for a slow provider.
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
from segue.net.http_client import BodyTooLarge, answer_of

FRESH_S = 300.0
TRUSTED_S = 3600.0  # a withdrawn key is accepted no longer than this if the provider is down
FETCH_EVERY_S = 10.0  # at most: a token with an invented key id causes a fetch
RETRY_S = 1.0
FETCH_TIMEOUT_S = 5.0
MAX_BYTES = 200_000
MAX_KEYS = 100

log = structlog.get_logger()


# PyJWT's PyJWKClient fetches synchronously under a lock: once its cache is old, every request waits for the provider.
class KeySet:
    """A KeySource that fetches while it is entered. `clock` returns seconds."""

    def __init__(self, url: str, client: httpx2.AsyncClient, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._url = url
        self._client = client
        self._clock = clock
        self._keys: dict[str | None, VerificationKey] = {}
        self._read_at = self._next_at = float("-inf")
        self._fetching: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._fetching is not None:
            self._fetching.cancel()
            with suppress(asyncio.CancelledError):
                await self._fetching

    async def find(self, key_id: str | None) -> VerificationKey | None:
        """Raises AppError `identity_unavailable` if no keys are cached that may be trusted and none can be fetched."""
        key, age = self._choose(key_id), self._age()
        if key is not None and age < FRESH_S:
            return key
        fetching = self._fetch()
        if key is None or age >= TRUSTED_S:
            if fetching is not None:
                await asyncio.shield(fetching)
            if self._age() >= TRUSTED_S:
                raise AppError(
                    "identity_unavailable",
                    status=503,
                    title="The identity provider cannot be reached",
                    detail="Whose token this is cannot be found out now. Try again in a moment.",
                    retryable=True,
                    extra={"retry_after_s": 2},
                )
            key = self._choose(key_id)
        return key

    def _choose(self, key_id: str | None) -> VerificationKey | None:
        if key_id is None and len(self._keys) == 1:
            return next(iter(self._keys.values()))
        return self._keys.get(key_id)

    def _age(self) -> float:
        return self._clock() - self._read_at

    def _fetch(self) -> asyncio.Task[None] | None:
        """The fetch that is running or starts now; None if the last one was less than FETCH_EVERY_S ago."""
        if self._fetching is None and self._clock() >= self._next_at:
            self._fetching = asyncio.create_task(self._fetch_keys(), name="the keys of the identity provider")
        return self._fetching

    async def _fetch_keys(self) -> None:
        pause = RETRY_S
        try:
            async with asyncio.timeout(FETCH_TIMEOUT_S):
                request = self._client.build_request("GET", self._url)
                response = await answer_of(self._client, request, max_bytes=MAX_BYTES)
            self._keys = _usable(orjson.loads(response.raise_for_status().content))
            self._read_at = self._clock()
            pause = FETCH_EVERY_S
        except (httpx2.HTTPError, BodyTooLarge, TimeoutError, orjson.JSONDecodeError) as error:
            log.warning("jwks_unreachable", error=type(error).__name__)
        finally:
            self._next_at = self._clock() + pause
            self._fetching = None


def _usable(document: Any) -> dict[str | None, VerificationKey]:
    """The public signing keys by their ids; skips shared secrets and keys that are too weak."""
    keys: dict[str | None, VerificationKey] = {}
    listed = document.get("keys") if isinstance(document, dict) else None
    for entry in listed[:MAX_KEYS] if isinstance(listed, list) else []:
        key = _verification_key(entry) if isinstance(entry, dict) else None
        if key is not None and isinstance(key_id := entry.get("kid"), str | None):
            keys[key_id] = key
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
