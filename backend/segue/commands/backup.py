"""`segue backup` writes all that is stored into one file, `segue restore` puts it back."""

import sys
import time
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Annotated

import typer
from rich import filesize
from sqlalchemy.exc import DBAPIError

from segue.commands.new_file import new_file
from segue.commands.stores import note, on_the_servers
from segue.commands.terminal import refusal
from segue.config import Settings
from segue.db.backup.archive import Manifest
from segue.db.backup.dump import back_up
from segue.db.backup.restore import restore as restore_from
from segue.db.engine import Database
from segue.db.redis import Cache
from segue.db.redis_server import RedisServer
from segue.domain.errors import AppError
from segue.embedded.urls import ServerUrls
from segue.version import VERSION

PROGRESS_S = 0.2
OURS_IN_REDIS = "segue:"


class _ProgressLine:
    """Says on a terminal which table is being copied, in one line."""

    def __init__(self) -> None:
        self._next = 0.0

    def __call__(self, table: str, size_bytes: int) -> None:
        if sys.stderr.isatty() and time.monotonic() >= self._next:
            self._next = time.monotonic() + PROGRESS_S
            typer.echo(f"\r\x1b[K{table}  {filesize.decimal(size_bytes)}", nl=False, err=True)

    def end(self, manifest: Manifest) -> None:
        if sys.stderr.isatty():
            typer.echo("\r\x1b[K", nl=False, err=True)
        for name, table in manifest.tables.items():
            if table.rows:
                typer.echo(f"{name}  {table.rows}", err=True)


def backup(file: Annotated[Path, typer.Argument(help="A new file, for this account only.")]) -> None:
    """Copies every table as of one moment. Prints how many rows of each there are."""
    progress = _ProgressLine()

    async def run(_settings: Settings, urls: ServerUrls, stack: AsyncExitStack) -> Manifest:
        database = Database(urls.database_url, writing=1, reading=1)
        stack.push_async_callback(database.close)
        with new_file(file) as out:
            manifest = await back_up(database, out, version=VERSION, progress=progress)
        with suppress(AppError, DBAPIError):  # a server that only reads, a schema from before there was an audit
            await note(database, "back_up", rows=manifest.rows)
        return manifest

    manifest = on_the_servers(run, needs_data=True)
    progress.end(manifest)
    size = filesize.decimal(file.stat().st_size)
    typer.echo(f"{file} holds {manifest.rows} rows of {manifest.made_at:%Y-%m-%d %H:%M:%S} UTC in {size}.")


def restore(
    file: Annotated[Path, typer.Argument(help="What `segue backup` has written.", exists=True, dir_okay=False)],
    *,
    force: Annotated[bool, typer.Option("--force", help="Delete what is stored. It is kept if this fails.")] = False,
) -> None:
    """Restores all of it or nothing, at the newest schema. Turns that ran then go on once a service starts."""
    progress = _ProgressLine()

    async def run(_settings: Settings, urls: ServerUrls, stack: AsyncExitStack) -> tuple[Manifest, int | None]:
        database, redis = Database(urls.database_url, writing=1, reading=1), RedisServer(urls.redis_url)
        cache = Cache(redis)
        for client in (redis, database, cache):
            stack.push_async_callback(client.close)
        manifest = await restore_from(database, urls.database_url, file, force=force, progress=progress)
        await note(database, "restore", made_at=manifest.made_at.isoformat(), rows=manifest.rows)
        return manifest, await cache.delete_where(lambda key: key.startswith(OURS_IN_REDIS))

    manifest, deleted = on_the_servers(run)
    progress.end(manifest)
    typer.echo(f"Restored {manifest.rows} rows of {manifest.made_at:%Y-%m-%d %H:%M:%S} UTC from {file}.")
    if deleted is None:
        raise refusal("Redis could not be asked. Flush it before a service starts: it may know what is not stored.")
