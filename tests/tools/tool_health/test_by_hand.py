"""What people set and reset, against whatever the tools do meanwhile."""

import asyncio
from typing import Any

import pytest
from starlette.responses import Response

from tests.support.health import (
    MOODY,
    QUESTION,
    called,
    fails_out,
    history,
    offered,
    put,
    reset,
    state,
    uses,
)
from tests.support.provider import Provider, calls, says
from tests.support.service import Client
from tests.support.shelf import Shelf


@pytest.mark.sweep
async def test_a_reset_by_hand_gives_the_tool_back_and_keeps_its_history(
    client: Client, provider: Provider, shelf: Shelf
) -> None:
    session = await fails_out(client, provider, shelf)
    after = (await reset(client, session, tool_name=MOODY))[MOODY]
    assert (after["status"], after["available"], after["consecutive_failures"]) == ("available", True, 0)
    assert after["last_failure_time"] is not None
    assert await uses(client, provider, session) == "succeeded"
    assert await history(client, session) == [
        (MOODY, "failed", "available", "reset"),
        (MOODY, "available", "failed", "consecutive_failures"),
    ]


async def test_what_a_person_set_survives_successes_and_failures_until_a_person_lifts_it(
    client: Client, provider: Provider, shelf: Shelf
) -> None:
    session = await client.new_session()
    assert (await put(client, session, "mcp_base_tool", "maintenance", reason="Moving house"))[
        "status"
    ] == "maintenance"
    await uses(client, provider, session)
    assert "- mcp_base_tool: Moving house" in provider.notes()
    assert "mcp_base_tool" not in offered(provider)
    shelf.open.clear()
    provider.will(calls((MOODY, {"word": "x"})), says("done"), calls((MOODY, {"word": "y"})), says("done"))
    for trouble, status in ((None, "maintenance"), ("closed", "unavailable")):
        turn = asyncio.create_task(client.chat(session, QUESTION))
        await shelf.wait_for_effects(len(shelf.effects) + 1)
        await put(client, session, MOODY, status)
        shelf.trouble = trouble
        shelf.open.set()
        await turn
        after = await state(client, session)
        assert (after["status"], after["available"], after["reason_code"]) == (status, False, "set_by_person")
        await put(client, session, MOODY, "available")
        shelf.open.clear()
    shelf.open.set()
    still = await state(client, session, "mcp_base_tool")
    assert (still["status"], still["execution_count"], still["reason"]) == ("maintenance", 0, "Moving house")
    [refused] = await called(client, provider, session, ("mcp_base_tool", {"topic": "x"}))
    assert refused["status"] == "failed"
    assert "base x" not in shelf.effects
    await put(client, session, "mcp_base_tool", "available")
    [call] = await called(client, provider, session, ("mcp_base_tool", {"topic": "x"}))
    assert call["status"] == "succeeded"


async def test_a_tool_taken_out_while_the_model_thinks_does_not_run(
    client: Client, provider: Provider, shelf: Shelf
) -> None:
    session = await client.new_session()

    async def thinks(_: dict[str, Any]) -> Response:
        await put(client, session, MOODY, "maintenance", reason="Moving house")
        return calls((MOODY, {"word": "x"}))

    provider.will(thinks, says("It is in maintenance."))
    [call] = (await client.chat(session, QUESTION))["tool_calls"]
    assert (call["status"], shelf.effects) == ("failed", [])
    assert MOODY not in offered(provider)


@pytest.mark.sweep
async def test_a_tool_that_leaves_no_trace_can_be_taken_out_too(client: Client, provider: Provider) -> None:
    session = await client.new_session()
    await put(client, session, "get_tool_result", "unavailable")
    assert await called(client, provider, session, ("get_tool_result", {"tool_call_id": "call_x"})) == []
    assert "get_tool_result cannot run now" in provider.messages(role="tool")[0]["content"]


@pytest.mark.sweep
@pytest.mark.in_turns(1)
@pytest.mark.parametrize("writer", ["put", "reset"])
async def test_a_person_and_a_turn_that_write_at_once_lose_nothing(
    writer: str, client: Client, other: Client, provider: Provider, shelf: Shelf
) -> None:
    session = await client.new_session()
    shelf.open.clear()
    rounds = [calls(*[(MOODY, {"word": f"{turn} {number}"}) for number in range(4)]) for turn in range(3)]
    for answer in rounds:
        provider.will(answer, says("done"))
    writes = 0
    for _ in rounds:
        turn = asyncio.create_task(client.chat(session, QUESTION))
        await shelf.wait_for_effects(len(shelf.effects) + 4)
        shelf.open.set()
        while not turn.done():
            if writer == "put":
                await put(other, session, MOODY, "available", reason=str(writes))
                writes += 1
            else:
                await reset(other, session, tool_name=MOODY)
        assert {call["status"] for call in (await turn)["tool_calls"]} == {"succeeded"}
        shelf.open.clear()
    assert (await state(client, session))["execution_count"] == 12
    assert len(await history(client, session, limit=200)) == min(writes, 200)
