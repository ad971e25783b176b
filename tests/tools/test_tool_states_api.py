"""What ops see and do: the tools there are, their states in a session and across all, changed by hand."""

import base64
import json
from collections.abc import AsyncIterator
from itertools import chain
from typing import Any

import httpx2
import orjson
import pytest

from segue.config import Settings
from tests.support.health import MOODY, connect, fails_out, history, put, reset, state, states, uses
from tests.support.plans import Frozen
from tests.support.provider import Provider
from tests.support.service import Client, running
from tests.support.shelf import Shelf
from tests.support.stores import looking_into

MISSING = "ses_" + "0" * 26
FIELDS = {
    *("status", "available", "reason", "reason_code", "consecutive_failures", "execution_count", "last_updated"),
    *("last_success_time", "last_failure_time", "retry_at", "missing_dependencies", "suggested_actions"),
}


@pytest.fixture
async def client(settings: Settings, shelf: Shelf) -> AsyncIterator[Client]:
    connect(settings, shelf, confirm=["base_tool"])
    async with running(settings, clock=Frozen()) as served:
        yield served


def problem(response: httpx2.Response) -> tuple[int, str]:
    return response.status_code, response.json()["code"]


async def paged(client: Client, path: str, *, limit: int) -> list[list[Any]]:
    page = await client.get(path, limit=limit)
    pages = [page["items"]]
    while page["next_cursor"] is not None:
        page = await client.get(path, limit=limit, cursor=page["next_cursor"])
        pages.append(page["items"])
    return pages


def cursor(position: object) -> str:
    return base64.urlsafe_b64encode(orjson.dumps(position)).decode()


async def test_the_tools_are_listed_with_all_that_is_known_of_them(client: Client) -> None:
    listed = await client.get("/tools")
    tools = {tool["name"]: tool for tool in listed["items"]}
    assert listed["next_cursor"] is None
    assert {"current_time", "web_fetch", "get_tool_result", "mcp_find_items", "mcp_dependent_tool"} <= set(tools)
    assert tools["mcp_dependent_tool"] == {
        "name": "mcp_dependent_tool",
        "description": "Say more of a topic that was looked up.",
        "schema": tools["mcp_dependent_tool"]["schema"],
        "effect": "read_only",
        "effect_guessed": False,
        "confirmation": False,
        "title": "",
        "always_asks": False,
        "dependencies": [{"type": "any", "tools": ["mcp_base_tool"], "optional": ["mcp_find_items"]}],
        "source": "mcp:shelf",
        "changed_at": None,
    }
    assert tools["mcp_dependent_tool"]["schema"]["required"] == ["topic"]
    asks = {name: (tool["effect"], tool["confirmation"]) for name, tool in tools.items() if tool["confirmation"]}
    assert asks["mcp_base_tool"] == ("read_only", True)
    assert asks["mcp_delete_item"] == ("destructive", True)
    assert tools["current_time"]["source"] == "builtin"


async def test_a_new_session_tells_the_state_of_every_tool(client: Client) -> None:
    session = await client.new_session()
    answer = await client.get(f"/sessions/{session}/tool-states")
    assert (answer["session_id"], answer["timestamp"]) == (session, "2026-11-20T09:00:00Z")
    assert set(answer["tool_states"]) == {tool["name"] for tool in (await client.get("/tools"))["items"]}
    never_ran = answer["tool_states"][MOODY]
    assert set(never_ran) == FIELDS
    assert (never_ran["status"], never_ran["available"], never_ran["execution_count"]) == ("available", True, 0)
    assert {never_ran[name] for name in FIELDS if name.endswith(("_time", "_at", "_updated"))} == {None}
    locked = [name for name, one in answer["tool_states"].items() if not one["available"]]
    assert locked == ["mcp_dependent_tool"]


