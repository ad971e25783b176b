"""Tool results: the ledger of a session as a list, one result by path and page."""

from dataclasses import dataclass
from typing import Annotated, Any

import orjson
from fastapi import APIRouter, Query, Response

from segue.api.deps import Caller, ServicesDep, SessionId, StrictJsonRoute, ToolCallId
from segue.api.problems import PROBLEMS
from segue.api.schemas import Cursor, Limit, Page, decode_cursor, id_position, page
from segue.domain.tool import CallStatus, ToolCall
from segue.memory.sessions import get_session
from segue.tools import results
from segue.tools.paging import Wanted, page_of

router = APIRouter(
    prefix="/sessions/{session_id}/tool-results", tags=["tool results"], route_class=StrictJsonRoute, responses=PROBLEMS
)

_POSITION = id_position("call")

Filter = Annotated[str | None, Query(max_length=200, pattern="^[^\x00]*$")]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedResult(ToolCall):
    """A ToolCall and the part of its result that was asked for; totals count characters of text or items of a list."""

    result: Any
    result_total: int | None
    next_offset: int | None


@router.get("")
async def list_tool_results(
    session_id: SessionId,
    services: ServicesDep,
    caller: Caller,
    tool: Filter = None,
    turn_id: Filter = None,
    status: CallStatus | None = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Page[ToolCall]:
    before = decode_cursor(cursor, _POSITION)
    async with services.database.read_only() as connection:
        await get_session(connection, caller, session_id)
        found = await results.list_calls(
            connection,
            caller,
            session_id,
            tool=tool,
            turn_id=turn_id,
            status=status,
            before=before,
            limit=limit + 1,
        )
    return page(found, limit, lambda call: call.tool_call_id)


@router.get("/{tool_call_id}", response_model=LoadedResult)
async def get_tool_result(
    session_id: SessionId,
    tool_call_id: ToolCallId,
    services: ServicesDep,
    caller: Caller,
    path: Annotated[str | None, Query(max_length=1000)] = None,
    offset: Annotated[int, Query(ge=0, le=2**53)] = 0,
    limit: Annotated[int, Query(ge=1, le=10_000_000)] = 100_000,
) -> Response:
    async with services.database.read_only() as connection:
        call, stored = await results.load_result(connection, caller, session_id, tool_call_id, now=services.clock())
    part = await page_of(stored.content or "", Wanted(path, offset, limit), is_json=stored.kind == "json")
    shown = {name: getattr(call, name) for name in ToolCall.__dataclass_fields__}
    # The result is JSON already: to read and write megabytes of it again would hold up other requests.
    totals = {"result": orjson.Fragment(part.json), "result_total": part.result_total, "next_offset": part.next_offset}
    return Response(orjson.dumps({**shown, **totals}, option=orjson.OPT_UTC_Z), media_type="application/json")
