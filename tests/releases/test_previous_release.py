"""This release goes on from the rows and keys that the one before left when it was killed: `previous.json`.

`record.py` makes that file, in the tree of the release before.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from alembic import command
from segue.around.embedded.server_urls import ServerUrls
from segue.config import Settings
from segue.db.migrations import config, upgrade
from segue.db.models import metadata
from segue.domain.ids import utc_now
from segue.models.normal_form import short_id
from tests.support.commands import segue
from tests.support.health import MOODY, states
from tests.support.pasted import pasted
from tests.support.provider import Provider, says
from tests.support.redis_keys import write_key
from tests.support.service import Client, running
from tests.support.shelf import Shelf
from tests.support.stores import looking_into, new_database, notify_changes, urls_of
from tests.support.streams import check, kinds, listening, replayed, texts

LEFT: dict[str, Any] = json.loads(Path(__file__).with_name("previous.json").read_text("utf-8"))
WRITTEN_COLUMNS = "SELECT column_name FROM information_schema.columns WHERE table_name = $1 AND is_generated = 'NEVER'"
SCENES: dict[str, Any] = LEFT["scenes"]


@pytest.fixture
async def database_url(servers: ServerUrls) -> AsyncIterator[str]:
    """A database at the revision of the release before."""
    async with new_database(servers, "template0") as url:
        await asyncio.to_thread(command.upgrade, config(url), LEFT["revision"])
        yield url


@pytest.fixture
async def as_left(settings: Settings) -> Settings:
    """The stores as they were left, at the revision of the release before."""
    async with looking_into(settings) as stores:
        for table in [table.name for table in metadata.sorted_tables if table.name in LEFT["tables"]]:
            names = ", ".join([f'"{name}"' for (name,) in await stores.database.fetch(WRITTEN_COLUMNS, table)])
            await stores.database.execute(
                f"INSERT INTO {table} ({names}) OVERRIDING SYSTEM VALUE "  # noqa: S608 (names of our own)
                f"SELECT {names} FROM jsonb_populate_recordset(NULL::{table}, $1)",
                json.dumps(LEFT["tables"][table]),
            )
        for key, recorded in LEFT["redis"].items():
            await write_key(stores.redis, key, recorded)
    return settings


@pytest.fixture
async def left(as_left: Settings, database_url: str) -> Settings:
    """The same, brought to this release's revision."""
    await asyncio.to_thread(upgrade, database_url)
    await notify_changes(database_url)
    return as_left


@pytest.fixture
async def client(left: Settings, shelf: Shelf, provider: Provider) -> AsyncIterator[Client]:
    async with going_on(left, shelf, provider) as served:
        yield served


@asynccontextmanager
async def going_on(left: Settings, shelf: Shelf, provider: Provider) -> AsyncIterator[Client]:
    left.mcp_config.write_text(json.dumps({"mcpServers": {"shelf": {"url": shelf.url}}}))
    provider.always("Tell me everything", says("All of it."))
    provider.always("Are you there?", says("Here."))
    recorded_at, now = datetime.fromisoformat(LEFT["recorded_at"]), utc_now()
    limits = {"limit_concurrent_turns": 9, "limit_requests_per_minute": 900, "limit_tokens_per_day": 900_000}
    async with running(left.model_copy(update=limits), clock=lambda: recorded_at + (utc_now() - now)) as served:
        yield served


@pytest.mark.sweep  # the backup of that release below goes on with a yes
async def test_a_plan_that_waits_goes_on_with_a_yes(client: Client, provider: Provider, shelf: Shelf) -> None:
    await goes_on_with_a_yes(client, provider, shelf)


async def test_upgrading_as_the_page_says_migrates_it_and_the_backup_from_before_goes_on_with_a_yes(
    as_left: Settings, provider: Provider, shelf: Shelf, tmp_path: Path
) -> None:
    urls = urls_of(as_left)
    code, said = await pasted("operations.md", "Upgrading", **urls, TMPDIR=str(tmp_path))
    assert (code, "The database is at the newest revision." in said) == (0, True), said
    code, said = await asyncio.to_thread(lambda: segue("restore", "--force", *backups_in(tmp_path), **urls))
    assert code == 0, said
    async with going_on(as_left, shelf, provider) as client:
        await goes_on_with_a_yes(client, provider, shelf)


