"""The whole service looked at: each part by itself, so that one that is down does not hide the others."""

import asyncio
from typing import Any

from segue.commands.doctor.report import Report
from segue.commands.doctor.stores import (
    Stores,
    Unreachable,
    asking,
    look_at_migrations,
    look_at_postgres,
    look_at_redis,
)
from segue.commands.doctor.surroundings import look_at_data_folder, look_at_mcp, look_at_model, look_at_settings
from segue.config import Settings
from segue.db.inspection import ServerFacts
from segue.domain.telemetry import unobserved
from segue.limits import health_rules
from segue.mcp.servers import McpServers
from segue.tools.global_state import GlobalToolState
from segue.turns.queries import TurnsOverview, overview
from segue.turns.queue import QueueFacts, look_at_queue

LATE_S = 10.0  # a turn that has waited so long while nothing takes it


async def look_at_service(settings: Settings, stores: Stores | None, mcp: McpServers, report: Report) -> None:
    model = asyncio.create_task(look_at_model(settings, report))
    names = ("postgres", "redis", "migrations", "queue", "turns", "tools", "pgvector")
    look: dict[str, Any] = dict.fromkeys(names)
    if stores is not None:
        look = await _look_at_stores(settings, stores, report)
    report.parts = {
        **look,
        "mcp": look_at_mcp(mcp, report),
        "model": await model,
        "data_folder": look_at_data_folder(settings, report),
        "settings": await look_at_settings(settings, stores if look["migrations"] else None, report),
    }


async def _look_at_stores(settings: Settings, stores: Stores, report: Report) -> dict[str, Any]:
    (postgres, server), redis = await asyncio.gather(
        look_at_postgres(stores.database, stores.urls.database_url, report),
        look_at_redis(stores.cache, stores.urls.redis_url, report),
    )
    migrations = look_at_migrations(server.revision, report) if server else None
    queue = await look_at_queue(stores.urls.redis_url) if redis.reachable else None
    turns = None
    if migrations is not None and not migrations.missing:
        turns = await _look_at_turns(stores, queue, report)
    return {
        "postgres": postgres,
        "redis": redis,
        "migrations": migrations,
        "queue": queue,
        "turns": turns,
        "tools": await _look_at_tools(settings, stores, report) if redis.reachable else None,
        "pgvector": _pgvector(settings, server, report) if server else None,
    }


async def _look_at_turns(stores: Stores, queue: QueueFacts | None, report: Report) -> TurnsOverview | None:
    try:
        async with asking(stores.database) as connection:
            turns = await overview(connection)
    except Unreachable as error:
        report.problem("turns", f"They could not be counted: {error}.", "Ask again in a moment.")
        return None
    if queue is not None and queue.workers == 0:
        report.problem("queue", "No process takes turns.", "Start `segue serve`, or `segue worker` beside the API.")
    if turns.leases_passed:
        what = f"{turns.leases_passed} running turns are renewed by nobody: their process has died or hangs."
        report.problem("turns", what, "Any running `segue serve` or `segue worker` takes them over within seconds.")
    if turns.oldest_queued_s is not None and turns.oldest_queued_s > LATE_S and not turns.running:
        what = f"A turn has waited for {turns.oldest_queued_s:g} s and none runs."
        report.problem("turns", what, "Start `segue worker`, or look into the log of the one that runs.")
    return turns


async def _look_at_tools(settings: Settings, stores: Stores, report: Report) -> dict[str, list[str]]:
    failed = sorted(await GlobalToolState(stores.cache, health_rules(settings), unobserved).load())
    for tool in failed:
        what = f"{tool} has failed in several sessions and is offered to nobody."
        report.problem(
            "tools", what, "Mend what it needs; it is tried again by itself, or at once after POST /tool-states/reset."
        )
    return {"failed_for_all": failed}


def _pgvector(settings: Settings, server: ServerFacts, report: Report) -> dict[str, Any]:
    version, model = server.pgvector, settings.embedding_model
    if model and version is None:
        what = "EMBEDDING_MODEL is set, but PostgreSQL has no pgvector: facts are found by their words only."
        report.problem("pgvector", what, "Install pgvector and run CREATE EXTENSION vector, or unset EMBEDDING_MODEL.")
    return {"version": version, "embedding_model": model}
