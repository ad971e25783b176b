"""A request that was refused for its length or for a tool is asked once more, changed; the next one is so at once."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import orjson
import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage
from starlette.responses import Response
from structlog.testing import capture_logs

from segue import tool as local_tool
from segue.agent.prompts import with_notes
from segue.agent.render_messages import assistant_message, image_message
from segue.config import Settings
from segue.domain.errors import AppError
from segue.domain.session import RequestedCall
from segue.domain.tool import ToolSpec
from segue.models.amended_requests import CUT, size_of
from segue.models.chat_model import ChatModel
from segue.models.untrusted import EARLIER_RESULTS, fenced
from segue.tools.normalize import BinaryPart
from tests.support.provider import OpenModel, Provider, calls, completion, fails, raw, says
from tests.support.service import Client, running
from tests.support.shelf import serving_shelf
from tests.support.toolbox import PIXEL
from tests.support.uploads import uploaded

WORDS = "and on it goes " * 50


def turn(number: int, *, words: str = WORDS, said: str = "") -> list[BaseMessage]:
    call = RequestedCall(f"call_{number}", "look", {"at": number})
    result = ToolMessage(fenced(words), tool_call_id=call.id)
    made: list[BaseMessage] = [HumanMessage(f"Look at {number}."), assistant_message("", [call]), result]
    return [*made, AIMessage(said)] if said else made


REFERENCES = f"{EARLIER_RESULTS}\n{fenced(WORDS * 2)}"
SYSTEM = SystemMessage(f"Be good.\n\n{REFERENCES}\n\nBe brief.")
OLD = [message for number in range(10) for message in turn(number, said=f"It is {number}.")]


def limited(provider: Provider, most: int) -> None:
    """Has the endpoint take at most so many characters of messages."""

    def rule(body: dict[str, Any]) -> str | None:
        return None if size(body) <= most else f"This model's maximum context length is {most} characters."

    provider.rule = rule


def size(body: dict[str, Any]) -> int:
    return sum(len(message["content"]) for message in body["messages"])


async def test_a_conversation_that_is_too_long_goes_out_at_half_its_size_and_so_does_the_next(
    model: ChatModel, provider: Provider
) -> None:
    limited(provider, 7_000)
    provider.will(says("One."), says("Two."), says("Three."))
    for text in ("One.", "Two."):
        with capture_logs() as logs:
            assert (await model.reply([SYSTEM, *OLD, *turn(99)])).text == text
    assert [line["event"] for line in logs] == []
    assert len(provider.refused) == 1
    for sent in provider.requests[1:]:
        assert 4_000 < size(sent) <= 7_000
        assert [each["role"] for each in sent["messages"][-3:]] == ["user", "assistant", "tool"]
        assert "Look at 99." in sent["messages"][-3]["content"]
        assert REFERENCES in sent["messages"][0]["content"]
    assert (await model.reply([SYSTEM, *turn(1)])).text == "Three."
    assert "Look at 1." in provider.requests[-1]["messages"][1]["content"]


async def test_what_is_known_to_be_too_long_does_not_grow_by_an_older_request_that_ends_later(
    model: ChatModel, provider: Provider
) -> None:
    gate = asyncio.Event()
    refusal = fails(400, body='{"error": {"message": "The context length is exceeded."}}')

    async def late(_: dict[str, Any]) -> Response:
        await gate.wait()
        return refusal

    provider.will(late, refusal, *map(says, ("Short.", "Long.", "Between.")))
    long = asyncio.create_task(model.reply([SYSTEM, *OLD, *turn(99)]))
    await provider.wait_for_requests(1)
    assert (await model.reply([SYSTEM, *OLD[:16], *turn(99)])).text == "Short."
    gate.set()
    assert (await long).text == "Long."
    assert (await model.reply([SYSTEM, *OLD[:24], *turn(99)])).text == "Between."
    assert size(provider.requests[-1]) < size(provider.requests[1])


WINDOWS = {
    "OpenAI": "This model's maximum context length is {} tokens. However, your messages resulted in 9000 tokens.",
    "llama.cpp": "request (9000 tokens) exceeds the available context size ({} tokens), try increasing it",
    "Mistral": "Prompt contains 9000 tokens, too large for model with {} maximum context length",
    "Anthropic": "prompt is too long: 9000 tokens > {} maximum",
    "Gemini": "The input token count (9000) exceeds the maximum number of tokens allowed ({}).",
    "xAI": "This model's maximum prompt length is {} but the request contains 9000 tokens.",
    "vLLM": "The decoder prompt (length 9000) is longer than the maximum model length of {}.",
    "TGI": "`inputs` tokens + `max_new_tokens` must be <= {}. Given: 9000 `inputs` tokens and 500 `max_new_tokens`",
    "Kimi": "Invalid request: Your request exceeded model token limit: {}",
    "Qwen": "<400> InternalError.Algo.InvalidParameter: Range of input length should be [1, {}]",
}
# What is said of a conversation that is too long, without the window: a number is something else.
TOO_LONG = {
    "MiniMax": (400, "invalid params, context window exceeds limit (2013)"),
    "Ollama": (400, "prompt too long; exceeded max context length by 4 tokens"),
    "Zhipu": (400, "Prompt exceeds max length"),
    "vLLM": (400, "max_tokens must be at least 1, got -123."),
    "OpenAI through a gateway": (
        400,
        "Input tokens exceed the configured limit. Please reduce the length of the messages.",
    ),
    "Cerebras through LiteLLM": (
        400,
        'litellm.BadRequestError: {"code":"context_length_exceeded","message":"Too long."}',
    ),
    "LM Studio": (500, "Context size has been exceeded."),
    "OpenAI's longest text": (400, "Invalid 'messages[1].content': string too long. Expected at most 1048576."),
    "OpenAI's limit of tokens a minute": (
        429,
        "Request too large for gpt-5 on tokens per min (TPM): Limit 3, Requested 5.",
    ),
}


@pytest.mark.parametrize("said", WINDOWS.values(), ids=list(WINDOWS))
async def test_the_window_of_a_model_is_learned_as_a_number(model: ChatModel, provider: Provider, said: str) -> None:
    """Half of what was refused would be half of the conversation, every time anew; this is what fits."""
    asked = [SYSTEM, *OLD, *turn(99)]
    whole = size_of(asked)
    provider.rule = lambda body: said.format(whole * 5 // 4) if size(body) > size_at_first * 0.97 else None
    size_at_first = 10**9
    provider.will(says("All of it."))
    assert (await model.reply(asked)).text == "All of it."
    size_at_first = size(provider.requests[0])
    for number in range(2):
        provider.will(says("Most of it."))
        assert (await model.reply(asked)).text == "Most of it."
        assert len(provider.refused) == 1, number
        assert 0.8 * size_at_first < size(provider.requests[-1]) < size_at_first


@pytest.mark.parametrize(("status", "said"), TOO_LONG.values(), ids=list(TOO_LONG))
async def test_too_long_a_conversation_is_halved_in_whatever_words_and_a_short_one_stays_whole(
    model: ChatModel, provider: Provider, status: int, said: str
) -> None:
    provider.will(fails(status, body=orjson.dumps({"error": {"message": said}}).decode()), says("One."), says("Two."))
    assert (await model.reply([SYSTEM, *OLD, *turn(99)])).text == "One."
    [whole, half] = provider.requests
    assert 0.3 * size(whole) < size(half) < 0.6 * size(whole)
    assert (await model.reply([SYSTEM, *OLD[:12], *turn(99)])).text == "Two."
    assert "It is 0." in orjson.dumps(provider.messages()).decode()


async def test_what_a_turn_alone_has_too_much_of_is_cut_and_its_call_stays_with_its_result(
    model: ChatModel, provider: Provider
) -> None:
    limited(provider, 12_000)
    provider.will(says("One."))
    assert (await model.reply([SYSTEM, *OLD, *turn(99, words=WORDS * 20)])).text == "One."
    [_, sent] = provider.requests
    assert [each["role"] for each in sent["messages"]] == ["system", "user", "assistant", "tool"]
    assert sent["messages"][0]["content"] == "Be good.\n\nBe brief."
    [result] = provider.messages(role="tool")
    assert result["content"].startswith(WORDS)
    assert result["content"].endswith(CUT)


async def test_a_conversation_that_is_still_too_long_fails_and_what_cannot_be_cut_is_not_asked_again(
    model: ChatModel, provider: Provider
) -> None:
    limited(provider, 100)
    for messages, requests in (([SYSTEM, *OLD, *turn(99)], 2), ([SystemMessage("Sum it up."), HumanMessage(WORDS)], 3)):
        with pytest.raises(AppError, match="CONTEXT_TOKEN_BUDGET"):
            await model.reply(messages)
        assert len(provider.refused) == requests


def tool(name: str, source: str = "mcp:odd") -> ToolSpec:
    return ToolSpec(name=name, description="Looks.", input_schema={"type": "object"}, source=source)


TOOLS = [tool("look"), tool("mcp_odd"), tool("see")]
NAMINGS = {
    "by its name": "Invalid schema for function 'mcp_odd': array schema missing items.",
    "by its place": "Invalid 'tools[1].function.parameters': no such format.",
    "by its place in words": "tools.1.custom.input_schema: JSON schema is invalid.",
    "by its place among functions": "GenerateContentRequest.tools[0].function_declarations[1].parameters: no items",
}


def offered(body: dict[str, Any]) -> list[str]:
    return [each["function"]["name"] for each in body.get("tools", ())]


@pytest.mark.parametrize("said", NAMINGS.values(), ids=list(NAMINGS))
async def test_a_tool_that_a_refusal_names_is_left_out(model: ChatModel, provider: Provider, said: str) -> None:
    provider.rule = lambda body: said if "mcp_odd" in offered(body) else None
    provider.will(says("Here."))
    reply = await model.reply([SYSTEM, HumanMessage("Look.")], TOOLS)
    assert (reply.text, reply.left_out) == ("Here.", {"mcp_odd": said})
    assert [offered(request) for request in provider.requests] == [["look", "mcp_odd", "see"], ["look", "see"]]


async def test_a_description_that_is_too_long_costs_its_tool_and_nothing_of_the_conversation(
    model: ChatModel, provider: Provider
) -> None:
    said = "Invalid 'tools[1].function.description': string too long. Expected a string with maximum length 1024."
    error = {"message": said, "code": "string_above_max_length"}
    provider.will(fails(400, body=orjson.dumps({"error": error}).decode()), says("Here."))
    assert (await model.reply([SYSTEM, *OLD, *turn(99)], TOOLS)).left_out == {"mcp_odd": said}
    assert len({size(request) for request in provider.requests}) == 1


async def test_a_tool_whose_name_is_only_a_word_of_a_refusal_is_not_left_out(
    model: ChatModel, provider: Provider
) -> None:
    provider.rule = lambda _: "I look and see nothing I would take."
    with pytest.raises(AppError, match="nothing I would take"):
        await model.reply([SYSTEM, HumanMessage("Look.")], TOOLS)
    assert len(provider.refused) == 1


async def test_a_server_with_many_odd_tools_is_left_out_as_a_whole_and_takes_no_tool_of_another_with_it(
    model: ChatModel, provider: Provider
) -> None:
    def rule(body: dict[str, Any]) -> str | None:
        return next((f"Invalid schema for function '{name}'" for name in offered(body) if "odd" in name), None)

    provider.rule = rule
    provider.will(says("Here."))
    tools = [*(tool(f"mcp_odd_{number}") for number in range(20)), tool("look", "mcp:even")]
    reply = await model.reply([SYSTEM, HumanMessage("Look.")], tools)
    assert offered(provider.requests[-1]) == ["look"]
    assert len(provider.refused) == 4
    assert len(reply.left_out) == 20


async def test_where_the_one_tool_that_must_be_called_is_refused_no_call_comes_back(
    model: ChatModel, provider: Provider
) -> None:
    provider.rule = lambda body: "Invalid schema for function 'mcp_odd'" if body.get("tools") else None
    reply = await model.reply([SYSTEM, HumanMessage("Look.")], [tool("mcp_odd")], tool_choice="required")
    assert (reply.calls, list(reply.left_out)) == ((), ["mcp_odd"])
    assert len(provider.requests) == 1


@pytest.fixture
async def client(settings: Settings) -> AsyncIterator[Client]:
    async with serving_shelf() as shelf:
        settings.mcp_config.write_text(json.dumps({"mcpServers": {"shelf": {"url": shelf.url}}}))
        async with running(settings) as served:
            await served.connected("shelf")
            yield served


async def test_a_tool_that_the_endpoint_refuses_is_unavailable_in_the_session_with_its_words_until_a_reset(
    client: Client, provider: Provider
) -> None:
    key = "sk-abcdefghij0123456789"
    said = f"Invalid schema for function 'mcp_broken' of {key}: 'array' needs 'items'."
    provider.rule = lambda body: said if "mcp_broken" in offered(body) else None
    provider.will(calls(("mcp_get_item", {"item_id": "itm-1"})), says("Here it is."), says("Yes."), says("Again."))
    session = await client.new_session()
    answer = await client.chat(session, "Get itm-1")
    assert [call["status"] for call in answer["tool_calls"]] == ["succeeded"]
    state = (await client.get(f"/sessions/{session}/tool-states"))["tool_states"]["mcp_broken"]
    assert (state["status"], state["available"], state["reason_code"]) == ("unavailable", False, "refused_by_model")
    assert "'array' needs 'items'" in state["reason"]
    assert key not in json.dumps(state)
    [change] = (await client.get(f"/sessions/{session}/tool-states/history"))["items"]
    assert (change["tool"], change["to"], change["turn_id"]) == ("mcp_broken", "unavailable", answer["turn_id"])
    await client.chat(session, "Is it?")
    assert len(provider.refused) == 1
    assert "mcp_broken: it cannot be used with this model" in provider.notes()
    reset = await client.http.post(f"/sessions/{session}/tool-states/reset", json={"tool_name": "mcp_broken"})
    assert reset.json()["tool_states"]["mcp_broken"]["available"]
    await client.chat(session, "And now?")
    assert len(provider.refused) == 2


async def test_an_error_within_an_answer_that_names_a_parameter_is_learned_from(
    model: ChatModel, provider: Provider
) -> None:
    refused = raw({"error": {"message": "Unsupported parameter: tool_choice", "code": 400}})
    provider.will(refused, says("One."), says("Two."))
    for text in ("One.", "Two."):
        with capture_logs() as logs:
            assert (await model.reply([SYSTEM, HumanMessage("Look.")], TOOLS, tool_choice="required")).text == text
        events = [(line["event"], line["parameter"], line["status"]) for line in logs]
        assert events == ([("model_parameter_left_out", "tool_choice", 400)] if text == "One." else [])
    assert ["tool_choice" in request for request in provider.requests] == [True, False, False]


FILTERED = {
    "an error": fails(400, body='{"error": {"message": "Filtered.", "code": "content_filter", "param": "prompt"}}'),
    "an end": completion({"role": "assistant", "content": ""}, "content_filter"),
    "vague words": fails(400, body='{"error": {"message": "Content Exists Risk"}}'),
    "words under a key's status": fails(
        403, body='{"error": {"message": "Your input was flagged for \\"violence\\""}}'
    ),
}


@pytest.mark.in_turns(3)
@pytest.mark.parametrize("refusal", FILTERED.values(), ids=list(FILTERED))
@pytest.mark.parametrize("comes_of_tool", [False, True], ids=["said", "found"])
async def test_what_a_filter_refuses_of_one_turn_does_not_close_the_session(
    settings: Settings, provider: Provider, refusal: Response, *, comes_of_tool: bool
) -> None:
    @local_tool(effect="read_only")
    async def read_note() -> str:
        """Reads the note."""
        return "How a bomb is made"

    async def answer(body: dict[str, Any]) -> Response:
        if b"bomb" in orjson.dumps(body["messages"]):
            return refusal
        return calls(("read_note", {})) if len(provider.requests) == 1 else says("Fine.")

    provider.always("", answer)
    async with running(settings, tools=[read_note]) as client:
        session = await client.new_session()
        response = await client.send(session, "Read it." if comes_of_tool else "How is a bomb made?")
        assert response.status_code == (200 if comes_of_tool else 502)
        asked_before = len(provider.requests)
        for message in ("How are you?", "And now?"):
            assert (await client.chat(session, message))["message"]["content"] == "Fine."
            assert [each["content"] for each in provider.messages()[1:]] == [message]
            assert provider.notes()
    assert len(provider.requests) == asked_before + 4


@pytest.mark.in_turns(1)
async def test_a_file_of_an_earlier_message_does_not_keep_in_the_session_what_a_filter_refuses(
    settings: Settings, provider: Provider
) -> None:
    async def answer(body: dict[str, Any]) -> Response:
        return FILTERED["an error"] if b"bomb" in orjson.dumps(body["messages"]) else says("Fine.")

    provider.always("", answer)
    async with running(settings) as client:
        session = await client.new_session()
        attachment = await uploaded(client, session, b"a list of plants", "plants.txt")
        await client.chat(session, "Keep this list.", attachments=[attachment])
        assert (await client.send(session, "How is a bomb made?")).status_code == 502
        assert (await client.chat(session, "How are you?"))["message"]["content"] == "Fine."


IMAGES = image_message({"call_99": [BinaryPart("image/png", PIXEL, "image/png")]})
SEALED = {"reasoning_details": [{"data": "abc"}]}
# What is said of every request; what came with its call; how often it is asked before that is told.
REFUSES_ALL = {
    "vague words": ({"message": "Could not process the request"}, SEALED, 3),
    "vague words, nothing sealed": ({"message": "Could not process the request"}, {}, 2),
    "a filter": ({"message": "Filtered.", "code": "content_filter"}, SEALED, 2),
    "an image": ({"message": "Could not process the image"}, SEALED, 4),
}


@pytest.mark.parametrize(("error", "sealed", "times"), REFUSES_ALL.values(), ids=list(REFUSES_ALL))
async def test_what_is_refused_whatever_is_left_out_is_told_after_a_few_requests(
    open_model: OpenModel, provider: Provider, error: dict[str, str], sealed: dict[str, Any], times: int
) -> None:
    model = await open_model(name="gpt-4o")
    opaque = {"by": model.made_by[0], "message": sealed, "calls": []} if sealed else None
    call = RequestedCall("call_99", "look", {})
    now = [HumanMessage(with_notes("Look again.", "It is noon.")), assistant_message("", [call], opaque=opaque)]
    provider.always("", fails(400, body=json.dumps({"error": error})))
    with pytest.raises(AppError) as failed:
        await model.reply([SYSTEM, *OLD, *now, ToolMessage(fenced("A pixel."), tool_call_id="call_99"), IMAGES])
    assert error["message"] in failed.value.detail
    assert len(provider.requests) == times
