"""What operators see of all users, and the limits that they set for one of them while the service runs."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from urllib.parse import quote

import httpx2
import pytest

from segue.config import Settings
from segue.domain.ids import utc_now
from tests.support.commands import segue
from tests.support.identity import new_key, speaking
from tests.support.logs import until
from tests.support.plans import Frozen
from tests.support.prices import PRICES
from tests.support.provider import Provider, says
from tests.support.service import Client, running
from tests.support.stores import looking_into, urls_of

LIMITS = ("requests_per_minute", "turns_per_minute", "concurrent_turns", "tokens_per_day", "cost_per_day")


@pytest.fixture
async def guarded(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setattr("segue.watch.LOOK_EVERY_S", 0.1)
    (settings.mcp_config.parent / "prices.toml").write_text(PRICES)
    prices = settings.mcp_config.parent / "prices.toml"
    return settings.model_copy(update={"auth": "api_key", "limit_concurrent_turns": 9, "prices_file": prices})


@pytest.fixture
async def service(guarded: Settings) -> AsyncIterator[Client]:
    async with running(guarded) as served:
        yield served


@pytest.fixture
async def root(service: Client, guarded: Settings) -> AsyncIterator[Client]:
    async with speaking(service, await new_key(guarded, "root", ["ops"])) as client:
        yield client


async def put(root: Client, user: str, **limits: float | None) -> dict[str, dict[str, float | None]]:
    response = await root.http.put(f"/ops/users/{quote(user, safe='')}/limits", json=limits)
    assert response.status_code == 200, response.text
    shown: dict[str, dict[str, float | None]] = response.json()
    return shown


async def refused(client: Client, session: str) -> httpx2.Response | None:
    response = await client.send(session, "hello")
    return response if response.status_code == 429 else None


async def test_a_limit_of_one_user_holds_in_every_process_within_seconds_and_lifts_again(
    service: Client, root: Client, guarded: Settings, provider: Provider
) -> None:
    provider.always("hello", says("hi"))
    ada_key, bob_key = await new_key(guarded, "ada"), await new_key(guarded, "bob")
    async with (
        running(guarded) as elsewhere,
        speaking(elsewhere, ada_key) as ada,
        speaking(service, ada_key) as ada_here,
        speaking(elsewhere, bob_key) as bob,
    ):
        session, bobs = await ada.new_session(), await bob.new_session()
        shown = await put(root, "ada", turns_per_minute=1, tokens_per_day=1)
        assert shown["own"] == {**dict.fromkeys(LIMITS), "turns_per_minute": 1, "tokens_per_day": 1}
        assert shown["in_force"] == {**dict.fromkeys(LIMITS, 0), "turns_per_minute": 1, "tokens_per_day": 1,
                                     "concurrent_turns": 9}  # fmt: skip
        here = await ada_here.send(session, "hello")
        assert (here.status_code, here.json()["limit"]) == (429, "tokens_per_day")
        there = await until(lambda: refused(ada, session))
        assert there is not None
        assert there.json()["limit"] in ("turns_per_minute", "tokens_per_day")
        assert int(there.headers["retry-after"]) > 0
        assert (await bob.send(bobs, "hello")).status_code == 200
        await put(root, "ada", requests_per_minute=1)  # the same row, with another limit

        async def is_at_the_gate() -> bool:
            response = await ada.http.get("/me")
            return response.status_code == 429 and response.json()["limit"] == "requests_per_minute"

        await until(is_at_the_gate)
        assert (await root.http.delete("/ops/users/ada/limits")).json()["in_force"]["turns_per_minute"] == 0

        async def is_let_in() -> bool:
            return await refused(ada, session) is None

        await until(is_let_in)
    [lifted, _, put_before] = (await root.get("/ops/audit", action="set_user_limits"))["items"]
    assert (lifted["details"], lifted["actor"]) == ({"user": "ada"}, "root")
    assert put_before["details"] == {"user": "ada", "turns_per_minute": 1, "tokens_per_day": 1}


async def test_operators_see_all_users_with_what_today_took_and_nothing_of_what_was_said(
    service: Client, root: Client, guarded: Settings, provider: Provider
) -> None:
    provider.always("zitronenfalter", says("hi"))
    async with speaking(service, await new_key(guarded, "ada")) as ada:
        for _ in range(2):
            await ada.chat(await ada.new_session(title="zitronenfalter"), "zitronenfalter")
    async with looking_into(guarded) as stores:  # one old session of a user without a key
        await stores.database.execute(
            "INSERT INTO sessions (id, owner, metadata, created_at, updated_at) VALUES"
            " ('ses_' || repeat('0', 26), 'carl⇢eve', '{}', now() - interval '3 days', now() - interval '3 days')"
        )
    await put(root, "zoe", requests_per_minute=5)
    everyone = (await root.get("/ops/users"))["items"]
    assert "zitronenfalter" not in str(everyone)
    seen = {each["overview"]["user"]: each for each in everyone}
    assert list(seen) == ["ada", "carl⇢eve", "root", "zoe"]
    assert {name: [seen[name]["overview"][of] for of in ("keys", "sessions", "turns_today")] for name in seen} == {
        "ada": [1, 2, 2],
        "carl⇢eve": [0, 1, 0],
        "root": [1, 0, 0],
        "zoe": [0, 0, 0],
    }
    [spent] = (await root.get("/usage", user="ada"))["items"]
    assert seen["ada"]["overview"]["tokens_today"] == spent["input_tokens"] + spent["output_tokens"] > 0
    assert seen["ada"]["overview"]["cost_today"] == spent["cost"]
    assert seen["zoe"]["limits"]["own"]["requests_per_minute"] == 5
    first = await root.get("/ops/users", limit=3)
    second = await root.get("/ops/users", limit=3, cursor=first["next_cursor"])
    assert (first["items"] + second["items"], second["next_cursor"]) == (everyone, None)
    tomorrow = Frozen()
    tomorrow.now = utc_now() + timedelta(days=1)
    async with running(guarded, clock=tomorrow) as later, speaking(later, await new_key(guarded, "x", ["ops"])) as op:
        [ada_then] = (await op.get("/ops/users", limit=1))["items"]
    assert [ada_then["overview"][of] for of in ("sessions", "turns_today", "tokens_today")] == [2, 0, 0]


async def test_limits_that_cannot_be_are_refused_and_who_is_no_operator_sets_none(
    service: Client, root: Client, guarded: Settings
) -> None:
    path = "/ops/users/ada/limits"
    for body in ({"turns_per_minute": -1}, {"tokens_per_day": 0.5}, {"cost_per_day": "1"}, {"cost_per_day": -1},
                 {"requests_per_minute": 2**60}, {"tokens": 1}, {"tokens_per_day": True}, [1]):  # fmt: skip
        assert (await root.http.put(path, json=body)).status_code == 422, body
    for name in ("%20ada", "a%00b", "x" * 450):
        assert (await root.http.put(f"/ops/users/{name}/limits", json={})).status_code == 422, name
    assert (await root.http.put("/ops/users/a%0Ab/limits", json={})).status_code == 404  # no path has a line end
    async with speaking(service, await new_key(guarded, "ada")) as ada:
        for method in ("GET", "PUT", "DELETE"):
            response = await ada.http.request(method, path, json={} if method == "PUT" else None)
            assert (response.status_code, response.json()["code"]) == (403, "forbidden")
        assert (await ada.http.get("/ops/users")).status_code == 403
    assert (await put(root, "ada", cost_per_day=0.5))["own"]["cost_per_day"] == 0.5
    key = await new_key(guarded, "op", ["ops"])
    for unpriced, name in (({"prices_file": None}, "scripted"), ({"embedding_model": "embedder-2"}, "embedder-2")):
        async with running(guarded.model_copy(update=unpriced)) as other, speaking(other, key) as op:
            response = await op.http.put(path, json={"cost_per_day": 1})
        assert (response.status_code, response.json()["code"]) == (422, "price_missing")
        assert name in response.json()["detail"]


async def test_the_command_line_sets_shows_and_lifts_the_limits_of_a_user(root: Client, guarded: Settings) -> None:
    urls = urls_of(guarded)
    command = ("users", "limits", "--user", "ada")
    code, said = await asyncio.to_thread(segue, *command, "--turns-per-minute", "7", "--tokens-per-day", "0", **urls)
    assert (code, "turns_per_minute  7" in said) == (0, True), said
    shown = await root.get("/ops/users/ada/limits")
    assert (shown["own"]["turns_per_minute"], shown["own"]["tokens_per_day"]) == (7, 0)
    code, said = await asyncio.to_thread(segue, *command, "--clear", **urls)
    assert (code, (await root.get("/ops/users/ada/limits"))["own"]) == (0, dict.fromkeys(LIMITS)), said


async def test_an_operator_exports_and_erases_a_user_whose_name_is_repeated_and_both_are_in_the_audit(
    service: Client, root: Client, guarded: Settings, provider: Provider
) -> None:
    provider.always("zitronenfalter", says("hi"))
    async with (
        speaking(service, await new_key(guarded, "ada")) as ada,
        speaking(service, await new_key(guarded, "eve", ["ops", "ops:content"])) as eve,
    ):
        session = await ada.new_session()
        await ada.chat(session, "zitronenfalter")
        assert (await root.http.get("/ops/users/ada/export")).json()["code"] == "forbidden"
        exported = await eve.http.get("/ops/users/ada/export")
        assert exported.text == (await ada.http.get("/me/export")).text
        assert "zitronenfalter" in exported.text
        refused = [
            await root.http.delete("/ops/users/ada"),
            await root.http.delete("/ops/users/ada", params={"confirm": "eve"}),
            await ada.http.delete("/ops/users/ada", params={"confirm": "ada"}),
            await root.http.delete("/ops/users/adda", params={"confirm": "adda"}),
            await eve.http.get("/ops/users/adda/export"),
        ]
        assert [(each.status_code, each.json()["code"]) for each in refused] == [
            (422, "invalid_request"),
            (422, "not_confirmed"),
            (403, "forbidden"),
            *[(404, "user_not_found")] * 2,
        ]
        assert len(await ada.messages(session)) == 2
        erased = await root.http.delete("/ops/users/ada", params={"confirm": "ada"})
        assert (erased.status_code, erased.json()["rows"]["messages"], erased.json()["rows"]["api_keys"]) == (200, 2, 1)
        assert (await eve.http.get("/ops/users/ada/export")).status_code == 404
    acts = [(act["action"], act["actor"], act["details"]) for act in (await root.get("/ops/audit"))["items"]]
    assert acts == [("erase_user", "root", {"user": "ada"}), ("export_user", "eve", {"user": "ada"})]


@pytest.mark.sweep
async def test_a_user_whose_name_has_a_slash_is_limited_exported_and_erased_as_others_are(
    root: Client, guarded: Settings, service: Client
) -> None:
    """As identity providers name what is no person."""
    name = "repo:octo/ship:ref"
    path = f"/ops/users/{quote(name, safe='')}"
    async with (
        speaking(service, await new_key(guarded, name)) as robot,
        speaking(service, await new_key(guarded, "eve", ["ops", "ops:content"])) as eve,
    ):
        await robot.new_session(title="zitronenfalter")
        assert (await put(root, name, turns_per_minute=3))["own"]["turns_per_minute"] == 3
        assert (await root.get(f"{path}/limits"))["user"] == name
        assert "zitronenfalter" in (await eve.http.get(f"{path}/export")).text
        assert (await root.http.delete(f"{path}/limits")).json()["own"] == dict.fromkeys(LIMITS)
        assert (await root.http.delete(path, params={"confirm": name})).json()["rows"]["sessions"] == 1


@pytest.mark.sweep
async def test_a_user_whose_name_ends_as_a_route_does_is_erased_and_no_route_takes_them_for_another(
    root: Client, guarded: Settings, service: Client
) -> None:
    name = "ada/limits"
    async with speaking(service, await new_key(guarded, name)) as robot:
        await robot.new_session()
        await put(root, "ada", turns_per_minute=3)
        await put(root, name, turns_per_minute=4)
        path = f"/ops/users/{quote(name, safe='')}"
        assert (await root.http.delete(path)).status_code == 422  # it asks to be told the name once more
        assert (await root.get(f"{path}/limits"))["own"]["turns_per_minute"] == 4
        assert (await root.http.delete(path, params={"confirm": name})).json()["rows"]["sessions"] == 1
    assert (await root.get("/ops/users/ada/limits"))["own"]["turns_per_minute"] == 3
