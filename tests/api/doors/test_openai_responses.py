"""The official `openai` client against a running service: the Responses API."""

import asyncio
from typing import Any

import openai
import pytest
import starlette.responses
from openai import AsyncOpenAI
from openai.types.responses import ResponseErrorEvent

from segue.api.doors.openai_responses import ResponseWriter
from tests.support.openai_client import openai_client
from tests.support.provider import Provider, calls, fails, says
from tests.support.service import Client
from tests.support.stores import Stores


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
    assert [item.type for item in response.output] == ["message", "mcp_call", "message"]
    call = response.output[1]
    assert (call.name, call.server_label, call.arguments, call.status) == ("current_time", "segue", "{}", "completed")
    assert "timezone" in call.output
    of_the_call = [event.type for event in first if getattr(event, "item_id", "") == call.id]
    assert [each.removeprefix("response.mcp_call") for each in of_the_call] == [
        ".in_progress",
        "_arguments.delta",
        "_arguments.done",
        ".completed",
    ]
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
        assert [item.type for item in response.output] == ["mcp_call", "message"]
        asked: dict[str, Any] = {"model": "segue", "input": "and now?", "previous_response_id": response.id}
        retry = {"x-stainless-retry-count": "1"}
        one, again = [await ai.responses.create(**asked, extra_headers=each) for each in ({}, retry)]
        other = await ai.responses.create(model="segue", input="or else?", previous_response_id=response.id)
        with pytest.raises(openai.ConflictError) as refused:  # it would be answered without what it goes on from
            await ai.responses.create(model="segue", input="go on", previous_response_id=one.id)
    assert refused.value.code == "not_in_history"
    assert one.output_text == again.output_text == "One."
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


def test_a_stream_that_a_shutdown_cuts_off_ends_with_an_error_as_openai_writes_one() -> None:
    name, written = ResponseWriter.interrupted.decode().splitlines()[:2]
    event = ResponseErrorEvent.model_validate_json(written.removeprefix("data: "))
    assert (name, event.type, event.code) == ("event: error", "error", "turn_interrupted")


async def test_open_webui_is_shown_functions_that_have_run_and_a_conversation_that_ends_with_an_output_runs_nothing(
    client: Client, provider: Provider
) -> None:
    provider.will(calls(("current_time", {}), text="Let me see."), says("Noon."))
    asked: list[Any] = [{"role": "user", "content": "what time is it?"}]
    async with openai_client(client, headers={"X-OpenWebUI-Chat-Id": ""}) as ai:
        response = (await events_of(ai, input=asked))[-1].response
        shown = [item.to_dict() for item in response.output]
        assert [item["type"] for item in shown] == ["message", "function_call", "function_call_output", "message"]
        assert shown[1]["call_id"] == shown[2]["call_id"]
        assert shown[2]["output"][0]["text"].startswith("succeeded: ")  # a list: a string broke its next turn
        again = await ai.responses.create(model="segue", input=[*asked, *shown[:3]])
    assert again.id == response.id
    assert again.output_text == "Noon."


async def test_a_call_that_failed_says_so(client: Client, provider: Provider) -> None:
    provider.will(calls(("web_fetch", {"url": "http://127.0.0.1/"})), says("It is not there."))
    async with openai_client(client) as ai:
        response = await ai.responses.create(model="segue", input="show me the result")
    [call, _] = response.output
    assert call.type == "mcp_call"
    assert (call.status, call.output) == ("failed", None)
    assert call.error is not None
    assert call.error.type == "mcp_tool_execution_error"


@pytest.mark.sweep
async def test_a_response_is_made_in_the_background_read_and_deleted_by_its_id_alone(
    client: Client, provider: Provider
) -> None:
    goes_on = asyncio.Event()

    async def told_late(_: object) -> starlette.responses.Response:
        await goes_on.wait()
        return says("Noon.")

    provider.will(told_late, says("Tea time."), fails(400))
    async with openai_client(client) as ai:
        begun = await ai.responses.create(model="segue", input="what time is it?", background=True)
        assert (begun.status, begun.output_text) == ("queued", "")
        await provider.wait_for_requests(1)
        assert (await ai.responses.retrieve(begun.id)).status == "in_progress"
        goes_on.set()
        assert begun.conversation is not None
        await client.ended(begun.conversation.id)
        read = await ai.responses.retrieve(begun.id)
        assert (read.status, read.output_text) == ("completed", "Noon.")
        assert read.usage is not None
        [item] = (await ai.responses.input_items.list(begun.id)).data
        assert item.to_dict()["content"] == [{"type": "input_text", "text": "what time is it?"}]
        await ai.responses.create(model="segue", input="and now?", previous_response_id=begun.id)
        with pytest.raises(openai.ConflictError) as refused:
            await ai.with_options(max_retries=0).responses.delete(begun.id)
        assert refused.value.code == "in_conversation"
        failing = await ai.responses.create(model="segue", input="hello?", background=True)
        assert failing.conversation is not None
        await client.ended(failing.conversation.id)
        failed = await ai.responses.retrieve(failing.id)
        assert failed.error is not None
        assert (failed.status, failed.error.code) == ("failed", "model_unavailable")
        await ai.responses.delete(failing.id)
        for gone in (failing.id, "resp_x", "resp_" + "\u00e9" * 52):
            with pytest.raises(openai.NotFoundError):
                await ai.responses.retrieve(gone)
    assert len((await client.get("/sessions"))["items"]) == 1


