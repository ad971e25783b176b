"""An answer that broke off after its provider had told what it took until then."""

import asyncio

from segue.config import Settings
from tests.support.provider import Provider, delta, sse
from tests.support.service import running
from tests.support.streams import streamed


async def test_an_answer_that_fell_silent_is_charged_what_the_endpoint_had_counted_with_each_word(
    settings: Settings, provider: Provider
) -> None:
    thought = {"completion_tokens_details": {"reasoning_tokens": 9000}}
    counted = [{"prompt_tokens": 5000, "completion_tokens": 9000 + number, **thought} for number in range(1, 6)]
    provider.will(sse(*({**delta(content="word "), "usage": each} for each in counted), never := asyncio.Event()))
    async with running(settings.model_copy(update={"llm_idle_timeout_s": 0.3, "llm_max_retries": 0})) as client:
        session = await client.new_session()
        await streamed(client, session, "think")
        [silent] = (await client.get("/usage", group="session"))["items"]
        never.set()
    assert (silent["input_tokens"], silent["output_tokens"], silent["reasoning_tokens"]) == (5000, 9005, 9000)
