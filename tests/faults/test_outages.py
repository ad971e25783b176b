"""Redis, Postgres and the model, gone in the middle of turns and back. Two instances; nobody starts them again."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx2
import pytest
from starlette.responses import Response

from segue.api.problems import OF_STORAGE
from tests.support.logs import until
from tests.support.provider import calls, says
from tests.support.proxy import Outage, Proxy
from tests.support.service import Client
from tests.support.site import Site
from tests.support.streams import listening

SOON_S = 60  # far more than it takes


@asynccontextmanager
async def without_redis(site: Site, outage: Any) -> AsyncIterator[None]:
    match outage:
        case "killed":
            async with site.down("redis"):
                yield
        case "flushed":
            async with site.stores() as stores:
                await stores.redis.flushall()
            yield
        case _:
            async with behind(site.redis, outage):
                yield


@asynccontextmanager
async def behind(door: Proxy, outage: Outage) -> AsyncIterator[None]:
    await door.begin(outage)
    try:
        yield
    finally:
        await door.open()


async def all_ready(*clients: Client) -> None:
    """Returns once every instance says that all of it is there."""

    async def are_ready() -> bool:
        told = [(await client.http.get("/health/ready")).json() for client in clients]
        return all((each["postgres"], each["redis"], each["worker"]) == ("ok", "ok", "ok") for each in told)

    await until(are_ready)


@pytest.mark.in_turns(1)
@pytest.mark.parametrize("outage", ["refuses", "hangs_up", "freezes", "killed", "flushed"])
async def test_redis_lost_in_the_middle_of_turns_costs_nobody_an_answer(
    site: Site, here: Client, there: Client, outage: str
) -> None:
    word = f"Redis {outage}"
    site.provider.will_to(f"{word}, one", calls(("mcp_look_up", {"item_id": word})), says("first"))
    site.provider.will_to(f"{word}, two", says("second"))
    site.provider.will_to(f"{word}, three", says("third"))
    session, another = await here.new_session(), await there.new_session()
    running = asyncio.create_task(here.chat(session, f"{word}, one"))
    await site.shelf.wait_for(f"look {word}")
    waiting = asyncio.create_task(there.chat(session, f"{word}, two"))
    async with site.stores() as stores:
        await stores.until_messages(session, 3)
    [first, _] = await here.turns(session)
    events = f"/sessions/{session}/turns/{first['turn_id']}/events"
    async with listening(there, events) as follower:
        await follower.next()
        async with without_redis(site, outage):
            site.shelf.go.set()
            answers = await asyncio.gather(running, waiting, there.chat(another, f"{word}, three"))
            ending = (await follower.rest())[-1]
    site.shelf.go.clear()
    assert [answer["message"]["content"] for answer in answers] == ["first", "second", "third"]
    assert ending.event["result"] == answers[0]
    await all_ready(here, there)
    for client in (here, there):
        await site.is_unharmed(client, session, another)


@dataclass(slots=True)
class Load:
    """Clients that keep talking, each in a session of its own, and what they were answered."""

    sessions: list[str]
    answers: list[httpx2.Response] = field(default_factory=list)
    answered: asyncio.Condition = field(default_factory=asyncio.Condition)
    stopped: asyncio.Event = field(default_factory=asyncio.Event)

    async def talk(self, client: Client, session: str) -> None:
        while not self.stopped.is_set():
            self.answers.append(await client.send(session, "under load"))
            async with self.answered:
                self.answered.notify_all()

    async def hears(self, status: int) -> None:
        """Returns once somebody was answered this, from now on."""
        before = len(self.answers)
        async with self.answered, asyncio.timeout(SOON_S):
            await self.answered.wait_for(lambda: status in {each.status_code for each in self.answers[before:]})


async def test_postgres_killed_under_load_is_a_503_for_who_asks_and_fails_no_turn_that_runs(
    site: Site, here: Client, there: Client
) -> None:
    site.provider.always("under load", says("Carried."))
    load = Load([await here.new_session() for _ in range(8)])
    async with asyncio.TaskGroup() as talking:
        for number, session in enumerate(load.sessions):
            talking.create_task(load.talk((here, there)[number % 2], session))
        await load.hears(200)
        async with site.down("postgres"):
            await load.hears(503)
        await all_ready(here, there)
        await load.hears(200)
        load.stopped.set()
    refused = [answer for answer in load.answers if answer.status_code != 200]
    assert {answer.json()["code"] for answer in refused} <= OF_STORAGE
    assert all(int(answer.headers["Retry-After"]) > 0 for answer in refused)
    turns = [turn for session in load.sessions for turn in await here.ended(session)]
    assert {turn["status"] for turn in turns} == {"completed"}
    stored = [turn["answer"] for turn in turns]
    assert all(answer.json() in stored for answer in load.answers if answer.status_code == 200)
    await site.is_unharmed(there, *load.sessions)


@pytest.mark.in_turns(1)
@pytest.mark.parametrize("outage", ["refuses", "freezes"])
async def test_a_turn_whose_tool_ends_while_postgres_is_away_is_answered_and_its_effect_is_not_repeated(
    site: Site, here: Client, there: Client, outage: Outage
) -> None:
    word = f"Postgres {outage}"
    site.provider.always(word, tool_then_words(word))
    session = await here.new_session()
    waiting = asyncio.create_task(here.send(session, f"Stamp it while {word}"))
    await site.shelf.wait_for(f"stamp {word}")
    async with behind(site.postgres, outage):
        site.shelf.go.set()
        for client in (here, there):
            refused = await client.http.get(f"/sessions/{session}")
            assert (refused.status_code, refused.json()["code"]) == (503, "storage_unavailable")
    site.shelf.go.clear()
    await all_ready(here, there)
    [turn] = await there.ended(session)
    assert turn["status"] == "completed"
    [call] = (await there.get(f"/sessions/{session}/tool-results"))["items"]
    assert call["status"] in ("succeeded", "unknown")
    assert site.shelf.effects.count(f"stamp {word}") == 1
    answer = (await waiting).json()
    assert answer == turn["answer"] or (answer["code"], answer["turn_id"]) == ("storage_unavailable", turn["turn_id"])
    await site.is_unharmed(here, session)


def tool_then_words(word: str) -> Callable[[dict[str, Any]], Any]:
    async def reply(body: dict[str, Any]) -> Response:
        if body["messages"][-1]["role"] == "tool":
            return says("Done.")
        return calls(("mcp_stamp_item", {"item_id": word}))

    return reply


@pytest.mark.in_turns(1)
@pytest.mark.parametrize("outage", ["refuses", "hangs_up"])
async def test_a_model_that_is_cut_off_in_the_middle_leaves_the_account_of_what_ran_and_harms_no_session(
    site: Site, here: Client, outage: Outage
) -> None:
    word = f"the model {outage}"

    async def cut_off(_: dict[str, Any]) -> Response:
        await site.model.begin(outage)
        return says("never heard")

    site.provider.will_to(word, calls(("mcp_get_item", {"item_id": word})), cut_off)
    session = await here.new_session()
    account = (await here.chat(session, f"Get what {word}"))["message"]["metadata"]
    assert (account["written_by"], account["problem"]) == ("service", "model_unavailable")
    failed = await here.send(session, "Still there?")
    assert (failed.status_code, failed.json()["code"]) == (502, "model_unavailable")
    await site.model.open()
    assert sorted(turn["status"] for turn in await here.turns(session)) == ["completed", "failed"]
    await site.is_unharmed(here, session)
