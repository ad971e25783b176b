"""The stores, opened for a command that needs nothing else of the service; and `segue migrate`."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import wraps
from inspect import signature
from typing import Concatenate, ParamSpec, TypeVar

import typer

from segue.around.embedded.server_urls import ServerUrls, server_urls
from segue.around.store_clients import OpenStores, open_clients
from segue.around.terminal import refusal, settings_with
from segue.config import Settings
from segue.db.migrations import upgrade
from segue.domain.errors import AppError
from segue.users.audit import CLI, AuditedAction, record_act

P = ParamSpec("P")
Done = TypeVar("Done")


def migrate() -> None:
    """Brings the database to the newest schema."""

    async def run(_settings: Settings, urls: ServerUrls, _stack: AsyncExitStack) -> str | None:
        return await asyncio.to_thread(upgrade, urls.database_url)

    newer = on_the_servers(run)
    revision = f"at {newer}, which a newer release made; this one can use it" if newer else "at the newest revision"
    typer.echo(f"The database is {revision}.")


def with_stores(command: Callable[Concatenate[OpenStores, P], Awaitable[Done]]) -> Callable[P, Done]:
    """Gives a command the stores that `segue serve` uses, at the newest schema. The service may run at the same time.

    The command raises typer.Exit if the stores cannot be opened or if it raises AppError itself.
    """

    @wraps(command)
    def run(*args: P.args, **options: P.kwargs) -> Done:
        async def opened(settings: Settings, urls: ServerUrls, stack: AsyncExitStack) -> Done:
            if settings.migrate_on_start:
                await asyncio.to_thread(upgrade, urls.database_url)
            return await command(open_clients(stack, urls, pooler=settings.database_pooler), *args, **options)

        return on_the_servers(opened)

    _, *parameters = signature(command).parameters.values()
    run.__signature__ = signature(command).replace(parameters=parameters)  # type: ignore[attr-defined]  # typer reads it
    return run


async def note(stores: OpenStores, action: AuditedAction, **details: object) -> None:
    """Records in the audit what is done at the command line."""
    async with stores.database.transaction() as connection:
        await record_act(connection, CLI, action, details=details)


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
