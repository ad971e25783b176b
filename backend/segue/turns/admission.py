"""Whether a message becomes a turn, or a failed turn is run again: by its user's limits and its session's open turns.

The common case is one statement, built at import, since building it takes half a millisecond. If it refuses, since
turns are open or a message came at the same moment, it is asked again under the lock of the session's row, which is
exact. Redis counts limits; without it each process does.
"""

from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass, fields, replace
from datetime import datetime, timedelta
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError
from sqlalchemy.sql.dml import ReturningInsert, ReturningUpdate

from segue.db.engine import Connection, Database
from segue.db.models import OPEN_TURNS, messages, plans, sessions, tool_calls, turns
from segue.db.outages import StorageUnavailable
from segue.db.redis_keys import SCRIPTS, Cache, Rates, turn_places_key
from segue.db.rows import without_defaults
from segue.domain.errors import AppError, app_error, rate_limited
from segue.domain.identity import Charge
from segue.domain.ids import new_id
from segue.domain.session import EPOCHS, NO_OPTIONS, Session, TurnKey, TurnStatus, first_words, turn_key
from segue.domain.tool import Tool
from segue.memory.fact_cues import may_state_facts
from segue.memory.history import IN_HISTORY, NEW_MESSAGE_COLUMNS, NewMessage, insert_message, message_values
from segue.memory.history_window import INTERRUPTED
from segue.memory.session_store import lock_session, title_due_on_message
from segue.plans.store import cancel_open, is_open
from segue.turns.branches import put_in_place
from segue.turns.chat_request import ChatRequest, OnBusy, Once, TurnRequest
from segue.turns.claims import Claim, Claimer, claim_of, of_session
from segue.turns.queries import find_turn, first_open_turn, last_in_history, sessions_of_open, turn_of_key
from segue.turns.run_record import attempt_ended
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
            now_s, unknown = self._books.clock().timestamp(), holders.keys() - open_in.keys()
            coming = {turn for turn in unknown if abs(now_s - holders[turn]) <= ACCEPTING_S}  # clocks go back
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


class KeyTaken(Exception):
    """The session has a turn under this idempotency key already."""


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
                await cancel_open(connection, session_id, request.abandons)
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
    if once.body_hash not in ("", stored.body_hash):
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


def _begin(*, claims: bool) -> tuple[sa.CTE, sa.CTE, ReturningInsert[int]]:
    """Takes the session's next seq only if nothing has happened in the session since this statement has read it: no
    other message, and no failed turn that is run again. Then the open turns it has counted are all there are; one that
    loses a race is refused, and asks under the lock. Returns the parts: session, turn, and the message, which it ends
    with. The turn is queued, unless this `claims` it. Only the parameters of the message are named like columns, since
    SQLAlchemy would set any such column.
    """
    session_id, now = NEW_MESSAGE_COLUMNS["session_id"], NEW_MESSAGE_COLUMNS["created_at"]
    waiting = turns.alias("waiting")
    counted = (waiting.c.session_id == sessions.c.id, waiting.c.status.in_(OPEN_TURNS))
    open_turns = sa.select(sa.func.count()).where(*counted).scalar_subquery().label("open_turns")
    read = sa.select(sessions.c.next_seq, sessions.c.updated_at, open_turns)
    seen = read.where(sessions.c.id == session_id).cte("seen")
    owned = (
        sa.update(sessions)
        .where(sessions.c.id == session_id, sessions.c.owner == sa.bindparam("caller"))
        .where(sessions.c.next_seq == seen.c.next_seq, seen.c.open_turns < sa.bindparam("room", type_=sa.Integer))
        .where(sessions.c.updated_at == seen.c.updated_at)
        .values(
            next_seq=sessions.c.next_seq + 1,
            updated_at=sa.func.clock_timestamp(),
            title=sa.func.coalesce(sessions.c.title, sa.bindparam("first_words", type_=sa.Text)),
            title_due_at=title_due_on_message(),
        )
        .returning(
            (sessions.c.next_seq - 1).label("seq"),
            *(sessions.c[name] for name in ("language", "time_zone", "title", "agent")),
        )
        .cte("owned")
    )
    running = {
        "status": sa.literal("running"),
        "epoch": sa.literal(1),
        "attempts": sa.literal(1),
        "agent": owned.c.agent,
        "worker": sa.bindparam("claimer", type_=sa.Text),
        "lease_until": sa.func.now() + sa.bindparam("lease", type_=sa.Interval),
        "started_at": sa.func.now(),
    }
    open_plan = sa.select(sa.func.jsonb_build_array(plans.c.id, plans.c.version))
    at_the_time = sa.func.jsonb_build_object(
        *("shown_plan", open_plan.where(plans.c.session_id == session_id, is_open()).scalar_subquery()),
        *("language", owned.c.language, "time_zone", sa.func.nullif(owned.c.time_zone, "")),
    )
    turn = {
        "id": NEW_MESSAGE_COLUMNS["turn_id"],
        "session_id": session_id,
        "status": sa.literal("queued"),
        "request": sa.bindparam("asked", type_=turns.c.request.type).op("||")(sa.func.jsonb_strip_nulls(at_the_time)),
        "idempotency_key": sa.bindparam("key", type_=sa.Text),
        "body_hash": sa.bindparam("body", type_=sa.Text),
        "created_at": now,
        "facts_due_at": sa.case((sa.bindparam("tells_facts", type_=sa.Boolean), sa.func.now())),
        **(running if claims else {}),
    }
    stored = sa.insert(turns).from_select(["seq", *turn], sa.select(owned.c.seq, *turn.values()))
    begun = stored.returning(turns.c.seq, turns.c.request).cte("begun")
    return owned, begun, insert_message(begun, opens_turn=True).returning(messages.c.seq)


