"""A turn that runs while Postgres goes away for a moment."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest
from pydantic import SecretStr
from sqlalchemy import make_url
from starlette.responses import Response

from segue.config import Settings
from segue.db.engine import SESSION_SETTINGS
from tests.support.logs import awaiting, until
from tests.support.patience import PATIENCE_S
from tests.support.plans import planned
from tests.support.provider import Provider, calls, fails, says
from tests.support.proxy import Proxy, proxied
from tests.support.service import Client, running
from tests.support.shelf import Shelf
from tests.support.stores import looking_into, plain, socket_of

LONG = pytest.mark.usefixtures("long_leases")  # a turn waits for Postgres as long as it has its lease
LEASE_S = 4
FULL = """
CREATE FUNCTION fills() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE SQLSTATE '53100'; END $$;
CREATE TRIGGER fills BEFORE INSERT OR UPDATE ON turns FOR EACH STATEMENT EXECUTE FUNCTION fills();
"""


@pytest.fixture
async def postgres(database_url: str) -> AsyncIterator[Proxy]:
    async with proxied(socket_of(database_url)) as proxy:
        yield proxy


@pytest.fixture
async def client(settings: Settings, database_url: str, postgres: Proxy, shelf: Shelf) -> AsyncIterator[Client]:
    settings.mcp_config.write_text(json.dumps({"mcpServers": {"shelf": {"url": shelf.url}}}))
    database = make_url(database_url).set(host="127.0.0.1", port=postgres.port, query={})
    url = SecretStr(database.render_as_string(hide_password=False))
    changes = {"database_url": url, "confirm": "never", "turn_lease_s": 1}
    async with running(settings.model_copy(update=changes)) as served:
        await served.connected("shelf")
        yield served


@LONG
async def test_who_waits_for_an_answer_does_not_hear_of_an_outage_that_is_over_before_it(
    client: Client, provider: Provider, postgres: Proxy
) -> None:
    thought = asyncio.Event()

    async def thinks(_: dict[str, Any]) -> Response:
        await thought.wait()
        return says("a long thought")

    provider.will(thinks)
    session = await client.new_session()
    waiting = asyncio.create_task(client.send(session, "think"))
    await provider.wait_for_requests(1)
    await postgres.begin("refuses")
    while (await client.http.get(f"/sessions/{session}")).status_code != 503:
        pass
    await postgres.open()
    thought.set()
    answer = await waiting
    assert answer.status_code == 200, answer.text
    assert answer.json()["message"]["content"] == "a long thought"


@LONG
async def test_a_turn_waits_for_postgres_before_a_tool_after_its_effect_and_with_its_answer(
    client: Client, provider: Provider, postgres: Proxy, shelf: Shelf
) -> None:
    async def calls_meanwhile(_: dict[str, Any]) -> Response:
        outages.append(await begun(postgres))
        return calls(("mcp_stamp_item", {"item_id": "itm-1"}))

    async def answers_meanwhile(_: dict[str, Any]) -> Response:
        outages.append(await begun(postgres))
        return says("stamped")

    outages: list[asyncio.Task[None]] = []
    provider.will(calls_meanwhile, answers_meanwhile)
    session = await client.new_session()
    waiting = asyncio.create_task(client.chat(session, "stamp it"))
    await shelf.wait_for("stamp itm-1")
    await stamped_meanwhile(postgres, shelf)
    answer = await waiting
    await asyncio.gather(*outages)
    assert answer["message"]["content"] == "stamped"
    assert [call["status"] for call in answer["tool_calls"]] == ["succeeded"]
    [turn] = await client.turns(session)
    assert (turn["status"], turn["attempts"], shelf.effects) == ("completed", 1, ["stamp itm-1"])


@LONG
async def test_a_plan_goes_on_after_an_outage_in_each_of_its_steps(
    client: Client, provider: Provider, postgres: Proxy, shelf: Shelf
) -> None:
    async def writes_meanwhile(_: dict[str, Any]) -> Response:
        outages.append(await begun(postgres))
        return says("The note.")

    outages: list[asyncio.Task[None]] = []
    steps = [
        {"id": 1, "description": "Stamp", "tool": "mcp_stamp_item", "args": {"item_id": "itm-1"}},
        {"id": 2, "description": "Write a note", "tool": None},
        {"id": 3, "description": "Look", "tool": "mcp_find_items", "args": {"query": "Rossi"}},
    ]
    provider.will(planned(steps), writes_meanwhile, says("All done."))
    session = await client.new_session()
    waiting = asyncio.create_task(
        client.chat(session, "Look at itm-1, then stamp it, after that write a note and finally end it")
    )
    await shelf.wait_for("stamp itm-1")
    await stamped_meanwhile(postgres, shelf)
    answer = await waiting
    await asyncio.gather(*outages)
    assert answer["message"]["content"] == "All done."
    assert [step["status"] for step in answer["plan"]["steps"]] == ["complete"] * 3
    assert shelf.effects == ["stamp itm-1"]


async def test_a_turn_that_postgres_leaves_for_longer_than_a_lease_goes_on_as_after_a_crash(
    client: Client, provider: Provider, postgres: Proxy, shelf: Shelf
) -> None:
    provider.will(calls(("mcp_stamp_item", {"item_id": "itm-1"})), says("whether it was stamped is unknown"))
    session = await client.new_session()
    waiting = asyncio.create_task(client.chat(session, "stamp it"))
    await shelf.wait_for("stamp itm-1")
    async with awaiting("turn_cut_off") as cut_off, asyncio.timeout(PATIENCE_S):
        await postgres.begin("refuses")
        shelf.go.set()
        await cut_off.wait()
    await postgres.open()
    answer = await waiting
    assert answer["message"]["content"] == "whether it was stamped is unknown"
    assert [call["status"] for call in answer["tool_calls"]] == ["unknown"]
    [turn] = await client.turns(session)
    assert (turn["status"], turn["attempts"], shelf.effects) == ("completed", 2, ["stamp itm-1"])


async def test_who_waits_for_a_turn_that_cannot_end_on_a_full_disk_is_told_within_three_leases(
    settings: Settings, own_database_url: str, provider: Provider
) -> None:
    admin = await asyncpg.connect(plain(own_database_url))

    async def fills_it(_: dict[str, Any]) -> Response:
        await admin.execute(FULL)
        return says("Well.")

    provider.will(fills_it)
    changes = {"database_url": SecretStr(own_database_url), "turn_lease_s": LEASE_S}
    async with running(settings.model_copy(update=changes)) as client:
        session = await client.new_session()
        began = time.monotonic()
        refused = await client.send(session, "Is all well?")
        assert time.monotonic() - began < 3 * LEASE_S
        assert (refused.status_code, refused.json()["code"]) == (503, "storage_unavailable")
        assert (await client.send(session, "And now?")).json()["code"] == "storage_full"
        provider.will(says("It is."))
        await admin.execute("DROP FUNCTION fills CASCADE")
        [turn] = await client.ended(session)
        assert turn["answer"]["message"]["content"] == "It is."
        assert (await client.get("/health/ready"))["postgres"] == "ok"
    await admin.close()


@pytest.mark.sweep
async def test_turns_that_cannot_end_keep_no_lease_of_another_from_being_renewed(
    settings: Settings, provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(SESSION_SETTINGS, "lock_timeout", "1000")
    thought, gone_on = asyncio.Event(), asyncio.Event()

    async def thinks(_: dict[str, Any]) -> Response:
        await thought.wait()
        return says("Well.")

    async def fails_later(_: dict[str, Any]) -> Response:
        await gone_on.wait()
        return fails(400)

    provider.will_to("Think", thinks)
    provider.always("Fail", fails_later)
    async with (
        running(settings.model_copy(update={"turn_lease_s": LEASE_S})) as client,
        looking_into(settings) as stores,
        looking_into(settings) as others,
    ):
        thinking, *failing = [await client.new_session() for _ in range(8)]
        await client.send(thinking, "Think", background=True)
        for session in failing:
            await client.send(session, "Fail", background=True)
        await provider.wait_for_requests(8)
        async with others.database.transaction():
            await others.database.execute("LOCK TABLE tool_calls IN EXCLUSIVE MODE")
            gone_on.set()
            long = "SELECT lease_until > started_at + make_interval(secs => $2) FROM turns WHERE session_id = $1"
            await until(lambda: stores.database.fetchval(long, thinking, 2 * LEASE_S))
        thought.set()
        assert (await client.ended(thinking))[0]["attempts"] == 1
        assert {(await client.ended(session))[0]["status"] for session in failing} == {"failed"}


async def begun(postgres: Proxy) -> asyncio.Task[None]:
    """Begins an outage that ends when a turn waits for that."""
    started = asyncio.Event()

    async def outage() -> None:
        async with awaiting("storage_awaited") as noticed, asyncio.timeout(PATIENCE_S):
            await postgres.begin("refuses")
            started.set()
            await noticed.wait()
        await postgres.open()

    task = asyncio.create_task(outage())
    await started.wait()
    return task


async def stamped_meanwhile(postgres: Proxy, shelf: Shelf) -> None:
    outage = await begun(postgres)
    shelf.go.set()
    await outage
