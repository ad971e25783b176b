"""The events to be sent to the operator's webhook. Owns the table `webhook_events`. An event is stored in the
transaction that makes it true, by a Database that was opened with an Outbox; `turns/jobs/webhooks.py` sends it.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated, Any, Final, Literal

import orjson
import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert as insert_once

from segue.db.engine import Connection
from segue.db.models import sessions, turns, webhook_events
from segue.db.rows import LEASED, claim_row, claiming, due_in, if_given
from segue.domain.field_types import doc
from segue.domain.plan import Plan
from segue.log import log

MAX_EVENTS: Final = 100_000  # the oldest go first
KEPT: Final = timedelta(days=3)  # whatever waits longer was never tried, or its process was gone
ANSWER_CHARS: Final = 4000  # the specification wants less than 20 kB
MAX_ARGS_BYTES: Final = 12_000

# What a statement that ends turns returns of them, for `turns_ended`.
OF_TURNS: Final = tuple(turns.c[name] for name in ("id", "session_id", "seq", "epoch", "status", "agent", "error"))

_EVENT, _EARLIER = webhook_events.c, webhook_events.alias("earlier").c
_LEASE: Final = _EVENT.leased_until  # null once over: its process has died, or is about to say how it ended
_LEASED_UNTIL: Final = sa.case((sa.func.now() < _LEASE, _LEASE)).label("in_flight_until")
_TRIED: Final = (_EVENT.id.label("event_id"), *_EVENT["type", "session_id", "tries"], _LEASED_UNTIL)
_NEXT_TRY: Final = sa.case((_LEASED_UNTIL.is_(None), _EVENT.due_at)).label("next_try_at")
_WAITING: Final = sa.select(*_TRIED, *_EVENT["seq", "created_at", "failure", "failed_at"], _NEXT_TRY)
_HAS_FAILED: Final = _EVENT.failure.is_not(None).label("has_failed")
_AGE_S: Final = sa.func.extract("epoch", sa.func.now() - _EVENT.created_at).cast(sa.Float).label("age_s")
_READ: Final = (*_EVENT["id", "session_id", "type", "data", "created_at", "tries"], _HAS_FAILED, _AGE_S)
_WAITS: Final = sa.exists().where(_EARLIER.session_id == _EVENT.session_id, _EARLIER.seq < _EVENT.seq)
_CLAIM: Final = claiming(webhook_events, "due_at", ~_WAITS, read=_READ, leased_until=LEASED, tries=_EVENT.tries + 1)


@dataclass(frozen=True, slots=True)
class Outbox:
    """Says that events are stored; `content` says whether with what was said, or only with ids and statuses."""

    content: bool = False

    @property
    def options(self) -> dict[str, Any]:
        return {"outbox": self}


@dataclass(frozen=True, slots=True)
class DueEvent:
    """An event that this process has claimed. `tries` is the fence: another process that claims it has a higher one."""

    id: str
    session_id: str | None
    type: str
    data: Mapping[str, Any]
    created_at: datetime
    tries: int
    has_failed: bool
    age_s: float


@dataclass(frozen=True, slots=True)
class TriedEvent:
    """A webhook event that was sent, or is being sent."""

    event_id: Annotated[str, doc("The id of the event; each try to send it has this `webhook-id`.")]
    type: Annotated[str, doc("The type of the event, such as `turn.completed`.")]
    session_id: Annotated[str | None, doc("The id of its session; null for a tool that failed for all.")]
    tries: Annotated[int, doc("The number of tries to send it, including one under way.")]
    in_flight_until: Annotated[datetime | None, doc("While it is being sent: when another process may try.")]


@dataclass(frozen=True, slots=True)
class WaitingEvent(TriedEvent):
    """A webhook event that waits to be sent, or is being sent."""

    seq: Annotated[int, doc("Grows with every event.")]
    created_at: Annotated[datetime, doc("When the event happened.")]
    failure: Annotated[str | None, doc("Why the last try failed: `HTTP` and a status, or why no answer came.")]
    failed_at: Annotated[datetime | None, doc("When the last try failed; null if none did.")]
    next_try_at: Annotated[datetime | None, doc("When it is sent next, after earlier events of its session.")]


@dataclass(frozen=True, slots=True)
class OutboxState:
    """The webhook events that wait to be sent."""

    pending: Annotated[int, doc("The number of events that wait or are being sent.")]
    in_flight: Annotated[list[TriedEvent], doc("Events being sent by a process, 50 at most, first to end first.")]
    oldest_at: Annotated[datetime | None, doc("When the oldest waiting event happened; null if none waits.")]
    by_type: Annotated[Mapping[str, int], doc("The number of waiting events by type.")]
    failing: Annotated[Mapping[str, int], doc("The number of waiting events that failed, by their last failure.")]
    last_failure: Annotated[WaitingEvent | None, doc("The waiting event whose try failed last, if any.")]


def outbox_of(connection: Connection) -> Outbox | None:
    found: Outbox | None = connection.engine.get_execution_options().get("outbox")
    return found


def turns_ended(ended: sa.CTE, content: sa.ColumnElement[str] | None = None) -> sa.Insert:
    """Returns a statement that stores an event for each ended turn among those that `ended` has changed, which returns
    OF_TURNS of them. To be added to it, or it would not see them. `content` is the answer, if it is to be sent.
    """
    status = ended.c.status
    payload: sa.ColumnElement[Any] = sa.func.jsonb_build_object(
        *("turn_id", ended.c.id, "status", status, "error_code", ended.c.error["code"].as_string()),
        *_of_session(agent=ended.c.agent),
    )
    if content is not None:
        payload = payload.op("||")(sa.func.jsonb_build_object("answer", sa.func.left(content, ANSWER_CHARS)))
    event_id = sa.literal("evt_") + ended.c.id + "_" + sa.cast(ended.c.epoch, sa.Text)
    row = (event_id, sessions.c.id, sa.literal("turn.") + status, payload, sa.func.clock_timestamp(), _due())
    rows = sa.select(*row).join(sessions, sessions.c.id == ended.c.session_id).order_by(ended.c.seq)
    rows = rows.where(status.in_(("completed", "failed", "cancelled")))
    return sa.insert(webhook_events).from_select(_WRITTEN, rows)


async def approval_requested(connection: Connection, plan: Plan, *, session_id: str, turn_id: str | None) -> None:
    """Stores the event for a plan that has just been made to wait: each version of it is a question of its own."""
    outbox, step = outbox_of(connection), plan.waiting_step
    if outbox is None or step is None or plan.status != "waiting" or plan.page_steps:
        return
    about: dict[str, Any] = {"turn_id": turn_id, "plan_id": plan.id, "plan_version": plan.version}
    about |= {"step_id": step.id, "tool": step.tool, "expires_at": plan.expires_at.isoformat()}
    if (waits_for := plan.waits_for) is not None:
        yes_by = list(step.others.yes_by) if step.others else []
        about["waits_for"] = {"group": waits_for.group, "who": waits_for.who, "yes_by": yes_by}
    if outbox.content:
        about |= {"goal": plan.goal, "args": step.args if len(orjson.dumps(step.args)) <= MAX_ARGS_BYTES else None}
    await _store(connection, f"evt_{plan.id}_{plan.version}", "approval.requested", about, session_id)


async def schedule_failed(connection: Connection, schedule_id: str, turn: sa.Row[Any]) -> None:
    """Stores the event for a schedule whose turn, by its `id`, `session_id` and `error`, is not run again."""
    if outbox_of(connection) is not None:
        about = {"schedule_id": schedule_id, "turn_id": turn.id, "error_code": turn.error["code"]}
        await _store(connection, f"evt_{schedule_id}_{turn.id}", "schedule.failed", about, turn.session_id)


async def _store(connection: Connection, event_id: str, kind: str, about: Mapping[str, Any], session_id: str) -> None:
    payload = sa.literal(about, webhook_events.c.data.type).op("||")(sa.func.jsonb_build_object(*_of_session()))
    row = sa.select(sa.literal(event_id), sessions.c.id, sa.literal(kind), payload, sa.func.clock_timestamp(), _due())
    await connection.execute(sa.insert(webhook_events).from_select(_WRITTEN, row.where(sessions.c.id == session_id)))


async def mandate_changed(
    connection: Connection,
    what: Literal["given", "revoked", "used"],
    event: str,
    user: str,
    about: Mapping[str, Any],
    *,
    session_id: str | None,
) -> None:
    """Stores the event for a standing approval that is given, revoked or used, once for `event`."""
    if outbox_of(connection) is None:
        return
    data = {**about, "session_id": session_id, "user": user}
    row = {"id": f"evt_{event}", "session_id": session_id, "type": f"mandate.{what}", "data": data}
    times = {"created_at": sa.func.clock_timestamp(), "due_at": sa.func.clock_timestamp()}
    await connection.execute(insert_once(webhook_events).values(row | times).on_conflict_do_nothing())


async def tool_failed(connection: Connection, event_id: str, tool: str) -> None:
    """Stores the event for a tool that has failed for all, once for its id."""
    about = {"tool": tool, "status": "failed"}
    row = {"id": event_id, "type": "tool.failed", "data": about, "created_at": sa.func.now(), "due_at": sa.func.now()}
    await connection.execute(insert_once(webhook_events).values(row).on_conflict_do_nothing())


_WRITTEN = ("id", "session_id", "type", "data", "created_at", "due_at")


def _of_session(*, agent: sa.ColumnElement[Any] | None = None) -> tuple[Any, ...]:
    """Returns members of a payload. The agent is the one that answered, or the session's if none has begun."""
    answering = sessions.c.agent if agent is None else sa.func.coalesce(agent, sessions.c.agent)
    return ("session_id", sessions.c.id, "user", sessions.c.owner, "agent", answering)


