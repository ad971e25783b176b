"""The log of a turn beyond its own process: resumed elsewhere, read by many, lost with Redis, ended once."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import orjson
import pytest
from pydantic import SecretStr
from redis.asyncio import Redis

from segue.config import Settings
from segue.db.engine import Database
from segue.db.redis_connection import RedisServer
from segue.db.redis_keys import Batch, Streams, turn_events_key
from segue.domain.errors import app_error, turn_cancelled
from segue.domain.events import (
    ArgumentsAdded,
    CallBegun,
    CallGivenUp,
    CallStarted,
    StepStarted,
    TextAdded,
    TextEnded,
    TextStarted,
)
from segue.domain.session import EPOCHS, RequestedCall, TurnKey
from segue.events.event_buffer import ATTEMPT, END, WOKEN_AT_ONCE, Entry, EventBuffer, Wakeups
from segue.events.event_log import SAVE_EVERY_S, EventLog, due_to_save
from segue.turns.queries import outcomes_of
from tests.support.patience import PATIENCE_S
from tests.support.provider import Provider, calls, says, streams
from tests.support.proxy import Proxy, proxied
from tests.support.service import Client, running
from tests.support.stores import arrived
from tests.support.streams import Sent, chatting, check, kinds, listening, replayed, streamed, texts
from tests.support.sweeps import first

TURN = TurnKey("ses_1", "turn_1", 1)


def path_of(session: str, turn: str) -> str:
    return f"/sessions/{session}/turns/{turn}/events"


def is_gap(sent: Sent) -> bool:
    return sent.kind == "CUSTOM replay_gap"


@pytest.fixture
async def redis(redis_url: str) -> AsyncIterator[Redis]:
    async with Redis.from_url(redis_url, protocol=2, decode_responses=True) as client:
        yield client


@asynccontextmanager
async def two(settings: Settings) -> AsyncIterator[tuple[Client, Client]]:
    """Two instances on the same stores."""
    async with running(settings) as here, running(settings) as there:
        yield here, there


def counting(gates: list[asyncio.Event]) -> Any:
    """One word, and one more after each gate."""
    return streams("zero", *(piece for number, gate in enumerate(gates, 1) for piece in (gate, f" {number}")))


@pytest.mark.sweep
async def test_the_model_is_streamed_once_somebody_elsewhere_listens(settings: Settings, provider: Provider) -> None:
    asked, go_on = asyncio.Event(), asyncio.Event()

    async def held(_: dict[str, Any]) -> Any:
        asked.set()
        await go_on.wait()
        return calls(("current_time", {}))

    provider.will(held, says("It is noon."))
    async with two(settings) as (here, there):
        session = await here.new_session()
        answer = asyncio.create_task(here.chat(session, "What time is it?"))
        await asked.wait()
        turn = (await there.get(f"/sessions/{session}"))["running_turn_id"]
        async with listening(there, path_of(session, turn)) as stream:
            heard = await stream.until("STEP_STARTED tool_loop")
            go_on.set()
            heard += await stream.rest()
    check(heard)
    assert [request.get("stream", False) for request in provider.requests] == [False, True]
    assert heard[-1].event["result"] == await answer


@pytest.mark.sweep
async def test_a_hundred_followers_are_not_a_hundred_connections(
    settings: Settings, provider: Provider, redis: Redis
) -> None:
    go_on = asyncio.Event()
    provider.will(streams("Now ", go_on, "then."))
    async with two(settings) as (here, there):
        session = await here.new_session()
        async with chatting(here, session, "hello") as stream:
            turn = (await stream.until("TEXT_MESSAGE_CONTENT"))[0].event["runId"]
            before = len(await redis.client_list())
            entered, door = asyncio.Barrier(101), asyncio.Semaphore(5)  # a hundred at once might wait for PostgreSQL

            async def follow() -> list[Sent]:
                async with AsyncExitStack() as stack:
                    async with door:
                        stream = await stack.enter_async_context(listening(there, path_of(session, turn)))
                        heard = await stream.until("TEXT_MESSAGE_CONTENT")
                    await entered.wait()
                    return heard + await stream.rest()

            async with asyncio.TaskGroup() as group:
                following = [group.create_task(follow()) for _ in range(100)]
                await entered.wait()
                assert len(await redis.client_list()) < before + 10
                go_on.set()
            heard = [each.result() for each in following]
            assert len(await replayed(here, session, turn)) == len(heard[0])
    assert all(each == heard[0] for each in heard)
    check(heard[0])


@pytest.fixture
async def proxy(servers: Any) -> AsyncIterator[Proxy]:
    async with proxied(Path(servers.redis_url.removeprefix("unix://"))) as proxy:
        yield proxy


@pytest.fixture
def behind(settings: Settings, proxy: Proxy) -> Settings:
    """The settings of a service whose Redis can be taken away."""
    return settings.model_copy(update={"redis_url": SecretStr(f"redis://127.0.0.1:{proxy.port}")})


@pytest.mark.hasty
@pytest.mark.in_turns(1)
@pytest.mark.parametrize("outage", ["refuses", "hangs_up", "freezes"])
async def test_without_redis_turns_are_answered_and_streamed_where_they_run(
    behind: Settings, provider: Provider, proxy: Proxy, outage: Any
) -> None:
    async with running(behind) as client:
        session = await client.new_session()
        await proxy.begin(outage)
        provider.will(says("Still here."), says("Word by word."))
        assert (await client.chat(session, "hello?"))["message"]["content"] == "Still here."
        sent = await streamed(client, session, "hello?")
        assert list(texts(sent).values()) == ["Word by word."]
        await proxy.open()


async def test_who_follows_elsewhere_while_redis_is_lost_hears_the_end_from_the_row(
    behind: Settings, provider: Provider, proxy: Proxy
) -> None:
    go_on = asyncio.Event()
    provider.will(streams("Now ", go_on, "then."))
    async with two(behind) as (here, there):
        session = await here.new_session()
        async with chatting(here, session, "hello") as stream:
            turn = (await stream.until("TEXT_MESSAGE_CONTENT"))[0].event["runId"]
            async with listening(there, path_of(session, turn)) as afar:
                heard = await afar.until("TEXT_MESSAGE_CONTENT")
                await proxy.begin("refuses")
                go_on.set()
                rest = await afar.rest()
            at_home = await stream.rest()
    check(heard + rest)
    assert kinds(rest) == ["TEXT_MESSAGE_END", "STEP_FINISHED tool_loop", "CUSTOM replay_gap", "RUN_FINISHED"]
    assert rest[-1] == at_home[-1]
    assert rest[-1].event["result"]["message"]["content"] == "Now then."


@pytest.mark.sweep
async def test_a_json_answer_from_elsewhere_comes_though_redis_is_lost(
    behind: Settings,
    provider: Provider,
    proxy: Proxy,
    settings: Settings,
) -> None:
    go_on = asyncio.Event()

    async def held(_: dict[str, Any]) -> Any:
        await go_on.wait()
        return says("first")

    provider.will(held, says("second"))
    async with two(behind) as (here, there):
        session = await here.new_session()
        first = asyncio.create_task(here.chat(session, "one"))
        await provider.wait_for_requests(1)
        second = asyncio.create_task(there.chat(session, "two"))
        await arrived(settings, session, 2)
        await proxy.begin("hangs_up")
        go_on.set()
        assert (await first)["message"]["content"] == "first"
        assert (await second)["message"]["content"] == "second"


async def test_a_log_that_is_gone_is_told_as_a_gap_and_the_end_and_the_turn_does_not_start_again(
    settings: Settings, provider: Provider, redis: Redis
) -> None:
    provider.will(calls(("current_time", {})), says("Noon."))
    async with running(settings) as client:
        session = await client.new_session()
        sent = await streamed(client, session, "What time is it?")
        turn = sent[0].event["runId"]
        await written(redis, session, turn)
        await redis.flushall()
        for after in (0, sent[3].id, sent[-2].id):
            *start, gap, end = await replayed(client, session, turn, after=after)
            assert start == ([] if after else sent[:1])
            assert is_gap(gap)
            assert end == sent[-1]
            assert sent[-2].id < gap.id < end.id
        assert await replayed(client, session, turn, after=gap.id) == [end]
    assert len(provider.requests) == 2


@pytest.mark.parametrize(
    "end", first(2, ["", "7", '{"type":"RUN_FINISHED","result":7}', '{"type":"RUN_ERROR","code":"x"}', "{" * 900])
)
async def test_an_end_that_cannot_be_read_comes_from_the_row(
    end: str, settings: Settings, provider: Provider, redis: Redis
) -> None:
    provider.will(says("Noon."))
    async with running(settings) as client:
        session = await client.new_session()
        sent = await streamed(client, session, "What time is it?")
        key = await written(redis, session, sent[0].event["runId"])
        await redis.delete(key)
        await redis.xadd(key, {"events": f"{END} {end}\n"}, id=f"{END}-0")
        start, gap, last = await replayed(client, session, sent[0].event["runId"])
        assert (start, is_gap(gap), last) == (sent[0], True, sent[-1])


async def test_a_key_that_is_no_log_hides_no_other_log(redis_url: str, redis: Redis) -> None:
    other = TurnKey("ses_2", "turn_2", 1)
    streams = Streams(RedisServer(redis_url))
    await redis.rpush(turn_events_key(TURN.session_id, TURN.turn_id), "no stream")
    await streams.append([Batch(turn, last=1, body=b"1 {}\n", opens=True) for turn in (TURN, other)])
    assert await streams.read({TURN: 0, other: 0}) == {other: [(1, b"1 {}\n")]}
    assert await streams.read({TURN: 0}) is None
    assert not streams.degraded
    await streams.close()


async def test_a_flushed_redis_costs_those_who_are_there_nothing(
    settings: Settings, provider: Provider, redis: Redis
) -> None:
    go_on = asyncio.Event()
    provider.will(streams("Now ", go_on, "then."))
    async with two(settings) as (here, there):
        session = await here.new_session()
        async with chatting(here, session, "hello") as stream:
            sent = await stream.until("TEXT_MESSAGE_CONTENT")
            turn = sent[0].event["runId"]
            await written(redis, session, turn, sent[-1].id)
            await redis.flushall()
            go_on.set()
            sent += await stream.rest()
        check(sent)
        start, gap, end = await replayed(there, session, turn)
        assert (start, is_gap(gap)) == (sent[0], True)
        assert end == sent[-1]


async def test_the_log_of_a_turn_expires_and_no_key_of_redis_is_kept_for_ever(
    settings: Settings, provider: Provider, redis: Redis
) -> None:
    provider.will(says("Hello."))
    async with running(settings) as client:
        session, started = await client.new_session(), time.monotonic()
        turn = (await client.chat(session, "hello"))["turn_id"]
        key = await written(redis, session, turn)
        most_batches = 1 + (time.monotonic() - started) / SAVE_EVERY_S
        assert 3500 < await redis.ttl(key) <= 3600
        assert await redis.xlen(key) <= min(most_batches, len(await replayed(client, session, turn)) / 2)
        assert all([await redis.ttl(each) > 0 async for each in redis.scan_iter()])


async def written(redis: Redis, session: str, turn: str, position: int = END) -> str:
    """The key of a turn's log, once Redis holds it up to a position."""
    key = f"segue:events:{session}:{turn}"
    async with asyncio.timeout(PATIENCE_S):
        last: Any = []
        while not last or int(last[0][0].partition("-")[0]) < position:
            last = await redis.xrevrange(key, count=1)
    return key


