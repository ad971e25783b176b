"""Routes to tools as the model sees them, their health and what people may change about it, results and receipts."""

import mimetypes
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated, Any, Final

import orjson
from anyio import to_thread
from fastapi import Path, Query, Response
from pydantic import Field, TypeAdapter

from segue.api import deps, schemas
from segue.api.deps import Caller, IdentityDep, Ops, OriginDep, Parts, Services, SessionId, ToolCallId, router_of
from segue.api.problems import problems
from segue.api.schemas import BINARY, AnyLimit, FleetStatusChange, Page, Paged, Responses, StatusChange, ToolReset
from segue.db.engine import Connection
from segue.domain import tool as domain
from segue.domain.errors import InvalidRequest, NotFound, existing
from segue.domain.field_types import doc
from segue.domain.identity import Identity
from segue.domain.ids import id_pattern
from segue.domain.receipt import ChainHead, Receipt
from segue.domain.redaction import without_secret_texts
from segue.domain.tool import CallStatus, ToolCall, ToolOverview, ToolState, ToolStatus, UnreadableCall
from segue.memory.session_store import check_session, lock_session, owner_of
from segue.plans.policy import needs_confirmation
from segue.tools import receipts, results
from segue.tools.availability import Specs
from segue.tools.catalog import changed_at
from segue.tools.normalize import BinaryPart
from segue.tools.paging import PageSpec, page_of, part_at
from segue.tools.tool_states import StatePosition, lift_holds, list_changes
from segue.turns.chat_request import Origin
from segue.users.audit import record_act

router = router_of("tools", "/tools")
states_router = router_of("tool states")
results_router = router_of("tool results", "/sessions/{session_id}/tool-results")
receipts_router = router_of("receipts")

LONGEST = timedelta(days=366)
ONE_PART: Final[Responses] = {200: {"content": {"application/octet-stream": {"schema": BINARY}}}}
OF_RESULTS = problems("tool_result_expired", "tool_result_part_not_found", "invalid_path")

_CHANGE_POSITION, _RESULT_POSITION = schemas.id_position("chg"), schemas.id_position("call")
_SESSION_AND_TOOL: TypeAdapter[tuple[str, str]] = TypeAdapter(
    tuple[Annotated[str, Field(pattern=id_pattern("ses"))], Annotated[str, Field(pattern="^[^\x00]*$")]]
)

_OF_SPEC = ("name", "title", "description", "effect", "effect_guessed", "source")

StateFilter = Annotated[schemas.NameFilter, Query(description="Lists only the tool with this name.")]
ToolName = Annotated[str, Path(description="The name of a tool that `GET /tools` lists.")]


@dataclass(frozen=True, slots=True)
class ToolDescription:
    """A tool, as the model sees it."""

    name: Annotated[str, doc("The name by which the model calls the tool.")]
    title: Annotated[str, doc("The tool's name for people; empty if it has none.")]
    description: Annotated[str, doc("What the model is told about the tool.")]
    schema: Annotated[Mapping[str, Any], doc("The JSON schema of the tool's arguments.")]
    effect: Annotated[domain.Effect, doc("What a call of the tool may change.")]
    effect_guessed: Annotated[bool, doc("Whether `effect` is not declared but guessed from the tool's name.")]
    confirmation: Annotated[bool, doc("Whether a call waits for the user's yes before it runs.")]
    always_asks: Annotated[bool, doc("Whether only a yes to the question about the very call lets it run.")]
    dependencies: Annotated[tuple[domain.DependencyGroup, ...], doc("Tools that must succeed in the session first.")]
    source: Annotated[str, doc("Where the tool comes from: `builtin`, `native` or `mcp:<server>`.")]
    changed_at: Annotated[datetime | None, doc("When its server last changed its definition; null if it never did.")]


@router.get("")
async def list_tools(services: Parts, caller: Caller, origin: OriginDep, _: AnyLimit = 50) -> Page[ToolDescription]:
    """Lists the tools that the caller may use, as the model sees them."""
    specs = [tool.spec for tool in services.tools.tools_for(caller, origin.groups).values()]
    changed = await changed_at(services.database, specs)
    described = [
        ToolDescription(
            schema=spec.input_schema,
            confirmation=needs_confirmation(spec, services.settings.confirm),
            always_asks=spec.always_asks and needs_confirmation(spec, services.settings.confirm),
            dependencies=spec.depends_on,
            changed_at=changed.get(spec.name),
            **{name: getattr(spec, name) for name in _OF_SPEC},
        )
        for spec in specs
    ]
    return Page(described, None)