def _begin_claimed() -> sa.Select[*tuple[Any, ...]]:
    """Reads the session as a claim does; its title and the number of its messages include the new message."""
    owned, turn, inserted = _begin(claims=True)
    message = inserted.cte("message")
    of_turn = (turn.c.seq, turn.c.request, owned.c.agent, owned.c.title.label("new_title"))
    begun = message.join(turn, turn.c.seq == message.c.seq).join(owned, owned.c.seq == message.c.seq)
    begun = begun.join(sessions, sessions.c.id == NEW_MESSAGE_COLUMNS["session_id"])
    return sa.select(*of_turn, *of_session()).select_from(begun)


_BEGIN, _BEGIN_CLAIMED = _begin(claims=False)[2], _begin_claimed()
_ASKED = [each.name for each in fields(TurnRequest) if each.name in ChatRequest.__slots__]


async def begin_turn(
    connection: Connection, owner: str, session_id: str, request: ChatRequest, *, now: datetime, room: int
) -> TurnKey | None:
    """Accepts a message: takes the session's next seq, stores a queued turn and the user's message. Returns None if the
    session is not the owner's, has `room` open turns, or if another message came at that moment. Raises KeyTaken.
    """
    values, turn_id = _accepting(owner, session_id, request, now=now, room=room)
    try:
        seq = (await connection.execute(_BEGIN, values)).scalar_one_or_none()
    except IntegrityError as error:
        raise KeyTaken from error
    return TurnKey(session_id, turn_id, seq) if seq is not None else None


async def begin_claimed(
    connection: Connection, owner: str, session_id: str, request: ChatRequest, *, now: datetime, claimer: Claimer
) -> Claim | None:
    """Does what `begin_turn` does and claims the turn, in one statement. Returns None also if a turn is open. Raises
    KeyTaken, perhaps for a turn that runs since this moment.
    """
    values, turn_id = _accepting(owner, session_id, request, now=now, room=1)
    values |= {"claimer": claimer.worker, "lease": timedelta(seconds=claimer.lease_s), "at_session": session_id}
    try:
        found = (await connection.execute(_BEGIN_CLAIMED, values)).mappings().one_or_none()
    except IntegrityError as error:
        raise KeyTaken from error
    if found is None:
        return None
    row = dict(found)
    row |= {"id": turn_id, "epoch": 1, "attempt": 1, "left_s": None, "queued_s": 0.0}
    row |= {"title": row.pop("new_title"), "message_count": row["seq"], "tells_facts": values["tells_facts"]}
    return claim_of(session_id, row)


