"""Examines Postgres and Redis: opens them without waiting for them, and says why they cannot be reached."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from typing import Any

from sqlalchemy.engine import make_url
from sqlalchemy.exc import DBAPIError

from segue.around.doctor.report import Diagnosis
from segue.around.embedded.server_urls import OpenStores, open_clients, server_urls
from segue.config import Settings
from segue.db.engine import Connection, Database, is_pooled
from segue.db.outages import LOCKED, StorageUnavailable, cause_of
from segue.db.postgres_server import ServerFacts, look_at_server, newest
from segue.db.redis_connection import redis_cause_of, watched_by_sentinels
from segue.domain.errors import AppError
from segue.turns.queries import CHANGES_NOTHING

LOOK_S = 6.0
NEARLY_FULL = 0.9
POSTGRES_FACTS = ("version", "connections", "max_connections", "database_bytes")


class Unreachable(Exception):
    """Postgres cannot be used; the message says why, and `mend` what to do."""

    def __init__(self, error: BaseException) -> None:
        cause = error.cause if isinstance(error, StorageUnavailable) else cause_of(error)
        super().__init__(cause.why if cause else f"it cannot be spoken to ({type(error).__name__})")
        self.mend = cause.mend if cause else "See its log."
        self.is_locked = cause is LOCKED


async def opened(stack: AsyncExitStack, settings: Settings) -> OpenStores:
    """Returns clients that may not reach their servers. Raises AppError if there is nothing to open."""
    given = settings.database_url, settings.redis_url, settings.data_dir
    # Joining the servers otherwise would restart one that has died, and hide that it had.
    urls = await stack.enter_async_context(server_urls(*given, join_only=True))
    return open_clients(stack, urls, pooler=settings.database_pooler, reading=2)


@asynccontextmanager
async def reading(database: Database) -> AsyncIterator[Connection]:
    """Yields a connection that only reads. Raises Unreachable within seconds if Postgres cannot be used."""
    with _unreachable():
        async with asyncio.timeout(LOOK_S), database.read_only() as connection:
            yield connection


@contextmanager
def _unreachable() -> Iterator[None]:
    try:
        yield
    except (AppError, DBAPIError, OSError, TimeoutError) as error:
        raise Unreachable(error) from error


async def look_at_stores(stores: OpenStores | None, report: Diagnosis) -> tuple[dict[str, Any], ServerFacts | None]:
    """Returns the parts `postgres`, `redis` and `migrations`, and what Postgres says, None if it cannot be used."""
    if stores is None:
        return dict.fromkeys(("postgres", "redis", "migrations")), None
    from segue.db.migrations import missing_revisions  # noqa: PLC0415 (alembic is not needed to serve)

    postgres, server = await _look_at_postgres(stores, report)
    redis = await _look_at_redis(stores, report)
    missing = missing_revisions(server.revision) if server else None
    migrations = {"revision": server.revision, "missing": missing} if server else None
    if server and missing is None:
        report.add("migrations.unknown", revision=server.revision)
    elif missing:
        report.add("migrations.missing", revisions=", ".join(missing))
    return {"postgres": postgres, "redis": redis, "migrations": migrations}, server


async def _look_at_postgres(stores: OpenStores, report: Diagnosis) -> tuple[dict[str, Any], ServerFacts | None]:
    where = _place(stores.urls.database_url, 5432)
    try:
        async with reading(stores.database) as connection:
            started = time.monotonic()
            await connection.exec_driver_sql("SELECT 1")
            latency_ms = round((time.monotonic() - started) * 1000, 2)
            server = await look_at_server(connection)
            pooled = await is_pooled(connection)
        if (server.revision or "") >= newest():
            with _unreachable():
                await stores.database.ping(CHANGES_NOTHING)  # whether a turn could be written
    except Unreachable as error:
        blocker = await stores.database.outages.blocker() if error.is_locked else None
        report.add("postgres.unusable", where=where, why=f"{error}, {blocker}" if blocker else error, mend=error.mend)
        unknown = dict.fromkeys(("latency_ms", *POSTGRES_FACTS))
        return {"at": where, "reachable": False, "why_not": str(error), **unknown}, None
    if server.connections > server.max_connections * NEARLY_FULL:
        report.add("postgres.full", taken=server.connections, most=server.max_connections)
    if pooled:
        report.add("postgres.pooled")
    facts = {name: getattr(server, name) for name in POSTGRES_FACTS}
    return {"at": where, "reachable": True, "why_not": None, "latency_ms": latency_ms, **facts}, server


async def _look_at_redis(stores: OpenStores, report: Diagnosis) -> dict[str, Any]:
    watched = watched_by_sentinels(stores.urls.redis_url)
    where = _place(stores.urls.redis_url, 6379) if watched is None else str(watched)
    await stores.cache.ping()  # the first connects
    started = time.monotonic()
    facts = await stores.cache.server()
    latency_ms = round((time.monotonic() - started) * 1000, 2)
    if facts is None:
        cause = stores.cache.cause or redis_cause_of(TimeoutError())
        report.add("redis.unusable", where=where, why=cause.why, mend=cause.mend)
    server = facts or {}
    memory, max_memory = server.get("used_memory"), server.get("maxmemory") or None
    if max_memory and (memory or 0) > max_memory * NEARLY_FULL:
        report.add("redis.full")
    if max_memory and (policy := server.get("maxmemory_policy", "noeviction")) != "noeviction":
        report.add("redis.evicts", policy=policy)
    return {
        "at": where,
        "reachable": facts is not None,
        "version": server.get("redis_version"),
        "latency_ms": None if facts is None else latency_ms,
        "memory_bytes": memory,
        "max_memory_bytes": max_memory,
        "eviction": server.get("maxmemory_policy"),
        "clients": server.get("connected_clients"),
    }


def _place(url: str, port: int) -> str:
    parts = make_url(url)
    if parts.host:
        return f"{parts.host}:{parts.port or port}/{parts.database or ''}".rstrip("/")
    return f"{parts.query.get('host') or f'/{parts.database}'} (socket)"
