"""A turn whose process is killed goes on in another one: from what is stored, without doing anything twice."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest
from starlette.responses import Response

from backend.clock import utc_now
from backend.config import Settings
from backend.db.engine import Database
from backend.domain.identity import LOCAL_USER
from backend.domain.session import AcknowledgementReport, MemoryReport, TurnReport, Usage, WebSearchReport
from backend.embedded import Servers
from backend.memory.history import append_message
from backend.turn import endings, failures, store
from backend.turn.store import ChatRequest, Claim, StaleTurn
from tests.support.plans import planned
from tests.support.provider import Provider, calls, says
from tests.support.service import Client, Process, running
from tests.support.shelf import Shelf, serving_shelf
from tests.support.stores import looking_into

NOTHING = TurnReport(AcknowledgementReport(), None, WebSearchReport(), MemoryReport(), Usage(), "nobody")


@pytest.fixture
async def shelf() -> AsyncIterator[Shelf]:
    async with serving_shelf() as served:
        yield served


@pytest.fixture
def environment(servers: Servers, settings: Settings, shelf: Shelf, tmp_path: Path) -> dict[str, str]:
    """Of a process whose tools are the shelf and ask nobody. The shelf outlives it."""
    assert settings.database_url is not None
    settings.mcp_config.write_text(json.dumps({"mcpServers": {"shelf": {"url": shelf.url}}}))
    return {
        "DATABASE_URL": settings.database_url.get_secret_value(),
        "REDIS_URL": servers.redis_url,
        "DATA_DIR": str(tmp_path / "data"),
        "MCP_CONFIG": str(settings.mcp_config),
        "OPENAI_BASE_URL": settings.openai_base_url or "",
        "LLM_MODEL": "scripted",
        "LLM_MAX_RETRIES": "0",
        "CONFIRM": "never",
        "PLANNING": "never",
        "WEB_SEARCH_PROVIDER": "none",
        "MIGRATE_ON_START": "false",
        "TURN_LEASE_S": "1",
    }


@asynccontextmanager
async def serving(environment: dict[str, str]) -> AsyncIterator[tuple[Process, Client]]:
    """A process and a client of it. Leaving it is kill -9."""
    process = Process(environment)
    try:
        url = await asyncio.to_thread(process.start)
        async with httpx.AsyncClient(base_url=url, timeout=30) as http:
            client = Client(http)
            async with asyncio.timeout(30):
                while set((await client.get("/health/ready"))["mcp"].values()) != {"ready"}:
                    pass
            yield process, client
    finally:
        process.kill()


async def cut_off(environment: dict[str, str], message: str, died: Callable[[], bool], *before: str) -> str:
    """A session whose process is killed in a turn as soon as `died` is true."""
    async with serving(environment) as (process, client):
        session = await client.new_session()
        for earlier in before:
            await client.chat(session, earlier)
        turn = asyncio.create_task(client.send(session, message))
        async with asyncio.timeout(20):
            while not died():
                await client.get("/health/live")
        process.kill()
        with pytest.raises(httpx.TransportError):
            await turn
    return session


def roles(messages: list[dict[str, Any]]) -> list[str]:
    return [message["role"] for message in messages]


async def test_a_turn_killed_before_the_model_answered_is_answered_after_the_restart(
    environment: dict[str, str], provider: Provider
) -> None:
    never = asyncio.Event()

    async def silent(_: dict[str, Any]) -> Response:
        await never.wait()
        return says("too late")

    provider.will(silent)
    session = await cut_off(environment, "Are you there?", lambda: len(provider.requests) == 1)
    provider.will(says("I am."), says("Still."))
    async with serving(environment) as (_, client):
        [turn] = await client.ended(session)
        await client.chat(session, "And now?")
        rows = await client.messages(session)
    never.set()
    assert (turn["status"], turn["attempts"]) == ("completed", 2)
    assert turn["answer"]["message"]["content"] == "I am."
    assert [row["content"] for row in rows] == ["Are you there?", "I am.", "And now?", "Still."]


async def test_a_call_that_may_not_be_repeated_is_unknown_and_the_effect_stays_one(
    environment: dict[str, str], provider: Provider, shelf: Shelf
) -> None:
    burn = calls(("mcp_burn_item", {"item_id": "itm-1"}))
    provider.will(burn)
    session = await cut_off(environment, "Burn it", lambda: bool(shelf.effects))
    provider.will(burn, says("I cannot tell whether it burnt. Shall I try again?"), says("Fine."))
    async with serving(environment) as (_, client):
        [turn] = await client.ended(session)
        rows = await client.messages(session)
        ledger = (await client.get(f"/sessions/{session}/tool-results"))["items"]
        await client.chat(session, "Leave it")
    assert shelf.effects == ["burn itm-1"]
    assert [(call["tool_name"], call["status"]) for call in ledger] == [("mcp_burn_item", "unknown")]
    assert [call["tool_call_id"] for call in turn["answer"]["tool_calls"]] == [ledger[0]["tool_call_id"]]
    assert roles(rows) == ["user", "assistant", "tool", "assistant"]
    told = orjson.loads(provider.messages(1, role="tool")[0]["content"])
    assert told["status"] == "unknown"
    assert orjson.loads(provider.messages(2, role="tool")[1]["content"]) == told


async def test_a_call_that_only_reads_runs_again_under_its_own_id_and_what_had_ended_does_not(
    environment: dict[str, str], provider: Provider, shelf: Shelf
) -> None:
    provider.will(calls(("mcp_get_item", {"item_id": "itm-1"}), ("mcp_look_up", {"item_id": "itm-2"})))
    session = ""

    async with serving(environment) as (process, client):
        session = await client.new_session()
        results = f"/sessions/{session}/tool-results"
        turn = asyncio.create_task(client.send(session, "Get one, look the other up"))
        async with asyncio.timeout(20):
            while not (await client.get(results, status="succeeded"))["items"] or "look itm-2" not in shelf.effects:
                pass
        before = (await client.get(results))["items"]
        process.kill()
        with pytest.raises(httpx.TransportError):
            await turn
    shelf.go.set()
    provider.will(calls(("mcp_get_item", {"item_id": "itm-1"})), says("Both are there."))
    async with serving(environment) as (_, client):
        [ended] = await client.ended(session)
        rows = await client.messages(session)
    assert sorted(shelf.effects) == ["get itm-1", "look itm-2", "look itm-2"]
    assert [call["status"] for call in ended["answer"]["tool_calls"]] == ["succeeded", "succeeded"]
    ids = {call["tool_call_id"] for call in before}
    assert {call["tool_call_id"] for call in ended["answer"]["tool_calls"]} == ids
    assert roles(rows) == ["user", "assistant", "tool", "tool", "assistant"]
    whole = [message["content"] for message in provider.messages(1, role="tool")]
    assert sorted(orjson.loads(said)["text"] for said in whole) == ["itm-2 is in the cellar", "the text of itm-1"]


STAMP = [
    {"id": 1, "description": "Find", "tool": "mcp_find_items", "args": {"query": "Rossi"}},
    {"id": 2, "description": "Stamp", "tool": "mcp_stamp_item", "args": {"item_id": "itm-1"}},
    {"id": 3, "description": "Note", "tool": "mcp_send_note", "args": {"to": "Ada", "text": "done"}},
]


async def test_a_plan_killed_in_an_approved_step_says_that_its_outcome_is_unknown_and_does_not_go_on(
    environment: dict[str, str], provider: Provider, shelf: Shelf
) -> None:
    asking = {**environment, "CONFIRM": "destructive", "PLANNING": "auto"}
    provider.will(planned(STAMP))
    message = "Find the things of Rossi, then stamp the first and finally write Ada a note"
    session = await cut_off(asking, "yes", lambda: bool(shelf.effects), message)
    shelf.go.set()
    provider.will(says("Whether it was stamped is unknown."), says("Good."))
    async with serving(asking) as (_, client):
        turn = (await client.ended(session, 2))[1]
        await client.chat(session, "yes")
    answer = turn["answer"]
    assert [step["status"] for step in answer["plan"]["steps"]] == ["complete", "unknown", "skipped"]
    assert answer["plan"]["status"] == "failed"
    assert [call["status"] for call in answer["tool_calls"]] == ["unknown"]
    assert shelf.effects == ["stamp itm-1"]


async def test_a_plan_goes_on_at_its_step_and_a_yes_that_was_not_used_up_still_holds(
    environment: dict[str, str], provider: Provider, shelf: Shelf
) -> None:
    never = asyncio.Event()

    async def silent(_: dict[str, Any]) -> Response:
        await never.wait()
        return says("too late")

    steps = [
        {"id": 1, "description": "Find", "tool": "mcp_get_item", "args": {"item_id": "itm-1"}},
        {"id": 2, "description": "Write a note", "tool": None, "requires_confirmation": True},
        {"id": 3, "description": "Look", "tool": "mcp_get_item", "args": {"item_id": "itm-2"}},
    ]
    asking = {**environment, "PLANNING": "auto"}
    provider.will(planned(steps), silent)
    message = "Get the first item, then write a note about it and finally get the second one"
    session = await cut_off(asking, "yes", lambda: len(provider.requests) == 2, message)
    provider.will(says("A note."), says("All three are done."))
    async with serving(asking) as (_, client):
        turn = (await client.ended(session, 2))[1]
    never.set()
    assert turn["answer"]["plan"]["status"] == "completed"
    assert turn["answer"]["message"]["content"] == "All three are done."
    assert shelf.effects == ["get itm-1", "get itm-2"]


@asynccontextmanager
async def abandoned(settings: Settings, session: str, *, lease_s: float = 0.0) -> AsyncIterator[tuple[Database, Claim]]:
    """A turn that a worker has claimed that is not there any more."""
    assert settings.database_url is not None
    database = Database(settings.database_url.get_secret_value())
    async with database.reading() as connection:
        await store.begin_turn(connection, LOCAL_USER, session, ChatRequest("hello?"), now=utc_now(), room=9)
        claim = await store.claim_next(connection, session, worker="gone", lease_s=lease_s)
    assert claim is not None
    yield database, claim
    await database.close()


async def test_a_worker_that_wakes_up_after_its_turn_was_taken_writes_nothing(
    client: Client, settings: Settings, provider: Provider
) -> None:
    provider.will(says("taken over"))
    session = await client.new_session()
    async with abandoned(settings, session) as (database, claim):
        [turn] = await client.ended(session)
        rows = await client.messages(session)
        with pytest.raises(StaleTurn):
            async with store.fenced_transaction(database, claim) as connection:
                await append_message(connection, claim.key, role="assistant", content="late", now=utc_now())
        async with database.reading() as connection:
            with pytest.raises(StaleTurn):
                await store.finish_turn(
                    connection, claim, answer="late", message_id="msg", report=NOTHING, cut_off=None, now=utc_now()
                )
            assert not await endings.end_turn(connection, claim, failures.internal(), now=utc_now())
            assert not await endings.hand_back(connection, claim, timeout_s=300)
    assert (turn["status"], turn["attempts"]) == ("completed", 2)
    assert await client.messages(session) == rows
    assert await client.turns(session) == [turn]


@pytest.mark.parametrize(
    ("column", "value", "code"),
    [("attempts", 3, "turn_gave_up"), ("left_s", -9.0, "turn_timeout"), ("cancel_requested_at", ..., "turn_cancelled")],
)
async def test_a_lapsed_turn_that_is_not_to_be_tried_again_ends_with_the_reason(
    client: Client, settings: Settings, provider: Provider, column: str, value: Any, code: str
) -> None:
    session = await client.new_session()
    async with abandoned(settings, session, lease_s=600), looking_into(settings) as stores:
        await stores.database.execute(
            f"UPDATE turns SET {column} = $1, lease_until = now() - interval '1 second'",  # noqa: S608 (ours)
            datetime(2020, 1, 1, tzinfo=UTC) if value is ... else value,
        )
        [turn] = await client.ended(session)
    assert turn["error"]["code"] == code
    provider.will(says("here"))
    assert (await client.chat(session, "and now?"))["message"]["content"] == "here"


async def test_a_message_that_redis_lost_on_its_way_is_answered_all_the_same(
    settings: Settings, provider: Provider
) -> None:
    provider.will(says("found it"))
    async with running(settings, takes_turns=False) as accepts, looking_into(settings) as stores:
        session = await accepts.new_session()
        assert (await accepts.send(session, "hello", background=True)).status_code == 202
        await stores.redis.flushall()
        async with running(settings):
            [turn] = await accepts.ended(session)
    assert turn["answer"]["message"]["content"] == "found it"


async def test_a_process_that_stops_hands_its_turns_back_and_tells_who_waits_where_to_look(
    environment: dict[str, str], provider: Provider
) -> None:
    never = asyncio.Event()

    async def silent(_: dict[str, Any]) -> Response:
        await never.wait()
        return says("too late")

    provider.will(silent)
    async with serving({**environment, "SHUTDOWN_GRACE_S": "2", "TURN_LEASE_S": "30"}) as (process, client):
        session = await client.new_session()
        waiting = asyncio.create_task(client.send(session, "Take your time"))
        await provider.wait_for_requests(1)
        async with asyncio.timeout(10):
            assert await asyncio.to_thread(process.stop) == 0
        told = await waiting
    assert (told.status_code, told.json()["code"]) == (503, "turn_interrupted")
    assert int(told.headers["retry-after"]) > 0
    provider.will(says("Done."))
    async with serving({**environment, "TURN_LEASE_S": "30"}) as (_, client):
        [turn] = await client.ended(session)
    never.set()
    assert turn["turn_id"] == told.json()["turn_id"]
    assert (turn["status"], turn["attempts"]) == ("completed", 1)