def test_a_log_is_saved_when_it_is_complete_or_has_waited_for_long_enough() -> None:
    began, ended, waits = (EventBuffer(TURN, Wakeups()) for _ in range(3))
    ended.append(END, b"{}")
    unsaved = {began: 10.0, ended: 10.0, waits: 10.0 - SAVE_EVERY_S}
    assert due_to_save(unsaved, now=10.0) == [ended, waits]


# What recovery and a stopped process do to a log, on the log itself.


@asynccontextmanager
async def log_of(settings: Settings) -> AsyncIterator[EventLog]:
    """The event log of a process of its own."""
    assert settings.redis_url is not None
    assert settings.database_url is not None
    redis, database = (
        RedisServer(settings.redis_url.get_secret_value()),
        Database(settings.database_url.get_secret_value()),
    )
    streams = Streams(redis)
    async with EventLog(streams, partial(outcomes_of, database), outage_s=0) as log:
        yield log
    await streams.close()
    await redis.close()
    await database.close()


async def test_the_end_of_a_turn_that_is_run_again_by_now_does_not_end_the_log_of_its_next_run(
    settings: Settings,
) -> None:
    again = replace(TURN, run=1)
    async with log_of(settings) as log:
        publisher = await log.open(again, epoch=EPOCHS + 1, stream=False)
        complete = []
        for ended in (TURN, again):
            log.end(ended, turn_cancelled())
            complete.append(publisher.buffer.complete)
        assert complete == [False, True]
        log.close(again, epoch=EPOCHS + 1)


