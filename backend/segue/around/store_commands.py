"""The commands on the stores, beside a service or without one: `migrate`, `users`, `export`, `erase` and `keys`."""

import asyncio
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, nullcontext
from dataclasses import asdict
from datetime import datetime, timedelta
from decimal import Decimal
from functools import wraps
from inspect import signature
from pathlib import Path
from typing import Annotated, Concatenate, ParamSpec, TypeVar

import typer

from segue.around.embedded.server_urls import OpenStores, ServerUrls, open_clients, server_urls
from segue.around.terminal import new_file, one_line, refusal, refusing, settings_with
from segue.config import Settings
from segue.db.migrations import upgrade
from segue.db.outages import StorageUnavailable
from segue.db.postgres_server import ensure_schema
from segue.db.user_data import Adoption, ErasedRows, count_user, erase_user, has_rows, line_of, rows_of_user
from segue.domain.identity import LOCAL_USER, SCOPES, is_owner, is_user
from segue.domain.ids import new_id, utc_now
from segue.users.api_keys import CHECK_EVERY_S, ApiKey, NewKey, create_key, list_keys, lock_key, revoke_key, rotate_key
from segue.users.audit import CLI, AuditedAction, record_act
from segue.users.limits import NO_OWN, OwnLimits, load_limits, set_limits

P = ParamSpec("P")
Done = TypeVar("Done")


def migrate() -> None:
    """Brings the database to the newest schema."""
    newer = on_the_servers(lambda _settings, urls, _stack: asyncio.to_thread(upgrade, urls.database_url))
    revision = f"at {newer}, which a newer release made; this one can use it" if newer else "at the newest revision"
    typer.echo(f"The database is {revision}.")


def with_stores(command: Callable[Concatenate[OpenStores, P], Awaitable[Done]]) -> Callable[P, Done]:
    """Gives a command the stores that `segue serve` uses, at the newest schema, beside the service or without it. The
    command then raises typer.Exit if they cannot be opened, and in the place of an AppError.
    """

    @wraps(command)
    def run(*args: P.args, **options: P.kwargs) -> Done:
        async def opened(settings: Settings, urls: ServerUrls, stack: AsyncExitStack) -> Done:
            stores = open_clients(stack, urls, pooler=settings.database_pooler)
            await ensure_schema(stores.database, urls.database_url, migrates=settings.migrate_on_start)
            return await command(stores, *args, **options)

        return on_the_servers(opened)

    _, *parameters = signature(command).parameters.values()
    run.__signature__ = signature(command).replace(parameters=parameters)  # type: ignore[attr-defined]  # typer reads it
    return run


async def note(stores: OpenStores, action: AuditedAction, **details: object) -> None:
    """Records in the audit what is done at the command line."""
    await stores.database.transact(record_act, CLI, action, details=details)


def on_the_servers(
    run: Callable[[Settings, ServerUrls, AsyncExitStack], Awaitable[Done]], *, needs_data: bool = False
) -> Done:
    """Returns what `run` returns, given the servers that `segue serve` uses, at whatever schema they are. Raises
    typer.Exit if they do not start or `run` raises AppError; with `needs_data` also if DATA_DIR has no database.
    """
    settings = settings_with()
    if needs_data and settings.database_url is None and not (settings.data_dir.expanduser() / "postgres").is_dir():
        raise refusal(f"There is no database in {settings.data_dir}. Set DATA_DIR or DATABASE_URL to the one in use.")

    async def found() -> Done:
        async with AsyncExitStack() as stack:
            given = settings.database_url, settings.redis_url, settings.data_dir
            return await run(settings, await stack.enter_async_context(server_urls(*given)), stack)

    with refusing():
        try:
            return asyncio.run(found())
        except StorageUnavailable as error:  # its own words are for a client of the service
            raise refusal(f"The database cannot be used: {error.cause.why}. {error.cause.mend}") from error


# --- users ---


def _one_of(is_one: Callable[[str], bool]) -> Callable[[str], str]:
    def check(name: str) -> str:
        if not is_one(name):
            raise refusal("--user takes one printable line of at most 200 characters, without spaces around it.")
        return name

    return check


UserOption = Annotated[str, typer.Option("--user", help="The user.", callback=_one_of(is_owner))]
AtMost = Annotated[int | None, typer.Option(min=0, max=2**53)]

users = typer.Typer(no_args_is_help=True, add_completion=False)


