"""Which process runs a turn. A claim is a lease with an epoch, the fencing token: every write for a running turn has
`IS_HELD` in it, so a stale process writes nothing. Statements are built at import, since one costs half a millisecond.
"""

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.exc import IntegrityError
from sqlalchemy.sql.dml import ReturningUpdate

from segue.db.engine import Connection, Database, outlast
from segue.db.models import OPEN_TURNS, QUEUED, RUNNING, plans, sessions, turns
from segue.db.rows import readable, reader
from segue.domain.errors import existing
from segue.domain.session import EPOCHS, TurnKey
from segue.domain.tool import ToolChoice
from segue.memory.fact_store import has_facts
from segue.plans.store import is_open, just_expired
from segue.tools.tool_health import ToolHealth, ToolHold
from segue.tools.tool_states import all_holds, read_holds, read_states, states_of
from segue.turns.chat_request import TurnRequest, request_of

_read_references, _read_choice = reader(tuple[str, ...]), reader(ToolChoice)


@dataclass(frozen=True, slots=True)
class Claimer:
    """The process that claims, by its name, for `lease_s` seconds."""

    worker: str
    lease_s: float


@dataclass(frozen=True, slots=True)
class Claim:
    """A turn that this process runs as long as the row has `epoch`, what was asked with its message, and what the claim
    read about its session.

    `attempt` counts from 1; `left_s` is what earlier attempts left of the turn's time, None for the first one.
    `last_turn_id` is the turn that ended last, `answered_turn_id` the last one that ended with an answer.
    `has_plan_in_question` says whether a plan is open or has just expired; only the turn that runs makes plans, so it
    can only become false. `summary` covers the turns up to `summary_seq`, `references` are the results that are listed
    with it. `agent` is the session's at the time of the turn's first claim. `knows_facts` says whether the owner has
    any facts, `tells_facts` whether the message may tell more. `queued_s` is how long the turn waited for this claim. A
    turn that `is_unreadable` does not run: what was asked cannot be read.
    """

    key: TurnKey
    epoch: int
    attempt: int
    left_s: float | None
    owner: str
    agent: str
    title: str | None
    request: TurnRequest
    message_count: int
    last_turn_id: str | None
    answered_turn_id: str | None
    has_plan_in_question: bool
    knows_facts: bool
    tells_facts: bool
    summary: str | None
    summary_seq: int
    references: tuple[str, ...]
    tool_states: Mapping[str, ToolHealth]
    tool_holds: Mapping[str, ToolHold]
    tool_choice: ToolChoice | None
    queued_s: float
    is_unreadable: bool


_HELD, _UNDER = turns.c.id == sa.bindparam("held_turn"), turns.c.epoch == sa.bindparam("held_epoch")
IS_HELD = (_HELD, _UNDER, turns.c.status == RUNNING)


def held(turn: TurnKey, epoch: int) -> dict[str, Any]:
    """The parameters of a statement that has IS_HELD in it."""
    return {"held_turn": turn.turn_id, "held_epoch": epoch}


class StaleTurn(Exception):
    """Another process runs the turn now, or it has ended. This process drops it and stores nothing."""


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


def last_ended_turn() -> sa.ScalarSelect[str]:
    """The turn in the history of the session `at_session` that ended last: completed, failed or cancelled."""
    ended = turns.alias("ended")
    of_session = ended.c.session_id == sa.bindparam("at_session")
    found = sa.select(ended.c.id).where(of_session, ended.c.finished_at.is_not(None), ended.c.branch.is_(None))
    return found.order_by(ended.c.seq.desc()).limit(1).scalar_subquery()


def runs_beside(waiting: sa.FromClause) -> sa.ColumnElement[bool]:
    """Whether another turn of the session of a `waiting` turn runs: then it waits for that turn, not for a process."""
    busy = turns.alias("busy")
    return sa.select(busy.c.id).where(busy.c.session_id == waiting.c.session_id, busy.c.status == RUNNING).exists()


