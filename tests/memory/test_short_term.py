"""The session's working memory: what it keeps, and that losing Redis loses nothing of it."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import orjson
import pytest
from redis.asyncio import Redis
from structlog.testing import capture_logs

from segue.config import Settings
from segue.db.redis_keys import short_term_memory_key
from segue.domain.tool import CallStatus, Reference
from segue.memory.short_term import MAX_REFERENCES, merge_results
from tests.support.provider import Provider, calls, fails, says
from tests.support.service import Client, running

ROME, TOKYO = {"timezone": "Europe/Rome"}, {"timezone": "Asia/Tokyo"}


def result(
    number: int, status: CallStatus = "succeeded", *, tool: str = "find", args: dict[str, Any] | None = None
) -> Reference:
    """Calls are numbered as they were made, and given newest first."""
    return Reference(
        tool_call_id=f"call_{number:02}",
        tool_name=tool,
        args=args or {},
        status=status,
        size_bytes=0,
        summary="",
        preview="",
        identifiers=(),
    )


def numbers(references: tuple[Reference, ...]) -> list[int]:
    return [int(reference.tool_call_id.removeprefix("call_")) for reference in references]


@pytest.mark.parametrize(
    ("known", "newer", "merged"),
    [
        pytest.param([], [], [], id="nothing"),
        pytest.param([result(1)], [result(2)], [2], id="the latest success wins"),
        pytest.param([result(1)], [result(2, "failed")], [1], id="an error hides no earlier success"),
        pytest.param([result(1)], [result(2, "unknown")], [2, 1], id="an unknown outcome hides nothing"),
        pytest.param([result(1, "unknown")], [result(2)], [2, 1], id="nor is it hidden"),
        pytest.param([result(1, "unknown")], [result(2, "failed")], [2, 1], id="a later error leaves it unknown"),
        pytest.param([result(1, "failed")], [result(2)], [2], id="a success replaces an error"),
        pytest.param([result(1, "failed")], [result(2, "failed")], [2], id="the latest of two errors"),
        pytest.param([], [result(3, "failed"), result(2), result(1)], [2], id="all in one turn"),
        pytest.param([result(3)], [result(2), result(1, "failed")], [2], id="their ids do not order them"),
        pytest.param(
            [result(1, args={"a": 1, "b": {"c": 2, "d": 3}})],
            [result(2, args={"b": {"d": 3, "c": 2}, "a": 1})],
            [2],
            id="the order of keys makes no difference",
        ),
        pytest.param([result(1, args={"a": "1"})], [result(2, args={"a": 1})], [2, 1], id="1 is not '1'"),
        pytest.param([result(1)], [result(2, tool="look")], [2, 1], id="two tools"),
        pytest.param(
            [result(2, args=ROME), result(1)], [result(3, "failed")], [2, 1], id="newest first, whatever failed after"
        ),
        pytest.param([result(2), result(1, args=ROME)], [result(3, args=TOKYO)], [3, 2, 1], id="newest first"),
    ],
)
def test_results_are_one_for_each_call_and_the_best_of_it(
    known: list[Reference], newer: list[Reference], merged: list[int]
) -> None:
    assert numbers(merge_results(known, newer)) == merged


def test_the_oldest_results_make_room_for_new_ones() -> None:
    many = [result(number, args={"n": number}) for number in range(MAX_REFERENCES + 5)][::-1]
    assert numbers(merge_results(many[3:], many[:3])) == list(range(5, MAX_REFERENCES + 5))[::-1]


@pytest.fixture
async def redis(settings: Settings) -> AsyncIterator[Redis]:
    assert settings.redis_url
    async with Redis.from_url(settings.redis_url.get_secret_value(), protocol=2) as connected:
        yield connected


async def short_term(client: Client, session: str) -> dict[str, Any] | None:
    memory: dict[str, Any] | None = (await client.get(f"/sessions/{session}/memory"))["short_term"]
    return memory


async def test_a_session_in_which_nothing_was_answered_has_no_memory(client: Client, provider: Provider) -> None:
    session = await client.new_session()
    assert await client.get(f"/sessions/{session}/memory") == {"short_term": None, "ttl_s": 0, "long_term": []}
    provider.will(fails(500))
    await client.send(session, "hello?")
    assert await short_term(client, session) is None


async def test_memory_holds_the_last_exchange_and_one_reference_for_each_call(
    client: Client, provider: Provider
) -> None:
    provider.will(calls(("current_time", ROME)), says("Noon."))
    provider.will(calls(("current_time", ROME), ("current_time", TOKYO)), says("Noon and eight."))
    session = await client.new_session()
    await client.chat(session, "What time is it?")
    answer = await client.chat(session, "And in Tokyo?")
    memory = await client.get(f"/sessions/{session}/memory")
    assert 3590 < memory["ttl_s"] <= 3600
    found = memory["short_term"]
    assert (found["last_user_message"], found["last_assistant_message"]) == ("And in Tokyo?", "Noon and eight.")
    assert found["message_count"] == len(await client.messages(session)) == 9
    assert {reference["tool_call_id"] for reference in found["tool_results"]} == {
        call["tool_call_id"] for call in answer["tool_calls"]
    }
    assert answer["memory_used"] == {"short_term": True, "long_term": 0, "history_messages": 4, "tool_results": 1}


async def test_memory_that_redis_lost_is_rebuilt_equal_and_used(
    settings: Settings, provider: Provider, redis: Redis
) -> None:
    provider.will(calls(("current_time", ROME), ("current_time", TOKYO), ("nothing", {})), says("Noon and eight."))
    provider.will(calls(("current_time", {"timezone": "Mars"})), says("No."), fails(500), says("You are welcome."))
    async with running(settings.model_copy(update={"history_limit": 1})) as client:
        session = await client.new_session()
        first = await client.chat(session, "What time is it?")
        await client.chat(session, "And on Mars?")
        before = await short_term(client, session)
        await redis.flushall()
        assert before is not None
        assert await short_term(client, session) == before
        await client.send(session, "Are you there?")
        after_failure = await short_term(client, session)
        assert after_failure is not None
        assert after_failure["turn_id"] > before["turn_id"]
        assert after_failure == {**before, "message_count": 11, "turn_id": after_failure["turn_id"]}
        await redis.flushall()
        answer = await client.chat(session, "thanks")
    assert answer["memory_used"] == {"short_term": True, "long_term": 0, "history_messages": 0, "tool_results": 4}
    [system] = provider.messages(role="system")
    assert all(call["tool_call_id"] in system["content"] for call in first["tool_calls"])


async def test_what_a_failed_turn_found_is_remembered_though_none_was_ever_answered(
    client: Client, provider: Provider
) -> None:
    no_json = says("Noon.")
    provider.will(calls(("current_time", ROME)), no_json, no_json, calls(("current_time", TOKYO)), says("Eight."))
    session = await client.new_session()
    await client.send(session, "What time is it in Rome?", output_schema={"type": "object"})
    failed = await short_term(client, session)
    assert failed is not None
    assert (failed["last_user_message"], failed["last_assistant_message"]) == (None, None)
    answer = await client.chat(session, "And in Tokyo?")
    assert answer["memory_used"]["tool_results"] == 1
    memory = await short_term(client, session)
    assert memory is not None
    assert [result["args"] for result in memory["tool_results"]] == [TOKYO, ROME]


@pytest.mark.sweep
async def test_memory_ends_when_its_time_has_passed_and_the_results_stay_in_the_history(
    settings: Settings, provider: Provider, redis: Redis
) -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    provider.will(calls(("current_time", ROME)), says("Noon."), says("Still noon."))
    async with running(settings, clock=lambda: now) as client:
        session = await client.new_session()
        await client.chat(session, "What time is it?")
        await redis.flushall()
        now += timedelta(seconds=3590)
        assert (await client.get(f"/sessions/{session}/memory"))["ttl_s"] == 10
        now += timedelta(seconds=10)
        assert await client.get(f"/sessions/{session}/memory") == {"short_term": None, "ttl_s": 0, "long_term": []}
        answer = await client.chat(session, "And now?")
    assert answer["memory_used"] == {"short_term": False, "long_term": 0, "history_messages": 4, "tool_results": 1}
    [tool] = provider.messages(role="tool")
    assert orjson.loads(tool["content"])["timezone"] == "Europe/Rome"


async def test_every_turn_starts_the_time_of_memory_anew(client: Client, provider: Provider, redis: Redis) -> None:
    provider.will(says("one"), says("two"))
    session = await client.new_session()
    await client.chat(session, "first")
    await redis.expire(short_term_memory_key(session), 10)
    assert (await client.get(f"/sessions/{session}/memory"))["ttl_s"] <= 10
    await client.chat(session, "second")
    assert (await client.get(f"/sessions/{session}/memory"))["ttl_s"] > 3590


async def test_a_value_that_is_foreign_unreadable_or_outdated_counts_as_missing(
    client: Client, provider: Provider, redis: Redis
) -> None:
    provider.will(says("mine"), says("outdated"), calls(("current_time", ROME)), says("new"))
    mine, other = await client.new_session(), await client.new_session()
    await client.chat(other, "theirs")
    await client.chat(mine, "first")
    key = short_term_memory_key(mine)
    outdated = await redis.get(key)
    assert isinstance(outdated, bytes)
    await client.chat(mine, "second")
    current = await redis.get(key)
    assert isinstance(current, bytes)
    expected = await short_term(client, mine)
    assert expected is not None
    assert expected["last_assistant_message"] == "new"
    foreign = orjson.dumps({**orjson.loads(current), "session_id": other})
    missing_field = orjson.dumps({"session_id": mine, "turn_id": expected["turn_id"]})
    bad_status = current.replace(b'"succeeded"', b'"wonderful"')
    assert bad_status != current
    deep = current.replace(b'"args":{', b'"args":{"deep":' + b"[" * 900 + b"]" * 900 + b",")
    huge = current.replace(b'"size_bytes":', b'"size_bytes":' + b"9" * 30)
    assert deep != current != huge
    garbage = (b"", b"{", b"null", b"\xff\xfe")
    of_another_release = (outdated, foreign, missing_field, bad_status, b"[]", b"7")
    with capture_logs() as logs:
        for value in of_another_release:
            await redis.set(key, value)
            assert await short_term(client, mine) == expected, value
    assert [line for line in logs if line["log_level"] != "info"] == []
    for value in (*garbage, deep, huge):
        await redis.set(key, value)
        assert await short_term(client, mine) == expected, value
    await redis.delete(key)
    await redis.rpush(key, current)
    assert await short_term(client, mine) == expected
