"""The feed of a user: heard on any instance, resumed without a loss or with a gap that says so, and only one's own."""

import asyncio
from contextlib import AbstractAsyncContextManager, aclosing
from pathlib import Path
from typing import Any

import orjson
import pytest
from pydantic import SecretStr

from segue.config import Settings
from segue.db.redis_connection import RedisServer
from segue.db.redis_keys import Streams
from segue.events.user_feed import GAP, UserFeeds
from tests.support.facts import fact, notes
from tests.support.identity import new_key, speaking
from tests.support.provider import Provider, calls, says
from tests.support.proxy import proxied
from tests.support.service import Client, running
from tests.support.stores import Stores
from tests.support.streams import listening

FEED = "/events"
CANARY = "zitronenfalter"
ALLERGY = "L'utente è allergico alle noci"


def elsewhere(settings: Settings) -> AbstractAsyncContextManager[Client]:
    """An instance that runs no turns."""
    return running(settings, takes_turns=False)


async def feeds_in(stores: Stores) -> list[str]:
    return await stores.keys("segue:feed:")


@pytest.mark.sweep
async def test_what_happens_in_all_sessions_is_heard_on_another_instance_and_resumed_on_a_third(
    settings: Settings, provider: Provider
) -> None:
    asking = settings.model_copy(update={"confirm": "always"})
    provider.will(calls(("current_time", {})), says("Va bene."), notes(fact(ALLERGY, "personal_info")))
    async with running(asking) as here, elsewhere(asking) as there, listening(there, FEED) as stream:
        opened = await stream.next()
        session = await here.new_session()
        asked = await here.chat(session, "What time is it?")
        await here.http.patch(f"/sessions/{session}", json={"title": "The clock"})
        other = await here.new_session(title="Nuts")
        told = await here.chat(other, "Sono allergico alle noci, tienilo presente")
        heard = await stream.until("fact_noted")
        [memory] = (await there.get("/memories"))["items"]
        async with elsewhere(asking) as third, listening(third, FEED, params={"after": heard[1].id}) as resumed:
            assert await resumed.until("fact_noted") == heard[2:]
    turn = {"session_id": session, "turn_id": asked["turn_id"]}
    second = {"session_id": other, "turn_id": told["turn_id"]}
    plan = {"plan_id": asked["plan"]["id"], "version": asked["plan"]["version"]}
    assert opened.event == {"type": "replay_gap"}
    assert [each.event for each in heard] == [
        {"type": "session_created", "session_id": session, "title": None},
        {"type": "turn_started", **turn, "title": "What time is it?"},
        {"type": "turn_ended", **turn, "status": "completed"},
        {"type": "approval_asked", **turn, **plan},
        {"type": "session_titled", "session_id": session, "title": "The clock"},
        {"type": "session_created", "session_id": other, "title": "Nuts"},
        {"type": "turn_started", **second, "title": "Nuts"},
        {"type": "turn_ended", **second, "status": "completed"},
        {"type": "fact_noted", "memory_id": memory["id"], "session_id": other},
    ]


async def test_a_turn_that_is_cancelled_while_it_waits_is_heard_of(client: Client, provider: Provider) -> None:
    go_on = asyncio.Event()

    async def held(_: dict[str, Any]) -> Any:
        await go_on.wait()
        return says("Hello.")

    provider.will(held)
    session = await client.new_session()
    async with listening(client, FEED) as stream:
        await client.send(session, "hello", background=True)
        await stream.until("turn_started")
        waiting = (await client.send(session, "and?", background=True)).json()["turn_id"]
        await client.http.post(f"/sessions/{session}/turns/{waiting}/cancel")
        [ended] = await stream.until("turn_ended")
        go_on.set()
        [answered] = await stream.until("turn_ended")
    cancelled = {"session_id": session, "turn_id": waiting, "status": "cancelled", "code": "turn_cancelled"}
    assert ended.event == {"type": "turn_ended", **cancelled}
    assert answered.event["status"] == "completed"


async def test_a_session_that_a_schedule_makes_is_heard_of_before_its_turn(client: Client, provider: Provider) -> None:
    provider.will(says("Done."))
    due = {"message": "Report", "new_session": True, "at": "2099-01-01T09:00:00Z"}
    schedule = (await client.http.post("/schedules", json=due)).json()["id"]
    async with listening(client, FEED) as stream:
        await stream.next()
        run = (await client.http.post(f"/schedules/{schedule}/run")).json()["turn_id"]
        made, started, _ = await stream.until("turn_ended")
    [session] = (await client.get("/sessions"))["items"]
    assert made.event == {"type": "session_created", "session_id": session["id"], "title": None}
    assert (started.event["session_id"], started.event["turn_id"]) == (session["id"], run)


async def test_nothing_is_written_for_a_user_who_follows_nothing(
    settings: Settings, provider: Provider, stores: Stores
) -> None:
    provider.will(says("Hello."))
    async with running(settings) as client:
        await client.chat(await client.new_session(), "hello")
    assert await feeds_in(stores) == []


