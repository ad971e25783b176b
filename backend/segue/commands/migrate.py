"""`segue migrate`: the schema, once, before a rollout."""

import asyncio

import typer

from segue.commands.terminal import refusal, settings_with
from segue.db.migrations import upgrade
from segue.domain.errors import AppError
from segue.embedded.urls import server_urls


def migrate() -> None:
    """Bring the database to the newest schema, once, before a rollout."""
    settings = settings_with()

    async def run() -> None:
        async with server_urls(settings.database_url, settings.redis_url, settings.data_dir) as urls:
            await asyncio.to_thread(upgrade, urls.database_url)

    try:
        asyncio.run(run())
    except AppError as error:
        raise refusal(error.detail) from error
    typer.echo("The database is at the newest revision.")
