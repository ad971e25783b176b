"""PostgreSQL and Redis for one process: the URLs that are set, or those of embedded servers, which start and stop here.
Runs with the standard library alone: embedded servers and the libraries of the stores are imported only if needed.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pydantic import SecretStr

    from segue.db.engine import Database, Pooler
    from segue.db.redis_connection import RedisServer
    from segue.db.redis_keys import Cache, Streams


@dataclass(frozen=True, slots=True)
class ServerUrls:
    database_url: str
    redis_url: str


@asynccontextmanager
async def server_urls(
    database_url: "SecretStr | None",
    redis_url: "SecretStr | None",
    data_dir: Path,
    *,
    join_only: bool = False,
    fast: bool = False,
) -> AsyncIterator[ServerUrls]:
    """Yields the given URLs. For one that is missing, embedded servers in `data_dir` run until the block ends; with
    `join_only` those that another process runs, and none is made. Raises what `embedded_servers` raises.
    """
    if database_url is not None and redis_url is not None:
        yield ServerUrls(database_url.get_secret_value(), redis_url.get_secret_value())
        return
    from segue.around.embedded import servers  # noqa: PLC0415 (needs fcntl and the wheels, which URLs do not)

    async with AsyncExitStack() as stack:
        embedded = await asyncio.to_thread(servers.running_servers, data_dir) if join_only else None
        if embedded is None:
            started = servers.embedded_servers(data_dir, fast=fast)
            starting = asyncio.ensure_future(asyncio.to_thread(started.__enter__))

            async def stop() -> None:
                await asyncio.wait([starting])  # the caller may delete the folder, into which a start still writes
                if starting.exception() is None:
                    await asyncio.to_thread(started.__exit__, None, None, None)

            stack.push_async_callback(stop)
            embedded = await asyncio.shield(starting)
        yield ServerUrls(
            database_url.get_secret_value() if database_url else embedded.database_url,
            redis_url.get_secret_value() if redis_url else embedded.redis_url,
        )


@contextmanager
def servers_under_way(database_url: "SecretStr | None", redis_url: "SecretStr | None", folder: Path) -> Iterator[None]:
    """Starts embedded servers if a URL is missing, while the block goes on, and keeps them until it ends. `server_urls`
    waits for them in there, and raises what keeps them from starting.
    """

    def start() -> None:
        from segue.around.embedded import servers  # noqa: PLC0415 (see above)

        held.enter_context(servers.embedded_servers(folder))

    with ExitStack() as held, ThreadPoolExecutor(1) as starting:
        if database_url is None or redis_url is None:
            starting.submit(start)
        yield


@dataclass(frozen=True, slots=True)
class OpenStores:
    urls: ServerUrls
    redis: "RedisServer"
    database: "Database"
    cache: "Cache"
    streams: "Streams"


def open_clients(
    stack: AsyncExitStack,
    urls: ServerUrls,
    *,
    pooler: "Pooler" = "none",
    writing: int = 1,
    reading: int = 1,
    options: Mapping[str, Any] = MappingProxyType({}),
) -> OpenStores:
    """Returns clients of few connections, which connect when used; the stack closes them. `options`: see Database."""
    from segue.db.engine import Database  # noqa: PLC0415 (see above)
    from segue.db.redis_connection import RedisServer  # noqa: PLC0415 (the same)
    from segue.db.redis_keys import Cache, Streams  # noqa: PLC0415 (the same)

    redis = RedisServer(urls.redis_url)
    database = Database(urls.database_url, pooler=pooler, writing=writing, reading=reading, options=options)
    stores = OpenStores(urls, redis, database, Cache(redis), Streams(redis))
    for client in (redis, stores.database, stores.cache, stores.streams):
        stack.push_async_callback(client.close)
    return stores