async def test_a_response_in_the_background_is_followed_from_any_event_and_cancelled(
    client: Client, provider: Provider
) -> None:
    goes_on = [asyncio.Event(), asyncio.Event()]

    async def told_late(_: object) -> starlette.responses.Response:
        await goes_on[0].wait()
        return says("It is noon.")

    async def told_in_vain(_: object) -> starlette.responses.Response:
        await goes_on[1].wait()
        return says("It is late.")

    provider.will(calls(("current_time", {}), text="Let me see."), told_late, told_in_vain)
    async with openai_client(client) as ai:
        begun = await ai.responses.create(model="segue", input="what time is it?", background=True)
        seen = list[Any]()
        async with await ai.responses.retrieve(begun.id, stream=True) as stream:
            async for event in stream:
                seen.append(event)
                if event.type == "response.output_item.done":
                    break
        goes_on[0].set()
        again = await ai.responses.retrieve(begun.id, stream=True, starting_after=seen[-1].sequence_number)
        rest: list[Any] = [event async for event in again]
        whole = [event async for event in await ai.responses.retrieve(begun.id, stream=True)]
        assert [event.to_dict() for event in whole] == [event.to_dict() for event in (*seen, *rest)]
        assert rest[-1].response.output_text == "Let me see.It is noon."
        assert (await ai.responses.cancel(begun.id)).status == "completed"
        waits = await ai.responses.create(model="segue", input="and now?", background=True)
        await provider.wait_for_requests(3)
        cancelled = await ai.responses.cancel(waits.id)
    goes_on[1].set()
    assert cancelled.error is not None
    assert (cancelled.status, cancelled.error.code) == ("cancelled", "turn_cancelled")


async def test_a_response_is_followed_to_its_end_also_from_an_event_that_redis_has_lost(
    client: Client, provider: Provider, stores: Stores
) -> None:
    provider.will(calls(("current_time", {}), text="Let me see."), says("It is noon."))
    async with openai_client(client) as ai:
        seen = await events_of(ai, input="what time is it?")
        await stores.redis.flushall()
        last = seen[-1].sequence_number
        again = await ai.responses.retrieve(seen[0].response.id, stream=True, starting_after=last)
        rest = [(event.type, event.sequence_number > last) async for event in again]
    assert rest == [("response.completed", True)]


async def test_a_conversation_is_a_session_that_is_made_read_and_gone_on_with(
    client: Client, provider: Provider
) -> None:
    provider.will(says("Hello."))
    async with openai_client(client) as ai:
        made = await ai.conversations.create(metadata={"topic": "tea"})
        assert (await ai.conversations.retrieve(made.id)).metadata == {"topic": "tea"}
        once = {"Idempotency-Key": "c-1"}
        [first, second] = [await ai.conversations.create(extra_headers=once) for _ in range(2)]
        assert first.id == second.id != made.id
        response = await ai.responses.create(model="segue", input="hello", conversation=made.id)
        assert (await ai.conversations.create(items=[])).id.startswith("ses_")  # as openai-agents begins one
        assert (await ai.conversations.create(items=None)).id.startswith("ses_")
        with pytest.raises(openai.BadRequestError) as refused:
            await ai.conversations.create(items=[{"role": "user", "content": "hello"}])
        assert refused.value.param == "items"
        with pytest.raises(openai.NotFoundError):
            await ai.conversations.retrieve("conv_1")
    assert response.conversation is not None
    assert response.conversation.id == made.id
    assert (await client.get(f"/sessions/{made.id}"))["message_count"] == 2
