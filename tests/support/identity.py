"""Users as tests need them: a key of their own, and the API as they speak it."""

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

import httpx2

from segue.config import Settings
from segue.db.engine import Database
from segue.domain.identity import Scope
from segue.domain.ids import new_id, utc_now
from segue.users.api_keys import create_key
from tests.support.service import Client


async def new_key(
    settings: Settings,
    user: str,
    scopes: Iterable[Scope] = (),
    *,
    groups: Iterable[str] = (),
    roles: Iterable[str] = (),
) -> str:
    assert settings.database_url is not None
    database = Database(settings.database_url.get_secret_value())
    async with database.transaction() as connection:
        of = user, new_id("key", utc_now())
        made = await create_key(connection, *of, by=None, scopes=scopes, groups=groups, roles=roles, name=None)
    await database.close()
    return made.secret


@asynccontextmanager
async def speaking(client: Client, credential: str) -> AsyncIterator[Client]:
    """The same service, called with this key or token."""
    headers = {"Authorization": f"Bearer {credential}"}
    async with httpx2.AsyncClient(base_url=client.http.base_url, headers=headers, timeout=30) as http:
        yield Client(http)
