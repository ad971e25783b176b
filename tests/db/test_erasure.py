"""What a deleted session and an erased user leave behind: nothing, and nobody else loses anything."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from starlette.responses import Response

from segue.config import Settings
from segue.db.models import metadata
from segue.db.user_data import belongs_to_sessions
from segue.domain.identity import LOCAL_USER
from tests.support.commands import segue
from tests.support.identity import new_key, speaking
from tests.support.plans import ASK, THREE_STEPS, planned
from tests.support.provider import Provider, calls, says
from tests.support.service import Client, running
from tests.support.shelf import Shelf
from tests.support.stores import Stores, urls_of
from tests.support.uploads import uploaded

CANARY = "zitronenfalter"
# Of tools, operators and authorization servers: docs/data-protection.md.
OF_THE_SERVICE = {"tool_definitions", "tool_holds", "audit", "mcp_clients", "mcp_tool_lists"}

OUTLIVE = {"receipts"}  # hashes, by which the rest of a chain is proven: docs/receipts.md


@pytest.fixture
async def service(settings: Settings, shelf: Shelf) -> AsyncIterator[Client]:
    settings.mcp_config.write_text(f'{{"mcpServers": {{"shelf": {{"url": "{shelf.url}"}}}}}}')
    everything = {"limit_requests_per_minute": 900, "limit_turns_per_minute": 900, "limit_concurrent_turns": 9}
    update = {"auth": "api_key", "limit_tokens_per_day": 9_000_000, **everything}
    async with running(settings.model_copy(update=update)) as served:
        yield served


async def conversation(client: Client, provider: Provider) -> str:
    """A session with a tool result, a failed tool, and a plan that waits; the word is in all of it."""
    provider.will(
        calls(("mcp_find_items", {"query": CANARY}), ("mcp_broken", {"item_id": CANARY})),
        says(f"I found {CANARY}"),
        planned([{**THREE_STEPS[0], "args": {"query": CANARY}}, *THREE_STEPS[1:]]),
    )
    session = await client.new_session(title=CANARY)
    attachment = await uploaded(client, session, CANARY.encode(), f"{CANARY}.txt")
    await client.chat(session, f"find {CANARY}", attachments=[attachment])
    await client.chat(session, f"{ASK} {CANARY}")
    return session


async def rows_with(stores: Stores, word: str) -> set[str]:
    """The tables in which a row holds this word."""
    query = "SELECT count(*) FROM {0} WHERE {0}::text LIKE '%' || $1 || '%'"
    tables = metadata.tables.keys()
    return {table for table in tables if await stores.database.fetchval(query.format(table), word)}


async def keys_with(stores: Stores, word: str) -> set[str]:
    """The Redis keys whose name or value holds this word."""
    return {key async for key in stores.redis.scan_iter() if word in f"{key} {await value_of(stores, key)}"}


async def value_of(stores: Stores, key: str) -> Any:
    reading = {
        "string": ("GET",),
        "hash": ("HGETALL",),
        "set": ("SMEMBERS",),
        "zset": ("ZRANGE", 0, -1),
        "list": ("LRANGE", 0, -1),
        "stream": ("XRANGE", "-", "+"),
    }
    command, *arguments = reading[str(await stores.redis.type(key))]
    return await stores.redis.execute_command(command, key, *arguments)  # type: ignore[no-untyped-call]  # redis-py


def exported_rows(user: str, output: Path, urls: dict[str, str]) -> dict[str, list[dict[str, Any]]]:
    code, said = segue("export", "--user", user, "--output", str(output), **urls)
    assert code == 0, said
    assert output.stat().st_mode & 0o777 == 0o600
    code, said = segue("export", "--user", user, "--output", str(output), **urls)
    assert (code, "Give the name of a new file" in said) == (2, True)
    rows: dict[str, list[dict[str, Any]]] = {}
    for line in map(json.loads, output.read_text("utf-8").removesuffix("\n").split("\n")):
        rows.setdefault(line["table"], []).append(line["row"])
    return rows


def test_every_table_goes_with_its_owner_or_with_a_session() -> None:
    for table in metadata.sorted_tables:
        assert (
            table.name in OF_THE_SERVICE | OUTLIVE
            or "owner" in table.c
            or belongs_to_sessions(table, ["ses"]) is not None
        ), f"nobody erases {table.name}: give it an `owner`, or a foreign key that leads to sessions"


async def test_a_deleted_session_leaves_no_word_of_what_was_said(
    service: Client, settings: Settings, provider: Provider, stores: Stores
) -> None:
    async with speaking(service, await new_key(settings, "ada")) as ada:
        session = await conversation(ada, provider)
        assert {"sessions", "messages", "plans", "tool_calls", "tool_results", "attachments"} <= await rows_with(
            stores, CANARY
        )
        assert await keys_with(stores, CANARY)
        assert await stores.everlasting() == []
        assert (await ada.http.delete(f"/sessions/{session}")).status_code == 204
    for word in (CANARY, session):
        assert await rows_with(stores, word) == set()
        assert await keys_with(stores, word) == set()


@pytest.mark.sweep
async def test_what_comes_with_a_key_that_processes_still_know_is_erased_too(
    service: Client, settings: Settings, stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("segue.users.api_keys.CHECK_EVERY_S", 1.5)
    async with (
        speaking(service, await new_key(settings, "root", ["ops"])) as root,
        speaking(service, await new_key(settings, "ada")) as ada,
    ):
        await ada.new_session()
        erasing = asyncio.create_task(root.http.delete("/ops/users/ada?confirm=ada"))
        fact = {"content": CANARY, "kind": "fact"}
        while (answer := await ada.http.post("/memories", json=fact)).status_code == 201:
            pass
        assert answer.status_code == 401
        assert (await erasing).status_code == 200
    assert await rows_with(stores, CANARY) == set()


async def test_a_heavy_users_turns_are_erased_in_batches_all_are_counted_and_one_that_runs_ends(
    client: Client, provider: Provider, stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("segue.db.user_data.TURNS_AT_ONCE", 2)
    go = asyncio.Event()

    async def held(_: dict[str, Any]) -> Response:
        await go.wait()
        return says("too late")

    provider.will(*(says(CANARY) for _ in range(4)), held)
    session = await client.new_session()
    for _ in range(4):
        await client.chat(session, CANARY)
    runs_on = asyncio.create_task(client.send(session, CANARY))
    await provider.wait_for_requests(5)
    before = await stores.rows()
    async with stores.writing() as writes:
        erased = await client.http.delete("/me", params={"confirm": LOCAL_USER})
    assert sum(each.startswith("turns DELETE FROM turns ") for each in writes) >= 3  # one finds none
    assert {table: erased.json()["rows"][table] for table in before} == before
    assert (before["turns"], before["messages"]) == (5, 9)
    go.set()
    assert (await runs_on).json()["code"] == "session_not_found"
    assert set((await stores.rows()).values()) == {0}
    assert await rows_with(stores, CANARY) == set()


OF_NOBODY_THERE = """
INSERT INTO schedules (id, owner, agent, groups, message, status, created_at, time_zone, missed, overlap, retries,
    made_by, starts_at)
    VALUES ('sch', 'ada*', 'segue', '[]', 'Report', 'active', now(), 'UTC', 'once', 'skip', 2, 'user', now());
