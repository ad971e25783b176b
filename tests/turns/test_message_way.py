"""What a message passes on its way to its answer: few modules, and nothing that has nothing to do for it."""

from redis.asyncio import Redis

from segue import tool
from segue.config import Settings
from tests.support.message_way import modules, way_of, written
from tests.support.provider import Provider, calls, says
from tests.support.service import Client, running

PLAIN = 70  # modules
WITH_A_CALL = 83
NEEDLESS = ("main.py", "api/doors/", "history/", "turns/jobs/", "mcp/", "tools/results.py")
TIMES = 20


@tool(effect="read_only")
async def length_of(word: str) -> int:
    """Counts the letters of a word."""
    return len(word)


async def test_a_plain_message_passes_few_modules_and_none_that_it_does_not_need(
    client: Client, provider: Provider
) -> None:
    session = await client.new_session()

    async def send() -> None:
        provider.will(says("Hello to you."))
        await client.chat(session, "What a lovely day.")

    way = await way_of(send)
    assert len(modules(way)) <= PLAIN, written(way)
    assert [module for module in modules(way) if module.startswith(NEEDLESS)] == []
    assert ("tools/tool_states.py", "GlobalToolState.load") not in way


async def test_a_message_with_a_call_of_a_tool_passes_few_more(settings: Settings, provider: Provider) -> None:
    async with running(settings, tools=[length_of]) as client:
        session = await client.new_session()

        async def send() -> None:
            provider.will(calls(("length_of", {"word": "three"})), says("It has 5 letters."))
            answer = await client.chat(session, "How long is the word three?")
            assert [call["status"] for call in answer["tool_calls"]] == ["succeeded"]

        way = await way_of(send)
    assert len(modules(way)) <= WITH_A_CALL, written(way)


async def test_plain_messages_ask_redis_for_nothing_but_the_memory_that_the_one_before_has_left(
    settings: Settings, redis_url: str, provider: Provider
) -> None:
    async with Redis.from_url(redis_url, protocol=2) as redis:
        await redis.config_resetstat()
        async with running(settings) as client:
            session = await client.new_session()
            for _ in range(TIMES):
                provider.will(says("Hello to you."))
                await client.chat(session, "What a lovely day.")
        commands = {
            name.removeprefix("cmdstat_"): told["calls"] for name, told in (await redis.info("commandstats")).items()
        }
    assert (commands["set"], commands["get"]) == (TIMES, TIMES - 1)
    assert commands.get("hgetall", 0) < TIMES  # at intervals, for all messages
