"""Whether Redis answers, as the clients of one process know it together."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis
from structlog.testing import capture_logs

from segue.db.redis_connection import RedisServer, connections
from segue.db.redis_keys import Batch, Cache, Rates, Streams
from segue.domain.session import TurnKey
from segue.turns.queue import TurnQueue
from tests.support.logs import until
from tests.support.patience import PATIENCE_S
from tests.support.proxy import proxied
from tests.support.redis_servers import free_port, plain_server

TURN = TurnKey("ses_1", "turn_1", 1)
ROUNDS = 4
STEPS = 30  # of the event loop: more than a command takes


@asynccontextmanager
async def clients(url: str) -> AsyncIterator[tuple[RedisServer, Cache, Streams, Rates, TurnQueue]]:
    async def runs_none(_: str) -> None: ...

    server = RedisServer(url)
    cache, streams = Cache(server), Streams(server)
    rates = Rates(cache)
    queue = TurnQueue(server, runs_none, concurrency=0)
    try:
        yield server, cache, streams, rates, queue
    finally:
        for client in (queue, streams, cache, server):
            await client.close()


@pytest.mark.hasty
async def test_all_clients_wait_once_for_a_redis_that_is_frozen_and_ask_again_once_it_answers(redis_url: str) -> None:
    async with (
        proxied(Path(redis_url.removeprefix("unix://"))) as door,
        clients(f"redis://127.0.0.1:{door.port}/0") as (server, cache, streams, rates, queue),
    ):
        await cache.set_json("kept", 1, ttl_s=60)
        await door.begin("freezes")
        assert await cache.get_json("kept") is None
        waited = len(door.unheard)
        for _ in range(ROUNDS):
            assert await cache.get_json("kept") is None
            assert await cache.take("lease", "holder", ttl_s=60)
            assert await streams.append([Batch(TURN, 1, b"1 {}\n", opens=True)]) is False
            assert await streams.read({TURN: 0}) is None
            assert await rates.count("turns", "ada", 9) is None
            assert await queue.send("ses_1") is False
        assert len(door.unheard) < waited + ROUNDS  # only probes, of which there are four a second at most
        assert server.outages == 1
        await door.open()
        async with asyncio.timeout(PATIENCE_S):
            await server.until_it_answers()
        assert await cache.get_json("kept") == 1
        assert await queue.send("ses_1")


async def test_a_task_that_is_cancelled_at_any_step_of_an_operation_ends_and_nobody_gets_its_answer(
    redis_url: str,
) -> None:
    redis = Redis.from_pool(connections(redis_url, 1))
    await redis.set("its", "own")
    for steps in range(STEPS):
        went_on = asyncio.Event()

        async def ask(went_on: asyncio.Event) -> None:
            await redis.get("its")
            went_on.set()
            await asyncio.Event().wait()

        asking, hearing = asyncio.create_task(ask(went_on)), asyncio.create_task(went_on.wait())
        for _ in range(steps):
            await asyncio.sleep(0)
        was_answered = went_on.is_set()
        asking.cancel()
        await asyncio.wait({asking, hearing}, return_when=asyncio.FIRST_COMPLETED)
        assert was_answered or not went_on.is_set()
        hearing.cancel()
        assert await redis.set("another", "one") is True
    await redis.aclose()


async def test_a_task_that_is_cancelled_as_its_command_is_sent_leaves_its_answer_to_nobody(redis_url: str) -> None:
    pool, asking = connections(redis_url, 1), set[asyncio.Future[Any]]()

    class CancelsAsSent(pool.connection_class):  # type: ignore[misc, name-defined]
        async def _send_packed_command(self, command: Any) -> None:
            await super()._send_packed_command(command)
            for each in asking:
                each.cancel()  # `asyncio.wait_for` swallows it: what it waits for is done

    pool.connection_class = CancelsAsSent
    redis = Redis.from_pool(pool)
    await redis.set("its", "own")  # connects
    # An answer that is there before the next command redis-py finds by itself.
    asking.add(asyncio.ensure_future(redis.blpop(["nothing"], 0.1)))
    await asyncio.wait(asking)
    assert all(each.cancelled() for each in asking)
    asking.clear()
    assert await redis.set("another", "one") is True
    await redis.aclose()


async def test_a_redis_that_is_full_is_left_alone_until_it_takes_writes(redis_url: str) -> None:
    async with Redis.from_url(redis_url) as redis, clients(redis_url) as (server, cache, *_):
        await redis.config_set("maxmemory", 1)
        try:
            await cache.set_json("new", 1, ttl_s=60)
            before = await refused(redis)

            async def is_refused_twice() -> bool:
                return await refused(redis) >= before + 2

            await until(is_refused_twice)
            assert server.degraded
        finally:
            await redis.config_set("maxmemory", 0)
        await server.until_it_answers()


async def cause_at(url: str) -> str:
    """Why a Redis at this URL takes no writes, as the log says it, and readiness and the doctor know it."""
    with capture_logs() as logs:
        async with clients(url) as (server, cache, *_):
            assert not await cache.ping()
            told = cache.cause
            assert told == server.cause
    assert told is not None
    assert {"cause": told.name, "advice": told.mend}.items() <= logs[0].items()
    return told.name


async def test_a_user_a_password_and_a_right_that_redis_refuses_are_told_apart(redis_url: str) -> None:
    path = redis_url.removeprefix("unix://")
    async with Redis.from_url(redis_url, protocol=2) as redis:
        await redis.acl_setuser("guarded", enabled=True, passwords=["+right"], keys=["*"], categories=["+@all"])
        await redis.acl_setuser("little", enabled=True, passwords=["+right"], keys=["*"], commands=["+get"])
        try:
            assert await cause_at(f"unix://guarded:wrong@{path}") == "access_denied"
            assert await cause_at(f"unix://little:right@{path}") == "not_allowed"
            async with clients(f"unix://guarded:right@{path}") as (_, cache, *_):
                assert await cache.ping()
        finally:
            await redis.acl_deluser("guarded", "little")


async def test_a_replica_is_told_as_one_that_only_reads(tmp_path: Path) -> None:
    port = free_port()
    async with plain_server(port, tmp_path, "--replicaof", "127.0.0.1", "1"):
        assert await cause_at(f"redis://127.0.0.1:{port}") == "read_only"


async def test_a_redis_that_loads_speaks_no_tls_or_is_not_found_is_told_as_such() -> None:
    async def loads(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while await reader.read(1000):
                writer.write(b"-LOADING Redis is loading the dataset in memory\r\n")
        writer.close()

    async with await asyncio.start_server(loads, "127.0.0.1") as server:
        port = server.sockets[0].getsockname()[1]
        assert await cause_at(f"redis://127.0.0.1:{port}") == "loading"
        assert await cause_at(f"rediss://127.0.0.1:{port}") == "tls"
    assert await cause_at(f"redis://127.0.0.1:{port}") == "refused"
    assert await cause_at("redis://nowhere.invalid") == "unknown_host"
    assert await cause_at("redis+sentinel://127.0.0.1:1/kept/0") == "no_primary"


async def refused(redis: Redis) -> int:
    return int((await redis.info("commandstats"))["cmdstat_set"]["rejected_calls"])
