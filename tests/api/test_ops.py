"""What operators see and end: the turns and sessions of all users, and no word of what was said."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any

import httpx2
import pytest

from segue.config import Settings
from segue.domain.identity import Scope
from tests.support.health import MOODY, QUESTION, called, connect, put
from tests.support.identity import new_key, speaking
from tests.support.logs import until
from tests.support.operators import CANARY, hanging_turn, seen_running
from tests.support.plans import ASK, THREE_STEPS, Frozen, planned
from tests.support.provider import Provider, fails, says
from tests.support.service import Client, running
from tests.support.shelf import Shelf


@pytest.fixture
async def guarded(settings: Settings, shelf: Shelf) -> Settings:
    connect(settings, shelf)
    return settings.model_copy(update={"auth": "api_key"})


@pytest.fixture
async def service(guarded: Settings) -> AsyncIterator[Client]:
    async with running(guarded) as served:
        yield served


@pytest.fixture
async def ada(service: Client, guarded: Settings) -> AsyncIterator[Client]:
    async with speaking(service, await new_key(guarded, "ada")) as client:
        yield client


@pytest.fixture
async def ops(service: Client, guarded: Settings) -> AsyncIterator[Client]:
    async with speaking(service, await new_key(guarded, "root", ["ops"])) as client:
        yield client


def problem(response: httpx2.Response) -> tuple[int, str]:
    return response.status_code, response.json()["code"]


@pytest.mark.sweep
async def test_a_turn_that_hangs_in_a_tool_is_found_by_the_tool_and_ended_by_an_operator(
    ada: Client, ops: Client, provider: Provider, shelf: Shelf
) -> None:
    session, turn = await hanging_turn(ada, provider, shelf)
    waiting = (await ada.send(session, CANARY, background=True)).json()["turn_id"]
    seen = await seen_running(ops, turn, "tool")
    [call] = seen["running"]
    assert (call["kind"], call["name"], seen["node"]) == ("tool", MOODY, "tool_loop")
    assert (seen["session_id"], seen["owner"], seen["status"], seen["attempt"]) == (session, "ada", "running", 1)
    assert ":" in seen["instance"]
    assert seen["lease_left_s"] > 0
    assert CANARY not in str(seen)
    for query, expected in (
        ({}, {turn, waiting}),
        ({"tool": MOODY}, {turn}),
        ({"tool": "current_time"}, set()),
        ({"status": "queued"}, {waiting}),
        ({"status": "failed"}, set()),
        ({"session_id": session, "owner": "ada"}, {turn, waiting}),
        ({"owner": "root"}, set()),
    ):
        listed = (await ops.get("/ops/turns", **query))["items"]
        assert {each["turn_id"] for each in listed} == expected, query
    first = await ops.get("/ops/turns", limit=1)
    second = await ops.get("/ops/turns", limit=1, cursor=first["next_cursor"])
    assert {each["turn_id"] for each in first["items"] + second["items"]} == {turn, waiting}
    for each in (waiting, turn):
        ended = await ops.http.post(f"/ops/turns/{each}/cancel")
        assert (ended.status_code, ended.json()["status"]) == (200, "cancelled")
    assert {each["error"]["code"] for each in await ada.turns(session)} == {"turn_cancelled"}
    assert (await ops.http.post(f"/ops/turns/{turn}/cancel")).json()["error_code"] == "turn_cancelled"
    [cancelled] = (await ops.get("/ops/turns", status="cancelled", tool=MOODY))["items"]
    assert (cancelled["turn_id"], cancelled["running"]) == (turn, [])


async def test_ended_turns_are_found_by_time_and_problem_with_what_they_took_and_how_they_begin_for_who_may_read(
    service: Client, ada: Client, ops: Client, guarded: Settings, provider: Provider
) -> None:
    session = await ada.new_session()
    provider.will(says("Here."), fails(401))
    answered = (await ada.chat(session, f"{CANARY} " * 40))["turn_id"]
    await ada.send(session, QUESTION)
    failed, first = (await ops.get("/ops/turns", status="any"))["items"]
    assert (first["turn_id"], first["usage"]["input_tokens"], first["usage"]["cost"]) == (answered, 11, None)
    assert (failed["status"], failed["error_code"], failed["said"]) == ("failed", "model_unavailable", None)
    for query, expected in (
        ({"code": "model_unavailable"}, [failed]),
        ({"code": "turn_timeout"}, []),
        ({"since": failed["created_at"]}, [failed]),
        ({"until": failed["created_at"]}, [first]),
        ({"since": first["created_at"], "until": failed["created_at"], "owner": "ada"}, [first]),
        ({"include": "words"}, [failed, first]),
    ):
        assert (await ops.get("/ops/turns", status="any", **query))["items"] == expected, query
    async with speaking(service, await new_key(guarded, "eve", ["ops", "ops:content"])) as reader:
        read = (await reader.get("/ops/turns", status="any", include="words"))["items"]
        assert [(each["said"] or "")[:14] for each in read] == [QUESTION[:14], CANARY]
        assert len(read[1]["said"]) < 100
        [act] = (await reader.get("/ops/audit", actor="eve"))["items"]
    assert (act["action"], act["details"]) == ("read_session", {"sessions": [session]})


@pytest.mark.sweep
async def test_a_turn_that_waits_for_the_model_says_for_which_and_since_when(
    ada: Client, ops: Client, provider: Provider, shelf: Shelf
) -> None:
    async def silent(_: dict[str, Any]) -> Any:
        await shelf.awake.wait()

    provider.will(silent)
    session = await ada.new_session()
    sent = (await ada.send(session, QUESTION, background=True)).json()
    seen = await seen_running(ops, sent["turn_id"], "model")
    [call] = seen["running"]
    assert call["since"] <= seen["heard_at"]
    assert (call["name"], seen["node"]) == (provider.requests[0]["model"], "tool_loop")
    await ops.http.post(f"/ops/turns/{sent['turn_id']}/cancel")
    shelf.awake.set()


async def test_a_session_is_shown_to_operators_without_a_word_of_it_unless_they_may_read(
    service: Client, ada: Client, ops: Client, guarded: Settings, provider: Provider
) -> None:
    session = await ada.new_session(title=CANARY, metadata={"about": CANARY})
    provider.will(planned([{**THREE_STEPS[0], "args": {"query": CANARY}}, *THREE_STEPS[1:]]))
    await ada.chat(session, f"{ASK} {CANARY}")
    seen = await ops.get(f"/ops/sessions/{session}")
    assert CANARY not in str(seen)
    assert (seen["owner"], seen["content"], seen["open_turns"]) == ("ada", None, [])
    assert [step["status"] for step in seen["plan"]["steps"]] == ["complete", "complete", "waiting"]
    assert seen["tools"].keys() == {"mcp_dependent_tool"}
    [waits] = (await ops.get("/ops/approvals"))["items"]
    assert "Rossi" not in str(waits)
    assert (waits["session_id"], waits["user"], waits["tool"]) == (session, "ada", "mcp_delete_item")
    assert (waits["plan_id"], waits["version"]) == (seen["plan"]["id"], seen["plan"]["version"])
    assert waits["since"] < waits["expires_at"] == seen["plan"]["expires_at"]
    async with speaking(service, await new_key(guarded, "eve", ["ops", "ops:content"])) as reader:
        content = (await reader.get(f"/ops/sessions/{session}"))["content"]
        examined = await reader.get("/ops/doctor", session_id=session)
    assert (content["title"], content["metadata"]) == (CANARY, {"about": CANARY})
    assert content["messages"][-1]["content"] == f"{ASK} {CANARY}"
    assert CANARY in examined["plan"]["goal"]
    hidden = await ops.get("/ops/doctor", session_id=session)
    assert CANARY not in str(hidden)
    assert "Rossi" not in str(hidden)
    assert hidden["plan"]["current_step"]["tool"] == "mcp_delete_item"
    assert {"session", "tools", "problems"} <= hidden.keys()
    provider.will(says("ok"))
    whole = await ops.get("/ops/doctor")
    assert (whole["healthy"], whole["problems"], whole["postgres"]["reachable"]) == (True, [], True)
    assert (whole["mcp"][0]["state"], whole["model"]["answers"], whole["queue"]["workers"]) == ("ready", True, 1)
    assert {act["action"] for act in (await ops.get("/ops/audit", actor="eve"))["items"]} == {"read_session"}


async def test_what_a_tool_said_and_a_user_typed_of_its_state_is_only_for_operators_who_may_read(
    guarded: Settings, provider: Provider, shelf: Shelf
) -> None:
    shelf.trouble = CANARY
    users: dict[str, list[Scope]] = {"ada": [], "root": ["ops"], "eve": ["ops", "ops:content"]}
    keys = [await new_key(guarded, user, scopes) for user, scopes in users.items()]
    clock = Frozen()
    async with running(guarded, clock=clock) as service, AsyncExitStack() as stack:
        ada, ops, reader = [await stack.enter_async_context(speaking(service, key)) for key in keys]
        failed, held = await ada.new_session(), await ada.new_session()
        await called(ada, provider, failed, *((MOODY, {"word": word}) for word in "xyz"))
        await put(ada, held, MOODY, "maintenance", reason=CANARY)
        for code in ("consecutive_failures", "half_open"):
            [mine, theirs] = (await ops.get("/tool-states", tool=MOODY))["items"]
            assert (mine["session_id"], mine["reason_code"], mine["reason"]) == (failed, code, None)
            assert (theirs["reason_code"], theirs["reason"]) == ("set_by_person", "Set to maintenance by a person.")
            for session in (failed, held):
                seen = await ops.get(f"/ops/sessions/{session}"), await ops.get("/ops/doctor", session_id=session)
                assert CANARY not in str(seen)
            clock.now += timedelta(seconds=400)
        assert CANARY in str((await reader.get(f"/ops/sessions/{held}"))["tools"][MOODY]["reason"])
        assert CANARY in str(await reader.get("/ops/doctor", session_id=held))


async def test_an_mcp_server_is_shown_with_its_tools_and_connected_anew_by_an_operator(ops: Client) -> None:
    await ops.connected("shelf")
    [before] = (await ops.get("/mcp/servers"))["items"]
    assert (before["name"], before["state"], before["last_error"], before["stderr"]) == ("shelf", "ready", None, [])
    assert MOODY in before["tools"]
    assert (await ops.http.post("/mcp/servers/shelf/reconnect")).status_code == 202

    async def anew() -> dict[str, Any]:
        [now] = (await ops.get("/mcp/servers"))["items"]
        return now if now["state"] == "ready" and now["since"] > before["since"] else {}

    assert (await until(anew, logged="mcp_server_ready"))["tools"] == before["tools"]
    [act] = (await ops.get("/ops/audit", action="reconnect_mcp_server"))["items"]
    assert (act["actor"], act["details"]) == ("root", {"server": "shelf"})


async def test_what_is_for_operators_is_refused_to_users_and_what_nobody_has_is_missing(
    ada: Client, ops: Client
) -> None:
    session = await ada.new_session()
    nothing = "0" * 26
    for method, path, missing in (
        ("GET", "/ops/turns", None),
        ("GET", "/ops/overview", None),
        ("GET", "/ops/approvals", None),
        ("GET", "/mcp/servers", None),
        ("POST", "/mcp/servers/nobody/reconnect", "mcp_server_not_found"),
        ("GET", "/ops/doctor?session_id=*", "session_not_found"),
        ("GET", f"/ops/doctor?session_id=ses_{nothing}", "session_not_found"),
        ("GET", "/ops/turns?tool=mcp_nobody", "unknown_tool"),
        ("GET", f"/ops/turns?session_id=ses_{nothing}", "session_not_found"),
        ("GET", "/ops/turns?session_id=*", "session_not_found"),
        ("GET", f"/ops/sessions/ses_{nothing}", "session_not_found"),
        ("GET", f"/ops/sessions/{session}", None),
        ("GET", f"/ops/turns/turn_{nothing}/timeline", "turn_not_found"),
        ("POST", f"/ops/turns/turn_{nothing}/cancel", "turn_not_found"),
        ("POST", "/ops/turns/x/cancel", "turn_not_found"),
    ):
        assert problem(await ada.http.request(method, path)) == (403, "forbidden"), path
        response = await ops.http.request(method, path)
        assert missing is None or problem(response) == (404, missing), path
    for query in (
        "status=asleep",
        "tool=%00",
        "owner=" + "x" * 201,
        "limit=0",
        "cursor=x",
        "when=now",
        "since=today",
        "code=%00",
    ):
        assert (await ops.http.get(f"/ops/turns?{query}")).status_code == 422, query
    assert (await ops.http.get("/ops/overview?window=year")).status_code == 422
