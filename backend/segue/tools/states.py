"""Tool states as rows: the truth for one session. Every change is a compare-and-set and has its history.

A row that cannot be read makes its tool start anew and leaves the others alone. Callers check who owns a session: turns
and ops read states too.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, get_args

from pydantic import TypeAdapter
from sqlalchemy import (
    ColumnElement,
    Row,
    ScalarSelect,
    Text,
    bindparam,
    cast,
    delete,
    func,
    insert,
    literal_column,
    or_,
    select,
    tuple_,
    update,
)
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.ext.asyncio import AsyncConnection

from segue.db.models import sessions, tool_state_changes, tool_states
from segue.db.order import came_before, newest_first
from segue.db.reading import read_json, readable, reader
from segue.domain.ids import new_id
from segue.domain.tool_state import StatusMoved, ToolStatus
from segue.tools.health import NEVER_RAN, ToolHealth, ToolHold, needs_reset, reset
from segue.tools.holds import all_holds, read_holds

ATTEMPTS = 10
BATCH = 250

Transition = Callable[[ToolHealth], ToolHealth]
StatePosition = tuple[str, str]  # a session and a tool

_HEALTH: Final = TypeAdapter(ToolHealth)
_read_health = reader(ToolHealth)
_read_change = reader(StatusMoved)


@dataclass(frozen=True, slots=True)
class StoredHealth:
    """`version` is the row's, 0 if there is no row yet."""

    health: ToolHealth = NEVER_RAN
    version: int = 0


@dataclass(frozen=True, slots=True)
class Changed:
    before: ToolHealth
    after: StoredHealth

    @property
    def moved(self) -> bool:
        return self.before.status != self.after.health.status


def states_of(session_id: ColumnElement[str]) -> ScalarSelect[Any]:
    """Returns all states of a session as one value for another module's statement; `read_states` reads it."""
    state = func.jsonb_build_array(tool_states.c.version, cast(tool_states.c.health, Text))
    return (
        select(func.jsonb_object_agg(tool_states.c.tool, state))
        .where(tool_states.c.session_id == session_id)
        .scalar_subquery()
    )


def read_states(value: Mapping[str, Any] | None) -> dict[str, StoredHealth]:
    """Returns by tool what `states_of` selected."""
    stored = ((tool, version, read_json(health)) for tool, (version, health) in (value or {}).items())
    return {tool: StoredHealth(_readable(tool, health), version) for tool, version, health in stored}


async def load_states(connection: AsyncConnection, session_id: str) -> dict[str, StoredHealth]:
    return read_states((await connection.execute(_LOAD, {"at_session": session_id})).scalar_one())


async def load_with_holds(
    connection: AsyncConnection, session_id: str
) -> tuple[dict[str, StoredHealth], dict[str, ToolHold]]:
    """Returns what decides which tools may run in a session, but for those that failed for all."""
    row = (await connection.execute(_LOAD_WITH_HOLDS, {"at_session": session_id})).one()
    return read_states(row.states), read_holds(row.holds)


def healths(stored: Mapping[str, StoredHealth]) -> dict[str, ToolHealth]:
    return {tool: state.health for tool, state in stored.items()}


async def load_states_of(connection: AsyncConnection, session_ids: Collection[str]) -> dict[str, dict[str, ToolHealth]]:
    """Returns states by session and tool."""
    statement = select(tool_states).where(tool_states.c.session_id.in_(session_ids))
    loaded: dict[str, dict[str, ToolHealth]] = {session_id: {} for session_id in session_ids}
    for row in await connection.execute(statement):
        loaded[row.session_id][row.tool] = _readable(row.tool, row.health)
    return loaded


