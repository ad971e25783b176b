"""Each user's own login at an MCP server: begun, finished, renewed, ended, and nobody else's."""

import asyncio
import json
import os
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import orjson
import pytest
from mcp.shared.auth import OAuthMetadata, OAuthToken
from pydantic import AnyHttpUrl, SecretStr
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from structlog.testing import capture_logs

from segue.config import Settings
from segue.db.engine import Database
from segue.domain.errors import AppError
from segue.domain.ids import utc_now
from segue.factories import start
from segue.mcp.mcp_config import McpServerConfig, OAuthClientConfig
from segue.mcp.oauth.authorization_server import OAuthFault, TokenSource
from segue.mcp.oauth.login_tokens import Grants, LoginAttempt, Seal
from segue.mcp.oauth.logins import ATTEMPTS
from segue.turns.admission import MAX_QUEUED
from tests.support.commands import segue
from tests.support.health import state
from tests.support.identity import new_key, speaking
from tests.support.login_server import TOOLS, LoginServer, at_browser, query_of, serving_logins
from tests.support.logs import until
from tests.support.plans import press
from tests.support.provider import Provider, calls, says
from tests.support.service import Client, Process, process, running
from tests.support.stores import Stores, looking_into

KEY, OLD_KEY = "bmV3" * 10 + "bmU=", "b2xk" * 10 + "b2w="
LOGIN = "/mcp/servers/diary/login"
CALLBACK = "/mcp/oauth/callback"
WAITS_FOR_ME = "SELECT EXISTS (SELECT FROM pg_locks WHERE pg_backend_pid() = ANY (pg_blocking_pids(pid)))"


@pytest.fixture
async def server(settings: Settings) -> AsyncIterator[LoginServer]:
    async with serving_logins(settings.mcp_config) as served:
        yield served


@pytest.fixture
def with_logins(settings: Settings, server: LoginServer) -> Settings:  # noqa: ARG001 (stands in its mcp.json)
    return settings.model_copy(update={"mcp_token_key": SecretStr(KEY), "public_url": "http://127.0.0.1:9"})


@pytest.fixture
async def service(with_logins: Settings) -> AsyncIterator[Client]:
    async with running(with_logins) as served:
        yield served


async def begun(client: Client) -> str:
    answer = await client.http.post(LOGIN)
    assert answer.status_code == 201, answer.text
    return str(answer.json()["url"])


async def arrive(client: Client, location: str) -> httpx2.Response:
    """Follows the redirect as a browser does, without a key, to one of the instances, and presses the button."""
    assert location.startswith(f"http://127.0.0.1:9{CALLBACK}?")
    async with httpx2.AsyncClient(base_url=client.http.base_url) as browser:
        page = await browser.get(location.removeprefix("http://127.0.0.1:9"))
        if '<form method="post">' not in page.text:
            return page
        return await browser.post(page.url, headers={"Origin": str(client.http.base_url).rstrip("/")})


async def log_in(client: Client, user: str) -> None:
    finished = await arrive(client, await at_browser(await begun(client), user))
    assert finished.status_code == 200, finished.text


async def state_of(client: Client) -> str:
    [login] = (await client.get("/mcp/logins"))["items"]
    return str(login["state"])


async def asks_who(client: Client, provider: Provider, tool: str = "mcp_whoami") -> str:
    """What the model is told when it calls the tool in a session of its own."""
    provider.will(calls((tool, {})), says("Here."))
    await client.chat(await client.new_session(), "Who am I there?")
    return str(provider.requests[-1]["messages"][-1]["content"])


async def test_two_users_log_in_on_two_instances_and_each_call_is_its_own_users(
    with_logins: Settings, server: LoginServer, provider: Provider
) -> None:
    guarded = with_logins.model_copy(update={"auth": "api_key"})
    with capture_logs() as logged:
        async with AsyncExitStack() as stack:
            first, second = [await stack.enter_async_context(running(guarded)) for _ in range(2)]
            ada, bob = [await new_key(guarded, user) for user in ("ada", "bob")]
            ada_here = await stack.enter_async_context(speaking(first, ada))
            bob_here = await stack.enter_async_context(speaking(first, bob))
            ada_there = await stack.enter_async_context(speaking(second, ada))
            bob_there = await stack.enter_async_context(speaking(second, bob))
            sent_back = {
                user: await at_browser(await begun(each), user)
                for user, each in {"ada": ada_here, "bob": bob_here}.items()
            }
            for location in reversed(sent_back.values()):
                assert (await arrive(second, location)).status_code == 200
            assert "This is bob." in await asks_who(bob_there, provider)
            assert "This is ada." in await asks_who(ada_there, provider)
            assert await state_of(ada_here) == "logged_in"
    assert server.ran == [("bob", "whoami"), ("ada", "whoami")]
    assert not [token for token in server.all_tokens if token in repr(logged)]


async def test_the_attempts_of_one_user_make_room_among_their_own_alone(
    with_logins: Settings, server: LoginServer
) -> None:
    guarded = with_logins.model_copy(update={"auth": "api_key"})
    async with (
        running(guarded) as service,
        speaking(service, await new_key(guarded, "ada")) as ada,
        speaking(service, await new_key(guarded, "bob")) as bob,
    ):
        adas = await at_browser(await begun(ada), "ada")
        bobs = [await begun(bob) for _ in range(ATTEMPTS + 1)]
        assert (await arrive(service, adas)).status_code == 200
        first, last = [await at_browser(each, "bob") for each in (bobs[0], bobs[-1])]
        assert (await arrive(service, first)).is_client_error
        assert (await arrive(service, last)).status_code == 200
    assert server.ran == []


