"""Every error of a provider, as a status, within an answer and within a stream: what is told, and who asks again."""

import asyncio
import tracemalloc
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import orjson
import pytest
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from langchain_openai import ChatOpenAI
from pydantic import SecretStr
from starlette.responses import RedirectResponse, Response, StreamingResponse
from structlog.testing import capture_logs

from segue.domain.errors import AppError
from segue.domain.telemetry import unobserved, untraced
from segue.domain.tool import ToolSpec
from segue.models.chat_model import ChatModel
from segue.models.model_settings import ModelSettings
from segue.models.providers.langchain_model import of_langchain
from segue.models.refusals import RefusalReader, failure_of
from segue.models.reply import READING
from segue.models.streamed_answer import Listener
from segue.net.http_client import retry_after_s
from segue.users.prices import Tariff
from tests.support.provider import GZIP, OpenModel, Provider, Reply, delta, fails, packed, raw, says, sse
from tests.support.sweeps import first

ASKED = [SystemMessage("Answer."), HumanMessage("What is it?")]
SILENT = Listener(lambda _: None, lambda: None)


async def failure(model: ChatModel, *, as_stream: bool = False) -> AppError:
    with pytest.raises(AppError) as failed:
        await model.reply(ASKED, listener=SILENT if as_stream else None)
    return failed.value


# Status, code and message of an error; what is told; whether asking again may help.
ERRORS = {
    "too long": (400, "context_length_exceeded", "You sent too much.", "CONTEXT_TOKEN_BUDGET", False),
    "too long, in words": (400, None, "This model's maximum context length is 8192.", "CONTEXT_TOKEN_BUDGET", False),
    "too large": (413, None, "Payload too large", "CONTEXT_TOKEN_BUDGET", False),
    "no quota": (429, "insufficient_quota", "You exceeded your current quota.", "out of quota", False),
    "no credit": (402, None, "Insufficient Balance", "out of quota", False),
    "filtered": (400, "content_filter", "The prompt was filtered.", "content filter", False),
    "a wrong key": (401, "invalid_api_key", "Incorrect key.", "OPENAI_API_KEY", False),
    "no permission": (403, None, "Country not supported", "OPENAI_API_KEY", False),
    "no such model": (404, "model_not_found", "The model does not exist.", "LLM_MODEL", False),
    "no such path": (404, None, "Not Found", "OPENAI_BASE_URL", False),
    "no tools": (400, None, "gemma:2b does not support tools", "set LLM_MODEL", False),
    "a bad request": (400, "invalid_value", "Invalid value: 'x'.", "Invalid value", False),
    "too slow": (408, None, "Request timeout", "HTTP 408", True),
    "too many requests": (429, "rate_limit_exceeded", "Slow down.", "Slow down.", True),
    "broken": (500, "server_error", "Oops.", "Oops.", True),
    "a bad gateway": (502, None, "Bad gateway", "HTTP 502", True),
    "a gateway that names the address": (502, None, 'Post "https://ai.example/v1/responses": EOF', "HTTP 502", True),
    "overloaded": (529, "overloaded_error", "Overloaded", "HTTP 529", True),
}
# What is said under a status that means something else, or with a code of the provider's own; and what is told.
OWN_WORDS = {
    "Kimi": (429, {"type": "exceeded_current_quota_error", "message": "Your account is suspended."}, "out of quota"),
    "Zhipu": (429, {"code": "1113", "message": "Insufficient balance or no resource package."}, "out of quota"),
    "Qwen": (
        400,
        {"code": "Arrearage", "message": "Access denied, your account is not in good standing."},
        "out of quota",
    ),
    "Qwen's free tier": (403, {"code": "AllocationQuota.FreeTierOnly", "message": "It is exhausted."}, "out of quota"),
    "Anthropic": (400, {"message": "You have reached your specified API usage limits."}, "out of quota"),
    "Qwen's filter": (400, {"code": "data_inspection_failed", "message": "Inappropriate."}, "content filter"),
    "Anthropic's filter": (400, {"message": "Output blocked by content filtering policy"}, "content filter"),
    "OpenRouter's filter": (403, {"code": 403, "message": 'Your input was flagged for "violence"'}, "content filter"),
    "OpenRouter": (404, {"code": 404, "message": "No endpoints found that support tool use."}, "takes no tools"),
    "OpenRouter's list": (400, {"code": 400, "message": "foo/bar is not a valid model ID"}, "Check LLM_MODEL."),
    "DeepSeek": (400, {"message": "Model Not Exist"}, "Check LLM_MODEL."),
    "Gemini": (400, {"message": "API key expired. Please renew the API key."}, "Check OPENAI_API_KEY."),
}
WAYS = ["status", "answer", "choice", "stream"]


