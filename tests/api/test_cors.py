"""Browsers: none by default, those of CORS_ORIGINS when it is set."""

import httpx2
import pytest

from segue.config import Settings
from tests.support.service import Client, running
from tests.support.stores import looking_into

OURS = "https://chat.example"
OTHERS = "https://elsewhere.example"


async def preflight(client: Client, origin: str) -> httpx2.Response:
    asked = {
        "Origin": origin,
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "content-type,idempotency-key,x-request-id",
    }
    return await client.http.options("/sessions", headers=asked)


@pytest.fixture
def open_settings(settings: Settings) -> Settings:
    return settings.model_copy(update={"cors_origins": (OURS,)})


async def test_without_the_setting_no_origin_is_let_in(client: Client) -> None:
    response = await client.http.get("/sessions", headers={"Origin": OURS})
    assert not [name for name in response.headers if name.startswith("access-control-")]
    assert (await preflight(client, OURS)).status_code == 405


async def test_a_named_origin_is_let_in_on_answers_and_on_problems(open_settings: Settings) -> None:
    async with running(open_settings) as client:
        allowed = await preflight(client, OURS)
        assert allowed.status_code == 200
        assert allowed.headers["access-control-allow-origin"] == OURS
        assert "POST" in allowed.headers["access-control-allow-methods"]
        assert "idempotency-key" in allowed.headers["access-control-allow-headers"]
        for path, status in (("/sessions", 200), ("/nowhere", 404), ("/sessions?limit=0", 422)):
            response = await client.http.get(path, headers={"Origin": OURS})
            assert response.status_code == status
            assert response.headers["access-control-allow-origin"] == OURS


async def test_a_page_may_read_that_something_went_wrong_and_another_origins_may_not(open_settings: Settings) -> None:
    async with looking_into(open_settings) as stores, running(open_settings) as client, stores.hidden("sessions"):
        ours, theirs = [await client.http.get("/sessions", headers={"Origin": each}) for each in (OURS, OTHERS)]
    assert (ours.status_code, theirs.status_code) == (500, 500)
    assert ours.headers["access-control-allow-origin"] == OURS
    assert "x-request-id" in ours.headers["access-control-expose-headers"].lower()
    assert "access-control-allow-origin" not in theirs.headers


async def test_another_origin_is_not_let_in(open_settings: Settings) -> None:
    async with running(open_settings) as client:
        assert (await preflight(client, OTHERS)).status_code == 400
        response = await client.http.get("/sessions", headers={"Origin": OTHERS})
        assert "access-control-allow-origin" not in response.headers


async def test_a_preflight_carries_a_request_id_too(open_settings: Settings) -> None:
    async with running(open_settings) as client:
        assert (await preflight(client, OURS)).headers["x-request-id"]


async def test_a_page_may_read_the_request_id_and_when_to_try_again(open_settings: Settings) -> None:
    async with running(open_settings) as client:
        response = await client.http.get("/sessions", headers={"Origin": OURS})
        exposed = response.headers["access-control-expose-headers"].lower()
        names = {name.strip() for name in exposed.split(",")}
        assert {"x-request-id", "x-segue-version", "retry-after", "x-should-retry"} <= names


@pytest.mark.parametrize("origin", [OTHERS, "null", "http://127.0.0.1.elsewhere.example:8000"])
async def test_a_page_from_elsewhere_changes_nothing(client: Client, origin: str) -> None:
    response = await client.http.post("/tool-states/reset", headers={"Origin": origin})
    assert (response.status_code, response.json()["code"]) == (403, "origin_not_allowed")


@pytest.mark.in_turns(1)
@pytest.mark.parametrize("origin", [OURS, "http://localhost:3000", "http://[::1]:3000"])
async def test_named_pages_and_those_of_this_machine_may(open_settings: Settings, origin: str) -> None:
    async with running(open_settings) as client:
        response = await client.http.post("/tool-states/reset", json={"all": True}, headers={"Origin": origin})
        assert response.status_code == 200
