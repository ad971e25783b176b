"""One turn over time, as operators see it: what it did when, where, and why it went on elsewhere."""

import asyncio
from typing import Any

import orjson
from starlette.responses import Response

from segue.config import Settings
from tests.support.health import connect
from tests.support.logs import until
from tests.support.plans import THREE_STEPS, offered
from tests.support.provider import Provider, calls, fails, says, streams
from tests.support.service import Client, running
from tests.support.shelf import serving_shelf
from tests.support.stores import looking_into

CANARY = "zitronenfalter"
NODES = ["detect_acknowledgement", "plan", "tool_loop", "respond", "knowledge"]


async def timeline(client: Client, turn: str) -> dict[str, Any]:
    return await client.get(f"/ops/turns/{turn}/timeline")


async def test_a_timeline_says_what_a_turn_did_when_without_a_word_of_it_and_outlives_the_log(
    client: Client, settings: Settings, provider: Provider
) -> None:
    session = await client.new_session(title=CANARY)
    provider.will(calls(("current_time", {})), streams(CANARY, "!"))
    streamed = await client.send(session, CANARY, stream=True)
    assert CANARY in streamed.text
    [turn] = await client.turns(session)
    async with looking_into(settings) as stores:
        await stores.redis.flushall()
    seen = await timeline(client, turn["turn_id"])
    assert CANARY not in str(seen)
    assert (seen["turn"]["status"], seen["model"], seen["turn"]["session_id"]) == ("completed", "scripted", session)
    assert [node["node"] for node in seen["nodes"]] == NODES
    assert all(node["duration_ms"] >= 0 for node in seen["nodes"])
    begun = [node["at"] for node in seen["nodes"]]
    assert begun == sorted(begun)
    first, second = seen["model_calls"]
    assert (first["node"], first["outcome"], first["retries"], first["first_token_ms"]) == (
        "tool_loop",
        "answered",
        0,
        None,
    )
    assert (first["input_tokens"], first["output_tokens"], first["cost"]) == (11, 7, None)
    assert 0 <= second["first_token_ms"] <= second["duration_ms"]
    [call] = seen["tool_calls"]
    assert (call["tool"], call["status"]) == ("current_time", "succeeded")
    assert first["at"] <= call["at"]
    assert first["at"] <= second["at"]  # the call is by another clock
    [attempt] = seen["attempts"]
    assert (attempt["instance"], attempt["why"]) == (seen["turn"]["instance"], None)
    [queued] = seen["waits"]
    assert (queued["kind"], queued["since"], queued["until"]) == ("queued", turn["created_at"], turn["started_at"])
    assert (seen["usage"], seen["prompt"]) == (turn["answer"]["usage"], turn["prompt"])


async def test_a_timeline_tells_of_the_attempts_before_and_of_what_runs_now(
    settings: Settings, provider: Provider
) -> None:
    """Handed back by a process that stops, failed, asked for again, and stopped by its user."""
    go = asyncio.Event()

    async def silent(_: dict[str, Any]) -> Response:
        await go.wait()
        return says("late")

    provider.will(silent, fails(401), silent)
    async with running(settings.model_copy(update={"shutdown_grace_s": 0})) as before:
        session = await before.new_session()
        turn = (await before.send(session, "Hallo", background=True)).json()["turn_id"]
        await provider.wait_for_requests(1)
    async with running(settings) as client:
        [failed] = await client.ended(session)
        assert failed["error"]["code"] == "model_unavailable"
        [call] = (await timeline(client, turn))["model_calls"]
        assert (call["outcome"], call["input_tokens"]) == ("key", 0)
        await client.http.post(f"/sessions/{session}/turns/{turn}/retry", json={"background": True})

        async def told() -> dict[str, Any]:
            seen = await timeline(client, turn)
            return seen if seen["nodes"] and seen["turn"]["running"] else {}

        seen = await until(told)
        async with looking_into(settings) as stores:  # what runs now has nothing of the run before
            assert await stores.database.fetchval("SELECT run FROM turns") is None
        assert [(each["why"], each["ended_at"] is None) for each in seen["attempts"]] == [
            ("handed_back", False),
            ("model_unavailable", False),
            (None, True),
        ]
        assert [each["kind"] for each in seen["waits"]] == ["queued"] * 3
        assert (seen["nodes"][-1]["node"], seen["nodes"][-1]["duration_ms"]) == ("tool_loop", None)
        assert (await client.http.post(f"/ops/turns/{turn}/cancel")).status_code == 200
        ended = await timeline(client, turn)
        go.set()
    assert [each["why"] for each in ended["attempts"]] == ["handed_back", "model_unavailable", "turn_cancelled"]
    [stopped] = ended["model_calls"]
    assert (stopped["outcome"], stopped["node"], ended["usage"]["llm_calls"]) == ("cancelled", "tool_loop", 1)


async def test_a_timeline_says_how_long_a_plan_waited_for_the_users_yes(settings: Settings, provider: Provider) -> None:
    async with serving_shelf() as shelf:
        connect(settings, shelf)
        async with running(settings) as client:
            session, asked = await offered(client, provider, THREE_STEPS)
            seen = await timeline(client, asked["turn_id"])
            assert [call["tool"] for call in seen["tool_calls"]] == ["mcp_find_items", "mcp_get_item"]
            assert "Rossi" not in str(seen)
            _, waits = seen["waits"]
            assert (waits["kind"], waits["until"]) == ("approval", None)
            decision = {"decision": "reject", "version": asked["plan"]["version"]}
            answer = (await client.http.post(f"/sessions/{session}/plan/decision", json=decision)).json()
            _, waited = (await timeline(client, asked["turn_id"]))["waits"]
            assert waited["until"] == (await client.get(f"/sessions/{session}/turns/{answer['turn_id']}"))["created_at"]


AS_BEFORE = """
UPDATE turns SET run = NULL, report = report || $1, timeline = $2
"""


async def test_a_turn_that_the_release_before_has_answered_reads_as_it_did(
    client: Client, settings: Settings, provider: Provider
) -> None:
    provider.will(says("Guten Tag."))
    session = await client.new_session()
    await client.chat(session, "Hallo")
    [turn] = await client.turns(session)
    seen = await timeline(client, turn["turn_id"])
    async with looking_into(settings) as stores:
        [nodes, [call], *_] = orjson.loads(await stores.database.fetchval("SELECT run FROM turns"))
        at_ms, duration_ms, sent, received = call
        before = ["scripted", at_ms, duration_ms, None, 0, "answered", sent, 0, received, None]
        report = orjson.dumps({"agent": "segue", "prompt": turn["prompt"]}).decode()
        nodes = [[*node, 0][:3] for node in nodes]
        stored = orjson.dumps({"nodes": nodes, "model_calls": [before]}).decode()
        await stores.database.execute(AS_BEFORE, report, stored)
    assert await client.turns(session) == [turn]
    assert await timeline(client, turn["turn_id"]) == seen
    assert (seen["prompt"], len(seen["nodes"]), len(seen["model_calls"])) == (turn["prompt"], 5, 1)
