"""AUTH=jwt: reads the caller from a token (JWT_KEY, JWT_JWKS_URL), and a gateway's user (OPENWEBUI_JWT_SECRET).

The key decides which algorithms are accepted, never the token: a public key must not serve as an HMAC secret. While the
provider is slow or down, tokens are still checked against keys read within the last hour, without a wait.
"""

import asyncio
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import httpx2
import jwt
import orjson
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.serialization import load_pem_public_key

from segue.domain.errors import app_error
from segue.domain.identity import Identity, is_user
from segue.log import log
from segue.net.http_client import BodyTooLarge, answer_of
from segue.users.api_keys import Unauthorized
from segue.watch import end_tasks

GATEWAY = "open-webui"  # the issuer of its tokens
FRESH_S = 300.0
TRUSTED_S = 3600.0  # a withdrawn key is accepted no longer than this if the provider is down
FETCH_EVERY_S = 10.0  # at most: a token with an invented key id causes a fetch
RETRY_S = 1.0
FETCH_TIMEOUT_S = 5.0
MAX_BYTES = 200_000
UNREADABLE = (httpx2.HTTPError, BodyTooLarge, TimeoutError, orjson.JSONDecodeError)
MAX_KEYS = 100
LEEWAY_S = 30  # by which the clocks of the provider and of this machine may differ
MAX_TOKEN_CHARS = 8192
MIN_RSA_BITS, MAX_RSA_BITS = 2048, 16_384
_CURVES = {"secp256r1": "ES256", "secp384r1": "ES384", "secp521r1": "ES512"}
_SECRETS = {"HS256": 32, "HS384": 48, "HS512": 64}  # bytes a secret needs, RFC 7518 section 3.2
_JWT = jwt.PyJWT({"require": ["exp", "sub"], "enforce_minimum_key_length": True})


@dataclass(frozen=True, slots=True)
class VerificationKey:
    """A public key or a shared secret, and the only algorithms it may be used with."""

    key: Any
    algorithms: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class OneKey:
    """JWT_KEY, or a gateway's: one key for all tokens; the key id in a token is ignored."""

    key: VerificationKey

    async def find(self, _key_id: str | None) -> VerificationKey:
        return self.key


@dataclass(frozen=True, slots=True)
class Tokens:
    """The Authenticator for tokens: `sub` is the user, the scopes are the words of `scope` and `scp`, the groups are in
    the claim `groups`, as a list or one name, and give the `roles` they map to. A token without an expiry is refused.
    """

    keys: "OneKey | KeySet"
    issuer: str
    audience: str | None  # a gateway's tokens name none
    groups: str = "groups"
    roles: Mapping[str, Collection[str]] = field(default_factory=dict)

    async def identify(self, credential: str | None, **_: bool) -> Identity:
        if credential is None or len(credential) > MAX_TOKEN_CHARS:
            raise Unauthorized("no_token" if credential is None else "token_too_long")
        try:
            key = await self.keys.find(jwt.get_unverified_header(credential).get("kid"))
            if key is None:
                raise Unauthorized("unknown_key_id")
            claims = _JWT.decode(
                credential, key.key, key.algorithms, issuer=self.issuer, audience=self.audience, leeway=LEEWAY_S
            )
        except jwt.PyJWTError as error:
            raise Unauthorized(type(error).__name__) from error
        if not is_user(claims["sub"]):
            raise Unauthorized("unusable_sub")
        listed = groups_claim if isinstance(groups_claim := claims.get(self.groups), list) else [groups_claim]
        groups = frozenset(name for name in listed if isinstance(name, str))
        roles = frozenset(role for group in groups for role in self.roles.get(group, ()))
        return Identity(claims["sub"], _scopes(claims), groups=groups, roles=roles)


def verification_key(text: str) -> VerificationKey:
    """Reads JWT_KEY: a public key in PEM (`\\n` are line ends) or a shared secret. Raises `jwt_key_unusable`."""
    text = text.replace("\\n", "\n").strip()
    if not text.startswith("-----BEGIN"):
        algorithms = tuple(name for name, needed in _SECRETS.items() if len(text.encode()) >= needed)
        if not algorithms:
            raise app_error("jwt_key_neither", least=_SECRETS["HS256"])
        return VerificationKey(text, algorithms)
    try:
        public = load_pem_public_key(text.encode())
    except ValueError as error:
        raise app_error("jwt_key_unusable") from error
    algorithms = public_algorithms(public)
    if not algorithms:
        raise app_error("jwt_key_of_other_kind", least=MIN_RSA_BITS, most=MAX_RSA_BITS)
    return VerificationKey(public, algorithms)


def public_algorithms(public: object) -> tuple[str, ...]:
    """Returns the algorithms that a public key can verify safely; empty if it is not a public key or is too weak."""
    match public:
        case RSAPublicKey() if MIN_RSA_BITS <= public.key_size <= MAX_RSA_BITS:
            return ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
        case EllipticCurvePublicKey() if public.curve.name in _CURVES:
            return (_CURVES[public.curve.name],)
        case Ed25519PublicKey():
            return ("EdDSA",)
        case _:
            return ()


def _scopes(claims: Mapping[str, Any]) -> frozenset[str]:
    values = (claims.get(name) for name in ("scope", "scp"))
    lists = (claim.split() if isinstance(claim, str) else claim for claim in values if isinstance(claim, str | list))
    return frozenset(word for words in lists for word in words if isinstance(word, str))


# PyJWT's PyJWKClient fetches synchronously under a lock: once its cache is old, every request waits for the provider.
class KeySet:
    """The keys of JWT_JWKS_URL, fetched while it is entered. `clock` returns seconds."""

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
        await end_tasks(self._fetching)

    async def find(self, key_id: str | None) -> VerificationKey | None:
        """Raises AppError `identity_unavailable` if no keys are cached that may be trusted and none can be fetched."""
        key, age = self._choose(key_id), self._age()
        if key is not None and age < FRESH_S:
            return key
        if self._fetching is None and self._clock() >= self._next_at:
            self._fetching = asyncio.create_task(self._fetch_keys(), name="the keys of the identity provider")
        if key is None or age >= TRUSTED_S:
            if self._fetching is not None:
                await asyncio.shield(self._fetching)
            if self._age() >= TRUSTED_S:
                raise app_error("identity_unavailable")
            key = self._choose(key_id)
        return key

    def _choose(self, key_id: str | None) -> VerificationKey | None:
        if key_id is None and len(self._keys) == 1:
            return next(iter(self._keys.values()))
        return self._keys.get(key_id)

    def _age(self) -> float:
        return self._clock() - self._read_at

    async def _fetch_keys(self) -> None:
        pause = RETRY_S
        try:
            self._keys = await fetch_keys(self._client, self._url)
            self._read_at = self._clock()
            pause = FETCH_EVERY_S
        except UNREADABLE as error:
            log.warning("jwks_unreachable", error=type(error).__name__, advice="Check JWT_JWKS_URL.")
        finally:
            self._next_at = self._clock() + pause
            self._fetching = None


async def fetch_keys(client: httpx2.AsyncClient, url: str) -> dict[str | None, VerificationKey]:
    """Returns the provider's usable keys by their ids. Raises one of UNREADABLE."""
    async with asyncio.timeout(FETCH_TIMEOUT_S):
        response = await answer_of(client, client.build_request("GET", url), max_bytes=MAX_BYTES)
    return _usable(orjson.loads(response.raise_for_status().content))


def _usable(document: Any) -> dict[str | None, VerificationKey]:
    """Returns the public signing keys by their ids; skips shared secrets and keys that are too weak."""
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
