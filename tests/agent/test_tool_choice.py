"""More tools than a request may have: some are chosen for the session, `find_tools` finds the others."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from starlette.responses import Response

from segue.agent.prompts import TEXTS, TIME_OF_DAY
from segue.agent.tool_choice import ToolSearch
from segue.config import Settings
from segue.domain.tool import ToolSpec
from segue.memory.history_window import estimate
from segue.memory.long_term import Embeddings
from segue.users.usage import Payer
from tests.support.logs import until
from tests.support.mcp_peer import Peer, listening, said
from tests.support.plans import planned
from tests.support.provider import Provider, calls, fence_after, says
from tests.support.results import last_result
from tests.support.service import Client, running
from tests.support.stores import looking_into

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


async def test_the_array_stays_and_what_is_found_used_named_and_asked_for_later_stands_behind_the_history(
    many: Settings, provider: Provider
) -> None:
    async with served(many) as client:
        session = await client.new_session()
        provider.will(calls(("find_tools", {"query": "forecast for a place"})))
        provider.will(calls(("call_tool", {"name": "mcp_weather_in", "arguments": {"query": "Rome"}})))
        provider.will(says("Sun."), calls(("mcp_freeze_machine_0", {})), says("Frozen."), says("No."), says("Mails."))
        first = await client.chat(session, "How do I polish the parcel?")
        assert [(call["tool_name"], call["args"]) for call in first["tool_calls"]] == [
            ("mcp_weather_in", {"query": "Rome"})
        ]
        answer = await client.chat(session, "And now?")
        assert [call["status"] for call in answer["tool_calls"]] == ["succeeded"]
        await client.chat(session, "mcp_weigh_reactor_0 is what I mean")
        await client.chat(session, "search my emails")
    assert len({json.dumps(request["tools"]) for request in provider.requests}) == 1
    later = ["mcp_weather_in", "mcp_freeze_machine_0", "mcp_weigh_reactor_0", "mcp_search_emails"]
    assert {"find_tools", "call_tool"} <= set(names(provider.requests[0]))
    assert not set(later) & set(names(provider.requests[0]))
    [found, *_] = last_result(provider.requests[1])["tools"]
    assert (found["name"], found["arguments"]["type"]) == ("mcp_weather_in", "object")
    *_, called, _ = provider.requests[2]["messages"]
    assert called["tool_calls"][0]["function"]["name"] == "call_tool"
    assert [told_first(provider.requests[-1], name) for name in later] == [0, 1, 2, 3]
    for before, after in zip(provider.requests[3:-1], provider.requests[4:], strict=True):
        kept = max(at for at, each in enumerate(before["messages"]) if each["role"] == "user")
        assert after["messages"][:kept] == before["messages"][:kept]


def told_first(request: Mapping[str, Any], name: str) -> int | None:
    """Which of the user's messages comes with the definition of a tool."""
    said = [str(message["content"]) for message in request["messages"] if message["role"] == "user"]
    return next(
        (at for at, text in enumerate(said) if f'"name":"{name}"' in fence_after(TEXTS["more_tools"], text)), None
    )


@pytest.mark.in_turns(2)
@pytest.mark.parametrize(
    ("made", "status"),
    [
        ({"name": "mcp_weather_in", "arguments": '{"query": "Rome"}'}, "succeeded"),
        ({"name": "functions.mcp_weather_in", "query": "Rome"}, "succeeded"),
        ({"name": "mcp_weather_in", "arguments": {"query": 3}}, "failed"),
        ({"name": "mcp_weather_in", "arguments": "Rome"}, "failed"),
        ({"name": "mcp_no_such", "arguments": {}}, "failed"),
    ],
)
async def test_a_call_through_call_tool_is_one_of_the_tool_itself(
    many: Settings, provider: Provider, made: dict[str, Any], status: str
) -> None:
    provider.will(calls(("call_tool", made)), says("Well."))
    async with served(many) as client:
        answer = await client.chat(await client.new_session(), "How do I polish the parcel?")
    [call] = answer["tool_calls"]
    assert (call["tool_name"], call["status"]) == (made["name"].removeprefix("functions."), status)


@pytest.mark.sweep
@pytest.mark.parametrize("made", [{}, {"name": "call_tool", "arguments": {"name": "call_tool", "arguments": {}}}])
async def test_a_call_that_names_no_tool_is_told_what_to_do(
    many: Settings, provider: Provider, made: dict[str, Any]
) -> None:
    provider.will(calls(("call_tool", made)), says("Well."))
    async with served(many) as client:
        answer = await client.chat(await client.new_session(), "How do I polish the parcel?")
    assert answer["tool_calls"] == []
    assert "name" in last_result(provider.requests[1])["error"]


@pytest.mark.sweep
async def test_a_call_through_call_tool_goes_by_the_name_and_the_id_that_a_family_has_for_it(
    many: Settings, provider: Provider
) -> None:
    provider.will(calls(("functions.Call_Tool", {"name": "mcp_weather_in", "arguments": {"query": "Rome"}})))
    provider.will(calls(("get_tool_result", {"tool_call_id": "functions.call_tool:0"})), says("Sun."))
    async with served(many.model_copy(update={"llm_model": "kimi-k2"})) as client:
        answer = await client.chat(await client.new_session(), "How do I polish the parcel?")
    [call] = answer["tool_calls"]
    assert (call["tool_name"], call["status"]) == ("mcp_weather_in", "succeeded")
    assert last_result(provider.requests[2])["error"].startswith("You already have the whole result of call_")


