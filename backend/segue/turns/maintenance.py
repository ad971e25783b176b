"""Deletes what has expired, in small batches: payloads, plans, tool state changes, webhook events,
audit, usage, details of turns, idle sessions.

Runs in every process; rows are locked with SKIP LOCKED, so that processes do not wait for each other.
"""

from dataclasses import dataclass
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
from segue.users.audit import drop_old_acts
from segue.users.ledger import drop_old_usage

MOST_SESSIONS = 50

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class KeepLimits:
    """After how many days idle sessions, changes of tool states, what operators did, usage, and what turns did when are
    deleted. None and 0 keep for ever.
    """

    session_days: int | None
    change_days: int
    audit_days: int
    usage_days: int
    turn_detail_days: int


async def sweep(
    database: Database, cache: Cache, events: EventLog, limits: KeepLimits, *, now: datetime, observe: Observe
) -> None:
    """Deletes one batch of each kind; the rest is for the next time."""
    async with database.autocommit() as connection:
        payloads = await drop_expired(connection, now=now)
        gone = {
            "results": len(payloads),
            "plans": await expire_overdue(connection, now=now),
            "changes": await drop_old_changes(connection, before=now - timedelta(days=limits.change_days)),
            "webhook_events": await drop_excess(connection),
        }
        if limits.audit_days:
            gone["audit"] = await drop_old_acts(connection, before=now - timedelta(days=limits.audit_days))
        if limits.usage_days:
            gone["usage"] = await drop_old_usage(connection, before=now.date() - timedelta(days=limits.usage_days))
        if limits.turn_detail_days:
            since = now - timedelta(days=limits.turn_detail_days)
            gone["turn_details"] = await drop_old_details(connection, cache, before=since)
    if limits.session_days:
        gone["sessions"] = 0
        while gone["sessions"] < MOST_SESSIONS and await _drop_idle(database, cache, events, limits.session_days):
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
