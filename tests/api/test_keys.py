"""API keys over HTTP: who may make them and end them, what a rotation leaves, and that no list has a secret."""

import asyncio
from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import httpx2
import pytest

from segue.config import Settings
from segue.domain.ids import utc_now
from tests.support.identity import new_key, speaking
from tests.support.logs import until
from tests.support.plans import Frozen
from tests.support.service import Client, running
from tests.support.stores import looking_into

NOBODYS = "key_" + "0" * 26


@pytest.fixture
async def clock() -> Frozen:
    frozen = Frozen()
    frozen.now = utc_now()  # PostgreSQL looks at the times of keys too
    return frozen


@pytest.fixture
async def guarded(settings: Settings) -> Settings:
    return settings.model_copy(update={"auth": "api_key"})


@pytest.fixture
async def service(guarded: Settings, clock: Frozen) -> AsyncIterator[Client]:
    async with running(guarded, clock=clock) as served:
        yield served


@pytest.fixture
async def root(service: Client, guarded: Settings) -> AsyncIterator[Client]:
    async with speaking(service, await new_key(guarded, "root", ["ops", "ops:content"])) as client:
        yield client


async def made(client: Client, path: str = "/ops/keys", **body: Any) -> tuple[str, str]:
    response = await client.http.post(path, json=body)
    assert response.status_code == 201, response.text
    assert response.headers["cache-control"] == "no-store"
    return response.json()["key"]["id"], response.json()["secret"]


async def status_of(service: Client, secret: str) -> int:
    return (await service.http.get("/me", headers={"X-API-Key": secret})).status_code


def problem(response: httpx2.Response) -> tuple[int, str]:
    return response.status_code, response.json()["code"]


async def test_a_key_made_over_http_works_until_it_is_revoked_and_its_secret_is_nowhere_again(
    service: Client, root: Client, guarded: Settings
) -> None:
    key_id, secret = await made(root, user="ada", name="laptop")
    assert await status_of(service, secret) == 200
    hidden = secret.rpartition("_")[2]
    async with looking_into(guarded) as stores:
        for told in (await root.get("/ops/keys"), await root.get("/ops/audit")):
            assert hidden not in str(told)
            assert await stores.database.fetchval("SELECT digest FROM api_keys WHERE id = $1", key_id) not in str(told)
    [key] = (await root.get("/ops/keys", user="ada"))["items"]
    assert (key["id"], key["user"], key["name"], key["scopes"], key["works"]) == (key_id, "ada", "laptop", [], True)
    async with running(guarded) as elsewhere:
        assert await status_of(elsewhere, secret) == 200
        assert (await root.http.delete(f"/ops/keys/{key_id}")).status_code == 204
        assert await status_of(service, secret) == 401

        async def is_refused() -> bool:
            return await status_of(elsewhere, secret) == 401

        await until(is_refused)
    assert problem(await root.http.delete(f"/ops/keys/{key_id}")) == (404, "key_not_found")
    assert problem(await root.http.post(f"/ops/keys/{key_id}/rotate")) == (404, "key_not_found")
    acts = (await root.get("/ops/audit"))["items"]
    assert [(act["action"], act["actor"], act["details"]["key_id"]) for act in acts] == [
        ("revoke_key", "root", key_id),
        ("create_key", "root", key_id),
    ]


async def test_a_key_is_rotated_with_its_groups_and_roles_and_only_by_one_that_has_them(
    guarded: Settings, root: Client
) -> None:
    await new_key(guarded, "ada", groups=["staff", "staff"], roles=["approver"])
    [ada] = [key for key in (await root.get("/ops/keys"))["items"] if key["user"] == "ada"]
    assert (ada["groups"], ada["roles"]) == (["staff"], ["approver"])
    may: list[tuple[dict[str, list[str]], int]] = [
        ({}, 403),
        ({"groups": ["staff"]}, 403),
        ({"roles": ["approver"]}, 403),  # a group approves as a role does
        ({"groups": ["staff"], "roles": ["approver"]}, 201),
    ]
    for has, status in may:
        async with speaking(root, await new_key(guarded, "root", ["ops", "ops:content"], **has)) as operator:
            answer = await operator.http.post(f"/ops/keys/{ada['id']}/rotate")
        assert (answer.status_code, answer.json().get("code")) == (
            status,
            "beyond_own_scopes" if status == 403 else None,
        )
    assert [answer.json()["key"][name] for name in ("groups", "roles")] == [["staff"], ["approver"]]