async def test_what_waits_for_a_yes_behind_call_tool_is_the_tool_with_its_arguments(
    many: Settings, provider: Provider
) -> None:
    provider.will(calls(("call_tool", {"name": "mcp_delete_account", "arguments": {"query": "Rossi"}})), says("Gone."))
    async with served(many.model_copy(update={"confirm": "destructive"})) as client:
        session = await client.new_session()
        waiting = await client.chat(session, "How do I polish the parcel?")
        [step] = waiting["plan"]["steps"]
        assert (step["tool"], step["args"], step["status"]) == ("mcp_delete_account", {"query": "Rossi"}, "waiting")
        done = await client.chat(session, "yes")
    assert [call["tool_name"] for call in done["tool_calls"]] == ["mcp_delete_account"]


@pytest.mark.sweep
async def test_what_the_session_uses_is_told_again_once_its_message_is_in_the_summary(
    many: Settings, provider: Provider
) -> None:
    provider.summary = says("## Done\n- They asked for the weather.")
    provider.will(calls(("call_tool", {"name": "mcp_weather_in", "arguments": {}})), says("Sun."))
    provider.always("Tell me", says("Told."))
    async with served(many.model_copy(update={"history_limit": 12})) as client, looking_into(many) as stores:
        session = await client.new_session()
        await client.chat(session, "How do I polish the parcel?")
        for number in range(4):
            await client.chat(session, f"Tell me {number}")
        await stores.until("SELECT count(*) FROM sessions WHERE summary_seq > 0 AND summary_due_at IS NULL")
        await client.chat(session, "Tell me more")
        await client.chat(session, "Tell me all")
    before, *_, since, last = provider.requests
    assert told_first(provider.requests[2], "mcp_weather_in") == 0
    assert "polish the parcel" not in str(since["messages"])
    assert (place := told_first(since, "mcp_weather_in")) is not None
    assert told_first(last, "mcp_weather_in") == place
    assert since["tools"] == before["tools"] == last["tools"]


@pytest.mark.sweep
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
    assert TIME_OF_DAY.sub(r"\1", provider.notes(2)) == TIME_OF_DAY.sub(r"\1", provider.notes(3))
    assert json.dumps(again["tools"]) == json.dumps(cut["tools"]) == json.dumps(after["tools"])
    assert again["messages"][:-1] == cut["messages"][:-1] == after["messages"][: len(cut["messages"]) - 1]


async def test_the_planner_has_the_same_tools_and_looks_for_more(many: Settings, provider: Provider) -> None:
    looks = [{"id": 1, "description": "Weather", "tool": "find_tools", "args": {"query": "forecast for a place"}}]
    plan = [{"id": 1, "description": "Weather", "tool": "mcp_weather_in", "args": {"query": "Rome"}}]
    plan.append({"id": 2, "description": "Tell", "tool": None, "args": None})
    plan.append({"id": 3, "description": "Weather", "tool": "mcp_weather_in", "args": {"query": "Oslo"}})
    provider.will(planned(looks), planned(plan), says("It is told."), says("All done."))
    async with served(many) as client:
        answer = await client.chat(await client.new_session(), "First look at itm-1, then tell me about it")
    assert [step["status"] for step in answer["plan"]["steps"]] == ["complete"] * 3
    asked, again, *rest = map(names, provider.requests)
    assert "mcp_weather_in" not in asked
    assert [each == asked for each in (again, *rest)] == [True] * (1 + len(rest))
    assert '"name":"mcp_weather_in"' in fence_after(TEXTS["more_tools"], provider.instruction(1))


@pytest.mark.sweep
async def test_what_no_longer_fits_is_found_and_called_all_the_same(many: Settings, provider: Provider) -> None:
    kinds = [f"mcp_{deed}_{kind}_0" for kind in KINDS for deed in DEEDS]
    provider.will(*[calls(*((name, {}) for name in kinds[at : at + 10])) for at in range(0, 50, 10)], says("All."))
    async with served(many) as client:
        session = await client.new_session()
        answer = await client.chat(session, "Do them all")
        assert {call["status"] for call in answer["tool_calls"]} == {"succeeded"}
        provider.will(says("Well."))
        await client.chat(session, "And?")
    first, *_, last = provider.requests
    assert last["tools"] == first["tools"]
    shown = [name for name in kinds if name in names(last) or told_first(last, name) is not None]
    assert many.llm_max_tools < len(shown) <= 2 * many.llm_max_tools


async def test_tools_are_found_by_meaning_once_they_are_embedded() -> None:
    specs = [ToolSpec(name, text, {}) for name, text in OWN.items()]

    paid: list[str] = []

    async def embed(texts: Sequence[str], *, payer: Payer | None, urgent: bool = False) -> Embeddings | None:  # noqa: ARG001
        paid.extend(texts if payer else ())
        return [[1.0, 0.0] if "forecast" in text or "umbrella" in text else [0.1, 1.0] for text in texts]

    search = ToolSearch(embed)

    async def found() -> list[str]:
        return await search.rank(specs, "Do I need an umbrella?", payer=("ada", "ses"))

    assert await found() == []
    assert (await until(found))[0] == "weather_in"
    assert set(paid) == {"Do I need an umbrella?"}
    await search.close()


async def test_up_to_the_limit_all_tools_are_offered(settings: Settings, provider: Provider) -> None:
    async with plant(settings, 30), served(settings) as client:
        provider.will(says("Well."))
        await client.chat(await client.new_session(), "search my emails")
    [request] = provider.requests
    assert names(request)[:30] == [f"mcp_{tool['name']}" for tool in tools(30)]
    assert "find_tools" not in names(request)
