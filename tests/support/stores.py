"""What is left in Postgres and Redis, looked at behind the service's back."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import asyncpg
from redis.asyncio import Redis

from backend.config import Settings

TABLES = ("sessions", "turns", "messages", "tool_calls", "tool_results")


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
    url = settings.database_url.get_secret_value().replace("postgresql+asyncpg://", "postgresql://")
    database = await asyncpg.connect(url)
    redis = Redis.from_url(settings.redis_url.get_secret_value(), protocol=2, decode_responses=True)
    yield Stores(database, redis)
    await redis.aclose()
    await database.close()
