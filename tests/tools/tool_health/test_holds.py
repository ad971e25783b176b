"""What operators set for all sessions and what they reset in all, which filters see, and the audit of it."""

import asyncio
import json
from datetime import timedelta
from typing import Any

import pytest

from segue.config import Settings
from tests.support.health import MOODY, called, fails_out, history, offered, put, state, uses
from tests.support.plans import Frozen
from tests.support.provider import Provider, says
from tests.support.service import Client
from tests.support.shelf import Shelf
from tests.support.stores import looking_into

CANARY = "sk-zitronenfalter0123456789"


async def hold(client: Client, **body: Any) -> dict[str, Any]:
    response = await client.http.put(f"/tool-states/{MOODY}", json={"status": "maintenance", **body})
    assert response.status_code == 200, response.text
    after: dict[str, Any] = response.json()
    return after


async def reset_all(client: Client, **body: Any) -> dict[str, Any]:
    response = await client.http.post("/tool-states/reset", json=body)
    assert response.status_code == 200, response.text
    after: dict[str, Any] = response.json()
    return after


@pytest.mark.sweep
async def test_maintenance_for_all_holds_in_every_session_at_once_and_no_success_and_no_reset_of_a_session_lifts_it(
    client: Client, other: Client, provider: Provider, shelf: Shelf, settings: Settings
) -> None:
    session = await client.new_session()
    assert await uses(client, provider, session) == "succeeded"
    set_to = await hold(client, reason="Moving house")
    assert (set_to["status"], set_to["available"], set_to["reason_code"]) == ("maintenance", False, "set_for_all")
    async with looking_into(settings) as stores:
        await stores.redis.flushall()
    await put(other, session, MOODY, "available")
    await other.http.post(f"/sessions/{session}/tool-states/reset")
    for instance, at in ((other, session), (other, await other.new_session()), (client, await client.new_session())):
        seen = await state(instance, at)
        assert (seen["status"], seen["available"], seen["reason"]) == ("maintenance", False, "Moving house")
        [call] = await called(instance, provider, at, (MOODY, {"word": "x"}))
        assert (call["status"], "Moving house" in call["error"], len(shelf.effects)) == ("failed", True, 1)
        assert MOODY not in offered(provider)
    assert (await hold(other, status="available"))["available"]
    assert await uses(client, provider, session) == "succeeded"


async def test_maintenance_for_all_ends_by_itself(
    client: Client, other: Client, provider: Provider, clock: Frozen
) -> None:
    session = await client.new_session()
    until = (clock() + timedelta(minutes=5)).isoformat()
    assert (await hold(client, until=until))["retry_at"] == "2026-11-20T09:05:00Z"
    assert (await state(other, session))["suggested_actions"] == ["wait until 2026-11-20T09:05:00Z"]
    clock.now += timedelta(minutes=5)
    assert (await state(other, session))["available"]
    assert await uses(other, provider, session) == "succeeded"


@pytest.mark.sweep
async def test_a_hold_that_cannot_be_is_refused_and_holds_nothing(client: Client, clock: Frozen) -> None:
    early = (clock() - timedelta(seconds=1)).isoformat()
    for body in (
        {"until": early},
        {"until": "tomorrow"},
        {"until": 1795000000},
        {"until": "1795000000"},
        {"until": "2026-11-21T09:00:00"},
        {"until": "9999-12-31T23:59:59-23:59"},
        {"status": "available", "until": "2026-11-21T09:00:00Z"},
        {"status": "failed"},
        {"reason": "x" * 501},
        {"for": "ever"},
    ):
        response = await client.http.put(f"/tool-states/{MOODY}", json={"status": "maintenance", **body})
        assert (response.status_code, response.json()["code"]) == (422, "invalid_request"), body
    unknown = await client.http.put("/tool-states/mcp_nobody", json={"status": "maintenance"})
    assert (unknown.status_code, unknown.json()["code"]) == (404, "unknown_tool")
    nonsense = {"scope": "fleet", "session_id": await client.new_session()}
    assert (await client.http.post("/tool-states/reset", json=nonsense)).status_code == 422
    assert (await client.get("/tool-states", tool=MOODY))["tools"][MOODY]["fleet"]["available"]
    assert (await client.get("/ops/audit"))["items"] == []


