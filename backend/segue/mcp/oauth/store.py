"""The rows of servers with logins: logins of users, logins that were begun, what Segue is called there, and the tools
they listed last, under the address they came from.

Owns `mcp_logins`, `mcp_login_attempts`, `mcp_clients` and `mcp_tool_lists`. Times are the database's; texts are sealed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from mcp_types import Tool as McpTool
from pydantic import TypeAdapter, ValidationError
from pydantic_core import to_jsonable_python
from sqlalchemy import ColumnElement, case, delete, func, or_, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from segue.db.models import mcp_clients, mcp_login_attempts, mcp_logins, mcp_tool_lists
from segue.domain.ids import digest_of_secret

ATTEMPT_LASTS: Final = timedelta(minutes=30)
ATTEMPTS: Final = 10  # of a user at a server
REFRESH_LASTS: Final = timedelta(seconds=40)
_EARLY: Final = timedelta(seconds=30)
_COLUMNS: Final = (
    *(mcp_logins.c[name] for name in ("owner", "server", "id", "version", "sealed", "scope", "created_at")),
    func.coalesce(mcp_logins.c.expires_at < func.now() + _EARLY, False).label("is_stale"),
    func.coalesce(mcp_logins.c.refreshing_until > func.now(), False).label("is_refreshing"),
)


@dataclass(frozen=True, slots=True)
class LoginRow:
    """`id` is that of the login, `version` counts its tokens. `is_stale`: its token has expired, or will at once."""

    owner: str
    server: str
    id: str
    version: int
    sealed: str
    scope: str | None
    created_at: datetime
    is_stale: bool
    is_refreshing: bool


async def load_login(connection: AsyncConnection, owner: str, server: str) -> LoginRow | None:
    mine = select(*_COLUMNS).where(mcp_logins.c.owner == owner, mcp_logins.c.server == server)
    row = (await connection.execute(mine)).one_or_none()
    return None if row is None else LoginRow(**row._asdict())


async def load_logins(connection: AsyncConnection, owner: str) -> list[LoginRow]:
    mine = select(*_COLUMNS).where(mcp_logins.c.owner == owner).order_by(mcp_logins.c.server)
    return [LoginRow(**row._asdict()) for row in await connection.execute(mine)]


async def save_login(connection: AsyncConnection, values: dict[str, Any], lasts_s: int | None) -> None:
    """Puts a new login in the place of one that there may be."""
    row = {**values, "version": 1, "created_at": func.now(), "expires_at": _until(lasts_s), "refreshing_until": None}
    statement = insert(mcp_logins).values(row)
    changed = {name: statement.excluded[name] for name in row if name not in ("owner", "server")}
    await connection.execute(statement.on_conflict_do_update(index_elements=["owner", "server"], set_=changed))


async def begin_refresh(connection: AsyncConnection, row: LoginRow) -> bool:
    """Returns whether the caller is the one who renews these tokens, among all processes, for REFRESH_LASTS."""
    is_free = or_(mcp_logins.c.refreshing_until.is_(None), mcp_logins.c.refreshing_until < func.now())
    taken = update(mcp_logins).where(*_as_read(row), is_free).values(refreshing_until=func.now() + REFRESH_LASTS)
    return (await connection.execute(taken)).rowcount == 1


async def end_refresh(connection: AsyncConnection, row: LoginRow, values: dict[str, Any], lasts_s: int | None) -> bool:
    """Stores renewed tokens; without `values` only lets others try. Returns False for a login that is not there now."""
    renewed = {**values, "version": row.version + 1, "expires_at": _until(lasts_s)} if values else {}
    ended = update(mcp_logins).where(*_as_read(row)).values(refreshing_until=None, **renewed)
    return (await connection.execute(ended)).rowcount == 1


async def delete_login(connection: AsyncConnection, owner: str, server: str) -> LoginRow | None:
    """Returns what was deleted, with the newest tokens."""
    gone = delete(mcp_logins).where(mcp_logins.c.owner == owner, mcp_logins.c.server == server)
    row = (await connection.execute(gone.returning(*_COLUMNS))).one_or_none()
    return None if row is None else LoginRow(**row._asdict())


async def delete_as_read(connection: AsyncConnection, row: LoginRow) -> None:
    """Leaves a login, or its tokens, that came later."""
    await connection.execute(delete(mcp_logins).where(*_as_read(row)))


async def save_attempt(connection: AsyncConnection, state: str, owner: str, server: str, sealed: str) -> datetime:
    """Returns until when the login can be finished. The oldest attempts of a user make room."""
    attempts = mcp_login_attempts
    kept = (
        select(attempts.c.digest)
        .where(attempts.c.owner == owner, attempts.c.server == server, attempts.c.expires_at > func.now())
        .order_by(attempts.c.expires_at.desc(), attempts.c.digest)
        .limit(ATTEMPTS - 1)
    )
    is_mine = (attempts.c.owner == owner) & (attempts.c.server == server)
    old = (attempts.c.expires_at <= func.now()) | (is_mine & attempts.c.digest.not_in(kept))
    await connection.execute(delete(attempts).where(old))
    made = insert(attempts).values(
        digest=digest_of_secret(state), owner=owner, server=server, sealed=sealed, expires_at=func.now() + ATTEMPT_LASTS
    )
    until: datetime = (await connection.execute(made.returning(attempts.c.expires_at))).scalar_one()
    return until


async def take_attempt(connection: AsyncConnection, state: str) -> tuple[str, str, str] | None:
    """Returns owner, server and what was sealed, once: a second caller with the same state gets None."""
    taken = delete(mcp_login_attempts).where(
        mcp_login_attempts.c.digest == digest_of_secret(state), mcp_login_attempts.c.expires_at > func.now()
    )
    columns = mcp_login_attempts.c.owner, mcp_login_attempts.c.server, mcp_login_attempts.c.sealed
    row = (await connection.execute(taken.returning(*columns))).one_or_none()
    return None if row is None else (row.owner, row.server, row.sealed)


async def load_client(connection: AsyncConnection, server: str, issuer: str, redirect_uri: str) -> str | None:
    clients = mcp_clients.c
    known = select(clients.sealed).where(
        clients.server == server, clients.issuer == issuer, clients.redirect_uri == redirect_uri
    )
    return await connection.scalar(known)


async def save_client(
    connection: AsyncConnection, server: str, issuer: str, redirect_uri: str, sealed: str, replaced: str | None
) -> str:
    """Returns what is stored: that of another process if it was quicker to replace what both have found."""
    place = {"server": server, "issuer": issuer, "redirect_uri": redirect_uri}
    made = insert(mcp_clients).values(**place, sealed=sealed, created_at=func.now())
    is_as_found = mcp_clients.c.sealed == replaced
    changed = {"sealed": case((is_as_found, made.excluded.sealed), else_=mcp_clients.c.sealed)}
    stored = made.on_conflict_do_update(index_elements=list(place), set_=changed).returning(mcp_clients.c.sealed)
    kept: str = (await connection.execute(stored)).scalar_one()
    return kept


async def delete_clients(connection: AsyncConnection, server: str, issuer: str) -> None:
    known = delete(mcp_clients).where(mcp_clients.c.server == server, mcp_clients.c.issuer == issuer)
    await connection.execute(known)


def _as_read(row: LoginRow) -> list[ColumnElement[bool]]:
    return [mcp_logins.c[name] == getattr(row, name) for name in ("owner", "server", "id", "version")]


def _until(lasts_s: int | None) -> Any:
    return None if lasts_s is None else func.now() + timedelta(seconds=lasts_s)


_TOOLS: Final = TypeAdapter(list[McpTool])


async def listed_at(connection: AsyncConnection, server: str, url: str) -> datetime | None:
    lists = mcp_tool_lists.c
    return await connection.scalar(select(lists.listed_at).where(lists.server == server, lists.url == url))


async def load_list(connection: AsyncConnection, server: str, url: str) -> list[McpTool] | None:
    """Returns None if there is none, or none that this release can read."""
    lists = mcp_tool_lists.c
    last = select(lists.tools).where(lists.server == server, lists.url == url)
    try:
        return _TOOLS.validate_python(await connection.scalar(last))
    except ValidationError:
        return None


async def save_list(connection: AsyncConnection, server: str, url: str, tools: Sequence[McpTool]) -> datetime:
    written = to_jsonable_python(tools, by_alias=True, exclude_none=True)
    row = insert(mcp_tool_lists).values(server=server, url=url, tools=written, listed_at=func.clock_timestamp())
    changed = {name: row.excluded[name] for name in ("url", "tools", "listed_at")}
    stored = row.on_conflict_do_update(index_elements=["server"], set_=changed).returning(mcp_tool_lists.c.listed_at)
    at: datetime = (await connection.execute(stored)).scalar_one()
    return at
