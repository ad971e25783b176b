"""The rows of turns while they live: begin, claim, keep, finish. Each is one short guarded statement.

Who owns a turn is a lease with an epoch, the fencing token: a worker whose epoch is stale is refused in the statement
that would write. One running turn per session is a unique index, not a lock. How else a turn ends is `endings.py`'s.
"""

import hashlib
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any, Literal

import orjson
from sqlalchemy import func, select, tuple_, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection

from segue.db.engine import Database
from segue.db.models import OPEN_TURNS, RUNNING, turns
from segue.domain.ids import new_id
from segue.domain.session import Message, TurnKey, TurnReport
from segue.memory.fact_cues import may_state_facts
from segue.memory.history import message_values
from segue.tools.states import StoredHealth, read_states
from segue.turns import statements

OnBusy = Literal["enqueue", "reject", "interrupt"]


class StaleTurn(Exception):
    """Another worker owns the turn now, or it has ended. Whoever hears this stops without a word."""


class KeyTaken(Exception):
    """The session has a turn under this idempotency key already."""


@dataclass(frozen=True, slots=True)
class Origin:
    """The request that brought a message: its id, and the W3C traceparent of its span where there is one."""

    request_id: str | None = None
    traceparent: str | None = None


NOWHERE = Origin()


@dataclass(frozen=True, slots=True)
class Once:
    """An idempotency key and the digest of what was asked under it."""

    key: str
    body_hash: str


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """`decided_plan_id` is the plan whose button was pressed, where that is what the message is; `stream` asks for the
    model's words as they come; `turn_id` is the id its turn is to have, where one was given out; `origin` what its log
    lines and its trace are joined to.
    """

    message: str
    force_web_search: bool = False
    decided_plan_id: str | None = None
    on_busy: OnBusy = "enqueue"
    once: Once | None = None
    stream: bool = False
    turn_id: str | None = None
    origin: Origin = NOWHERE


@dataclass(frozen=True, slots=True)
class Claim:
    """A turn this worker owns until `epoch` is not the row's any more, and what it knew of the session.

    `attempt` counts from 1; `left_s` is what an earlier one has left of the turn's time, None where there was none.
    `last_turn_id` is the turn that ended last, however it ended, `answered_turn_id` the last one with an answer.
    `has_plan_in_question` is whether a plan is open or has just expired; it can only become false, since plans are made
    by the turn that runs. `shown_plan` is the open plan, and its version, that stood when the message came: a yes is
    for that one. `summary` covers the turns up to `summary_seq`. `knows_facts` is whether anything is known of the
    owner, `tells_facts` whether the message may tell more. `queued_s` is how long the turn waited for this claim.
    """

    key: TurnKey
    epoch: int
    attempt: int
    left_s: float | None
    owner: str
    force_web_search: bool
    decided_plan_id: str | None
    shown_plan: tuple[str, int] | None
    message_count: int
    last_turn_id: str | None
    answered_turn_id: str | None
    has_plan_in_question: bool
    knows_facts: bool
    tells_facts: bool
    summary: str | None
    summary_seq: int
    tool_states: Mapping[str, StoredHealth]
    stream: bool
    queued_s: float
    origin: Origin


@dataclass(frozen=True, slots=True)
class EndedTurn:
    turn_id: str
    finished_at: datetime


def once(key: str | None, *asked: str | int) -> Once | None:
    """What makes a request the same as an earlier one: its key and what it asks, not how the answer is delivered."""
    return Once(key, hashlib.sha256(orjson.dumps(asked)).hexdigest()) if key is not None else None


async def begin_turn(
    connection: AsyncConnection, owner: str, session_id: str, request: ChatRequest, *, now: datetime, room: int
) -> TurnKey | None:
    """Accepts a message: takes the session's next seq, stores the turn as queued and the user's message with it.

    None where the session is not the owner's, holds `room` open turns, or was moved by somebody else just now.
    Raises KeyTaken.
    """
    turn_id = request.turn_id or new_id("turn", now)
    message = message_values(
        TurnKey(session_id, turn_id, 0),
        message_id=new_id("msg", now),
        role="user",
        content=request.message,
        now=now,
    )
    asked = {
        "force_web_search": request.force_web_search,
        "decided_plan_id": request.decided_plan_id,
        "stream": request.stream,
        "origin": asdict(request.origin),
    }
    key, body_hash = (request.once.key, request.once.body_hash) if request.once else (None, None)
    tells = may_state_facts(request.message)
    given = {"caller": owner, "asked": asked, "room": room, "key": key, "body": body_hash, "tells_facts": tells}
    try:
        seq = (await connection.execute(statements.BEGIN, given | message)).scalar_one_or_none()
    except IntegrityError as error:
        raise KeyTaken from error
    return TurnKey(session_id, turn_id, seq) if seq is not None else None


