"""The settings of the model, in what its endpoint is sent and in what is told of it."""

from pydantic import SecretStr
from structlog.testing import capture_logs

from segue.config import Settings
from segue.models.open_models import provider_options
from tests.support.provider import Provider, fails, says
from tests.support.service import running

KEPT = "key-of-mine-7341"


async def test_what_is_set_goes_into_every_request_and_the_extras_win(settings: Settings, provider: Provider) -> None:
    given = {"llm_temperature": 0.2, "llm_max_output_tokens": 500, "llm_reasoning_effort": "low"}
    extras = {"llm_extra_body": {"top_k": 20, "temperature": 0.7}, "llm_extra_headers": {"X-Key": SecretStr(KEPT)}}
    provider.will(says("42"), says("And 43"))
    async with running(settings.model_copy(update=given | extras)) as client:
        session = await client.new_session()
        await client.send(session, "What is it?")
        await client.send(session, "And then?", stream=True)
    sent = {"temperature": 0.7, "max_tokens": 500, "reasoning_effort": "low", "top_k": 20}
    for body, headers in zip(provider.requests, provider.headers, strict=True):
        assert body.items() >= sent.items()
        assert headers["x-key"] == KEPT


async def test_what_is_not_set_is_not_sent(settings: Settings, provider: Provider) -> None:
    provider.will(says("42"))
    async with running(settings) as client:
        await client.send(await client.new_session(), "What is it?")
    assert provider.requests[0].keys() == {"model", "messages", "tools"}


async def test_a_header_that_the_provider_repeats_is_not_told(settings: Settings, provider: Provider) -> None:
    said = f'{{"error": {{"message": "No account has {KEPT}."}}}}'
    provider.will(fails(401, body=said))
    extra = {"llm_extra_headers": {"Authorization": SecretStr(f"Token {KEPT}")}}
    with capture_logs() as logs:
        async with running(settings.model_copy(update=extra)) as client:
            problem = (await client.send(await client.new_session(), "What is it?")).text
    assert "No account has [redacted]." in problem
    assert KEPT not in problem + str(logs)


def test_extras_go_to_the_provider_of_the_main_model_only(settings: Settings) -> None:
    extras = {"llm_extra_body": {"top_k": 20}, "llm_extra_headers": {"X-Key": SecretStr(KEPT)}}
    given = settings.model_copy(update=extras)
    for name, body, headers in (
        ("openai:another", {"top_k": 20}, {"X-Key": KEPT}),
        ("anthropic:another", {}, {}),
    ):
        options = provider_options(given, name)
        assert (options.extra_body, options.extra_headers) == (body, headers)
