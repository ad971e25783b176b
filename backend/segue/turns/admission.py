"""Whether a message becomes a turn: by its user's limits and its session's open turns.

The common case is one statement. If that refuses, since turns are open or a message came at the same moment, it is
asked again under the lock of the session's row, which is exact. Redis counts limits; without it each process does.
"""

from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Final

from segue.db.engine import Connection, Database
from segue.db.outages import StorageUnavailable
from segue.db.redis_keys import SCRIPTS, Cache, Rates, turn_places_key
from segue.domain.errors import AppError, app_error, rate_limited
from segue.domain.identity import Charge
from segue.domain.ids import new_id
from segue.domain.session import NO_OPTIONS, Session, TurnKey, TurnStatus, turn_key
from segue.domain.tool import Tool
from segue.memory.session_store import lock_session
from segue.plans import store as plans
from segue.turns.branches import put_in_place
from segue.turns.claims import Claim, Claimer
from segue.turns.queries import find_turn, first_open_turn, last_in_history, sessions_of_open, turn_of_key
from segue.turns.store import ChatRequest, KeyTaken, OnBusy, Once, begin_claimed, begin_turn
from segue.turns.terminations import run_again
from segue.users.usage import Books

ASK_AGAIN_S = 2  # when a turn will end is not known
ACCEPTING_S = 10.0  # longer than any statement that accepts a turn can take
KEPT_S = 86_400
ATTEMPTS = 3

Holders = dict[str, float]
MAX_QUEUED = 10  # beside the one that runs
_IN_LINE: Final = MAX_QUEUED + 1
_ROOM: Final[dict[OnBusy, int]] = {"enqueue": _IN_LINE, "steer": _IN_LINE, "reject": 1, "interrupt": 2**31 - 1}


class Limiter:
    """`first_call` returns what the first call of the model for a message takes at most. Redis holds which turns took a
    place. Only if none is free are the rows asked which of those turns have ended, so a place costs one round trip,
    ends with its turn although no process gives it back, and survives a crash.
    """

    def __init__(self, books: Books, cache: Cache, *, first_call: Callable[[str], Charge]) -> None:
        self._limits_of = books.limits_of
        self._rates = Rates(cache)
        self._cache = cache
        self._books = books
        self._first_call = first_call
        self._local: dict[str, Holders] = {}

    async def request(self, user: str) -> None:
        """Raises AppError `rate_limited`."""
        at_most = self._limits_of(user).requests_per_minute
        if at_most and (wait_s := await self._rates.count("requests", user, at_most)) is not None:
            raise rate_limited("requests_per_minute", at_most, wait_s)

    @asynccontextmanager
    async def starting(
        self, user: str, message: str, *, again: str | None = None, joins: str | None = None
    ) -> AsyncIterator[str]:
        """Yields the id of a turn that may be accepted within, or `again` to run again. Raises `rate_limited`. The
        place of one to run `again` is not given back here: another request may have run it again meanwhile. Open turns
        of the session that the message `joins`, because it steers or interrupts them, do not count beside it.
        """
        limits, turn_id = self._limits_of(user), again or new_id("turn", self._books.clock())
        if limits.turns_per_minute:
            wait_s = await self._rates.count("turns", user, limits.turns_per_minute)
            if wait_s is not None:
                raise rate_limited("turns_per_minute", limits.turns_per_minute, wait_s)
        at_once = limits.concurrent_turns
        if at_once and not await self._take_place(user, turn_id, at_once, joins):
            raise rate_limited("concurrent_turns", at_once, ASK_AGAIN_S)
        try:
            await self._books.reserve(user, turn_id, lambda: self._first_call(message), lasts_s=ACCEPTING_S)
            yield turn_id
        except (AppError, KeyTaken) as refused:
            # Where storage was lost it may have been accepted. A place of none lapses.
            if again is None and not isinstance(refused, StorageUnavailable):
                await self.release(user, turn_id)
            raise

    async def release(self, user: str, turn_id: str) -> None:
        """Frees the place of a turn that was not accepted, and its reservation."""
        if self._limits_of(user).concurrent_turns:
            self._local.get(user, {}).pop(turn_id, None)
            await self._cache.evaluate(SCRIPTS["release_place"], (turn_places_key(user),), turn_id)
        await self._books.release(user, turn_id)

    async def _take_place(self, user: str, turn_id: str, at_most: int, joins: str | None) -> bool:
        ended, places = set[str](), at_most
        for _ in range(ATTEMPTS):
            holders = await self._try(user, turn_id, ended, places)
            if not holders:
                return True
            open_in = await self._books.database.read(sessions_of_open, holders)
            # Turns that are about to be accepted may not have their row yet.
            newest_s = self._books.clock().timestamp() - ACCEPTING_S
            coming = {turn for turn, since in holders.items() if turn not in open_in and since >= newest_s}
            ended = {turn for turn in holders if open_in.get(turn) is None} - coming
            places = at_most + sum(joins is not None and session == joins for session in open_in.values())
            if len(holders) - len(ended) >= places:
                return False
        return False

    async def _try(self, user: str, turn_id: str, ended: Collection[str], at_most: int) -> Holders:
        """Takes a place. Returns the holders of all places if none was free."""
        now = self._books.clock().timestamp()
        answer = await self._cache.evaluate(
            SCRIPTS["take_place"], (turn_places_key(user),), turn_id, now, at_most, KEPT_S, *ended
        )
        if answer is not None:
            return {holder.decode(): float(since) for holder, since in zip(answer[::2], answer[1::2], strict=True)}
        holders = self._local.setdefault(user, {})
        for turn in ended:
            holders.pop(turn, None)
        if len(holders) >= at_most:
            return dict(holders)
        holders[turn_id] = now
        return {}