def of_session() -> tuple[sa.ColumnElement[Any], ...]:
    """What a claim reads of the turn's session, which is `at_session`."""
    planned = sa.select(plans.c.id).where(plans.c.session_id == sessions.c.id)
    in_question = planned.where(is_open()).exists() | planned.where(just_expired(sessions.c.last_turn_id)).exists()
    return (
        sessions.c.owner,
        sessions.c.title,
        (sessions.c.next_seq - 1).label("message_count"),
        sessions.c.summary,
        sessions.c.summary_seq,
        sessions.c.summary_references,
        sessions.c.tool_choice,
        last_ended_turn().label("last_turn_id"),
        sessions.c.last_turn_id.label("answered_turn_id"),
        in_question.label("has_plan_in_question"),
        has_facts(sessions.c.owner).label("knows_facts"),
        states_of(sessions.c.id).label("states"),
        all_holds().label("holds"),
    )


# now() is when the statement began, perhaps to wait for a row that was queued after that; and clocks are set back.
_WAITED_S = sa.func.extract("epoch", sa.func.now() - turns.c.queued_at).cast(sa.Float)
_QUEUED_S = sa.func.greatest(_WAITED_S, 0.0).label("queued_s")
_UNHEARD = sa.bindparam("unheard", type_=ARRAY(sa.Text))


def _claim() -> ReturningUpdate[*tuple[Any, ...]]:
    in_line = (turns.c.session_id == sa.bindparam("at_session"), turns.c.status.in_(OPEN_TURNS))
    oldest = sa.select(turns.c.id).where(*in_line).order_by(turns.c.seq).limit(1).scalar_subquery()
    is_queued, is_unheard = turns.c.status == QUEUED, turns.c.worker == sa.func.any(_UNHEARD)
    own = (turns.c[name] for name in ("id", "seq", "epoch", "left_s", "request", "agent"))
    told = turns.c.attempts.label("attempt"), turns.c.facts_due_at.is_not(None).label("tells_facts")
    return (
        sa.update(turns)
        .where(turns.c.id == oldest, is_queued | ((turns.c.status == RUNNING) & is_unheard))
        .where(sessions.c.id == turns.c.session_id)
        .values(
            status="running",
            epoch=turns.c.epoch + 1,
            attempts=turns.c.attempts + is_queued.cast(sa.Integer),
            agent=sa.func.coalesce(turns.c.agent, sessions.c.agent),
            worker=sa.bindparam("claimer"),
            lease_until=sa.func.now() + sa.bindparam("lease", type_=sa.Interval),
            started_at=sa.func.now(),
        )
        .returning(*own, *told, _QUEUED_S, *of_session())
    )


_WAITING, _WAITED_IN = turns.alias("waiting"), sessions.alias("waited_in")
_COULD_RUN = (
    sa.select(_WAITED_IN.c.id)
    .join(_WAITING, _WAITING.c.session_id == _WAITED_IN.c.id)
    .where(_WAITING.c.status == QUEUED, ~runs_beside(_WAITING))
)
_WELL_SERVED = sa.bindparam("well_served", type_=ARRAY(sa.Text))

_CLAIM = _claim()
_CLAIM_UNLESS_WELL_SERVED = _CLAIM.where(
    sa.or_(
        sessions.c.owner != sa.func.all(_WELL_SERVED),
        ~_COULD_RUN.where(_WAITED_IN.c.owner != sa.func.all(_WELL_SERVED)).exists(),
    )
)


async def claim_next(
    connection: Connection,
    session_id: str,
    *,
    worker: str,
    lease_s: float,
    well_served: Sequence[str] = (),
    unheard: Collection[str] = (),
) -> Claim | None:
    """Claims the session's oldest open turn if it is queued: it runs now, under a new epoch. Returns None if a turn of
    the session runs already, or if the turn's owner is in `well_served` while a turn of another owner could run.

    A turn that runs by one of the names in `unheard`, whose claims here were not answered, is claimed anew, for free.
    """
    values: dict[str, Any] = {"at_session": session_id, "claimer": worker, "lease": timedelta(seconds=lease_s)}
    statement, values["unheard"] = _CLAIM, list(unheard)
    if well_served:
        statement, values = _CLAIM_UNLESS_WELL_SERVED, {**values, "well_served": well_served}
    try:
        found = (await connection.execute(statement, values)).mappings().one_or_none()
    except IntegrityError:  # one running turn per session is a unique index
        return None
    return None if found is None else claim_of(session_id, dict(found))


_NEXT = sa.select(*of_session(), sessions.c.agent, sessions.c.language, sessions.c.time_zone).where(
    sessions.c.id == sa.bindparam("at_session"), sessions.c.owner == sa.bindparam("asker")
)


