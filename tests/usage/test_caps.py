"""What a day may cost: reserved before each call of the model, so that no number of turns at once passes the cap."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from datetime import timedelta
from decimal import Decimal
from typing import Any

import httpx2
import orjson
import pytest
from starlette.responses import Response

from segue.config import Settings
from segue.db.engine import Database
from segue.domain.errors import AppError
from segue.domain.identity import LOCAL_USER, Charge
from segue.domain.ids import utc_now
from segue.turns import admission, claims
from segue.turns.chat_request import ChatRequest
from segue.users.limits import Limits, Reservation, has_room, make_reservation
from segue.users.usage import Account, Books
from tests.support.identity import new_key, speaking
from tests.support.logs import until
from tests.support.patience import PATIENCE_S
from tests.support.plans import Frozen
from tests.support.provider import Provider, calls, raw, says
from tests.support.service import Client, running
from tests.support.shelf import serving_shelf
from tests.support.stores import Stores, looking_into
from tests.support.sweeps import first

ANSWER_TOKENS = 500
CALL_TOKENS = 1800  # fewer than a call is reserved for

LEFT_OF_USERS = "SELECT (SELECT count(*) FROM usage) + (SELECT count(*) FROM reservations)"


def capped(settings: Settings, **caps: Any) -> Settings:
    return settings.model_copy(update={"llm_max_output_tokens": ANSWER_TOKENS, **caps})


def dear(response: Response, tokens: int = CALL_TOKENS) -> Response:
    """The answer, at as many tokens as the endpoint was asked to keep to, and the rest of the input."""
    usage = {"prompt_tokens": tokens - ANSWER_TOKENS, "completion_tokens": ANSWER_TOKENS}
    return raw({**orjson.loads(bytes(response.body)), "usage": usage})


def refused(response: httpx2.Response, limit: str) -> dict[str, Any]:
    problem: dict[str, Any] = response.json()
    code = "service_limit_reached" if limit.startswith(("total", "group")) else "rate_limited"
    assert (response.status_code, problem["code"], problem.get("limit")) == (429, code, limit), problem
    assert int(response.headers["retry-after"]) == problem["retry_after_s"]
    return problem


async def spent(client: Client) -> dict[str, Any]:
    items = (await client.get("/usage"))["items"]
    return (
        {"tokens": 0, "cost": 0}
        if not items
        else {
            "tokens": items[0]["input_tokens"] + items[0]["output_tokens"],
            "cost": items[0]["cost"],
        }
    )


CAPS: dict[str, dict[str, Any]] = {
    "tokens_per_day": {"limit_tokens_per_day": 40_000},
    "cost_per_day": {"limit_cost_per_day": Decimal(40), "llm_model": "dear-1"},
    "total_tokens_per_day": {"limit_total_tokens_per_day": 40_000},
    "total_cost_per_day": {"limit_total_cost_per_day": Decimal(40), "llm_model": "dear-1"},
}


@pytest.mark.in_turns(1)
@pytest.mark.parametrize("by", first(2, CAPS))
async def test_fifty_turns_at_once_in_two_processes_never_pass_the_cap(
    by: str, settings: Settings, provider: Provider
) -> None:
    """Each is held at the provider until each is either there or refused; then all of them take what they may."""
    go, ended = asyncio.Event(), 0

    async def held(body: dict[str, Any]) -> Response:
        assert body["max_tokens"] == ANSWER_TOKENS
        await go.wait()
        return dear(says("yes"))

    provider.always("hello", held)
    limited = capped(settings, **CAPS[by])
    async with running(limited) as one, running(limited) as two:

        async def ask(service: Client, session: str) -> httpx2.Response:
            nonlocal ended
            response = await service.send(session, "hello")
            async with provider.heard:
                ended += 1
                provider.heard.notify_all()
            return response

        wanted = [(service, await service.new_session()) for service in (one, two) for _ in range(25)]
        sent = [asyncio.create_task(ask(*each)) for each in wanted]
        await provider.wait_until(lambda: len(provider.requests) + ended == len(sent))
        go.set()
        answers = await asyncio.gather(*sent)
        accepted = [answer for answer in answers if answer.status_code == 200]
        for answer in answers:
            if answer not in accepted:
                refused(answer, by)
        total = await spent(one)
        assert 10 <= len(accepted) == len(provider.requests) < 25
        assert total == {"tokens": len(accepted) * CALL_TOKENS, "cost": total["cost"]}
        assert total["tokens"] <= 40_000


@pytest.mark.parametrize("limit", CAPS)
async def test_a_first_call_that_may_take_more_than_the_whole_cap_is_not_made(
    limit: str, settings: Settings, provider: Provider
) -> None:
    caps = {**CAPS[limit], f"limit_{limit}": Decimal("0.5") if "cost" in limit else 500}
    async with running(capped(settings, **caps)) as client:
        refused(await client.send(await client.new_session(), "hello"), limit)
    assert provider.requests == []


async def test_at_the_cap_nothing_is_accepted_until_the_next_day_and_an_emptied_redis_changes_nothing(
    settings: Settings, provider: Provider
) -> None:
    clock = Frozen()
    provider.will(dear(says("one"), 5900), says("two"))
    limited = capped(settings, limit_tokens_per_day=6000)
    async with running(limited, clock=clock) as client, looking_into(settings) as stores:
        session = await client.new_session()
        await client.chat(session, "first")
        for _ in range(2):
            assert refused(await client.send(session, "second"), "tokens_per_day")["retry_after_s"] == 15 * 3600
            await stores.redis.flushall()
        assert len(await client.messages(session)) == 2
        clock.now += timedelta(hours=15)
        assert (await client.chat(session, "second"))["message"]["content"] == "two"


async def test_a_turn_whose_next_call_does_not_fit_ends_and_says_when_to_come_back(
    settings: Settings, provider: Provider
) -> None:
    clock = Frozen()
    provider.will(dear(calls(("current_time", {})), 5000), says("later"))
    async with running(capped(settings, limit_tokens_per_day=6000), clock=clock) as client:
        session = await client.new_session()
        ended = await client.send(session, "What time is it?")
        problem = refused(ended, "tokens_per_day")
        [turn] = await client.turns(session)
        assert (problem["turn_id"], problem["retry_after_s"]) == (turn["turn_id"], 15 * 3600)
        assert turn["error"]["extra"] == {"limit": "tokens_per_day", "retry_after_s": 15 * 3600}
        assert (turn["status"], turn["error"]["code"]) == ("failed", "rate_limited")
        clock.now += timedelta(hours=15)
        assert (await client.chat(session, "And now?"))["message"]["content"] == "later"
        assert [day["llm_calls"] for day in (await client.get("/usage"))["items"]] == [1, 1]


async def test_what_one_user_spends_and_holds_counts_against_the_total_of_all_and_who_asks_learns_no_amount(
    settings: Settings, provider: Provider
) -> None:
    clock, go, entered = Frozen(), asyncio.Event(), asyncio.Event()

    async def held(_: dict[str, Any]) -> Response:
        entered.set()
        await go.wait()
        return dear(says("one"), 5000)

    guarded = capped(settings, auth="api_key", limit_total_tokens_per_day=6000, limit_tokens_per_day=1_000_000)
    provider.will(held)
    async with (
        running(guarded, clock=clock) as service,
        running(guarded, clock=clock) as elsewhere,
        speaking(service, await new_key(guarded, "ada")) as ada,
        speaking(elsewhere, await new_key(guarded, "bob")) as bob,
    ):
        adas, bobs = await ada.new_session(), await bob.new_session()
        asked = asyncio.create_task(ada.chat(adas, "a question of " + "many words " * 1000))
        async with asyncio.timeout(PATIENCE_S):
            await entered.wait()
        problem = refused(await bob.send(bobs, "hello"), "total_tokens_per_day")
        assert "6000" not in str(problem)
        assert problem["retry_after_s"] == 2  # as soon as the call that runs takes less
        go.set()
        await asked
        assert refused(await bob.send(bobs, "hello"), "total_tokens_per_day")["retry_after_s"] == 15 * 3600
        provider.will(says("two"))
        clock.now += timedelta(hours=15)
        assert (await bob.chat(bobs, "hello"))["message"]["content"] == "two"


async def test_what_users_of_a_group_spend_and_hold_counts_against_its_cap_and_no_other(
    settings: Settings, provider: Provider
) -> None:
    clock, go, entered = Frozen(), asyncio.Event(), asyncio.Event()

    async def held(_: dict[str, Any]) -> Response:
        entered.set()
        await go.wait()
        return dear(says("one"), 5000)

    caps = {"finance": Decimal(6), "sales": Decimal(20), "press": Decimal(0)}
    guarded = capped(settings, auth="api_key", limit_groups=caps, llm_model="dear-1")
    async with AsyncExitStack() as stack:
        service, elsewhere = [await stack.enter_async_context(running(guarded, clock=clock)) for _ in range(2)]
        clients = {}
        for user, groups in {"ada": ["finance", "press"], "bob": ["finance", "sales"], "eve": ["sales"]}.items():
            key = await new_key(guarded, user, groups=groups)
            clients[user] = await stack.enter_async_context(speaking(service if user == "ada" else elsewhere, key))
        sessions = {user: await client.new_session() for user, client in clients.items()}
        provider.will(held)
        asked = asyncio.create_task(clients["ada"].chat(sessions["ada"], "a question of " + "many words " * 1000))
        async with asyncio.timeout(PATIENCE_S):
            await entered.wait()
        problem = refused(await clients["bob"].send(sessions["bob"], "hello"), "group_cost_per_day")
        assert ("in finance together" in problem["detail"], "$" in str(problem)) == (True, False)
        go.set()
        await asked
        provider.will(dear(says("two")))
        assert (await clients["eve"].chat(sessions["eve"], "hello"))["message"]["content"] == "two"
        again = refused(await clients["bob"].send(sessions["bob"], "hello"), "group_cost_per_day")
        assert again["retry_after_s"] == 15 * 3600
        alone = await stack.enter_async_context(speaking(service, await new_key(guarded, "ada")))
        refused(await alone.send(sessions["ada"], "with a key of no group"), "group_cost_per_day")
        clock.now += timedelta(hours=15)
        provider.will(dear(says("of no group today"), 5000))
        await alone.chat(sessions["ada"], "hello")
        provider.will(says("three"))
        assert (await clients["bob"].chat(sessions["bob"], "hello"))["message"]["content"] == "three"


async def test_usage_is_added_up_by_group_for_operators_who_see_it_twice_of_users_in_two(
    settings: Settings, provider: Provider
) -> None:
    counted = dict.fromkeys(("finance", "press"), Decimal(0))
    guarded = settings.model_copy(update={"auth": "api_key", "limit_groups": counted})
    provider.will(*(says("Hello.") for _ in range(3)))
    async with running(guarded) as service, AsyncExitStack() as stack:
        for user, groups in {"ada": ["finance", "press"], "bob": ["finance", "choir"], "eve": ["choir"]}.items():
            client = await stack.enter_async_context(speaking(service, await new_key(guarded, user, groups=groups)))
            await client.chat(await client.new_session(), "Hello")
            assert (await client.http.get("/usage?group=group")).status_code == 403
        ops = await stack.enter_async_context(speaking(service, await new_key(guarded, "root", ["ops"])))
        used = {each["key"]: each["llm_calls"] for each in (await ops.get("/usage", group="group"))["items"]}
    assert used == {None: 1, "finance": 2, "press": 1}


@pytest.mark.in_turns(1)
@pytest.mark.parametrize("cap", ["tokens_per_day", "total_tokens_per_day"])
async def test_a_plan_that_the_cap_stops_waits_and_goes_on_after_it_lifts(
    cap: str, settings: Settings, provider: Provider
) -> None:
    clock = Frozen()
    steps = [
        {"id": 1, "description": "Read", "tool": "mcp_get_item", "args": {"item_id": "itm-1"}},
        {"id": 2, "description": "Say what it is", "tool": None, "args": None},
        {"id": 3, "description": "Read again", "tool": "mcp_get_item", "args": {"item_id": "itm-2"}},
    ]
    limited = capped(settings, planning="always", **{f"limit_{cap}": 9000})
    async with serving_shelf() as shelf:
        settings.mcp_config.write_text(json.dumps({"mcpServers": {"shelf": {"url": shelf.url}}}))
        async with running(limited, clock=clock) as client:
            provider.will(dear(says(json.dumps({"steps": steps})), 8500))
            session = await client.new_session()
            refused(await client.send(session, "Read itm-1, say what it is, then read itm-2"), cap)
            plan = await client.get(f"/sessions/{session}/plan")
            assert (plan["status"], [step["status"] for step in plan["steps"]]) == (
                "waiting",
                ["complete", "waiting", "pending"],
            )
            clock.now += timedelta(hours=15)
            provider.will(says("It is an item."), says("Both are read."))
            answer = await client.chat(session, "ok")
            assert (answer["plan"]["status"], shelf.effects) == ("completed", ["get itm-1", "get itm-2"])


@pytest.mark.parametrize("cap", ["tokens_per_day", "total_tokens_per_day"])
async def test_what_follows_a_turn_waits_while_its_owner_is_at_the_cap(
    cap: str, settings: Settings, provider: Provider
) -> None:
    clock = Frozen()
    clock.now = utc_now().replace(hour=12)  # jobs go by the database's clock
    provider.will(dear(says("Hello Ada."), 5900))
    limited = capped(settings, **{f"limit_{cap}": 6000})
    async with running(limited, clock=clock) as client, looking_into(settings) as stores:
        await client.chat(await client.new_session(), "My name is Ada")
        await stores.until(
            "SELECT facts_due_at BETWEEN now() + interval '11 hours' AND now() + interval '12 hours' FROM turns"
        )
    assert len(provider.requests) == 1


@pytest.fixture
async def database(settings: Settings) -> AsyncIterator[Database]:
    assert settings.database_url is not None
    opened = Database(settings.database_url.get_secret_value())
    yield opened
    await opened.close()


@pytest.mark.parametrize(("total", "who"), [(0, LOCAL_USER), (100, "eve")])
async def test_a_reservation_waits_for_one_that_is_being_made(total: int, who: str, database: Database) -> None:
    books = Books(database, utc_now, lambda _: Limits(tokens_per_day=100 - total), Limits(tokens_per_day=total))
    wanted = Reservation(LOCAL_USER, "one", 0, books.today(), tokens=60, cost=Decimal(0), lasts_s=60)
    async with database.transaction() as connection:
        if total:
            await has_room(connection, wanted, Limits(tokens_per_day=100), group="")
        made = await make_reservation(connection, wanted, Limits(tokens_per_day=100))
        another = asyncio.create_task(books.reserve(who, "another", lambda: Charge("x", input_tokens=60)))

        async def waits_or_is_done() -> bool:
            waiting = "SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND NOT granted)"
            return another.done() or bool((await connection.exec_driver_sql(waiting)).scalar())

        await until(waits_or_is_done)
    assert made.fits
    with pytest.raises(AppError, match="for all users together" if total else "at most 100"):
        await another


async def test_what_a_call_that_failed_has_spent_counts_before_the_next_of_its_turn_is_made(
    client: Client, database: Database
) -> None:
    books = Books(database, utc_now, lambda _: Limits(tokens_per_day=100))
    async with books.job(LOCAL_USER, await client.new_session(), lasts_s=60) as account:
        await account.reserve(lambda: Charge("x", input_tokens=60))
        account.add(Charge("x", input_tokens=60))
        with pytest.raises(AppError, match="at most 100"):
            await account.reserve(lambda: Charge("x", input_tokens=60))


async def test_a_turn_that_runs_on_after_its_user_was_erased_reserves_and_books_nothing(
    client: Client, database: Database
) -> None:
    books = Books(database, utc_now, lambda _: Limits(tokens_per_day=100))
    session = await client.new_session()
    async with database.autocommit() as connection:
        await admission.begin_turn(connection, LOCAL_USER, session, ChatRequest("hello?"), now=utc_now(), room=9)
        claim = await claims.claim_next(connection, session, worker="slow", lease_s=600)
        assert claim is not None
        account = Account(books, LOCAL_USER, session, claim.key.turn_id, epoch=claim.epoch)
        await account.reserve(lambda: Charge("x", input_tokens=60))
        account.add(Charge("x", input_tokens=5))
        assert (await client.http.delete("/me", params={"confirm": LOCAL_USER})).status_code == 200
        with pytest.raises(AppError):
            await account.reserve(lambda: Charge("x", input_tokens=60))
        account.add(Charge("x", input_tokens=5))
        await account.close()
        assert not await connection.run_sync(lambda each: each.exec_driver_sql(LEFT_OF_USERS).scalar())


async def test_a_job_that_goes_on_after_its_user_was_erased_reserves_and_books_nothing(
    client: Client, database: Database, stores: Stores
) -> None:
    books = Books(database, utc_now, lambda _: Limits(tokens_per_day=100))
    session = await client.new_session()
    async with books.job(LOCAL_USER, session, lasts_s=60) as account:
        await account.reserve(lambda: Charge("x", input_tokens=60))
        assert await stores.database.fetchval(LEFT_OF_USERS) == 1
        account.add(Charge("x", input_tokens=5))
        assert (await client.http.delete("/me", params={"confirm": LOCAL_USER})).status_code == 200
        with pytest.raises(AppError):
            await account.reserve(lambda: Charge("x", input_tokens=60))
        account.add(Charge("x", input_tokens=5))
    assert await stores.database.fetchval(LEFT_OF_USERS) == 0


async def test_what_a_process_that_died_had_reserved_is_free_once_another_has_its_turn(
    client: Client, database: Database
) -> None:
    books = Books(database, utc_now, lambda _: Limits(tokens_per_day=100))
    session = await client.new_session()

    async def fits() -> bool:
        try:
            await books.reserve(LOCAL_USER, "another", lambda: Charge("x", input_tokens=60))
        except AppError:
            return False
        await books.release(LOCAL_USER, "another")
        return True

    async with database.autocommit() as connection:
        await admission.begin_turn(connection, LOCAL_USER, session, ChatRequest("hello?"), now=utc_now(), room=9)
        claim = await claims.claim_next(connection, session, worker="gone", lease_s=600)
        assert claim is not None
        await books.reserve(LOCAL_USER, claim.key.turn_id, lambda: Charge("x", input_tokens=45), lasts_s=600)
        dead = Account(books, LOCAL_USER, session, claim.key.turn_id, epoch=claim.epoch)
        await dead.reserve(lambda: Charge("x", input_tokens=60))
        assert not await fits()
        await connection.exec_driver_sql("UPDATE turns SET epoch = epoch + 1")
        assert await fits()
        heir = Account(books, LOCAL_USER, session, claim.key.turn_id, epoch=claim.epoch + 1)
        await heir.reserve(lambda: Charge("x", input_tokens=60))
        dead.add(Charge("x", input_tokens=5))
        await dead.close()
        assert not await fits()
        await connection.exec_driver_sql("UPDATE turns SET status = 'failed', finished_at = now()")
        assert await fits()
        assert (await connection.exec_driver_sql("SELECT sum(input_tokens) FROM usage")).scalar() == 5