async def change_state(
    connection: AsyncConnection,
    session_id: str,
    tool: str,
    transition: Transition,
    *,
    known: StoredHealth | None = None,
    turn_id: str | None = None,
    now: datetime,
) -> Changed:
    """Applies a transition to the current state, whatever has changed meanwhile, in the caller's transaction.

    `known` saves a read if it is still current. A change of status, or one without a turn, goes into the history.
    """
    stored = known
    for _ in range(ATTEMPTS):
        if stored is None:
            stored = (await load_states(connection, session_id)).get(tool, StoredHealth())
        after = StoredHealth(transition(stored.health), stored.version + 1)
        if await _swap(connection, session_id, tool, after, now=now):
            changed = Changed(stored.health, after)
            if changed.moved or turn_id is None:
                row = _history_row(session_id, tool, changed, turn_id=turn_id, now=now)
                await connection.execute(insert(tool_state_changes), row)
            return changed
        stored = None
    raise RuntimeError(f"the state of {tool} changed {ATTEMPTS} times while it was being written")


async def reset_sessions(
    connection: AsyncConnection, tools: Collection[str], *, after: str, now: datetime
) -> tuple[str | None, dict[StatePosition, Changed]]:
    """Makes tools available in the next BATCH of sessions after one, in the order of their ids. Of two resets at once,
    one makes each change. Returns the last of these sessions, None if there are no more, and what changed.
    """
    of_tools = tool_states.c.tool.in_(list(tools))
    found = select(tool_states.c.session_id).distinct().where(of_tools, _HELD_AGAINST, tool_states.c.session_id > after)
    batch = (await connection.execute(found.order_by(tool_states.c.session_id).limit(BATCH))).scalars().all()
    if not batch:
        return None, {}
    # Sessions before their states, as a turn locks them.
    locked = select(sessions.c.id).where(sessions.c.id.in_(batch)).order_by(sessions.c.id)
    kept = (await connection.execute(locked.with_for_update(key_share=True))).scalars().all()
    stored = select(tool_states).where(tool_states.c.session_id.in_(kept), of_tools)
    rows = await connection.execute(stored.order_by(tool_states.c.session_id, tool_states.c.tool).with_for_update())
    changes = {}
    for row in rows:
        before = _readable(row.tool, row.health)
        if row.status != "available" or needs_reset(before):
            changes[row.session_id, row.tool] = Changed(before, StoredHealth(reset(before, now), row.version + 1))
    if changes:
        await connection.execute(_RESET, [_reset_row(where, each, now) for where, each in changes.items()])
        history = [_history_row(*where, each, turn_id=None, now=now) for where, each in changes.items()]
        await connection.execute(insert(tool_state_changes), history)
    return batch[-1], changes


async def list_changes(
    connection: AsyncConnection, owner: str, session_id: str, *, tool: str | None, before: str | None, limit: int
) -> list[StatusMoved]:
    """Returns changes, newest first."""
    statement = (
        select(tool_state_changes)
        .join(sessions, sessions.c.id == tool_state_changes.c.session_id)
        .where(sessions.c.id == session_id, sessions.c.owner == owner)
    )
    if tool is not None:
        statement = statement.where(tool_state_changes.c.tool == tool)
    if before is not None:
        statement = statement.where(came_before(tool_state_changes, before))
    rows = await connection.execute(statement.order_by(*newest_first(tool_state_changes)).limit(limit))
    return list(map(_moved, rows))


async def drop_old_changes(connection: AsyncConnection, *, before: datetime) -> int:
    """Deletes at most BATCH changes of before then, and returns how many."""
    oldest = (
        select(tool_state_changes.c.id)
        .where(tool_state_changes.c.at < before)
        .limit(BATCH)
        .with_for_update(skip_locked=True)
        .cte("oldest")
    )
    gone = await connection.execute(delete(tool_state_changes).where(tool_state_changes.c.id.in_(select(oldest.c.id))))
    return gone.rowcount


async def count_by_status(connection: AsyncConnection, tools: Iterable[str]) -> dict[str, dict[ToolStatus, int]]:
    """Returns by tool in how many sessions it has which status."""
    tool, status = tool_states.c.tool, tool_states.c.status
    statement = select(tool, status, func.count().label("sessions")).where(tool.in_(list(tools)))
    counts: dict[str, dict[ToolStatus, int]] = {}
    for row in await connection.execute(statement.where(status.in_(get_args(ToolStatus))).group_by(tool, status)):
        counts.setdefault(row.tool, {})[row.status] = row.sessions
    return counts


