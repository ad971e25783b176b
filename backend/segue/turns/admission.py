"""Whether a message, or a button on a plan, becomes a turn. The rows of its session decide; the queue comes later.

The common case is one statement. If it refuses, because other turns are open or another message came at the same
moment, it is asked again under the lock of the session's row, where the answer is exact.
"""

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from sqlalchemy.ext.asyncio import AsyncConnection

from segue.db.engine import Database
from segue.domain import turn_errors
from segue.domain.plan import BUTTON_MESSAGES, Decision, end
from segue.domain.session import EPOCHS, TurnKey, TurnStatus
from segue.memory.sessions import lock_session
from segue.plans import store as plans
from segue.plans.store import StalePlan
from segue.turns.queries import first_open_turn, turn_of_key
from segue.turns.store import ChatRequest, KeyTaken, OnBusy, Once, begin_turn
from segue.turns.terminations import run_again

MAX_QUEUED = 10  # beside the one that runs

_ROOM: Final[dict[OnBusy, int]] = {"enqueue": MAX_QUEUED + 1, "reject": 1, "interrupt": 2**31 - 1}


@dataclass(frozen=True, slots=True)
class Admitted:
    """A turn and its status. If it is not `fresh`, it was accepted before under the same idempotency key.

    `failed_for_now` is one that ended with an error that may be gone by now: its key runs it again.
    """

    turn: TurnKey
    status: TurnStatus = "queued"
    fresh: bool = True
    failed_for_now: bool = False


async def admit(database: Database, owner: str, session_id: str, request: ChatRequest, *, now: datetime) -> Admitted:
    """Raises NotFound, AppError `turn_in_progress`, `too_many_queued`, `idempotency_key_reused`."""
    room = _ROOM[request.on_busy]
    try:
        async with database.autocommit() as connection:
            turn = await begin_turn(connection, owner, session_id, request, now=now, room=room)
    except KeyTaken:
        turn = None
    if turn is not None:
        return Admitted(turn)
    async with database.transaction() as connection:
        await lock_session(connection, owner, session_id)
        return await _admit_locked(connection, owner, session_id, request, now=now)


async def begin_decision(
    connection: AsyncConnection,
    owner: str,
    session_id: str,
    decision: Decision,
    *,
    version: int,
    request: ChatRequest,
    now: datetime,
) -> Admitted | None:
    """Stores the decision on a waiting plan and the turn that carries it out, in the caller's transaction.

    `request` has everything but the message. Returns None if the plan has expired, which is stored then. A plan whose
    turn died waits too, though no step says so yet: its next turn settles it. Raises NotFound, AppError `no_open_plan`,
    StalePlan for every version but the one that waits, and Unreadable.
    """
    await lock_session(connection, owner, session_id)
    if (known := await accepted_before(connection, owner, session_id, request.once)) is not None:
        return await _admit_locked(connection, owner, session_id, request, now=now) if known.failed_for_now else known
    stored = await plans.open_plan(connection, session_id)
    if stored is None:
        if await plans.newest_has_expired(connection, session_id):
            return None
        raise plans.no_open_plan()
    plans.usable(stored)
    if stored.plan.version != version:
        raise StalePlan
    request = replace(request, message=BUTTON_MESSAGES[decision])
    if stored.plan.status == "active":
        if await first_open_turn(connection, session_id) is not None:
            raise StalePlan
        return await _admit_locked(connection, owner, session_id, request, now=now)
    if stored.plan.expires_at <= now:
        await plans.swap(connection, stored, end(stored.plan, "expired"))
        return None
    request = replace(request, decided_plan_id=stored.plan.id)
    admitted = await _admit_locked(connection, owner, session_id, request, now=now)
    await plans.decide(connection, stored, decision, turn_id=admitted.turn.turn_id, now=now)
    return admitted


async def accepted_before(
    connection: AsyncConnection, owner: str, session_id: str, once: Once | None
) -> Admitted | None:
    """Returns the turn accepted under this key. Raises AppError `idempotency_key_reused` for another body."""
    stored = await turn_of_key(connection, owner, session_id, once.key) if once is not None else None
    if once is None or stored is None:
        return None
    if stored.body_hash != once.body_hash:
        raise turn_errors.key_reused()
    for_now = stored.status == "failed" and bool(stored.error["retryable"])
    turn = TurnKey(session_id, stored.id, stored.seq, stored.epoch // EPOCHS)
    return Admitted(turn, stored.status, fresh=False, failed_for_now=for_now)


async def _admit_locked(
    connection: AsyncConnection, owner: str, session_id: str, request: ChatRequest, *, now: datetime
) -> Admitted:
    """In a transaction that holds the lock of the session's row, so that no other message comes between."""
    known = await accepted_before(connection, owner, session_id, request.once)
    if known is not None and not known.failed_for_now:
        return known
    room = _ROOM[request.on_busy]

    async def begin() -> TurnKey | None:
        if known is not None:
            return await run_again(connection, known.turn, request, room=room)
        return await begin_turn(connection, owner, session_id, request, now=now, room=room)

    while (turn := await begin()) is None:
        if request.on_busy == "enqueue":
            raise turn_errors.too_many_queued(MAX_QUEUED)
        if (busy := await first_open_turn(connection, session_id)) is not None:  # else it has ended just now
            raise turn_errors.in_progress(busy)
    return Admitted(turn)
