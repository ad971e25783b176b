"""Endpoints that refuse what breaks their rule: a session goes on over a tool, a takeover and many messages."""

import asyncio
import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from langchain_core.messages import BaseMessage, HumanMessage, SystemMessage, ToolMessage
from starlette.responses import Response

from segue.agent.render_messages import assistant_message
from segue.config import Settings
from segue.domain.session import RequestedCall
from segue.domain.tool import ToolSpec
from segue.models.reply import OPAQUE
from tests.support.provider import OpenModel, Provider, Reply, completion, fails, says
from tests.support.service import running
from tests.support.shelf import Shelf
from tests.support.streams import streamed
from tests.support.sweeps import first

pytestmark = pytest.mark.in_turns

Rule = Callable[[dict[str, Any]], str | None]

SIGNED = {"google": {"thought_signature": "c2lnbmVk"}}
ANY_SIGNATURE = {"google": {"thought_signature": "skip_thought_signature_validator"}}
NOTE = {"name": "mcp_send_note", "arguments": json.dumps({"to": "Rossi", "text": "noon"})}
ANSWER = {
    "role": "assistant",
    "content": "",
    "reasoning_content": "Hm.",
    "tool_calls": [{"id": "call_1", "type": "function", "function": NOTE, "extra_content": SIGNED}],
}


def calling(body: dict[str, Any]) -> list[dict[str, Any]]:
    return [message for message in body["messages"] if message.get("tool_calls")]


def wants_ids_of_nine(body: dict[str, Any]) -> str | None:
    ids = [call["id"] for message in calling(body) for call in message["tool_calls"]]
    ids += [message["tool_call_id"] for message in body["messages"] if message["role"] == "tool"]
    wrong = [each for each in ids if not re.fullmatch("[a-zA-Z0-9]{9}", each)]
    return f"Tool call id was {wrong[0]} but must be a-z, A-Z, 0-9, with a length of 9." if wrong else None


def wants_reasoning(body: dict[str, Any]) -> str | None:
    if all(message.get("reasoning_content") for message in calling(body)):
        return None
    return "The `reasoning_content` in the thinking mode must be passed back to the API."


def wants_signatures(body: dict[str, Any]) -> str | None:
    for message in calling(body):
        first, *_ = message["tool_calls"]
        if first.get("extra_content") not in (SIGNED, ANY_SIGNATURE):
            name = first["function"]["name"]
            return (
                "Function call is missing a thought_signature in functionCall parts. This is required for tools to "
                f"work correctly. Additional data, function call `default_api:{name}`, position 2."
            )
    return None


def wants_alternation(body: dict[str, Any]) -> str | None:
    said = [each["role"] for each in body["messages"][1:] if each["role"] != "tool" and not each.get("tool_calls")]
    if all(role == ("user", "assistant")[place % 2] for place, role in enumerate(said)):
        return None
    return "Conversation roles must alternate user/assistant/user/assistant/..."


def wants_named_ids(body: dict[str, Any]) -> str | None:
    calls = [call for message in calling(body) for call in message["tool_calls"]]
    wanted = [f"functions.{call['function']['name']}:{at}" for at, call in enumerate(calls)]
    told = [message["tool_call_id"] for message in body["messages"] if message["role"] == "tool"]
    return None if [call["id"] for call in calls] == told == wanted else f"tool_call_id {told} is not found"


RULES = {
    "Mistral's ids": wants_ids_of_nine,
    "DeepSeek's reasoning": wants_reasoning,
    "Gemini's signatures": wants_signatures,
    "alternation": wants_alternation,
}


@pytest.fixture
def with_shelf(settings: Settings, shelf: Shelf) -> Settings:
    settings.mcp_config.write_text(json.dumps({"mcpServers": {"shelf": {"url": shelf.url}}}))
    return settings.model_copy(update={"confirm": "never", "shutdown_grace_s": 0.1})


@pytest.mark.in_turns(1)
@pytest.mark.parametrize("rule", first(2, RULES.values()), ids=list(RULES))
async def test_a_failed_turn_a_tool_a_takeover_and_twelve_messages_are_answered_and_the_effect_happens_once(
    with_shelf: Settings, provider: Provider, shelf: Shelf, rule: Rule
) -> None:
    cut_off = asyncio.Event()

    async def silent(_: dict[str, Any]) -> Response:
        await cut_off.wait()
        return says("too late")

    provider.rule = rule
    provider.will(fails(401), completion(ANSWER, "tool_calls"), silent)
    async with running(with_shelf) as client:
        await client.connected("shelf")
        session = await client.new_session()
        assert (await client.send(session, "Hello")).status_code == 502
        await client.send(session, "Tell Rossi that it is at noon", background=True)
        await provider.wait_for_requests(3)
    cut_off.set()
    provider.will(says("Told."))
    async with running(with_shelf) as client:
        assert (await client.ended(session, 2))[-1]["answer"]["message"]["content"] == "Told."
        for number in range(12):
            provider.will(says(f"Answer {number}."))
            answer = await client.chat(session, f"And what about the house at number {number}?")
            assert answer["message"]["content"] == f"Answer {number}."
    assert shelf.effects == ["send Rossi: noon"]
    assert provider.refused == []


