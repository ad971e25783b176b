"""What users have and may use: `segue users adopt` and `limits`, `segue export` writes it, `segue erase` removes it.

`segue keys`: API keys, for AUTH=api_key.
"""

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, replace
from datetime import datetime, timedelta
from decimal import Decimal
from io import TextIOWrapper
from pathlib import Path
from typing import IO, Annotated

import typer

from segue.around.open_stores import note, on_the_stores
from segue.around.terminal import new_file, refusal
from segue.db.engine import Database
from segue.db.owners import Adoption, ErasedRows, count_user, erase_user, has_rows, line_of, rows_of_user
from segue.db.redis import Cache
from segue.domain.identity import LOCAL_USER, SCOPES, Scope, is_owner, is_user
from segue.domain.ids import utc_now
from segue.users.api_keys import CHECK_EVERY_S, ApiKey, NewKey, create_key, list_keys, lock_key, revoke_key, rotate_key
from segue.users.audit import CLI, record_act
from segue.users.user_limits import NO_OWN, OwnLimits, load_limits, set_limits

UserOption = Annotated[str, typer.Option("--user", help="Whose it is.")]

users = typer.Typer(no_args_is_help=True)

AtMost = Annotated[int | None, typer.Option(min=0, max=2**53)]


@users.command("adopt")
def adopt(
    user: UserOption,
    from_: Annotated[str, typer.Option("--from", help="Whose it was.")] = LOCAL_USER,
    *,
    merge: Annotated[bool, typer.Option("--merge", help="Also if the user has something already.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what there is to move.")] = False,
    wait_s: Annotated[int, typer.Option("--wait", min=0, max=86_400, help="Seconds for open turns to end.")] = 30,
) -> None:
    """Give a user all that was said without keys: sessions, files, facts, usage. Beside the service, or without it.
    Exits with 1 if a session is left because its turn is open: run it again then, as after any interruption.
    """
    owner, before = one_user(user), one_user(from_)
    if owner == before:
        raise refusal(f"--user and --from are both {owner}.")

    async def run(database: Database, _: Cache) -> tuple[Counter[str], Counter[str], int]:
        adoption = Adoption(database, before, owner)
        if dry_run:
            return Counter(await adoption.rows()), Counter(), 0
        if not merge and await adoption.would_mix():
            raise refusal(f"{owner} has sessions or facts already. With --merge, those of {before} come to them.")
        left = await adoption.run(wait_s=wait_s)
        return adoption.moved, adoption.left_out, left

    moved, left_out, left = on_the_stores(run)
    if not moved and not left:
        typer.echo(f"There is nothing of {before} to move.", err=True)
    for table, count in sorted(moved.items()):
        typer.echo(f"{table}  {count}")
    for table, count in sorted((+left_out).items()):
        typer.echo(f"{table}  {count} left out: {owner} has the same")
    if left:
        raise refusal(f"{left} sessions of {before} have a turn that is open. Run it again when it has ended.", code=1)


@users.command("limits")
def limits(
    user: UserOption,
    requests_per_minute: AtMost = None,
    turns_per_minute: AtMost = None,
    concurrent_turns: AtMost = None,
    tokens_per_day: AtMost = None,
    cost_per_day: Annotated[
        float | None, typer.Option(min=0, max=1e9, help="In dollars; the models need a price in PRICES_FILE.")
    ] = None,
    *,
    clear: Annotated[bool, typer.Option("--clear", help="Put the settings in force again first.")] = False,
) -> None:
    """Set limits of one user in the place of the settings, for every process within seconds; 0 is no limit. What is
    not given stays. Without options, show them.
    """
    owner = one_user(user)
    cost = None if cost_per_day is None else Decimal(str(cost_per_day))
    given = OwnLimits(requests_per_minute, turns_per_minute, concurrent_turns, tokens_per_day, cost)

    async def run(database: Database, _: Cache) -> OwnLimits:
        async with database.transaction() as connection:
            before = NO_OWN if clear else (await load_limits(connection, [owner])).get(owner, NO_OWN)
            own = replace(before, **{name: value for name, value in asdict(given).items() if value is not None})
            if clear or given != NO_OWN:
                await set_limits(connection, owner, own)
                shown = {name: value if value is None else float(value) for name, value in asdict(own).items()}
                await record_act(connection, CLI, "set_user_limits", details={"user": owner, **shown})
        return own

    for name, value in asdict(on_the_stores(run)).items():
        typer.echo(f"{name}  {f'as LIMIT_{name.upper()}' if value is None else value}")


