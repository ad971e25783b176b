"""OpenAI's two APIs: which is asked, the other if one refuses, Azure's classic address, what only one of them has."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

import orjson
import pytest
from langchain_core.messages import HumanMessage, SystemMessage
from pydantic import SecretStr
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from segue import __version__
from segue.config import Settings
from segue.domain.agent import ProviderApi
from segue.domain.errors import AppError
from segue.domain.telemetry import unobserved, untraced
from segue.models.chat_model import ChatModel
from segue.models.model_settings import ModelSettings
from segue.models.providers.endpoint import ProviderOptions
from segue.models.providers.openai import CHAT, NO_EFFORT, RESPONSES, OpenAIModel
from segue.models.reply import PLAN
from segue.models.streamed_answer import Listener
from segue.users.prices import Tariff
from tests.support import responses_api
from tests.support.native_api import answers
from tests.support.provider import fails, says
from tests.support.server import serving
from tests.support.service import running

KEY = SecretStr("sk-canary-of-two-apis")
ASKED = [SystemMessage("Answer."), HumanMessage("What is it?")]
# What OpenAI has said of the gpt-5 family since 5.4.
ONLY_THERE = "Function tools with reasoning_effort are not supported for gpt-5.6 in /v1/chat/completions. "
WORDINGS = [
    ONLY_THERE + "Please use /v1/responses instead.",
    ONLY_THERE + "To use function tools, use /v1/responses or set reasoning_effort to 'none'.",
]
REFUSED = {"param": "reasoning_effort", "type": "invalid_request_error", "code": None}
USE_THE_OTHER = answers(400, {"error": {"message": WORDINGS[1], **REFUSED}})
NO_CACHE_KEY = answers(
    400, {"error": {"message": "Unknown parameter: 'prompt_cache_key'.", "code": "unknown_parameter"}}
)
UNVERIFIED = "Your organization must be verified to stream this model. Please go to: https://platform.openai.com/"
NO_STREAM = answers(400, {"error": {"message": UNVERIFIED, "param": "stream", "code": "unsupported_value"}})
ANSWERED = answers(200, responses_api.whole(responses_api.says("42")))


@dataclass(slots=True)
class Endpoint:
    """Both APIs at one address. `asked` is which was asked, with what."""

    url: str = ""
    script: list[tuple[str, Response]] = field(default_factory=list)
    asked: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)

    def will(self, *replies: tuple[str, Response]) -> None:
        self.script += replies

    async def answer(self, request: Request) -> Response:
        body = orjson.loads(await request.body())
        api = RESPONSES if request.url.path.endswith("/responses") else CHAT
        self.asked.append((api, body))
        self.requests.append(request)
        expected, reply = self.script.pop(0)
        return reply if api == expected else Response("not this one", 418)


@pytest.fixture
async def endpoint() -> AsyncIterator[Endpoint]:
    endpoint = Endpoint()
    paths = ("/v1/chat/completions", "/v1/responses", "/openai/deployments/mine/chat/completions")
    async with serving(Starlette(routes=[Route(path, endpoint.answer, methods=["POST"]) for path in paths])) as url:
        endpoint.url = url
        yield endpoint
    assert not endpoint.script, "scripted answers were not used"


class Opened(AsyncExitStack):
    def options(
        self, endpoint: Endpoint, path: str = "/v1", *, model: str = "gpt-5.6", api: ProviderApi = "auto", **more: Any
    ) -> ProviderOptions:
        base_url = f"{endpoint.url}{path}"
        return ProviderOptions(model, KEY, base_url, timeout_s=20, max_answer_bytes=20_000, api=api, **more)

    def model(self, options: ProviderOptions, *ways: str) -> ChatModel:
        """A model that has these ways to ask, or those of its options."""
        model = OpenAIModel(self, options)
        model.names = ways or model.names
        settings = ModelSettings(llm_timeout_s=20, llm_max_retries=0)
        named: Any = {"name": "gpt-5.6", "settings": settings, "tariff": Tariff("gpt-5.6")}
        return ChatModel(model, observe=unobserved, span=untraced, **named)


@pytest.fixture
async def opened() -> AsyncIterator[Opened]:
    async with Opened() as stack:
        yield stack


async def failure(model: ChatModel) -> AppError:
    with pytest.raises(AppError) as failed:
        await model.reply(ASKED)
    return failed.value


@pytest.mark.parametrize("wording", WORDINGS)
@pytest.mark.parametrize("effort", [None, "low"])
async def test_the_other_api_is_asked_if_one_says_so_and_from_then_on(
    endpoint: Endpoint, opened: Opened, wording: str, effort: str | None
) -> None:
    endpoint.will((CHAT, answers(400, {"error": {"message": wording, **REFUSED}})), (RESPONSES, ANSWERED))
    endpoint.will((RESPONSES, ANSWERED))
    model = opened.model(opened.options(endpoint, reasoning_effort=effort))
    for _ in range(2):
        assert (await model.reply(ASKED)).text == "42"
    told = [body.get("reasoning") for api, body in endpoint.asked if api == RESPONSES]
    assert told == [{"effort": effort} if effort else None] * 2


async def test_without_the_other_api_it_does_not_reason_and_that_is_remembered(
    endpoint: Endpoint, opened: Opened
) -> None:
    endpoint.will((CHAT, USE_THE_OTHER), (RESPONSES, fails(404)), (CHAT, says("42")), (CHAT, says("43")))
    model = opened.model(opened.options(endpoint))
    assert [(await model.reply(ASKED)).text for _ in range(2)] == ["42", "43"]
    efforts = [body.get("reasoning_effort") for api, body in endpoint.asked if api == CHAT]
    assert efforts == [None, "none", "none"]


async def test_if_no_way_is_taken_the_first_refusal_is_told(endpoint: Endpoint, opened: Opened) -> None:
    endpoint.will((CHAT, USE_THE_OTHER), (RESPONSES, fails(404)), (CHAT, fails(400)))
    error = await failure(opened.model(opened.options(endpoint)))
    assert WORDINGS[1] in error.detail


@pytest.mark.parametrize("status", [404, 405])
async def test_a_proxy_without_the_responses_api_is_asked_for_completions(
    endpoint: Endpoint, opened: Opened, status: int
) -> None:
    endpoint.will((RESPONSES, fails(status)), (CHAT, says("42")), (CHAT, says("43")))
    model = opened.model(opened.options(endpoint), RESPONSES, CHAT, NO_EFFORT)
    assert [(await model.reply(ASKED)).text for _ in range(2)] == ["42", "43"]


async def test_a_wrong_key_or_model_is_told_at_once(endpoint: Endpoint, opened: Opened) -> None:
    missing = fails(404, body='{"error": {"message": "no such model", "code": "model_not_found"}}')
    endpoint.will((RESPONSES, fails(401)), (RESPONSES, missing))
    model = opened.model(opened.options(endpoint), RESPONSES, CHAT, NO_EFFORT)
    assert "Check OPENAI_API_KEY." in (await failure(model)).detail
    assert "Check LLM_MODEL." in (await failure(model)).detail


async def test_an_api_that_is_set_is_the_only_one_asked(endpoint: Endpoint, opened: Opened) -> None:
    endpoint.will((CHAT, USE_THE_OTHER))
    error = await failure(opened.model(opened.options(endpoint, api="chat")))
    assert "set LLM_API=auto" in error.detail


async def test_a_stream_is_asked_for_in_the_other_way_before_its_first_word(endpoint: Endpoint, opened: Opened) -> None:
    given = responses_api.says("Forty", "-two")
    events = Response("".join(responses_api.api().events(given)), media_type="text/event-stream")
    endpoint.will((CHAT, USE_THE_OTHER), (RESPONSES, events))
    heard: list[str] = []
    reply = await opened.model(opened.options(endpoint)).reply(ASKED, listener=Listener(heard.append, lambda: None))
    assert reply.text == "".join(heard) == "Forty-two"


@pytest.mark.parametrize(("api", "reply"), [(CHAT, says("42")), (RESPONSES, ANSWERED)])
async def test_an_account_that_may_not_stream_is_given_whole_answers_and_hears_all_their_words(
    endpoint: Endpoint, opened: Opened, api: ProviderApi, reply: Response
) -> None:
    endpoint.will((api, NO_STREAM), (api, reply), (api, reply))
    model = opened.model(opened.options(endpoint, api=api))
    for _ in range(2):
        heard: list[str] = []
        given = await model.reply(ASKED, listener=Listener(heard.append, lambda: None))
        assert given.text == "".join(heard) == "42"
    assert [bool(body.get("stream")) for _, body in endpoint.asked] == [True, False, False]
    assert not any("stream_options" in body for _, body in endpoint.asked[1:])


@pytest.mark.parametrize(
    ("base_url", "first"),
    [
        (None, RESPONSES),
        ("https://api.openai.com/v1", RESPONSES),
        ("https://openrouter.ai/api/v1", CHAT),
        ("https://x.openai.azure.com/openai/deployments/mine?api-version=2024-10-21", CHAT),
    ],
)
def test_the_responses_api_is_asked_first_where_openai_itself_answers(base_url: str | None, first: str) -> None:
    options = ProviderOptions("gpt-5.6", KEY, base_url, timeout_s=20, max_answer_bytes=20_000)
    assert OpenAIModel(AsyncExitStack(), options).names[0] == first


@pytest.mark.in_turns(1)
@pytest.mark.parametrize(("api", "reply"), [(CHAT, says("42")), (RESPONSES, ANSWERED)])
async def test_a_session_has_a_cache_key_of_its_own_until_one_is_refused(
    settings: Settings, endpoint: Endpoint, opened: Opened, api: ProviderApi, reply: Response
) -> None:
    endpoint.will((api, reply), (api, reply), (api, NO_CACHE_KEY), (api, reply), (api, reply))
    model = OpenAIModel(opened, opened.options(endpoint, api=api))
    model.takes_cache_keys = True
    async with running(settings, model=model) as client:
        sessions = [await client.new_session() for _ in range(4)]
        for session in sessions:
            assert (await client.chat(session, "What is it?"))["message"]["content"] == "42"
    first, second, third, _ = sessions
    assert [body.get("prompt_cache_key") for _, body in endpoint.asked] == [first, second, third, None, None]


async def test_azures_classic_address_keeps_its_query_and_takes_the_key_in_its_own_header(
    endpoint: Endpoint, opened: Opened
) -> None:
    endpoint.will((CHAT, says("42")))
    options = opened.options(endpoint, "/openai/deployments/mine?api-version=2024-10-21")
    assert (await opened.model(options).reply(ASKED)).text == "42"
    [request] = endpoint.requests
    assert request.url.path == "/openai/deployments/mine/chat/completions"
    assert dict(request.query_params) == {"api-version": "2024-10-21"}
    assert request.headers["api-key"] == KEY.get_secret_value()
    assert "authorization" not in request.headers


async def test_a_header_of_the_settings_takes_the_place_of_ours_however_it_is_written(
    endpoint: Endpoint, opened: Opened
) -> None:
    endpoint.will((CHAT, says("42")))
    options = opened.options(endpoint, api="chat", extra_headers={"authorization": "Token abc", "x-title": "Segue"})
    await opened.model(options).reply(ASKED)
    [request] = endpoint.requests
    assert request.headers.getlist("authorization") == ["Token abc"]
    assert request.headers["x-title"] == "Segue"
    assert request.headers["user-agent"] == f"segue/{__version__}"


@pytest.mark.parametrize("clients", [None, {"top_p": 0.5}], ids=["ours", "beside a client's"])
@pytest.mark.parametrize("name", ["include", "temperature"])
async def test_a_parameter_the_responses_api_refuses_is_left_out_from_then_on(
    endpoint: Endpoint, opened: Opened, name: str, clients: dict[str, float] | None
) -> None:
    refusal = answers(400, {"error": {"message": "It is not supported with this model.", "param": name}})
    endpoint.will((RESPONSES, refusal), (RESPONSES, ANSWERED), (RESPONSES, ANSWERED))
    model = opened.model(opened.options(endpoint, model="gpt-4.1", api="responses", temperature=0.5))
    for _ in range(2):
        assert (await model.reply(ASKED, sampling=clients)).text == "42"
    assert [name in body for _, body in endpoint.asked] == [True, False, False]


@pytest.mark.parametrize(
    ("reply", "told"),
    [
        (responses_api.FAILED, f"It said: {responses_api.OVERLOADED}"),
        (responses_api.FAILS_IN_STREAM, f"It said: {responses_api.OVERLOADED}"),
        (answers(200, {"error": {"code": "server_error", "message": "Overloaded"}}), "It said: Overloaded"),
    ],
    ids=["a failed response", "a failed stream", "an error"],
)
async def test_what_is_no_answer_of_the_responses_api_is_told(
    endpoint: Endpoint, opened: Opened, reply: Response, told: str
) -> None:
    endpoint.will((RESPONSES, reply))
    model = opened.model(opened.options(endpoint, api="responses"))
    with pytest.raises(AppError) as failed:
        await model.reply(ASKED, listener=Listener(lambda _: None, lambda: None))
    assert told in failed.value.detail


@pytest.mark.parametrize("as_stream", [False, True], ids=["json", "stream"])
async def test_a_refusal_of_the_responses_api_is_the_answer(
    endpoint: Endpoint, opened: Opened, *, as_stream: bool
) -> None:
    given = responses_api.refuses("I won't say.")
    events = Response("".join(responses_api.api().events(given)), media_type="text/event-stream")
    endpoint.will((RESPONSES, events if as_stream else answers(200, responses_api.whole(given))))
    listener = Listener(lambda _: None, lambda: None) if as_stream else None
    reply = await opened.model(opened.options(endpoint, api="responses")).reply(ASKED, listener=listener)
    assert reply.text == "I won't say."


async def test_a_schema_of_the_answer_goes_to_either_api_and_is_left_out_once_refused(
    endpoint: Endpoint, opened: Opened
) -> None:
    refusal = answers(400, {"error": {"message": "text.format is not supported with this model.", "param": "text"}})
    endpoint.will((CHAT, USE_THE_OTHER), (RESPONSES, ANSWERED), (RESPONSES, refusal))
    endpoint.will((RESPONSES, ANSWERED), (RESPONSES, ANSWERED))
    model = opened.model(opened.options(endpoint))
    for _ in range(3):
        await model.reply(ASKED, schema=PLAN)
    [(_, chat), (_, first), *_] = endpoint.asked
    assert chat["response_format"]["json_schema"] == PLAN
    assert first["text"]["format"] == {"type": "json_schema", **PLAN}
    assert ["text" in body for api, body in endpoint.asked if api == RESPONSES] == [True, True, False, False]
