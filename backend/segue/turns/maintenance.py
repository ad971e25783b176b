"""Deletes what has expired, in small batches: payloads, plans, tool state changes, webhook events,
audit, usage, details of turns, idle sessions.

Runs in every process; rows are locked with SKIP LOCKED, so that processes do not wait for each other.
"""

from datetime import datetime, timedelta

import structlog

from segue.db.engine import Database
from segue.db.redis import Cache
from segue.domain.telemetry import Observe, PlanEnded, RowsDeleted
from segue.events.event_log import EventLog
from segue.events.outbox import drop_excess
from segue.memory import session_store, short_term
from segue.plans.store import expire_overdue
from segue.tools.retention import drop_expired
from segue.tools.states import drop_old_changes
from segue.turns import queries
from segue.turns.run_record import drop_old_details
from segue.turns.turn_settings import TurnSettings
from segue.users.audit import drop_old_acts
from segue.users.ledger import drop_old_usage

MOST_SESSIONS = 50

log = structlog.get_logger()


async def sweep(
    database: Database, cache: Cache, events: EventLog, settings: TurnSettings, *, now: datetime, observe: Observe
) -> None:
    """Deletes one batch of each kind; the rest is for the next time."""
    async with database.autocommit() as connection:
        payloads = await drop_expired(connection, now=now)
        gone = {
            "results": len(payloads),
            "plans": await expire_overdue(connection, now=now),
            "changes": await drop_old_changes(connection, before=now - timedelta(days=settings.tool_result_ttl_days)),
            "webhook_events": await drop_excess(connection),
        }
        if settings.audit_ttl_days:
            gone["audit"] = await drop_old_acts(connection, before=now - timedelta(days=settings.audit_ttl_days))
        if settings.usage_ttl_days:
            first_day = now.date() - timedelta(days=settings.usage_ttl_days)
            gone["usage"] = await drop_old_usage(connection, before=first_day)
        if settings.turn_details_ttl_days:
            since = now - timedelta(days=settings.turn_details_ttl_days)
            gone["turn_details"] = await drop_old_details(connection, cache, before=since)
    if settings.session_ttl_days:
        gone["sessions"] = 0
        while gone["sessions"] < MOST_SESSIONS and await _drop_idle(database, cache, events, settings.session_ttl_days):
            gone["sessions"] += 1
    sizes = {"results": sum(payloads)}
    for kind, rows in gone.items():
        if rows:
            observe(PlanEnded("expired", rows) if kind == "plans" else RowsDeleted(kind, rows, sizes.get(kind, 0)))
    if any(gone.values()):
        log.info("retention_swept", **gone, bytes=sum(sizes.values()))


async def _drop_idle(database: Database, cache: Cache, events: EventLog, days: int) -> bool:
    """Deletes one session with all its rows, which is a batch of its own. Returns False if no session is idle."""
    async with database.transaction() as connection:
        idle = await session_store.lock_idle(connection, days=days)
        if idle is None:
            return False
        owner, session_id = idle
        turns = await queries.turn_ids(connection, session_id)
        await session_store.delete_session(connection, owner, session_id)
    await events.delete(session_id, turns, user=owner)
    await short_term.forget(cache, session_id)
    return True
