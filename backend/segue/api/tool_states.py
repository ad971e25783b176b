"""How tools are doing: in a session, with what people may do about it, and across all of them for ops."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import Field

from segue.api.deps import Caller, Ops, Services, ServicesDep, SessionId, StrictJsonRoute
from segue.api.problems import PROBLEMS
from segue.api.schemas import (
    Cursor,
    FleetReset,
    Limit,
    Page,
    StatusChange,
    ToolReset,
    decode_cursor,
    decode_id_cursor,
    invalid_cursor,
    page,
)
from segue.domain.errors import AppError, NotFound
from segue.domain.ids import is_id
from segue.domain.telemetry import SessionToolStateChanged
from segue.domain.tool import ToolSpec
from segue.domain.tool_state import ReasonCode, StateChange, ToolState, ToolStatus
from segue.memory.sessions import get_session, lock_session, owner_of
from segue.tools.health import Healths, ToolHealth, is_burdened, reset, set_by_person, tool_state
from segue.tools.states import (
    Changed,
    Place,
    change_state,
    count_by_status,
    healths,
    list_changes,
    list_not_available,
    load_states,
    load_states_of,
    log_move,
)

router = APIRouter(tags=["tool states"], route_class=StrictJsonRoute, responses=PROBLEMS)

Specs = Mapping[str, ToolSpec]
Filter = Annotated[str | None, Query(max_length=200, pattern="^[^\x00]*$")]


@dataclass(frozen=True, slots=True)
class SessionToolStates:
    session_id: str
    tool_states: dict[str, ToolState]
    timestamp: datetime


@dataclass(frozen=True, slots=True)
class StatusMoved:
    """`turn_id` is the turn that caused it, null where a person did."""

    tool: str
    from_: Annotated[ToolStatus, Field(serialization_alias="from")]
    to: ToolStatus
    reason: str | None
    reason_code: ReasonCode | None
    at: datetime
    turn_id: str | None


@dataclass(frozen=True, slots=True)
class ToolOverview:
    """The tool for everyone, and in how many sessions it has which status of its own."""

    fleet: ToolState
    sessions: dict[ToolStatus, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionToolState(ToolState):
    session_id: str
    tool: str


@dataclass(frozen=True, slots=True)
class FleetToolStates:
    tools: dict[str, ToolOverview]
    items: list[SessionToolState]
    next_cursor: str | None


@router.get("/sessions/{session_id}/tool-states")
async def get_tool_states(session_id: SessionId, services: ServicesDep, caller: Caller) -> SessionToolStates:
    """Every tool there is, also one that never ran."""
    async with services.database.read_only() as connection:
        await get_session(connection, caller, session_id)
    return await _session_states(services, session_id)


@router.post("/sessions/{session_id}/tool-states/reset")
async def reset_tool_states(
    session_id: SessionId, services: ServicesDep, caller: Caller, body: ToolReset | None = None
) -> SessionToolStates:
    """Available again, with no failure held against them; what has succeeded in the session still counts."""
    specs = _specs(services, body.tool_name if body else None)
    await _reset_in_session(services, caller, session_id, specs)
    return await _session_states(services, session_id)


@router.put("/sessions/{session_id}/tool-states/{tool}")
async def set_tool_state(
    session_id: SessionId, tool: str, body: StatusChange, services: ServicesDep, caller: Caller
) -> ToolState:
    """Sticky: no success and no failure changes what a person has set."""
    specs = _specs(services, tool)
    now = services.clock()

    def set_now(health: ToolHealth) -> ToolHealth:
        return set_by_person(health, now, body.status, body.reason)

    async with services.database.transaction() as connection:
        await lock_session(connection, caller, session_id)
        changed = await change_state(connection, session_id, tool, set_now, now=now)
        session = healths(await load_states(connection, session_id))
    _tell(services, tool, changed)
    return _states(services, specs, session, await services.fleet.load())[tool]


@router.get("/sessions/{session_id}/tool-states/history")
async def list_state_changes(
    session_id: SessionId,
    services: ServicesDep,
    caller: Caller,
    tool: Filter = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Page[StatusMoved]:
    """Newest first."""
    before = decode_id_cursor("chg", cursor) if cursor else None
    async with services.database.read_only() as connection:
        await get_session(connection, caller, session_id)
        found = await list_changes(connection, caller, session_id, tool=tool, before=before, limit=limit + 1)
    shown = page(found, limit, lambda change: change.id)
    return Page([_moved(change) for change in shown.items], shown.next_cursor)


@router.get("/tool-states")
async def get_fleet_tool_states(
    services: ServicesDep,
    _: Ops,
    status: ToolStatus | None = None,
    tool: Filter = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> FleetToolStates:
    """Every tool across all sessions, and the sessions in which one is not available."""
    specs = _specs(services, tool)
    return await _fleet_states(services, specs, status=status, after=_place(cursor) if cursor else None, limit=limit)


@router.post("/tool-states/reset")
async def reset_fleet_tool_states(services: ServicesDep, _: Ops, body: FleetReset | None = None) -> FleetToolStates:
    """Lifts what has failed for everyone; a session's own states only where the session is named, whosever it is."""
    body = body or FleetReset()
    specs = _specs(services, body.tool_name)
    if body.session_id is not None:
        if not is_id("ses", body.session_id):
            raise NotFound("session")
        async with services.database.read_only() as connection:
            owner = await owner_of(connection, body.session_id)
        await _reset_in_session(services, owner, body.session_id, specs)
    await services.fleet.reset(specs)
    return await _fleet_states(services, specs, status=None, after=None, limit=50)