def _due() -> sa.ColumnElement[datetime]:
    """Returns now or, if the first event of the session has failed, when that is due: this one has to wait for it."""
    failed = webhook_events.alias("failed")
    due_at = sa.select(sa.func.min(failed.c.due_at))
    first = due_at.where(failed.c.session_id == sessions.c.id, failed.c.failure.is_not(None)).scalar_subquery()
    return sa.func.coalesce(first, sa.func.clock_timestamp())


async def claim_due(connection: Connection, *, lease_s: float) -> DueEvent | None:
    """Claims the event that has been due for longest, for `lease_s` seconds. Only the first of a session can be: the
    next one is sent once it is delivered or dropped. Returns None if none is due.
    """
    row = await claim_row(connection, _CLAIM, lease_s=lease_s)
    return DueEvent(**row._asdict()) if row else None


async def drop(connection: Connection, event: DueEvent) -> bool:
    """Deletes a claimed event: it was delivered, or is given up. Those of its session that waited behind its failures
    are due at once. Returns False if another process has claimed it meanwhile.
    """
    dropped = sa.delete(webhook_events).where(*_is_ours(event)).returning(_EVENT.id).cte("dropped")
    statement = sa.select(dropped.c.id)
    if event.has_failed:
        behind = sa.update(webhook_events).where(_is_of_session(event), _EVENT.id != event.id)
        due_now = behind.where(sa.exists(sa.select(dropped.c.id))).values(due_at=sa.func.now())
        statement = statement.add_cte(due_now.cte("behind"))
    return (await connection.execute(statement)).one_or_none() is not None