@dataclass(frozen=True, slots=True)
class SessionToolStates:
    """The state of every tool in a session."""

    session_id: Annotated[str, doc("The id of the session.")]
    tool_states: Annotated[dict[str, ToolState], doc("The states, by the name of the tool.")]
    timestamp: Annotated[datetime, doc("When the states were read (UTC).")]


@dataclass(frozen=True, slots=True)
class FleetToolStates:
    """The state of every tool for all users, and a page of the sessions in which one is not available."""

    tools: Annotated[dict[str, ToolOverview], doc("Each tool's states, by its name.")]
    items: Annotated[list[domain.SessionToolState], doc("States of tools in a session that are not `available`.")]
    next_cursor: Annotated[str | None, doc("The `cursor` of the next page; null on the last page.")]


@states_router.get("/sessions/{session_id}/tool-states")
async def get_tool_states(
    session_id: SessionId, services: Parts, caller: Caller, origin: OriginDep
) -> SessionToolStates:
    """Shows the state of every tool in a session. A tool that never ran is listed too."""
    await services.read(check_session, caller, session_id)
    return await _session_states(services, caller, origin, session_id)


@states_router.post("/sessions/{session_id}/tool-states/reset", responses=problems("unknown_tool"))
async def reset_tool_states(
    session_id: SessionId, services: Parts, caller: Caller, origin: OriginDep, body: ToolReset | None = None
) -> SessionToolStates:
    """Makes tools available again in a session. Forgets their failures; what has succeeded in it still counts."""
    specs = services.tools.specs(body.tool_name if body else None, owner=caller, groups=origin.groups)
    await _reset_in_session(services, caller, session_id, specs)
    return await _session_states(services, caller, origin, session_id)


@states_router.put("/sessions/{session_id}/tool-states/{tool}")
async def set_tool_state(
    tool: ToolName, session_id: SessionId, body: StatusChange, services: Parts, caller: Caller, origin: OriginDep
) -> ToolState:
    """Sets the status of a tool in a session. No success or failure of a call changes what a person has set."""
    services.tools.specs(tool, owner=caller, groups=origin.groups)
    async with services.database.transaction() as connection:
        await lock_session(connection, caller, session_id)
        changes = await services.tools.set_by_person(connection, session_id, tool, body.status, body.reason)
    services.tools.committed(changes)
    return (await services.tools.session_states(session_id, caller, origin.groups))[tool]


@states_router.get("/sessions/{session_id}/tool-states/history")
async def list_state_changes(
    session_id: SessionId, services: Parts, caller: Caller, paging: Paged, tool: StateFilter = None
) -> Page[domain.StatusMoved]:
    """Lists the changes of tools' statuses in a session. Newest first."""
    of = caller, session_id
    found = await services.read_in(*of, list_changes, *of, tool=tool, **paging.behind(_CHANGE_POSITION))
    return paging.page(found, lambda change: change.id)


@states_router.get("/tool-states", responses=problems("forbidden", "unknown_tool"))
async def get_fleet_tool_states(
    services: Parts,
    _: Ops,
    paging: Paged,
    status: Annotated[ToolStatus | None, Query(description="Only tools and sessions with this status.")] = None,
    tool: StateFilter = None,
) -> FleetToolStates:
    """Shows the state of every tool, and the sessions in which one is not available. With `status` it shows the tools
    that have this status for everyone or in a session, and those sessions. Texts of tools and users are left out;
    `GET /ops/sessions/{id}` has them, with `ops:content`. Needs the scope `ops`.
    """
    after = paging.after(_SESSION_AND_TOOL)
    return await _fleet_states(services, services.tools.specs(tool), status=status, after=after, paging=paging)