def backups_in(folder: Path) -> list[str]:
    return [str(path) for path in folder.rglob("before-upgrade.backup")]


async def goes_on_with_a_yes(client: Client, provider: Provider, shelf: Shelf) -> None:
    session, plan = SCENES["waiting"]["session"], SCENES["waiting"]["plan"]
    unknown_before = {"args_origin": None, "asks": None, "waits_for": "self", "others": None}
    steps = [{**step, **unknown_before} for step in plan["steps"]]
    assert await client.get(f"/sessions/{session}/plan") == {**plan, "steps": steps}
    provider.will_to("sì, grazie", says("Fatto."))
    answer = await client.chat(session, "sì, grazie")
    assert answer["acknowledgement"]["verdict"] == "confirm"
    assert (answer["plan"]["id"], answer["plan"]["status"]) == (plan["id"], "completed")
    assert shelf.effects == ["delete itm-1"]


@pytest.mark.sweep
async def test_a_turn_in_another_queue_than_this_release_has_is_found_by_recovery(client: Client) -> None:
    [turn] = await client.ended(SCENES["queued"]["session"])
    assert (turn["status"], turn["answer"]["message"]["content"]) == ("completed", "Here.")


@pytest.mark.sweep
async def test_a_stream_that_broke_off_goes_on(client: Client) -> None:
    session, heard = SCENES["streaming"]["session"], SCENES["streaming"]["heard"]
    turn = heard[0]["event"]["runId"]
    path = f"/sessions/{session}/turns/{turn}/events"
    async with listening(client, path, headers={"Last-Event-ID": str(heard[-1]["id"])}) as stream:
        rest = await stream.rest()
    whole = await replayed(client, session, turn)
    check(whole)
    assert [{"id": each.id, "event": each.event} for each in whole[: len(heard)]] == heard
    assert whole[len(heard) :] == rest
    assert "CUSTOM attempt" in kinds(rest)
    assert [*texts(whole).values()][-1] == "All of it."


@pytest.mark.sweep  # the upgrade above goes on with a session of that release
async def test_what_was_found_and_said_is_still_known(client: Client, provider: Provider) -> None:
    session, answer = SCENES["found"]["session"], SCENES["found"]["answer"]
    again = await client.http.post(
        f"/sessions/{session}/chat", json={"message": "Which lamps?"}, headers={"Idempotency-Key": "asked-once"}
    )
    assert again.json() == answer
    assert [turn["status"] for turn in await client.turns(session)] == ["completed"] * 2
    provider.will_to("And the first?", says("It is lit."))
    assert (await client.chat(session, "And the first?"))["memory_used"]["short_term"]
    sent = json.dumps(provider.about("And the first?")[-1]["messages"])
    assert short_id(answer["tool_calls"][0]["tool_call_id"]) in sent
    assert "itm-1" in sent
    [fact] = (await client.get("/memories"))["items"]
    assert fact["content"] == "Likes tea"


@pytest.mark.sweep
async def test_tools_are_kept_from_the_model_that_were_kept_from_it(client: Client, provider: Provider) -> None:
    found, elsewhere = SCENES["found"]["session"], await client.new_session()
    known = await states(client, found)
    assert (known[MOODY]["status"], known["mcp_burn_item"]["status"]) == ("failed", "maintenance")
    assert known["mcp_find_items"]["execution_count"] == 1
    kept = {MOODY, "mcp_burn_item"}
    for session, missing in ((found, kept), (elsewhere, {MOODY})):
        provider.will_to(f"I am in {session}", says("Welcome."))
        await client.chat(session, f"I am in {session}")
        [request] = provider.about(f"I am in {session}")
        assert kept - {tool["function"]["name"] for tool in request["tools"]} == missing


@pytest.mark.sweep
async def test_no_key_is_left_that_this_release_does_not_know(left: Settings, client: Client) -> None:
    """What it reads it also deletes: with the sessions goes everything but what counts their owner's use."""
    for scene in ("queued", "streaming"):
        await client.ended(SCENES[scene]["session"])
    for row in LEFT["tables"]["sessions"]:
        assert (await client.http.delete(f"/sessions/{row['id']}")).status_code == 204
    async with looking_into(left) as stores:
        kept = {key async for key in stores.redis.scan_iter()}
    assert {key for key in kept if "ses_" in key or ":plan" in key} == set()