@users.command("adopt")
@with_stores
async def adopt(
    stores: OpenStores,
    user: UserOption,
    from_: Annotated[str, typer.Option("--from", help="Whose it was.", callback=_one_of(is_owner))] = LOCAL_USER,
    *,
    merge: Annotated[bool, typer.Option("--merge", help="Also if the user has something already.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what there is to move.")] = False,
    wait_s: Annotated[int, typer.Option("--wait", min=0, max=86_400, help="Seconds for open turns to end.")] = 30,
) -> None:
    """Give a user all that was said without keys: sessions, files, facts, usage. Beside the service, or without it.
    Exits with 1 if a session is left because its turn is open: run it again then, as after any interruption.
    """
    if user == from_:
        raise refusal(f"--user and --from are both {user}.")
    adoption = Adoption(stores.database, from_, user)
    left = 0
    if not dry_run:
        if not merge and await adoption.would_mix():
            raise refusal(f"{user} has sessions or facts already. With --merge, those of {from_} come to them.")
        await note(stores, "adopt_user", **adoption.details)
        left = await adoption.run(wait_s=wait_s)
    moved = await adoption.rows() if dry_run else +adoption.moved
    if not moved and not left:
        typer.echo(f"There is nothing of {from_} to move.", err=True)
    print_counts(dict(sorted(moved.items())))
    for table, count in sorted((+adoption.left_out).items()):
        typer.echo(f"{table}  {count} left out: {user} has the same")
    if left:
        raise refusal(f"{left} sessions of {from_} have a turn that is open. Run it again when it has ended.", code=1)


@users.command("limits")
@with_stores
async def limits(
    stores: OpenStores,
    user: UserOption,
    requests_per_minute: AtMost = None,
    turns_per_minute: AtMost = None,
    concurrent_turns: AtMost = None,
    tokens_per_day: AtMost = None,
    cost_per_day: Annotated[float | None, typer.Option(min=0, max=1e9, help="In dollars; needs PRICES_FILE.")] = None,
    *,
    clear: Annotated[bool, typer.Option("--clear", help="Put the settings in force again first.")] = False,
) -> None:
    """Set limits of one user in the place of the settings, for every process within seconds; 0 is no limit. What is
    not given stays. Without options, show them.
    """
    cost = None if cost_per_day is None else Decimal(str(cost_per_day))
    given = OwnLimits(requests_per_minute, turns_per_minute, concurrent_turns, tokens_per_day, cost)
    if given == NO_OWN and not clear:
        own = (await stores.database.read(load_limits, [user])).get(user, NO_OWN)
    else:
        own = await stores.database.transact(set_limits, user, given, by=CLI, keeps_rest=not clear)
    for name, value in asdict(own).items():
        typer.echo(f"{name}  {f'as LIMIT_{name.upper()}' if value is None else value}")


@with_stores
async def export(
    stores: OpenStores,
    user: UserOption,
    output: Annotated[Path | None, typer.Option(help="A new file, for this account only; without it stdout.")] = None,
) -> None:
    """Writes all rows of a user: `{"table": …, "row": …}` a line, and how many of each on stderr."""
    rows = Counter[str]()
    await note(stores, "export_user", user=user)
    with nullcontext(sys.stdout.buffer) if output is None else new_file(output) as file:
        async for table, row in rows_of_user(stores.database, user):
            file.write(line_of(table, row).encode())
            rows[table] += 1
        file.flush()
    if not rows:
        typer.echo(f"There is nothing of {user}.", err=True)
    print_counts(rows, err=True)


