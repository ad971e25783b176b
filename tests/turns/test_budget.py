"""What a request to the model takes at most, whatever was said and whatever tools gave."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from segue.config import Settings
from segue.memory.history_window import estimate
from tests.support.provider import Provider, says
from tests.support.results import ran, use_toolbox
from tests.support.service import Client, running

TOOLS = 1900  # tokens that the tools take
CHARACTERS_A_TOKEN = {"zh": 1, "ar": 2.5, "json": 3}
SAID = {
    "zh": "请把十一月的发票都找出来，然后按金额从大到小排列，最后告诉我总数是多少。" * 12,
    "ar": "ابحث عن كل فواتير نوفمبر ثم رتبها حسب المبلغ من الأكبر إلى الأصغر وأخبرني بالمجموع." * 12,
    "json": '{"invoice":"inv-00a1f3","amount":1234.56,"lines":[{"sku":"k-9981","n":3}]}' * 12,
}


@pytest.fixture
def settings(settings: Settings) -> Settings:
    use_toolbox(settings)
    return settings


@pytest.fixture
async def client(settings: Settings) -> AsyncIterator[Client]:
    async with running(settings) as served:
        yield served


def written(messages: list[dict[str, Any]]) -> str:
    """What was said in them, and what the calls in them are called with."""
    calls = [call["function"]["arguments"] for message in messages for call in message.get("tool_calls", [])]
    return "".join([*(message["content"] or "" for message in messages), *calls])


@pytest.mark.sweep
async def test_ten_results_of_fifty_kilobytes_leave_ten_references_in_the_prompts_after(
    client: Client, provider: Provider
) -> None:
    session = await client.new_session()
    found = await ran(client, provider, session, *(("big", {"n_bytes": 50_000 + number}) for number in range(10)))
    for _ in range(3):
        provider.will(says("A lot of x."))
        await client.chat(session, "What was it?")
        sent = written(provider.messages())
        assert len(sent) < 15_000
        assert all(call["tool_call_id"] in sent for call in found)


@pytest.mark.in_turns(1)
@pytest.mark.parametrize("script", SAID)
async def test_a_long_conversation_holds_the_budget_in_every_script(
    script: str, settings: Settings, provider: Provider
) -> None:
    limits = {"context_token_budget": 2500 + TOOLS, "planning": "never"}
    async with running(settings.model_copy(update=limits)) as client:
        session = await client.new_session()
        for number in range(8):
            provider.will(says(f"{number} {SAID[script]}"))
            await client.chat(session, f"{number} {SAID[script]}")
    for number, request in enumerate(provider.requests):
        sent = written(request["messages"])
        assert estimate(sent) <= 2600
        assert len(sent) <= 2500 * CHARACTERS_A_TOKEN[script] + len(provider.messages(number)[0]["content"])
        assert provider.messages(number)[-1]["content"] == f"{number} {SAID[script]}"
        assert number == 0 or len(request["messages"]) >= 4


async def test_a_message_larger_than_the_budget_goes_whole_and_is_shortened_afterwards(
    settings: Settings, provider: Provider
) -> None:
    async with running(settings.model_copy(update={"context_token_budget": 3000 + TOOLS})) as client:
        session = await client.new_session()
        long = f"begin {'很长的信息' * 6000} end"
        provider.will(says("That is long."), says("From begin to end."))
        await client.chat(session, long)
        await client.chat(session, "What was it?")
        assert (await client.messages(session))[0]["content"] == long
    assert provider.messages(0)[-1]["content"] == long
    [_, shortened, answer, question] = provider.messages(1)
    assert shortened["content"].startswith("begin 很长")
    assert shortened["content"].endswith("end")
    assert len(shortened["content"]) < 2100
    assert (answer["content"], question["content"]) == ("That is long.", "What was it?")


@pytest.mark.sweep
async def test_a_session_without_room_for_its_history_still_sees_its_results(
    settings: Settings, provider: Provider
) -> None:
    async with running(settings.model_copy(update={"context_token_budget": 2000 + TOOLS})) as client:
        session = await client.new_session()
        [call] = await ran(client, provider, session, ("echo", {"id": "eml-1a2b3c"}))
        provider.will(says("done"))
        await client.chat(session, "很长的信息" * 400)
    sent = written(provider.messages())
    assert call["tool_call_id"] in sent
    assert "eml-1a2b3c" in sent
