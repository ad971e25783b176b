"""What the model sees of earlier results: small ones whole for a while, references always, all of it bounded."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import orjson
import pytest
from redis.asyncio import Redis

from segue.config import Settings
from segue.memory.history_window import estimate
from segue.models.normal_form import short_id
from tests.support.provider import Provider, says
from tests.support.results import ran, use_toolbox
from tests.support.service import Client, running


@pytest.fixture
def settings(settings: Settings) -> Settings:
    use_toolbox(settings)
    return settings


@pytest.fixture
async def client(settings: Settings) -> AsyncIterator[Client]:
    async with running(settings) as served:
        yield served


async def shown(client: Client, provider: Provider, session: str, *, tool_results: bool = True) -> list[Any]:
    """The results in the window of a turn that calls nothing, parsed where they are JSON."""
    provider.will(says("done"))
    await client.chat(session, "What was it?")
    assert bool(provider.messages(role="tool")) == tool_results
    contents = [message["content"] for message in provider.messages(role="tool")]
    return [orjson.loads(content) if content.startswith("{") else content for content in contents]


def earlier(provider: Provider) -> list[dict[str, Any]]:
    """The references in the system message, in order."""
    [system] = provider.messages(role="system")
    return [orjson.loads(line) for line in system["content"].splitlines() if line.startswith('{"tool_call_id"')]


@pytest.mark.sweep
async def test_a_result_is_shown_in_one_form_in_every_turn_after_its_own(client: Client, provider: Provider) -> None:
    session = await client.new_session()
    small, long = {"text": "è 好", "id": "eml-1a2b3c"}, {"text": "x" * 3000, "id": "eml-4d5e6f"}
    [_, call] = await ran(client, provider, session, ("echo", small), ("echo", long))
    seen = [await shown(client, provider, session) for _ in range(4)]
    assert seen == seen[:1] * 4
    [whole, reference] = seen[0]
    assert whole == small
    assert reference["tool_call_id"] == call["tool_call_id"]
    assert reference.items() >= {"tool_name": "echo", "status": "succeeded", "identifiers": ["eml-4d5e6f"]}.items()
    # The two run at once: either may end, and be stored, first.
    stored = [row["content"] for row in await client.messages(session) if row["role"] == "tool"]
    assert call["tool_call_id"] in [content.get("tool_call_id") for content in stored]


async def test_what_is_whole_in_the_next_turn_ends_where_the_setting_says(client: Client, provider: Provider) -> None:
    session = await client.new_session()
    await ran(
        client,
        provider,
        session,
        ("big", {"n_bytes": 2000}),
        ("big", {"n_bytes": 2001}),
        ("echo", {"error": "says so itself"}),
    )
    whole, reference, failed = await shown(client, provider, session)
    assert whole == "x" * 2000
    assert (reference["size_bytes"], len(reference["preview"])) == (2001, 500)
    assert (failed["status"], failed["summary"]) == ("failed", "echo failed: says so itself")


@pytest.mark.sweep
async def test_small_results_of_a_turn_take_no_more_room_together_than_one_fresh_result(
    settings: Settings, provider: Provider
) -> None:
    async with running(settings.model_copy(update={"context_token_budget": 50_000})) as client:
        session = await client.new_session()
        await ran(client, provider, session, *(("echo", {"n": number, "text": "x" * 1900}) for number in range(16)))
        results = await shown(client, provider, session)
    whole = [result["n"] for result in results if "n" in result]
    assert whole == list(range(10))
    assert [result["args"]["n"] for result in results[10:]] == list(range(10, 16))


@pytest.mark.sweep
async def test_references_outside_the_window_are_listed_once_newest_first(
    settings: Settings, provider: Provider
) -> None:
    async with running(settings.model_copy(update={"history_limit": 5})) as client:
        session = await client.new_session()
        made = [(await ran(client, provider, session, ("echo", {"id": f"itm-{n}00"})))[0] for n in range(4)]
        inside = await shown(client, provider, session)
    ids = [call["tool_call_id"] for call in made]
    assert inside == [{"id": "itm-300"}]
    assert [reference["tool_call_id"] for reference in earlier(provider)] == ids[2::-1]
    assert [reference["identifiers"] for reference in earlier(provider)] == [["itm-200"], ["itm-100"], ["itm-000"]]
    assert ids[3] not in str(provider.messages())
    assert str(provider.messages()).count(short_id(ids[3])) == 2  # the call and its answer


async def test_the_list_of_references_holds_its_budget_and_long_arguments_hide_nobody(
    settings: Settings, provider: Provider
) -> None:
    settings = settings.model_copy(update={"history_limit": 1, "context_token_budget": 9000})
    async with running(settings) as client:
        session = await client.new_session()
        found = {"ids": [f"itm-{number:040}" for number in range(30)]}
        for number in range(12):
            await ran(client, provider, session, ("echo", {"n": number, **found, "text": "好" * 5000}))
        await shown(client, provider, session, tool_results=False)
    listed = earlier(provider)
    assert [reference["args"]["n"] for reference in listed] == list(range(11, 11 - len(listed), -1))
    assert len(listed) >= 2
    assert sum(estimate(orjson.dumps(reference).decode()) for reference in listed) <= settings.context_token_budget / 4


async def test_references_stay_in_view_when_the_memory_of_the_session_has_run_out(
    settings: Settings, provider: Provider
) -> None:
    now = datetime(2026, 3, 1, tzinfo=UTC)
    assert settings.redis_url is not None
    async with running(settings.model_copy(update={"history_limit": 1}), clock=lambda: now) as client:
        session = await client.new_session()
        [first] = await ran(client, provider, session, ("echo", {"id": "itm-100"}))
        async with Redis.from_url(settings.redis_url.get_secret_value(), protocol=2) as redis:
            await redis.flushall()
        now += timedelta(days=2)
        [second] = await ran(client, provider, session, ("echo", {"id": "itm-200"}))
        await shown(client, provider, session, tool_results=False)
    found = [(reference["tool_call_id"], reference["identifiers"]) for reference in earlier(provider)]
    assert found == [(second["tool_call_id"], ["itm-200"]), (first["tool_call_id"], ["itm-100"])]


async def test_a_reference_says_that_its_result_has_expired_in_the_window_and_outside(
    settings: Settings, provider: Provider
) -> None:
    now = datetime(2026, 3, 1, tzinfo=UTC)
    async with running(settings.model_copy(update={"history_limit": 8}), clock=lambda: now) as client:
        session = await client.new_session()
        await ran(client, provider, session, ("echo", {"n": 1}))
        await ran(client, provider, session, ("echo", {"n": 2}), ("fails", {"message": "no"}))
        inside = await shown(client, provider, session)
        assert "expired" not in str([*inside, *earlier(provider)])
        now += timedelta(days=30)
        inside = await shown(client, provider, session)
    outside = earlier(provider)
    assert [reference.get("expired") for reference in inside] == [True, None]
    assert [(reference["args"], reference.get("expired")) for reference in outside] == [({"n": 1}, True)]


@pytest.mark.sweep
async def test_a_call_with_many_long_arguments_is_told_briefly_in_the_next_turn(
    client: Client, provider: Provider
) -> None:
    session = await client.new_session()
    long = {f"part_{number}": ["text " * 100] * 10 for number in range(100)}
    await ran(client, provider, session, ("echo", {"to": "anna", **long}))
    await shown(client, provider, session)
    [_, call, result, *_] = provider.messages()[1:]
    told = orjson.loads(call["tool_calls"][0]["function"]["arguments"])
    assert (told["to"], list(told)[:3]) == ("anna", ["to", "part_0", "part_1"])
    assert len(call["tool_calls"][0]["function"]["arguments"]) < 3000
    assert len(result["content"]) < 2000


async def test_the_prompt_does_not_grow_with_the_session(client: Client, provider: Provider) -> None:
    session = await client.new_session()
    sizes = []
    for number in range(100, 130):
        wanted: list[tuple[str, dict[str, Any]]] = [("table", {"rows": number}), ("echo", {"n": number})]
        await ran(client, provider, session, *wanted)
        sizes.append(len(orjson.dumps(provider.requests[-2])))
    assert max(sizes[-8:]) <= 1.05 * max(sizes[7:15])  # ids weigh by their letters: one reference more may fit