@dataclass(frozen=True, slots=True)
class Admitted:
    """A turn, its status, and its session if it was `made` with it. If it is not `fresh`, it was accepted before under
    the same key. `failed_for_now`: its error may be gone now; its key runs it again. `claim` is the claimer's.
    """

    turn: TurnKey
    status: TurnStatus = "queued"
    fresh: bool = True
    failed_for_now: bool = False
    claim: Claim | None = None
    made: Session | None = None


async def admit(
    database: Database,
    owner: str,
    session_id: str,
    request: ChatRequest,
    *,
    now: datetime,
    tools: Callable[[], Mapping[str, Tool]],
    claimer: Claimer | None = None,
) -> Admitted:
    """The `claimer` claims the turn if no other one is open. Raises NotFound, AppError `turn_in_progress`,
    `too_many_queued`, `idempotency_key_reused`, and for a request `instead_of` a message `not_the_users`,
    `cannot_edit_steer`, `not_in_history`.
    """
    prepares = request.instead_of is not None or request.abandons is not None
    # Files are read where a turn begins, and options are of one.
    steers = not prepares and request.on_busy == "steer" and not request.attachments and request.options == NO_OPTIONS
    if not (prepares or steers):
        with suppress(KeyTaken):
            async with database.autocommit() as connection:
                if claimer is not None:
                    claim = await begin_claimed(connection, owner, session_id, request, now=now, claimer=claimer)
                    if claim is not None:
                        return Admitted(claim.key, "running", claim=claim)
                turn = await begin_turn(connection, owner, session_id, request, now=now, room=_ROOM[request.on_busy])
            if turn is not None:
                return Admitted(turn)
    async with database.transaction() as connection:
        await lock_session(connection, owner, session_id)
        if prepares and await accepted_before(connection, owner, session_id, request.once) is None:
            if request.instead_of is not None:
                request = await put_in_place(connection, session_id, request, tools(), now=now)
            elif request.abandons is not None:
                await plans.cancel_open(connection, session_id, request.abandons)
        elif steers:
            request = replace(request, steers=await first_open_turn(connection, session_id))
        return await admit_locked(connection, owner, session_id, request, now=now)


async def find_retry(
    connection: Connection, owner: str, session_id: str, turn_id: str, request: ChatRequest
) -> Admitted:
    """Returns the turn if it may be run again; not `fresh` if it was under this key already. Raises NotFound, AppError
    `turn_in_progress`, `cannot_retry`, `idempotency_key_reused`.
    """
    turn = await find_turn(connection, owner, session_id, turn_id)
    await accepted_before(connection, owner, session_id, request.once)
    last, once = await last_in_history(connection, session_id), request.once and asdict(request.once)
    if last is not None and last.id == turn.turn_id and once is not None and last.retried == once:
        return Admitted(turn, last.status, fresh=False)
    if (busy := await first_open_turn(connection, session_id)) is not None:
        raise app_error("turn_in_progress", extra={"turn_id": busy})
    if last is None or last.id != turn.turn_id or last.status not in ("failed", "cancelled"):
        raise app_error("cannot_retry")
    return Admitted(turn)


async def retry(
    connection: Connection, turn_id: str, *, owner: str, session_id: str, request: ChatRequest, now: datetime
) -> Admitted:
    """In a transaction. Raises what `find_retry` raises."""
    await lock_session(connection, owner, session_id)
    found = await find_retry(connection, owner, session_id, turn_id, request)
    if not found.fresh:
        return found
    if (turn := await run_again(connection, found.turn, request, now=now, room=1)) is None:
        raise app_error("cannot_retry")
    return Admitted(turn)


async def accepted_before(connection: Connection, owner: str, session_id: str, once: Once | None) -> Admitted | None:
    """Returns the turn accepted under this key. Raises AppError `idempotency_key_reused` for another body."""
    stored = await turn_of_key(connection, owner, session_id, once.key) if once is not None else None
    if once is None or stored is None:
        return None
    if stored.body_hash != once.body_hash:
        raise app_error("idempotency_key_reused")
    for_now = stored.status == "failed" and bool(stored.error["retryable"]) and stored.branch is None
    return Admitted(turn_key(session_id, stored), stored.status, fresh=False, failed_for_now=for_now)


async def admit_locked(
    connection: Connection, owner: str, session_id: str, request: ChatRequest, *, now: datetime
) -> Admitted:
    """In a transaction that holds the lock of the session's row, so that no other message comes between."""
    known = await accepted_before(connection, owner, session_id, request.once)
    if known is not None and not known.failed_for_now:
        return known
    room = _ROOM[request.on_busy]

    async def begin() -> TurnKey | None:
        if known is not None:
            return await run_again(connection, known.turn, request, now=now, room=room)
        return await begin_turn(connection, owner, session_id, request, now=now, room=room)

    while (turn := await begin()) is None:
        if request.on_busy in ("enqueue", "steer"):
            raise app_error("too_many_queued", limit=MAX_QUEUED)
        if (busy := await first_open_turn(connection, session_id)) is not None:  # else it has ended just now
            raise app_error("turn_in_progress", extra={"turn_id": busy})
    return Admitted(turn)