def way_of_saying(way: str, status: int, error: dict[str, Any]) -> Reply:
    match way:
        case "status":
            return fails(status, body=orjson.dumps({"error": error}).decode())
        case "answer":
            return raw({"error": {**error, "status": status}})
        case "choice":
            choice = {"error": {**error, "status": status}, "message": {"content": ""}, "finish_reason": "error"}
            return raw({"choices": [choice]})
        case _:
            return sse(": PROCESSING\n\n", {"error": {**error, "status": str(status)}})


async def test_an_answer_that_is_nested_beyond_any_stack_is_logged_as_none(
    open_model: OpenModel, provider: Provider
) -> None:
    model = await open_model(max_retries=0)
    provider.will(raw("[" * 100_000))
    with capture_logs() as logs:
        await failure(model)
    [line] = [each for each in logs if each["event"] == "model_failed"]
    assert (line["outcome"], "does not speak this protocol" in line["advice"]) == ("no_answer", True)


@pytest.mark.in_turns(30)
@pytest.mark.parametrize(("status", "code", "message", "told", "again"), ERRORS.values(), ids=list(ERRORS))
@pytest.mark.parametrize("way", WAYS)
async def test_an_error_is_told_for_what_it_means(
    model: ChatModel,
    provider: Provider,
    way: str,
    status: int,
    code: str | None,
    message: str,
    told: str,
    *,
    again: bool,
) -> None:
    provider.will(way_of_saying(way, status, {"message": message, "code": code}))
    with capture_logs() as logs:
        error = await failure(model, as_stream=way == "stream")
    assert (error.code, error.status, error.retryable) == ("model_unavailable", 502, again)
    assert error.detail.startswith(f"The model provider answered HTTP {status}.")
    assert told in error.detail
    assert message in error.detail
    assert error.extra == ({"provider_code": code} if code else {})
    [line] = [line for line in logs if line["event"] == "model_failed"]
    assert line["reason"] == error.detail


@pytest.mark.parametrize(("status", "error", "told"), OWN_WORDS.values(), ids=list(OWN_WORDS))
async def test_a_providers_own_words_say_more_than_the_status(
    model: ChatModel, provider: Provider, status: int, error: dict[str, Any], told: str
) -> None:
    provider.will(fails(status, body=orjson.dumps({"error": error}).decode()))
    assert told in (await failure(model)).detail


async def test_what_asking_again_may_help_is_asked_again_and_nothing_else(
    open_model: OpenModel, provider: Provider
) -> None:
    model = await open_model(max_retries=1)
    model.chance = lambda: 0.0
    for status, code, message, _, again in ERRORS.values():
        error = orjson.dumps({"error": {"message": message, "code": code}}).decode()
        provider.will(fails(status, body=error, headers={"Retry-After": "0"}))
        if again:
            provider.will(says("42"))
            assert (await model.reply(ASKED)).text == "42"
        else:
            await failure(model)


CODES_WITHIN = {"a number": ({"code": 402}, 402), "a type": ({"type": "rate_limit_error"}, 429), "none": ({}, 500)}


@pytest.mark.parametrize(("error", "status"), CODES_WITHIN.values(), ids=list(CODES_WITHIN))
async def test_an_error_in_an_answer_is_what_its_code_says(
    model: ChatModel, provider: Provider, error: dict[str, Any], status: int
) -> None:
    provider.will(raw({"error": {"message": "No.", **error}}))
    assert f"HTTP {status}." in (await failure(model)).detail


@pytest.mark.parametrize(("number", "status", "again"), [(1008, 402, False), (1039, 429, True)])
@pytest.mark.parametrize("as_stream", [False, True], ids=["json", "stream"])
async def test_an_error_beside_an_answer_is_what_its_number_says(
    model: ChatModel, provider: Provider, number: int, status: int, *, again: bool, as_stream: bool
) -> None:
    told = {"base_resp": {"status_code": number, "status_msg": "No."}, "choices": None}
    fine = {**orjson.loads(says("42").body), "base_resp": {"status_code": 0, "status_msg": ""}}
    provider.will(sse(told) if as_stream else raw(told), raw(fine))
    error = await failure(model, as_stream=as_stream)
    assert (error.retryable, f"HTTP {status}." in error.detail, "It said: No." in error.detail) == (again, True, True)
    assert (await model.reply(ASKED)).text == "42"