@pytest.mark.sweep
async def test_a_tool_that_never_ran_is_set_and_reset(client: Client) -> None:
    session = await client.new_session()
    set_to = await put(client, session, MOODY, "maintenance", reason="Moving house")
    assert (set_to["status"], set_to["available"], set_to["reason"]) == ("maintenance", False, "Moving house")
    assert (set_to["reason_code"], set_to["last_updated"]) == ("set_by_person", "2026-11-20T09:00:00Z")
    assert set_to["suggested_actions"] == ["wait until a person sets it to available again"]
    assert await state(client, session) == set_to
    assert (await put(client, session, MOODY, "unavailable"))["reason"] == "Set to unavailable by a person."
    after = await reset(client, session, tool_name=MOODY)
    assert (after[MOODY]["status"], after[MOODY]["available"]) == ("available", True)
    assert await history(client, session) == [
        (MOODY, "unavailable", "available", "reset"),
        (MOODY, "maintenance", "unavailable", "set_by_person"),
        (MOODY, "available", "maintenance", "set_by_person"),
    ]


async def test_a_reset_of_all_lifts_what_is_held_against_any_and_notes_it_once(
    client: Client, provider: Provider, shelf: Shelf
) -> None:
    session = await fails_out(client, provider, shelf)
    await put(client, session, "mcp_get_item", "maintenance")
    assert await reset(client, session, tool_name=None) == await reset(client, session)
    assert all(one["status"] == "available" for one in (await states(client, session)).values())
    assert [change for change in await history(client, session) if change[3] == "reset"] == [
        (MOODY, "failed", "available", "reset"),
        ("mcp_get_item", "maintenance", "available", "reset"),
    ]
    response = await client.http.post(f"/sessions/{session}/tool-states/reset")
    assert response.json()["tool_states"] == await states(client, session)


async def test_the_history_names_the_turn_that_caused_a_change_and_is_paged_newest_first(
    client: Client, provider: Provider, shelf: Shelf
) -> None:
    session = await fails_out(client, provider, shelf)
    for status in ("maintenance", "available", "available"):
        await put(client, session, MOODY, status)
    await put(client, session, "mcp_get_item", "unavailable", reason="x")
    path = f"/sessions/{session}/tool-states/history"
    whole = (await client.get(path))["items"]
    assert [change["to"] for change in whole] == ["unavailable", "available", "available", "maintenance", "failed"]
    [turn] = {call["turn_id"] for call in (await client.get(f"/sessions/{session}/tool-results", limit=1))["items"]}
    assert [change["turn_id"] for change in whole] == [None, None, None, None, turn]
    assert whole[4] == {
        "tool": MOODY,
        "from": "available",
        "to": "failed",
        "reason": "the shelf is closed",
        "reason_code": "consecutive_failures",
        "at": "2026-11-20T09:00:00Z",
        "turn_id": turn,
    }
    pages = await paged(client, path, limit=2)
    assert [len(page) for page in pages] == [2, 2, 1]
    assert list(chain(*pages)) == whole
    assert [change["to"] for change in (await client.get(path, tool="mcp_get_item"))["items"]] == ["unavailable"]
    assert (await client.get(path, tool="mcp_nobody"))["items"] == []