async def claim_next(
    connection: AsyncConnection, session_id: str, *, worker: str, lease_s: float, well_served: Sequence[str] = ()
) -> Claim | None:
    """The session's oldest open turn, if it is queued: now running, under a new epoch.

    None where one runs already, and where it is of one of the `well_served` owners while somebody else waits.
    """
    claiming = {"at_session": session_id, "claimer": worker, "lease": timedelta(seconds=lease_s)}
    statement = statements.CLAIM
    if well_served:
        statement, claiming = statements.CLAIM_IN_FAIRNESS, {**claiming, "well_served": well_served}
    try:
        row = (await connection.execute(statement, claiming)).one_or_none()
    except IntegrityError:
        return None
    if row is None:
        return None
    shown, origin = row.request.get("shown_plan"), row.request.get("origin", {})
    return Claim(
        key=TurnKey(session_id, row.id, row.seq),
        epoch=row.epoch,
        attempt=row.attempts,
        left_s=row.left_s,
        owner=row.owner,
        force_web_search=row.request["force_web_search"],
        decided_plan_id=row.request.get("decided_plan_id"),
        shown_plan=(shown[0], shown[1]) if shown else None,
        message_count=row.next_seq - 1,
        last_turn_id=row.last_turn_id,
        answered_turn_id=row.answered_turn_id,
        has_plan_in_question=row.has_plan_in_question,
        knows_facts=row.knows_facts,
        tells_facts=row.tells_facts,
        summary=row.summary,
        summary_seq=row.summary_seq,
        tool_states=read_states(row.tool_states),
        stream=row.request.get("stream", False),
        queued_s=row.queued_s,
        origin=Origin(origin.get("request_id"), origin.get("traceparent")),
    )


async def sessions_waiting(connection: AsyncConnection, *, last: Sequence[str], at_most: int) -> list[str]:
    """Sessions with a turn that could run now, by how long it has waited; those of the owners in `last` come last."""
    found = await connection.execute(statements.SESSIONS_WAITING, {"well_served": last, "at_most": at_most})
    return list(found.scalars())


@asynccontextmanager
async def fenced_transaction(database: Database, claim: Claim) -> AsyncIterator[AsyncConnection]:
    """A transaction of a running turn. Raises StaleTurn before anything is written by a worker that lost it."""
    async with database.transaction() as connection:
        if (await connection.execute(statements.FENCE, held(claim))).one_or_none() is None:
            raise StaleTurn
        yield connection


async def finish_turn(
    connection: AsyncConnection,
    claim: Claim,
    *,
    answer: str,
    message_id: str,
    report: TurnReport,
    cut_off: int | None,
    now: datetime,
) -> Message:
    """Stores the answer and completes the turn in one statement. Raises StaleTurn where the turn is not ours.

    `cut_off` is the seq of the last turn that is to go into the summary, where it is time for that.
    """
    values = message_values(claim.key, message_id=message_id, role="assistant", content=answer, now=now)
    outcome = {"outcome": asdict(report), "cut_off": cut_off, "seen_seq": claim.summary_seq}
    stored = await connection.execute(statements.FINISH, {**outcome, **held(claim), **values})
    seq = stored.scalar_one_or_none()
    if seq is None:
        raise StaleTurn
    return Message(id=message_id, seq=seq, turn_id=claim.key.turn_id, role="assistant", content=answer, created_at=now)


async def renew_leases(connection: AsyncConnection, claims: Sequence[Claim], *, lease_s: float) -> set[str]:
    """The turn ids that are still ours, each with a lease from now."""
    mine = tuple_(turns.c.id, turns.c.epoch).in_([(claim.key.turn_id, claim.epoch) for claim in claims])
    renewed = await connection.execute(
        update(turns)
        .where(mine, turns.c.status == RUNNING)
        .values(lease_until=func.now() + timedelta(seconds=lease_s))
        .returning(turns.c.id)
    )
    return set(renewed.scalars())


async def look_after(connection: AsyncConnection, claims: Sequence[Claim]) -> tuple[set[str], set[str]]:
    """The turn ids that are still ours, and those among them that somebody wants cancelled."""
    rows = await connection.execute(statements.LOOK, {"ours": [claim.key.turn_id for claim in claims]})
    epochs = {claim.key.turn_id: claim.epoch for claim in claims}
    held_rows = [row for row in rows if row.epoch == epochs[row.id]]
    return {row.id for row in held_rows}, {row.id for row in held_rows if row.cancel_requested_at is not None}


async def a_turn_is_open(connection: AsyncConnection, session_id: str) -> bool:
    statement = select(turns.c.id).where(turns.c.session_id == session_id, turns.c.status.in_(OPEN_TURNS))
    return (await connection.execute(statement.limit(1))).one_or_none() is not None


async def last_ended(connection: AsyncConnection, session_id: str) -> EndedTurn | None:
    row = (await connection.execute(statements.LAST_ENDED, {"at_session": session_id})).one_or_none()
    return EndedTurn(row.id, row.finished_at) if row else None


def held(claim: Claim) -> dict[str, Any]:
    """What a statement with statements.IS_HELD is executed with."""
    return {"held_turn": claim.key.turn_id, "held_epoch": claim.epoch}