@pytest.mark.skipif("SWEEP" not in os.environ, reason="it starts and kills processes: make login-kills")
async def test_a_process_killed_between_the_link_and_the_way_back_loses_no_login_and_mixes_none(
    with_logins: Settings, server: LoginServer, provider: Provider
) -> None:
    guarded = with_logins.model_copy(update={"auth": "api_key"})
    keys = {user: await new_key(guarded, user) for user in ("ada", "bob")}
    waiting: dict[str, tuple[str, str]] = {}
    async with process(guarded) as (killed, client):
        for user, key in keys.items():
            async with speaking(client, key) as speaker:
                waiting[user] = await asked_to_log_in(speaker, provider, "mcp_log_in_to_diary")
        sent_back = {user: await at_browser(link, user) for user, (_, link) in waiting.items()}
        killed.kill()
        async with process(guarded) as (_, other):
            for user, key in reversed(keys.items()):
                provider.will(says("You are logged in."))
                assert (await arrive(other, sent_back[user])).status_code == 200
                assert (await arrive(other, sent_back[user])).status_code == 400
                async with speaking(other, key) as speaker:
                    await speaker.ended(waiting[user][0], 2)
                    assert f"This is {user}." in await asks_who(speaker, provider)
        assert server.ran == [("bob", "whoami"), ("ada", "whoami")]


async def test_a_token_that_ends_in_the_middle_of_calls_is_renewed_once_and_each_call_runs_once(
    service: Client, server: LoginServer, provider: Provider
) -> None:
    await log_in(service, "ada")
    for _ in range(2):
        server.expire()
        assert "This is ada." in await asks_who(service, provider)
    assert [form["grant_type"] for form in server.forms] == ["authorization_code", "refresh_token", "refresh_token"]
    assert server.ran == [("ada", "whoami")] * 2


async def test_a_token_of_a_server_that_leaves_mcp_json_while_it_is_renewed_is_not_renewed(
    with_logins: Settings, database_url: str
) -> None:
    url = "http://127.0.0.1:9/mcp"
    servers = {"diary": McpServerConfig(url=url, oauth=OAuthClientConfig())}
    database = Database(database_url)
    grants = Grants(database, Seal([KEY]), lambda: servers, utc_now)
    source = TokenSource.model_validate(
        {"url": url, "issuer": url, "token_endpoint": url, "resource": url, "client": {"client_id": "segue"}}
    )
    endpoint = AnyHttpUrl(url)
    metadata = OAuthMetadata(issuer=endpoint, authorization_endpoint=endpoint, token_endpoint=endpoint)
    attempt = LoginAttempt(
        owner="ada", server="diary", source=source, metadata=metadata, verifier="v", redirect_uri="r", scope=None
    )
    await grants.save(
        attempt, OAuthToken.model_validate({"access_token": "old", "refresh_token": "new", "expires_in": 0})
    )
    async with looking_into(with_logins) as stores:
        async with stores.database.transaction():
            await stores.database.execute("SELECT FROM mcp_logins FOR UPDATE")
            renewing = asyncio.create_task(grants.access("ada", "diary"))
            await until(lambda: stores.database.fetchval(WAITS_FOR_ME))
            servers.clear()
        with pytest.raises(OAuthFault, match="no such server"):
            await renewing
    await database.close()


async def test_a_secret_goes_to_no_other_issuer_than_the_one_in_mcp_json(
    with_logins: Settings, server: LoginServer
) -> None:
    config = orjson.loads(with_logins.mcp_config.read_bytes())
    oauth = {"client_id": "segue", "client_secret": "s3cr3t"}
    server.metadata = {"token_endpoint_auth_methods_supported": ["client_secret_post"]}
    for issuer, status, expected in ((server.url, 201, "logged_in"), ("https://id.example", 502, "logged_out")):
        config["mcpServers"]["diary"]["oauth"] = {**oauth, "issuer": issuer}
        with_logins.mcp_config.write_bytes(orjson.dumps(config))
        async with running(with_logins) as client:
            if status == 201:
                await log_in(client, "ada")
            begun = await client.http.post(LOGIN)
            assert (begun.status_code, await state_of(client)) == (status, expected), begun.text
    assert "another issuer than the one in mcp.json" in begun.json()["detail"]
    assert [form["grant_type"] for form in server.forms] == ["authorization_code"]


@pytest.mark.sweep
async def test_calls_on_two_instances_at_once_renew_an_expired_token_once(
    with_logins: Settings, server: LoginServer, provider: Provider
) -> None:
    async with running(with_logins) as first, running(with_logins) as second:
        for client in (first, second):
            await log_in(client, "ada")
        async with looking_into(with_logins) as stores:
            await stores.database.execute("UPDATE mcp_logins SET expires_at = now()")
        server.forms.clear()
        sessions = [(client, await client.new_session()) for client in (first, second, first, second)]
        for _, session in sessions:
            provider.will_to(session, calls(("mcp_whoami", {})), says("Here."))
        await asyncio.gather(*(client.chat(session, f"Who am I in {session}?") for client, session in sessions))
    assert [form["grant_type"] for form in server.forms] == ["refresh_token"]
    assert server.ran == [("ada", "whoami")] * 4