async def followed(log: EventLog, *, after: int = 0, until: int = END) -> list[Entry]:
    found: list[Entry] = []
    async with aclosing(log.follow(TURN, after=after)) as parts:
        async for entries in parts:
            found += entries
            if found[-1].position >= until:
                break
    return found


def as_sent(entries: list[Entry]) -> list[Sent]:
    return [Sent(entry.position, orjson.loads(entry.event)) for entry in entries]


async def test_a_second_attempt_goes_on_in_the_same_log_and_the_first_can_say_no_more(settings: Settings) -> None:
    async with log_of(settings) as dead, log_of(settings) as alive, log_of(settings) as elsewhere:
        first = await dead.open(TURN, epoch=1, stream=True)
        for event in (StepStarted("tool_loop"), TextStarted("msg_1"), TextAdded("msg_1", "The answ")):
            first.emit(event)
        await followed(elsewhere, until=4)
        second = await alive.open(TURN, epoch=2, stream=True)
        for said in (TextStarted("msg_2"), TextAdded("msg_2", "The answer."), TextEnded("msg_2")):
            second.emit(said)
        seen = await followed(elsewhere, until=ATTEMPT + 6)
        first.emit(TextAdded("msg_1", "er, far too late."))
        first.emit(TextEnded("msg_1"))
        alive.end(TURN, app_error("turn_interrupted"))
        alive.close(TURN, epoch=2)
        alive.end(TURN, app_error("internal_error"))
        whole = as_sent(await followed(elsewhere))
    check(whole)
    assert whole[: len(seen)] == as_sent(seen)
    assert kinds(whole) == [
        "RUN_STARTED",
        "STEP_STARTED tool_loop",
        "TEXT_MESSAGE_START",
        "TEXT_MESSAGE_CONTENT",
        "TEXT_MESSAGE_END",
        "STEP_FINISHED tool_loop",
        "CUSTOM attempt",
        "TEXT_MESSAGE_START",
        "TEXT_MESSAGE_CONTENT",
        "TEXT_MESSAGE_END",
        "RUN_ERROR",
    ]
    assert texts(whole) == {"msg_1": "The answ", "msg_2": "The answer."}
    assert whole[-1].event["code"] == "turn_interrupted"


