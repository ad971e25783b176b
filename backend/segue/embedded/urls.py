"""Where PostgreSQL and Redis are: at the URLs that are set, or embedded ones for as long as somebody uses them."""

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass

from segue.config import Settings


@dataclass(frozen=True, slots=True)
class ServerUrls:
    database: str
    redis: str


async def server_urls(stack: AsyncExitStack, settings: Settings) -> ServerUrls:
    """The servers that are configured, or embedded ones for as long as the stack is open."""
    database, redis = settings.database_url, settings.redis_url
    if database is not None and redis is not None:
        return ServerUrls(database.get_secret_value(), redis.get_secret_value())
    from segue.embedded.servers import embedded_servers  # noqa: PLC0415 (not even imported where URLs are given)

    entered = embedded_servers(settings.data_dir)
    servers = await asyncio.to_thread(entered.__enter__)
    stack.push_async_callback(asyncio.to_thread, entered.__exit__, None, None, None)
    return ServerUrls(
        database.get_secret_value() if database else servers.database_url,
        redis.get_secret_value() if redis else servers.redis_url,
    )


async def visited_server_urls(stack: AsyncExitStack, settings: Settings) -> ServerUrls:
    """The same, but embedded servers that run already are taken as they are, and none is made where none was."""
    if settings.database_url is None or settings.redis_url is None:
        from segue.embedded.servers import running_servers  # noqa: PLC0415 (the same)

        running = await asyncio.to_thread(running_servers, settings.data_dir)
        if running is not None:
            database, redis = settings.database_url, settings.redis_url
            return ServerUrls(
                database.get_secret_value() if database else running.database_url,
                redis.get_secret_value() if redis else running.redis_url,
            )
    return await server_urls(stack, settings)