async def test_ids_that_a_template_reads_names_from_go_back_as_they_came_and_lead_to_results(
    settings: Settings, provider: Provider
) -> None:
    def called(at: int, name: str, **args: str) -> Reply:
        function = {"name": name, "arguments": json.dumps(args)}
        made = {"id": f"functions.{name}:{at}", "type": "function", "function": function}
        return completion({"role": "assistant", "content": "", "tool_calls": [made]}, "tool_calls")

    provider.rule = wants_named_ids
    loaded = called(2, "get_tool_result", tool_call_id="functions.current_time:0")
    provider.will(called(0, "current_time", timezone="Europe/Rome"), called(1, "current_time"), says("Noon."))
    provider.will(loaded, says("It was noon."))
    async with running(settings.model_copy(update={"llm_model": "kimi-k2-thinking"})) as client:
        session = await client.new_session()
        assert (await client.chat(session, "What time is it?"))["message"]["content"] == "Noon."
        sent = await streamed(client, session, "What time was it in Rome?")
    assert sent[-1].event["result"]["message"]["content"] == "It was noon."
    assert json.loads(provider.messages(role="tool")[-1]["content"])["result"]["timezone"] == "Europe/Rome"
    assert provider.refused == []


async def test_a_template_that_needs_it_is_told_of_every_argument(open_model: OpenModel, provider: Provider) -> None:
    properties = {"to": {"type": "string"}, "text": {"type": "string", "description": "What it says."}}
    tool = ToolSpec("send", "Sends.", {"type": "object", "properties": properties})
    described = []
    for name in ("command-r-plus", "gpt-5-mini"):
        provider.will(says("Well."))
        await (await open_model(name=name)).reply(talk(), [tool])
        sent = provider.requests[-1]["tools"][0]["function"]["parameters"]["properties"]
        described.append([each.get("description") for each in sent.values()])
    assert described == [["to", "What it says."], [None, "What it says."]]


def talk(*calls: RequestedCall, opaque: dict[str, Any] | None = None) -> list[BaseMessage]:
    results = [ToolMessage("found", tool_call_id=call.id) for call in calls]
    return [SystemMessage("Answer."), HumanMessage("Look."), assistant_message("", calls, opaque=opaque), *results]


LOOK, SEE = RequestedCall("call_1", "look", {}), RequestedCall("call_2", "see", {})


@pytest.mark.parametrize("rule", [wants_reasoning, wants_signatures])
async def test_what_an_endpoint_misses_of_calls_that_it_did_not_make_has_a_stand_in_from_then_on(
    open_model: OpenModel, provider: Provider, rule: Rule
) -> None:
    model = await open_model()
    provider.rule = rule
    provider.will(says("One."), says("Two."))
    assert (await model.reply(talk(LOOK, SEE))).text == "One."
    assert (await model.reply(talk(SEE))).text == "Two."
    assert len(provider.refused) == 1


async def test_calls_with_opaque_parts_are_split_only_once_the_endpoint_has_refused_them(
    open_model: OpenModel, provider: Provider
) -> None:
    model = await open_model(name="llama-3.1-8b")
    opaque = {
        "by": model.made_by[0],
        "message": {"reasoning": "Hm."},
        "calls": [{"signature": "a"}, {"signature": "b"}],
    }
    several = "This model only supports single tool-calls at once!"
    provider.rule = lambda body: several if any(len(each["tool_calls"]) > 1 for each in calling(body)) else None
    provider.will(says("One."), says("Two."))
    for text in ("One.", "Two."):
        assert (await model.reply(talk(LOOK, SEE, opaque=opaque))).text == text
        first, second = calling(provider.requests[-1])
        assert (first["reasoning"], "reasoning" in second) == ("Hm.", False)
        assert [each["tool_calls"][0]["signature"] for each in (first, second)] == ["a", "b"]
    assert [len(calling(request)) for request in provider.requests] == [1, 2, 2]
    assert talk(LOOK, SEE, opaque=opaque)[2].additional_kwargs == {OPAQUE: opaque}
