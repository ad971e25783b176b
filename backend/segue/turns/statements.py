"""The statements of every turn, built once: building one anew costs about half a millisecond.

What `turn/store.py` executes, and says the meaning of. Values that are not a new message's are given by names that are
no column's, since SQLAlchemy takes a column's name for a value to set.
"""

from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    ColumnElement,
    Float,
    Integer,
    Interval,
    ScalarSelect,
    Select,
    Text,
    and_,
    bindparam,
    case,
    func,
    insert,
    literal,
    or_,
    select,
    update,
)
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.sql.dml import ReturningInsert, ReturningUpdate

from segue.db.models import OPEN_TURNS, QUEUED, RUNNING, messages, plans, sessions, turns
from segue.memory.facts import has_facts
from segue.memory.history import NEW_MESSAGE, insert_message
from segue.memory.summary import due_columns
from segue.plans.store import is_open, just_expired
from segue.tools.states import states_of

IS_HELD = (turns.c.id == bindparam("held_turn"), turns.c.epoch == bindparam("held_epoch"), turns.c.status == RUNNING)

_WAITING, _WAITED_IN = turns.alias("waiting"), sessions.alias("waited_in")
_WELL_SERVED = bindparam("well_served", type_=ARRAY(Text))


def _beginning() -> ReturningInsert[int]:
    """Takes the session's next seq if that is still what this statement has seen, so that the turns it has counted are
    all there are: who loses a race against another message is not let in, and asks again under the lock.
    """
    session_id, now = NEW_MESSAGE["session_id"], NEW_MESSAGE["created_at"]
    waiting = turns.alias("waiting")
    seen = (
        select(
            sessions.c.next_seq,
            select(func.count())
            .where(waiting.c.session_id == sessions.c.id, waiting.c.status.in_(OPEN_TURNS))
            .scalar_subquery()
            .label("open_turns"),
        )
        .where(sessions.c.id == session_id)
        .cte("seen")
    )
    owned = (
        update(sessions)
        .where(sessions.c.id == session_id, sessions.c.owner == bindparam("caller"))
        .where(sessions.c.next_seq == seen.c.next_seq, seen.c.open_turns < bindparam("room", type_=Integer))
        .values(next_seq=sessions.c.next_seq + 1, updated_at=now)
        .returning((sessions.c.next_seq - 1).label("seq"))
        .cte("owned")
    )
    turn = {
        "id": NEW_MESSAGE["turn_id"],
        "session_id": session_id,
        "status": literal("queued"),
        "request": bindparam("asked", type_=turns.c.request.type).op("||")(
            func.jsonb_build_object("shown_plan", _open_plan(session_id))
        ),
        "idempotency_key": bindparam("key", type_=Text),
        "body_hash": bindparam("body", type_=Text),
        "created_at": now,
        "facts_due_at": case((bindparam("tells_facts", type_=Boolean), func.now())),
    }
    queued = (
        insert(turns)
        .from_select(["seq", *turn], select(owned.c.seq, *turn.values()))
        .returning(turns.c.seq)
        .cte("queued")
    )
    return insert_message(queued, opens_turn=True).returning(messages.c.seq)


def _open_plan(session_id: ColumnElement[str]) -> ScalarSelect[Any]:
    """The open plan, and its version, as the message comes: what a yes can be for."""
    return (
        select(func.jsonb_build_array(plans.c.id, plans.c.version))
        .where(plans.c.session_id == session_id, is_open())
        .scalar_subquery()
    )


def _last_ended() -> ScalarSelect[str]:
    ended = turns.alias("ended")
    return (
        select(ended.c.id)
        .where(ended.c.session_id == bindparam("at_session"), ended.c.finished_at.is_not(None))
        .order_by(ended.c.seq.desc())
        .limit(1)
        .scalar_subquery()
    )


def _claiming() -> ReturningUpdate[*tuple[Any, ...]]:
    oldest = (
        select(turns.c.id)
        .where(turns.c.session_id == bindparam("at_session"), turns.c.status.in_(OPEN_TURNS))
        .order_by(turns.c.seq)
        .limit(1)
        .scalar_subquery()
    )
    of_session = select(plans.c.id).where(plans.c.session_id == turns.c.session_id)
    plan_in_question = (
        of_session.where(is_open()).exists() | of_session.where(just_expired(sessions.c.last_turn_id)).exists()
    )
    return (
        update(turns)
        .where(turns.c.id == oldest, turns.c.status == QUEUED, sessions.c.id == turns.c.session_id)
        .values(
            status="running",
            epoch=turns.c.epoch + 1,
            attempts=turns.c.attempts + 1,
            worker=bindparam("claimer"),
            lease_until=func.now() + bindparam("lease", type_=Interval),
            started_at=func.now(),
        )
        .returning(
            turns.c.id,
            turns.c.seq,
            turns.c.epoch,
            turns.c.attempts,
            turns.c.left_s,
            turns.c.request,
            func.extract("epoch", func.now() - turns.c.queued_at).cast(Float).label("queued_s"),
            sessions.c.owner,
            sessions.c.next_seq,
            sessions.c.summary,
            sessions.c.summary_seq,
            _last_ended().label("last_turn_id"),
            sessions.c.last_turn_id.label("answered_turn_id"),
            plan_in_question.label("has_plan_in_question"),
            has_facts(sessions.c.owner).label("knows_facts"),
            turns.c.facts_due_at.is_not(None).label("tells_facts"),
            states_of(turns.c.session_id).label("tool_states"),
        )
    )