async def test_a_rotated_key_works_beside_the_new_one_until_the_overlap_is_over(
    service: Client, root: Client, clock: Frozen, guarded: Settings
) -> None:
    ends = clock.now + timedelta(days=30)
    old_id, old = await made(root, user="ada", name="laptop", scopes=["ops"], expires_at=ends.isoformat())
    new_id, new = await made(root, f"/ops/keys/{old_id}/rotate", overlap_s=3600)
    keys = {key["id"]: key for key in (await root.get("/ops/keys", user="ada"))["items"]}
    assert [(await status_of(service, secret)) for secret in (old, new)] == [200, 200]
    assert [keys[new_id][name] for name in ("user", "name", "scopes")] == ["ada", "laptop", ["ops"]]
    assert keys[old_id]["expires_at"] < keys[new_id]["expires_at"]
    clock.now += timedelta(hours=1, minutes=1)
    assert [(await status_of(service, secret)) for secret in (old, new)] == [401, 200]
    assert {key["id"]: key["works"] for key in (await root.get("/ops/keys", user="ada"))["items"]} == {
        old_id: False,
        new_id: True,
    }
    clock.now += timedelta(days=30)
    assert await status_of(service, new) == 401
    last_id, last = await made(root, user="root")
    await made(root, f"/ops/keys/{last_id}/rotate", overlap_s=0)
    async with running(guarded) as elsewhere:
        assert await status_of(elsewhere, last) == 401


async def test_a_key_that_is_rotated_works_no_longer_than_it_would_have(root: Client, clock: Frozen) -> None:
    ends = clock.now + timedelta(minutes=10)
    old_id, _ = await made(root, user="ada", expires_at=ends.isoformat())
    await made(root, f"/ops/keys/{old_id}/rotate", overlap_s=3600)
    old, _ = (await root.get("/ops/keys", user="ada"))["items"]
    assert (old["id"], datetime.fromisoformat(old["expires_at"])) == (old_id, ends)


async def test_a_key_is_rotated_once_and_the_next_time_the_one_that_took_its_place_is_named(
    root: Client, clock: Frozen
) -> None:
    ends = clock.now + timedelta(days=30)
    first_id, _ = await made(root, user="ada", expires_at=ends.isoformat())
    path = f"/ops/keys/{first_id}/rotate"
    at_once = await asyncio.gather(*(root.http.post(path, json={"overlap_s": 3600}) for _ in range(2)))
    refused, rotated = sorted(at_once, key=lambda response: response.status_code, reverse=True)
    assert (problem(refused), rotated.status_code) == ((409, "key_rotated"), 201)
    second = rotated.json()["key"]
    assert second["id"] in refused.json()["detail"]
    third_id, _ = await made(root, f"/ops/keys/{second['id']}/rotate")
    keys = {key["id"]: key for key in (await root.get("/ops/keys", user="ada"))["items"]}
    assert keys.keys() == {first_id, second["id"], third_id}
    terms = {key_id: datetime.fromisoformat(key["expires_at"]) - clock.now for key_id, key in keys.items()}
    assert timedelta(days=29) < terms[third_id] < timedelta(days=31)