@pytest.mark.sweep
async def test_a_reset_heals_every_session_and_two_at_once_change_each_once(
    client: Client, other: Client, provider: Provider, shelf: Shelf
) -> None:
    once = await client.new_session()
    shelf.trouble = "the shelf is closed"
    assert await uses(client, provider, once) == "failed"
    shelf.trouble = None
    failed = [await fails_out(client, provider, shelf) for _ in range(3)]
    kept = await client.new_session()
    await put(client, kept, "mcp_get_item", "maintenance")
    await reset_all(client, tool_name=MOODY, scope="fleet")
    assert (await state(client, failed[0]))["status"] == "failed"
    await asyncio.gather(*(reset_all(each, tool_name=MOODY, scope="sessions") for each in (client, other) * 2))
    for session in (*failed, once):
        seen = await state(other, session)
        assert (seen["status"], seen["available"], seen["consecutive_failures"]) == ("available", True, 0)
        assert [change for change in await history(client, session) if change[3] == "reset"] == [
            (MOODY, "available" if session == once else "failed", "available", "reset")
        ]
    assert await uses(other, provider, failed[0]) == "succeeded"
    assert (await state(client, kept, "mcp_get_item"))["status"] == "maintenance"
    await hold(client)
    healed = await reset_all(client, all=True)
    assert {entry["fleet"]["available"] for entry in healed["tools"].values()} == {True}
    assert healed["items"] == []
    assert (await state(client, kept, "mcp_get_item"))["status"] == "available"


@pytest.mark.sweep
async def test_a_status_shows_the_tools_and_sessions_that_have_it_and_no_others(
    client: Client, provider: Provider, shelf: Shelf
) -> None:
    failed = await fails_out(client, provider, shelf)
    await put(client, failed, "mcp_get_item", "unavailable")
    await client.http.put("/tool-states/current_time", json={"status": "maintenance"})
    for status, tools, items in (
        ("failed", {MOODY}, [MOODY]),
        ("unavailable", {"mcp_get_item"}, ["mcp_get_item"]),
        ("maintenance", {"current_time"}, []),
    ):
        seen = await client.get("/tool-states", status=status)
        assert (seen["tools"].keys(), [item["tool"] for item in seen["items"]]) == (tools, items), status
    assert (await client.get("/tool-states", status="failed", tool="current_time"))["tools"] == {}


@pytest.mark.sweep
async def test_what_operators_do_is_kept_newest_first_without_a_secret(client: Client, provider: Provider) -> None:
    provider.will(says("hello"))
    session = await client.new_session()
    turn = (await client.chat(session, "hi"))["turn_id"]
    reason = f"The key is password={CANARY}"
    assert CANARY not in (await hold(client, reason=reason))["reason"]
    await reset_all(client, tool_name=MOODY, session_id=session)
    cancelled = await client.http.post(f"/ops/turns/{turn}/cancel")
    await client.get(f"/ops/sessions/{session}")
    first = await client.get("/ops/audit", limit=2)
    second = await client.get("/ops/audit", limit=2, cursor=first["next_cursor"])
    read, ended, reset, held = first["items"] + second["items"]
    assert (second["next_cursor"], CANARY in str(held)) == (None, False)
    assert {act["actor"] for act in (read, ended, reset, held)} == {"local"}
    assert (read["action"], read["session_id"]) == ("read_session", session)
    assert (ended["action"], ended["turn_id"]) == ("cancel_turn", turn)
    assert ended["request_id"] == cancelled.headers["x-request-id"]
    assert (reset["action"], reset["session_id"], reset["details"]) == ("reset_tool_states", session, {"scope": "all"})
    assert (held["action"], held["tool"], held["details"]["status"]) == ("set_tool_state", MOODY, "maintenance")
    assert [act["seq"] for act in (await client.get("/ops/audit", action="cancel_turn"))["items"]] == [ended["seq"]]
    assert (await client.get("/ops/audit", actor="nobody"))["items"] == []


@pytest.mark.sweep
async def test_the_audit_is_exported_a_line_an_act_and_filtered_as_its_list(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("segue.api.ops.ACTS_AT_ONCE", 2)
    for number in range(4):
        await hold(client, reason=f"Move {number}")
    await reset_all(client, tool_name=MOODY)
    listed = (await client.get("/ops/audit"))["items"]
    for query, count in (({}, 5), ({"action": "set_tool_state"}, 4), ({"actor": "nobody"}, 0)):
        exported = await client.http.get("/ops/audit/export", params=query)
        acts = [json.loads(line) for line in exported.text.splitlines()]
        assert acts == listed[5 - count :]


@pytest.mark.in_turns(1)
@pytest.mark.parametrize("row", ["UPDATE tool_holds SET status = 'asleep'", "UPDATE audit SET action = 'danced'"])
async def test_a_row_of_a_newer_release_holds_nothing_and_hides_nothing(
    client: Client, settings: Settings, row: str
) -> None:
    await hold(client)
    async with looking_into(settings) as stores:
        await stores.database.execute(row)
    assert (await state(client, await client.new_session()))["available"] is ("tool_holds" in row)
    [act] = (await client.get("/ops/audit"))["items"]
    assert act["action"] == ("set_tool_state" if "tool_holds" in row else "unknown")
