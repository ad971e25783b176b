"""AUTH=jwt: checks a token of the identity provider and reads the caller from it.

The key decides which algorithms are accepted, never the token: a public key must not serve as an HMAC secret.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import jwt
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.serialization import load_pem_public_key

from segue.domain.errors import AppError
from segue.domain.identity import Identity, is_user
from segue.identity.authenticator import Unauthorized

LEEWAY_S = 30  # by which the clocks of the provider and of this machine may differ
MAX_TOKEN_CHARS = 8192
MIN_RSA_BITS, MAX_RSA_BITS = 2048, 16_384
_CURVES = {"secp256r1": "ES256", "secp384r1": "ES384", "secp521r1": "ES512"}
_SECRETS = {"HS256": 32, "HS384": 48, "HS512": 64}  # bytes a secret needs, RFC 7518 section 3.2


@dataclass(frozen=True, slots=True)
class VerificationKey:
    """A public key or a shared secret, and the only algorithms it may be used with."""

    key: Any
    algorithms: tuple[str, ...]


class KeySource(Protocol):
    async def find(self, key_id: str | None) -> VerificationKey | None:
        """The key that a token names; None if there is no such key."""


@dataclass(frozen=True, slots=True)
class OneKey:
    """JWT_KEY: one key for all tokens; the key id in a token is ignored."""

    key: VerificationKey

    async def find(self, _key_id: str | None) -> VerificationKey:
        return self.key


class Tokens:
    """The Authenticator for tokens: `sub` is the user, the scopes are the words of `scope` and `scp`, the groups are in
    the claim `groups`, as a list or one name. A token without an expiry is refused.
    """

    def __init__(self, keys: KeySource, *, issuer: str, audience: str, groups: str = "groups") -> None:
        self._keys = keys
        self._issuer = issuer
        self._audience = audience
        self._groups = groups
        self._jwt = jwt.PyJWT({"require": ["exp", "sub"], "enforce_minimum_key_length": True})

    async def identify(self, credential: str | None) -> Identity:
        if credential is None or len(credential) > MAX_TOKEN_CHARS:
            raise Unauthorized("no_token" if credential is None else "token_too_long")
        try:
            key = await self._keys.find(jwt.get_unverified_header(credential).get("kid"))
            if key is None:
                raise Unauthorized("unknown_key_id")
            claims = self._jwt.decode(
                credential,
                key.key,
                algorithms=key.algorithms,
                issuer=self._issuer,
                audience=self._audience,
                leeway=LEEWAY_S,
            )
        except jwt.PyJWTError as error:
            raise Unauthorized(type(error).__name__) from error
        if not is_user(claims["sub"]):
            raise Unauthorized("unusable_sub")
        told = claims.get(self._groups)
        groups = frozenset(name for name in (told if isinstance(told, list) else [told]) if isinstance(name, str))
        return Identity(claims["sub"], _scopes(claims), groups=groups)


def verification_key(text: str) -> VerificationKey:
    """Reads JWT_KEY: a public key in PEM, also with its line ends written as `\\n`, or else a shared secret.

    Raises AppError `jwt_key_unusable`.
    """
    text = text.replace("\\n", "\n").strip()
    if not text.startswith("-----BEGIN"):
        algorithms = tuple(name for name, needed in _SECRETS.items() if len(text.encode()) >= needed)
        if not algorithms:
            raise _unusable(f"is neither a public key in PEM nor a secret of at least {_SECRETS['HS256']} bytes")
        return VerificationKey(text, algorithms)
    try:
        public = load_pem_public_key(text.encode())
    except ValueError as error:
        raise _unusable("is not a public key in PEM (`-----BEGIN PUBLIC KEY-----`)") from error
    algorithms = public_algorithms(public)
    if not algorithms:
        raise _unusable(
            f"is no RSA key of {MIN_RSA_BITS} to {MAX_RSA_BITS} bits, EC key on a NIST curve or Ed25519 key"
        )
    return VerificationKey(public, algorithms)


def public_algorithms(public: object) -> tuple[str, ...]:
    """The algorithms that a public key can verify safely; empty if it is not a public key or is too weak."""
    match public:
        case RSAPublicKey() if MIN_RSA_BITS <= public.key_size <= MAX_RSA_BITS:
            return ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
        case EllipticCurvePublicKey() if public.curve.name in _CURVES:
            return (_CURVES[public.curve.name],)
        case Ed25519PublicKey():
            return ("EdDSA",)
        case _:
            return ()


def _unusable(what: str) -> AppError:
    return AppError("jwt_key_unusable", status=503, title="JWT_KEY cannot be used", detail=f"JWT_KEY {what}.")


def _scopes(claims: Mapping[str, Any]) -> frozenset[str]:
    words: set[str] = set()
    for claim in (claims.get("scope"), claims.get("scp")):
        match claim:
            case str():
                words.update(claim.split())
            case list():
                words.update(word for word in claim if isinstance(word, str))
    return frozenset(words)