def erase(
    user: UserOption,
    *,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what there is to remove.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Remove all that a user has, for good, and say how many rows of each table and keys of Redis that was. Asks first.
    Exits with 1 if there is no such user, and with 2 if there is no terminal to ask on: give --yes then.
    """
    if not (yes or dry_run or sys.stdin.isatty()):
        raise refusal(f"Nothing was removed. Look with --dry-run what {user} has, and remove it with --yes.")

    @with_stores
    async def count(stores: OpenStores) -> dict[str, int]:
        if await has_rows(stores.database, user):
            return {} if yes and not dry_run else await count_user(stores.database, user)
        raise refusal(f"There is no user {user}: no row is theirs.", code=1)

    @with_stores
    async def remove(stores: OpenStores) -> ErasedRows:
        await note(stores, "erase_user", user=user)
        return await erase_user(stores.database, stores.cache, user)

    print_counts(count())
    if dry_run or not (yes or typer.confirm(f"Remove all of this of {user}, for good?")):
        typer.echo("Nothing was removed.", err=True)
        raise typer.Exit(code=0 if dry_run else 1)
    erased = remove()
    print_counts(erased.rows)
    if erased.redis_keys is None:
        raise refusal("Redis could not be asked. What it holds of this user expires by itself, all of it within a day.")
    typer.echo(f"redis keys  {erased.redis_keys}")


def print_counts(rows: Mapping[str, int], *, err: bool = False) -> None:
    for table, count in rows.items():
        typer.echo(f"{table}  {count}", err=err)


# --- keys ---

keys = typer.Typer(no_args_is_help=True, add_completion=False)

KeyArgument = Annotated[str, typer.Argument(help="The id that `segue keys list` shows.")]
ValidDays = Annotated[int | None, typer.Option(min=1, max=36_500, help="How long it works; without this, for ever.")]
Hours = Annotated[int, typer.Option(min=0, max=8784, help="How long the old one still works.")]


def _known(given: list[str] | None) -> list[str] | None:
    if unknown := set(given or ()).difference(SCOPES):
        raise refusal(f"There is no scope {', '.join(sorted(unknown))}; there is: {', '.join(SCOPES)}.")
    return given


@keys.command("create")
@with_stores
async def create(
    stores: OpenStores,
    user: Annotated[str, typer.Option("--user", help="Whose it is.", callback=_one_of(is_user))],
    scope: Annotated[
        list[str] | None, typer.Option(help=f"What else it may do: {', '.join(SCOPES)}. Repeatable.", callback=_known)
    ] = None,
    group: Annotated[list[str] | None, typer.Option(help="A group that its user is in. Repeatable.")] = None,
    role: Annotated[list[str] | None, typer.Option(help="A role of its user, such as approver. Repeatable.")] = None,
    name: Annotated[str | None, typer.Option(help="What it is for, to tell it from others.")] = None,
    days: ValidDays = None,
) -> None:
    """Make a key. It is shown once, as the last word."""
    now = utc_now()
    expires_at = None if days is None else now + timedelta(days=days)
    may = {"scopes": scope or (), "groups": group or (), "roles": role or ()}
    async with stores.database.transaction() as connection:
        key_id = new_id("key", now)
        _print_key(await create_key(connection, user, key_id, by=CLI, **may, name=name, expires_at=expires_at))


@keys.command("list")
@with_stores
async def show(stores: OpenStores, user: Annotated[str | None, typer.Option(help="Only this user's.")] = None) -> None:
    """List keys, revoked ones too."""
    found = await stores.database.read(list_keys, user)
    if not found:
        typer.echo("There are no keys." if user is None else f"{user} has no keys.", err=True)
    for key in found:
        typer.echo("  ".join(map(one_line, _columns(key, utc_now()))))


@keys.command("rotate")
@with_stores
async def rotate(stores: OpenStores, key_id: KeyArgument, hours: Hours = 24) -> None:
    """Make a key of the same user, scopes, groups, roles and term, and end the old one later."""
    async with stores.database.transaction() as connection:
        old = await lock_key(connection, key_id)
        new_key = await rotate_key(connection, old, by=CLI, overlap=timedelta(hours=hours), now=utc_now())
        _print_key(new_key, f"{key_id} works for {hours} hours more.\n")


@keys.command("revoke")
@with_stores
async def revoke(stores: OpenStores, key_id: KeyArgument) -> None:
    """Revoke a key, for every process within a second."""
    revoked = await stores.database.transact(revoke_key, key_id, by=CLI)
    typer.echo(f"{revoked.id} of {revoked.owner} is revoked; nothing accepts it after {CHECK_EVERY_S:g} s.")


def _print_key(new_key: NewKey, before: str = "") -> None:
    """Call it before the commit. Raises typer.Exit if the key cannot be shown: it is not made then."""
    key = new_key.key
    until = f", until {key.expires_at:%Y-%m-%d %H:%M} UTC" if key.expires_at else ""
    how = "shown this once. Send it as `Authorization: Bearer …` or `X-API-Key: …`."
    try:
        typer.echo(f"{before}A key for {key.owner}{until}, {how}\n{new_key.secret}")
    except OSError as error:  # which the transaction takes for one of its connection
        sys.stdout = None  # Python would flush it once more
        raise refusal(f"No key was made: it cannot be written, {error.strerror}.", code=1) from error


def _columns(key: ApiKey, now: datetime) -> tuple[str, ...]:
    used = f"used {key.last_used_at:%Y-%m-%d %H:%M}" if key.last_used_at else "never used"
    state = f"revoked {key.revoked_at:%Y-%m-%d %H:%M}" if key.revoked_at else used
    ends = f"{'ended' if key.expires_at <= now else 'ends'} {key.expires_at:%Y-%m-%d %H:%M}" if key.expires_at else ""
    scopes = "unreadable" if key.is_unreadable else ",".join(key.scopes) or "-"
    groups, roles = (f"{word} {','.join(of)}" if of else "" for word, of in (("in", key.groups), ("as", key.roles)))
    made = f"made {key.created_at:%Y-%m-%d}"
    return tuple(filter(None, (key.id, key.owner, scopes, key.name or "-", made, state, ends, groups, roles)))