async def test_the_fleet_view_counts_sessions_by_status_and_lists_those_with_trouble(
    client: Client, provider: Provider, shelf: Shelf
) -> None:
    fine = await client.new_session()
    assert await uses(client, provider, fine) == "succeeded"
    failed = await fails_out(client, provider, shelf)
    kept = await client.new_session()
    for tool in (MOODY, "mcp_get_item"):
        await put(client, kept, tool, "maintenance", reason="Moving house")
    view = await client.get("/tool-states")
    assert set(view["tools"]) == {tool["name"] for tool in (await client.get("/tools"))["items"]}
    assert view["tools"][MOODY]["sessions"] == {"available": 1, "failed": 1, "maintenance": 1}
    assert view["tools"]["mcp_get_item"]["sessions"] == {"maintenance": 1}
    assert view["tools"]["mcp_base_tool"]["sessions"] == {}
    assert set(view["tools"][MOODY]["fleet"]) == FIELDS
    assert {entry["fleet"]["available"] for entry in view["tools"].values()} == {True}
    assert view["items"][0] == {**await state(client, failed), "reason": None, "session_id": failed, "tool": MOODY}
    listed = [(item["session_id"], item["tool"]) for item in view["items"]]
    assert listed == [(failed, MOODY), (kept, "mcp_get_item"), (kept, MOODY)]
    filtered = {
        ("status", "failed"): [(failed, MOODY)],
        ("status", "unavailable"): [],
        ("status", "available"): [],
        ("tool", "mcp_get_item"): [(kept, "mcp_get_item")],
    }
    for (name, value), expected in filtered.items():
        found = await client.get("/tool-states", **{name: value})
        assert [(item["session_id"], item["tool"]) for item in found["items"]] == expected
    assert set((await client.get("/tool-states", tool=MOODY))["tools"]) == {MOODY}
    assert list(chain(*await paged(client, "/tool-states", limit=1))) == view["items"]


@pytest.mark.sweep  # test_ownership.py holds it of every route
async def test_an_unknown_tool_is_told_from_a_missing_session_and_a_foreign_one_is_missing_but_for_ops(
    client: Client, settings: Settings
) -> None:
    session, foreign = await client.new_session(), await client.new_session()
    async with looking_into(settings) as stores:
        await stores.database.execute("UPDATE sessions SET owner = 'somebody' WHERE id = $1", foreign)
    nobody = {"tool_name": "mcp_nobody"}
    for response in (
        await client.http.put(f"/sessions/{session}/tool-states/mcp_nobody", json={"status": "available"}),
        await client.http.post(f"/sessions/{session}/tool-states/reset", json=nobody),
        await client.http.post("/tool-states/reset", json=nobody),
        await client.http.get("/tool-states", params={"tool": "mcp_nobody"}),
    ):
        assert problem(response) == (404, "unknown_tool")
        assert "mcp_nobody" in response.json()["detail"]
    for missing in (MISSING, foreign, "*", "ses_x", "x" * 10_000, "%00"):
        path = f"/sessions/{missing}/tool-states"
        for response in (
            await client.http.get(path),
            await client.http.get(f"{path}/history"),
            await client.http.post(f"{path}/reset"),
            await client.http.put(f"{path}/{MOODY}", json={"status": "maintenance"}),
        ):
            assert problem(response) == (404, "session_not_found")
    assert (await client.http.post("/tool-states/reset", json={"session_id": foreign})).status_code == 200
    for missing in (MISSING, "*", "a:b"):
        response = await client.http.post("/tool-states/reset", json={"session_id": missing})
        assert problem(response) == (404, "session_not_found")
    async with looking_into(settings) as stores:
        assert await stores.database.fetchval("SELECT count(*) FROM tool_states") == 0


@pytest.mark.sweep
async def test_tool_names_nobody_gave_a_tool_are_unknown(client: Client) -> None:
    session = await client.new_session()
    codes = {
        name: problem(await client.http.put(f"/sessions/{session}/tool-states/{name}", json={"status": "maintenance"}))
        for name in (
            "%00",
            "*",
            "a:b",
            "%FF",
            "..%2F",
            "'%20OR%201=1",
            "x" * 10_000,
            "mcp_moody%0A",
            "MCP_MOODY",
            "history",
        )
    }
    assert codes.pop("..%2F") == (404, "not_found")
    assert codes == dict.fromkeys(codes, (404, "unknown_tool"))
    for path in (f"/sessions/{session}/tool-states/history", "/tool-states"):
        for name in ("\0", "x" * 201):
            assert problem(await client.http.get(path, params={"tool": name})) == (422, "invalid_request")


