"""Which model is asked for what, and who answers while one cannot."""

import asyncio
from typing import Any

import orjson
import pytest
from langchain_core.messages import HumanMessage, SystemMessage
from starlette.responses import Response
from structlog.testing import capture_logs

from segue.config import Settings
from segue.domain.errors import AppError
from segue.models.fallback_model import DOWN_S
from tests.support.facts import all_taken_in, notes
from tests.support.plans import planned
from tests.support.provider import OpenModel, Provider, Reply, completion, delta, fails, raw, says, sse
from tests.support.service import Client, running
from tests.support.streams import streamed
from tests.support.sweeps import first

ASKED = [SystemMessage("Answer."), HumanMessage("What is it?")]
NEVER = asyncio.Event()


async def never(_: dict[str, Any]) -> Response:
    await NEVER.wait()
    return says("too late")


def refuses(status: int, code: str) -> Response:
    return fails(status, body=orjson.dumps({"error": {"message": "No.", "code": code}}).decode())


def models_of(provider: Provider) -> list[str]:
    return [request["model"] for request in provider.requests]


TOO_MANY_A_MINUTE = '{"error": {"message": "Request too large for scripted on tokens per min (TPM): Limit 30000."}}'
# What the first model does, and for which words the log blames it.
LEFT_TO_ANOTHER: dict[str, tuple[list[Reply], str]] = {
    "errors of its own": ([fails(503, headers={"Retry-After": "0"})] * 2, "HTTP 503"),
    "no quota": ([refuses(429, "insufficient_quota")], "out of quota"),
    "a wrong key": ([fails(401)], "OPENAI_API_KEY"),
    "no such model": ([refuses(404, "model_not_found")], "LLM_MODEL"),
    "busy for long": ([fails(429, headers={"Retry-After": "60"})], "HTTP 429"),
    "more at once than its account may": ([fails(429, body=TOO_MANY_A_MINUTE)], "HTTP 429"),
    "no JSON": ([raw("<html>", media_type="text/html")] * 2, "The model provider"),
    "nothing": ([never], "did not answer within"),
}


@pytest.mark.in_turns(2)
@pytest.mark.parametrize(("replies", "reason"), first(3, LEFT_TO_ANOTHER.values()), ids=list(LEFT_TO_ANOTHER))
@pytest.mark.parametrize("as_stream", [False, True], ids=["json", "stream"])
async def test_what_one_model_cannot_answer_another_does_and_is_named(
    settings: Settings, provider: Provider, replies: list[Reply], reason: str, *, as_stream: bool
) -> None:
    provider.will(*replies, says("42"))
    given = {"llm_fallback_model": "spare", "llm_max_retries": 1}
    given |= {"llm_timeout_s": 3} if never in replies else {}
    with capture_logs() as logs:
        async with running(settings.model_copy(update=given)) as client:
            answer = await answer_of(client, as_stream=as_stream)
            NEVER.set()
    NEVER.clear()
    assert (answer["message"]["content"], answer["model"]) == ("42", "spare")
    assert models_of(provider)[-1] == "spare"
    [line] = [line for line in logs if line["event"] == "model_fallback"]
    assert (line["model"], line["fallback"], reason in line["reason"]) == ("scripted", "spare", True)
    assert [line["model"] for line in logs if line["event"] == "turn_finished"] == ["spare"]


async def answer_of(client: Client, *, as_stream: bool) -> dict[str, Any]:
    session = await client.new_session()
    if not as_stream:
        return await client.chat(session, "What is it?")
    answer: dict[str, Any] = (await streamed(client, session, "What is it?"))[-1].event["result"]
    return answer


# What another model would refuse as well, or what was heard already.
KEPT: dict[str, Reply] = {
    "the content filter's": refuses(400, "content_filter"),
    "a bad request": fails(400),
    "too long": refuses(400, "context_length_exceeded"),
    "filtered": completion({"role": "assistant", "content": "I"}, "content_filter"),
    "heard": sse(delta(content="Once upon a time"), ""),
}


@pytest.mark.in_turns(2)
@pytest.mark.parametrize("reply", KEPT.values(), ids=list(KEPT))
async def test_what_another_model_would_refuse_too_is_not_asked_of_it(
    settings: Settings, provider: Provider, reply: Reply
) -> None:
    provider.will(reply)
    async with running(settings.model_copy(update={"llm_fallback_model": "spare"})) as client:
        sent = await streamed(client, await client.new_session(), "What is it?")
    assert sent[-1].event["code"] == "model_unavailable"
    assert models_of(provider) == ["scripted"]


