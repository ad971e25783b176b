"""Examines Postgres and Redis: opens them without waiting for them, and says why they cannot be reached."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from socket import gaierror
from typing import Any
from urllib.parse import urlsplit

from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection

from segue.commands.doctor.report import Report
from segue.config import Settings
from segue.db.engine import Database
from segue.db.inspection import ServerFacts, look_at_server
from segue.db.migrations import missing_revisions
from segue.db.redis import Cache, Streams
from segue.domain.errors import AppError
from segue.embedded.urls import ServerUrls, server_urls

LOOK_S = 6.0
NEARLY_FULL = 0.9

_BY_SQLSTATE = {
    "28": "it refuses the user or the password",
    "3D": "it has no database of this name",
    "53": "it takes no more connections",
    "57": "it is starting or stopping",
}


@dataclass(frozen=True, slots=True)
class OpenStores:
    urls: ServerUrls
    database: Database
    cache: Cache
    streams: Streams


@dataclass(frozen=True, slots=True)
class Postgres:
    at: str
    reachable: bool = False
    why_not: str | None = None
    latency_ms: float | None = None
    version: str | None = None
    connections: int | None = None
    max_connections: int | None = None
    database_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Redis:
    at: str
    reachable: bool = False
    version: str | None = None
    latency_ms: float | None = None
    memory_bytes: int | None = None
    max_memory_bytes: int | None = None
    eviction: str | None = None
    clients: int | None = None


@dataclass(frozen=True, slots=True)
class Migrations:
    """`missing` is None if this version does not know the revision."""

    revision: str | None
    missing: tuple[str, ...] | None


class Unreachable(Exception):
    """Postgres cannot be used; the message says why."""


@asynccontextmanager
async def opened(settings: Settings) -> AsyncIterator[OpenStores]:
    """Yields clients that may not reach their servers. Raises AppError if there is nothing to open."""
    async with AsyncExitStack() as stack:
        given = settings.database_url, settings.redis_url, settings.data_dir
        urls = await stack.enter_async_context(server_urls(*given, join_only=True))
        try:
            stores = OpenStores(
                urls, Database(urls.database_url, writing=1, reading=2), Cache(urls.redis_url), Streams(urls.redis_url)
            )
        except (ArgumentError, ValueError) as error:
            raise AppError(
                "url_invalid",
                status=500,
                title="Not a URL",
                detail="DATABASE_URL or REDIS_URL is not a URL, as postgresql://… and redis://… are.",
            ) from error
        stack.push_async_callback(stores.database.close)
        stack.push_async_callback(stores.cache.close)
        stack.push_async_callback(stores.streams.close)
        yield stores


@asynccontextmanager
async def asking(database: Database) -> AsyncIterator[AsyncConnection]:
    """Raises Unreachable within seconds if Postgres cannot be used."""
    try:
        async with asyncio.timeout(LOOK_S), database.autocommit() as connection:
            yield connection
    except (AppError, DBAPIError, OSError, TimeoutError) as error:
        raise Unreachable(_reason(error)) from error


async def look_at_postgres(database: Database, url: str, report: Report) -> tuple[Postgres, ServerFacts | None]:
    """Returns what is shown of the server, and what it says of itself, or None if it does not answer."""
    where = _postgres_place(url)
    try:
        async with asking(database) as connection:
            started = time.monotonic()
            await connection.exec_driver_sql("SELECT 1")
            latency_ms = _ms_since(started)
            server = await look_at_server(connection)
    except Unreachable as error:
        report.problem(
            "postgres",
            f"PostgreSQL at {where} cannot be used: {error}.",
            "Nothing works without it. Start it, or correct DATABASE_URL; `segue serve` starts an embedded one again.",
        )
        return Postgres(where, why_not=str(error)), None
    if server.connections > server.max_connections * NEARLY_FULL:
        what = f"{server.connections} of {server.max_connections} connections are taken."
        report.problem("postgres", what, "Run fewer processes, raise max_connections, or put a pooler in front.")
    postgres = Postgres(
        where,
        reachable=True,
        latency_ms=latency_ms,
        version=server.version,
        connections=server.connections,
        max_connections=server.max_connections,
        database_bytes=server.database_bytes,
    )
    return postgres, server


def look_at_migrations(revision: str | None, report: Report) -> Migrations:
    missing = missing_revisions(revision)
    if missing is None:
        what = f"The database is at {revision}, which this version does not know."
        report.problem("migrations", what, "A newer version has migrated it: run that version here too.")
    elif missing:
        report.problem("migrations", f"The database lacks {', '.join(missing)}.", "Run `segue migrate`.")
    return Migrations(revision, missing)


async def look_at_redis(cache: Cache, url: str, report: Report) -> Redis:
    where = _redis_place(url)
    await cache.ping()  # the first connects
    started = time.monotonic()
    facts = await cache.server()
    if facts is None:
        report.problem(
            "redis",
            f"Redis at {where} cannot be used.",
            "Turns go on, more slowly. Start it, or correct REDIS_URL; `segue serve` starts an embedded one again.",
        )
        return Redis(where)
    redis = Redis(
        where,
        reachable=True,
        version=str(facts.get("redis_version")),
        latency_ms=_ms_since(started),
        memory_bytes=facts.get("used_memory"),
        max_memory_bytes=facts.get("maxmemory") or None,
        eviction=facts.get("maxmemory_policy"),
        clients=facts.get("connected_clients"),
    )
    if redis.max_memory_bytes and (redis.memory_bytes or 0) > redis.max_memory_bytes * NEARLY_FULL:
        report.problem(
            "redis", "Its memory is nearly full.", "Raise maxmemory. It may also be flushed: nothing is lost."
        )
    return redis


def _reason(error: BaseException) -> str:
    """Returns the innermost cause in our words: the driver's may hold parts of the URL."""
    causes: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in causes:
        causes.append(cause)
        cause = cause.__cause__ or cause.__context__ or getattr(cause, "orig", None)
    for cause in causes:
        if known := _BY_SQLSTATE.get(str(getattr(cause, "sqlstate", None) or "")[:2]):
            return known
    kinds = [type(cause) for cause in causes]
    if any(issubclass(kind, ConnectionRefusedError | FileNotFoundError) for kind in kinds):
        return "nothing listens there"
    if any(issubclass(kind, gaierror) for kind in kinds):
        return "its host name is unknown"
    if any(issubclass(kind, TimeoutError) for kind in kinds):
        return "it does not answer in time"
    return f"it cannot be spoken to ({kinds[-1].__name__})"


def _postgres_place(url: str) -> str:
    parts = make_url(url)
    host: Any = parts.host or parts.query.get("host") or "localhost"
    return f"{host}:{parts.port or 5432}/{parts.database}" if parts.host else f"{host} (socket)"


def _redis_place(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.path} (socket)" if parts.scheme == "unix" else f"{parts.hostname}:{parts.port or 6379}{parts.path}"


def _ms_since(started: float) -> float:
    return round((time.monotonic() - started) * 1000, 2)
