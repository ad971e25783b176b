"""Clocks that are wrong: rows say what came first. A clock here runs backwards, or another process's is ahead, so that
ids and times are in the wrong order.
"""

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from typing import Any

import pytest
from pydantic import SecretStr
from starlette.responses import Response

from segue.config import Settings
from segue.domain.ids import utc_now
from tests.support.facts import tell
from tests.support.health import put
from tests.support.plans import ASK, THREE_STEPS, Frozen, deletion, offered, planned
from tests.support.provider import Provider, Reply, calls, says
from tests.support.service import Client, running
from tests.support.shelf import Shelf, serving_shelf
from tests.support.stores import arrived, looking_into

LONG = "How many items would you say there are altogether on the shelf in the hall downstairs?"
CITIES = ["Europe/Rome", "Asia/Tokyo"]
TWO_CITIES = [
    {"id": number, "description": city, "tool": "current_time", "args": {"timezone": city}}
    for number, city in enumerate(CITIES, start=1)
]


class Backwards:
    """Each reading is two hours before the one before."""

    def __init__(self) -> None:
        self.now = utc_now()

    def __call__(self) -> datetime:
        self.now -= timedelta(hours=2)
        return self.now


@pytest.fixture
async def shelf(settings: Settings) -> AsyncIterator[Shelf]:
    async with serving_shelf() as served:
        settings.mcp_config.write_text(json.dumps({"mcpServers": {"shelf": {"url": served.url}}}))
        yield served


async def press(client: Client, session: str, version: int) -> Any:
    body = {"decision": "confirm", "version": version}
    return (await client.http.post(f"/sessions/{session}/plan/decision", json=body)).json()


def once(go: asyncio.Event, reply: Response) -> Reply:
    """An answer that the model gives once it may."""

    async def given(_: dict[str, Any]) -> Response:
        await go.wait()
        return reply

    return given


async def paged(client: Client, path: str) -> list[dict[str, Any]]:
    """A list read item by item."""
    items: list[dict[str, Any]] = []
    after: dict[str, str] = {}
    while True:
        page = await client.get(path, limit=1, **after)
        items += page["items"]
        if page["next_cursor"] is None:
            return items
        after = {"cursor": page["next_cursor"]}


async def test_an_approval_outlives_messages_queued_before_it_by_an_instance_whose_clock_is_ahead(
    settings: Settings, provider: Provider, shelf: Shelf
) -> None:
    clock, ahead = Frozen(), Frozen()
    async with (
        running(settings, clock=clock) as client,
        running(settings, clock=ahead, takes_turns=False) as hasty,
    ):
        await client.connected("shelf")
        for ahead_s, first, message, wanted in (
            (0.5, f"{ASK}, una", LONG, []),
            (7200, f"{ASK}, due", LONG, [calls(("mcp_delete_item", {"item_id": "itm-3"}))]),
            (7200, f"{ASK}, tre", ASK, [planned(THREE_STEPS)]),
        ):
            ahead.now = clock.now + timedelta(seconds=ahead_s)
            go = asyncio.Event()
            session, asked = await offered(client, provider, [deletion(1), deletion(2)], first)
            provider.will(once(go, says("Twelve.")), *wanted, says("Later."))
            asked_before = len(provider.requests)
            busy = asyncio.create_task(client.chat(session, LONG))
            await provider.wait_for_requests(asked_before + 1)
            queued = asyncio.create_task(hasty.chat(session, message))
            await arrived(settings, session, 4)
            approval = asyncio.create_task(press(client, session, asked["plan"]["version"]))
            await arrived(settings, session, 5)
            go.set()
            await busy
            assert (await queued)["message"]["content"] == "Later."
            assert (await approval)["plan"]["id"] == asked["plan"]["id"]
            assert shelf.effects == ["delete itm-1"]
            shelf.effects.clear()