def export(
    user: UserOption,
    output: Annotated[Path | None, typer.Option(help="A new file, for this account only; without it stdout.")] = None,
) -> None:
    """Writes all rows of a user: `{"table": …, "row": …}` a line, and how many of each on stderr."""
    owner = one_user(user)

    async def run(database: Database, _: Cache) -> Counter[str]:
        rows: Counter[str] = Counter()
        await note(database, "export_user", user=owner)
        with nullcontext(sys.stdout) if output is None else _lines_of(output) as file:
            async for table, row in rows_of_user(database, owner):
                file.write(line_of(table, row))
                rows[table] += 1
        return rows

    rows = on_the_stores(run)
    if not rows:
        typer.echo(f"There is nothing of {owner}.", err=True)
    for table, count in rows.items():
        typer.echo(f"{table}  {count}", err=True)


@contextmanager
def _lines_of(path: Path) -> Iterator[IO[str]]:
    with new_file(path) as file:
        text = TextIOWrapper(file, encoding="utf-8")
        try:
            yield text
        finally:
            text.detach()


def erase(
    user: UserOption,
    *,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what there is to remove.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Remove all that a user has, for good, and say how many rows of each table and keys of Redis that was. Asks first.
    Exits with 1 if there is no such user, and with 2 if there is no terminal to ask on: give --yes then.
    """
    owner = one_user(user)
    if not (yes or dry_run or sys.stdin.isatty()):
        raise refusal(f"Nothing was removed. Look with --dry-run what {owner} has, and remove it with --yes.")

    async def look(database: Database, _: Cache) -> dict[str, int]:
        if await has_rows(database, owner):
            return {} if yes and not dry_run else await count_user(database, owner)
        raise refusal(f"There is no user {owner}: no row is theirs.", code=1)

    async def run(database: Database, cache: Cache) -> ErasedRows:
        await note(database, "erase_user", user=owner)
        return await erase_user(database, cache, owner)

    _tell_counts(on_the_stores(look))
    if dry_run or not (yes or typer.confirm(f"Remove all of this of {owner}, for good?")):
        typer.echo("Nothing was removed.", err=True)
        raise typer.Exit(code=0 if dry_run else 1)
    erased = on_the_stores(run)
    _tell_counts(erased.rows)
    if erased.redis_keys is None:
        raise refusal("Redis could not be asked. What it holds of this user expires by itself, all of it within a day.")
    typer.echo(f"redis keys  {erased.redis_keys}")


def _tell_counts(rows: Mapping[str, int]) -> None:
    for table, count in rows.items():
        typer.echo(f"{table}  {count}")


def one_user(name: str, is_one: Callable[[str], bool] = is_owner) -> str:
    """Raises typer.Exit for what is no name of a user."""
    if not is_one(name):
        raise refusal("--user takes one printable line of at most 200 characters, without spaces around it.")
    return name


keys = typer.Typer(no_args_is_help=True)

KeyArgument = Annotated[str, typer.Argument(help="The id that `segue keys list` shows.")]
ValidDays = Annotated[
    int | None, typer.Option(min=1, max=36_500, help="How long it works; without this it does not end.")
]
Hours = Annotated[int, typer.Option(min=0, max=8784, help="How long the old one still works.")]


@keys.command("create")
def create(
    user: UserOption,
    scope: Annotated[
        list[str] | None, typer.Option(help=f"What else it may do: {', '.join(SCOPES)}. Repeatable.")
    ] = None,
    group: Annotated[list[str] | None, typer.Option(help="A group that its user is in. Repeatable.")] = None,
    name: Annotated[str | None, typer.Option(help="What it is for, to tell it from others.")] = None,
    days: ValidDays = None,
) -> None:
    """Make a key. It is shown once, as the last word."""
    scopes = _scopes(scope or [])
    owner = one_user(user, is_user)

    async def run(database: Database, _: Cache) -> NewKey:
        now = utc_now()
        expires_at = None if days is None else now + timedelta(days=days)
        async with database.transaction() as connection:
            made = await create_key(
                connection, owner, scopes=scopes, groups=group or (), name=name, now=now, expires_at=expires_at
            )
            details = {"key_id": made.key.id, "user": owner, "scopes": made.key.scopes}
            await record_act(connection, CLI, "create_key", details=details)
        return made

    _tell_key(on_the_stores(run))


@keys.command("list")
def show(user: Annotated[str | None, typer.Option(help="Only this user's.")] = None) -> None:
    """List keys, revoked ones too."""

    async def run(database: Database, _: Cache) -> list[ApiKey]:
        async with database.read_only() as connection:
            return await list_keys(connection, user)

    now, found = utc_now(), on_the_stores(run)
    if not found:
        typer.echo("There are no keys." if user is None else f"{user} has no keys.", err=True)
    for key in found:
        typer.echo("  ".join(_columns(key, now)))


@keys.command("rotate")
def rotate(key_id: KeyArgument, hours: Hours = 24) -> None:
    """Make a key of the same user, scopes, groups and term, and end the old one later."""

    async def run(database: Database, _: Cache) -> NewKey:
        async with database.transaction() as connection:
            old = await lock_key(connection, key_id)
            made = await rotate_key(connection, old, overlap=timedelta(hours=hours), now=utc_now())
            details = {"key_id": key_id, "user": old.owner, "by": made.key.id}
            await record_act(connection, CLI, "rotate_key", details=details)
        return made

    made = on_the_stores(run)
    typer.echo(f"{key_id} works for {hours} hours more.")
    _tell_key(made)


@keys.command("revoke")
def revoke(key_id: KeyArgument) -> None:
    """Revoke a key, for every process within a few seconds."""

    async def run(database: Database, _: Cache) -> ApiKey:
        async with database.transaction() as connection:
            revoked = await revoke_key(connection, key_id)
            await record_act(connection, CLI, "revoke_key", details={"key_id": key_id, "user": revoked.owner})
        return revoked

    revoked = on_the_stores(run)
    typer.echo(f"{revoked.id} of {revoked.owner} is revoked; nothing accepts it after {CHECK_EVERY_S:g} s.")


def _tell_key(made: NewKey) -> None:
    key = made.key
    until = f", until {key.expires_at:%Y-%m-%d %H:%M} UTC" if key.expires_at else ""
    typer.echo(
        f"A key for {key.owner}{until}, shown this once. Send it as `Authorization: Bearer …` or `X-API-Key: …`."
    )
    typer.echo(made.secret)


def _scopes(given: list[str]) -> list[Scope]:
    known = [scope for scope in SCOPES if scope in given]
    if unknown := set(given).difference(SCOPES):
        raise refusal(f"There is no scope {', '.join(sorted(unknown))}; there is: {', '.join(SCOPES)}.")
    return known


def _columns(key: ApiKey, now: datetime) -> tuple[str, ...]:
    used = f"used {key.last_used_at:%Y-%m-%d %H:%M}" if key.last_used_at else "never used"
    state = f"revoked {key.revoked_at:%Y-%m-%d %H:%M}" if key.revoked_at else used
    ends = key.expires_at and f"{'ended' if key.expires_at <= now else 'ends'} {key.expires_at:%Y-%m-%d %H:%M}"
    return (
        key.id,
        key.owner,
        "unreadable" if key.is_unreadable else ",".join(key.scopes) or "-",
        key.name or "-",
        f"made {key.created_at:%Y-%m-%d}",
        state,
        *([ends] if ends else []),
        *([f"in {','.join(key.groups)}"] if key.groups else []),
    )