async def postpone(connection: Connection, event: DueEvent, failure: str, *, wait_s: float) -> None:
    """Stores why a try of a claimed event failed. It is due again in `wait_s` seconds, and what waits behind it too."""
    ours = webhook_events.alias("ours")
    is_it = _EVENT.id == event.id
    await connection.execute(
        sa.update(webhook_events)
        .where(is_it | _is_of_session(event))
        .where(sa.exists().where(ours.c.id == event.id, ours.c.tries == event.tries))
        .values(
            due_at=due_in(wait_s),
            leased_until=None,
            failure=sa.case((is_it, failure), else_=_EVENT.failure),
            failed_at=sa.case((is_it, sa.func.now()), else_=_EVENT.failed_at),
        )
    )


def _is_of_session(event: DueEvent) -> sa.ColumnElement[bool]:
    """Holds for none if the event has no session: such events wait for no other."""
    return webhook_events.c.session_id == sa.literal(event.session_id, webhook_events.c.session_id.type)


async def give_back(connection: Connection, event: DueEvent, *, wait_s: float) -> None:
    """Makes a claimed event due again in `wait_s` seconds."""
    waiting = {"due_at": due_in(wait_s), "leased_until": None}
    await connection.execute(sa.update(webhook_events).where(*_is_ours(event)).values(waiting))


