"""From AUTH=none to keys: what was said before becomes a user's, beside the service and in spite of a kill."""

import asyncio
import os
import signal

import pytest
from starlette.responses import Response

from segue.config import Settings
from segue.db.models import metadata
from segue.db.user_data import OF_USERS
from tests.support.commands import ROOT, forked, segue, surroundings
from tests.support.identity import new_key, speaking
from tests.support.logs import until
from tests.support.patience import PATIENCE_S
from tests.support.provider import Provider, says
from tests.support.service import Client, running
from tests.support.stores import Stores
from tests.support.uploads import uploaded

LOCALS_ROWS = (  # of the tables that a conversation leaves empty
    "INSERT INTO reservations VALUES ('job', 1, 'local', current_date, 1, 1, now() + interval '1 hour')",
    "INSERT INTO user_limits (owner, tokens_per_day) VALUES ('local', 9000000)",
    "INSERT INTO user_groups VALUES ('local', current_date, 'staff')",
    "INSERT INTO usage VALUES (DEFAULT, 'local', current_date, 'old', NULL, 1, 1, 1, 1, 1, false)",
    "INSERT INTO client_sessions SELECT 'local', 'a chat', id FROM sessions LIMIT 1",
    "INSERT INTO mcp_logins VALUES ('local', 'diary', 'login', 1, 'sealed', '', now())",
    "INSERT INTO mandates (id, owner, tool, definition, created_at) VALUES ('man', 'local', 'x', 'digest', now())",
    """INSERT INTO schedules (id, owner, agent, groups, message, time_zone, missed, overlap, retries, status, made_by,
    starts_at, created_at) VALUES ('sch', 'local', 'x', '[]', '', 'UTC', '', '', 0, 'paused', 'user', now(), now())""",
    """INSERT INTO triggers (id, owner, agent, groups, message, sealed, status, created_at)
    VALUES ('trg', 'local', 'x', '[]', 'm', 'sealed', 'paused', now())""",
    "INSERT INTO mcp_login_attempts VALUES ('of', 'local', 'diary', 'sealed', now())",
)


async def adopt(urls: dict[str, str], *options: str) -> tuple[int, dict[str, str]]:
    code, said = await asyncio.to_thread(segue, "users", "adopt", "--user", "ada", *options, **urls)
    lines = (line.partition("  ") for line in said.splitlines())
    return code, {name: count for name, _, count in lines}


async def tables_that_say(stores: Stores, word: str) -> set[str]:
    """The tables in which a column holds this word and nothing else."""
    query = "SELECT count(*) FROM {0}, jsonb_each_text(to_jsonb({0})) WHERE value = $1"
    return {table for table in metadata.tables if await stores.database.fetchval(query.format(table), word)}


async def test_all_that_was_said_without_keys_becomes_a_users_while_the_service_runs(
    client: Client, settings: Settings, provider: Provider, stores: Stores, urls: dict[str, str]
) -> None:
    go = asyncio.Event()

    async def held(_: object) -> Response:
        await go.wait()
        return says("at last")

    provider.always("hello", says("hi"))
    provider.always("slowly", held)
    session, busy = await client.new_session(title="the first"), await client.new_session()
    file = await uploaded(client, session, b"tea", "notes.txt")
    turn = (await client.chat(session, "hello", attachments=[file]))["turn_id"]
    await client.http.post(f"/sessions/{session}/turns/{turn}/stream-token")
    await client.http.post("/memories", json={"content": "likes tea", "kind": "preference"})
    await client.http.post("/agents/reload")
    await new_key(settings, "local")
    ada_key, bob_key = await new_key(settings, "ada"), await new_key(settings, "bob")
    for row in LOCALS_ROWS:
        await stores.database.execute(row)
    assert await tables_that_say(stores, "local") == {table.name for table, _ in OF_USERS}, "give local a row of each"
    before = await client.messages(session)
    code, told = await adopt(urls, "--dry-run")
    assert (code, told["sessions"], set(told)) == (0, "2", {table.name for table, _ in OF_USERS})
    assert await tables_that_say(stores, "ada") == {"api_keys"}
    waiting = (await client.send(busy, "slowly", background=True)).json()["turn_id"]
    async with provider.heard, asyncio.timeout(PATIENCE_S):
        await provider.heard.wait_for(lambda: len(provider.requests) == 2)
    code, told = await adopt(urls, "--wait", "0")
    assert (code, "1 sessions of local have a turn that is open" in str(told)) == (1, True)
    go.set()

    async def has_ended() -> bool:
        return bool((await client.get(f"/sessions/{busy}/turns/{waiting}"))["status"] == "completed")

    await until(has_ended)
    code, told = await adopt(urls)
    assert (code, told["sessions"]) == (0, "1")
    assert await tables_that_say(stores, "local") == set()
    assert (await client.http.get(f"/sessions/{session}")).status_code == 404
    async with running(settings.model_copy(update={"auth": "api_key"})) as service:
        async with speaking(service, bob_key) as bob:
            assert (await bob.get("/sessions"))["items"] == (await bob.get("/memories"))["items"] == []
        async with speaking(service, ada_key) as ada:
            assert {each["id"] for each in (await ada.get("/sessions"))["items"]} == {session, busy}
            assert await ada.messages(session) == before
            assert [each["content"] for each in (await ada.get("/memories"))["items"]] == ["likes tea"]
            assert (await ada.chat(session, "hello"))["message"]["content"] == "hi"
            assert sum(day["llm_calls"] for day in (await ada.get("/usage"))["items"]) == 4


def test_an_adoption_of_nothing_says_so_and_counts_no_table(urls: dict[str, str]) -> None:
    told = segue("users", "adopt", "--user", "ada", "--from", "eve", **urls)
    assert told == (0, "There is nothing of eve to move.\n")


@pytest.mark.sweep
async def test_a_killed_adoption_goes_on_where_it_stopped_and_mixes_nothing_unasked(
    client: Client, settings: Settings, stores: Stores, urls: dict[str, str]
) -> None:
    async with (
        running(settings.model_copy(update={"auth": "api_key"})) as service,
        speaking(service, await new_key(settings, "ada")) as ada,
    ):
        await client.new_session()
        for each in (client, ada):
            await each.http.post("/memories", json={"content": "likes tea", "kind": "preference"})
        code, told = await adopt(urls)
        assert (code, "--merge" in str(told)) == (2, True)
        assert await tables_that_say(stores, "local") == {"sessions", "memories"}
        async with stores.database.transaction():
            await stores.database.execute("LOCK TABLE api_keys IN ACCESS EXCLUSIVE MODE")
            nowhere = os.open(os.devnull, os.O_RDWR)
            command = ("users", "adopt", "--user", "ada", "--merge")
            process = forked(command, ROOT, surroundings(urls), (nowhere,) * 3)

            async def has_begun() -> bool:
                return not await stores.database.fetchval("SELECT count(*) FROM sessions WHERE owner = 'local'")

            await until(has_begun)
            process.send_signal(signal.SIGKILL)
            assert await asyncio.to_thread(process.wait, 10) == -signal.SIGKILL
            os.close(nowhere)
        assert await tables_that_say(stores, "local") == {"memories"}
        code, told = await adopt(urls)
        assert (code, told["memories"]) == (0, "1")
        assert await tables_that_say(stores, "local") == set()
        assert [each["content"] for each in (await ada.get("/memories"))["items"]] == ["likes tea"]
        assert len((await ada.get("/sessions"))["items"]) == 1
