"""A session of many turns: what the model is sent stays as it was, and nothing that was said is lost."""

from collections.abc import AsyncIterator
from typing import Any

import orjson
import pytest
from starlette.responses import Response

from segue.config import Settings
from tests.support.provider import Provider, calls, says
from tests.support.results import use_toolbox
from tests.support.service import Client, running
from tests.support.stores import looking_into

TURNS = 40


@pytest.fixture
async def client(settings: Settings) -> AsyncIterator[Client]:
    use_toolbox(settings)
    async with running(settings) as served:
        yield served


@pytest.mark.sweep  # test_context.py holds it of a shorter session
async def test_a_request_of_turn_forty_is_as_large_as_one_of_turn_twenty_and_history_is_whole(
    client: Client, provider: Provider
) -> None:
    told: list[str] = []

    async def sums_up(body: dict[str, Any]) -> Response:
        given = orjson.loads(body["messages"][-1]["content"])
        told.extend(message["user"] for message in given["messages"] if "user" in message)
        return says(f"{'So far so good. ' * 90}")

    provider.summary = sums_up
    session = await client.new_session()
    sizes = []
    for number in range(100, 100 + TURNS):
        provider.will(calls(("table", {"rows": number}), ("echo", {"n": number})), says(f"It is {number}."))
        answer = await client.chat(session, f"And number {number}?")
        assert [call["status"] for call in answer["tool_calls"]] == ["succeeded", "succeeded"]
        sizes.append(len(orjson.dumps(provider.requests[-2])))
    assert max(sizes[30:]) <= 1.05 * max(sizes[10:20])
    asked = [f"And number {number}?" for number in range(100, 100 + TURNS)]
    assert [message["content"] for message in await client.messages(session) if message["role"] == "user"][
        :40
    ] == asked[:40]
    in_view = [message["content"] for message in provider.messages(-2, role="user")]
    assert told == asked[: len(told)]
    assert in_view == asked[-len(in_view) :]
    assert len(told) + len(in_view) >= TURNS - 2


async def test_the_row_of_a_plain_turn_holds_no_defaults_and_the_turn_is_read_with_all_of_them(
    client: Client, settings: Settings, provider: Provider
) -> None:
    provider.will(says("Hello to you."))
    session = await client.new_session()
    answer = await client.chat(session, "Hello.")
    async with looking_into(settings) as stores:
        row = await stores.database.fetchrow("SELECT request, report, run, timeline FROM turns")
    request, report, (nodes, [call], parts, cacheable) = (orjson.loads(value) for value in row[:3])
    assert request.keys() == {"force_web_search"}
    assert report.keys() == {"plan", "model", "usage", "web_search", "memory_used", "acknowledgement"}
    assert (report["web_search"], report["plan"]) == ({"reason": "not_asked"}, None)
    assert report["usage"].keys() == {"llm_calls", "input_tokens", "output_tokens", "duration_ms"}
    assert (len(nodes), len(call), row["timeline"]) == (5, 4, None)
    [turn] = await client.turns(session)
    assert turn["answer"] == answer
    assert [(part["part"], part["tokens"]) for part in turn["prompt"]["parts"]] == list(parts.items())
    assert [part["cacheable"] for part in turn["prompt"]["parts"]] == [place < cacheable for place in range(len(parts))]
