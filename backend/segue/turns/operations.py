"""Turns as operators see them: of every session, where each runs and what it waits for. No word of what was said.

Only reads. Callers check that the asker may see the turns of all users.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Annotated, Any, Literal

from sqlalchemy import Row, Select, or_, select
from sqlalchemy.ext.asyncio import AsyncConnection

from segue.db.models import OPEN_TURNS, sessions, tool_calls, turns
from segue.db.order import oldest_first
from segue.db.redis import Cache
from segue.domain.doc import doc
from segue.domain.errors import NotFound
from segue.domain.session import TurnStatus
from segue.turns.activity import ActivityReport, heard
from segue.turns.queries import RUNS_ITSELF, lease_left, status_of


@dataclass(frozen=True, slots=True)
class Running:
    """What a turn waits for: a tool, or a model."""

    kind: Annotated[Literal["tool", "model"], doc("Which of the two it is.")]
    name: Annotated[str, doc("The tool's name, or the model's.")]
    since: Annotated[datetime, doc("When it was called.")]


@dataclass(frozen=True, slots=True)
class OpsTurn:
    """A turn of any user, without what was said in it."""

    turn_id: Annotated[str, doc("Begins with `turn_`.")]
    session_id: Annotated[str, doc("The session it is in.")]
    owner: Annotated[str, doc("The user whose session it is.")]
    agent: Annotated[str | None, doc("Who answers; null until a process has begun it.")]
    status: Annotated[TurnStatus, doc("`queued` and `running` are open.")]
    instance: Annotated[str | None, doc("The process that runs it, or ran it last: its host and process id.")]
    attempt: Annotated[int, doc("How many processes have begun it.")]
    epoch: Annotated[int, doc("Grows with every process that takes it; none writes under an older one.")]
    lease_until: Annotated[datetime | None, doc("Until when the process has it, unless it says more.")]
    lease_left_s: Annotated[float | None, doc("Seconds until then. Below 0 the process has died or hangs.")]
    created_at: Annotated[datetime, doc("When the message was accepted.")]
    started_at: Annotated[datetime | None, doc("When the last process began it.")]
    finished_at: Annotated[datetime | None, doc("When it ended.")]
    cancel_requested_at: Annotated[datetime | None, doc("When it was told to stop.")]
    error_code: Annotated[str | None, doc("The code of the problem that it ended with.")]
    running: Annotated[tuple[Running, ...], doc("What it waits for at this moment.")] = ()
    node: Annotated[str | None, doc("The node of the graph; null for the first second, and without Redis.")] = None
    heard_at: Annotated[datetime | None, doc("When its process said so: twice a second, unless it hangs.")] = None


async def list_any(
    connection: AsyncConnection,
    *,
    status: TurnStatus | None = None,
    session_id: str | None = None,
    tool: str | None = None,
    owner: str | None = None,
    before: str | None = None,
    limit: int,
) -> list[OpsTurn]:
    """Returns open turns, or those of a status, newest first. Of a tool: those that wait for it, or had called it."""
    statement = _turns().where(turns.c.status == status if status else turns.c.status.in_(OPEN_TURNS))
    if status == "failed":
        statement = statement.where(turns.c.error.is_not(None))  # so that it is read from an index of those
    if session_id is not None:
        statement = statement.where(turns.c.session_id == session_id)
    if owner is not None:
        statement = statement.where(sessions.c.owner == owner)
    if tool is not None:
        runs = select(tool_calls.c.id).where(tool_calls.c.turn_id == turns.c.id, tool_calls.c.tool_name == tool)
        runs = runs.where(or_(tool_calls.c.status == "running", turns.c.finished_at.is_not(None)))
        statement = statement.where(runs.exists())
    if before is not None:
        statement = statement.where(turns.c.id < before)
    rows = (await connection.execute(statement.order_by(turns.c.id.desc()).limit(limit))).all()
    return await _with_tools(connection, rows)


async def find_any(connection: AsyncConnection, turn_id: str) -> OpsTurn:
    """Raises NotFound for a turn that is in no session."""
    rows = (await connection.execute(_turns().where(turns.c.id == turn_id))).all()
    if not rows:
        raise NotFound("turn")
    [turn] = await _with_tools(connection, rows)
    return turn


async def with_activity(cache: Cache, listed: Sequence[OpsTurn]) -> list[OpsTurn]:
    """Adds what the processes say of the turns that run."""
    said = await heard(cache, {turn.instance for turn in listed if turn.status == "running" and turn.instance})
    return [_told(turn, said.get(turn.instance or "")) for turn in listed]


def _told(turn: OpsTurn, said: ActivityReport | None) -> OpsTurn:
    """A call that is in the ledger is what a turn waits for, whatever its process said before."""
    activity = said.turns.get(turn.turn_id) if said else None
    if said is None or activity is None or activity.epoch != turn.epoch or turn.status != "running":
        return turn
    waits = (Running("model", activity.model.name, activity.model.since),) if activity.model else ()
    return replace(turn, node=activity.node, heard_at=said.at, running=turn.running or waits)


async def _with_tools(connection: AsyncConnection, rows: Sequence[Row[Any]]) -> list[OpsTurn]:
    calls = await _running_calls(connection, [row.turn_id for row in rows if row.status == "running"])
    return [OpsTurn(**{**row._asdict(), "status": status_of(row)}, running=calls.get(row.turn_id, ())) for row in rows]


async def _running_calls(connection: AsyncConnection, turn_ids: Collection[str]) -> dict[str, tuple[Running, ...]]:
    if not turn_ids:
        return {}
    statement = select(tool_calls.c.turn_id, tool_calls.c.tool_name, tool_calls.c.started_at)
    statement = statement.where(tool_calls.c.turn_id.in_(turn_ids), tool_calls.c.status == "running")
    calls: dict[str, tuple[Running, ...]] = {}
    for row in await connection.execute(statement.order_by(*oldest_first(tool_calls))):
        calls[row.turn_id] = (*calls.get(row.turn_id, ()), Running("tool", row.tool_name, row.started_at))
    return calls


def _turns() -> Select[Any]:
    shown: Iterable[Any] = (turns.c[name] for name in _SHOWN)
    return (
        select(
            turns.c.id.label("turn_id"),
            sessions.c.owner,
            turns.c.worker.label("instance"),
            turns.c.attempts.label("attempt"),
            lease_left(),
            turns.c.error["code"].as_string().label("error_code"),
            *shown,
        )
        .join(sessions, sessions.c.id == turns.c.session_id)
        .where(RUNS_ITSELF)
    )


_SHOWN = (
    *("session_id", "agent", "status", "epoch", "lease_until", "created_at", "started_at", "finished_at"),
    "cancel_requested_at",
)