async def claim_of_next(connection: Connection, owner: str, session_id: str) -> Claim:
    """Returns what the claim of the session's next message would be; it claims nothing. Raises NotFound."""
    rows = await connection.execute(_NEXT, {"at_session": session_id, "asker": owner})
    row = dict(existing("session", rows.mappings().one_or_none()))
    request = {"force_web_search": False, **{name: row.pop(name) for name in ("language", "time_zone")}}
    turn = {"id": "", "seq": row["message_count"] + 1, "epoch": 1, "attempt": 1, "left_s": None, "request": request}
    return claim_of(session_id, turn | {"queued_s": 0.0, "tells_facts": False} | row)


def claim_of(session_id: str, row: dict[str, Any]) -> Claim:
    """Returns the claim in the values that a statement read of its turn and with `of_session`."""
    key = TurnKey(session_id, row.pop("id"), row.pop("seq"), row["epoch"] // EPOCHS)
    request, choice = row.pop("request"), row.pop("tool_choice")
    asked = request_of(request, key.turn_id)
    known = asked or TurnRequest(force_web_search=False)
    # What was said to a turn that worked is no yes to what was asked before, and what a program says to nothing.
    if known.steers is not None or not known.approves:
        known = replace(known, shown_plan=None, approves=False)
    return Claim(
        key=key,
        request=known,
        references=readable(_read_references, row.pop("summary_references") or (), "sessions", session_id) or (),
        is_unreadable=asked is None,
        tool_states=read_states(row.pop("states")),
        tool_holds=read_holds(row.pop("holds")),
        tool_choice=readable(_read_choice, choice, "sessions", session_id) if choice else None,
        **row,
    )


_SESSIONS_WAITING = (
    _COULD_RUN.group_by(_WAITED_IN.c.id)
    .order_by(_WAITED_IN.c.owner == sa.func.any(_WELL_SERVED), sa.func.min(_WAITING.c.queued_at))
    .limit(sa.bindparam("at_most"))
)


async def sessions_waiting(connection: Connection, *, last: Sequence[str], at_most: int) -> list[str]:
    """Returns sessions with a turn that could run, longest waiting first; those of the owners in `last` come last."""
    return list(await connection.scalars(_SESSIONS_WAITING, {"well_served": last, "at_most": at_most}))


async def renew_leases(connection: Connection, claims: Sequence[Claim], *, worker: str, lease_s: float) -> set[str]:
    """Gives each claim that still holds a lease from now on. Returns the ids of their turns."""
    mine = sa.tuple_(turns.c.id, turns.c.epoch).in_([(claim.key.turn_id, claim.epoch) for claim in claims])
    until = sa.func.now() + timedelta(seconds=lease_s)
    renewal = sa.update(turns).where(mine, turns.c.status == RUNNING).values(worker=worker, lease_until=until)
    return set(await connection.scalars(renewal.returning(turns.c.id)))


_CLAIMED = sa.select(turns.c.session_id).where(
    turns.c.status == RUNNING,
    turns.c.session_id == sa.func.any(sa.bindparam("among", type_=ARRAY(sa.Text))),
    turns.c.worker == sa.func.any(_UNHEARD),
)


async def sessions_claimed(
    connection: Connection, among: Collection[str], *, unheard: Collection[str]
) -> Sequence[str]:
    """Returns the sessions `among` these in which a turn runs by one of the names in `unheard`."""
    return (await connection.scalars(_CLAIMED, {"among": list(among), "unheard": list(unheard)})).all()


_LEFT_S = sa.func.extract("epoch", turns.c.lease_until - sa.func.now()).cast(sa.Float).label("left_s")
_RUNNING_AMONG = sa.select(turns.c.id, turns.c.epoch, turns.c.cancel_requested_at, _LEFT_S).where(
    turns.c.id == sa.func.any(sa.bindparam("ours", type_=ARRAY(sa.Text))), turns.c.status == RUNNING
)


async def still_held(connection: Connection, claims: Sequence[Claim]) -> tuple[dict[str, float], set[str]]:
    """Returns the turns whose claim holds, with the seconds left of their leases, and those to be cancelled."""
    rows = await connection.execute(_RUNNING_AMONG, {"ours": [claim.key.turn_id for claim in claims]})
    epochs = {claim.key.turn_id: claim.epoch for claim in claims}
    held_rows = [row for row in rows if row.epoch == epochs[row.id]]
    cancelled = {row.id for row in held_rows if row.cancel_requested_at is not None}
    return {row.id: row.left_s for row in held_rows}, cancelled