def _accepting(
    owner: str, session_id: str, request: ChatRequest, *, now: datetime, room: int
) -> tuple[dict[str, Any], str]:
    """Returns the parameters of the statement that accepts a message, and the id of its turn."""
    turn_id = request.turn_id or new_id("turn", now)
    user_message = NewMessage("user", request.message, now, note=request.note, attachments=request.attachments)
    user_message = replace(user_message, by_program=not request.approves)
    message = message_values(TurnKey(session_id, turn_id, 0), user_message)
    stored_request = TurnRequest(**{name: getattr(request, name) for name in _ASKED})
    key, body_hash = (request.once.key, request.once.body_hash) if request.once else (None, None)
    values = {"caller": owner, "asked": without_defaults(stored_request), "room": room, "key": key, "body": body_hash}
    stated = request.message if request.approves else ""
    values |= {"tells_facts": may_state_facts(stated), "first_words": first_words(request.message)}
    return values | message, turn_id


def _run_again() -> ReturningUpdate[*tuple[Any, ...]]:
    """Puts a failed or cancelled turn back as a crash leaves one, with all its time and attempts. Its open calls are
    open again: to be repeated or taken for unknown. The message cut off when the user stopped it leaves the history.
    """
    failed, others = sa.bindparam("failed_turn", type_=sa.Text), turns.alias("others")
    are_open = (others.c.session_id == turns.c.session_id, others.c.status.in_(OPEN_TURNS))
    open_turns = sa.select(sa.func.count()).where(*are_open).scalar_subquery()
    interrupted = sa.update(tool_calls).where(tool_calls.c.turn_id == failed, tool_calls.c.summary == INTERRUPTED)
    left_open = interrupted.values(status="running", error=None, summary="").returning(tool_calls.c.id).cte("left_open")
    answered = sa.delete(messages).where(messages.c.tool_call_id.in_(sa.select(left_open.c.id)))
    stopped = sa.update(messages).where(messages.c.turn_id == failed, messages.c.cut_off).where(IN_HISTORY)
    left = stopped.values(branch=sa.bindparam("left_to"), left_at=sa.func.now())
    gone = [answered.returning(messages.c.id).cte("answered"), left.returning(messages.c.id).cte("left")]
    gaps = sum((sa.select(sa.func.count()).select_from(each).scalar_subquery() for each in gone), sessions.c.gaps)
    # Its time so that a message which comes at the same moment is not claimed before it.
    noted = sa.update(sessions).where(sessions.c.id == sa.bindparam("at_session"))
    noted = noted.values(updated_at=sa.func.clock_timestamp(), gaps=gaps)
    return (
        sa.update(turns)
        .where(turns.c.id == failed, turns.c.status.in_(("failed", "cancelled")), turns.c.branch.is_(None))
        .where(open_turns < sa.bindparam("room", type_=sa.Integer))
        .values(
            status="queued",
            queued_at=sa.func.now(),
            epoch=(turns.c.epoch / sa.literal(EPOCHS) + 1) * EPOCHS,
            attempts=0,
            request=turns.c.request.op("||")(sa.bindparam("asked", type_=turns.c.request.type)),
            **attempt_ended(turns.c.error["code"].as_string(), at=turns.c.finished_at),
            **dict.fromkeys(("error", "error_extra", "left_s", "worker", "finished_at", "cancel_requested_at")),
        )
        .returning(turns.c.session_id, turns.c.id, turns.c.seq, turns.c.epoch)
        .add_cte(left_open, *gone, noted.cte("noted"))
    )


_RUN_AGAIN = _run_again()


async def run_again(
    connection: Connection, turn: TurnKey, request: ChatRequest, *, now: datetime, room: int
) -> TurnKey | None:
    """Queues a failed or cancelled turn again, under its session's lock. None if that has `room` open turns."""
    retried = request.once and asdict(request.once)
    changes = {"stream": request.stream, "origin": without_defaults(request.origin), "retried": retried}
    values = {"failed_turn": turn.turn_id, "at_session": turn.session_id, "room": room, "asked": changes}
    values["left_to"] = new_id("br", now)
    row = (await connection.execute(_RUN_AGAIN, values)).one_or_none()
    return turn_key(row.session_id, row) if row else None
