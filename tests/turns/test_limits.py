"""How much one user may ask for: refused with a 429 that says of what, and when to come back."""

import asyncio
from datetime import timedelta
from functools import partial
from typing import Any

import httpx2
import pytest
from pydantic import SecretStr
from starlette.responses import Response

from segue.config import Settings
from segue.turns.admission import ACCEPTING_S
from tests.support.branches import code, retry
from tests.support.identity import new_key, speaking
from tests.support.logs import until
from tests.support.plans import Frozen
from tests.support.provider import Provider, calls, fails, says
from tests.support.service import Client, running
from tests.support.steering import TIME, after
from tests.support.stores import looking_into

OF_A_SESSION = "SELECT sessions.id%FOR NO KEY UPDATE%"
NOWHERE = SecretStr("redis://127.0.0.1:1")


def limited(settings: Settings, **limits: int) -> Settings:
    return settings.model_copy(update={f"limit_{name}": value for name, value in limits.items()})


def assert_limited(response: httpx2.Response, limit: str, *, at_most_s: int) -> None:
    assert response.status_code == 429, response.text
    problem = response.json()
    assert (problem["code"], problem["limit"]) == ("rate_limited", limit)
    assert 0 < int(response.headers["retry-after"]) <= at_most_s
    assert limit.replace("_", " ") in problem["detail"].lower()


async def is_in_metrics(client: Client, line: str) -> bool:
    return line in (await client.http.get("/metrics")).text.splitlines()


class Held:
    """Model answers that come when they are let go."""

    def __init__(self) -> None:
        self.go = asyncio.Event()

    async def answer(self, _: dict[str, Any]) -> Response:
        await self.go.wait()
        return says("at last")


@pytest.mark.in_turns(1)
@pytest.mark.parametrize("redis", ["there", "away"])
async def test_requests_beyond_the_limit_are_refused_to_one_user_and_not_to_another(
    settings: Settings, redis: str
) -> None:
    update = {"auth": "api_key", **({"redis_url": NOWHERE} if redis == "away" else {})}
    guarded = limited(settings.model_copy(update=update), requests_per_minute=3)
    async with (
        running(guarded) as service,
        speaking(service, await new_key(settings, "ada")) as ada,
        speaking(service, await new_key(settings, "ada")) as ada_too,
        speaking(service, await new_key(settings, "bob")) as bob,
    ):
        assert [(await ada.http.get(path)).status_code for path in ("/sessions", "/nowhere", "/tools")] == [
            200,
            404,
            200,
        ]
        assert_limited(await ada.http.get("/sessions"), "requests_per_minute", at_most_s=60)
        assert_limited(await ada_too.http.get("/sessions"), "requests_per_minute", at_most_s=60)
        assert (await bob.http.get("/sessions")).status_code == 200
        assert (await ada.http.get("/health/live")).status_code == 200


async def test_the_limits_are_shared_by_all_processes(settings: Settings) -> None:
    shared = limited(settings, requests_per_minute=2)
    async with running(shared) as one, running(shared) as two:
        assert (await one.http.get("/sessions")).status_code == 200
        assert (await two.http.get("/sessions")).status_code == 200
        for service in (one, two):
            assert_limited(await service.http.get("/sessions"), "requests_per_minute", at_most_s=60)


async def test_turns_beyond_the_limit_are_refused_and_leave_no_trace(settings: Settings, provider: Provider) -> None:
    provider.will(says("one"), says("two"))
    async with running(limited(settings, turns_per_minute=2)) as client:
        session = await client.new_session()
        await client.chat(session, "first")
        await client.chat(session, "second")
        assert_limited(await client.send(session, "third"), "turns_per_minute", at_most_s=60)
        assert [message["content"] for message in await client.messages(session)] == ["first", "one", "second", "two"]
        assert (await client.http.get("/sessions")).status_code == 200


async def test_a_button_is_a_turn_too(settings: Settings, provider: Provider) -> None:
    async with running(limited(settings, turns_per_minute=1)) as client:
        provider.will(says("hello"))
        session = await client.new_session()
        await client.chat(session, "hello")
        pressed = await client.http.post(
            f"/sessions/{session}/plan/decision", json={"decision": "confirm", "version": 1}
        )
        assert_limited(pressed, "turns_per_minute", at_most_s=60)


@pytest.mark.in_turns(1)
@pytest.mark.parametrize("redis", ["there", "away"])
async def test_of_many_messages_at_once_exactly_so_many_turns_are_accepted(
    settings: Settings, provider: Provider, redis: str
) -> None:
    held = Held()
    provider.will(*[held.answer] * 3)
    if redis == "away":
        settings = settings.model_copy(update={"redis_url": NOWHERE})
    async with running(limited(settings, concurrent_turns=3)) as client:
        sessions = [await client.new_session() for _ in range(8)]
        sent = [asyncio.create_task(client.send(session, "go")) for session in sessions]
        await provider.wait_for_requests(3)
        waiting = set(sent)
        while len(waiting) > 3:
            _, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        held.go.set()
        answers = [await task for task in sent]
        assert sorted(answer.status_code for answer in answers) == [200] * 3 + [429] * 5
        refused = next(answer for answer in answers if answer.status_code == 429)
        assert_limited(refused, "concurrent_turns", at_most_s=5)


@pytest.mark.sweep
async def test_a_place_is_free_as_soon_as_a_turn_has_ended_however_it_ended(
    settings: Settings, provider: Provider
) -> None:
    provider.will(says("one"), fails(500), says("three"))
    async with running(limited(settings, concurrent_turns=1)) as client:
        session = await client.new_session()
        statuses = [(await client.send(session, text)).status_code for text in ("first", "second", "third")]
        assert statuses[::2] == [200, 200]
        assert statuses[1] >= 500
        missing = "ses_" + "0" * 26
        assert [(await client.send(missing, "x")).status_code for _ in range(3)] == [404] * 3


