"""The stores, looked at behind the service's back: what a session left in them, what they were asked, and when."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import astuple, dataclass
from operator import add, sub
from typing import Self

import asyncpg
from redis.asyncio import Redis

from segue.embedded.urls import ServerUrls

TABLES = """
SELECT table_name FROM information_schema.columns WHERE table_schema = 'public' AND column_name = 'session_id'
"""
SIZE = "SELECT count(*) AS rows, coalesce(sum(pg_column_size(t)), 0) AS bytes FROM {table} t WHERE session_id = $1"
ON_DISK = """
SELECT sum(pg_total_relation_size(oid))::bigint FROM pg_class
WHERE relnamespace = 'public'::regnamespace AND relkind = 'r'
"""
TEXT = "SELECT coalesce(sum(octet_length(content)), 0) FROM messages WHERE session_id = $1"
TRANSACTIONS = "SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()"
WAITS = """
SELECT extract(epoch FROM started_at - created_at) * 1000 AS ms FROM turns
WHERE session_id = ANY($1) AND started_at IS NOT NULL ORDER BY seq
"""


@asynccontextmanager
async def looking_into(servers: ServerUrls) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(servers.database_url.replace("postgresql+asyncpg://", "postgresql://"))
    try:
        yield connection
    finally:
        await connection.close()


@dataclass(frozen=True, slots=True)
class Stored:
    """A session's rows, their bytes and those of its messages' text; `disk` bytes are everybody's."""

    rows: int
    bytes: int
    text: int
    disk: int

    def __add__(self, other: Self) -> Self:
        return type(self)(*map(add, astuple(self), astuple(other)))

    def __sub__(self, earlier: Self) -> Self:
        return type(self)(*map(sub, astuple(self), astuple(earlier)))


async def stored(database: asyncpg.Connection, session_id: str) -> Stored:
    tables = [record["table_name"] for record in await database.fetch(TABLES)]
    sizes = [await database.fetchrow(SIZE.format(table=table), session_id) for table in tables]
    return Stored(
        rows=sum(size["rows"] for size in sizes),
        bytes=sum(size["bytes"] for size in sizes),
        text=await database.fetchval(TEXT, session_id),
        disk=await database.fetchval(ON_DISK),
    )


async def questions(database: asyncpg.Connection, servers: ServerUrls) -> dict[str, int]:
    """What the stores have been asked since they were started: a statement outside a transaction is one of its own."""
    transactions = await database.fetchval(TRANSACTIONS)
    async with Redis.from_url(servers.redis_url, protocol=2) as redis:
        told = await redis.info("stats")
    return {"PostgreSQL transactions": transactions, "Redis commands": told["total_commands_processed"]}


async def waits_ms(database: asyncpg.Connection, session_ids: list[str]) -> list[float]:
    """From accepted to started, a number a turn: the accepting process' clock at the start of the request that brought
    the message, PostgreSQL's in the statement that claimed it. They are one clock on one machine.
    """
    return [float(record["ms"]) for record in await database.fetch(WAITS, session_ids)]
