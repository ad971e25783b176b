"""More tools than a request may have: some are chosen for the session, `find_tools` finds the others."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from starlette.responses import Response

from segue.agent.prompts import without_time
from segue.agent.tool_choice import ToolSearch
from segue.config import Settings
from segue.domain.tool import ToolSpec
from segue.memory.history_window import estimate
from segue.memory.long_term import Embeddings
from tests.support.logs import until
from tests.support.mcp_peer import Peer, listening, said
from tests.support.plans import planned
from tests.support.provider import Provider, calls, says
from tests.support.results import last_result
from tests.support.service import Client, running

KINDS = ("invoice", "parcel", "machine", "vineyard", "reactor")
DEEDS = ("weigh", "paint", "stack", "polish", "measure", "label", "wrap", "inspect", "rotate", "freeze")
OWN = {
    "search_emails": "Searches the user's emails by words.",
    "weather_in": "Returns the forecast for a place.",
    "delete_account": "Deletes an account for ever.",
}


def tools(count: int) -> list[dict[str, Any]]:
    """So many tools, for ten things to do with each of five kinds at levels, the OWN ones at the end."""
    plain = {
        f"{deed}_{kind}_{level}": f"Lets you {deed} one {kind} at level {level} of the plant, with care and a report."
        for level in range(10)
        for kind in KINDS
        for deed in DEEDS
    }
    texts = dict(list(plain.items())[: count - len(OWN)]) | OWN
    schema = {"type": "object", "properties": {"query": {"type": "string"}}}
    return [{"name": name, "description": text, "inputSchema": schema} for name, text in texts.items()]


@asynccontextmanager
async def plant(settings: Settings, count: int) -> AsyncIterator[None]:
    """An MCP server with so many tools, which the service is to use."""
    peer = Peer(lambda body: said(body, {"content": [{"type": "text", "text": "done"}]}), tools(count))
    async with listening(peer) as port:
        server = {"url": f"http://127.0.0.1:{port}/mcp"}
        settings.mcp_config.write_text(json.dumps({"mcpServers": {"plant": server}}))
        yield


@pytest.fixture
async def many(settings: Settings) -> AsyncIterator[Settings]:
    """The settings of a service with more tools than its requests have."""
    async with plant(settings, 60):
        yield settings.model_copy(update={"confirm": "never", "context_token_budget": 24_000, "llm_max_tools": 20})


@asynccontextmanager
async def served(settings: Settings) -> AsyncIterator[Client]:
    async with running(settings) as client:
        await client.connected("plant")
        yield client


def names(request: Mapping[str, Any]) -> list[str]:
    return [tool["function"]["name"] for tool in request["tools"]]


async def test_of_five_hundred_tools_a_request_has_the_right_one_in_any_language_and_stays_within_its_budget(
    settings: Settings, provider: Provider
) -> None:
    async with plant(settings, 500), served(settings) as client:
        provider.will(*[says("Well.")] * 3)
        for message in ("What will the weather be in Rome?", "cerca le mail di Rossi", "帮我搜索邮件"):
            await client.chat(await client.new_session(), message)
    wanted = ("mcp_weather_in", "mcp_search_emails", "mcp_search_emails")
    for request, name in zip(provider.requests, wanted, strict=True):
        assert name in names(request)
        assert "find_tools" in names(request)
        assert len(names(request)) <= settings.llm_max_tools
        assert estimate(json.dumps(request)) <= settings.context_token_budget


async def test_tools_are_only_appended_those_that_are_found_used_named_and_asked_for_later(
    many: Settings, provider: Provider
) -> None:
    async with served(many) as client:
        session = await client.new_session()
        provider.will(calls(("find_tools", {"query": "forecast for a place"})), calls(("mcp_weather_in", {})))
        provider.will(says("Sun."), calls(("mcp_freeze_machine_0", {})), says("Frozen."), says("No."), says("Mails."))
        await client.chat(session, "How do I polish the parcel?")
        answer = await client.chat(session, "And now?")
        assert [call["status"] for call in answer["tool_calls"]] == ["succeeded"]
        await client.chat(session, "mcp_weigh_reactor_0 is what I mean")
        await client.chat(session, "search my emails")
    first, found, *_, frozen, named, asked = map(names, provider.requests)
    assert last_result(provider.requests[1])["tools"][0]["name"] == "mcp_weather_in"
    appended = ["mcp_weather_in", "mcp_freeze_machine_0", "mcp_weigh_reactor_0", "mcp_search_emails"]
    assert [name in first for name in appended] == [False] * 4
    for later, name in zip((found, frozen, named, asked), appended, strict=True):
        assert name in later
    for before, later in zip([first, found, frozen, named], [found, frozen, named, asked], strict=True):
        assert later[: len(before)] == before


async def test_a_turn_that_was_cut_off_asks_the_same_again_byte_for_byte(many: Settings, provider: Provider) -> None:
    cut_off = asyncio.Event()

    async def silent(_: dict[str, Any]) -> Response:
        await cut_off.wait()
        return says("too late")

    provider.will(calls(("find_tools", {"query": "forecast"})), says("Found."), silent)
    async with served(many.model_copy(update={"shutdown_grace_s": 0.1})) as client:
        session = await client.new_session()
        await client.chat(session, "Which tools weigh an invoice?")
        await client.send(session, "Thanks, and polish a vineyard?", background=True)
        await provider.wait_for_requests(3)
    cut_off.set()
    provider.will(says("Two."), says("Three."))
    async with served(many) as client:
        await client.ended(session, 2)
        await client.chat(session, "Thank you")
    cut, again, after = provider.requests[2:]
    assert without_time(provider.notes(2)) == without_time(provider.notes(3))
    assert json.dumps(again["tools"]) == json.dumps(cut["tools"]) == json.dumps(after["tools"])
    assert again["messages"][:-1] == cut["messages"][:-1] == after["messages"][: len(cut["messages"]) - 1]


async def test_the_planner_has_the_same_tools_and_looks_for_more(many: Settings, provider: Provider) -> None:
    looks = [{"id": 1, "description": "Weather", "tool": "find_tools", "args": {"query": "forecast for a place"}}]
    plan = [{"id": 1, "description": "Weather", "tool": "mcp_weather_in", "args": {"query": "Rome"}}]
    plan.append({"id": 2, "description": "Tell", "tool": None, "args": None})
    provider.will(planned(looks), planned(plan), says("It is told."), says("All done."))
    async with served(many) as client:
        answer = await client.chat(await client.new_session(), "First look at itm-1, then tell me about it")
    assert [step["status"] for step in answer["plan"]["steps"]] == ["complete", "complete"]
    asked, again, *rest = map(names, provider.requests)
    assert "mcp_weather_in" not in asked
    assert [each == again for each in rest] == [True] * len(rest)
    assert again[: len(asked)] == asked
    assert "mcp_weather_in" in again


async def test_a_list_that_would_get_too_long_is_made_anew_of_what_the_session_needs(
    many: Settings, provider: Provider
) -> None:
    looks = [("find_tools", {"query": word}) for word in (*KINDS, *DEEDS)]
    provider.will(calls(("mcp_freeze_machine_0", {})), calls(*looks), says("That is all."))
    async with served(many) as client:
        await client.chat(await client.new_session(), "How do I polish the parcel?")
    first, called, anew = map(names, provider.requests)
    assert called[: len(first)] == first
    assert anew[: len(called)] != called
    assert len(anew) <= 2 * many.llm_max_tools + 1
    assert {"find_tools", "current_time", "mcp_freeze_machine_0"} <= set(anew)


async def test_tools_are_found_by_meaning_once_they_are_embedded() -> None:
    specs = [ToolSpec(name, text, {}) for name, text in OWN.items()]

    async def embed(texts: Sequence[str], *, urgent: bool = False) -> Embeddings | None:  # noqa: ARG001
        return [[1.0, 0.0] if "forecast" in text or "umbrella" in text else [0.1, 1.0] for text in texts]

    search = ToolSearch(embed)

    async def found() -> list[str]:
        return await search.rank(specs, "Do I need an umbrella?")

    assert await found() == []
    assert (await until(found))[0] == "weather_in"
    await search.close()


async def test_up_to_the_limit_all_tools_are_offered(settings: Settings, provider: Provider) -> None:
    async with plant(settings, 30), served(settings) as client:
        provider.will(says("Well."))
        await client.chat(await client.new_session(), "search my emails")
    [request] = provider.requests
    assert names(request)[:30] == [f"mcp_{tool['name']}" for tool in tools(30)]
    assert "find_tools" not in names(request)
