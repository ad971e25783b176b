"""Keeps tool health in PostgreSQL, and for all sessions in Redis. Owns `tool_states`, its changes, and `tool_holds`.

Every change is a compare-and-set and has its history. A row that cannot be read makes its tool start anew and leaves
the others alone. Without Redis no tool has failed for all. Callers check who owns a session.
"""

from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from operator import gt
from typing import Any, Final, get_args

import sqlalchemy as sa
from pydantic import TypeAdapter
from sqlalchemy.dialects.postgresql import insert as upsert

from segue.db.engine import Connection
from segue.db.models import sessions, tool_holds, tool_state_changes, tool_states
from segue.db.redis_keys import FAILED_TOOLS_KEY, SCRIPTS, UNTOLD_TOOLS_KEY, Cache, failed_sessions_key, tool_try_key
from segue.db.rows import if_given, newest_first, older_than, readable, reader
from segue.domain.ids import new_id, read_json
from segue.domain.telemetry import GlobalToolStateChanged, Observe
from segue.domain.tool import StatusMoved, ToolStatus
from segue.log import log
from segue.tools.tool_health import NEVER_RAN, ToolHealth, ToolHold, needs_reset, reset
from segue.tools.tool_settings import ToolSettings
from segue.watch import Watch

ATTEMPTS = 10
BATCH = 250

Transition = Callable[[ToolHealth], ToolHealth]
StatePosition = tuple[str, str]  # a session and a tool

KEPT_S: Final = 86_400  # seconds that Redis keeps the failure of a tool that is not called any more

_HEALTH: Final = TypeAdapter(ToolHealth)


@dataclass(frozen=True, slots=True)
class Changed:
    before: ToolHealth
    after: ToolHealth

    @property
    def moved(self) -> bool:
        return self.before.status != self.after.status


def states_of(session_id: sa.ColumnElement[str]) -> sa.ScalarSelect[Any]:
    """Returns all states of a session as one value for another module's statement; `read_states` reads it."""
    state = sa.func.jsonb_build_array(tool_states.c.version, sa.cast(tool_states.c.health, sa.Text))
    by_tool = sa.select(sa.func.jsonb_object_agg(tool_states.c.tool, state))
    return by_tool.where(tool_states.c.session_id == session_id).scalar_subquery()


def read_states(value: Mapping[str, Any] | None) -> dict[str, ToolHealth]:
    """Returns by tool what `states_of` selected."""
    stored = ((tool, version, read_json(health)) for tool, (version, health) in (value or {}).items())
    return {tool: _readable(tool, health, version) for tool, version, health in stored}


async def load_with_holds(connection: Connection, session_id: str) -> tuple[dict[str, ToolHealth], dict[str, ToolHold]]:
    """Returns the states and holds that decide which tools may run in a session."""
    row = (await connection.execute(_LOAD_WITH_HOLDS, {"at_session": session_id})).one()
    return read_states(row.states), read_holds(row.holds)


async def load_states_of(connection: Connection, session_ids: Collection[str]) -> dict[str, dict[str, ToolHealth]]:
    """Returns states by session and tool."""
    statement = sa.select(tool_states).where(tool_states.c.session_id.in_(session_ids))
    loaded: dict[str, dict[str, ToolHealth]] = {session_id: {} for session_id in session_ids}
    for row in await connection.execute(statement):
        loaded[row.session_id][row.tool] = _readable(row.tool, row.health, row.version)
    return loaded


def all_holds() -> sa.ScalarSelect[Any]:
    """Returns all holds as one value for another module's statement, so that a turn pays no query for them."""
    fields = ("status", "reason", "until")
    hold = sa.func.jsonb_build_object(*(each for name in fields for each in (name, tool_holds.c[name])))
    return sa.select(sa.func.jsonb_object_agg(tool_holds.c.tool, hold)).scalar_subquery()


def read_holds(value: Mapping[str, Any] | None) -> dict[str, ToolHold]:
    """Returns by tool what `all_holds` selected, also those whose time is over; none that cannot be read."""
    read = {tool: readable(reader(ToolHold), hold, "tool_holds", tool) for tool, hold in (value or {}).items()}
    return {tool: hold for tool, hold in read.items() if hold is not None}


