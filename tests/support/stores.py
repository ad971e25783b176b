"""Databases of a test's own, and what is left in Postgres and Redis, looked at behind the service's back."""

import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import asyncpg
from redis.asyncio import Redis

from segue.config import Settings
from segue.embedded.servers import Servers

TABLES = ("sessions", "turns", "messages", "tool_calls", "tool_results")
_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Stores:
    database: asyncpg.Connection
    redis: Redis

    async def rows(self) -> dict[str, int]:
        """How many rows each table has."""
        return {table: await self.database.fetchval(f"SELECT count(*) FROM {table}") for table in TABLES}  # noqa: S608

    async def keys(self, session_id: str) -> list[str]:
        """The Redis keys with a session's id in their name."""
        return [key async for key in self.redis.scan_iter(match=f"*{session_id}*")]


@asynccontextmanager
async def looking_into(settings: Settings) -> AsyncIterator[Stores]:
    """The stores of the service that runs with these settings."""
    assert settings.database_url is not None
    assert settings.redis_url is not None
    database = await asyncpg.connect(plain(settings.database_url.get_secret_value()))
    redis = Redis.from_url(settings.redis_url.get_secret_value(), protocol=2, decode_responses=True)
    try:
        yield Stores(database, redis)
    finally:
        await redis.aclose()
        await database.close()


@asynccontextmanager
async def new_database(servers: Servers, template: str) -> AsyncIterator[str]:
    """The URL of a copy of a database, for as long as the block lasts."""
    name = f"test_{next(_numbers)}"
    connection = await asyncpg.connect(plain(servers.database_url))
    try:
        await connection.execute(f"CREATE DATABASE {name} TEMPLATE {template} STRATEGY FILE_COPY")
        yield named(servers.database_url, name)
        await connection.execute(f"DROP DATABASE {name} WITH (FORCE)")
    finally:
        await connection.close()


def plain(url: str) -> str:
    """The URL as asyncpg takes it."""
    return url.replace("postgresql+asyncpg://", "postgresql://")


def named(url: str, database: str) -> str:
    """The URL of another database of the same server."""
    return url.replace("/segue?", f"/{database}?")