@states_router.put("/tool-states/{tool}", responses=problems("forbidden"))
async def set_fleet_tool_state(tool: ToolName, body: FleetStatusChange, services: Parts, operator: Ops) -> ToolState:
    """Sets the status of a tool in all sessions. It overrides that of each session until an operator sets it to
    `available`, or until the time `until`. Needs the scope `ops`.
    """
    specs, reason = services.tools.specs(tool), without_secret_texts(body.reason)
    if body.until is not None and not timedelta() < body.until - services.clock() <= LONGEST:
        raise InvalidRequest(f"`until` has to be later than now, by {LONGEST.days} days at most.")
    async with services.database.transaction() as connection:
        details = {"status": body.status, "reason": reason, "until": body.until and body.until.isoformat()}
        await record_act(connection, operator, "set_tool_state", tool=tool, details=details)
        await services.tools.set_for_all(connection, tool, body.status, reason, body.until)
    if body.status == "available":
        await services.tools.everywhere.reset(specs)
    tools, _ = await services.tools.overview(specs, status=None, after=None, limit=0)
    return tools[tool].fleet


@states_router.post("/tool-states/reset", responses=problems("forbidden", "unknown_tool", "session_not_found"))
async def reset_fleet_tool_states(services: Parts, operator: Ops, body: schemas.FleetReset) -> FleetToolStates:
    """Makes tools available again, for everyone and in every session. `scope` limits it to one of the two, `session_id`
    to a session of any user. It also ends what an operator has set for all sessions. Needs the scope `ops`.
    """
    specs = services.tools.specs(body.tool_name)
    owner = None
    if body.session_id is not None:
        owner = await services.read(owner_of, body.session_id)
    async with services.database.transaction() as connection:
        session_id, tool, details = body.session_id, body.tool_name, {"scope": body.scope}
        await record_act(connection, operator, "reset_tool_states", session_id=session_id, tool=tool, details=details)
        if body.scope != "sessions":
            await lift_holds(connection, specs)
    if body.scope != "sessions":
        await services.tools.everywhere.reset(specs)
    if owner is not None and body.session_id is not None:
        await _reset_in_session(services, owner, body.session_id, specs)
    elif body.scope != "fleet":
        await services.tools.reset_in_sessions(specs)
    return await _fleet_states(services, specs, status=None, after=None, paging=schemas.Paging())


async def _session_states(services: Services, owner: str, origin: Origin, session_id: str) -> SessionToolStates:
    states = await services.tools.session_states(session_id, owner, origin.groups)
    return SessionToolStates(session_id, states, services.clock())


async def _reset_in_session(services: Services, owner: str, session_id: str, specs: Specs) -> None:
    async with services.database.transaction() as connection:
        await lock_session(connection, owner, session_id)
        changes = await services.tools.reset(connection, session_id, specs)
    services.tools.committed(changes)


async def _fleet_states(
    services: Services, specs: Specs, *, status: ToolStatus | None, after: StatePosition | None, paging: schemas.Paging
) -> FleetToolStates:
    tools, found = await services.tools.overview(specs, status=status, after=after, limit=paging.limit + 1)
    shown = paging.page(found, lambda state: [state.session_id, state.tool])
    return FleetToolStates(tools, shown.items, shown.next_cursor)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedResult(ToolCall):
    """A tool call, with the page of its result that was asked for."""

    result: Annotated[Any, doc("The page of the result. Images and files in it are numbers for `part=`.")]
    result_total: Annotated[int | None, doc("The length of the whole result, in characters or items of a list.")]
    next_offset: Annotated[int | None, doc("The `offset` of the next page; null on the last page.")]


@results_router.get("")
async def list_tool_results(
    session_id: SessionId,
    services: Parts,
    caller: Caller,
    paging: Paged,
    tool: Annotated[schemas.NameFilter, Query(description="Lists only calls of this tool.")] = None,
    turn_id: Annotated[schemas.NameFilter, Query(description="Lists only calls of this turn.")] = None,
    status: Annotated[CallStatus | None, Query(description="Only calls with this status.")] = None,
) -> Page[ToolCall | UnreadableCall]:
    """Lists the tool calls of a session. Newest first, without their results."""
    options = {"tool": tool, "turn_id": turn_id, "status": status, **paging.behind(_RESULT_POSITION)}
    of = caller, session_id
    return paging.page(await services.read_in(*of, results.list_calls, *of, **options), lambda call: call.tool_call_id)


