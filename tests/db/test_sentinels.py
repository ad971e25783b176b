"""A Redis whose primary changes, and one that speaks TLS: real servers of their own."""

from pathlib import Path

import pytest
from redis.asyncio import Redis

from segue.db.redis_connection import RedisServer, watched_by_sentinels
from segue.db.redis_keys import Cache
from segue.db.urls import check_redis
from tests.support.logs import until
from tests.support.redis_servers import (
    free_port,
    needs_tls,
    plain_server,
    sentinel,
    sentinel_with_tls,
    tls_server,
)


async def test_the_primary_that_sentinels_name_is_used_and_the_next_one_after_it_has_died(tmp_path: Path) -> None:
    first, second = free_port(), free_port()
    async with (
        plain_server(first, tmp_path) as primary,
        plain_server(second, tmp_path, "--replicaof", "127.0.0.1", str(first)),
        sentinel(tmp_path, first) as port,
    ):
        await until(lambda: knows_replica(port))
        url = f"redis+sentinel://127.0.0.1:1,127.0.0.1:{port}/kept/0"
        check_redis(url)
        server = RedisServer(url)
        cache = Cache(server)
        await cache.set_json("kept", 1, ttl_s=600)
        assert await cache.get_json("kept") == 1
        async with Redis.from_url(f"redis://127.0.0.1:{second}") as replica:
            await until(lambda: has(replica, "kept"))
        primary.kill()
        await primary.wait()
        await until(lambda: writes(cache))
        assert server.outages >= 1  # a replica may answer before it is the primary, which is another
        assert await cache.get_json("kept") == 1
        await cache.close()
        await server.close()


async def knows_replica(port: int) -> bool:
    async with Redis.from_url(f"redis://127.0.0.1:{port}", protocol=2) as asked:
        return len(await asked.sentinel_slaves("kept")) == 1


async def has(redis: Redis, key: str) -> bool:
    return bool(await redis.exists(key))


async def writes(cache: Cache) -> bool:
    await cache.set_json("new", 2, ttl_s=600)
    return await cache.get_json("new") == 2


def test_a_url_of_sentinels_names_them_the_primary_and_how_to_speak_to_it() -> None:
    watched = watched_by_sentinels("redis+sentinel://:secret@one,two:5000/kept/3?client_name=segue")
    assert watched is not None
    assert watched.sentinels == (("one", 26379), ("two", 5000))
    assert watched.url == "redis://:secret@primary/3?client_name=segue"
    assert "secret" not in str(watched)
    assert watched_by_sentinels("redis://one/0") is None


async def check_use(url: str, kept: int | None) -> None:
    """Expects that the URL is taken, and that the Redis is used or, if `kept` is None, left alone."""
    check_redis(url)
    server = RedisServer(url)
    cache = Cache(server)
    await cache.set_json("kept", 1, ttl_s=60)
    assert await cache.get_json("kept") == kept
    assert server.degraded == (kept is None)
    await cache.close()
    await server.close()


def test_with_tls_the_sentinels_are_asked_as_the_primary_is_but_with_an_account_of_their_own() -> None:
    query = "ssl_ca_certs=/ca.pem&ssl_check_hostname=false&sentinel_username=guard&sentinel_password=hid%26den"
    watched = watched_by_sentinels(f"rediss+sentinel://:secret@one/kept/3?{query}")
    assert watched is not None
    assert watched.url == "rediss://:secret@primary/3?ssl_ca_certs=%2Fca.pem&ssl_check_hostname=false"
    tls = {"ssl": True, "ssl_ca_certs": "/ca.pem", "ssl_check_hostname": False}
    assert watched.asking == {**tls, "username": "guard", "password": "hid&den"}
    assert not any(hidden in f"{watched!r} {watched}" for hidden in ("secret", "hid"))


@needs_tls
async def test_sentinels_and_a_primary_with_tls_and_passwords_are_used_if_both_passwords_are_right(
    tmp_path: Path,
) -> None:
    async with sentinel_with_tls(tmp_path, passwords=("one", "two")) as port:
        trusting = f"ssl_ca_certs={tmp_path / 'authority.pem'}"
        for password, asked_with, query, kept in (
            ("one", "two", f"&{trusting}", 1),
            ("two", "two", f"&{trusting}", None),
            ("one", "one", f"&{trusting}", None),
            ("one", "two", "", None),
        ):
            url = f"rediss+sentinel://:{password}@127.0.0.1:{port}/kept/0?sentinel_password={asked_with}{query}"
            await check_use(url, kept)


@pytest.mark.parametrize("url", ["redis+sentinel://one:1", "redis+sentinel:///kept/0", "redis+sentinel://one:x/kept"])
def test_a_url_that_names_no_primary_or_no_sentinel_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="redis\\+sentinel"):
        check_redis(url)


@needs_tls
async def test_a_redis_with_tls_is_used_if_its_certificate_is_trusted_and_left_alone_if_not(tmp_path: Path) -> None:
    async with tls_server(tmp_path) as url:
        for query, kept in (("", None), (f"?ssl_ca_certs={tmp_path / 'authority.pem'}", 1)):
            await check_use(url + query, kept)