async def test_a_model_that_is_down_is_left_alone_and_then_tried_by_one_call(
    open_model: OpenModel, provider: Provider
) -> None:
    now = 1000.0
    model = await open_model(fallback=await open_model(name="spare"), monotonic=lambda: now)
    provider.will(fails(503), says("1"), says("2"))
    assert [(await model.reply(ASKED)).text for _ in range(2)] == ["1", "2"]
    now += DOWN_S
    provider.will(fails(503), says("3"), says("4"))
    assert [(await model.reply(ASKED)).text for _ in range(2)] == ["3", "4"]
    now += DOWN_S
    provider.will(says("5"), says("6"))
    assert [(await model.reply(ASKED)).model for _ in range(2)] == ["scripted", "scripted"]
    assert models_of(provider) == ["scripted", "spare", "spare"] * 2 + ["scripted", "scripted"]


async def test_fallbacks_are_asked_in_their_order_each_with_a_health_of_its_own(
    settings: Settings, provider: Provider
) -> None:
    provider.will(refuses(404, "model_not_found"), fails(503), says("42"), says("43"))
    listed = settings.model_copy(update={"llm_fallback_model": "spare, scripted,other"})
    async with running(listed) as client:
        session = await client.new_session()
        for said in ("42", "43"):
            answer = await client.chat(session, "What is it?")
            assert (answer["message"]["content"], answer["model"]) == (said, "other")
    assert models_of(provider) == ["scripted", "spare", "other", "other"]


@pytest.mark.sweep
async def test_three_models_share_one_deadline(settings: Settings, provider: Provider) -> None:
    provider.will(never, never, says("42"))
    listed = {"llm_fallback_model": "spare,other", "llm_timeout_s": 6, "llm_max_retries": 0}
    async with running(settings.model_copy(update=listed)) as client:
        answer = await client.chat(await client.new_session(), "What is it?")
        NEVER.set()
    NEVER.clear()
    assert (answer["message"]["content"], answer["model"]) == ("42", "other")


async def test_an_empty_answer_is_left_to_another_and_blames_no_model(
    open_model: OpenModel, provider: Provider
) -> None:
    model = await open_model(fallback=await open_model(name="spare"))
    provider.will(says(""), says(""), says("42"), says("43"))
    assert [(await model.reply(ASKED)).model for _ in range(2)] == ["spare", "scripted"]


async def test_both_models_have_one_deadline_together(open_model: OpenModel, provider: Provider) -> None:
    model = await open_model(fallback=await open_model(name="spare", timeout_s=1.5), timeout_s=0.4)
    provider.will(never, never)
    with pytest.raises(AppError) as failed:
        await model.reply(ASKED)
    NEVER.set()
    assert (failed.value.code, "within 0.4 s" in failed.value.detail) == ("model_timeout", True)


async def test_what_is_opaque_of_one_model_does_not_go_to_the_other(settings: Settings, provider: Provider) -> None:
    noon = {"id": "c1", "type": "function", "function": {"name": "current_time", "arguments": "{}"}}
    thought = {"role": "assistant", "content": "", "reasoning_content": "Hm.", "tool_calls": [noon]}
    provider.will(completion(thought, "tool_calls"), fails(503), says("42"))
    async with running(settings.model_copy(update={"llm_fallback_model": "spare"})) as client:
        await client.chat(await client.new_session(), "What is it?")
    assert models_of(provider) == ["scripted", "scripted", "spare"]
    given_back = ["reasoning_content" in str(request["messages"]) for request in provider.requests]
    assert given_back == [False, True, False]


async def test_the_small_model_plans_and_notes_facts_and_the_main_one_answers(
    settings: Settings, provider: Provider
) -> None:
    provider.will(planned([]), says("Va bene."), notes())
    small = settings.model_copy(update={"llm_small_model": "small", "planning": "always"})
    async with running(small) as client:
        answer = await client.chat(await client.new_session(), "Sono allergico alle noci, tienilo presente")
        await all_taken_in(small)
    assert models_of(provider) == ["small", "scripted", "small"]
    assert answer["model"] == "scripted"


@pytest.mark.sweep
async def test_a_refusal_names_the_setting_of_the_model_that_was_refused(
    settings: Settings, provider: Provider
) -> None:
    provider.will(refuses(404, "model_not_found"))
    small = settings.model_copy(update={"llm_small_model": "small", "planning": "always"})
    async with running(small) as client:
        problem = (await client.send(await client.new_session(), "What is it?")).json()
    assert "Check LLM_SMALL_MODEL." in problem["detail"]