@pytest.mark.sweep
async def test_a_turn_that_is_cancelled_while_its_token_is_renewed_loses_no_login(
    service: Client, with_logins: Settings, server: LoginServer, provider: Provider
) -> None:
    await log_in(service, "ada")
    async with looking_into(with_logins) as stores:
        await stores.database.execute("UPDATE mcp_logins SET expires_at = now()")
    server.gate = asyncio.Event()
    server.at_gate.clear()
    provider.will(calls(("mcp_whoami", {})))
    session = await service.new_session()
    turn = (await service.send(session, "Who am I there?", background=True)).json()["turn_id"]
    await server.at_gate.wait()
    cancelled = await service.http.post(f"/sessions/{session}/turns/{turn}/cancel")
    assert cancelled.json()["status"] == "cancelled"
    server.gate.set()
    assert "This is ada." in await asks_who(service, provider)
    assert [form["grant_type"] for form in server.forms] == ["authorization_code", "refresh_token"]


async def test_a_call_that_runs_ends_though_its_server_is_reconnected_or_its_user_logs_in_anew(
    service: Client, server: LoginServer, provider: Provider
) -> None:
    await log_in(service, "ada")
    for replace in (lambda: service.http.post("/mcp/servers/diary/reconnect"), lambda: log_in(service, "ada")):
        server.call_gate = asyncio.Event()
        server.at_call_gate.clear()
        asking = asyncio.create_task(asks_who(service, provider))
        await server.at_call_gate.wait()
        await replace()
        server.call_gate.set()
        assert "This is ada." in await asking
    assert server.ran == [("ada", "whoami")] * 2