INSERT INTO triggers (id, owner, agent, groups, message, status, created_at, sealed)
    VALUES ('trg', 'ada*', 'segue', '[]', 'Report', 'active', now(), 'sealed');
INSERT INTO user_groups VALUES ('ada*', current_date, 'staff');
INSERT INTO receipts SELECT id, 1, id, 'of it', '', 'of both' FROM sessions WHERE owner = 'ada*';
INSERT INTO receipt_contents SELECT id, 1, 'salt', '{}' FROM sessions WHERE owner = 'ada*'
"""


async def test_an_erased_user_is_gone_from_every_table_and_from_redis_and_the_others_are_not(
    service: Client, settings: Settings, provider: Provider, stores: Stores, tmp_path: Path
) -> None:
    assert settings.database_url is not None
    assert settings.redis_url is not None
    ada_key, bob_key = await new_key(settings, "ada*"), await new_key(settings, "ada*b")
    async with speaking(service, ada_key) as ada, speaking(service, bob_key) as bob:
        gone = [await conversation(ada, provider), await conversation(ada, provider)]
        answer = (await ada.messages(gone[0]))[-1]
        rating = {"rating": "up", "comment": CANARY}
        await ada.http.put(f"/sessions/{gone[0]}/messages/{answer['id']}/feedback", json=rating)
        await ada.http.post(f"/sessions/{gone[0]}/turns/{answer['turn_id']}/stream-token")
        kept = await conversation(bob, provider)
        before = await bob.messages(kept)
        for user in (ada, bob):
            noted = await user.http.post("/memories", json={"content": f"likes the {CANARY}", "kind": "preference"})
            assert noted.status_code == 201
        urls = urls_of(settings)
        await stores.database.execute(
            "INSERT INTO reservations VALUES ('job', 1, 'ada*', current_date, 1, 1, now() + interval '1 hour')"
        )
        await stores.database.execute(
            "INSERT INTO tool_state_changes (id, session_id, tool, before, after, at)"
            " SELECT id, id, 'x', 'available', 'failed', now() FROM sessions WHERE owner = 'ada*'"
        )
        await stores.database.execute("INSERT INTO user_limits (owner, tokens_per_day) VALUES ('ada*', 9000000)")
        await stores.database.execute("INSERT INTO client_sessions VALUES ('ada*', 'a chat of hers', $1)", gone[0])
        await stores.database.execute(
            "INSERT INTO grants SELECT id, 'x', 'digest of x', id, now() FROM sessions WHERE owner = 'ada*'"
        )
        await stores.database.execute(
            "INSERT INTO webhook_events (id, session_id, type, data, created_at, due_at)"
            " SELECT id, id, 'turn.completed', '{}'::jsonb, now(), now() FROM sessions WHERE owner = 'ada*' UNION ALL"
            " SELECT 'evt_man', NULL, 'mandate.given', '{\"user\": \"ada*\"}', now(), now()"
        )
        await stores.database.execute(
            "INSERT INTO mcp_logins VALUES ('ada*', 'diary', 'login', 1, 'sealed', '', now())"
        )
        await stores.database.execute("INSERT INTO mcp_login_attempts VALUES ('of', 'ada*', 'diary', 'sealed', now())")
        await stores.database.execute(OF_NOBODY_THERE)
        (folder := tmp_path / "exports").mkdir()
        export = ("export", "--user", "ada*", "--output", str(folder / "ada.ndjson"))
        async with stores.hidden("usage"):
            code, _ = await asyncio.to_thread(segue, *export, **urls)
        assert (code == 0, list(folder.iterdir())) == (False, [])
        exported = await asyncio.to_thread(exported_rows, "ada*", folder / "ada.ndjson", urls)
        _, counted = await asyncio.to_thread(segue, "erase", "--user", "ada*", "--dry-run", **urls)
        code, said = await asyncio.to_thread(segue, "erase", "--user", "ada*", "--yes", **urls)
        assert code == 0, said
        told = {line.rpartition("  ")[0]: int(line.rpartition("  ")[2]) for line in said.splitlines()}
        assert told == {
            **told,
            "sessions": 2,
            "turns": 4,
            "api_keys": 1,
            "memories": 1,
            "tool_calls": 10,
            "plans": 2,
            "webhook_events": 3,
        }
        assert told["messages"] > 4
        assert {*counted.splitlines()} - {"Nothing was removed."} == {
            line for line in said.splitlines() if "redis" not in line
        }
        assert told["redis keys"] > 4
        tables = metadata.tables.keys() - OF_THE_SERVICE - OUTLIVE
        assert tables <= told.keys()
        assert {name: len(exported.get(name, ())) for name in tables} == {name: told[name] for name in tables}
        assert exported.keys() == tables | OUTLIVE, "give ada a row of each table, so that its export is seen"
        assert {row["id"] for row in exported["sessions"]} == set(gone)
        assert not {"digest", "sealed", "search"} & {name for rows in exported.values() for row in rows for name in row}
        for session in gone:
            assert await rows_with(stores, session) == OUTLIVE
            assert await keys_with(stores, session) == set()
        assert not [key for key in await keys_with(stores, "ada*") if "ada*b" not in key]
        assert await bob.messages(kept) == before
        assert len((await bob.get("/memories"))["items"]) == 1
        assert (await bob.get(f"/sessions/{kept}/memory"))["short_term"] is not None
    assert (await asyncio.to_thread(segue, "erase", "--user", "ada*", "--yes", **urls))[0] == 1
