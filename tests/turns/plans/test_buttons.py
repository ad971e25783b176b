"""Buttons: on a plan whose turn died, on one that runs, on one whose time passes in the queue."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from datetime import timedelta
from functools import partial
from typing import Any

import httpx2
import pytest
from sqlalchemy.ext.asyncio import AsyncConnection
from starlette.responses import Response

from segue.config import Settings
from segue.db.engine import Database
from segue.domain.ids import new_id, utc_now
from segue.domain.session import RequestedCall
from segue.memory.history import NewMessage
from segue.plans import store
from segue.tools.results import PlanStep
from segue.turns import admission, terminations
from segue.turns.call_starts import start_calls
from segue.turns.chat_request import ChatRequest
from segue.turns.claims import claim_next
from tests.support.logs import until
from tests.support.plans import ASK, THREE_STEPS, Frozen, deletion, offered, planned
from tests.support.provider import Provider, calls, fails, says
from tests.support.service import Client, running
from tests.support.shelf import Shelf
from tests.support.stores import looking_into
from tests.support.sweeps import first

STAMP = {"id": 1, "description": "Stamp it", "tool": "mcp_stamp_item", "args": {"item_id": "itm-1"}}
THOUGHT = {"id": 2, "description": "Think", "tool": None}
LOOK = THREE_STEPS[0] | {"id": 3}
THINK = [THREE_STEPS[0], {"id": 2, "description": "Think", "tool": None}, THREE_STEPS[2]]


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    opened = Database(database_url)
    yield opened
    await opened.close()


async def press(
    client: Client, session: str, decision: str, version: int, *, key: str | None = None
) -> httpx2.Response:
    body, headers = {"decision": decision, "version": version}, {"Idempotency-Key": key} if key else {}
    return await client.http.post(f"/sessions/{session}/plan/decision", json=body, headers=headers)


async def test_a_button_whose_turn_failed_for_now_is_carried_out_by_its_key_and_only_once(
    client: Client, provider: Provider, effects: list[str]
) -> None:
    thought, look = (
        {**THOUGHT, "id": 1, "requires_confirmation": True},
        {"tool": "mcp_get_item", "args": {"item_id": "itm-1"}},
    )
    session, asked = await offered(client, provider, [thought, {"id": 2, "description": "Look", **look}])
    provider.will(fails(500), says("Thought."), says("Done."))
    failed, done, same = [await press(client, session, "confirm", asked["plan"]["version"], key="k") for _ in range(3)]
    assert (failed.status_code, done.status_code) == (502, 200)
    assert done.json()["plan"]["status"] == "completed"
    assert same.json() == done.json()
    assert effects == ["get itm-1"]


async def agree(client: Client, session: str, asked: dict[str, Any], way: str) -> httpx2.Response:
    if way == "button":
        return await press(client, session, "confirm", asked["plan"]["version"])
    return await client.send(session, "Sì, grazie")


async def told_of_the_step(client: Client, session: str, waiting: asyncio.Task[httpx2.Response]) -> str:
    """Cancels the newest turn. Returns what who waits for it is told of the step, and anyone who reads it later."""
    [*_, turn] = await client.turns(session)
    path = f"/sessions/{session}/turns/{turn['turn_id']}"
    await client.http.post(f"{path}/cancel")
    told = (await waiting).json()
    assert (told["code"], told["status"]) == ("turn_cancelled", 409)
    error = (await client.get(path))["error"]
    assert (error["detail"], error["extra"]["approved_step"]) == (told["detail"], told["approved_step"])
    return str(told["approved_step"])


@pytest.mark.in_turns(1)
@pytest.mark.parametrize("way", ["button", "words"])
async def test_a_turn_that_is_cancelled_in_the_step_that_was_approved_says_that_it_may_have_run(
    client: Client, provider: Provider, shelf: Shelf, way: str
) -> None:
    session, asked = await offered(client, provider, [STAMP, THOUGHT, LOOK])
    waiting = asyncio.create_task(agree(client, session, asked, way))
    await shelf.wait_for("stamp itm-1")
    assert await told_of_the_step(client, session, waiting) == "unknown"
    shelf.go.set()


@pytest.mark.in_turns(1)
@pytest.mark.parametrize("way", ["button", "words"])
async def test_a_turn_that_is_cancelled_after_the_step_that_was_approved_says_that_it_ran(
    client: Client, provider: Provider, shelf: Shelf, way: str
) -> None:
    shelf.go.set()
    session, asked = await offered(client, provider, [STAMP, THOUGHT, LOOK])
    let_go = asyncio.Event()

    async def thinks(_: object) -> Response:
        await let_go.wait()
        return says("Thought.")

    provider.will(thinks)
    before = len(provider.requests)
    waiting = asyncio.create_task(agree(client, session, asked, way))
    await provider.wait_for_requests(before + 1)
    assert await told_of_the_step(client, session, waiting) == "ran"
    let_go.set()


@pytest.mark.in_turns(1)
@pytest.mark.parametrize("way", ["button", "words"])
@pytest.mark.parametrize(
    ("approved", "under_way", "told"),
    [("mcp_stamp_item", "stamp itm-1", "unknown"), ("mcp_delete_item", "stamp itm-2", "ran")],
)
async def test_a_turn_that_is_cancelled_between_two_approved_calls_tells_of_the_first(
    client: Client, provider: Provider, shelf: Shelf, way: str, approved: str, under_way: str, told: str
) -> None:
    provider.will(calls((approved, {"item_id": "itm-1"}), ("mcp_stamp_item", {"item_id": "itm-2"})))
    session = await client.new_session()
    asked = await client.chat(session, "Tidy the shelf up, please")
    waiting = asyncio.create_task(agree(client, session, asked, way))
    await shelf.wait_for(under_way)
    assert await told_of_the_step(client, session, waiting) == told
    shelf.go.set()


@pytest.mark.sweep
async def test_a_step_that_begins_while_another_process_ends_its_cancelled_turn_may_have_run(
    settings: Settings, provider: Provider, shelf: Shelf, database: Database
) -> None:
    settings.mcp_config.write_text(json.dumps({"mcpServers": {"shelf": {"url": shelf.url}}}))
    async with running(settings) as client:
        session, asked = await offered(client, provider, [STAMP, THOUGHT, LOOK])
    async with running(settings, takes_turns=False) as client, looking_into(settings) as stores:
        pressed = asyncio.create_task(press(client, session, "confirm", asked["plan"]["version"]))
        await until(partial(stores.database.fetchval, "SELECT status = 'queued' FROM turns ORDER BY seq DESC LIMIT 1"))
    await asyncio.wait({pressed})  # its process has gone
    pressed.exception()
    claim = await database.write(claim_next, session, worker="slow", lease_s=600)
    assert claim is not None
    async with database.autocommit() as connection:
        cancelled = "UPDATE turns SET cancel_requested_at = now() - interval '1 minute' WHERE status = 'running'"
        await connection.exec_driver_sql(cancelled)
    now, call = utc_now(), RequestedCall(new_id("call", utc_now()), "mcp_stamp_item", {})
    async with AsyncExitStack() as stack, looking_into(settings) as stores:

        async def begins(connection: AsyncConnection) -> None:
            await connection.exec_driver_sql("UPDATE plans SET granted_to = NULL, granted_step = NULL")
            await stack.enter_async_context(running(settings, takes_turns=False))
            await stores.until_locked()

        said = NewMessage("assistant", "", now, tool_calls=[call])
        await start_calls(database, claim, said, PlanStep(asked["plan"]["id"], 1), also=begins)
        ended = "SELECT error_extra->>'approved_step' FROM turns WHERE status = 'cancelled'"
        assert await until(partial(stores.database.fetchval, ended)) == "unknown"
        async with database.transaction() as connection:
            assert await admission.run_again(connection, claim.key, ChatRequest(""), now=now, room=1)
            await terminations.note_approval(connection, claim.key.turn_id)  # of a process that is late
        assert await stores.database.fetchval("SELECT count(*) FROM turns WHERE error IS NOT NULL") == 0


async def test_a_yes_that_is_cancelled_before_its_turn_begins_says_that_nothing_ran_and_is_asked_for_again(
    client: Client, provider: Provider, shelf: Shelf
) -> None:
    shelf.go.set()
    session, asked = await offered(client, provider, [STAMP, THOUGHT, LOOK])
    let_go = asyncio.Event()

    async def thinks(_: object) -> Response:
        await let_go.wait()
        return says("Sunny.")

    weather = "What is the weather like in Rome today, and what will it be like tomorrow?"
    provider.always(weather, thinks)
    before = len(provider.requests)
    busy = asyncio.create_task(client.send(session, weather))
    await provider.wait_for_requests(before + 1)
    waiting = asyncio.create_task(agree(client, session, asked, "button"))

    async def is_queued() -> bool:
        return bool((await client.turns(session))[-1]["status"] == "queued")

    await until(is_queued)
    assert await told_of_the_step(client, session, waiting) == "did_not_run"
    let_go.set()
    assert (await busy).status_code == 200
    assert shelf.effects == []
    plan = await client.get(f"/sessions/{session}/plan")
    asked = (await press(client, session, "confirm", plan["version"])).json()
    assert (asked["plan"]["status"], shelf.effects) == ("waiting", [])
    done = await press(client, session, "confirm", asked["plan"]["version"])
    assert (done.json()["plan"]["status"], shelf.effects) == ("completed", ["stamp itm-1"])


@pytest.mark.in_turns(1)
@pytest.mark.parametrize(("decision", "status"), [("confirm", "waiting"), ("reject", "cancelled")])
async def test_a_plan_whose_turn_died_can_be_decided_by_its_version(
    client: Client,
    provider: Provider,
    effects: list[str],
    decision: str,
    status: str,
) -> None:
    steps = [{**THOUGHT, "id": 1}, deletion(2)]
    provider.will(planned(steps), fails(500), *([says("Thought.")] if decision == "confirm" else []))
    session = await client.new_session()
    assert (await client.send(session, ASK)).status_code == 502
    response = await press(client, session, decision, (await client.get(f"/sessions/{session}/plan"))["version"])
    assert response.status_code == 200, response.text
    assert response.json()["plan"]["status"] == status
    assert effects == []


@pytest.mark.in_turns(2)
@pytest.mark.parametrize("decision", ["confirm", "reject"])
@pytest.mark.parametrize("beside", first(2, [-2, -1, 1]))
async def test_a_button_of_another_question_decides_nothing(
    client: Client, provider: Provider, effects: list[str], decision: str, beside: int
) -> None:
    session, first = await offered(client, provider, [deletion(1), deletion(2)])
    second = (await press(client, session, "confirm", first["plan"]["version"])).json()
    assert second["plan"]["status"] == "waiting"
    said = {str(message["content"]): message["metadata"] for message in await client.messages(session)}
    pressed = {"decision": "confirm", "plan_id": first["plan"]["id"], "plan_version": first["plan"]["version"]}
    assert (said["👍"], said[ASK]) == (pressed, {})
    assert said[second["message"]["content"]] == second["message"]["metadata"] == {"model": second["model"]}
    assert second["plan"]["version"] > first["plan"]["version"] + 1
    before = await client.turns(session), await client.messages(session)
    response = await press(client, session, decision, second["plan"]["version"] + beside)
    assert (response.status_code, response.json()["code"]) == (409, "plan_changed")
    assert (await client.turns(session), await client.messages(session)) == before
    assert await client.get(f"/sessions/{session}/plan") == second["plan"]
    assert effects == ["delete itm-1"]


@pytest.mark.in_turns(1)
@pytest.mark.parametrize("decision", ["confirm", "reject"])
async def test_a_button_of_an_earlier_plan_decides_nothing_about_a_later_one(
    client: Client, provider: Provider, effects: list[str], decision: str
) -> None:
    session, first = await offered(client, provider, [deletion(1), deletion(2)])
    provider.will(planned([deletion(3), deletion(1)]))
    second = await client.chat(
        session, "Find everything about Bianchi, then read the third one and finally delete item number 3, please"
    )
    assert (second["plan"]["status"], second["plan"]["id"] != first["plan"]["id"]) == ("waiting", True)
    response = await press(client, session, decision, first["plan"]["version"])
    assert (response.status_code, response.json()["code"]) == (409, "plan_changed")
    assert await client.get(f"/sessions/{session}/plan") == second["plan"]
    assert effects == []


async def test_a_late_button_does_not_end_a_plan_that_is_running(
    client: Client,
    provider: Provider,
    clock: Frozen,
) -> None:
    go = asyncio.Event()

    async def held(_: dict[str, Any]) -> Any:
        await go.wait()
        return says("Thought.")

    provider.will(planned(THINK), held)
    session = await client.new_session()
    turn = asyncio.create_task(client.send(session, ASK))
    await provider.wait_for_requests(2)
    plan = await client.get(f"/sessions/{session}/plan")
    clock.now += timedelta(days=2)
    response = await press(client, session, "confirm", plan["version"])
    assert response.json()["code"] == "plan_changed"
    go.set()
    assert (await turn).status_code == 200


async def test_a_button_whose_turn_comes_after_the_expiry_runs_nothing(
    client: Client,
    provider: Provider,
    effects: list[str],
    clock: Frozen,
    settings: Settings,
) -> None:
    session, answer = await offered(client, provider, [deletion(1), deletion(2)])
    go = asyncio.Event()

    async def held(_: dict[str, Any]) -> Any:
        await go.wait()
        return says("Twelve.")

    provider.will(held)
    question = "How many items would you say there are altogether on the shelf in the hall downstairs?"
    first = asyncio.create_task(client.send(session, question))
    await provider.wait_for_requests(2)
    button = asyncio.create_task(press(client, session, "confirm", answer["plan"]["version"]))
    async with looking_into(settings) as stores:
        await stores.until_messages(session, 4)
    clock.now += timedelta(days=2)
    go.set()
    await first
    assert (await button).json()["plan"]["status"] == "expired"
    assert effects == []


async def test_what_was_said_of_another_version_or_picks_a_step_that_does_not_wait_leaves_a_plan_as_it_is(
    client: Client, provider: Provider, settings: Settings, clock: Frozen
) -> None:
    assert settings.database_url is not None
    database = Database(settings.database_url.get_secret_value())
    session, asked = await offered(client, provider, THREE_STEPS)
    plan_id, version = asked["plan"]["id"], asked["plan"]["version"]
    stored = await database.read(store.get_plan, plan_id)
    with pytest.raises(store.StalePlan):
        await database.transact(store.decide, stored, "confirm", turn_id="turn_1", now=clock.now, chosen={1})
    await database.transact(store.cancel_open, session, (plan_id, version - 1))
    assert await database.read(store.get_plan, plan_id) == stored
    await database.transact(store.cancel_open, session, (plan_id, version))
    assert (await database.read(store.get_plan, plan_id)).plan.status == "cancelled"
    await database.close()
