"""The stores, opened for a command that needs nothing else of the service; and `segue migrate`."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import wraps
from inspect import signature
from typing import Concatenate, ParamSpec, TypeVar

import typer

from segue.around.embedded.server_urls import ServerUrls, server_urls
from segue.around.terminal import refusal, settings_with
from segue.config import Settings
from segue.db.engine import Database, Pooler
from segue.db.migrations import upgrade
from segue.db.redis import Cache
from segue.db.redis_server import RedisServer
from segue.domain.errors import AppError
from segue.users.audit import CLI, AuditedAction, record_act

P = ParamSpec("P")
Done = TypeVar("Done")


@dataclass(frozen=True, slots=True)
class CommandStores:
    """The clients of PostgreSQL and Redis while a command runs."""

    database_url: str
    database: Database
    cache: Cache

    async def note(self, action: AuditedAction, **details: object) -> None:
        """Records in the audit what is done at the command line."""
        async with self.database.transaction() as connection:
            await record_act(connection, CLI, action, details=details)


def migrate() -> None:
    """Brings the database to the newest schema."""

    async def run(_settings: Settings, urls: ServerUrls, _stack: AsyncExitStack) -> str | None:
        return await asyncio.to_thread(upgrade, urls.database_url)

    newer = on_the_servers(run)
    revision = f"at {newer}, which a newer release made; this one can use it" if newer else "at the newest revision"
    typer.echo(f"The database is {revision}.")


def with_stores(command: Callable[Concatenate[CommandStores, P], Awaitable[Done]]) -> Callable[P, Done]:
    """Gives a command the stores that `segue serve` uses, at the newest schema. The service may run at the same time.

    The command raises typer.Exit if the stores cannot be opened or if it raises AppError itself.
    """

    @wraps(command)
    def run(*args: P.args, **options: P.kwargs) -> Done:
        async def opened(settings: Settings, urls: ServerUrls, stack: AsyncExitStack) -> Done:
            if settings.migrate_on_start:
                await asyncio.to_thread(upgrade, urls.database_url)
            return await command(open_clients(stack, urls, settings.database_pooler), *args, **options)

        return on_the_servers(opened)

    _, *parameters = signature(command).parameters.values()
    run.__signature__ = signature(command).replace(parameters=parameters)  # type: ignore[attr-defined]  # typer reads it
    return run


def open_clients(stack: AsyncExitStack, urls: ServerUrls, pooler: Pooler = "none") -> CommandStores:
    redis = RedisServer(urls.redis_url)
    database = Database(urls.database_url, pooler=pooler, writing=1, reading=1)
    stores = CommandStores(urls.database_url, database, Cache(redis))
    for client in (redis, stores.database, stores.cache):
        stack.push_async_callback(client.close)
    return stores


def on_the_servers(
    run: Callable[[Settings, ServerUrls, AsyncExitStack], Awaitable[Done]], *, needs_data: bool = False
) -> Done:
    """Returns what `run` returns, given the servers that `segue serve` uses, at whatever schema they are. Raises
    typer.Exit if they do not start or `run` raises AppError; with `needs_data` also if DATA_DIR would be used and has
    no database.
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
