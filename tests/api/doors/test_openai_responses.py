"""The official `openai` client against a running service: the Responses API."""

from typing import Any

import openai
import pytest
from openai import AsyncOpenAI

from tests.support.openai_client import openai_client
from tests.support.provider import Provider, calls, fails, says
from tests.support.service import Client


async def events_of(ai: AsyncOpenAI, **asked: Any) -> list[Any]:
    stream = await ai.responses.create(model="segue", stream=True, **asked)
    return [event async for event in stream]


async def test_a_streamed_response_goes_on_from_the_one_before_and_shows_each_tool_with_its_output(
    client: Client, provider: Provider
) -> None:
    provider.will(calls(("current_time", {}), text="Let me see."), says("Noon."), says("Tea time."))
    async with openai_client(client) as ai:
        first = await events_of(ai, input="what time is it?")
        response = first[-1].response
        second = await events_of(ai, input="and now?", previous_response_id=response.id)
    assert [event.sequence_number for event in first] == list(range(len(first)))
    assert [first[0].type, first[-1].type] == ["response.created", "response.completed"]
    assert [item.type for item in response.output] == ["message", "function_call", "function_call_output", "message"]
    assert response.output[1].call_id == response.output[2].call_id
    assert response.output[2].output[0].text.startswith("succeeded: ")
    said = [event.delta for event in first if event.type == "response.output_text.delta"]
    assert "".join(said) == "Let me see.Noon."
    assert response.output_text == "Let me see.Noon."
    assert response.usage.output_tokens == 14
    assert second[-1].response.output_text == "Tea time."
    assert second[-1].response.conversation.id == response.conversation.id
    [turn, _] = await client.turns(response.conversation.id)
    assert turn["turn_id"].removeprefix("turn_") in response.id


async def test_a_whole_response_is_the_same_and_a_retry_runs_nothing_again(client: Client, provider: Provider) -> None:
    provider.will(calls(("current_time", {})), says("Noon."), says("One."), says("Other."))
    async with openai_client(client) as ai:
        response = await ai.responses.create(model="segue", input="what time is it?", conversation="chat 1")
        assert [item.type for item in response.output] == ["function_call", "function_call_output", "message"]
        asked: dict[str, Any] = {"model": "segue", "input": "and now?", "previous_response_id": response.id}
        retry = {"x-stainless-retry-count": "1"}
        answers = [(await ai.responses.create(**asked, extra_headers=each)).output_text for each in ({}, retry)]
        other = await ai.responses.create(model="segue", input="or else?", previous_response_id=response.id)
    assert answers == ["One.", "One."]
    assert other.output_text == "Other."
    [session] = (await client.get("/sessions"))["items"]
    said = [each["content"] for each in await client.messages(session["id"]) if each["role"] == "user"]
    assert said == ["what time is it?", "or else?"]


async def test_a_response_that_fails_says_so(client: Client, provider: Provider) -> None:
    provider.will(fails(400), says("Title"))
    async with openai_client(client) as ai:
        failed = (await events_of(ai, input="hello"))[-1]
        for unknown in ("resp_1", f"resp_{'0' * 52}"):
            with pytest.raises(openai.NotFoundError) as refused:
                await ai.responses.create(model="segue", input="hello", previous_response_id=unknown)
            assert refused.value.code == "session_not_found"
        title = await events_of(ai, input="### Task:\nWrite a title")
    assert (failed.type, failed.response.error.code) == ("response.failed", "model_unavailable")
    assert title[-1].response.output_text == "Title"
    assert len((await client.get("/sessions"))["items"]) == 1