async def test_who_reads_where_the_first_attempt_spoke_on_after_the_second_began_hears_one_valid_stream(
    settings: Settings,
) -> None:
    async with log_of(settings) as woken, log_of(settings) as alive, log_of(settings) as elsewhere:
        first = await woken.open(TURN, epoch=1, stream=True)
        for event in (StepStarted("tool_loop"), TextStarted("msg_1"), TextAdded("msg_1", "The answ")):
            first.emit(event)
        reading = asyncio.create_task(followed(woken))
        await followed(elsewhere, until=4)
        second = await alive.open(TURN, epoch=2, stream=True)
        await followed(elsewhere, until=ATTEMPT + 3)
        for late in (TextAdded("msg_1", "er, far too late."), TextEnded("msg_1"), StepStarted("respond")):
            first.emit(late)
        woken.close(TURN, epoch=1)
        for said in (StepStarted("tool_loop"), StepStarted("respond"), TextStarted("msg_2"), TextEnded("msg_2")):
            second.emit(said)
        alive.end(TURN, app_error("turn_interrupted"))
        sent, whole = as_sent(await reading), as_sent(await followed(elsewhere))
    check(sent)
    assert texts(sent) == {"msg_1": "The answer, far too late.", "msg_2": ""}
    assert not any(map(is_gap, sent))
    begins = kinds(whole).index("CUSTOM attempt")
    assert sent[-len(whole[begins:]) :] == whole[begins:]