@pytest.mark.sweep
async def test_the_same_request_again_takes_nothing_of_the_share(settings: Settings, provider: Provider) -> None:
    held = Held()
    provider.will(held.answer, says("two"))
    async with running(limited(settings, concurrent_turns=1, turns_per_minute=3)) as client:
        session = await client.new_session()

        async def ask() -> httpx2.Response:
            path, key = f"/sessions/{session}/chat", {"Idempotency-Key": "one"}
            return await client.http.post(path, json={"message": "first"}, headers=key)

        sent = [asyncio.create_task(ask())]
        await provider.wait_for_requests(1)
        sent.extend(asyncio.create_task(ask()) for _ in range(4))
        assert_limited(await client.send(session, "second"), "concurrent_turns", at_most_s=5)
        held.go.set()
        answers = [await task for task in sent]
        assert {(answer.status_code, answer.json().get("turn_id")) for answer in answers} == {
            (200, answers[0].json()["turn_id"])
        }
        await client.chat(session, "third")


@pytest.mark.parametrize("key", [None, "k"])
async def test_a_turn_that_two_requests_ran_again_at_once_keeps_its_place(
    settings: Settings, provider: Provider, key: str | None
) -> None:
    held = Held()
    provider.will(fails(400))
    async with (
        running(limited(settings, concurrent_turns=2)) as client,
        looking_into(settings) as stores,
        looking_into(settings) as others,
    ):
        session = await client.new_session()
        assert (await client.send(session, "first")).status_code >= 500
        [failed] = await client.turns(session)
        provider.will(held.answer, held.answer)
        headers = {"Idempotency-Key": key} if key else {}
        async with stores.database.transaction():
            await stores.database.execute("SELECT FROM sessions WHERE id = $1 FOR UPDATE", session)
            both = {asyncio.create_task(retry(client, session, failed["turn_id"], **headers)) for _ in range(2)}
            await others.until_locked(OF_A_SESSION, 2)
        if key is None:
            [refused], both = await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            assert code(refused.result()) == (409, "turn_in_progress")
        await provider.wait_for_requests(2)
        if key:
            await until(partial(is_in_metrics, client, "segue_watchers 2.0"))
        other = asyncio.create_task(client.send(await client.new_session(), "second"))
        await provider.wait_for_requests(3)
        assert_limited(await client.send(await client.new_session(), "third"), "concurrent_turns", at_most_s=5)
        held.go.set()
        assert {(await task).status_code for task in (*both, other)} == {200}


@pytest.mark.parametrize("redis", ["there", "away"])
async def test_a_message_that_steers_or_interrupts_is_not_counted_beside_the_turn_that_it_joins(
    settings: Settings, provider: Provider, redis: str
) -> None:
    if redis == "away":
        settings = settings.model_copy(update={"redis_url": NOWHERE})
    async with running(limited(settings, concurrent_turns=1)) as client:
        session, other = await client.new_session(), await client.new_session()
        held = Held()
        provider.will(after(client, session, calls(TIME), "in Rome", "and in Oslo"), held.answer, says("instead"))
        sent = asyncio.create_task(client.send(session, "what time is it?"))
        await provider.wait_for_requests(2)
        for on_busy in ("enqueue", "reject", "steer", "interrupt"):  # elsewhere each of them is a second turn
            assert_limited(await client.send(other, "hello", on_busy=on_busy), "concurrent_turns", at_most_s=5)
        assert_limited(await client.send(session, "and then"), "concurrent_turns", at_most_s=5)
        answer = await client.chat(session, "stop, do this", on_busy="interrupt")
        assert answer["message"]["content"] == "instead"
        assert (await sent).json()["code"] == "turn_cancelled"
        held.go.set()


@pytest.mark.sweep
@pytest.mark.parametrize("passed_s", [ACCEPTING_S + 1, -3600], ids=["later", "clock set back"])
async def test_a_turn_that_may_have_been_accepted_keeps_its_place_until_that_is_known(
    settings: Settings, provider: Provider, passed_s: float
) -> None:
    clock = Frozen()
    async with running(limited(settings, concurrent_turns=1), clock=clock) as client, looking_into(settings) as stores:
        session = await client.new_session()
        async with stores.database.transaction():
            await stores.database.execute("LOCK TABLE messages IN EXCLUSIVE MODE")
            assert (await client.send(session, "first")).status_code == 503
        assert_limited(await client.send(session, "second"), "concurrent_turns", at_most_s=5)
        clock.now += timedelta(seconds=passed_s)
        provider.will(says("one"))
        assert (await client.chat(session, "third"))["message"]["content"] == "one"


async def test_every_key_of_the_limits_ends_by_itself(settings: Settings, provider: Provider) -> None:
    provider.will(says("one"))
    every = limited(settings, requests_per_minute=9, turns_per_minute=9, concurrent_turns=9)
    async with running(every) as client, looking_into(settings) as stores:
        await client.chat(await client.new_session(), "hello")
        keys = [key async for key in stores.redis.scan_iter() if key.startswith(("segue:rate", "segue:places"))]
        assert len(keys) == 3
        assert all([await stores.redis.ttl(key) > 0 for key in keys])


async def test_without_limits_nothing_is_counted(client: Client, settings: Settings, provider: Provider) -> None:
    provider.will(says("one"))
    await client.chat(await client.new_session(), "hello")
    async with looking_into(settings) as stores:
        keys = [key async for key in stores.redis.scan_iter()]
    assert not [key for key in keys if key.startswith(("segue:rate", "segue:places"))]
