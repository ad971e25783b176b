"""`segue keys`: API keys, for AUTH=api_key."""

from datetime import datetime, timedelta
from typing import Annotated

import typer

from segue.commands.stores import on_the_stores
from segue.commands.terminal import refusal
from segue.commands.users import UserOption, one_user
from segue.db.engine import Database
from segue.db.redis import Cache
from segue.domain.clock import utc_now
from segue.domain.identity import SCOPES, Scope, is_user
from segue.identity.api_keys import (
    CHECK_EVERY_S,
    ApiKey,
    NewKey,
    create_key,
    list_keys,
    lock_key,
    revoke_key,
    rotate_key,
)
from segue.identity.audit import CLI, record_act

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

    _tell(on_the_stores(run))


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
    _tell(made)


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


def _tell(made: NewKey) -> None:
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