async def test_what_came_last_is_told_by_the_rows_though_the_clock_runs_backwards(
    settings: Settings, provider: Provider
) -> None:
    async with running(settings, clock=Backwards()) as client, looking_into(settings) as stores:
        first, *_ = sessions = [await client.new_session() for _ in range(3)]
        answers = []
        for number in ("one", "two", "three"):
            provider.will(planned(TWO_CITIES), says("Noon and eight."))
            answers.append(await client.chat(first, f"{ASK}, {number}"))
            await tell(client, number)
        for status in ("maintenance", "available", "unavailable"):
            await put(client, first, "current_time", status)
        at, calls_made = f"/sessions/{first}", [ids(answer["tool_calls"]) for answer in answers]
        plans = [answer["plan"]["id"] for answer in answers]

        assert [session["id"] for session in await paged(client, "/sessions")] == [first, *sessions[:0:-1]]
        assert [plan["id"] for plan in await paged(client, f"{at}/plans")] == plans[::-1]
        assert ids(await paged(client, f"{at}/tool-results")) == [
            call for made in calls_made[::-1] for call in made[::-1]
        ]
        changes = await paged(client, f"{at}/tool-states/history")
        assert [change["to"] for change in changes] == ["unavailable", "available", "maintenance"]
        assert [memory["content"] for memory in await paged(client, "/memories")] == ["three", "two", "one"]

        assert [[call["args"]["timezone"] for call in answer["tool_calls"]] for answer in answers] == [CITIES] * 3
        assert [turn["answer"] for turn in await client.turns(first)] == answers
        kept = (await client.get(f"{at}/memory"))["short_term"]
        assert ids(kept["tool_results"]) == calls_made[-1][::-1]
        await stores.redis.flushall()
        assert (await client.get(f"{at}/memory"))["short_term"] == kept
        await stores.database.execute("UPDATE plans SET status = 'expired' WHERE id = $1", plans[-1])
        assert (await press(client, first, 1))["code"] == "plan_expired"
        await stores.database.execute("UPDATE plans SET seq = 0")  # as those of releases that had none
        assert [plan["id"] for plan in await paged(client, f"{at}/plans")] == sorted(plans, reverse=True)


async def test_a_list_goes_on_behind_what_was_deleted_though_the_clock_runs_backwards(settings: Settings) -> None:
    sealing = SecretStr(base64.b64encode(bytes(32)).decode())
    async with running(settings.model_copy(update={"mcp_token_key": sealing}), clock=Backwards()) as client:
        files = f"/sessions/{await client.new_session()}/attachments"
        message = {"message": "Report", "new_session": True}
        for path, new in (
            ("/schedules", {"json": {**message, "at": "2099-01-01T09:00:00Z"}}),
            ("/triggers", {"json": message}),
            ("/mandates", {"json": {"tool": "current_time", "scope": "user"}}),
            (files, {"files": {"file": ("a.txt", b"a")}}),
        ):
            given = [await client.http.post(path, **new) for _ in range(3)]
            made = [each.json()["id"] for each in given]
            page = await client.get(path, limit=1)
            assert [each["id"] for each in page["items"]] == made[:1:-1], path
            assert (await client.http.delete(f"{path}/{made[-1]}")).status_code == 204
            rest = await client.get(path, cursor=page["next_cursor"])
            assert [each["id"] for each in rest["items"]] == made[1::-1], path


def ids(made: list[dict[str, Any]]) -> list[str]:
    return [call["tool_call_id"] for call in made]


async def test_a_message_that_was_lost_on_its_way_before_the_database_set_its_clock_back_is_answered_all_the_same(
    settings: Settings, provider: Provider
) -> None:
    provider.will(says("Twelve."))
    async with running(settings, takes_turns=False) as accepts, looking_into(settings) as stores:
        session = await accepts.new_session()
        assert (await accepts.send(session, LONG, background=True)).status_code == 202
        await stores.redis.flushall()
        await stores.database.execute("UPDATE turns SET queued_at = now() + interval '1 hour'")
        async with running(settings):
            [turn] = await accepts.ended(session)
    assert turn["answer"]["message"]["content"] == "Twelve."
