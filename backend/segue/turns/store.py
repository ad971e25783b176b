"""The rows of turns: queued, written under their fence, read by a running turn, completed. Statements are built at
import, since one costs half a millisecond. Only a new message's parameters are named like columns: SQLAlchemy would set
any such column.
"""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass, fields, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Literal

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError
from sqlalchemy.sql.dml import ReturningInsert

from segue.db.engine import Connection, Database, outlast
from segue.db.models import OPEN_TURNS, QUEUED, messages, plans, sessions, turns
from segue.db.rows import without_defaults
from segue.domain.events import SteerRead
from segue.domain.ids import digest_of_json, new_id
from segue.domain.session import NO_OPTIONS, Attached, Message, TurnKey, TurnOptions, TurnReport, first_words, turn_key
from segue.domain.telemetry import RunTimeline
from segue.domain.tool import RememberFor, ToolChoice
from segue.events.outbox import OF_TURNS, Outbox, outbox_of, turns_ended
from segue.memory import history
from segue.memory.fact_cues import may_state_facts
from segue.memory.session_store import title_due_on_answer, title_due_on_message
from segue.memory.summary import due_columns
from segue.plans.store import is_open
from segue.turns.claims import IS_HELD, Claim, Claimer, Origin, TurnRequest, claim_of, held, last_ended_turn, of_session
from segue.turns.run_record import stored_run
from segue.users.usage import ChargesByDay, booking, charged

OnBusy = Literal["enqueue", "reject", "interrupt", "steer"]


class StaleTurn(Exception):
    """Another process runs the turn now, or it has ended. This process drops it and stores nothing."""


class KeyTaken(Exception):
    """The session has a turn under this idempotency key already."""


NO_ORIGIN = Origin()