async def test_a_user_hears_nothing_of_another(settings: Settings) -> None:
    guarded = settings.model_copy(update={"auth": "api_key"})
    async with (
        running(guarded) as service,
        speaking(service, await new_key(guarded, "ada")) as ada,
        speaking(service, await new_key(guarded, "mallory")) as mallory,
        listening(ada, FEED) as hers,
        listening(mallory, FEED) as theirs,
    ):
        created = await hers.next(), await theirs.next()
        sessions = [await ada.new_session(), await mallory.new_session()]
        heard = await hers.next(), await theirs.next()
    assert {each.type for each in created} == {"replay_gap"}
    assert [each.event["session_id"] for each in heard] == sessions


async def test_a_feed_ends_with_the_key_that_opened_it(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("segue.users.api_keys.CHECK_EVERY_S", 0)
    guarded = settings.model_copy(update={"auth": "api_key"})
    async with (
        running(guarded) as service,
        speaking(service, await new_key(guarded, "root", ["ops"])) as root,
        speaking(service, await new_key(guarded, "ada")) as laptop,
    ):
        [leaked] = [key["id"] for key in (await root.get("/ops/keys", user="ada"))["items"]]
        async with speaking(service, await new_key(guarded, "ada")) as phone, listening(laptop, FEED) as stream:
            await stream.next()
            heard = await phone.new_session(), await stream.next()
            assert (await root.http.delete(f"/ops/keys/{leaked}")).status_code == 204
            await phone.new_session()
            with pytest.raises(StopAsyncIteration):
                await stream.next()
    assert heard[1].event["session_id"] == heard[0]


async def test_a_position_that_is_gone_begins_with_a_gap_and_a_stream_ends_after_a_while(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("segue.events.user_feed.LASTS_S", 0)
    async with listening(client, FEED, headers={"Last-Event-ID": "12345"}) as stream:
        [only] = await stream.rest()
    async with listening(client, FEED, params={"after": only.id}) as stream:
        assert await stream.rest() == []
    assert only.event == {"type": "replay_gap"}


async def test_a_deleted_session_leaves_nothing_in_the_feed_but_a_gap(client: Client, stores: Stores) -> None:
    async with listening(client, FEED) as stream:
        await stream.next()
        session = await client.new_session(title=CANARY)
        created = await stream.next()
        await client.http.delete(f"/sessions/{session}")
        assert (await stream.next()).event == {"type": "replay_gap"}
        [feed] = await feeds_in(stores)
        kept = await stores.redis.xrange(feed)
    assert created.event["title"] == CANARY
    assert CANARY not in str(kept)
    assert await stores.everlasting() == []


@pytest.mark.sweep
async def test_who_follows_while_redis_is_emptied_is_told_of_the_gap(
    client: Client, stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("segue.events.user_feed.RENEW_EVERY_S", 0.1)
    async with listening(client, FEED) as stream:
        await stream.next()
        await stores.redis.flushall()
        assert (await stream.next()).event == {"type": "replay_gap"}
        session = await client.new_session()
        assert (await stream.next()).event["session_id"] == session


@pytest.mark.hasty
@pytest.mark.in_turns(1)
@pytest.mark.parametrize("outage", ["refuses", "freezes"])
async def test_without_redis_a_stream_opens_and_goes_on_after_a_gap(settings: Settings, outage: Any) -> None:
    assert settings.redis_url is not None
    async with proxied(Path(settings.redis_url.get_secret_value().removeprefix("unix://"))) as proxy:
        behind = settings.model_copy(update={"redis_url": SecretStr(f"redis://127.0.0.1:{proxy.port}")})
        async with running(behind) as client, listening(client, FEED) as before:
            await before.next()
            await proxy.begin(outage)
            await client.new_session()
            async with listening(client, FEED) as during:
                opened = await during.next()
                await proxy.open()
                gaps = [await before.next(), await during.next()]
                session = await client.new_session()
                for stream in (before, during):
                    assert (await stream.until("session_created"))[-1].event["session_id"] == session
    assert [each.type for each in (opened, *gaps)] == ["replay_gap"] * 3


async def test_a_reader_that_is_slow_gets_a_gap_in_place_of_what_it_has_not_read(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("segue.events.user_feed.MAX_UNREAD", 2)
    server = RedisServer(redis_url)
    stored = Streams(server)
    found = await stored.open_feeds(["ada"], GAP)
    assert found is not None
    await stored.append([], [("ada", orjson.dumps({"type": str(number)})) for number in range(4)])
    async with UserFeeds(stored) as feeds, aclosing(feeds.follow("ada", after=found[0])) as parts:
        heard = await anext(parts)
    assert [orjson.loads(event)["type"] for _, event in heard] == ["replay_gap", "3"]
    await stored.close()
    await server.close()
