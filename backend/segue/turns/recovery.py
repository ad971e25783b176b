"""Finds the turns that no process takes care of, and queues or ends them: the same search for a process that died, a
job that Redis lost and a cancellation that was not carried out. Needs Postgres and nothing else.
"""

import time
from collections.abc import Awaitable, Callable

import structlog

from segue.db.causes import OutageLog
from segue.domain import turn_errors
from segue.domain.errors import AppError
from segue.domain.events import CallEnded
from segue.domain.telemetry import TurnEnded, TurnRecovered
from segue.events import user_feed
from segue.memory import short_term
from segue.turns import terminations
from segue.turns.maintenance import sweep
from segue.turns.presence import Presence
from segue.turns.scheduler import TurnWorker
from segue.turns.terminations import MAX_ATTEMPTS, NeglectedTurn
from segue.turns.turn_deps import TurnDeps
from segue.turns.turn_metrics import outcome_of, record_end

RECOVER_EVERY_S = 1.0

SendTurn = Callable[[NeglectedTurn], Awaitable[bool]]

log = structlog.get_logger()


async def recover_forever(
    deps: TurnDeps, worker: TurnWorker, presence: Presence, send: SendTurn, takes_turns: Callable[[], bool]
) -> None:
    """Never returns. `takes_turns()` says whether this process runs the turns it finds; `send` queues the others."""
    swept, outage = 0.0, OutageLog("recovery_failed", "recovery_works")
    while True:
        try:
            await _recover(deps, worker, send, takes_turns=takes_turns())
            if time.monotonic() - swept >= deps.settings.lease_s:
                await sweep(
                    deps.database, deps.cache, deps.events, deps.settings, now=deps.clock(), observe=deps.observe
                )
                swept = time.monotonic()
        except AppError as error:
            outage.fails(code=error.code)
        else:
            outage.works()
        await presence.wait_for_lapse(at_most_s=min(RECOVER_EVERY_S, deps.settings.lease_s / 4))


async def _recover(deps: TurnDeps, worker: TurnWorker, send: SendTurn, *, takes_turns: bool) -> None:
    async with deps.database.read_only() as connection:
        found = await terminations.neglected_turns(connection, timeout_s=deps.settings.turn_timeout_s)
    for turn in found:
        queued_again = turn.running and await _end_or_requeue(deps, turn)
        if takes_turns and worker.has_room:
            worker.wake(turn.key.session_id)
            if not turn.running:
                deps.observe(TurnRecovered("begun"))
        elif queued_again:
            await send(turn)


async def _end_or_requeue(deps: TurnDeps, turn: NeglectedTurn) -> bool:
    """Queues a running turn again if it has attempts and time left, else ends it. Returns whether it is queued."""
    error = _reason_to_end(turn, timeout_s=deps.settings.turn_timeout_s)
    calls: list[CallEnded] | None = []
    async with deps.database.transaction() as connection:
        if error is not None:
            error = await terminations.with_approval(connection, turn.key.turn_id, error)
            calls = await terminations.end_neglected(connection, turn, error, now=deps.clock())
        elif not await terminations.requeue_lapsed(connection, turn, timeout_s=deps.settings.turn_timeout_s):
            calls = None
    if calls is None:
        return False
    ids = {"session_id": turn.key.session_id, "turn_id": turn.key.turn_id}
    log.warning("turn_recovered", **ids, attempts=turn.attempts, ended=error and error.code)
    deps.observe(TurnRecovered("queued_again" if error is None else "ended"))
    if error is not None:
        record_end(deps.observe, turn.key, TurnEnded(outcome_of(error), error.code), attempt=turn.attempts)
        await short_term.forget(deps.cache, turn.key.session_id)
        deps.events.end(turn.key, error, calls)
        deps.events.tell(turn.owner, *user_feed.turn_ended(turn.key, error))
    return error is None


def _reason_to_end(turn: NeglectedTurn, *, timeout_s: float) -> AppError | None:
    if turn.cancelled:
        return turn_errors.cancelled()
    if turn.attempts >= MAX_ATTEMPTS:
        return turn_errors.gave_up(turn.attempts)
    if turn.left_s is None or turn.left_s <= 0:
        return turn_errors.turn_timeout(timeout_s)
    return None