async def load_holds(connection: Connection) -> dict[str, ToolHold]:
    return read_holds(await connection.scalar(sa.select(all_holds())))


async def set_hold(connection: Connection, tool: str, hold: ToolHold, *, now: datetime) -> None:
    values = {"status": hold.status, "reason": hold.reason, "until": hold.until, "since": now}
    new = upsert(tool_holds).values(tool=tool, **values)
    await connection.execute(new.on_conflict_do_update(index_elements=["tool"], set_=values))


async def lift_holds(connection: Connection, tools: Collection[str]) -> None:
    await connection.execute(sa.delete(tool_holds).where(tool_holds.c.tool.in_(list(tools))))


async def change_state(
    connection: Connection,
    session_id: str,
    tool: str,
    transition: Transition,
    *,
    known: ToolHealth | None = None,
    turn_id: str | None = None,
    now: datetime,
) -> Changed:
    """Applies a transition to the current state, whatever has changed meanwhile, in the caller's transaction. `known`
    saves a read if it is still current. A change of status, or one without a turn, goes into the history.
    """
    stored = known
    for _ in range(ATTEMPTS):
        if stored is None:
            stored = (await load_with_holds(connection, session_id))[0].get(tool, NEVER_RAN)
        changed = Changed(stored, replace(transition(stored), version=stored.version + 1))
        after = {"version": changed.after.version, "status": changed.after.status, "health": _written(changed.after)}
        row = {"session_id": session_id, "tool": tool, "updated_at": now, **after}
        if (await connection.execute(_SWAP, row)).one_or_none() is not None:
            if changed.moved or turn_id is None:
                row = _history_row(session_id, tool, changed, turn_id=turn_id, now=now)
                await connection.execute(sa.insert(tool_state_changes), row)
            return changed
        stored = None
    raise RuntimeError(f"the state of {tool} changed {ATTEMPTS} times while it was being written")


async def reset_sessions(
    connection: Connection, tools: Collection[str], *, after: str, now: datetime
) -> tuple[str | None, dict[StatePosition, Changed]]:
    """Makes tools available in the next BATCH of sessions after one, in the order of their ids. Of two resets at once,
    one makes each change. Returns the last of these sessions, None if there are no more, and what changed.
    """
    of_tools = tool_states.c.tool.in_(list(tools))
    due = (of_tools, _HELD_AGAINST, tool_states.c.session_id > after)
    found = sa.select(tool_states.c.session_id).distinct().where(*due)
    batch = (await connection.execute(found.order_by(tool_states.c.session_id).limit(BATCH))).scalars().all()
    if not batch:
        return None, {}
    # Sessions before their states, as a turn locks them.
    locked = sa.select(sessions.c.id).where(sessions.c.id.in_(batch)).order_by(sessions.c.id)
    kept = (await connection.execute(locked.with_for_update(key_share=True))).scalars().all()
    stored = sa.select(tool_states).where(tool_states.c.session_id.in_(kept), of_tools)
    rows = await connection.execute(stored.order_by(tool_states.c.session_id, tool_states.c.tool).with_for_update())
    changes, written = {}, []
    for row in rows:
        before = _readable(row.tool, row.health, row.version)
        if row.status != "available" or needs_reset(before):
            changed = Changed(before, replace(reset(before, now), version=row.version + 1))
            changes[row.session_id, row.tool] = changed
            health = _written(changed.after)
            written.append({"of_session": row.session_id, "of_tool": row.tool, "new_health": health, "at": now})
    if changes:
        await connection.execute(_RESET, written)
        history = [_history_row(*where, each, turn_id=None, now=now) for where, each in changes.items()]
        await connection.execute(sa.insert(tool_state_changes), history)
    return batch[-1], changes


async def list_changes(
    connection: Connection, owner: str, session_id: str, *, tool: str | None, before: str | None, limit: int
) -> list[StatusMoved]:
    """Returns changes, newest first."""
    statement = (
        sa.select(tool_state_changes)
        .join(sessions, sessions.c.id == tool_state_changes.c.session_id)
        .where(sessions.c.id == session_id, sessions.c.owner == owner, older_than(tool_state_changes, before))
    )
    statement = statement.where(if_given(tool_state_changes.c.tool, tool))
    rows = await connection.execute(statement.order_by(*newest_first(tool_state_changes)).limit(limit))
    read = reader(StatusMoved)
    return [
        readable(read, {**row._asdict(), "from_": row.before, "to": row.after}, "tool_state_changes", row.id)
        # What cannot be read is shown as a change to `available`.
        or StatusMoved(row.id, row.tool, "available", "available", row.reason, "state_unreadable", row.at, row.turn_id)
        for row in rows
    ]