def _claiming_in_fairness() -> ReturningUpdate[*tuple[Any, ...]]:
    """The same, unless its owner is well served and a turn of somebody who is not could run now."""
    others = _could_run().where(_WAITED_IN.c.owner != func.all(_WELL_SERVED))
    return _claiming().where(or_(sessions.c.owner != func.all(_WELL_SERVED), ~others.exists()))


def _sessions_waiting() -> Select[str]:
    is_last = _WAITED_IN.c.owner == func.any(_WELL_SERVED)
    return (
        _could_run()
        .group_by(_WAITED_IN.c.id)
        .order_by(is_last, func.min(_WAITING.c.queued_at))
        .limit(bindparam("at_most"))
    )


def _could_run() -> Select[str]:
    busy = turns.alias("busy")
    running_beside = select(busy.c.id).where(busy.c.session_id == _WAITING.c.session_id, busy.c.status == RUNNING)
    return (
        select(_WAITED_IN.c.id)
        .join(_WAITING, _WAITING.c.session_id == _WAITED_IN.c.id)
        .where(_WAITING.c.status == QUEUED, ~running_beside.exists())
    )


def _finishing() -> ReturningInsert[int]:
    finished = (
        update(turns)
        .where(*IS_HELD)
        .values(
            status="completed",
            report=bindparam("outcome", type_=turns.c.report.type),
            lease_until=None,
            finished_at=NEW_MESSAGE["created_at"],
        )
        .returning(turns.c.session_id)
        .cte("finished")
    )
    moved = (
        update(sessions)
        .where(sessions.c.id == finished.c.session_id)
        .values(
            next_seq=sessions.c.next_seq + 1,
            updated_at=NEW_MESSAGE["created_at"],
            last_turn_id=NEW_MESSAGE["turn_id"],
            **due_columns(bindparam("cut_off", type_=BigInteger), bindparam("seen_seq", type_=BigInteger)),
        )
        .returning((sessions.c.next_seq - 1).label("seq"))
        .cte("moved")
    )
    return insert_message(moved).returning(messages.c.seq)


def _neglected() -> Select[*tuple[Any, ...]]:
    """Turns that somebody has to look after: nobody renews their lease, runs them, or obeys a wish to cancel them."""
    busy = turns.alias("busy")
    running_beside = select(busy.c.id).where(busy.c.session_id == turns.c.session_id, busy.c.status == RUNNING)
    overdue = func.now() - bindparam("obey_within", type_=Interval)
    return (
        select(
            turns.c.id,
            turns.c.session_id,
            turns.c.seq,
            turns.c.status,
            turns.c.epoch,
            turns.c.attempts,
            turns.c.cancel_requested_at.is_not(None).label("cancelled"),
            _seconds_left().label("left_s"),
        )
        .where(
            turns.c.status.in_(OPEN_TURNS),
            or_(
                and_(
                    turns.c.status == RUNNING,
                    or_(turns.c.lease_until < func.now(), turns.c.cancel_requested_at < overdue),
                ),
                and_(
                    turns.c.status == QUEUED,
                    turns.c.queued_at < func.now() - bindparam("start_within", type_=Interval),
                    ~running_beside.exists(),
                ),
            ),
        )
        .order_by(turns.c.status.desc(), turns.c.queued_at)
        .limit(bindparam("at_most"))
    )


def _seconds_left() -> ColumnElement[float]:
    """Of a running turn's time: what it had as it was claimed, less what has passed until now or until it lapsed."""
    ran_until = func.least(func.now(), turns.c.lease_until)
    allowed = func.coalesce(turns.c.left_s, bindparam("timeout_s", type_=turns.c.left_s.type))
    return allowed - func.extract("epoch", ran_until - turns.c.started_at).cast(turns.c.left_s.type)


def _requeueing() -> ReturningUpdate[*tuple[Any, ...]]:
    """Gives a turn that its owner gives up, or has let lapse, to whoever takes it next. A lapse costs an attempt."""
    by_owner = bindparam("by_owner", type_=Boolean)
    return (
        update(turns)
        .where(*IS_HELD, turns.c.cancel_requested_at.is_(None), or_(by_owner, turns.c.lease_until < func.now()))
        .values(
            status="queued",
            queued_at=func.now(),
            left_s=_seconds_left(),
            attempts=turns.c.attempts - by_owner.cast(Integer),
            worker=None,
            lease_until=None,
        )
        .returning(turns.c.id)
    )


BEGIN, CLAIM, FINISH = _beginning(), _claiming(), _finishing()
CLAIM_IN_FAIRNESS, SESSIONS_WAITING = _claiming_in_fairness(), _sessions_waiting()
FENCE = select(turns.c.id).where(*IS_HELD).with_for_update(read=True)
LAST_ENDED = select(turns.c.id, turns.c.finished_at).where(turns.c.id == _last_ended())
LOOK = select(turns.c.id, turns.c.epoch, turns.c.cancel_requested_at).where(
    turns.c.id == func.any(bindparam("ours", type_=ARRAY(Text))), turns.c.status == RUNNING
)
NEGLECTED, REQUEUE = _neglected(), _requeueing()