@results_router.get("/{tool_call_id}", response_model=LoadedResult, responses={**ONE_PART, **OF_RESULTS})
async def get_tool_result(
    session_id: SessionId,
    tool_call_id: ToolCallId,
    services: Parts,
    caller: Caller,
    path: Annotated[str | None, Query(max_length=1000, description="A JMESPath into a JSON result.")] = None,
    offset: Annotated[int, Query(ge=0, le=2**53, description="The `next_offset` of the page before.")] = 0,
    limit: Annotated[int, Query(ge=1, le=10_000_000, description="The most characters or list items.")] = 100_000,
    part: Annotated[int | None, Query(ge=0, le=2**31, description="The number of an image or file to load.")] = None,
) -> Response:
    """Loads a page of the result of a tool call. With `part` it downloads the image or file of this number instead."""
    call, stored = await services.read(results.load_result, caller, session_id, tool_call_id, now=services.clock())
    if part is not None:
        found, _ = await part_at(stored.content or "", part, is_json=stored.kind == "json")
        file = existing("tool_result_part", found)
        return await to_thread.run_sync(_download, call, file, part)  # megabytes take a while to decode
    page = await page_of(stored.content or "", PageSpec(path, offset, limit), is_json=stored.kind == "json")
    shown = {name: getattr(call, name) for name in ToolCall.__dataclass_fields__}
    # The result is JSON already: to read and write megabytes of it again would hold up other requests.
    totals = {"result": orjson.Fragment(page.json), "result_total": page.result_total, "next_offset": page.next_offset}
    return Response(orjson.dumps({**shown, **totals}, option=orjson.OPT_UTC_Z), media_type="application/json")


def _download(call: ToolCall, part: BinaryPart, number: int) -> Response:
    """A tool chose the media type: a browser must neither guess another nor open it as a page of ours."""
    name = f"{call.tool_call_id}-{number}{mimetypes.guess_extension(part.media_type) or ''}"
    headers = {"Content-Disposition": f'attachment; filename="{name}"', "Content-Security-Policy": "sandbox"}
    return Response(part.content(), media_type=part.media_type, headers=headers)


@dataclass(frozen=True, slots=True)
class ReceiptPage(Page[Receipt]):
    """A page of receipts, and the end of their chain. `segue receipts verify` reads it."""

    head: Annotated[ChainHead | None, doc("The newest receipt of the session; null if it has none.")]


@receipts_router.get("/sessions/{session_id}/receipts", responses=problems("forbidden"))
async def list_receipts(
    session_id: SessionId, services: Parts, identity: IdentityDep, origin: OriginDep, paging: Paged
) -> ReceiptPage:
    """Lists the receipts of a session: what its calls changed, and who approved them. Oldest first. Sessions of other
    users need the scopes `ops` and `ops:content`.
    """
    after, limit = paging.after(schemas.BY_SEQ) or 0, paging.limit + 1
    async with services.database.transaction() as connection:
        owner, head, found = await receipts.read_chain(connection, session_id, after=after, limit=limit)
        await _check_reader(connection, identity, origin, owner, session_id, "session")
    page = paging.page(found, lambda each: each.number)
    return ReceiptPage(page.items, page.next_cursor, head)


@receipts_router.get("/receipts/{tool_call_id}", responses=problems("receipt_not_found", "forbidden"))
async def get_receipt(tool_call_id: ToolCallId, services: Parts, identity: IdentityDep, origin: OriginDep) -> Receipt:
    """Shows the newest receipt of a tool call. Those of other users need the scopes `ops` and `ops:content`."""
    async with services.database.transaction() as connection:
        owner, receipt = await receipts.get_receipt(connection, tool_call_id)
        await _check_reader(connection, identity, origin, owner, receipt.session_id, "receipt")
    return receipt


async def _check_reader(
    connection: Connection, identity: Identity, origin: Origin, owner: str | None, session_id: str, thing: str
) -> None:
    """Raises NotFound, AppError `forbidden`. What operators read of other users is in the audit."""
    if owner == identity.user:
        return
    if "ops" not in identity.scopes:
        raise NotFound(thing)
    await deps.record_reading(connection, identity, origin, session_id, words=owner is not None)  # else they are erased
