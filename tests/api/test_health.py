"""What the service says of itself, and what it still does, while Postgres or Redis is away."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from pydantic import SecretStr
from sqlalchemy import make_url

from segue import __version__
from segue.config import Settings
from tests.support.logs import until
from tests.support.provider import Provider, says
from tests.support.proxy import Outage, Proxy, proxied
from tests.support.service import Client, running
from tests.support.stores import looking_into, socket_of

QUICK_S = 25  # on a busy machine; each wait for a store ends after seconds, where a client would wait 30 s
OUTAGES: tuple[Outage, ...] = ("refuses", "hangs_up", "freezes")
CAUSES = {"refuses": "refused", "hangs_up": "lost", "freezes": "no_answer"}
OF_ANSWER = ("content-type", "content-length", "content-disposition", "cache-control")


@pytest.fixture
async def postgres(database_url: str) -> AsyncIterator[Proxy]:
    async with proxied(socket_of(database_url)) as proxy:
        yield proxy


@pytest.fixture
async def redis(settings: Settings) -> AsyncIterator[Proxy]:
    assert settings.redis_url is not None
    async with proxied(Path(settings.redis_url.get_secret_value().removeprefix("unix://"))) as proxy:
        yield proxy


@pytest.fixture
async def client(settings: Settings, database_url: str, postgres: Proxy, redis: Proxy) -> AsyncIterator[Client]:
    """The service with a door in front of either server; the upkeep of turns looks at Postgres all the time."""
    database = make_url(database_url).set(host="127.0.0.1", port=postgres.port, query={})
    changes = {
        "database_url": SecretStr(database.render_as_string(hide_password=False)),
        "redis_url": SecretStr(f"redis://127.0.0.1:{redis.port}/0"),
        "turn_lease_s": 1,
    }
    async with running(settings.model_copy(update=changes)) as served:
        yield served


async def test_a_live_process_says_so_and_nothing_else(client: Client) -> None:
    assert await client.get("/health/live") == {"status": "ok"}


@pytest.mark.parametrize("path", ["/health/live", "/health/ready", "/sessions", "/events", "/me/export"])
async def test_who_asks_with_head_gets_the_headers_alone_also_of_a_stream(client: Client, path: str) -> None:
    async with client.http.stream("GET", path) as got:
        head = await client.http.head(path)
    assert (head.status_code, head.content) == (200, b"")
    assert {name: head.headers.get(name) for name in OF_ANSWER} == {name: got.headers.get(name) for name in OF_ANSWER}
    assert (await client.http.head("/memories/nothing")).status_code == 405


async def test_a_ready_service_names_each_part_of_it(client: Client) -> None:
    assert await client.get("/health/ready") == {
        "postgres": "ok",
        "redis": "ok",
        "worker": "ok",
        "mcp": {},
        "version": __version__,
    }


@pytest.mark.hasty
@pytest.mark.in_turns(1)
@pytest.mark.parametrize("outage", OUTAGES)
async def test_without_postgres_it_refuses_quickly_and_comes_back_by_itself(
    client: Client, provider: Provider, postgres: Proxy, outage: Outage
) -> None:
    session = await client.new_session()
    await postgres.begin(outage)
    async with asyncio.timeout(QUICK_S):
        ready = await client.http.get("/health/ready")
    assert (ready.status_code, ready.json()["postgres"]) == (503, "down")
    async with asyncio.timeout(QUICK_S):
        refused = await client.send(session, "is anyone there?")
    assert (refused.status_code, refused.json()["code"]) == (503, "storage_unavailable")
    assert int(refused.headers["retry-after"]) > 0
    assert (await client.http.get("/health/live")).status_code == 200

    await postgres.open()

    async def is_ready() -> bool:
        return (await client.http.get("/health/ready")).status_code == 200

    await until(is_ready)
    provider.will(says("back again"))
    assert (await client.chat(session, "and now?"))["message"]["content"] == "back again"
    assert [message["content"] for message in await client.messages(session)] == ["and now?", "back again"]


@asynccontextmanager
async def read_only(settings: Settings) -> AsyncIterator[None]:
    """Postgres as a failover or a full disk leaves it. A connection made meanwhile only reads, as long as it lives."""
    async with looking_into(settings) as stores:
        name = await stores.database.fetchval("SELECT current_database()")
        await stores.database.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
        others = "FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'segue'"
        await stores.database.execute(f"SELECT pg_terminate_backend(pid, 5000) {others}")
        try:
            yield
        finally:
            await stores.database.execute(f"ALTER DATABASE {name} RESET default_transaction_read_only")


@pytest.mark.usefixtures("new_connections")
async def test_a_postgres_that_only_reads_is_an_outage_and_heals(
    client: Client, settings: Settings, provider: Provider
) -> None:
    session = await client.new_session()
    async with read_only(settings):
        ready = await client.http.get("/health/ready")
        assert (ready.status_code, ready.json()["postgres_cause"]) == (503, "read_only")
        refused = [await client.send(session, "is anyone there?"), await client.http.post("/sessions", json={})]
        assert {(each.status_code, each.json()["code"]) for each in refused} == {(503, "storage_read_only")}
        assert all(int(each.headers["retry-after"]) > 0 for each in refused)
        assert (await client.get(f"/sessions/{session}"))["id"] == session
    provider.will(says("back again"))
    assert (await client.chat(session, "and now?"))["message"]["content"] == "back again"
    assert (await client.get("/health/ready"))["postgres"] == "ok"


@pytest.mark.sweep
async def test_while_the_turns_are_locked_it_is_not_ready_and_says_so(client: Client, settings: Settings) -> None:
    async def is_locked() -> bool:
        ready = (await client.http.get("/health/ready")).json()
        return (ready["postgres"], ready.get("postgres_cause")) == ("down", "locked")

    async with looking_into(settings) as stores, stores.database.transaction():
        await stores.database.execute("LOCK TABLE turns IN ACCESS EXCLUSIVE MODE")
        await until(is_locked)

    async def is_ready() -> bool:
        return (await client.http.get("/health/ready")).status_code == 200

    await until(is_ready)


@pytest.mark.hasty
@pytest.mark.in_turns(1)
@pytest.mark.parametrize("outage", OUTAGES)
async def test_without_redis_it_stays_ready_and_answers_with_what_postgres_knows(
    client: Client, provider: Provider, redis: Proxy, outage: Outage
) -> None:
    provider.will(says("noted"), says("a cat"), says("still a cat"))
    session = await client.new_session()
    await client.chat(session, "There is a cat")
    await redis.begin(outage)
    without = {"postgres": "ok", "redis": "down", "worker": "ok", "mcp": {}, "version": __version__}

    async def its_cause_is_found() -> bool:  # a connection that was open is lost first
        ready = await client.get("/health/ready")
        return ready == {**without, "redis_cause": CAUSES[outage]}

    await until(its_cause_is_found)
    async with asyncio.timeout(QUICK_S):
        answer = await client.chat(session, "what is there?")
    assert answer["message"]["content"] == "a cat"
    assert answer["memory_used"]["history_messages"] == 2
    memory = await client.get(f"/sessions/{session}/memory")
    assert memory["short_term"]["last_assistant_message"] == "a cat"

    async def redis_is_back() -> bool:
        return bool((await client.get("/health/ready"))["redis"] == "ok")

    await redis.open()
    await client.chat(session, "and now?")
    assert await until(redis_is_back, logged="redis_recovered")
