"""What calls of the model took: in answers, by GET /usage, in the metrics, and after their session is gone."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import date
from typing import Any

import orjson
import pytest
from pydantic import SecretStr
from sqlalchemy import make_url
from sqlalchemy.exc import DBAPIError
from starlette.responses import Response

from segue.config import Settings
from segue.db.engine import Database
from segue.db.outages import StorageUnavailable
from segue.domain.errors import AppError
from segue.domain.identity import LOCAL_USER, Charge
from segue.domain.ids import utc_now
from segue.users.limits import Limits
from segue.users.usage import Account, Books, book, note_groups
from tests.support.facts import all_taken_in, fact, known, notes, tell
from tests.support.identity import new_key, speaking
from tests.support.logs import awaiting
from tests.support.metrics import scraped
from tests.support.patience import PATIENCE_S
from tests.support.plans import Frozen
from tests.support.provider import EMBEDDED_TOKENS, Provider, calls, completion, delta, fails, raw, says, sse
from tests.support.proxy import Proxy, proxied
from tests.support.service import Client, running
from tests.support.stores import looking_into, socket_of
from tests.support.streams import streamed

CALL = {
    "llm_calls": 1,
    "input_tokens": 11,
    "output_tokens": 7,
    "estimated": False,
    "cost": 16.75e-6,
    "cost_complete": True,
}
STORED = b"INSERT 0 1\0"  # how Postgres says that the answer is stored
COMMITTED = b"COMMIT\0"
BOOKED = b"SELECT 1\0"
NOTHING = {"cached_tokens": 0, "reasoning_tokens": 0}


def takes(text: str, **usage: Any) -> Response:
    """An answer with these numbers."""
    body = orjson.loads(bytes(says(text).body))
    return raw({**body, "usage": usage or None})


@asynccontextmanager
async def behind_a_door(database_url: str) -> AsyncIterator[tuple[Proxy, str]]:
    """A door before PostgreSQL, and the URL of the database behind it."""
    async with proxied(socket_of(database_url)) as postgres:
        there = make_url(database_url).set(host="127.0.0.1", port=postgres.port, query={})
        yield postgres, there.render_as_string(hide_password=False)


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[Database]:
    database = Database(url)
    try:
        yield database
    finally:
        await database.close()


async def used(client: Client, **params: Any) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = (await client.get("/usage", **params))["items"]
    return items


async def test_an_answer_and_the_usage_of_its_day_tell_the_same_tokens_and_the_exact_cost(
    settings: Settings, provider: Provider
) -> None:
    cached, thought = {"cached_tokens": 80, "cache_write_tokens": 8}, {"reasoning_tokens": 30}
    told = {"prompt_tokens": 100, "prompt_tokens_details": cached, "completion_tokens_details": thought}
    provider.will(calls(("current_time", {})), takes("one", completion_tokens=50, **told))
    async with running(settings) as client:
        answer = await client.chat(await client.new_session(), "What time is it?")
        counted = {
            "llm_calls": 2,
            "input_tokens": 111,
            "cached_tokens": 80,
            "output_tokens": 57,
            "reasoning_tokens": 30,
        }
        cost = (23 * 0.25 + 80 * 0.025 + 8 * 0.25 * 1.25 + 57 * 2) / 1e6
        assert answer["usage"] == {
            **counted,
            "estimated": False,
            "cost": pytest.approx(cost, rel=1e-12),
            "duration_ms": answer["usage"]["duration_ms"],
        }
        [day] = await used(client)
        assert {**day, "duration_ms": 0} == {
            **answer["usage"],
            "key": day["key"],
            "duration_ms": 0,
            "cost_complete": True,
        }
        scrape = await scraped(client)
    counters = ("cached_tokens", "reasoning_tokens", "cost_dollars")
    assert [scrape(f"segue_model_{name}_total") for name in counters] == [80, 30, pytest.approx(cost)]
    assert scrape("segue_model_tokens_total", direction="input", model="scripted", agent="segue") == 111


async def test_a_model_without_a_price_has_no_cost_and_what_is_not_counted_is_estimated(
    settings: Settings, provider: Provider
) -> None:
    provider.will(takes("one"))
    async with running(settings.model_copy(update={"llm_model": "free-for-all"})) as client:
        answer = await client.chat(await client.new_session(), "hello")
        [day] = await used(client, group="model")
    assert (day["key"], day["cost"], day["cost_complete"], day["estimated"]) == ("free-for-all", None, False, True)
    assert answer["usage"]["cost"] is None
    assert day["input_tokens"] == answer["usage"]["input_tokens"] > 100


async def test_calls_without_a_price_leave_the_known_part_of_a_cost_and_mark_it_as_a_part(
    settings: Settings, provider: Provider
) -> None:
    provider.will(*[says("yes")] * 4)
    unpriced = settings.model_copy(update={"prices_file": None})
    other = settings.model_copy(update={"llm_model": "free-for-all"})

    async def costs(client: Client, group: str) -> list[tuple[float | None, bool]]:
        return [(item["cost"], item["cost_complete"]) for item in await used(client, group=group)]

    async with running(settings) as client:
        session = await client.new_session()
        await client.chat(session, "with a price")
        assert await costs(client, "day") == [(16.75e-6, True)]
    async with running(unpriced) as client:
        await client.chat(session, "without, in the same row")
        assert await costs(client, "day") == [(16.75e-6, False)]
    async with running(other) as client:
        await client.chat(session, "of another model")
        assert await costs(client, "model") == [(None, False), (16.75e-6, False)]
        async with looking_into(settings) as stores:  # as the release before leaves it
            await stores.database.execute("UPDATE usage SET cost = NULL, unpriced_calls = 0 WHERE model = 'scripted'")
    async with running(settings) as client:
        await client.chat(session, "and with one again")
        assert await costs(client, "model") == [(None, False), (16.75e-6, False)]
        assert await costs(client, "day") == [(16.75e-6, False)]
        told = (await client.get("/ops/users"))["items"][0]["overview"]
        assert (told["cost_today"], told["cost_complete"]) == (16.75e-6, False)
        whole = (await client.get("/ops/overview"))["figures"]["total"]
        assert (whole["cost"], whole["cost_complete"]) == (pytest.approx(2 * 16.75e-6), False)


async def test_turns_without_an_answer_are_charged_for_what_they_used(settings: Settings, provider: Provider) -> None:
    never = asyncio.Event()

    async def held(_: dict[str, Any]) -> Response:
        await never.wait()
        return says("too late")

    provider.will(
        completion({"role": "assistant", "content": " "}, "stop"),
        completion({"role": "assistant", "content": ""}, "stop"),
        fails(401),
        held,
    )
    async with running(settings) as client:
        session = await client.new_session()
        assert (await client.send(session, "say nothing")).status_code == 502
        assert (await client.send(session, "be refused")).status_code == 502
        [failed] = await used(client, group="session")
        assert {name: failed[name] for name in ("key", "llm_calls", "input_tokens", "output_tokens", "estimated")} == {
            "key": session,
            "llm_calls": 2,
            "input_tokens": 22,
            "output_tokens": 14,
            "estimated": False,
        }
        accepted = (await client.send(session, "wait", background=True)).json()
        await provider.wait_for_requests(4)
        await client.http.post(f"/sessions/{session}/turns/{accepted['turn_id']}/cancel")
        async with looking_into(settings) as stores:
            await stores.until("SELECT calls = 3 FROM usage")
        [cancelled] = await used(client, group="session")
        never.set()
    assert (cancelled["estimated"], cancelled["output_tokens"]) == (True, 14)
    assert cancelled["input_tokens"] > 100


WORDS = [f"word{number} " for number in range(50)]


@pytest.mark.parametrize(
    "pieces",
    [
        [delta(content=word) for word in WORDS],
        [
            delta(tool_calls=[{"index": 0, "id": "c1", "function": {"name": "current_time", "arguments": "{"}}]),
            *(delta(tool_calls=[{"index": 0, "function": {"arguments": word}}]) for word in WORDS),
        ],
    ],
    ids=["thinking", "a call"],
)
async def test_what_was_held_back_of_an_answer_that_fell_silent_is_charged(
    settings: Settings, provider: Provider, pieces: list[dict[str, Any]]
) -> None:
    provider.will(sse(*pieces, never := asyncio.Event()))
    impatient = {"llm_model": "deepseek-r1", "llm_idle_timeout_s": 0.3, "llm_max_retries": 0}
    async with running(settings.model_copy(update=impatient)) as client:
        session = await client.new_session()
        await streamed(client, session, "think")
        [silent] = await used(client, group="session")
        never.set()
    assert (silent["llm_calls"], silent["estimated"]) == (1, True)
    assert 80 < silent["output_tokens"] < 300


@pytest.mark.sweep
async def test_a_turn_whose_end_is_stored_at_a_second_try_is_charged_once(
    settings: Settings, provider: Provider
) -> None:
    async with running(settings) as client, looking_into(settings) as holder, looking_into(settings) as stores:

        async def locks_its_row(_: dict[str, Any]) -> Response:
            await holder.database.execute("BEGIN; SELECT FROM turns FOR UPDATE")
            return says("")

        provider.will(says(" "), locks_its_row)
        session = await client.new_session()
        failing = asyncio.create_task(client.send(session, "say nothing"))
        async with asyncio.timeout(PATIENCE_S):  # the lease is renewed all the while
            await stores.until("SELECT count(*) > 0 FROM usage")
        await holder.database.execute("COMMIT")
        assert (await failing).status_code == 502
        [charged] = await used(client, group="session")
    assert [charged[name] for name in ("llm_calls", "input_tokens", "output_tokens")] == [2, 22, 14]


@pytest.mark.sweep
async def test_facts_and_summaries_are_charged_to_their_owner(settings: Settings, provider: Provider) -> None:
    provider.summary = says("They met.")
    short = settings.model_copy(update={"history_limit": 6})
    async with running(short) as client, looking_into(settings) as stores:
        session = await client.new_session()
        provider.will(says("Hello Ada."), notes(fact("name is Ada")))
        await client.chat(session, "My name is Ada")
        await all_taken_in(settings)
        provider.will(*[says("Yes.")] * 4)
        for number in range(4):
            await client.chat(session, f"And {number}?")
        await stores.until("SELECT summary_due_at IS NULL AND summary_seq > 0 FROM sessions")
        [mine] = await used(client, group="session")
    assert (mine["key"], mine["llm_calls"]) == (session, len(provider.requests) + len(provider.summaries))


@pytest.mark.usefixtures("long_leases")
async def test_what_is_embedded_is_charged_as_a_model_of_its_own_in_the_session_it_was_for(
    settings: Settings, provider: Provider
) -> None:
    async def vector(_: str) -> Response | list[float]:
        return [1.0, 0.5]

    provider.embedding = vector
    provider.will(calls(("search_memory", {"query": "boats"})), says("You sail."))
    small = {"embedding_model": "embedder", "fact_token_budget": 50, "turn_lease_s": 1.0}
    async with running(settings.model_copy(update=small)) as client, looking_into(settings) as stores:
        for number in range(5):
            await tell(client, f"I have sailed around the island number {number}")
        await stores.until("SELECT count(*) = 0 FROM memories WHERE embedding IS NULL")
        session = await client.new_session()
        answer = await client.chat(session, "Where do I sail?")
        assert len(await known(client, query="boats")) == 5
        by_model = {item["key"]: item for item in await used(client, group="model")}
        by_session = {item["key"]: item for item in await used(client, group="session")}
        scrape = await scraped(client)
    assert len(provider.embedded) == 5 + 2 + 1  # facts, the turn's message and its search, the user's
    spent = by_model["embedder"]
    assert (spent["input_tokens"], spent["output_tokens"], spent["estimated"]) == (8 * EMBEDDED_TOKENS, 0, False)
    assert (spent["cost"], spent["cost_complete"]) == (pytest.approx(8 * EMBEDDED_TOKENS * 0.02e-6), True)
    assert by_session[session]["input_tokens"] == answer["usage"]["input_tokens"] + 2 * EMBEDDED_TOKENS
    assert scrape("segue_model_tokens_total", direction="input", model="embedder", agent="") == 8 * EMBEDDED_TOKENS


@pytest.mark.parametrize("outage", ["no answer in time", "no count"])
async def test_what_was_embedded_and_not_counted_is_estimated(
    outage: str, settings: Settings, provider: Provider
) -> None:
    never = asyncio.Event()

    async def vector(_: str) -> Response | list[float]:
        if outage == "no answer in time":
            await never.wait()
        return raw({"data": [{"index": 0, "embedding": [1.0, 0.5]}], "usage": None})

    provider.embedding = vector
    async with running(settings.model_copy(update={"embedding_model": "embedder"})) as client:
        await client.new_session()
        assert await known(client, query="boats") == []
        [spent] = await used(client, group="model")
        never.set()
    assert (spent["key"], spent["estimated"], spent["input_tokens"] > 0) == ("embedder", True, True)


@pytest.mark.sweep
async def test_usage_is_grouped_paged_and_told_for_days_in_utc(settings: Settings, provider: Provider) -> None:
    clock = Frozen()
    async with running(settings, clock=clock) as client:
        sessions = []
        for _ in range(3):
            provider.will(says("yes"), says("yes"))
            sessions.append(await client.new_session())
            await client.chat(sessions[-1], "one")
            await client.chat(sessions[-1], "two")
            clock.now = clock.now.replace(day=clock.now.day + 1)
        days = await used(client, **{"from": "2026-11-20", "to": "2026-11-22"})
        assert [day["key"] for day in days] == ["2026-11-20", "2026-11-21", "2026-11-22"]
        assert days[0] == {
            **NOTHING,
            **CALL,
            "llm_calls": 2,
            "input_tokens": 22,
            "output_tokens": 14,
            "cost": 33.5e-6,
        } | {"key": "2026-11-20"}
        assert [day["key"] for day in await used(client, to="2026-11-21")] == ["2026-11-20", "2026-11-21"]
        first = await client.get("/usage", group="session", limit=2)
        rest = await client.get("/usage", group="session", limit=2, cursor=first["next_cursor"])
        assert [item["key"] for page in (first, rest) for item in page["items"]] == sessions
        assert rest["next_cursor"] is None
        [model] = await used(client, group="model")
        assert (model["key"], model["llm_calls"]) == ("scripted", 6)


@pytest.mark.in_turns(3)
@pytest.mark.parametrize(
    "query",
    [
        "since=2026-11-20",
        "group=hour",
        "from=yesterday",
        "from=2026-11-20&to=2026-11-19",
        "from=2025-11-20&to=2026-11-21",
        "limit=201",
        "cursor=x",
        "to=0001-01-01",
    ],
)
async def test_a_question_that_makes_no_sense_is_refused(client: Client, query: str) -> None:
    refused = await client.http.get(f"/usage?{query}")
    assert refused.status_code == 422, refused.text
    assert (await client.get("/usage?from=2025-11-20&to=2026-11-20"))["items"] == []  # 366 days


@pytest.mark.sweep
async def test_the_numbers_of_a_deleted_session_stay_without_its_id(settings: Settings, provider: Provider) -> None:
    async with running(settings) as client:
        for _ in range(2):
            provider.will(says("yes"))
            session = await client.new_session()
            await client.chat(session, "hello")
            assert (await client.http.delete(f"/sessions/{session}")).status_code == 204
        [gone] = await used(client, group="session")
        assert (gone["key"], gone["llm_calls"], gone["input_tokens"]) == (None, 2, 22)
        async with looking_into(settings) as stores:
            assert session not in str(await stores.database.fetch("SELECT * FROM usage"))


async def test_of_a_user_who_was_erased_meanwhile_nothing_is_booked_and_no_group_noted(
    settings: Settings, database_url: str
) -> None:
    database, day = Database(database_url), date(2026, 1, 1)
    charges = {(day, "scripted"): Charge("scripted", calls=1)}
    async with running(settings) as client, looking_into(settings) as stores:
        session = await client.new_session()
        for owner in ("erased", LOCAL_USER):
            await database.write(book, owner, session, charges, holder="turn", epoch=1)
            await database.write(note_groups, owner, day, ["staff"])
        for table in ("usage", "user_groups"):
            assert [row["owner"] for row in await stores.database.fetch(f"SELECT owner FROM {table}")] == [LOCAL_USER]  # noqa: S608
    await database.close()


async def test_usage_of_others_is_for_ops_alone(settings: Settings, provider: Provider) -> None:
    provider.will(says("yes"), says("yes"))
    keyed = settings.model_copy(update={"auth": "api_key"})
    async with (
        running(keyed) as service,
        speaking(service, await new_key(settings, "ada")) as ada,
        speaking(service, await new_key(settings, "bob")) as bob,
        speaking(service, await new_key(settings, "root", ["ops"])) as root,
    ):
        for user in (ada, bob):
            await user.chat(await user.new_session(), "hello")
        assert [item["llm_calls"] for item in await used(ada)] == [1]
        for query in ("user=bob", "user=ada", "group=user", "everyone=true"):
            assert (await ada.http.get(f"/usage?{query}")).status_code == 403
        assert [(item["key"], item["llm_calls"]) for item in await used(root, group="user")] == [("ada", 1), ("bob", 1)]
        assert [item["key"] for item in await used(root, user="bob", group="model")] == ["scripted"]
        for group, key in (("agent", "segue"), ("model", "scripted")):
            [whole] = await used(root, everyone=True, group=group)
            assert (whole["key"], whole["llm_calls"]) == (key, 2)
        assert await used(root) == []


@pytest.mark.hasty
async def test_a_turn_whose_answer_was_stored_unheard_is_answered_and_charged_once(
    settings: Settings, provider: Provider, own_database_url: str
) -> None:
    lost = list[asyncio.Event]()
    async with behind_a_door(own_database_url) as (postgres, url):

        async def loses_the_answer(_: dict[str, Any]) -> Response:
            lost.append(postgres.lose(STORED))
            return says("Hi.")

        provider.will(loses_the_answer)
        async with (
            running(settings.model_copy(update={"database_url": SecretStr(url)})) as client,
            awaiting("turn_finished") as told,
        ):
            session = await client.new_session()
            answer = await client.chat(session, "hello")
            assert lost[0].is_set()
            assert told.is_set()
            [charged] = await used(client)
            assert (await client.messages(session))[-1]["seq"] == answer["message"]["seq"]
    assert (answer["message"]["content"], charged.items() >= CALL.items()) == ("Hi.", True)


@pytest.mark.hasty
async def test_a_turn_whose_end_was_stored_unheard_is_charged_once(
    settings: Settings, provider: Provider, own_database_url: str
) -> None:
    lost, own = list[asyncio.Event](), settings.model_copy(update={"database_url": SecretStr(own_database_url)})
    async with behind_a_door(own_database_url) as (postgres, url), looking_into(own) as stores:

        async def loses_the_word_of_its_end(_: dict[str, Any]) -> Response:
            turn = await stores.database.fetchval("SELECT id FROM turns")
            lost.append(postgres.lose(COMMITTED, after=turn.encode()))
            return says("")

        provider.will(says(" "), loses_the_word_of_its_end)
        async with running(settings.model_copy(update={"database_url": SecretStr(url)})) as client:
            refused = await client.send(await client.new_session(), "say nothing")
        assert (refused.status_code, lost[0].is_set()) == (502, True)
        assert await stores.database.fetchval("SELECT sum(calls) FROM usage") == 2


@pytest.mark.sweep
@pytest.mark.hasty
@pytest.mark.parametrize("unheard", [COMMITTED, pytest.param(BOOKED, marks=pytest.mark.sweep)])
async def test_what_was_booked_unheard_while_a_turn_runs_is_booked_once(
    settings: Settings, own_database_url: str, unheard: bytes
) -> None:
    own = settings.model_copy(update={"database_url": SecretStr(own_database_url)})
    async with (
        running(own) as client,
        behind_a_door(own_database_url) as (postgres, url),
        opened(url) as database,
    ):
        session = await client.new_session()
        account = Account(Books(database, utc_now, lambda _: Limits(tokens_per_day=100)), LOCAL_USER, session, "x")
        account.add(Charge("scripted", input_tokens=2))
        lost = postgres.lose(unheard)
        with pytest.raises(StorageUnavailable):
            await account.settle()
        assert lost.is_set()
        account.add(Charge("scripted", input_tokens=5))
        await account.close()
        [charged] = await used(client)
    assert (charged["llm_calls"], charged["input_tokens"]) == (2, 7)


async def test_what_a_failed_commit_did_not_book_counts_before_the_next_call_is_reserved(
    settings: Settings, own_database_url: str
) -> None:
    own = settings.model_copy(update={"database_url": SecretStr(own_database_url)})
    async with running(own) as client, looking_into(own) as stores, opened(own_database_url) as database:
        session = await client.new_session()
        account = Account(Books(database, utc_now, lambda _: Limits(tokens_per_day=10)), LOCAL_USER, session, "x")
        account.add(Charge("scripted", input_tokens=6))
        await stores.database.execute(
            """CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE EXCEPTION $$no$$; END';
            CREATE CONSTRAINT TRIGGER refuse AFTER INSERT ON usage DEFERRABLE INITIALLY DEFERRED
            FOR EACH ROW EXECUTE FUNCTION refuse()"""
        )
        with pytest.raises(DBAPIError):
            await account.settle()
        await stores.database.execute("DROP TRIGGER refuse ON usage")
        with pytest.raises(AppError) as refused:
            await account.reserve(lambda: Charge("scripted", input_tokens=6))
        assert refused.value.code == "rate_limited"
        assert await stores.database.fetchval("SELECT sum(input_tokens) FROM usage") == 6