async def drop_old_changes(connection: Connection, *, before: datetime) -> int:
    """Deletes at most BATCH changes of before then, and returns how many."""
    old = sa.select(tool_state_changes.c.id).where(tool_state_changes.c.at < before).limit(BATCH)
    ids = sa.select(old.with_for_update(skip_locked=True).cte("oldest").c.id)
    return (await connection.execute(sa.delete(tool_state_changes).where(tool_state_changes.c.id.in_(ids)))).rowcount


async def count_by_status(connection: Connection, tools: Iterable[str]) -> dict[str, dict[ToolStatus, int]]:
    """Returns by tool in how many sessions it has which status."""
    tool, status = tool_states.c.tool, tool_states.c.status
    statement = sa.select(tool, status, sa.func.count().label("sessions")).where(tool.in_(list(tools)))
    counts: dict[str, dict[ToolStatus, int]] = {}
    for row in await connection.execute(statement.where(status.in_(get_args(ToolStatus))).group_by(tool, status)):
        counts.setdefault(row.tool, {})[row.status] = row.sessions
    return counts


async def list_not_available(
    connection: Connection, tools: Iterable[str], *, status: ToolStatus | None, after: StatePosition | None, limit: int
) -> list[StatePosition]:
    """Returns session and tool of each state that is not available, in that order; `after` is the last one seen."""
    statement = sa.select(tool_states.c.session_id, tool_states.c.tool).where(
        tool_states.c.status != "available",
        tool_states.c.tool.in_(list(tools)),
        if_given(tool_states.c.status, status),
        if_given(sa.tuple_(tool_states.c.session_id, tool_states.c.tool), after, gt),
    )
    rows = await connection.execute(statement.order_by(tool_states.c.session_id, tool_states.c.tool).limit(limit))
    return [(row.session_id, row.tool) for row in rows]


def _history_row(session_id: str, tool: str, changed: Changed, *, turn_id: str | None, now: datetime) -> dict[str, Any]:
    row = {"id": new_id("chg", now), "session_id": session_id, "tool": tool, "turn_id": turn_id, "at": now}
    why = {"reason": changed.after.reason, "reason_code": changed.after.reason_code}
    return {**row, "before": changed.before.status, "after": changed.after.status, **why}


def _written(health: ToolHealth) -> Any:
    """Returns a state as JSON without its version, which has a column."""
    return _HEALTH.dump_python(health, mode="json", exclude={"version"})


def _readable(tool: str, health: Any, version: int) -> ToolHealth:
    has_status = isinstance(health, dict) and "status" in health  # a later release may add fields; none leaves one out
    read = readable(reader(ToolHealth), health if has_status else None, "tool_states", tool)
    return replace(read or _UNREADABLE, version=version)


_UNREADABLE = ToolHealth(reason="Its stored state could not be read: it starts anew.", reason_code="state_unreadable")
_LOAD_WITH_HOLDS = sa.select(states_of(sa.bindparam("at_session")).label("states"), all_holds().label("holds"))
_HELD_AGAINST = sa.or_(
    tool_states.c.status != "available", tool_states.c.health["consecutive_failures"] > sa.literal_column("'0'::jsonb")
)
_RESET = (
    sa.update(tool_states)
    .where(tool_states.c.session_id == sa.bindparam("of_session"), tool_states.c.tool == sa.bindparam("of_tool"))
    .values(
        version=tool_states.c.version + 1,
        status="available",
        health=sa.bindparam("new_health", type_=tool_states.c.health.type),
        updated_at=sa.bindparam("at"),
    )
)
_NEW = upsert(tool_states)
_SWAP = _NEW.on_conflict_do_update(
    index_elements=["session_id", "tool"],
    set_={name: _NEW.excluded[name] for name in ("version", "status", "health", "updated_at")},
    where=tool_states.c.version == _NEW.excluded.version - 1,
).returning(tool_states.c.version)