async def retry_events(connection: Connection, event_id: str | None = None) -> int:
    """Makes those due at once, or this one, that failed or wait and are not on their way. Returns how many."""
    later = webhook_events.c.failure.is_not(None) | (webhook_events.c.tries == 0)
    is_wanted = if_given(webhook_events.c.id, event_id)
    waits = (later, webhook_events.c.due_at > sa.func.now(), _LEASED_UNTIL.is_(None), is_wanted)
    return (await connection.execute(sa.update(webhook_events).where(*waits).values(due_at=sa.func.now()))).rowcount


async def drop_excess(connection: Connection, *, most: int = MAX_EVENTS) -> int:
    """Deletes those beyond the `most` newest or older than KEPT, 10,000 at most. Returns how many."""
    newest_dropped = sa.select(webhook_events.c.seq).order_by(webhook_events.c.seq.desc()).offset(most).limit(1)
    beyond = sa.func.coalesce(newest_dropped.scalar_subquery(), sa.literal(0, sa.BigInteger))
    oldest = sa.select(webhook_events.c.id).order_by(webhook_events.c.seq).limit(10_000)
    too_old = webhook_events.c.created_at < sa.func.now() - KEPT
    excess = (webhook_events.c.id.in_(oldest), too_old | (webhook_events.c.seq <= beyond))
    dropped = await connection.execute(sa.delete(webhook_events).where(*excess))
    if dropped.rowcount:
        log.error("webhook_events_dropped", events=dropped.rowcount)
    return dropped.rowcount


async def read_pending(connection: Connection) -> tuple[int, float]:
    """Returns how many events wait, and for how many seconds the first of them has."""
    waited = sa.func.extract("epoch", sa.func.now() - sa.func.min(webhook_events.c.created_at))
    waiting = sa.select(sa.func.count(), sa.func.coalesce(waited, 0)).select_from(webhook_events)
    row = (await connection.execute(waiting)).one()
    return row[0], float(row[1])


async def read_outbox(connection: Connection) -> OutboxState:
    kinds = (webhook_events.c.type, webhook_events.c.failure)
    oldest = sa.func.min(webhook_events.c.created_at).label("oldest_at")
    counted = sa.select(*kinds, sa.func.count().label("events"), oldest)
    groups = (await connection.execute(counted.group_by(*kinds))).all()
    by_type, failing = Counter[str](), Counter[str]()
    for group in groups:
        by_type[group.type] += group.events
        if group.failure is not None:
            failing[group.failure] += group.events
    oldest_at = min((group.oldest_at for group in groups), default=None)
    leased = sa.select(*_TRIED).where(_LEASED_UNTIL.is_not(None)).order_by(webhook_events.c.due_at)
    in_flight = [TriedEvent(**row) for row in (await connection.execute(leased.limit(50))).mappings()]
    failed_at = webhook_events.c.failed_at
    newest = _WAITING.where(failed_at.is_not(None)).order_by(failed_at.desc()).limit(1)
    last_failures = [WaitingEvent(**row) for row in (await connection.execute(newest)).mappings()]
    return OutboxState(by_type.total(), in_flight, oldest_at, by_type, failing, next(iter(last_failures), None))


async def list_events(connection: Connection, *, after: int, limit: int) -> list[WaitingEvent]:
    """Returns what waits behind the position `after`, oldest first."""
    waiting = _WAITING.where(webhook_events.c.seq > after).order_by(webhook_events.c.seq).limit(limit)
    return [WaitingEvent(**row) for row in (await connection.execute(waiting)).mappings()]


def _is_ours(event: DueEvent) -> tuple[sa.ColumnElement[bool], ...]:
    return webhook_events.c.id == event.id, webhook_events.c.tries == event.tries