@dataclass(frozen=True, slots=True)
class Once:
    """An idempotency key and the digest of the request under it."""

    key: str
    body_hash: str


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A message as it came."""

    message: str
    force_web_search: bool = False
    decided_plan_id: str | None = None  # the plan whose button it is, None for a typed message
    decided_by: str | None = None  # who pressed the button, if it was another person than the user
    amends: bool = False  # a button with a text of the user's
    args_changed: bool = False  # by a button
    remember: RememberFor | None = None  # of a button
    on_busy: OnBusy = "enqueue"
    once: Once | None = None
    stream: bool = False  # asks for the model's words as they come
    turn_id: str | None = None  # the id its turn gets, None for a new one
    origin: Origin = NO_ORIGIN  # joins its log lines and its trace to the request
    instead_of: str | None = None  # replaces this message's turn and all after it; an empty message asks the same again
    note: str | None = None  # what the model is told with it
    abandons: tuple[str, int] | None = None  # instead of an answer to this plan (id, version), cancelled if it waits
    steers: str | None = None  # the turn that is to read the message if it can
    approves: bool = True  # a program's message does not: a yes in it is none, and what waits stays as it is
    unattended: bool = False  # that of a schedule or a trigger
    options: TurnOptions = NO_OPTIONS  # named by the client
    attachment_ids: tuple[str, ...] = ()  # named by the client
    attachments: tuple[Attached, ...] = ()  # their files


def once(key: str | None, *parts: str | int) -> Once | None:
    """Two requests are the same if their keys and contents are; how the answer is delivered does not count."""
    return Once(key, digest_of_json(parts)) if key is not None else None


def _begin(*, claims: bool) -> tuple[sa.CTE, sa.CTE, ReturningInsert[int]]:
    """Takes the session's next seq only if nothing has happened in the session since this statement has read it: no
    other message, and no failed turn that is run again. Then the open turns it has counted are all there are; one that
    loses a race is refused, and asks under the lock. Returns the parts: session, turn, and the message, which it ends
    with. The turn is queued, unless this `claims` it.
    """
    session_id, now = history.NEW_MESSAGE_COLUMNS["session_id"], history.NEW_MESSAGE_COLUMNS["created_at"]
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
        "id": history.NEW_MESSAGE_COLUMNS["turn_id"],
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
    return owned, begun, history.insert_message(begun, opens_turn=True).returning(messages.c.seq)


def _begin_claimed() -> sa.Select[*tuple[Any, ...]]:
    """Reads the session as a claim does; its title and the number of its messages include the new message."""
    owned, turn, inserted = _begin(claims=True)
    message = inserted.cte("message")
    of_turn = (turn.c.seq, turn.c.request, owned.c.agent, owned.c.title.label("new_title"))
    begun = message.join(turn, turn.c.seq == message.c.seq).join(owned, owned.c.seq == message.c.seq)
    begun = begun.join(sessions, sessions.c.id == history.NEW_MESSAGE_COLUMNS["session_id"])
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
    user_message = history.NewMessage("user", request.message, now, note=request.note, attachments=request.attachments)
    user_message = replace(user_message, by_program=not request.approves)
    message = history.message_values(TurnKey(session_id, turn_id, 0), user_message)
    stored_request = TurnRequest(**{name: getattr(request, name) for name in _ASKED})
    key, body_hash = (request.once.key, request.once.body_hash) if request.once else (None, None)
    values = {"caller": owner, "asked": without_defaults(stored_request), "room": room, "key": key, "body": body_hash}
    stated = request.message if request.approves else ""
    values |= {"tells_facts": may_state_facts(stated), "first_words": first_words(request.message)}
    return values | message, turn_id


_FENCE = sa.select(turns.c.id).where(*IS_HELD).with_for_update(read=True)


@asynccontextmanager
async def fenced_transaction(database: Database, claim: Claim) -> AsyncIterator[Connection]:
    """A transaction of a running turn. Raises StaleTurn before this process writes anything for a turn it has lost."""

    @asynccontextmanager
    async def fenced() -> AsyncIterator[Connection]:
        async with database.transaction() as connection:
            if (await connection.execute(_FENCE, held(claim.key, claim.epoch))).one_or_none() is None:
                raise StaleTurn
            yield connection

    async with AsyncExitStack() as stack:
        yield await outlast(lambda: stack.enter_async_context(fenced()))


async def store_tool_choice(database: Database, claim: Claim, choice: ToolChoice) -> None:
    async with fenced_transaction(database, claim) as connection:
        chosen = sa.update(sessions).where(sessions.c.id == claim.key.session_id).values(tool_choice=asdict(choice))
        await connection.execute(chosen)


# A message that a running turn is to read is a queued turn that never ran, so it has no calls. Unread, it runs next.
_STEERS: tuple[sa.ColumnElement[bool], ...] = (
    turns.c.session_id == sa.bindparam("at_session", type_=sa.Text),
    turns.c.status == QUEUED,
    turns.c.epoch == 0,
    turns.c.request["steers"].as_string() == sa.bindparam("steered", type_=sa.Text),
)
_IS_STEERED = sa.select(sa.exists().where(*_STEERS))
_STEERS_READ = sa.select(turns.c.id, turns.c.seq, turns.c.epoch, turns.c.facts_due_at).where(*_STEERS)
_STEERS_IN_ORDER = _STEERS_READ.order_by(turns.c.seq).with_for_update()


async def is_steered(database: Database, turn: TurnKey) -> bool:
    """Returns whether a message waits to be read by a turn."""
    waits = {"at_session": turn.session_id, "steered": turn.turn_id}
    return bool(await outlast(partial(database.read, Connection.scalar, _IS_STEERED, waits)))


async def read_steers(connection: Connection, claim: Claim) -> list[SteerRead]:
    """Makes the messages that wait for a running turn part of it, in their order, in its fenced transaction."""
    reader, read = claim.key, []
    waits = {"at_session": reader.session_id, "steered": reader.turn_id}
    for row in (await connection.execute(_STEERS_IN_ORDER, waits)).all():
        ended = {"status": "completed", "read_by": reader.turn_id, "facts_due_at": None}
        await connection.execute(sa.update(turns).where(turns.c.id == row.id).values(ended))
        if row.facts_due_at is not None:
            due = sa.func.coalesce(turns.c.facts_due_at, row.facts_due_at)
            await connection.execute(sa.update(turns).where(turns.c.id == reader.turn_id).values(facts_due_at=due))
        read.append(SteerRead(await history.move_message(connection, row.id, reader), turn_key(reader.session_id, row)))
    return read


def _finish(told: Outbox | None = None) -> ReturningInsert[int]:
    finished = (
        sa.update(turns)
        .where(*IS_HELD)
        .values(
            status="completed",
            report=sa.bindparam("outcome", type_=turns.c.report.type),
            lease_until=None,
            finished_at=history.NEW_MESSAGE_COLUMNS["created_at"],
            run=sa.bindparam("run", type_=turns.c.run.type),
            # It was told to the telemetry of the run. What goes on without a request does so with these groups.
            request=sa.case(
                (turns.c.request["origin"].has_key("groups"), turns.c.request), else_=turns.c.request.op("-")("origin")
            ),
        )
        .returning(*(OF_TURNS if told else (turns.c.session_id,)))
        .cte("finished")
    )
    moved = (
        sa.update(sessions)
        .where(sessions.c.id == finished.c.session_id)
        .values(
            next_seq=sessions.c.next_seq + 1,
            updated_at=sa.func.clock_timestamp(),
            last_turn_id=history.NEW_MESSAGE_COLUMNS["turn_id"],
            title_due_at=title_due_on_answer(sa.bindparam("improves_title", type_=sa.Boolean)),
            **due_columns(sa.bindparam("cut_off", type_=sa.BigInteger), sa.bindparam("seen_seq", type_=sa.BigInteger)),
        )
        .returning((sessions.c.next_seq - 1).label("seq"))
        .cte("moved")
    )
    session = sa.select(finished.c.session_id)
    also = [booking(session.scalar_subquery(), session.exists()).cte("booked")]
    if told:
        also.append(turns_ended(finished, history.NEW_MESSAGE_COLUMNS["content"] if told.content else None).cte("told"))
    return history.insert_message(moved).add_cte(*also).returning(messages.c.seq)


_FINISH = {told: _finish(told) for told in (None, Outbox(content=False), Outbox(content=True))}


async def finish_turn(
    connection: Connection,
    claim: Claim,
    *,
    answer: history.NewMessage,
    report: TurnReport,
    timeline: RunTimeline,
    cut_off: int | None,
    improves_title: bool,
    charges: ChargesByDay,
) -> Message:
    """Stores the answer, completes the turn and books its charges in one statement, and once though it is asked again.
    Raises StaleTurn if the claim no longer holds. `cut_off` is the seq of the last turn that the summary is to cover,
    None if none is due. `improves_title` says whether a model is to give a session a title after its first answer.
    """
    values = history.message_values(claim.key, answer)
    outcome = {"outcome": without_defaults(replace(report, prompt=None)), "run": stored_run(timeline, report)}
    due = {"cut_off": cut_off, "seen_seq": claim.summary_seq, "improves_title": improves_title}
    finish, spent = _FINISH[outbox_of(connection)], charged(claim.owner, charges)
    message_id, at = values[history.NEW_MESSAGE_COLUMNS["id"].key], answer.created_at
    seq = await connection.scalar(finish, {**outcome, **due, **held(claim.key, claim.epoch), **spent, **values})
    if seq is None:
        stored = (await history.final_messages(connection, [claim.key.turn_id])).get(claim.key.turn_id)
        if stored is None or stored.id != message_id:  # which no other run has given its answer
            raise StaleTurn
        seq, at = stored.seq, stored.created_at
    return Message(message_id, seq, claim.key.turn_id, answer.role, answer.content, at)


_LAST_ENDED = sa.select(turns.c.id.label("turn_id"), turns.c.finished_at).where(turns.c.id == last_ended_turn())


async def last_ended(connection: Connection, session_id: str) -> sa.Row[*tuple[Any, ...]] | None:
    """Returns the `turn_id` and `finished_at` of the turn in the history that ended last."""
    return (await connection.execute(_LAST_ENDED, {"at_session": session_id})).one_or_none()