FORMS = {
    "a text": '{"error": "no such thing"}',
    "a list": '[{"error": {"code": 400, "message": "no such thing", "status": "INVALID_ARGUMENT"}}]',
    "flat": '{"object": "error", "message": "no such thing", "code": 400}',
    "a detail": '{"detail": "no such thing"}',
    "details": '{"detail": [{"loc": ["body"], "msg": "no such thing"}]}',
    "several": '{"success": false, "errors": [{"code": 7003, "message": "no such thing"}]}',
    "another": '{"code": "500", "msg": "no such thing", "success": false}',
    "plain": "no such thing",
}


@pytest.mark.parametrize("body", FORMS.values(), ids=list(FORMS))
async def test_an_error_of_any_form_is_told(model: ChatModel, provider: Provider, body: str) -> None:
    ways = [fails(400, body=body), *([] if body == "no such thing" else [raw(body)])]
    provider.will(*ways)
    for _ in ways:
        assert "no such thing" in (await failure(model)).detail


async def test_an_error_that_is_called_a_stream_is_told(model: ChatModel, provider: Provider) -> None:
    for end in ("", "\n", "\n\n"):
        provider.will(sse(f'{{"error": {{"message": "no such thing", "code": 402}}}}{end}'))
        error = await failure(model, as_stream=True)
        assert (error.retryable, "HTTP 402." in error.detail, "no such thing" in error.detail) == (False, True, True)


async def test_an_error_in_a_field_of_its_own_within_a_stream_is_told(model: ChatModel, provider: Provider) -> None:
    said = {"code": 400, "message": "the request exceeds the available context size", "type": "invalid_request_error"}
    provider.will(sse(f"error: {orjson.dumps(said).decode()}\n\ndata: [DONE]\n\n"))
    error = await failure(model, as_stream=True)
    assert "CONTEXT_TOKEN_BUDGET" in error.detail
    assert error.detail.endswith("It said: the request exceeds the available context size")


async def test_a_page_for_people_is_not_told(model: ChatModel, provider: Provider) -> None:
    provider.will(fails(503, body="<html><h1>Sorry</h1>"))
    assert (await failure(model)).detail == "The model provider answered HTTP 503."


async def test_what_a_provider_says_is_bounded_and_holds_no_secret(open_model: OpenModel, provider: Provider) -> None:
    model = await open_model(api_key=SecretStr("pass phrase of ours"))
    said = f"No:\x00 pass phrase of ours, sk-abcdefghij0123456789 {'x' * 50_000}"
    provider.will(fails(400, body=orjson.dumps({"error": {"message": said, "code": "c" * 5000}}).decode()))
    error = await failure(model)
    assert "It said: No: [redacted], [redacted] xxx" in error.detail
    assert len(error.detail) < 600
    assert len(str(error.extra["provider_code"])) <= 100


async def test_what_breaks_after_words_were_heard_is_not_told_as_no_answer(
    open_model: OpenModel, provider: Provider
) -> None:
    model = await open_model(max_retries=2)
    for broken in ("data: {garbage\n\n", "data: []\n\n", delta(tool_calls=[None]), ""):
        provider.will(sse(delta(content="Once upon"), broken))
        error = await failure(model, as_stream=True)
        assert error.detail == "The model provider broke off in the middle of the answer.", broken