async def test_a_connection_whose_call_waits_for_its_handshake_makes_room_for_no_other(
    with_logins: Settings, server: LoginServer, provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("segue.mcp.oauth.personal_server.MAX_CONNECTIONS", 1)
    guarded = with_logins.model_copy(update={"auth": "api_key"})
    said, failures = dict[str, str](), dict[str, int]()

    async def asks(user: str) -> None:
        session = await speakers[user].new_session()
        provider.will_to(session, calls(("mcp_whoami", {})), says("Here."))
        await speakers[user].chat(session, f"Who am I in {session}?")
        said[user] = str(provider.requests[-1]["messages"][-1]["content"])
        states = (await speakers[user].get(f"/sessions/{session}/tool-states"))["tool_states"]
        failures[user] = states["mcp_whoami"]["consecutive_failures"]

    async with running(guarded) as client, AsyncExitStack() as stack:
        keys = {user: await new_key(guarded, user) for user in ("ada", "bob")}
        speakers = {user: await stack.enter_async_context(speaking(client, key)) for user, key in keys.items()}
        for user, speaker in speakers.items():
            await log_in(speaker, user)
        server.hello_gate = asyncio.Event()
        server.at_hello_gate.clear()
        asking = asyncio.create_task(asks("ada"))
        await server.at_hello_gate.wait()
        await asks("bob")
        server.hello_gate.set()
        await asking
    assert "Too many users" in said["bob"]
    assert "This is ada." in said["ada"]
    assert failures == {"ada": 0, "bob": 0}  # the tool is well, and stays with all


async def asked_to_log_in(client: Client, provider: Provider, tool: str = "mcp_whoami", **body: str) -> tuple[str, str]:
    """The session whose call waits for a login, and the link that it asks with."""
    provider.will(calls((tool, {})))
    session = await client.new_session(**body)
    answer = await client.chat(session, "Who am I there?")
    [step] = answer["plan"]["steps"]
    assert (step["status"], step["asks"]["mode"], step["asks"]["source"]) == ("waiting", "url", "mcp:diary")
    return session, str(step["asks"]["url"])


@pytest.mark.sweep
@pytest.mark.parametrize("refuses_with", [400, 200], ids=["as RFC 6749", "as GitHub"])
async def test_a_login_that_was_taken_back_is_asked_for_and_the_call_goes_on_after_it_once(
    service: Client, server: LoginServer, provider: Provider, refuses_with: int
) -> None:
    await log_in(service, "ada")
    server.revoke_all()
    server.refuses_with = refuses_with
    session, link = await asked_to_log_in(service, provider)
    assert server.ran == []
    assert await state_of(service) == "logged_out"
    states = (await service.get(f"/sessions/{session}/tool-states"))["tool_states"]
    assert states["mcp_whoami"]["status"] == "available"
    provider.will(says("You are Ada."))
    location = await at_browser(link, "ada")
    pages = await asyncio.gather(*(arrive(service, location) for _ in range(3)))
    assert sorted(page.status_code for page in pages) == [200, 400, 400]
    turns = await service.ended(session, 2)
    assert [turn["status"] for turn in turns] == ["completed", "completed"]
    assert server.ran == [("ada", "whoami")]


@pytest.mark.parametrize(
    "answer", [Response("Blocked.", 403), JSONResponse({"error": "temporarily_unavailable"}, 400)], ids=["403", "400"]
)
async def test_a_login_outlives_a_renewal_that_does_not_work_for_now(
    service: Client, server: LoginServer, provider: Provider, answer: Response
) -> None:
    await log_in(service, "ada")
    server.expire()
    server.places["/token"] = lambda _: answer
    assert "Try again later" in await asks_who(service, provider)
    assert await state_of(service) == "logged_in"
    del server.places["/token"]
    assert "This is ada." in await asks_who(service, provider)


@pytest.mark.sweep
async def test_a_session_that_cannot_go_on_after_a_login_keeps_no_other_from_it(
    service: Client, server: LoginServer, provider: Provider
) -> None:
    go = asyncio.Event()

    async def held(_: dict[str, Any]) -> Response:
        await go.wait()
        return says("Monday.")

    await log_in(service, "ada")
    server.revoke_all()
    (waiting, link), (full, _) = [await asked_to_log_in(service, provider) for _ in range(2)]
    provider.always("What day is it?", held)
    for _ in range(MAX_QUEUED + 1):
        assert (await service.send(full, "What day is it?", background=True)).status_code == 202
    provider.will(says("You are Ada."))
    assert (await arrive(service, await at_browser(link, "ada"))).status_code == 200
    assert (await service.ended(waiting, 2))[-1]["answer"]["message"]["content"] == "You are Ada."
    assert server.ran == [("ada", "whoami")]
    go.set()
    await service.ended(full, MAX_QUEUED + 2)


@pytest.mark.sweep
async def test_a_call_that_goes_on_after_a_login_is_still_its_agents_which_is_for_a_group_of_the_user(
    with_logins: Settings, server: LoginServer, provider: Provider, tmp_path: Path
) -> None:
    (tmp_path / "agents.toml").write_text('[agents.clerk]\ngroups = ["staff"]\n')
    guarded = with_logins.model_copy(update={"auth": "api_key", "agents_config": tmp_path / "agents.toml"})
    key = await new_key(guarded, "ada", groups=["staff"])
    async with running(guarded) as service, speaking(service, key) as ada:
        await log_in(ada, "ada")
        server.revoke_all()
        session, link = await asked_to_log_in(ada, provider, agent="clerk")
        provider.will(says("You are Ada."))
        assert (await arrive(service, await at_browser(link, "ada"))).status_code == 200
        last = (await ada.ended(session, 2))[-1]["answer"]
    assert (last["message"]["metadata"].get("agent"), last["plan"]["status"]) == ("clerk", "completed")
    assert server.ran == [("ada", "whoami")]


async def test_the_first_call_of_a_user_asks_for_a_login_and_the_tools_come_with_it(
    service: Client, provider: Provider
) -> None:
    session, link = await asked_to_log_in(service, provider, "mcp_log_in_to_diary")
    provider.will(says("You are logged in."))
    assert (await arrive(service, await at_browser(link, "ada"))).status_code == 200
    await service.ended(session, 2)
    assert "mcp_whoami, mcp_write" in str(provider.requests[-1]["messages"])
    assert "This is ada." in await asks_who(service, provider)


async def test_of_a_list_that_is_too_long_all_instances_offer_the_same_first_tools(
    with_logins: Settings, provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("segue.mcp.server_connection.MAX_LIST_BYTES", 120)
    monkeypatch.setattr("segue.mcp.oauth.personal_server.LOOK_EVERY_S", 0.05)
    async with running(with_logins) as first, running(with_logins) as second:
        for client, other in ((first, second), (second, first)):
            await log_in(client, "ada")
            await until(lambda other=other: offers_whoami(other))  # type: ignore[misc]
            assert "This is ada." in await asks_who(client, provider)
        for client in (first, second):
            assert await tools_at(client) == ["mcp_log_in_to_diary", "mcp_whoami"]
    async with looking_into(with_logins) as stores:
        stored = await stores.database.fetchval("SELECT tools FROM mcp_tool_lists")
        assert [tool["name"] for tool in orjson.loads(stored)] == ["whoami"]


async def test_a_yes_to_a_tool_is_none_to_what_the_users_server_has_made_of_it_since(
    with_logins: Settings, server: LoginServer, provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    whoami, write = TOOLS[0], {**TOOLS[1], "annotations": {"destructiveHint": True}}
    monkeypatch.setattr("tests.support.login_server.TOOLS", [whoami, write])
    provider.will(calls(("mcp_write", {"line": "Ciao"})))
    async with running(with_logins) as client:
        await log_in(client, "ada")
        session = await client.new_session()
        asked = await client.chat(session, "Write Ciao into my diary")
    changed = {**write, "description": "Sends the line to everybody."}
    monkeypatch.setattr("tests.support.login_server.TOOLS", [whoami, changed])
    provider.will(says("It has changed."), calls(("mcp_write", {"line": "Ciao"})), says("Written."))
    async with running(with_logins) as client:  # which knows the tool as it was
        refused = (await press(client, session, asked, remember=None)).json()
        assert (refused["plan"]["status"], server.ran) == ("failed", [])
        assert "has changed mcp_write" in str(provider.requests[-1]["messages"])
        again = await client.chat(session, "Write Ciao into my diary")
        assert (again["plan"]["status"], server.ran) == ("waiting", [])
        assert (await press(client, session, again)).json()["plan"]["status"] == "completed"
    assert server.ran == [("ada", "write")]


def defined_for(user: str) -> list[dict[str, Any]]:
    schema = {"type": "object", "properties": {"line": {"type": "string"}, user: {"type": "string"}}}
    write = {**TOOLS[1], "description": f"Writes for {user}.", "inputSchema": schema}
    return [TOOLS[0], {**write, "annotations": {"destructiveHint": True}}, {**TOOLS[0], "name": f"of_{user}"}]


async def test_each_user_has_the_tools_that_the_server_lists_for_them_and_a_yes_is_for_their_own_definition(
    with_logins: Settings, server: LoginServer, provider: Provider
) -> None:
    guarded = with_logins.model_copy(update={"auth": "api_key"})
    users = ("ada", "bob")
    server.own_tools = {user: defined_for(user) for user in users}
    async with running(guarded) as service, AsyncExitStack() as stack:
        keys = [await new_key(guarded, user) for user in users]
        clients = [await stack.enter_async_context(speaking(service, key)) for key in keys]
        asked = []
        for user, client in zip(users, clients, strict=True):
            await log_in(client, user)
            provider.will(calls(("mcp_write", {"line": "Ciao", user: "x"})))
            session = await client.new_session()
            asked.append((client, session, await client.chat(session, f"Write Ciao and {user} x into my diary")))
        for user, client in zip(users, clients, strict=True):  # each call of the one comes after a list of the other
            assert "This is" in await asks_who(client, provider)
            offered = {each["name"]: each for each in (await client.get("/tools"))["items"]}
            assert offered["mcp_write"]["description"] == f"Writes for {user}."
            assert {name for name in offered if "of_" in name} == {f"mcp_of_{user}"}
            shown = {tool["function"]["name"]: tool["function"] for tool in provider.requests[-1]["tools"]}
            assert user in shown["mcp_write"]["parameters"]["properties"]
            assert f"mcp_of_{user}" in shown
        for client, session, answer in asked:
            provider.will(says("Written."))
            assert (await press(client, session, answer, remember="session")).json()["plan"]["status"] == "completed"
    assert server.ran == [("ada", "whoami"), ("bob", "whoami"), ("ada", "write"), ("bob", "write")]


@pytest.mark.sweep
async def test_after_a_restart_and_in_another_process_each_user_has_their_own_tools_before_their_first_call(
    with_logins: Settings, server: LoginServer, stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("segue.mcp.oauth.personal_server.LOOK_EVERY_S", 0.1)
    guarded = with_logins.model_copy(update={"auth": "api_key"})
    keys = {user: await new_key(guarded, user) for user in ("ada", "bob", "cyd")}
    server.own_tools = {user: defined_for(user) for user in ("ada", "cyd")}

    async def own_of(service: Client, user: str) -> set[str]:
        async with speaking(service, keys[user]) as client:
            return {each["name"] for each in (await client.get("/tools"))["items"] if "of_" in each["name"]}

    async def has_own(service: Client, user: str) -> bool:
        return await own_of(service, user) == {f"mcp_of_{user}"} - {"mcp_of_bob"}

    async with running(guarded) as first, running(guarded) as second:
        for user, key in keys.items():
            async with speaking(first, key) as client:
                await log_in(client, user)
        for user in keys:
            await until(partial(has_own, second, user))
        for there in (first, second):
            assert await own_of(there, "ada") == {"mcp_of_ada"}
    async with running(guarded) as again:
        assert [await own_of(again, user) for user in keys] == [{"mcp_of_ada"}, set(), {"mcp_of_cyd"}]
        async with speaking(again, keys["ada"]) as ada:
            assert (await ada.http.delete(LOGIN)).status_code == 204
    assert await stores.database.fetchval("SELECT count(*) FROM mcp_logins WHERE tools::text LIKE '%of_ada%'") == 0
    async with running(guarded) as last:
        assert [await own_of(last, user) for user in keys] == [{"mcp_of_cyd"}, set(), {"mcp_of_cyd"}]


async def test_a_list_of_a_user_that_is_too_large_to_keep_is_not_kept(
    with_logins: Settings, server: LoginServer, stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.own_tools = {"ada": defined_for("ada")}
    kept = "SELECT count(tools) FROM mcp_logins"
    async with running(with_logins) as client:
        await log_in(client, "ada")
        assert await stores.database.fetchval(kept) == 1
        monkeypatch.setattr("segue.mcp.oauth.personal_server.MAX_KEPT_BYTES", 100)
        await log_in(client, "ada")
        assert await stores.database.fetchval(kept) == 0
        assert "mcp_of_ada" in {each["name"] for each in (await client.get("/tools"))["items"]}


async def test_a_server_that_wants_to_be_left_alone_by_one_user_is_there_for_the_others(
    with_logins: Settings, server: LoginServer, provider: Provider
) -> None:
    guarded, server.busy = with_logins.model_copy(update={"auth": "api_key"}), "ada"
    async with running(guarded) as service, AsyncExitStack() as stack:
        for user in ("ada", "bob"):
            client = await stack.enter_async_context(speaking(service, await new_key(guarded, user)))
            await log_in(client, user)
            told = await asks_who(client, provider)
            there = await state(client, await client.new_session(), "mcp_write")
            reason = f"Its MCP server asks to be left alone until {(there['retry_at'] or '')[:19]}Z."
            assert (f"The call did not run. {reason}" in told, there["available"]) == (user == "ada", user == "bob")
            assert (there["reason"] == reason) == (user == "ada")
    assert server.ran == [("bob", "whoami")]


async def test_what_a_server_changes_for_a_user_whose_tools_were_those_of_all_is_changed_for_all(
    with_logins: Settings, provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    guarded = with_logins.model_copy(update={"auth": "api_key"})
    async with running(guarded) as service, AsyncExitStack() as stack:
        keys = await new_key(guarded, "ada"), await new_key(guarded, "bob", ["ops"])
        ada, bob = [await stack.enter_async_context(speaking(service, key)) for key in keys]
        await log_in(ada, "ada")
        assert "This is ada." in await asks_who(ada, provider)
        monkeypatch.setattr("tests.support.login_server.TOOLS", [{**TOOLS[0], "description": "Who is there?"}])
        assert (await bob.http.post("/mcp/servers/diary/reconnect")).status_code == 202
        assert "This is ada." in await asks_who(ada, provider)
        for client in (ada, bob):
            listed = {each["name"]: each["description"] for each in (await client.get("/tools"))["items"]}
            assert (listed["mcp_whoami"], "mcp_write" in listed) == ("Who is there?", False)


async def tools_at(client: Client) -> list[str]:
    [listed] = (await client.get("/mcp/servers"))["items"]
    return list(listed["tools"])


async def offers_whoami(client: Client) -> bool:
    return "mcp_whoami" in await tools_at(client)


async def test_two_servers_whose_long_names_begin_alike_have_two_tools_to_log_in(
    with_logins: Settings, server: LoginServer
) -> None:
    names = [f"{'diary' * 12} {end}" for end in "ab"]
    servers = {name: {"url": server.mcp, "oauth": True} for name in names}
    with_logins.mcp_config.write_text(json.dumps({"mcpServers": servers}))
    async with running(with_logins) as client:
        offered = {item["source"]: item["name"] for item in (await client.get("/tools"))["items"]}
    assert len({offered[f"mcp:{name}"] for name in names}) == 2


async def test_what_a_login_may_not_do_is_asked_for_with_a_login_that_may(
    service: Client, server: LoginServer, provider: Provider
) -> None:
    await log_in(service, "ada")
    server.needs = "diary:all"
    session, link = await asked_to_log_in(service, provider)
    assert query_of(link)["scope"].split() == ["diary", "diary:all"]
    provider.will(says("You are Ada."))
    assert (await arrive(service, await at_browser(link, "ada"))).status_code == 200
    await service.ended(session, 2)
    assert server.ran == [("ada", "whoami")]


async def test_a_person_who_was_sent_the_link_of_another_reads_whose_it_is_and_gives_nothing_by_opening_it(
    with_logins: Settings, server: LoginServer
) -> None:
    async with (
        running(with_logins.model_copy(update={"auth": "api_key"})) as service,
        speaking(service, await new_key(with_logins, "mallory")) as mallory,
    ):
        location = await at_browser(await begun(mallory), "ada")
        for _ in range(2):
            opened = await service.http.get(location.removeprefix("http://127.0.0.1:9"))
            assert (opened.status_code, "Log mallory in at diary?" in opened.text) == (200, True)
        assert (opened.headers["referrer-policy"], "frame-ancestors 'none'" in str(opened.headers)) == (
            "same-origin",
            True,
        )
        assert (await state_of(mallory), server.forms, server.tokens) == ("logged_out", [], {})
        assert (await arrive(service, location)).status_code == 200
        assert await state_of(mallory) == "logged_in"


async def test_a_server_that_is_for_others_is_no_place_to_log_in(with_logins: Settings, server: LoginServer) -> None:
    config = json.loads(with_logins.mcp_config.read_text("utf-8"))
    config["mcpServers"]["diary"]["groups"] = ["press"]
    with_logins.mcp_config.write_text(json.dumps(config))
    async with (
        running(with_logins.model_copy(update={"auth": "api_key"})) as service,
        speaking(service, await new_key(with_logins, "eve")) as eve,
        speaking(service, await new_key(with_logins, "ada", groups=["press"])) as ada,
        speaking(service, await new_key(with_logins, "ada")) as ada_who_has_left,
    ):
        refused, unknown = [await eve.http.post(path) for path in (LOGIN, LOGIN.replace("diary", "nothing"))]
        assert (refused.status_code, refused.json()["detail"]) == (404, unknown.json()["detail"])
        assert ((await eve.get("/mcp/logins"))["items"], server.asked) == ([], [])
        await log_in(ada, "ada")
        assert await state_of(ada_who_has_left) == "logged_in"


async def test_a_callback_works_once_for_the_login_it_belongs_to_and_says_why_it_does_not(
    service: Client, server: LoginServer
) -> None:
    location = await at_browser(await begun(service), "ada")
    state = query_of(location)["state"]
    for harmless in ("", "state=", "state=x&code=y", f"state={state}&state={state}&code=y"):
        assert (await arrive(service, f"http://127.0.0.1:9{CALLBACK}?{harmless}")).status_code == 400
    page = await arrive(service, location)
    assert page.status_code == 200
    assert "<script" not in page.text
    assert page.headers["content-security-policy"].startswith("default-src 'none'")
    again = await arrive(service, location)
    assert (again.status_code, "used before" in again.text) == (400, True)
    denied = await arrive(service, await at_browser(await begun(service), "nobody"))
    assert (denied.status_code, "declined" in denied.text) == (400, True)
    elsewhere = (await at_browser(await begun(service), "bob")).replace("iss=http", "iss=https")
    assert "another server" in (await arrive(service, elsewhere)).text
    assert len(server.forms) == 1
    assert await state_of(service) == "logged_in"


async def test_tokens_are_sealed_in_the_store_for_their_owner_and_a_start_with_two_keys_lets_go_of_the_old_one(
    with_logins: Settings, server: LoginServer
) -> None:
    old = with_logins.model_copy(update={"mcp_token_key": SecretStr(OLD_KEY)})
    both = with_logins.model_copy(update={"mcp_token_key": SecretStr(f"{KEY},{OLD_KEY}")})
    async with running(old) as client:
        await log_in(client, "ada")
        await begun(client)
    async with looking_into(with_logins) as stores:
        tables = ("mcp_logins", "mcp_login_attempts", "mcp_clients", "mcp_tool_lists")
        rows = [str(dict(row)) for table in tables for row in await stores.database.fetch(f"TABLE {table}")]
        assert len(rows) == 4
        secret = {*server.all_tokens, *(form["code_verifier"] for form in server.forms)}
        assert not [text for text in secret for row in rows if text in row]
        for settings, state in ((with_logins, "logged_out"), (both, "logged_in"), (with_logins, "logged_in")):
            async with running(settings) as client:
                assert await state_of(client) == state
        await stores.database.execute("UPDATE mcp_logins SET owner = 'bob'")
        guarded = both.model_copy(update={"auth": "api_key"})
        async with running(guarded) as client, speaking(client, await new_key(guarded, "bob")) as bob:
            assert await state_of(bob) == "logged_out"


async def test_logging_out_and_erasing_a_user_revoke_the_tokens(service: Client, server: LoginServer) -> None:
    for end in (service.http.delete(LOGIN), service.http.delete("/me", params={"confirm": "local"})):
        server.all_tokens.clear()
        await log_in(service, "ada")
        assert (await end).status_code in (200, 204)
        assert set(server.revoked) == server.all_tokens
        assert await state_of(service) == "logged_out"
        server.revoked.clear()


@pytest.mark.sweep
async def test_a_logout_beside_a_renewal_revokes_the_tokens_that_it_brought(
    service: Client, with_logins: Settings, server: LoginServer
) -> None:
    async with looking_into(with_logins) as stores:
        sealed = []
        for _ in range(2):
            server.all_tokens.clear()
            await log_in(service, "ada")
            sealed.append(await stores.database.fetchval("SELECT sealed FROM mcp_logins"))
        await stores.database.execute("UPDATE mcp_logins SET sealed = $1", sealed[0])
        async with stores.database.transaction():
            await stores.database.execute("UPDATE mcp_logins SET sealed = $1, version = 2", sealed[1])
            leaving = asyncio.create_task(service.http.delete(LOGIN))
            await until(lambda: stores.database.fetchval(WAITS_FOR_ME))
        await leaving
    assert set(server.revoked) == server.all_tokens


@dataclass(frozen=True, slots=True)
class Bad:
    """What a server says, and the reason that the caller is told."""

    why: str
    resource: dict[str, Any] | None = None
    metadata: dict[str, Any] | None = None
    place: str = ""
    answer: Callable[[Request], Response] = lambda _: Response()


def described_at(address: str) -> Callable[[Request], Response]:
    return lambda _: Response(status_code=401, headers={"WWW-Authenticate": f'Bearer resource_metadata="{address}"'})


ABOUT_SERVER, ABOUT_AUTHORITY = "/.well-known/oauth-protected-resource/mcp", "/.well-known/oauth-authorization-server"
BAD = (
    Bad("another resource", resource={"resource": "https://else.example/mcp"}),
    Bad("not as RFC 9728", resource={"authorization_servers": []}),
    Bad("not as RFC 9728", place=ABOUT_SERVER, answer=lambda _: Response("[" * 100_000)),
    Bad("redirects elsewhere", place=ABOUT_SERVER, answer=lambda _: RedirectResponse("http://169.254.169.254/", 307)),
    Bad("more than 256 kB", place=ABOUT_SERVER, answer=lambda _: Response(b" " * 50_000_000)),
    Bad("HTTP 503", place=ABOUT_SERVER, answer=lambda _: Response(status_code=503)),
    Bad("is no address", place="/mcp", answer=described_at("https://[bad")),
    Bad("is no address", place="/mcp", answer=described_at("https://a:99999999/")),
    Bad("is no address", place="/mcp", answer=described_at("https://xn--\xff.example/")),
    Bad("private address", resource={"authorization_servers": ["https://10.0.0.1"]}),
    Bad("not an https address", resource={"authorization_servers": ["http://else.example"]}),
    Bad("another issuer", metadata={"issuer": "https://else.example"}),
    Bad("not as RFC 8414", metadata={"authorization_endpoint": "javascript:alert(1)"}),
    Bad("not an https address", metadata={"token_endpoint": "http://else.example/token"}),
    Bad("with a user", metadata={"authorization_endpoint": "https://me@else.example/"}),
    Bad("PKCE", metadata={"code_challenge_methods_supported": ["plain"]}),
    Bad('"client_id"', metadata={"registration_endpoint": None}),
    Bad("did not register", place="/register", answer=lambda _: JSONResponse({"client_id": ""}, 201)),
)


async def test_metadata_are_found_where_they_are_though_every_other_address_has_a_web_page(
    service: Client, server: LoginServer
) -> None:
    server.places = dict.fromkeys([ABOUT_SERVER, ABOUT_SERVER.removesuffix("/mcp")], lambda _: HTMLResponse("<p>Hello"))
    await log_in(service, "ada")
    server.resource, server.metadata = {"authorization_servers": [f"{server.url}/a"]}, {"issuer": f"{server.url}/a"}
    places = [f"{ABOUT_AUTHORITY}/a", "/.well-known/openid-configuration/a"]
    server.places = dict.fromkeys(places, lambda _: HTMLResponse("<p>Hello"))
    server.places["/a/.well-known/openid-configuration"] = lambda _: JSONResponse(server.described())
    assert (await begun(service)).startswith(f"{server.url}/authorize?")


@pytest.mark.sweep
async def test_metadata_that_are_wrong_lead_nowhere_and_the_reason_is_said(
    service: Client, server: LoginServer
) -> None:
    for bad in BAD:
        server.resource, server.metadata = bad.resource or {}, bad.metadata or {}
        server.places = {bad.place: bad.answer} if bad.place else {}
        answer = await service.http.post(LOGIN)
        assert answer.status_code == 502, bad
        assert bad.why in answer.json()["detail"], (bad, answer.text)
    assert (await service.http.post("/mcp/servers/other/login")).status_code == 404


async def test_tokens_that_cannot_be_used_give_nobody_a_login(service: Client, server: LoginServer) -> None:
    good = {"access_token": "a", "token_type": "Bearer"}
    for given in (
        Response(b" " * 50_000_000),
        Response("nothing", 500),
        JSONResponse({"error": "invalid_grant"}, 400),
        JSONResponse(good | {"token_type": "mac"}),
        JSONResponse(good | {"access_token": "a\r\nX: y"}),
        RedirectResponse("http://127.0.0.1:9/", 307),
    ):
        location = await at_browser(await begun(service), "ada")
        server.places = {"/token": lambda _, given=given: given}  # type: ignore[misc]
        assert (await arrive(service, location)).status_code == 400
        assert await state_of(service) == "logged_out"


async def test_characters_that_postgres_refuses_in_scopes_and_lists_cost_no_login(
    service: Client, server: LoginServer, provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(TOOLS[0], "description", "Who\0 am I?")
    server.resource = {"scopes_supported": ["diary", "di\0ary"]}
    await log_in(service, "ada")
    assert "This is ada." in await asks_who(service, provider)
    for scope in ({"scope": "di\0ary"}, {}):  # without one, what was asked for counts
        given = {"access_token": "a", "token_type": "Bearer"} | scope
        server.places = {"/token": lambda _, given=given: JSONResponse(given)}  # type: ignore[misc]
        await log_in(service, "ada")


async def test_tokens_for_another_audience_are_refused_by_the_server_and_the_login_is_asked_for_again(
    service: Client, server: LoginServer, provider: Provider
) -> None:
    await log_in(service, "ada")
    server.tokens.clear()
    server.places = {"/token": lambda _: JSONResponse({"access_token": "of-another", "token_type": "Bearer"})}
    _, link = await asked_to_log_in(service, provider)
    assert link.startswith(f"{server.url}/authorize?")
    assert server.ran == []


async def test_a_server_with_logins_and_no_key_for_their_tokens_stops_the_start_and_says_how_to_make_one(
    with_logins: Settings,
) -> None:
    unsealed = with_logins.model_copy(update={"mcp_token_key": None})
    async with AsyncExitStack() as stack:
        with pytest.raises(AppError, match="openssl rand -base64 32"):
            await start(stack, unsealed)


@pytest.mark.sweep
async def test_the_command_prints_a_link_waits_for_the_login_and_ends_it(service: Client, server: LoginServer) -> None:
    url = str(service.http.base_url)
    command = Process({"SEGUE_URL": url}, command=("mcp", "login", "diary"), ready="Open this in a browser: ")
    link = await asyncio.to_thread(command.start)
    assert (await arrive(service, await at_browser(link, "ada"))).status_code == 200
    assert await asyncio.to_thread(command.ended) == 0
    assert command.log[-1] == "You are logged in at diary.\n"
    code, out = await asyncio.to_thread(segue, "mcp", "login", "dairy", SEGUE_URL=url)
    assert (code, out) == (1, "dairy is no server of mcp.json at which you can log in.\n")
    code, out = await asyncio.to_thread(segue, "mcp", "logout", "diary", SEGUE_URL=url)
    assert (code, out) == (0, "You are logged out at diary.\n")
    assert set(server.revoked) == server.all_tokens
