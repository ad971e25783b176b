"""The clients of PostgreSQL and Redis that a command or the doctor opens. Knows no settings."""

from contextlib import AsyncExitStack
from dataclasses import dataclass

from segue.around.embedded.server_urls import ServerUrls
from segue.db.engine import Database, Pooler
from segue.db.redis import Cache, Streams
from segue.db.redis_server import RedisServer


@dataclass(frozen=True, slots=True)
class OpenStores:
    """The clients of PostgreSQL and Redis."""

    urls: ServerUrls
    database: Database
    cache: Cache
    streams: Streams


def open_clients(stack: AsyncExitStack, urls: ServerUrls, *, pooler: Pooler = "none", reading: int = 1) -> OpenStores:
    """Returns clients of a few connections, for a command. They connect when they are used; the stack closes them."""
    redis = RedisServer(urls.redis_url)
    database = Database(urls.database_url, pooler=pooler, writing=1, reading=reading)
    stores = OpenStores(urls, database, Cache(redis), Streams(redis))
    for client in (redis, stores.database, stores.cache, stores.streams):
        stack.push_async_callback(client.close)
    return stores
