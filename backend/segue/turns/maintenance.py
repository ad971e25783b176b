"""The upkeep of every process beside its own turns: turns without a process, and rows that have expired.

One search, which needs only Postgres, finds turns of a dead process, jobs that Redis lost and cancellations that were
not carried out. Rows are deleted in small batches with SKIP LOCKED, so processes do not wait for each other.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import Any, TypeVar

import sqlalchemy as sa

from segue.db.engine import Connection
from segue.db.models import OPEN_TURNS, plans, schedules, sessions, triggers, turns
from segue.db.outages import OutageLog
from segue.domain.errors import AppError, app_error, turn_cancelled
from segue.domain.telemetry import PlanEnded, RowsDeleted, TurnEnded, TurnRecovered
from segue.events.outbox import drop_excess
from segue.log import log
from segue.memory import session_store, short_term
from segue.plans.store import expire_overdue
from segue.tools.retention import drop_expired
from segue.tools.tool_states import drop_old_changes
from segue.turns import queries, terminations
from segue.turns.presence import Presence
from segue.turns.run_record import drop_old_details, outcome_of, record_end
from segue.turns.turn_deps import TurnDeps
from segue.turns.worker import TurnWorker
from segue.users.audit import drop_old_acts
from segue.users.limits import drop_stale_reservations
from segue.users.usage import drop_old_usage

RECOVER_EVERY_S = 1.0
MOST_SESSIONS = 50  # no batch of another kind is smaller

Tried = TypeVar("Tried")
SendSession = Callable[[str], Awaitable[bool]]


async def recover_forever(
    deps: TurnDeps, worker: TurnWorker, presence: Presence, send: SendSession, takes_turns: Callable[[], bool]
) -> None:
    """Never returns. `takes_turns()` says whether this process runs the turns it finds; `send` queues the others."""
    every_s, outage = deps.settings.turn_lease_s, OutageLog("recovery_failed", "recovery_works")
    sweep_at = time.monotonic() + every_s
    while True:
        with outage.logged():
            await _recover(deps, worker, send, takes_turns=takes_turns())
            if time.monotonic() >= sweep_at:
                sweep_at = time.monotonic() + (0 if await _sweep(deps) else every_s)
        await presence.wait_for_lapse(at_most_s=min(RECOVER_EVERY_S, every_s / 4))


async def _recover(deps: TurnDeps, worker: TurnWorker, send: SendSession, *, takes_turns: bool) -> None:
    for turn in await deps.database.read(terminations.neglected_turns, timeout_s=deps.settings.turn_timeout_s):
        of = {"turn_id": turn.key.turn_id}
        queued_again = turn.running and await _tried(_end_or_requeue(deps, turn), "turn_not_recovered", **of)
        if takes_turns and worker.has_room:
            worker.wake(turn.key.session_id)
            if not turn.running:
                deps.observe(TurnRecovered("begun"))
        elif queued_again:
            await send(turn.key.session_id)


async def _tried(work: Awaitable[Tried], log_failed: str, **ids: str) -> Tried | None:
    """Returns None if the work raises: the error is logged, and the other work goes on."""
    [done] = await asyncio.gather(work, return_exceptions=True)
    if isinstance(done, BaseException):
        log.warning(log_failed, error=done.code if isinstance(done, AppError) else type(done).__name__, **ids)
    return None if isinstance(done, BaseException) else done


async def _end_or_requeue(deps: TurnDeps, turn: terminations.NeglectedTurn) -> bool:
    """Queues a running turn again if it has attempts and time left, else ends it. Returns whether it is queued."""
    timeout_s, ended = deps.settings.turn_timeout_s, None
    error = _reason_to_end(turn, timeout_s=timeout_s)
    async with deps.database.transaction() as connection:
        if error is None:
            has_moved = await terminations.requeue(connection, turn, "process_lost", timeout_s=timeout_s)
        else:
            ended = await terminations.end_turn(connection, turn, error, now=deps.clock())
            has_moved = ended is not None
    if not has_moved:
        return False
    ids = {"session_id": turn.key.session_id, "turn_id": turn.key.turn_id}
    log.warning("turn_recovered", **ids, attempts=turn.attempts, ended=error and error.code)
    deps.observe(TurnRecovered("queued_again" if error is None else "ended"))
    if ended is not None:
        record_end(deps.observe, turn.key, TurnEnded(outcome_of(ended[0]), ended[0].code), attempt=turn.attempts)
        await short_term.forget(deps.cache, turn.key.session_id)
        deps.events.end(turn.key, *ended, user=turn.owner)
    return error is None


def _reason_to_end(turn: terminations.NeglectedTurn, *, timeout_s: float) -> AppError | None:
    if turn.cancelled:
        return turn_cancelled()
    if turn.attempts >= terminations.MAX_ATTEMPTS:
        return app_error("turn_gave_up", attempts=turn.attempts)
    if turn.left_s is None or turn.left_s <= 0:
        return app_error("turn_timeout", seconds=timeout_s)
    return None


async def _sweep(deps: TurnDeps) -> bool:
    """Deletes one batch of each kind. Returns whether one may have been full, and more is left for the next time."""
    settings, now = deps.settings, deps.clock()

    async def dropped(drop: Callable[..., Awaitable[Tried]], **given: Any) -> Tried | None:
        return await _tried(deps.database.write(drop, **given), "retention_failed", step=drop.__name__)

    payloads = await dropped(drop_expired, now=now) or []
    gone = {
        "results": len(payloads),
        "plans": await dropped(expire_overdue, now=now),
        "changes": await dropped(drop_old_changes, before=now - timedelta(days=settings.tool_result_ttl_days)),
        "webhook_events": await dropped(drop_excess),
    }
    await dropped(drop_stale_reservations)
    if days := settings.audit_ttl_days:
        gone["audit"] = await dropped(drop_old_acts, before=now - timedelta(days))
    if days := settings.usage_ttl_days:
        gone["usage"] = await dropped(drop_old_usage, before=now.date() - timedelta(days))
    if days := settings.turn_details_ttl_days:
        gone["turn_details"] = await dropped(drop_old_details, cache=deps.cache, before=now - timedelta(days))
    if idle_days := settings.session_ttl_days:
        gone["sessions"] = await _drop_idle(deps, idle_days)
    sizes = {"results": sum(payloads)}
    for kind, rows in gone.items():
        if rows:
            deps.observe(PlanEnded("expired", rows) if kind == "plans" else RowsDeleted(kind, rows, sizes.get(kind, 0)))
    if any(gone.values()):
        log.info("retention_swept", **gone, bytes=sum(sizes.values()))
    return any(rows is not None and rows >= MOST_SESSIONS for rows in gone.values())


async def _drop_idle(deps: TurnDeps, days: int) -> int:
    """Deletes MOST_SESSIONS at most, and returns how many. One that cannot be deleted holds up no other."""
    tried, deleted = list[str](), 0
    for number in range(MOST_SESSIONS):
        deleted += bool(await _tried(_drop_longest_idle(deps, days, tried), "session_not_deleted"))
        if len(tried) == number:
            break
    return deleted


async def _drop_longest_idle(deps: TurnDeps, days: int, tried: list[str]) -> bool:
    """Deletes one session with all its rows, and adds it to those `tried`. Returns False if no other one is idle."""
    async with deps.database.transaction() as connection:
        idle = await _lock_idle(connection, days=days, but=tried)
        if idle is None:
            return False
        owner, session_id = idle
        tried.append(session_id)
        of_session = await queries.turn_ids(connection, session_id)
        await session_store.delete_session(connection, owner, session_id)
    await deps.events.delete(session_id, of_session, user=owner)
    await short_term.forget(deps.cache, session_id)
    return True


async def _lock_idle(connection: Connection, *, days: int, but: Sequence[str]) -> tuple[str, str] | None:
    """Locks the session that has been idle for longest, but for these, and returns its owner and id; None if none is
    for these days. One with an open turn is not idle, nor one that a message is just coming in to (its row is locked),
    nor one that an active schedule or trigger will go on in, or in which a plan waits.
    """
    open_turn = sa.select(turns.c.id).where(turns.c.session_id == sessions.c.id, turns.c.status.in_(OPEN_TURNS))
    is_old = sessions.c.updated_at < sa.func.now() - timedelta(days=days)
    at_work = (
        sa.exists().where(each.c.session_id == sessions.c.id, each.c.status == status)
        for each, status in ((schedules, "active"), (triggers, "active"), (plans, "waiting"))
    )
    is_idle = (is_old, ~open_turn.exists(), *map(sa.not_, at_work), sessions.c.id.not_in(but))
    idle = sa.select(sessions.c.owner, sessions.c.id).where(*is_idle)
    longest = idle.order_by(sessions.c.updated_at).limit(1).with_for_update(skip_locked=True)
    row = (await connection.execute(longest)).one_or_none()
    return (row.owner, row.id) if row else None
