"""Who is let in: keys in both headers, revoked ones, scopes; and by which name the service lets itself be called."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from segue import create_app
from segue.config import Settings
from segue.db.engine import Database
from segue.users.api_keys import CHECK_EVERY_S, list_keys, revoke_key
from segue.users.audit import CLI
from tests.support.identity import new_key, speaking
from tests.support.logs import until
from tests.support.provider import Provider, calls, says
from tests.support.server import serving
from tests.support.service import Client, running
from tests.support.stores import looking_into

KEY = "segue_" + "0" * 26 + "_" + "0" * 64


@pytest.fixture
async def guarded(settings: Settings) -> Settings:
    return settings.model_copy(update={"auth": "api_key"})


@pytest.fixture
async def service(guarded: Settings) -> AsyncIterator[Client]:
    async with running(guarded) as served:
        yield served


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    opened = Database(database_url)
    yield opened
    await opened.close()


async def asked_as(client: Client, *headers: tuple[str, str]) -> httpx2.Response:
    return await client.http.get("/sessions", headers=list(headers))


async def test_a_key_is_taken_from_either_header_and_from_both_where_they_agree(
    service: Client, guarded: Settings
) -> None:
    key = await new_key(guarded, "ada")
    bearer, lower, plain = ("Authorization", f"Bearer {key}"), ("authorization", f"bearer   {key}"), ("X-API-Key", key)
    for headers in ([bearer], [lower], [plain], [bearer, plain], [("Authorization", "Basic eDp5"), plain]):
        assert (await asked_as(service, *headers)).status_code == 200, headers


async def test_two_headers_that_disagree_are_refused_even_if_both_keys_are_good(
    service: Client, guarded: Settings
) -> None:
    ada, bob = await new_key(guarded, "ada"), await new_key(guarded, "bob")
    for headers in (
        [("Authorization", f"Bearer {ada}"), ("X-API-Key", bob)],
        [("Authorization", f"Bearer {ada}"), ("Authorization", f"Bearer {bob}")],
        [("X-API-Key", ada), ("X-API-Key", bob)],
    ):
        assert (await asked_as(service, *headers)).status_code == 401, headers


async def test_what_is_no_key_of_ours_is_refused_in_the_same_words(service: Client) -> None:
    absent = (await service.http.get("/sessions")).json()
    for value in ("", "x", KEY, KEY.upper(), "segue_", "ключ", "a" * 20_000, "' OR 1=1 --"):
        wrong = await service.http.get("/sessions", headers={b"X-API-Key": value.encode()})
        assert wrong.status_code == 401
        assert {**wrong.json(), "request_id": None} == {**absent, "request_id": None}


async def test_an_unknown_caller_is_refused_before_the_body_is_read(service: Client) -> None:
    for body in (b"{", b"\xff" * 2_000_000):
        response = await service.http.post("/sessions", content=body, headers={"content-type": "application/json"})
        assert response.status_code == 401


async def test_a_revoked_key_is_refused_within_seconds_where_it_was_known_and_at_once_where_it_was_not(
    service: Client, guarded: Settings, database: Database
) -> None:
    key = await new_key(guarded, "ada")
    header = ("X-API-Key", key)
    assert (await asked_as(service, header)).status_code == 200
    async with database.transaction() as connection:
        [stored] = await list_keys(connection, "ada")
        await revoke_key(connection, stored.id, by=CLI)
    async with running(guarded) as elsewhere:
        assert (await asked_as(elsewhere, header)).status_code == 401

    async def is_refused() -> bool:
        return (await asked_as(service, header)).status_code == 401

    async with asyncio.timeout(CHECK_EVERY_S + 5):
        await until(is_refused)


async def test_a_key_is_stored_as_a_hash_and_tells_when_it_was_used(
    service: Client, guarded: Settings, database: Database
) -> None:
    key = await new_key(guarded, "ada")
    async with database.read_only() as connection:
        [before] = await list_keys(connection, "ada")
        assert before.last_used_at is None
        assert key.rpartition("_")[2] not in str(before)
        await asked_as(service, ("X-API-Key", key[:-1] + "x"))
        assert await list_keys(connection, "ada") == [before]
        await asked_as(service, ("X-API-Key", key))
        [after] = await list_keys(connection, "ada")
    assert after.last_used_at is not None


async def test_a_tool_works_for_the_caller_whatever_the_arguments_say(
    service: Client, guarded: Settings, provider: Provider
) -> None:
    ada, bob = await new_key(guarded, "ada"), await new_key(guarded, "bob")
    async with speaking(service, ada) as owner, speaking(service, bob) as other:
        provider.will(calls(("current_time", {})), says("noon"))
        theirs = await owner.chat(await owner.new_session(), "What time is it?")
        [call] = theirs["tool_calls"]
        wanted = {"tool_call_id": call["tool_call_id"]}
        for smuggled in ({}, {"owner": "ada"}, {"user": "ada", "session_id": call["result_ref"]["session_id"]}):
            provider.will(calls(("get_tool_result", {**wanted, **smuggled})), says("nothing"))
            await other.chat(await other.new_session(), "Show me what Ada found")
            [answer] = provider.messages(role="tool")
            assert "noon" not in answer["content"]
            assert call["metadata"]["truncated_preview"] not in answer["content"]


async def test_no_tool_takes_an_identity_as_an_argument(client: Client) -> None:
    for tool in (await client.get("/tools"))["items"]:
        arguments = tool["schema"].get("properties", {}).keys()
        assert not arguments & {"owner", "user", "user_id", "session_id", "identity"}, tool["name"]


OF_THIS_MACHINE = (
    *("127.0.0.1", "127.0.0.1:80", "127.8.8.8:1"),
    *("localhost:8000", "LOCALHOST", "localhost.:8", "[::1]:8000"),
)
OF_OTHERS = (
    *("evil.example", "evil.example:8000", "localhost.evil.example"),
    *("10.0.0.1", "[::2]:80", "127.0.0.1.nip.io"),
)


async def test_without_auth_the_service_answers_to_names_of_this_machine_and_to_no_other(client: Client) -> None:
    for host in OF_THIS_MACHINE:
        assert (await client.http.get("/sessions", headers={"Host": host})).status_code == 200, host
    for host in OF_OTHERS:
        for path in ("/sessions", "/health/ready", "/docs"):
            response = await client.http.get(path, headers={"Host": host})
            assert (response.status_code, response.json()["code"]) == (403, "host_not_allowed"), host
            assert "ALLOWED_HOSTS" in response.json()["detail"]


@pytest.mark.sweep
async def test_a_name_can_be_allowed_and_with_keys_or_in_front_of_a_proxy_any_will_do(
    settings: Settings, guarded: Settings
) -> None:
    named = settings.model_copy(update={"allowed_hosts": ("segue.internal",)})
    fronted = settings.model_copy(update={"allow_anonymous": True})
    for at, host, status in (
        (named, "Segue.Internal:8000", 200),
        (named, "evil.example", 403),
        (fronted, "evil.example", 200),
        (guarded, "evil.example", 401),
    ):
        async with running(at) as client:
            assert (await client.http.get("/sessions", headers={"Host": host})).status_code == status


async def test_a_preflight_needs_no_key_and_a_refusal_can_be_read_by_the_page(guarded: Settings) -> None:
    origin = "https://chat.example"
    async with running(guarded.model_copy(update={"cors_origins": (origin,)})) as client:
        asked = {"Origin": origin, "Access-Control-Request-Method": "GET"}
        assert (await client.http.options("/sessions", headers=asked)).status_code == 200
        refused = await client.http.get("/sessions", headers={"Origin": origin})
        assert (refused.status_code, refused.headers["access-control-allow-origin"]) == (401, origin)


@pytest.mark.sweep
async def test_the_description_says_how_to_identify_oneself_and_where_one_need_not(client: Client) -> None:
    description = await client.get("/openapi.json")
    schemes = description["components"]["securitySchemes"]
    assert schemes["bearer"]["scheme"] == "bearer"
    assert (schemes["api_key"]["in"], schemes["api_key"]["name"]) == ("header", "X-API-Key")
    for path, item in description["paths"].items():
        for operation in item.values():
            expected: list[dict[str, list[str]]] = (
                [] if path.startswith(("/health/", "/hooks/")) else [{"bearer": []}, {"api_key": []}]
            )
            assert operation.get("security", []) == expected, path


async def test_a_key_whose_scopes_cannot_be_read_is_refused_and_listed_with_the_others(
    guarded: Settings, service: Client, database: Database
) -> None:
    good = await new_key(guarded, "ada")
    async with looking_into(guarded) as stores:
        for number, scopes in enumerate(('{"ops": true}', '"ops"', "7", "[7]", "null")):
            bad = await new_key(guarded, f"bob{number}")
            await stores.database.execute("UPDATE api_keys SET scopes = $1 WHERE owner = $2", scopes, f"bob{number}")
            assert (await asked_as(service, ("X-API-Key", bad))).status_code == 401, scopes
    assert (await asked_as(service, ("X-API-Key", good))).status_code == 200
    async with database.read_only() as connection:
        keys = await list_keys(connection, None)
    assert [key.is_unreadable for key in keys] == [False, *[True] * 5]


async def test_a_key_whose_groups_cannot_be_read_is_refused(guarded: Settings, service: Client) -> None:
    key = await new_key(guarded, "ada", groups=["staff"])
    assert (await asked_as(service, ("X-API-Key", key))).status_code == 200
    bad = await new_key(guarded, "bob", groups=["staff"])
    async with looking_into(guarded) as stores:
        await stores.database.execute("""UPDATE api_keys SET groups = '{"staff": true}' WHERE owner = 'bob'""")
    assert (await asked_as(service, ("X-API-Key", bad))).status_code == 401


async def test_a_browser_without_headers_reads_one_turn_with_a_token_of_its_own(
    service: Client, guarded: Settings, provider: Provider
) -> None:
    provider.will(says("one"), says("two"))
    async with speaking(service, await new_key(guarded, "ada")) as ada, looking_into(guarded) as stores:
        session = await ada.new_session()
        first, second = [(await ada.chat(session, message))["turn_id"] for message in ("a", "b")]
        path = f"/sessions/{session}/turns/{first}"
        made = await ada.http.post(f"{path}/stream-token")
        token = made.json()["token"]
        assert made.status_code == 201
        assert token not in str(await stores.database.fetch("SELECT * FROM stream_tokens"))
        read = await service.http.get(f"{path}/events", params={"token": token})
        assert (read.status_code, "RUN_FINISHED" in read.text) == (200, True)
        others = (f"/sessions/{session}/turns/{second}/events", path, f"/sessions/{session}/messages", "/me")
        for elsewhere in others:
            assert (await service.http.get(elsewhere, params={"token": token})).status_code == 401, elsewhere
        for odd in ("%00", "x", f"{first}%00"):
            unknown = await service.http.get(f"/sessions/{session}/turns/{odd}/events", params={"token": token})
            assert (unknown.status_code, unknown.json()["code"]) == (401, "unauthorized"), odd
        wrong = await service.http.get(f"{path}/events", params={"token": f"{token}0"})
        assert wrong.status_code == 401
        await stores.database.execute("UPDATE stream_tokens SET expires_at = now()")
        assert (await service.http.get(f"{path}/events", params={"token": token})).status_code == 401
        await ada.http.post(f"{path}/stream-token")
        assert await stores.database.fetchval("SELECT count(*) FROM stream_tokens") == 1


@pytest.mark.sweep
async def test_mounted_below_a_prefix_it_opens_and_closes_the_same_paths_and_its_urls_lead_there(
    guarded: Settings, provider: Provider
) -> None:
    assistant = create_app(guarded)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with assistant.router.lifespan_context(assistant):
            yield

    host = Starlette(routes=[Mount("/assistant", assistant)], lifespan=lifespan)
    headers = {"X-API-Key": await new_key(guarded, "ada")}
    provider.will(says("Hello."))
    async with serving(host) as url, httpx2.AsyncClient(base_url=url) as http:
        paths = ("/", "/health/live", "/docs", "/sessions", "/metrics")
        statuses = [(await http.get(f"/assistant{path}")).status_code for path in paths]
        session = (await http.post("/assistant/sessions", json={}, headers=headers)).json()["id"]
        body = {"message": "hello?", "background": True}
        accepted = (await http.post(f"/assistant/sessions/{session}/chat", json=body, headers=headers)).json()
        events = await http.get(accepted["events_url"], headers=headers)
        token_path = accepted["events_url"].replace("/events", "/stream-token")
        token = (await http.post(token_path, headers=headers)).json()["token"]
        in_a_browser = await http.get(accepted["events_url"], params={"token": token})
    assert statuses == [200, 200, 200, 401, 401]
    assert "RUN_FINISHED" in events.text
    assert in_a_browser.text == events.text


async def test_mounted_without_its_lifespan_it_says_what_is_missing(guarded: Settings) -> None:
    with pytest.raises(RuntimeError, match="enter its lifespan in that of your application"):
        await create_app(guarded)({"type": "http", "method": "GET", "path": "/", "headers": []}, _unheard, _unheard)


async def _unheard(*_: object) -> Any:
    return {}
