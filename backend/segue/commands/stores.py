"""The stores, opened for a command that needs nothing else of the service."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import TypeVar

from segue.commands.terminal import refusal, settings_with
from segue.db.engine import Database
from segue.db.migrations import upgrade
from segue.db.redis import Cache
from segue.domain.errors import AppError
from segue.embedded.urls import server_urls

Done = TypeVar("Done")


def on_the_stores(run: Callable[[Database, Cache], Awaitable[Done]]) -> Done:
    """On the servers `segue serve` uses with these settings, whether it runs or not; at their newest schema."""
    settings = settings_with()

    async def opened() -> Done:
        async with AsyncExitStack() as stack:
            given = settings.database_url, settings.redis_url, settings.data_dir
            urls = await stack.enter_async_context(server_urls(*given))
            if settings.migrate_on_start:
                await asyncio.to_thread(upgrade, urls.database_url)
            database, cache = Database(urls.database_url, writing=1, reading=1), Cache(urls.redis_url)
            stack.push_async_callback(database.close)
            stack.push_async_callback(cache.close)
            return await run(database, cache)

    try:
        return asyncio.run(opened())
    except AppError as error:
        raise refusal(error.detail) from error
