"""What a turn may do at most: rounds, calls of tools, calls at once, tokens. An agent may have bounds of its own."""

import asyncio
from typing import Any

import orjson
import pytest
from starlette.responses import Response

from segue import Agent, tool
from segue.agent.prompts import TEXTS
from segue.config import Settings
from tests.support.patience import PATIENCE_S
from tests.support.provider import Provider, calls, raw, says
from tests.support.service import Client, running
from tests.support.sweeps import first
from tests.support.uploads import uploaded


class Meter:
    """A tool that counts what it is called with. With a gate, calls wait for it once they are noted."""

    def __init__(self, gate: asyncio.Event | None = None) -> None:
        self.read: list[int] = []
        self.at_once = 0
        self.entered = asyncio.Condition()
        self._inside = 0

        @tool(effect="read_only")
        async def read_meter(number: int) -> str:
            """Reads a meter."""
            async with self.entered:
                self.read.append(number)
                self._inside += 1
                self.at_once = max(self.at_once, self._inside)
                self.entered.notify_all()
            if gate is not None:
                await gate.wait()
            self._inside -= 1
            return f"meter {number}"

        self.tool = read_meter


def reads(*numbers: int) -> Response:
    return calls(*(("read_meter", {"number": number}) for number in numbers))


def of_tokens(count: int, reply: Response) -> Response:
    """The reply, of a request and an answer that took so many tokens."""
    usage = {"prompt_tokens": count - 10, "completion_tokens": 10, "total_tokens": count}
    return raw({**orjson.loads(reply.body), "usage": usage})


async def ask(client: Client, **session: Any) -> dict[str, Any]:
    return await client.chat(await client.new_session(**session), "Read the meters")


def had_last_words(provider: Provider) -> bool:
    """Whether the last request, and no other, asked for an answer with what there is."""
    last = [TEXTS["out_of_rounds"] in orjson.dumps(request).decode() for request in provider.requests]
    return last.index(True) == len(last) - 1 and provider.requests[-1]["tool_choice"] == "none"


async def test_a_turn_of_26_rounds_completes_with_the_models_own_answer(settings: Settings, provider: Provider) -> None:
    meter = Meter()
    provider.will(*(reads(number) for number in range(26)), says("All 26 are read."))
    async with running(settings, tools=[meter.tool]) as client:
        answer = await ask(client)
    assert (answer["message"]["content"], meter.read) == ("All 26 are read.", list(range(26)))
    assert answer["usage"]["llm_calls"] == 27


@pytest.mark.in_turns
@pytest.mark.parametrize(
    ("service", "agent"),
    [
        ({"max_rounds": 3}, Agent()),
        ({"max_rounds": 2}, Agent(max_rounds=3)),
        ({"max_rounds": 4}, Agent(max_rounds=3)),
    ],
    ids=["the service's", "an agent's wider", "an agent's narrower"],
)
async def test_rounds_are_bounded_and_then_the_turn_has_last_words(
    service: dict[str, int], agent: Agent, settings: Settings, provider: Provider
) -> None:
    meter = Meter()
    provider.will(*(reads(number) for number in range(3)), says("Three are read."))
    async with running(settings.model_copy(update=service), tools=[meter.tool], agents={"clerk": agent}) as client:
        answer = await ask(client, agent="clerk")
    assert (answer["message"]["content"], meter.read) == ("Three are read.", [0, 1, 2])
    assert had_last_words(provider)


@pytest.mark.in_turns(2)
@pytest.mark.parametrize(
    ("service", "agent"),
    [({"max_tool_calls": 3}, Agent()), ({"max_tool_calls": 2}, Agent(max_tool_calls=3))],
    ids=["the service's", "an agent's"],
)
@pytest.mark.parametrize("replies", first(2, [[(0, 1, 2, 3, 4)], [(0,), (1,), (2,)], [(0, 1), (2, 3)]]), ids=str)
async def test_so_many_calls_run_in_a_turn_and_no_more_though_a_reply_has_more(
    replies: list[tuple[int, ...]], service: dict[str, int], agent: Agent, settings: Settings, provider: Provider
) -> None:
    meter = Meter()
    provider.will(*(reads(*numbers) for numbers in replies), says("Three are read."))
    async with running(settings.model_copy(update=service), tools=[meter.tool], agents={"clerk": agent}) as client:
        answer = await ask(client, agent="clerk")
    assert [call["args"]["number"] for call in answer["tool_calls"]] == sorted(meter.read) == [0, 1, 2]
    assert had_last_words(provider)


async def test_the_files_of_the_message_take_none_of_the_calls_that_a_turn_may_make(
    settings: Settings, provider: Provider
) -> None:
    meter = Meter()
    provider.will(reads(0, 1, 2), says("Two are read."))
    async with running(settings.model_copy(update={"max_tool_calls": 2}), tools=[meter.tool]) as client:
        session = await client.new_session()
        files = [await uploaded(client, session, text, "notes.txt") for text in (b"one", b"two")]
        await client.chat(session, "Read the meters", attachments=files)
    assert meter.read == [0, 1]
    assert had_last_words(provider)


@pytest.mark.in_turns(1)
@pytest.mark.parametrize(
    ("service", "agent"),
    [({"max_parallel_calls": 2}, Agent()), ({}, Agent(max_parallel_calls=2))],
    ids=["the service's", "an agent's"],
)
async def test_so_many_calls_of_a_reply_run_at_once_and_the_others_after_them(
    service: dict[str, int], agent: Agent, settings: Settings, provider: Provider
) -> None:
    gate = asyncio.Event()
    meter = Meter(gate)
    provider.will(reads(*range(6)), says("Six are read."))
    async with running(settings.model_copy(update=service), tools=[meter.tool], agents={"clerk": agent}) as client:
        asked = asyncio.create_task(ask(client, agent="clerk"))
        async with meter.entered, asyncio.timeout(PATIENCE_S):
            await meter.entered.wait_for(lambda: len(meter.read) >= 2)
        gate.set()
        await asked
    assert (sorted(meter.read), meter.at_once) == (list(range(6)), 2)


@pytest.mark.in_turns(1)
@pytest.mark.parametrize(("tokens", "rounds"), [(15_000, 50), (100_000, 8), (240_000, 3)])
async def test_tokens_are_bounded_with_room_for_last_words_however_long_requests_are(
    tokens: int, rounds: int, settings: Settings, provider: Provider
) -> None:
    meter = Meter()
    read = [of_tokens(tokens, reads(number)) for number in range(rounds)]
    provider.will(*read, of_tokens(tokens, says("That is all.")))
    async with running(settings, tools=[meter.tool]) as client:
        answer = await ask(client)
    assert (answer["message"]["content"], len(meter.read)) == ("That is all.", rounds)
    assert had_last_words(provider)


async def test_the_bounds_of_an_agent_are_shown_as_they_hold(settings: Settings) -> None:
    agents = {"clerk": Agent(max_rounds=3, max_tool_calls=4, confirm_words="never"), "plain": Agent()}
    async with running(settings.model_copy(update={"max_parallel_calls": 2}), agents=agents) as client:
        listed = {each["id"]: each for each in (await client.get("/agents"))["items"]}
    shown = {
        name: [listed[name][f"max_{what}"] for what in ("rounds", "tool_calls", "parallel_calls")] for name in agents
    }
    assert shown == {"clerk": [3, 4, 2], "plain": [50, 100, 2]}
    assert [listed[name]["confirm_words"] for name in agents] == ["never", "shown"]