async def test_no_key_can_make_one_that_may_do_more_than_it_may_itself(
    service: Client, root: Client, guarded: Settings
) -> None:
    speaker_id, _ = await made(root, user="ada")
    gateway = await new_key(guarded, "gateway", ["act_as"])
    [gateway_id] = [key["id"] for key in (await root.get("/ops/keys", user="gateway"))["items"]]
    async with speaking(service, await new_key(guarded, "op", ["ops"])) as op:
        for body in ({"user": "op", "scopes": ["ops:content"]}, {"user": "op", "scopes": ["act_as"]}, {"user": "ada"}):
            assert problem(await op.http.post("/ops/keys", json=body)) == (403, "beyond_own_scopes"), body
        assert problem(await op.http.post(f"/ops/keys/{speaker_id}/rotate")) == (403, "beyond_own_scopes")
        await made(op, user="op", scopes=["ops"])
    assert problem(await root.http.post(f"/ops/keys/{gateway_id}/rotate")) == (403, "beyond_own_scopes")
    assert await status_of(service, gateway) == 200
    async with speaking(service, await new_key(guarded, "ada")) as ada:
        for method, path in (
            ("GET", "/ops/keys"),
            ("POST", "/ops/keys"),
            ("DELETE", f"/ops/keys/{gateway_id}"),
        ):
            asked = ada.http.build_request(method, path, json={"user": "ada"} if method == "POST" else None)
            assert problem(await ada.http.send(asked)) == (403, "forbidden"), path


@pytest.mark.sweep
async def test_what_is_no_key_to_make_is_refused_and_pages_show_every_key_once(root: Client, clock: Frozen) -> None:
    for body in (
        {},
        {"user": ""},
        {"user": " ada"},
        {"user": "a\nb"},
        {"user": "gate⇢ada"},
        {"user": "x" * 201},
        {"user": "ada", "scopes": ["root"]},
        {"user": "ada", "scopes": ["ops"] * 4},
        {"user": "ada", "expires_at": clock.now.isoformat()},
        {"user": "ada", "expires_at": "tomorrow"},
        {"user": "ada", "secret": "mine"},
    ):
        assert problem(await root.http.post("/ops/keys", json=body)) == (422, "invalid_request"), body
    for user in ("ada", "bob"):
        await made(root, user=user)
    whole = (await root.get("/ops/keys"))["items"]
    first = await root.get("/ops/keys", limit=2)
    second = await root.get("/ops/keys", limit=2, cursor=first["next_cursor"])
    assert (first["items"] + second["items"], second["next_cursor"]) == (whole, None)
    for key in (NOBODYS, "x", "key_*"):
        assert problem(await root.http.delete(f"/ops/keys/{key}")) == (404, "key_not_found")


async def test_where_callers_have_no_keys_the_routes_say_so(client: Client) -> None:
    for method, path in (("GET", ""), ("DELETE", f"/{NOBODYS}"), ("POST", f"/{NOBODYS}/rotate")):
        assert problem(await client.http.request(method, f"/ops/keys{path}")) == (409, "no_api_keys")
    assert problem(await client.http.post("/ops/keys", json={"user": "ada"})) == (409, "no_api_keys")


async def test_a_key_that_is_asked_for_again_is_not_made_again_and_the_answer_names_it(root: Client) -> None:
    make = partial(root.http.post, "/ops/keys", headers={"Idempotency-Key": "k-1"})
    both = await asyncio.gather(make(json={"user": "ada"}), make(json={"user": "ada"}))
    made, again = sorted(both, key=lambda each: each.status_code)
    assert [made.status_code, *problem(again)] == [201, 409, "key_made"]
    assert again.json()["key_id"] == made.json()["key"]["id"]
    for other in ({"user": "bob"}, {"user": "ada", "name": "laptop"}):
        assert problem(await make(json=other)) == (422, "idempotency_key_reused")
    assert [key["id"] for key in (await root.get("/ops/keys", user="ada"))["items"]] == [made.json()["key"]["id"]]
    assert (await root.get("/ops/keys", user="bob"))["items"] == []
