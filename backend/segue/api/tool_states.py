"""How tools are doing: in a session, with what people may change about it, and in all sessions for ops. HTTP only."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated

from fastapi import Path, Query
from pydantic import Field, TypeAdapter

from segue.api.deps import Caller, Ops, Services, ServicesDep, SessionId, router_of
from segue.api.problem_codes import problems
from segue.api.schemas import (
    Cursor,
    FleetReset,
    FleetStatusChange,
    Limit,
    Page,
    StatusChange,
    ToolReset,
    decode_cursor,
    id_position,
    page,
)
from segue.domain.doc import doc
from segue.domain.errors import InvalidRequest, NotFound
from segue.domain.ids import id_pattern, is_id
from segue.domain.redaction import without_secret_texts
from segue.domain.tool_state import SessionToolState, StatusMoved, ToolOverview, ToolState, ToolStatus
from segue.identity.audit import record_act
from segue.memory.sessions import check_session, lock_session, owner_of
from segue.tools.availability import Specs
from segue.tools.holds import lift_holds
from segue.tools.states import StatePosition, list_changes

router = router_of("tool states")

LONGEST = timedelta(days=366)

_POSITION = id_position("chg")
_SESSION_AND_TOOL: TypeAdapter[tuple[str, str]] = TypeAdapter(
    tuple[Annotated[str, Field(pattern=id_pattern("ses"))], Annotated[str, Field(pattern="^[^\x00]*$")]]
)

StateFilter = Annotated[str | None, Query(max_length=200, pattern="^[^\x00]*$", description="Only those of this tool.")]
ToolName = Annotated[str, Path(description="One of `GET /tools`.")]


@dataclass(frozen=True, slots=True)
class SessionToolStates:
    """How all tools are doing in a session."""

    session_id: Annotated[str, doc("The session.")]
    tool_states: Annotated[dict[str, ToolState], doc("By the tool's name.")]
    timestamp: Annotated[datetime, doc("When this was.")]


@dataclass(frozen=True, slots=True)
class FleetToolStates:
    """How tools are doing for everyone, and a page of the sessions in which one is not available."""

    tools: Annotated[dict[str, ToolOverview], doc("By the tool's name.")]
    items: Annotated[list[SessionToolState], doc("States in a session that are not `available`.")]
    next_cursor: Annotated[str | None, doc("For `cursor=`; null on the last page.")]


@router.get("/sessions/{session_id}/tool-states")
async def get_tool_states(session_id: SessionId, services: ServicesDep, caller: Caller) -> SessionToolStates:
    """Shows how all tools are doing in a session. Also one that never ran."""
    async with services.database.read_only() as connection:
        await check_session(connection, caller, session_id)
    return await _session_states(services, caller, session_id)


@router.post("/sessions/{session_id}/tool-states/reset", responses=problems("unknown_tool"))
async def reset_tool_states(
    session_id: SessionId, services: ServicesDep, caller: Caller, body: ToolReset | None = None
) -> SessionToolStates:
    """Makes tools available again. No failure is held against them; what has succeeded in the session still counts."""
    specs = services.tools.specs(body.tool_name if body else None, owner=caller)
    await _reset_in_session(services, caller, session_id, specs)
    return await _session_states(services, caller, session_id)


@router.put("/sessions/{session_id}/tool-states/{tool}")
async def set_tool_state(
    tool: ToolName, session_id: SessionId, body: StatusChange, services: ServicesDep, caller: Caller
) -> ToolState:
    """Sets the state of a tool in a session. No success and no failure changes what a person has set."""
    services.tools.specs(tool, owner=caller)
    async with services.database.transaction() as connection:
        await lock_session(connection, caller, session_id)
        changes = await services.tools.set_by_person(connection, session_id, tool, body.status, body.reason)
    services.tools.committed(changes)
    return (await services.tools.session_states(session_id, caller))[tool]


@router.get("/sessions/{session_id}/tool-states/history")
async def list_state_changes(
    session_id: SessionId,
    services: ServicesDep,
    caller: Caller,
    tool: StateFilter = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Page[StatusMoved]:
    """Lists how the states of tools changed in a session. Newest first."""
    before = decode_cursor(cursor, _POSITION)
    async with services.database.read_only() as connection:
        await check_session(connection, caller, session_id)
        found = await list_changes(connection, caller, session_id, tool=tool, before=before, limit=limit + 1)
    return page(found, limit, lambda change: change.id)


@router.get("/tool-states", responses=problems("forbidden", "unknown_tool"))
async def get_fleet_tool_states(
    services: ServicesDep,
    _: Ops,
    status: Annotated[ToolStatus | None, Query(description="Only tools and sessions where it is this.")] = None,
    tool: StateFilter = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> FleetToolStates:
    """Shows how tools are doing in all sessions. Every tool, and the sessions in which one is not available. With
    `status` the tools that are this for everyone or in a session, and those sessions. For the scope `ops`.
    """
    after = decode_cursor(cursor, _SESSION_AND_TOOL)
    return await _fleet_states(services, services.tools.specs(tool), status=status, after=after, limit=limit)


@router.put("/tool-states/{tool}", responses=problems("forbidden"))
async def set_fleet_tool_state(
    tool: ToolName, body: FleetStatusChange, services: ServicesDep, operator: Ops
) -> ToolState:
    """Sets the state of a tool over that of every session. Until an operator sets it to `available`, or until a time.
    For the scope `ops`.
    """
    specs, reason = services.tools.specs(tool), without_secret_texts(body.reason)
    if body.until is not None and not timedelta() < body.until - services.clock() <= LONGEST:
        detail = f"`until` has to be later than now, by {LONGEST.days} days at most."
        raise InvalidRequest(detail)
    async with services.database.transaction() as connection:
        details = {"status": body.status, "reason": reason, "until": body.until and body.until.isoformat()}
        await record_act(connection, operator, "set_tool_state", tool=tool, details=details)
        await services.tools.set_for_all(connection, tool, body.status, reason, body.until)
    if body.status == "available":
        await services.tools.everywhere.reset(specs)
    tools, _ = await services.tools.overview(specs, status=None, after=None, limit=0)
    return tools[tool].fleet


@router.post("/tool-states/reset", responses=problems("forbidden", "unknown_tool", "session_not_found"))
async def reset_fleet_tool_states(services: ServicesDep, operator: Ops, body: FleetReset) -> FleetToolStates:
    """Makes tools available again, for everyone and in every session. With `scope` only the one or the other; of the
    sessions only the one that is named, of any user. What an operator had set for all ends too. For the scope `ops`.
    """
    specs = services.tools.specs(body.tool_name)
    owner = await _owner_of_any(services, body.session_id) if body.session_id is not None else None
    async with services.database.transaction() as connection:
        await record_act(
            connection,
            operator,
            "reset_tool_states",
            session_id=body.session_id,
            tool=body.tool_name,
            details={"scope": body.scope},
        )
        if body.scope != "sessions":
            await lift_holds(connection, specs)
    if body.scope != "sessions":
        await services.tools.everywhere.reset(specs)
    if owner is not None and body.session_id is not None:
        await _reset_in_session(services, owner, body.session_id, specs)
    elif body.scope != "fleet":
        await services.tools.reset_in_sessions(specs)
    return await _fleet_states(services, specs, status=None, after=None, limit=50)


async def _owner_of_any(services: Services, session_id: str) -> str:
    if not is_id("ses", session_id):
        raise NotFound("session")
    async with services.database.read_only() as connection:
        return await owner_of(connection, session_id)


async def _session_states(services: Services, owner: str, session_id: str) -> SessionToolStates:
    return SessionToolStates(session_id, await services.tools.session_states(session_id, owner), services.clock())


async def _reset_in_session(services: Services, owner: str, session_id: str, specs: Specs) -> None:
    async with services.database.transaction() as connection:
        await lock_session(connection, owner, session_id)
        changes = await services.tools.reset(connection, session_id, specs)
    services.tools.committed(changes)


async def _fleet_states(
    services: Services, specs: Specs, *, status: ToolStatus | None, after: StatePosition | None, limit: int
) -> FleetToolStates:
    tools, found = await services.tools.overview(specs, status=status, after=after, limit=limit + 1)
    shown = page(found, limit, lambda state: [state.session_id, state.tool])
    return FleetToolStates(tools, shown.items, shown.next_cursor)