async def list_not_available(
    connection: AsyncConnection,
    tools: Iterable[str],
    *,
    status: ToolStatus | None,
    after: StatePosition | None,
    limit: int,
) -> list[StatePosition]:
    """Returns session and tool of each state that is not available, in that order; `after` is the last one seen."""
    position = tuple_(tool_states.c.session_id, tool_states.c.tool)
    statement = select(tool_states.c.session_id, tool_states.c.tool).where(
        tool_states.c.status != "available", tool_states.c.tool.in_(list(tools))
    )
    if status is not None:
        statement = statement.where(tool_states.c.status == status)
    if after is not None:
        statement = statement.where(position > after)
    rows = await connection.execute(statement.order_by(tool_states.c.session_id, tool_states.c.tool).limit(limit))
    return [(row.session_id, row.tool) for row in rows]


async def _swap(connection: AsyncConnection, session_id: str, tool: str, after: StoredHealth, *, now: datetime) -> bool:
    written = await connection.execute(
        _SWAP,
        {
            "session_id": session_id,
            "tool": tool,
            "version": after.version,
            "status": after.health.status,
            "health": _HEALTH.dump_python(after.health, mode="json"),
            "updated_at": now,
        },
    )
    return written.one_or_none() is not None


def _history_row(session_id: str, tool: str, changed: Changed, *, turn_id: str | None, now: datetime) -> dict[str, Any]:
    return {
        "id": new_id("chg", now),
        "session_id": session_id,
        "tool": tool,
        "before": changed.before.status,
        "after": changed.after.health.status,
        "reason": changed.after.health.reason,
        "reason_code": changed.after.health.reason_code,
        "turn_id": turn_id,
        "at": now,
    }


def _reset_row(where: StatePosition, changed: Changed, now: datetime) -> dict[str, Any]:
    session_id, tool = where
    health = _HEALTH.dump_python(changed.after.health, mode="json")
    return {"of_session": session_id, "of_tool": tool, "new_health": health, "at": now}


def _moved(row: Row[Any]) -> StatusMoved:
    """Returns a change to `available` with the reason `state_unreadable` for a row that cannot be read."""
    columns = {**row._asdict(), "from_": row.before, "to": row.after}
    return readable(_read_change, columns, "tool_state_changes", row.id) or StatusMoved(
        row.id, row.tool, "available", "available", row.reason, "state_unreadable", row.at, row.turn_id
    )


def _readable(tool: str, health: Any) -> ToolHealth:
    has_status = isinstance(health, dict) and "status" in health  # a later release may add fields; none leaves one out
    read = readable(_read_health, health if has_status else None, "tool_states", tool)
    return read or ToolHealth(
        reason="Its stored state could not be read: it starts anew.", reason_code="state_unreadable"
    )


_LOAD = select(states_of(bindparam("at_session")))
_LOAD_WITH_HOLDS = select(states_of(bindparam("at_session")).label("states"), all_holds().label("holds"))
_HELD_AGAINST = or_(
    tool_states.c.status != "available",
    tool_states.c.health["consecutive_failures"] > literal_column("'0'::jsonb"),
)
_RESET = (
    update(tool_states)
    .where(tool_states.c.session_id == bindparam("of_session"), tool_states.c.tool == bindparam("of_tool"))
    .values(
        version=tool_states.c.version + 1,
        status="available",
        health=bindparam("new_health", type_=tool_states.c.health.type),
        updated_at=bindparam("at"),
    )
)
_NEW = upsert(tool_states)
_SWAP = _NEW.on_conflict_do_update(
    index_elements=["session_id", "tool"],
    set_={name: _NEW.excluded[name] for name in ("version", "status", "health", "updated_at")},
    where=tool_states.c.version == _NEW.excluded.version - 1,
).returning(tool_states.c.version)