NOW, A_DAY = datetime.now(UTC), 86_400.0  # the modules are imported minutes before the tests
WAITS = {
    "seconds": ({"retry-after": "7"}, 7.0),
    "milliseconds first": ({"retry-after-ms": "1500", "retry-after": "7"}, 1.5),
    "a date": ({"retry-after": format_datetime(NOW + timedelta(days=1), usegmt=True)}, A_DAY),
    "a date that has passed": ({"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}, 0.0),
    "below nothing": ({"retry-after": "-5"}, 0.0),
    "endless": ({"retry-after": "inf"}, 10.0**9),
    "no number": ({"retry-after": "soon"}, None),
    "nan": ({"retry-after": "nan"}, None),
    "none": ({}, None),
}


@pytest.mark.parametrize(("headers", "seconds"), WAITS.values(), ids=list(WAITS))
def test_when_to_ask_again_is_read(headers: dict[str, str], seconds: float | None) -> None:
    found = retry_after_s(headers)
    assert found == seconds if seconds is None else found == pytest.approx(seconds, abs=3600 if seconds == A_DAY else 0)


RETRY_INFO = [
    {"@type": "type.googleapis.com/google.rpc.Help", "links": [{"url": "https://ai.google.dev"}]},
    {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "3.2s"},
]
# What an endpoint says with a 429, its headers, and the seconds that it asks for.
WAITS_IN_WORDS = {
    "Gemini": ({"code": 429, "message": "Quota exceeded.", "details": RETRY_INFO}, {}, 3.2),
    "Gemini, in words": ({"message": "Quota exceeded for requests. Please retry in 3.2s."}, {}, 3.2),
    "OpenAI": ({"message": "Limit 3 / min. Please try again in 20s. Visit https://openai.com"}, {}, 20.0),
    "Groq": ({"message": "Rate limit reached. Please try again in 2m7.5s."}, {"retry-after": "7"}, 127.5),
    "milliseconds": ({"message": "Please try again in 120ms."}, {"retry-after": "0"}, 0.12),
    "Azure": ({"message": "Please retry after 10 seconds. To increase your limit, ask."}, {}, 10.0),
    "days": ({"message": "Try again in 99999999h."}, {}, 10.0**9),
    "none": ({"message": "Too many requests: try again in a while"}, {}, None),
    "not JSON": ("Slow down, try again in 1 minute", {}, 60.0),
    "a field of the error": ({"message": "Slow down.", "retry_after": 34}, {}, 34.0),
    "a field of its metadata": ({"message": "No.", "metadata": {"retry_after_seconds": "2.5"}}, {}, 2.5),
    "a field in milliseconds": ({"message": "No.", "retryAfterMs": 1500}, {}, 1.5),
    "a header in the error": ({"message": "No.", "metadata": {"headers": {"Retry-After": "9"}}}, {}, 9.0),
    "a date in the error": ({"message": "No.", "retry_after": "2026-11-22T10:00:00Z"}, {}, None),
    "no JSON, behind a router": ({"message": "No.", "metadata": {"raw": 'data: {"retryDelay": "34s"}'}}, {}, 34.0),
}


@pytest.mark.parametrize(("error", "headers", "seconds"), WAITS_IN_WORDS.values(), ids=list(WAITS_IN_WORDS))
@pytest.mark.parametrize("chance", [0.0, 1.0])
def test_the_time_that_an_error_asks_for_is_waited_at_least_and_none_is_shorter_than_ours(
    error: Any, headers: dict[str, str], seconds: float | None, chance: float
) -> None:
    said = {"error": error} if isinstance(error, dict) else error
    refused = RefusalReader(()).refused(429, said, headers)
    assert refused.retry_after_s == (seconds if seconds is None else pytest.approx(seconds))
    for attempt in (0, 1, 2):
        named = {"setting": "LLM_MODEL", "provider": refused.provider}
        waits = failure_of(refused, attempt=attempt, chance=chance, **named).delay_s  # type: ignore[arg-type]
        ours = 2**attempt * (0.25 + 0.25 * chance)
        assert waits == pytest.approx(max(ours, (seconds or 0) * (1 + chance / 8)))


def test_a_wait_beside_the_error_is_read() -> None:
    assert (
        RefusalReader(()).refused(429, {"error": {"message": "Slow down."}, "retry_after": 34}, {}).retry_after_s
        == 34.0
    )


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize("place", ["headers", "error"])
def test_the_end_of_a_rate_limit_is_waited_for_if_no_wait_is_named(status: int, place: str) -> None:
    told = {"x-ratelimit-remaining": "0", "x-ratelimit-reset": f"{NOW.timestamp() + A_DAY:.3f}".replace(".", "")}
    error = {"code": status, "message": "Rate limit exceeded: free-models-per-min."}
    said, headers = (error, told) if place == "headers" else ({**error, "metadata": {"headers": told}}, {})
    refused = RefusalReader(()).refused(status, {"error": said}, headers)
    is_asked = status == 429 or place == "error"  # many send the header with each of their answers
    assert refused.retry_after_s == (pytest.approx(A_DAY, abs=3600) if is_asked else None)
    if place == "headers":
        assert RefusalReader(()).refused(status, {"error": said}, {**told, "retry-after": "7"}).retry_after_s == 7.0


@pytest.mark.parametrize("headers", [{"Retry-After": "0"}, {"retry-after-ms": "1"}, {}], ids=["zero", "one", "none"])
async def test_waits_are_no_shorter_than_ours_and_spread(
    open_model: OpenModel, provider: Provider, headers: dict[str, str]
) -> None:
    model = await open_model(max_retries=1)
    model.chance = iter([0.1]).__next__
    provider.will(fails(429, headers=headers), says("42"))
    with capture_logs() as logs:
        assert (await model.reply(ASKED)).text == "42"
    assert [line["delay_s"] for line in logs if line["event"] == "model_retry"] == [pytest.approx(0.275)]


@pytest.mark.parametrize("way", WAYS)
async def test_a_time_beyond_the_deadline_is_not_waited_for(
    open_model: OpenModel, provider: Provider, way: str
) -> None:
    model = await open_model(max_retries=2, timeout_s=20)
    provider.will(way_of_saying(way, 429, {"message": "Please retry in 19.9s."}))  # the request took time, too
    model.chance = lambda: 1.0
    assert "19.9s" in (await failure(model, as_stream=way == "stream")).detail


@pytest.mark.parametrize("status", [301, 302, 307, 308])
async def test_a_redirect_is_refused(model: ChatModel, provider: Provider, status: int) -> None:
    provider.will(RedirectResponse(f"{provider.base_url}/elsewhere", status))
    error = await failure(model)
    assert "OPENAI_BASE_URL" in error.detail
    assert not error.retryable


@pytest.fixture
def little_memory() -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < 20_000_000
    finally:
        tracemalloc.stop()


def bomb(head: bytes = b"", status: int = 200, media_type: str = "application/json") -> Response:
    return Response(packed(200, head), status, headers=GZIP, media_type=media_type)


@pytest.mark.parametrize("kind", ["an answer", "a stream"])
@pytest.mark.usefixtures("little_memory")
async def test_a_small_body_that_unpacks_to_a_large_one_is_read_no_further_than_its_bound(
    open_model: OpenModel, provider: Provider, kind: str
) -> None:
    model = await open_model(max_retries=2)
    provider.will(bomb(b"data: ", media_type="text/event-stream") if kind == "a stream" else bomb())
    error = await failure(model, as_stream=kind == "a stream")
    assert (error.code, error.retryable) == ("model_unavailable", False)
    assert "LLM_MAX_ANSWER_BYTES=1000000" in error.detail


@pytest.mark.usefixtures("little_memory")
async def test_an_error_that_unpacks_to_a_large_one_is_still_told_by_its_status(
    model: ChatModel, provider: Provider
) -> None:
    provider.will(bomb(status=400))
    assert "HTTP 400." in (await failure(model)).detail


async def test_an_answer_up_to_the_bound_is_read_and_a_longer_one_is_not(
    open_model: OpenModel, provider: Provider
) -> None:
    model = await open_model(max_answer_bytes=20_000)
    overhead = len(says("").body)
    provider.will(says("x" * (20_000 - overhead)), says("x" * (20_001 - overhead)))
    assert len((await model.reply(ASKED)).text) == 20_000 - overhead
    assert "LLM_MAX_ANSWER_BYTES=20000" in (await failure(model)).detail


async def test_an_endless_stream_is_ended_at_the_bound(open_model: OpenModel, provider: Provider) -> None:
    model = await open_model(max_answer_bytes=20_000)

    async def words() -> AsyncIterator[str]:
        while True:
            yield f"data: {orjson.dumps(delta(content='on and on ')).decode()}\n\n"
            await asyncio.sleep(0)  # or the client, in the same thread, would never come to read

    async def endless(_: dict[str, Any]) -> Response:
        return StreamingResponse(words(), media_type="text/event-stream")

    provider.will(endless)
    assert "LLM_MAX_ANSWER_BYTES=20000" in (await failure(model, as_stream=True)).detail


# What is sent, what the endpoint says of it, and the name of what it is sent without.
SENT = {"temperature": 0.2, "max_tokens": 100, "reasoning_effort": "low", "parallel_tool_calls": False}
REFUSED = {
    "a parameter": ({"message": "Unsupported value", "param": "temperature"}, "temperature"),
    "in words": ({"message": "Unrecognized request argument supplied: reasoning_effort"}, "reasoning_effort"),
    "a choice": ({"message": "deepseek-reasoner does not support this tool_choice"}, "tool_choice"),
    "parallel": ({"message": "'parallel_tool_calls' is not supported with this model."}, "parallel_tool_calls"),
}
TOOL = ToolSpec(name="search", description="Searches.", input_schema={"type": "object"}, source="builtin")


@pytest.mark.parametrize(("error", "name"), REFUSED.values(), ids=list(REFUSED))
async def test_a_parameter_that_is_refused_is_left_out_from_then_on(
    open_model: OpenModel, provider: Provider, error: dict[str, Any], name: str
) -> None:
    model = await open_model(parameters=SENT)
    provider.will(fails(400, body=orjson.dumps({"error": error}).decode()), says("One."), says("Two."))
    with capture_logs() as logs:
        assert (await model.reply(ASKED, [TOOL], tool_choice="required")).text == "One."
        assert (await model.reply(ASKED, [TOOL], tool_choice="required")).text == "Two."
    [line] = logs
    assert (line["event"], line["parameter"], line["status"]) == ("model_parameter_left_out", name, 400)
    assert line["reason"] == error["message"]
    first, *others = provider.requests
    assert others == [{key: value for key, value in first.items() if key != name}] * 2


async def test_a_limit_that_is_refused_goes_under_its_other_name(open_model: OpenModel, provider: Provider) -> None:
    model = await open_model(parameters=SENT)
    said = "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead."
    provider.will(fails(400, body=orjson.dumps({"error": {"message": said}}).decode()), says("One."), says("Two."))
    for text in ("One.", "Two."):
        assert (await model.reply(ASKED)).text == text
        assert provider.requests[-1]["max_completion_tokens"] == 100
        assert "max_tokens" not in provider.requests[-1]


async def test_an_endpoint_without_stream_options_streams(model: ChatModel, provider: Provider) -> None:
    refused = fails(400, body='{"error": {"message": "Unknown field: stream_options"}}')
    provider.will(refused, says("One."), says("Two."))
    assert (await model.reply(ASKED, listener=SILENT)).text == "One."
    assert (await model.reply(ASKED, listener=SILENT)).text == "Two."
    assert ["stream_options" in request for request in provider.requests] == [True, False, False]


STREAMS_ONLY = {
    "Qwen": {"error": {"message": "This model only support stream mode, please enable the stream parameter."}},
    "Qwen thinking": {"error": {"message": "enable_thinking must be set to false for non-streaming calls"}},
    "Codex": {"detail": "Stream must be set to true"},
    "Fireworks": {"error": {"message": "Requests with max_tokens > 4096 must have stream=true"}},
}


@pytest.mark.parametrize("said", first(2, STREAMS_ONLY.values()), ids=list(STREAMS_ONLY))
async def test_an_endpoint_that_only_streams_is_asked_for_streams_from_then_on(
    model: ChatModel, provider: Provider, said: dict[str, Any]
) -> None:
    provider.will(fails(400, body=orjson.dumps(said).decode()), says("One."), says("Two."), says("A title"))
    for text in ("One.", "Two."):
        assert (await model.reply(ASKED)).text == text
    assert await model.complete("Find a title.", "What is it?") == "A title"
    streamed = {"stream": True, "stream_options": {"include_usage": True}}
    whole, *others = provider.requests
    assert "stream" not in whole
    assert others[:2] == [{**streamed, **whole}] * 2
    assert others[2]["stream"]


async def test_an_endpoint_that_takes_neither_a_stream_nor_a_whole_answer_is_not_asked_for_ever(
    open_model: OpenModel, provider: Provider
) -> None:
    async def refuse(body: dict[str, Any]) -> Response:
        said = '"No.", "param": "stream"' if "stream" in body else '"This model only support stream mode."'
        return fails(400, body=f'{{"error": {{"message": {said}}}}}')

    model = await open_model(timeout_s=20)
    provider.always("", refuse)
    for as_stream in (False, True):
        assert "only support stream mode" in (await failure(model, as_stream=as_stream)).detail
    assert len(provider.requests) <= 8


async def test_several_parameters_are_left_out_one_by_one_and_what_did_not_help_is_not_remembered(
    open_model: OpenModel, provider: Provider
) -> None:
    model = await open_model(parameters=SENT)
    refusals = [fails(400, body=f'{{"error": {{"message": "{name}?"}}}}') for name in ("temperature", "max_tokens")]
    provider.will(*refusals, fails(400, body='{"error": {"message": "Still no."}}'))
    assert "Still no." in (await failure(model)).detail
    provider.will(*refusals, says("Now."), says("And now."))
    assert (await model.reply(ASKED)).text == "Now."
    assert (await model.reply(ASKED)).text == "And now."
    assert provider.requests[0] == provider.requests[3]
    assert provider.requests[-1] == provider.requests[-2]


async def test_one_value_that_is_refused_leaves_others(open_model: OpenModel, provider: Provider) -> None:
    model = await open_model()
    provider.will(fails(400, body='{"error": {"message": "tool_choice \'required\' is not supported"}}'), says("One."))
    await model.reply(ASKED, [TOOL], tool_choice="required")
    assert ["tool_choice" in request for request in provider.requests] == [True, False]


@pytest.mark.sweep
async def test_the_errors_of_another_library_are_told_as_well(provider: Provider) -> None:
    foreign = ChatOpenAI(
        model="scripted", api_key=SecretStr("none"), base_url=provider.base_url, max_retries=0, use_responses_api=False
    )
    model = ChatModel(
        of_langchain(foreign, 20_000),
        name="x",
        settings=ModelSettings(llm_timeout_s=20, llm_max_retries=1),
        observe=unobserved,
        span=untraced,
        tariff=Tariff("x"),
    )
    provider.will(fails(500), says("42"), fails(401))
    assert (await model.reply(ASKED)).text == "42"
    assert "Check OPENAI_API_KEY" in (await failure(model)).detail


async def test_any_model_of_langchain_is_read_like_the_others() -> None:
    thought = {"type": "reasoning", "reasoning": "He wants the time."}
    called = [{"name": "functions.clock", "args": {"zone": "UTC"}, "id": "a"}]
    given = GenericFakeChatModel(
        messages=iter(
            [AIMessage([thought, {"type": "text", "text": "I look."}], tool_calls=called), AIMessage("Noon.")]
        )
    )
    named: Any = {"name": "x", "settings": ModelSettings(llm_timeout_s=20), "tariff": Tariff("x")}
    model = ChatModel(of_langchain(given, 20_000), observe=unobserved, span=untraced, **named)
    reply = await model.reply(ASKED)
    assert (reply.text, reply.reasoning, reply.estimated) == ("I look.", "He wants the time.", True)
    assert [(call.name, call.args) for call in reply.calls] == [("clock", {"zone": "UTC"})]
    heard: list[str] = []
    assert (await model.reply(ASKED, listener=Listener(heard.append, heard.clear))).text == "".join(heard) == "Noon."


def routed(raw_error: Any, *, code: int = 400, text: bool = True) -> dict[str, Any]:
    """The error of a provider as OpenRouter hands it on."""
    told = orjson.dumps(raw_error).decode() if text and not isinstance(raw_error, str) else raw_error
    metadata = {"raw": told, "provider_name": "DeepInfra"}
    return {"message": "Provider returned error", "code": code, "metadata": metadata}


# What a provider behind a router says, and what is told of it.
ROUTED = {
    "an object": (
        {"error": {"message": "No such voice.", "type": "invalid_request_error"}},
        "DeepInfra: No such voice.",
    ),
    "a text": ("upstream is asleep", "DeepInfra: upstream is asleep"),
    "a detail": ({"detail": "No such voice."}, "DeepInfra: No such voice."),
    "another object": ({"oops": 1}, "DeepInfra: Provider returned error"),
}


@pytest.mark.parametrize(("said", "told"), ROUTED.values(), ids=list(ROUTED))
@pytest.mark.parametrize("way", WAYS)
async def test_what_is_told_of_a_router_is_what_the_provider_behind_it_says(
    model: ChatModel, provider: Provider, way: str, said: Any, told: str
) -> None:
    for text in (True, False):
        provider.will(way_of_saying(way, 400, routed(said, text=text)))
        assert (await failure(model, as_stream=way == "stream")).detail.endswith(f"HTTP 400. It said: {told}")


@pytest.mark.parametrize("way", WAYS)
async def test_what_a_provider_behind_a_router_says_is_learned_from(
    open_model: OpenModel, provider: Provider, way: str
) -> None:
    model, listener = await open_model(parameters=SENT), SILENT if way == "stream" else None
    inner = {"error": {"message": "Unsupported value", "param": "temperature", "code": 400}}
    provider.will(way_of_saying(way, 502, routed(inner, code=502)), says("One."), says("Two."))
    for text in ("One.", "Two."):
        assert (await model.reply(ASKED, listener=listener)).text == text
    assert ["temperature" in request for request in provider.requests] == [True, False, False]


@pytest.mark.parametrize("way", WAYS)
async def test_a_call_that_the_endpoint_could_not_read_is_an_accident_worth_another_try(
    open_model: OpenModel, provider: Provider, way: str
) -> None:
    model, listener = await open_model(max_retries=1), SILENT if way == "stream" else None
    model.chance = lambda: 0.0
    error = {"message": "Failed to call a function. Please adjust your prompt.", "code": "tool_use_failed"}
    provider.will(way_of_saying(way, 400, {**error, "failed_generation": "<function=search>"}), says("42"))
    assert (await model.reply(ASKED, [TOOL], listener=listener)).text == "42"
    first, again = provider.requests
    assert again == first


# What an endpoint says of an answer that may take 100,000 tokens, and what the next ones may take.
MOST = {
    "OpenAI": ("max_tokens is too large: 100000. This model supports at most 16384 completion tokens, you set", 16384),
    "Groq": ("`max_tokens` must be less than or equal to `8192`, the maximum value for `max_tokens`", 8192),
    "DeepSeek": ("Invalid max_tokens value, the valid range of max_tokens is [1, 8192]", 8192),
    "Qwen": ("Range of max_tokens should be [1, 65536]", 65536),
    "a router's": ("max_tokens: 100000 > 8192, which is the maximum allowed number of output tokens", 8192),
    "Gemini": (
        "it has a maxOutputTokens value of 100000 but the range is from 1 (inclusive) to 65537 (exclusive)",
        65536,
    ),
    "vLLM": (
        "max_tokens is too large: 100000. This model's maximum context length is 8192 tokens and yours has 2043",
        2048,
    ),
    "older vLLM": (
        "This model's maximum context length is 8192 tokens. You requested 102043 tokens (100000 in the completion)",
        2048,
    ),
}


@pytest.mark.parametrize(("said", "most"), MOST.values(), ids=list(MOST))
@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
async def test_how_long_an_answer_may_be_is_learned_as_a_number(
    open_model: OpenModel, provider: Provider, said: str, most: int, name: str
) -> None:
    model = await open_model(parameters={name: 100_000, "temperature": 0.2})
    provider.will(way_of_saying("status", 400, {"message": said}), says("One."), says("Two."))
    for text in ("One.", "Two."):
        assert (await model.reply(ASKED, listener=SILENT if text == "One." else None)).text == text
    asked, *others = provider.requests
    assert [request[name] for request in others] == [most, most]
    assert [request["messages"] for request in others] == [asked["messages"]] * 2
    assert all(request["temperature"] == 0.2 for request in others)


async def test_a_number_that_does_not_help_is_not_kept_and_ends_the_asking(
    open_model: OpenModel, provider: Provider
) -> None:
    model = await open_model(parameters={"max_tokens": 100_000})
    wrong = [
        fails(400, body=f'{{"error": {{"message": "max_tokens: 9 > {most}, too much"}}}}') for most in (9, 8, 7, 6)
    ]
    provider.will(*wrong)
    assert "9 > 6" in (await failure(model)).detail
    provider.will(says("42"))
    await model.reply(ASKED)
    assert [request["max_tokens"] for request in provider.requests] == [100_000, 9, 8, 7, 100_000]


async def test_extras_go_into_the_objects_of_a_request_and_leave_the_rest_of_them(
    open_model: OpenModel, provider: Provider
) -> None:
    extra = {"stream_options": {"include_obfuscation": False}, "response_format": {"json_schema": {"strict": False}}}
    model = await open_model(parameters=extra)
    provider.will(says("{}"))
    await model.reply(ASKED, listener=SILENT, schema=READING)
    [sent] = provider.requests
    assert sent["stream_options"] == {"include_usage": True, "include_obfuscation": False}
    assert sent["response_format"]["type"] == "json_schema"
    assert sent["response_format"]["json_schema"] == {**READING, "strict": False}