class GlobalToolState(Watch):
    """`known` is what was loaded last; it is loaded again and again while this is entered, so that a turn without tools
    does not ask. `tells`: there is a webhook, and the script that makes a tool fail for all lists its event.
    """

    def __init__(self, cache: Cache, settings: ToolSettings, observe: Observe, *, tells: bool = False) -> None:
        super().__init__("tools that failed for all", self.load)
        self.known: Mapping[str, ToolHealth] = {}
        self._cache = cache
        self._tells = tells
        self._settings = settings
        self._observe = observe

    async def load(self) -> Mapping[str, ToolHealth]:
        self.known = await failed_for_all(self._cache)
        return self.known

    async def record_failure(self, tool: str, session_id: str | None, *, now: datetime) -> None:
        """Counts a failure; `session_id` is the session in which it made the tool fail, if it did."""
        at = now.timestamp()
        health = ToolHealth(
            status="failed",
            reason="It has failed in several sessions.",  # what it said in one is not shown to others
            reason_code="fleet_failed",
            failed_at=now,  # from now on: if the tool had failed for all, this was its one probe
            last_updated=now,
            last_failure_time=now,
        )
        opened = await self._cache.evaluate(
            SCRIPTS["fail_tool"],
            (failed_sessions_key(tool), FAILED_TOOLS_KEY, UNTOLD_TOOLS_KEY),
            tool,
            session_id or "",
            at,
            at - self._settings.tool_failure_duration_s,
            self._settings.tool_fleet_threshold,
            _HEALTH.dump_json(health, exclude={"version"}),
            round((KEPT_S + self._settings.tool_failure_duration_s) * 1000),
            round(self._settings.tool_failure_duration_s * 1000) + 1000,
            new_id("evt", now) if self._tells else "",
        )
        if opened:
            log.warning("tool_failed_for_all", tool=tool)
            self._observe(GlobalToolStateChanged(tool, failed=True))

    async def record_success(self, tool: str) -> None:
        """A success in any session makes the tool available for all."""
        if await self._recovered(tool):
            log.info("tool_recovered_for_all", tool=tool)

    async def reset(self, tools: Iterable[str]) -> None:
        for tool in tools:
            await self._recovered(tool)
            await self._cache.delete(tool_try_key(tool))

    async def _recovered(self, tool: str) -> bool:
        """Returns whether the tool had failed for all."""
        keys = (failed_sessions_key(tool), FAILED_TOOLS_KEY)
        had_failed = await self._cache.evaluate(SCRIPTS["restore_tool"], keys, tool)
        if had_failed:
            self._observe(GlobalToolStateChanged(tool, failed=False))
        return bool(had_failed)

    @asynccontextmanager
    async def probe(self, tool: str, holder: str, *, ttl_s: float) -> AsyncIterator[bool]:
        """Yields whether this is the only probe of the tool; one that hangs or dies holds it for `ttl_s` at most."""
        alone = await self._cache.take(tool_try_key(tool), holder, ttl_s=ttl_s)
        try:
            yield alone
        finally:
            if alone:
                await self._cache.give_back(tool_try_key(tool), holder)


async def failed_for_all(cache: Cache) -> dict[str, ToolHealth]:
    """Returns the tools that have failed for all, by name; one round trip."""
    stored = await cache.hash(FAILED_TOOLS_KEY)
    read = reader(ToolHealth)
    states = {tool: readable(read, read_json(value), "fleet_states", tool) for tool, value in stored.items()}
    return {tool: health for tool, health in states.items() if health is not None}


async def unstored_failures(cache: Cache) -> dict[str, str]:
    """Returns the tools that have failed for all and whose event is not stored, by the id of the event."""
    return {event_id: tool.decode() for event_id, tool in (await cache.hash(UNTOLD_TOOLS_KEY)).items()}


async def failures_stored(cache: Cache, event_ids: Iterable[str]) -> None:
    """To be called once the events are committed."""
    for event_id in event_ids:
        await cache.evaluate(SCRIPTS["forget_failure"], (UNTOLD_TOOLS_KEY,), event_id)