NO_STATUS = (
    b"",
    b"null",
    b"[]",
    b"{}",
    b'{"status": "failed"}',
    b'{"status": null}',
    b'{"status": ["available"]}',
    b'{"status": "maintenance", "reason": 7}',
    rb'{"status": "maintenance", "reason": "a\u0000b"}',
    rb'{"status": "maintenance", "reason": "\ud800"}',
    b'{"status": "maintenance", "until": "tomorrow"}',
    b'{"status": "maintenance", "reason": "%s"}' % (b"x" * 501),
)
NOTHING = (
    b"[]",
    b"7",
    b'{"tool_name": 7}',
    b'{"tool": "x"}',
    b'{"tool_name": "\x00"}',
    b"{",
    b'{"tool_name": "%s"}' % (b"x" * 201),
)


NO_TOOL = (b"", b"null", b"{}", b'{"scope": "fleet"}', b'{"all": false}', b'{"all": 1}', b'{"tool_name": null}')


@pytest.mark.sweep
async def test_a_body_that_sets_no_status_is_refused_and_sets_none(client: Client) -> None:
    session = await client.new_session()
    path = f"/sessions/{session}/tool-states/{MOODY}"
    for body in NO_STATUS:
        response = await client.http.put(path, content=body, headers={"content-type": "application/json"})
        assert problem(response) == (422, "invalid_request"), body
        assert (await state(client, session))["last_updated"] is None, body


async def test_a_body_that_names_nothing_to_reset_is_refused_and_resets_nothing(client: Client) -> None:
    session = await client.new_session()
    await put(client, session, MOODY, "maintenance")
    for body in NOTHING:
        for path in (f"/sessions/{session}/tool-states/reset", "/tool-states/reset"):
            response = await client.http.post(path, content=body, headers={"content-type": "application/json"})
            assert problem(response) == (422, "invalid_request"), body
    for body in NO_TOOL:
        response = await client.http.post(
            "/tool-states/reset", content=body, headers={"content-type": "application/json"}
        )
        assert problem(response) == (422, "invalid_request"), body
    assert (await state(client, session))["status"] == "maintenance"


@pytest.mark.sweep  # test_hostile_input.py holds it of every list
async def test_forged_cursors_are_refused(client: Client) -> None:
    session = await client.new_session()
    forged = ["x", "%00", "====", cursor(None), cursor(1), cursor([]), cursor({}), cursor([[]] * 100)]
    positions = [[session], [session, MOODY, 1], [1, MOODY], [session, 1], ["*", MOODY], [session, "a\0"], MISSING]
    texts = {
        "/tool-states": [*forged, *map(cursor, positions)],
        f"/sessions/{session}/tool-states/history": [*forged, *map(cursor, (MISSING, "chg_", [f"chg_{'0' * 26}"]))],
    }
    for path, wrong in texts.items():
        answers = {text: problem(await client.http.get(path, params={"cursor": text})) for text in wrong}
        assert answers == dict.fromkeys(wrong, (422, "invalid_cursor"))
    beyond = cursor([MISSING.replace("0", "z"), MOODY])
    assert (await client.get("/tool-states", cursor=beyond))["items"] == []


@pytest.mark.sweep  # test_hostile_input.py holds it of every list
async def test_limits_and_statuses_out_of_range_are_refused(client: Client) -> None:
    session = await client.new_session()
    for path in ("/tool-states", f"/sessions/{session}/tool-states/history"):
        for limit in ("0", "-1", "201", str(2**63), "x"):
            assert problem(await client.http.get(path, params={"limit": limit})) == (422, "invalid_request")
    assert problem(await client.http.get("/tool-states", params={"status": "asleep"})) == (422, "invalid_request")


@pytest.mark.sweep
async def test_what_a_person_writes_comes_back_as_it_was(client: Client) -> None:
    session = await client.new_session()
    reason = "Umzug 搬家 نقل 🦊\n" + "x" * 480
    assert (await put(client, session, MOODY, "maintenance", reason=reason))["reason"] == reason
    assert json.dumps(reason) in json.dumps(await client.get(f"/sessions/{session}/tool-states/history"))