async def _session_states(services: Services, session_id: str) -> SessionToolStates:
    async with services.database.read_only() as connection:
        session = healths(await load_states(connection, session_id))
    states = _states(services, _specs(services, None), session, await services.fleet.load())
    return SessionToolStates(session_id, states, services.clock())


async def _reset_in_session(services: Services, owner: str, session_id: str, specs: Specs) -> None:
    """Touches only what has something to be lifted."""
    now = services.clock()
    changed = {}
    async with services.database.transaction() as connection:
        await lock_session(connection, owner, session_id)
        stored = await load_states(connection, session_id)
        for tool in sorted(stored.keys() & specs.keys()):
            if is_burdened(stored[tool].health):
                changed[tool] = await change_state(
                    connection, session_id, tool, lambda health: reset(health, now), known=stored[tool], now=now
                )
    for tool, change in changed.items():
        _tell(services, tool, change)


def _tell(services: Services, tool: str, changed: Changed) -> None:
    log_move(tool, changed)
    if changed.moved:
        services.metrics.observe(SessionToolStateChanged(tool, changed.after.health.status))


async def _fleet_states(
    services: Services, specs: Specs, *, status: ToolStatus | None, after: Place | None, limit: int
) -> FleetToolStates:
    async with services.database.read_only() as connection:
        counts = await count_by_status(connection, specs)
        found = await list_not_available(connection, specs, status=status, after=after, limit=limit + 1)
        sessions = await load_states_of(connection, {session_id for session_id, _ in found})
    fleet = await services.fleet.load()
    for_all = _states(services, {name: replace(spec, depends_on=()) for name, spec in specs.items()}, fleet, {})
    shown = page(found, limit, list)
    items = []
    for session_id, tool in shown.items:
        state = _states(services, {tool: specs[tool]}, sessions[session_id], fleet)[tool]
        items.append(SessionToolState(session_id=session_id, tool=tool, **_fields(state)))
    overview = {name: ToolOverview(state, counts.get(name, {})) for name, state in for_all.items()}
    return FleetToolStates(overview, items, shown.next_cursor)


def _states(services: Services, specs: Specs, session: Healths, fleet: Healths) -> dict[str, ToolState]:
    now, rules = services.clock(), services.health_rules
    return {name: tool_state(spec, session, fleet, now=now, rules=rules) for name, spec in specs.items()}


def _specs(services: Services, name: str | None) -> Specs:
    """All tools by name, or the one that is asked for. Raises AppError `unknown_tool`."""
    specs = {tool.spec.name: tool.spec for tool in services.tools.tools().values()}
    if name is None:
        return specs
    if name not in specs:
        raise AppError(
            "unknown_tool",
            status=404,
            title="Unknown tool",
            detail=f"There is no tool called {name[:100]!r}. GET /tools lists those there are.",
        )
    return {name: specs[name]}


def _place(cursor: str) -> Place:
    match decode_cursor(cursor):
        case [str(session_id), str(tool)] if is_id("ses", session_id) and "\x00" not in tool:
            return session_id, tool
        case _:
            raise invalid_cursor()


def _moved(change: StateChange) -> StatusMoved:
    return StatusMoved(
        tool=change.tool,
        from_=change.before,
        to=change.after,
        reason=change.reason,
        reason_code=change.reason_code,
        at=change.at,
        turn_id=change.turn_id,
    )


def _fields(state: ToolState) -> dict[str, Any]:
    return {name: getattr(state, name) for name in ToolState.__dataclass_fields__}
