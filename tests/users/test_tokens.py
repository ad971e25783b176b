"""AUTH=jwt over HTTP: whom a token names, and every way in which one does not count."""

import base64
import json
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import httpx2
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from pydantic import SecretStr
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from segue.config import Settings
from segue.domain.errors import AppError
from segue.users.id_tokens import (
    FETCH_EVERY_S,
    FRESH_S,
    MAX_BYTES,
    MAX_TOKEN_CHARS,
    TRUSTED_S,
    KeySet,
    verification_key,
)
from tests.support.identity import speaking
from tests.support.logs import until
from tests.support.server import serving
from tests.support.service import Client, running

ISSUER, AUDIENCE = "https://id.example", "segue"
RSA = rsa.generate_private_key(65537, 2048)
EC = ec.generate_private_key(ec.SECP256R1())
ED = ed25519.Ed25519PrivateKey.generate()
SECRET = "s" * 32


def pem(private: Any) -> str:
    encoded: bytes = private.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    return encoded.decode()


def token(key: Any = RSA, algorithm: str = "RS256", *, key_id: str | None = None, **claims: Any) -> str:
    """One that is good, but for what is given; a claim that is None is left out."""
    all_claims = {"iss": ISSUER, "aud": AUDIENCE, "sub": "ada", "exp": time.time() + 600, **claims}
    headers = {"kid": key_id} if key_id else None
    return jwt.encode({name: value for name, value in all_claims.items() if value is not None}, key, algorithm, headers)