def of_call(sent: list[Sent], call_id: str) -> tuple[list[str], str]:
    """The types of its events, and its arguments so far."""
    events = [each.event for each in sent if each.event.get("toolCallId") == call_id]
    kinds_of = [each["type"].removeprefix("TOOL_CALL_") for each in events if each["type"] != "TOOL_CALL_ARGS"]
    return kinds_of, "".join(each["delta"] for each in events if each["type"] == "TOOL_CALL_ARGS")


async def test_a_call_whose_arguments_broke_off_is_closed_by_the_next_attempt_and_at_the_end(
    settings: Settings,
) -> None:
    async with log_of(settings) as dead, log_of(settings) as alive:
        first = await dead.open(TURN, epoch=1, stream=True)
        for event in (TextStarted("msg_1"), TextAdded("msg_1", "Well."), CallBegun("call_0", "look", "msg_1")):
            first.emit(event)
        first.emit(ArgumentsAdded("call_0", "{"))
        first.emit(CallBegun("call_1", "look", "msg_1"))
        for text in ('{"a":', '"b', "c"):
            first.emit(ArgumentsAdded("call_1", text))
        first.close()
        await followed(alive, until=7)
        second = await alive.open(TURN, epoch=2, stream=True)
        second.give_up_calls({"call_0"})  # which was made, as its row says
        call = RequestedCall("call_2", "look", {"a": "bcd"})
        second.emit(CallBegun("call_2", "look", "msg_2"))
        for said in (ArgumentsAdded("call_2", '{"a":"b'), TextStarted("msg_2"), TextAdded("msg_2", "So.")):
            second.emit(said)
        for then in (ArgumentsAdded("call_2", "c"), TextEnded("msg_2"), CallStarted(call, "msg_2")):
            second.emit(then)
        second.emit(CallBegun("call_3", "look", "msg_2"))
        second.emit(ArgumentsAdded("call_3", "{"))
        alive.end(TURN, app_error("turn_interrupted"))
        second.emit(CallGivenUp("call_3"))
        sent = as_sent(await followed(alive))
    check(sent)
    assert texts(sent) == {"msg_1": "Well.", "msg_2": "So."}
    assert of_call(sent, "call_0") == (["START", "END"], "{")
    assert of_call(sent, "call_1") == (["START", "END", "RESULT"], '{"a":"bc')
    assert of_call(sent, "call_2") == (["START", "END"], '{"a":"bcd"}')
    assert of_call(sent, "call_3") == (["START", "END", "RESULT"], "{")
    [told, _] = [orjson.loads(each.event["content"]) for each in sent if each.type == "TOOL_CALL_RESULT"]
    assert (told["tool_name"], told["status"]) == ("look", "failed")


async def test_a_turn_that_ends_before_it_ran_has_a_log_of_its_end_alone(settings: Settings) -> None:
    async with log_of(settings) as here, log_of(settings) as there:
        here.end(TURN, app_error("turn_interrupted"))
        here.end(TURN, app_error("turn_interrupted"))
        [end] = as_sent(await followed(there))
    assert (end.id, end.type) == (END, "RUN_ERROR")


async def test_a_follower_that_is_behind_the_end_is_told_that_no_more_comes(settings: Settings) -> None:
    async with log_of(settings) as here:
        await here.open(TURN, epoch=1, stream=False)
        late = asyncio.create_task(followed(here, after=END))
        await asyncio.create_task(followed(here, until=1))  # by then the other waits
        here.end(TURN, app_error("turn_interrupted"))
        assert await late == []


