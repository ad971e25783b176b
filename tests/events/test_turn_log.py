"""The log says how a turn ended, once, with everything there is to follow it by; also where it failed or was left."""

import asyncio
import json
from typing import Any

import pytest
from starlette.responses import Response
from structlog.contextvars import merge_contextvars
from structlog.testing import capture_logs
from structlog.typing import EventDict

from segue.config import Settings
from tests.support.metrics import scraped
from tests.support.plans import ASK, THREE_STEPS, deletion, planned
from tests.support.provider import Provider, calls, fails, says
from tests.support.service import Client, running
from tests.support.shelf import serving_shelf
from tests.support.stores import looking_into

MEMORY = {"short_term", "long_term", "history_messages", "tool_results"}


def ends_in(logs: list[EventDict]) -> list[dict[str, Any]]:
    return [dict(entry) for entry in logs if entry["event"] == "turn_finished"]


async def test_an_answered_turn_is_told_in_one_line_with_the_ids_of_its_request(
    client: Client, provider: Provider
) -> None:
    session = await client.new_session()
    provider.will(calls(("current_time", {}), ("no_such_tool", {})), says("noon"))
    with capture_logs([merge_contextvars]) as logs:
        body = {"message": "what time is it?"}
        headers = {"X-Request-Id": "req-7"}
        answer = (await client.http.post(f"/sessions/{session}/chat", json=body, headers=headers)).json()
    [end] = ends_in(logs)
    ids = {"session_id": session, "turn_id": answer["turn_id"], "request_id": "req-7"}
    assert end.items() >= ids.items()
    assert end.items() >= {"outcome": "completed", "code": None, "attempt": 1, "epoch": 1}.items()
    usage = answer["usage"]
    assert {name: end[name] for name in usage} == usage
    assert end["tool_calls"] == 2
    assert end["tool_outcomes"] == {"succeeded": 1, "refused": 1}
    assert end["memory"] == answer["memory_used"]
    assert (end["verdict"], end["web_search"], end["plan_status"]) == ("none", "not_asked", None)
    assert all(end[name] >= 0 for name in ("queued_ms", "model_ms", "tools_ms"))
    [request] = [entry for entry in logs if entry["event"] == "request"]
    assert request.items() >= ids.items()


async def test_a_turn_that_the_model_had_no_words_for_tells_why_and_what_it_did(
    settings: Settings, provider: Provider
) -> None:
    async with serving_shelf() as shelf:
        settings.mcp_config.write_text(json.dumps({"mcpServers": {"shelf": {"url": shelf.url}}}))
        async with running(settings) as client:
            provider.will(planned([THREE_STEPS[0], {**deletion(1), "id": 2}]))
            session = await client.new_session()
            await client.chat(session, ASK)
            broken = ("mcp_broken", {"item_id": "itm-1"})
            provider.will(calls(broken, ("mcp_get_item", {"item_id": "itm-1"})), fails(500), fails(500))
            with capture_logs() as logs:
                question = "What would you say stands altogether on the shelf in the hall downstairs, and since when?"
                answer = await client.chat(session, question)
    [end] = ends_in(logs)
    assert end.items() >= {"turn_id": answer["turn_id"], "outcome": "completed", "code": None}.items()
    [told] = [line for line in logs if line["event"] == "answered_by_service"]
    assert (told["code"], told["log_level"]) == ("model_unavailable", "warning")
    assert (end["llm_calls"], end["tool_calls"]) == (3, 2)
    assert end["tool_outcomes"] == {"failed": 1, "succeeded": 1}
    assert (end["verdict"], end["plan_status"]) == ("none", "waiting")
    assert set(end["memory"]) == MEMORY


async def test_a_cancelled_turn_is_told_once_whether_it_ran_or_waited(client: Client, provider: Provider) -> None:
    gate = asyncio.Event()

    async def thinks(_: dict[str, Any]) -> Response:
        await gate.wait()
        return says("too late")

    provider.will(thinks)
    session = await client.new_session()
    with capture_logs() as logs:
        turns = [(await client.send(session, text, background=True)).json()["turn_id"] for text in ("think", "wait")]
        await provider.wait_for_requests(1)
        for turn in reversed(turns):
            await client.http.post(f"/sessions/{session}/turns/{turn}/cancel")
        await client.ended(session, 2)
    gate.set()
    ended = {end["turn_id"]: (end["outcome"], end["code"]) for end in ends_in(logs)}
    assert ended == dict.fromkeys(turns, ("cancelled", "turn_cancelled"))
    assert len(ends_in(logs)) == 2


@pytest.mark.in_turns(1)
@pytest.mark.parametrize(("attempts", "outcome"), [(1, "completed"), (3, "failed")])
async def test_a_turn_whose_process_died_is_told_by_whoever_ends_it(
    settings: Settings, provider: Provider, attempts: int, outcome: str
) -> None:
    gone, alive = settings, settings.model_copy(update={"turn_lease_s": 1})
    async with running(gone, takes_turns=False) as accepting, looking_into(settings) as stores:
        session = await accepting.new_session()
        turn = (await accepting.send(session, "hello", background=True)).json()["turn_id"]
        await stores.redis.flushall()
        lapsed = (
            "status = 'running', epoch = $2, attempts = $2, lease_until = now() - interval '1 s', started_at = now()"
        )
        await stores.database.execute(f"UPDATE turns SET {lapsed} WHERE id = $1", turn, attempts)  # noqa: S608
        if outcome == "completed":
            provider.will(says("here I am"))
        with capture_logs() as logs:
            async with running(alive) as client:
                await client.ended(session)
                numbers = [await scraped(each) for each in (client, accepting)]
    [end] = ends_in(logs)
    assert (end["turn_id"], end["outcome"], end["attempt"]) == (turn, outcome, min(attempts + 1, 3))
    action = "ended" if outcome == "failed" else "queued_again"
    assert sum(each("segue_turns_total", outcome=outcome, code=end["code"] or "") for each in numbers) == 1
    assert sum(each("segue_turn_recoveries_total", action=action) for each in numbers) == 1
