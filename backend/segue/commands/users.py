"""`segue keys` is about API keys, `segue export` writes all that a user has, `segue erase` removes it."""

import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from errno import EEXIST
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Annotated

import typer

from segue.commands.stores import on_the_stores
from segue.commands.terminal import refusal
from segue.db.engine import Database
from segue.db.erasure import Erased, erase_user
from segue.db.personal_data import rows_of_user
from segue.db.redis import Cache
from segue.domain.clock import utc_now
from segue.domain.identity import SCOPES, Scope, is_owner, is_user
from segue.identity.api_keys import CHECK_EVERY_S, ApiKey, create_key, list_keys, revoke_key

keys = typer.Typer(no_args_is_help=True)

User = Annotated[str, typer.Option("--user", help="Whose it is.")]


@keys.command("create")
def create(
    user: User,
    scope: Annotated[
        list[str] | None, typer.Option(help=f"What else it may do: {', '.join(SCOPES)}. Repeatable.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="What it is for, to tell it from others.")] = None,
) -> None:
    """Make a key. It is shown once, as the last word."""
    scopes = _scopes(scope or [])
    owner = _user(user, is_user)

    async def run(database: Database, _: Cache) -> str:
        async with database.transaction() as connection:
            return await create_key(connection, owner, scopes=scopes, name=name, now=utc_now())

    key = on_the_stores(run)
    typer.echo(f"A key for {owner}, shown this once. Send it as `Authorization: Bearer …` or `X-API-Key: …`.\n{key}")


@keys.command("list")
def show(user: Annotated[str | None, typer.Option(help="Only this user's.")] = None) -> None:
    """List keys, revoked ones too."""

    async def run(database: Database, _: Cache) -> list[ApiKey]:
        async with database.read_only() as connection:
            return await list_keys(connection, user)

    for key in on_the_stores(run):
        typer.echo("  ".join(_columns(key)))


@keys.command("revoke")
def revoke(key_id: Annotated[str, typer.Argument(help="The id that `segue keys list` shows.")]) -> None:
    """Revoke a key, for every process within a few seconds."""

    async def run(database: Database, _: Cache) -> ApiKey:
        async with database.transaction() as connection:
            return await revoke_key(connection, key_id)

    revoked = on_the_stores(run)
    typer.echo(f"{revoked.id} of {revoked.owner} is revoked; nothing accepts it after {CHECK_EVERY_S:g} s.")


def export(
    user: User,
    output: Annotated[Path | None, typer.Option(help="A new file, for this account only; without it stdout.")] = None,
) -> None:
    """Writes all rows of a user: `{"table": …, "row": …}` a line, and how many of each on stderr."""
    owner = _user(user)

    async def run(database: Database, _: Cache) -> Counter[str]:
        rows: Counter[str] = Counter()
        with nullcontext(sys.stdout) if output is None else _whole(output) as file:
            async for table, row in rows_of_user(database, owner):
                file.write(f'{{"table": "{table}", "row": {row}}}\n')
                rows[table] += 1
        return rows

    for table, count in on_the_stores(run).items():
        typer.echo(f"{table}  {count}", err=True)


@contextmanager
def _whole(path: Path) -> Iterator[IO[str]]:
    """A file for this account only. It gets its name once all of it is written."""
    try:
        if path.exists():
            raise FileExistsError(EEXIST, os.strerror(EEXIST))
        with TemporaryDirectory(dir=path.parent) as folder:
            part = Path(folder, path.name)
            with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT, 0o600), "w", encoding="utf-8") as file:
                yield file
            part.rename(path)
    except OSError as error:
        raise refusal(f"{path} cannot be written: {error.strerror}. --output takes the name of a new file.") from None


def erase(user: User) -> None:
    """Removes all that a user has, and prints how many rows of each table and keys of Redis that was."""
    owner = _user(user)

    async def run(database: Database, cache: Cache) -> Erased:
        return await erase_user(database, cache, owner)

    erased = on_the_stores(run)
    for table, count in erased.rows.items():
        typer.echo(f"{table}  {count}")
    if erased.redis_keys is None:
        raise refusal("Redis could not be asked. What it holds of this user expires by itself, all of it within a day.")
    typer.echo(f"redis keys  {erased.redis_keys}")


def _user(name: str, is_one: Callable[[str], bool] = is_owner) -> str:
    if not is_one(name):
        raise refusal("--user takes one printable line of at most 200 characters, without spaces around it.")
    return name


def _scopes(given: list[str]) -> list[Scope]:
    known = [scope for scope in SCOPES if scope in given]
    if unknown := set(given).difference(SCOPES):
        raise refusal(f"There is no scope {', '.join(sorted(unknown))}; there is: {', '.join(SCOPES)}.")
    return known


def _columns(key: ApiKey) -> tuple[str, ...]:
    used = f"used {key.last_used_at:%Y-%m-%d %H:%M}" if key.last_used_at else "never used"
    state = f"revoked {key.revoked_at:%Y-%m-%d %H:%M}" if key.revoked_at else used
    return (
        key.id,
        key.owner,
        "unreadable" if key.is_unreadable else ",".join(key.scopes) or "-",
        key.name or "-",
        f"made {key.created_at:%Y-%m-%d}",
        state,
    )