def part(value: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()


def asking_for_tokens(settings: Settings, **update: Any) -> Settings:
    given = {"auth": "jwt", "jwt_issuer": ISSUER, "jwt_audience": AUDIENCE, **update}
    return settings.model_copy(update=given)


@pytest.fixture
async def service(settings: Settings) -> AsyncIterator[Client]:
    async with running(asking_for_tokens(settings, jwt_key=SecretStr(pem(RSA)))) as served:
        yield served


async def status_for(client: Client, credential: str) -> int:
    response = await client.http.get("/sessions", headers={b"Authorization": b"Bearer " + credential.encode()})
    return response.status_code


async def test_the_subject_is_the_user_and_what_one_makes_no_other_sees(service: Client) -> None:
    async with speaking(service, token()) as ada, speaking(service, token(sub="bob")) as bob:
        session = await ada.new_session()
        assert (await bob.http.get(f"/sessions/{session}")).status_code == 404
        assert [item["id"] for item in (await ada.get("/sessions"))["items"]] == [session]


@pytest.mark.in_turns(3)
@pytest.mark.parametrize(
    ("claim", "claims", "groups"),
    [
        ("groups", {"groups": ["staff", "admins"]}, ["admins", "staff"]),
        ("groups", {"groups": "the staff"}, ["the staff"]),
        ("groups", {"groups": ["staff", 7, None, {"a": 1}]}, ["staff"]),
        ("groups", {"groups": {"staff": True}}, []),
        ("groups", {"roles": ["staff"]}, []),
        ("https://id.example/roles", {"https://id.example/roles": ["staff"], "groups": ["others"]}, ["staff"]),
    ],
)
async def test_the_groups_stand_in_a_claim_of_the_operators_choice(
    settings: Settings, claim: str, claims: dict[str, Any], groups: list[str]
) -> None:
    asking = asking_for_tokens(settings, jwt_key=SecretStr(pem(RSA)), jwt_groups_claim=claim)
    async with running(asking) as service, speaking(service, token(**claims)) as ada:
        assert (await ada.get("/me"))["groups"] == groups


async def test_groups_of_a_token_give_the_roles_that_they_map_to(settings: Settings) -> None:
    roles = {"finance-leads": {"approver", "auditor"}, "leads": {"approver"}, "others": {"nothing"}}
    asking = asking_for_tokens(settings, jwt_key=SecretStr(pem(RSA)), jwt_roles=roles)
    lead, clerk = token(groups=["finance-leads", "leads"]), token(groups=["finance"], roles=["approver"])
    async with running(asking) as service, speaking(service, lead) as sara, speaking(service, clerk) as ada:
        assert [(await each.get("/me"))["roles"] for each in (sara, ada)] == [["approver", "auditor"], []]


@pytest.mark.parametrize("claims", [{"scope": "openid ops"}, {"scp": ["ops"]}, {"scp": "ops"}, {"scope": ["ops"]}])
async def test_the_scope_ops_stands_in_scope_or_scp(service: Client, claims: dict[str, Any]) -> None:
    async with speaking(service, token(**claims)) as ops, speaking(service, token(scope="shops")) as user:
        assert (await ops.http.get("/tool-states")).status_code == 200
        assert (await user.http.get("/tool-states")).status_code == 403


@pytest.mark.in_turns(6)
@pytest.mark.parametrize(
    "claims",
    [
        {"exp": 1_000_000_000},
        {"exp": None},
        {"exp": "soon"},
        {"nbf": 9_000_000_000},
        {"iss": "https://evil.example"},
        {"iss": None},
        {"aud": "another-service"},
        {"aud": None},
        {"sub": None},
        {"sub": ""},
        {"sub": " ada"},
        {"sub": "a\x00da"},
        {"sub": "a" * 201},
    ],
    ids=lambda claims: "-".join(f"{name}={str(value)[:12]!r}" for name, value in claims.items()),
)
async def test_a_token_with_a_claim_that_does_not_hold_is_refused(service: Client, claims: dict[str, Any]) -> None:
    assert await status_for(service, token(**claims)) == 401


async def test_a_token_that_is_longer_than_any_should_be_is_refused(service: Client) -> None:
    assert await status_for(service, token(padding="x" * MAX_TOKEN_CHARS)) == 401


async def test_clocks_may_be_apart_a_little(service: Client) -> None:
    assert await status_for(service, token(exp=time.time() - 10, nbf=time.time() + 10, iat=time.time() + 10)) == 200


async def test_a_token_that_is_not_signed_by_the_key_is_refused(service: Client) -> None:
    good = token()
    head, body, signature = good.split(".")
    none = {"alg": "none", "typ": "JWT"}
    claims = {"iss": ISSUER, "aud": AUDIENCE, "sub": "ada", "exp": time.time() + 600}
    signed = part({"alg": "HS256", "typ": "JWT"}) + "." + part(claims)
    confused = jwt.algorithms.HMACAlgorithm(jwt.algorithms.HMACAlgorithm.SHA256).sign(
        signed.encode(), pem(RSA).encode()
    )
    forged = {
        "no algorithm": f"{part(none)}.{part(claims)}.",
        "no algorithm, but a signature": f"{part(none)}.{body}.{signature}",
        "the public key as a secret": f"{signed}.{base64.urlsafe_b64encode(confused).rstrip(b'=').decode()}",
        "another key": token(rsa.generate_private_key(65537, 2048)),
        "other claims": f"{head}.{part({**claims, 'sub': 'root'})}.{signature}",
        "no signature": f"{head}.{body}.",
        "an algorithm of another key": token(EC, "ES256"),
    }
    assert await status_for(service, good) == 200
    for name, credential in forged.items():
        assert await status_for(service, credential) == 401, name


async def test_what_is_no_token_at_all_is_a_401_and_never_a_500(service: Client) -> None:
    deep = base64.urlsafe_b64encode(b'{"alg":' + b"[" * 5000).rstrip(b"=").decode()
    surrogate = part({"alg": "RS256"}) + "." + part({"sub": "\ud800"}) + ".x"
    for credential in ("x", "..", "a.b.c", "é.é.é", f"{deep}.{deep}.x", "[" * 8000, "a" * 30_000, surrogate):
        assert await status_for(service, credential) == 401, credential[:20]
    assert await status_for(service, token(sub="\ud800")) == 401


@pytest.mark.parametrize(
    ("key", "private", "algorithm"),
    [
        (pem(RSA).replace("\n", "\\n"), RSA, "PS384"),
        (pem(EC), EC, "ES256"),
        (pem(ED), ED, "EdDSA"),
        (SECRET, SECRET, "HS256"),
    ],
    ids=["RSA, line ends escaped", "EC", "Ed25519", "a secret"],
)
async def test_one_key_can_be_of_any_safe_kind(settings: Settings, key: str, private: Any, algorithm: str) -> None:
    async with running(asking_for_tokens(settings, jwt_key=SecretStr(key))) as client:
        assert await status_for(client, token(private, algorithm)) == 200


@pytest.mark.parametrize(
    "text",
    [
        "short",
        "-----BEGIN PUBLIC KEY-----\nnonsense\n-----END PUBLIC KEY-----",
        "-----BEGIN PRIVATE KEY-----\n-----END PRIVATE KEY-----",
        pem(ec.generate_private_key(ec.SECP256K1())),
    ],
)
def test_a_key_that_cannot_be_used_says_what_is_wanted(text: str) -> None:
    with pytest.raises(AppError) as refused:
        verification_key(text)
    assert refused.value.detail.startswith("JWT_KEY is")
    assert text not in refused.value.detail


# --- JWKS ---


@dataclass(slots=True)
class Provider:
    """An identity provider: the keys it publishes, and how often it was asked."""

    url: str = ""
    keys: list[dict[str, Any]] = field(default_factory=list)
    asked: int = 0
    is_down: bool = False
    padding: str = ""

    async def answer(self, _: Request) -> Response:
        self.asked += 1
        return Response(status_code=500) if self.is_down else JSONResponse({"keys": self.keys, "x": self.padding})


@pytest.fixture
async def identity_provider() -> AsyncIterator[Provider]:
    provider = Provider(keys=[published(RSA, "one")])
    async with serving(Starlette(routes=[Route("/keys", provider.answer)])) as url:
        provider.url = f"{url}/keys"
        yield provider


def published(private: Any, key_id: object, **also: Any) -> dict[str, Any]:
    kinds: dict[type, Any] = {
        rsa.RSAPrivateKey: jwt.algorithms.RSAAlgorithm,
        ec.EllipticCurvePrivateKey: jwt.algorithms.ECAlgorithm,
    }
    [algorithm] = [kind for private_type, kind in kinds.items() if isinstance(private, private_type)]
    return {**algorithm.to_jwk(private.public_key(), as_dict=True), "kid": key_id, **also}


@dataclass(slots=True)
class Time:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass(slots=True)
class Fetching:
    keys: KeySet
    time: Time
    provider: Provider

    async def knows(self, key_id: str | None) -> bool:
        return await self.keys.find(key_id) is not None


@pytest.fixture
async def fetching(identity_provider: Provider) -> AsyncIterator[Fetching]:
    clock = Time()
    async with httpx2.AsyncClient() as client, KeySet(identity_provider.url, client, clock=clock) as keys:
        yield Fetching(keys, clock, identity_provider)


async def test_tokens_are_checked_with_the_keys_the_provider_publishes(
    settings: Settings, identity_provider: Provider
) -> None:
    identity_provider.keys += [published(EC, "two"), {"kty": "oct", "kid": "three", "k": part(SECRET)}, {"kty": "?"}]
    identity_provider.keys.append(published(RSA, "five", alg="PS512"))
    async with running(asking_for_tokens(settings, jwt_jwks_url=identity_provider.url)) as client:
        assert await status_for(client, token(RSA, "RS256", key_id="one")) == 200
        assert await status_for(client, token(EC, "ES256", key_id="two")) == 200
        assert await status_for(client, token(RSA, "PS512", key_id="five")) == 200
        for wrong in (
            token(RSA, "RS256", key_id="five"),
            token(EC, "ES256", key_id="one"),
            token(SECRET, "HS256", key_id="three"),
            token(RSA, "RS256", key_id="four"),
            token(RSA, "RS256"),
        ):
            assert await status_for(client, wrong) == 401
    assert identity_provider.asked == 1


async def test_a_provider_that_is_down_at_first_is_a_503_and_not_a_refusal(
    settings: Settings, identity_provider: Provider
) -> None:
    identity_provider.is_down = True
    async with running(asking_for_tokens(settings, jwt_jwks_url=identity_provider.url)) as client:
        assert await status_for(client, token(key_id="one")) == 503


async def test_a_key_that_has_just_been_published_is_found_but_invented_ones_ask_only_now_and_then(
    fetching: Fetching,
) -> None:
    assert await fetching.knows("one")
    fetching.provider.keys.append(published(EC, "two"))
    assert not await fetching.knows("two")
    fetching.time.now += FETCH_EVERY_S
    assert await fetching.knows("two")
    for number in range(100):
        assert not await fetching.knows(f"invented {number}")
    assert fetching.provider.asked == 2


async def test_known_keys_go_on_counting_while_the_provider_is_away_but_not_for_ever(fetching: Fetching) -> None:
    assert await fetching.knows("one")
    fetching.provider.is_down = True
    fetching.time.now += FRESH_S + 1
    assert await fetching.knows("one")
    fetching.time.now += TRUSTED_S
    with pytest.raises(AppError) as refused:
        await fetching.knows("one")
    assert (refused.value.code, refused.value.status) == ("identity_unavailable", 503)


async def test_a_key_that_was_withdrawn_counts_no_more_once_the_keys_are_read_anew(fetching: Fetching) -> None:
    assert await fetching.knows("one")
    fetching.provider.keys = [published(EC, "two")]
    fetching.time.now += FRESH_S
    assert await fetching.knows("one")  # nobody waits for the provider

    async def is_asked() -> bool:
        return fetching.provider.asked == 2

    await until(is_asked)
    assert await fetching.knows("two")
    assert not await fetching.knows("one")


async def test_a_list_of_keys_is_read_no_further_than_its_bound(fetching: Fetching) -> None:
    fetching.provider.padding = "x" * MAX_BYTES
    with pytest.raises(AppError, match="identity_unavailable"):
        await fetching.knows("one")


async def test_only_the_first_hundred_keys_are_read_and_none_whose_id_is_no_text(fetching: Fetching) -> None:
    fetching.provider.keys = [published(EC, ["odd"]), *[published(EC, str(number)) for number in range(100)]]
    assert await fetching.knows("98")
    assert not await fetching.knows("99")


async def test_a_token_without_a_key_id_is_checked_with_the_only_key_there_is(fetching: Fetching) -> None:
    assert await fetching.knows(None)


async def test_a_key_for_encryption_or_for_another_algorithm_checks_no_signature(fetching: Fetching) -> None:
    weak = rsa.generate_private_key(65537, 1024)  # noqa: S505 (what is refused)
    fetching.provider.keys = [
        published(RSA, "encrypts", use="enc"),
        published(RSA, "only PS512", alg="PS512"),
        published(weak, "weak"),
    ]
    assert not await fetching.knows("encrypts")
    assert not await fetching.knows("weak")
    found = await fetching.keys.find("only PS512")
    assert found is not None
    assert found.algorithms == ("PS512",)
