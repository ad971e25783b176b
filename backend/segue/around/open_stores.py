"""The stores, opened for a command that needs nothing else of the service; and `segue migrate`."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import TypeVar

import typer

from segue.around.embedded.service_process import ServerUrls, server_urls
from segue.around.terminal import refusal, settings_with
from segue.config import Settings
from segue.db.engine import Database
from segue.db.migrations import upgrade
from segue.db.redis import Cache
from segue.db.redis_server import RedisServer
from segue.domain.errors import AppError
from segue.users.audit import CLI, AuditedAction, record_act

Done = TypeVar("Done")


def migrate() -> None:
    """Brings the database to the newest schema."""

    async def run(_settings: Settings, urls: ServerUrls, _stack: AsyncExitStack) -> str | None:
        return await asyncio.to_thread(upgrade, urls.database_url)

    newer = on_the_servers(run)
    told = f"at {newer}, which a newer release made; this one can use it" if newer else "at the newest revision"
    typer.echo(f"The database is {told}.")


async def note(database: Database, action: AuditedAction, **details: object) -> None:
    """Writes into the audit what is done at the command line."""
    async with database.transaction() as connection:
        await record_act(connection, CLI, action, details=details)


def on_the_stores(run: Callable[[Database, Cache], Awaitable[Done]]) -> Done:
    """Returns what `run` returns, given the stores that `segue serve` uses, at the newest schema.

    The service may run at the same time. Raises typer.Exit if the stores cannot be opened or `run` raises AppError.
    """

    async def opened(settings: Settings, urls: ServerUrls, stack: AsyncExitStack) -> Done:
        if settings.migrate_on_start:
            await asyncio.to_thread(upgrade, urls.database_url)
        database, redis = (
            Database(urls.database_url, pooler=settings.database_pooler, writing=1, reading=1),
            RedisServer(urls.redis_url),
        )
        cache = Cache(redis)
        for client in (redis, database, cache):
            stack.push_async_callback(client.close)
        return await run(database, cache)

    return on_the_servers(opened)


def on_the_servers(
    run: Callable[[Settings, ServerUrls, AsyncExitStack], Awaitable[Done]], *, needs_data: bool = False
) -> Done:
    """Returns what `run` returns, given the servers that `segue serve` uses, at whatever schema they are. Raises as
    `on_the_stores` does; with `needs_data` also if DATA_DIR is to be used, and has no database.
    """
    settings = settings_with()
    if needs_data and settings.database_url is None and not (settings.data_dir.expanduser() / "postgres").is_dir():
        raise refusal(f"There is no database in {settings.data_dir}. Set DATA_DIR or DATABASE_URL to the one in use.")

    async def found() -> Done:
        async with AsyncExitStack() as stack:
            given = settings.database_url, settings.redis_url, settings.data_dir
            return await run(settings, await stack.enter_async_context(server_urls(*given)), stack)

    try:
        return asyncio.run(found())
    except AppError as error:
        raise refusal(error.detail) from error