async def test_a_position_that_was_trimmed_is_a_gap_and_then_what_follows(settings: Settings, redis: Redis) -> None:
    async with log_of(settings) as here, log_of(settings) as there:
        writer = await here.open(TURN, epoch=1, stream=False)
        for number in range(3):
            writer.emit(StepStarted(str(number)))
            await followed(there, until=number + 2)
        key = await written(redis, TURN.session_id, TURN.turn_id, 4)
        await redis.xtrim(key, maxlen=1, approximate=False)
        gap, last = as_sent(await followed(there, until=4))
        here.end(TURN, app_error("turn_interrupted"))
        assert (gap.id, is_gap(gap), last.kind) == (3, True, "STEP_STARTED 2")
        assert [entry.position for entry in await followed(there, after=3)] == [4, END]


async def test_what_was_written_twice_is_told_once_and_what_is_not_ours_not_at_all(
    settings: Settings, redis: Redis
) -> None:
    async with log_of(settings) as here, log_of(settings) as there:
        writer = await here.open(TURN, epoch=1, stream=False)
        writer.emit(StepStarted("plan"))
        key = await written(redis, TURN.session_id, TURN.turn_id, 2)
        entries: Any = await redis.xrange(key)
        lines = entries[0][1]["events"]
        await redis.xadd(key, {"events": lines + '3 {"type":"STEP_STARTED","stepName":"respond"}\n'}, id="3-0")
        await redis.xadd(key, {"events": "no line of ours\n", "other": "1"}, id="4-0")
        await redis.xadd(key, {"other": "1"}, id="5-0")
        here.end(TURN, app_error("turn_interrupted"))
        assert [entry.position for entry in await followed(there)] == [1, 2, 3, END]


async def test_an_attempt_goes_on_behind_what_is_not_ours_at_the_end_of_the_log(
    settings: Settings, redis: Redis
) -> None:
    async with log_of(settings) as dead, log_of(settings) as alive:
        await dead.open(TURN, epoch=1, stream=False)
        key = await written(redis, TURN.session_id, TURN.turn_id, 1)
        await redis.xadd(key, {"events": "no line of ours\n"}, id="5-0")
        async with asyncio.timeout(PATIENCE_S):
            await alive.open(TURN, epoch=2, stream=False)
        alive.end(TURN, app_error("turn_interrupted"))
        assert [entry.position for entry in await followed(alive)] == [1, ATTEMPT + 1, END]


async def test_a_reader_that_falls_behind_gets_what_it_has_missed_in_one_part(settings: Settings) -> None:
    async with log_of(settings) as here:
        writer = await here.open(TURN, epoch=1, stream=False)
        async with aclosing(here.follow(TURN)) as parts:
            assert len(await anext(parts)) == 1
            for number in range(300):
                writer.emit(StepStarted(str(number)))
            assert [entry.position for entry in await anext(parts)] == [*range(2, 302)]
            here.end(TURN, app_error("turn_interrupted"))
            assert [entry.position for part in [part async for part in parts] for entry in part] == [END]


async def test_a_thousand_readers_are_told_a_few_at_a_time_while_everything_else_goes_on(settings: Settings) -> None:
    told: Counter[int] = Counter()

    async def follow(log: EventLog) -> None:
        async with aclosing(log.follow(TURN, after=1)) as parts:
            async for entries in parts:
                told[entries[-1].position] += 1

    async with log_of(settings) as here, asyncio.TaskGroup() as group:
        writer = await here.open(TURN, epoch=1, stream=False)
        following = [group.create_task(follow(here)) for _ in range(1000)]
        await asyncio.sleep(0)
        at_once = []
        for event in (StepStarted("plan"), StepStarted("respond")):
            writer.emit(event)
            while told[writer.buffer.last] < len(following):
                before = told.total()
                await asyncio.sleep(0)
                at_once.append(told.total() - before)
        here.end(TURN, app_error("turn_interrupted"))
    assert max(at_once) <= WOKEN_AT_ONCE
    assert told == {2: 1000, 3: 1000, END: 1000}
