"""Tool results: the ledger of a session as a list, one result by path and page."""

import mimetypes
from dataclasses import dataclass
from typing import Annotated, Any, Final

import orjson
from anyio import to_thread
from fastapi import Query, Response

from segue.api.deps import Caller, ServicesDep, SessionId, ToolCallId, router_of
from segue.api.problem_codes import problems
from segue.api.schemas import Cursor, Limit, Page, decode_cursor, id_position, page
from segue.domain.doc import doc
from segue.domain.errors import NotFound
from segue.domain.tool import CallStatus, ToolCall, UnreadableCall
from segue.memory.sessions import check_session
from segue.tools import results
from segue.tools.paging import Wanted, page_of, part_at
from segue.tools.parts import BinaryPart

router = router_of("tool results", "/sessions/{session_id}/tool-results")

_POSITION = id_position("call")

ONE_PART: Final[dict[int | str, dict[str, Any]]] = {
    200: {"content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}}
}
OF_RESULTS = problems("tool_result_expired", "tool_result_part_not_found", "invalid_path")
CallFilter = Annotated[str | None, Query(max_length=200, pattern="^[^\x00]*$", description="Only those of this one.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedResult(ToolCall):
    """A ToolCall and the page of its result that was asked for."""

    result: Annotated[Any, doc("The page that was asked for. Images and files are named by number: `part=`.")]
    result_total: Annotated[int | None, doc("All there is, in characters of text or items of a list.")]
    next_offset: Annotated[int | None, doc("For `offset=`; null at the end.")]


@router.get("")
async def list_tool_results(
    session_id: SessionId,
    services: ServicesDep,
    caller: Caller,
    tool: CallFilter = None,
    turn_id: CallFilter = None,
    status: Annotated[CallStatus | None, Query(description="Only those of this status.")] = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Page[ToolCall | UnreadableCall]:
    """Lists the calls of tools in a session. Newest first, without their results."""
    before = decode_cursor(cursor, _POSITION)
    async with services.database.read_only() as connection:
        await check_session(connection, caller, session_id)
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


@router.get("/{tool_call_id}", response_model=LoadedResult, responses={**ONE_PART, **OF_RESULTS})
async def get_tool_result(
    session_id: SessionId,
    tool_call_id: ToolCallId,
    services: ServicesDep,
    caller: Caller,
    path: Annotated[str | None, Query(max_length=1000, description="JMESPath into a result in JSON.")] = None,
    offset: Annotated[int, Query(ge=0, le=2**53, description="`next_offset` of the page before.")] = 0,
    limit: Annotated[int, Query(ge=1, le=10_000_000, description="Characters of text or items of a list.")] = 100_000,
    part: Annotated[int | None, Query(ge=0, le=2**31, description="The number of an image or a file in it.")] = None,
) -> Response:
    """Loads a page of a result. With `part`, the image or file of this number as it is, to be downloaded."""
    async with services.database.read_only() as connection:
        call, stored = await results.load_result(connection, caller, session_id, tool_call_id, now=services.clock())
    if part is not None:
        found, _ = await part_at(stored.content or "", part, is_json=stored.kind == "json")
        if found is None:
            raise NotFound("tool_result_part")
        return await to_thread.run_sync(_download, call, found, part)  # megabytes take a while to decode
    page = await page_of(stored.content or "", Wanted(path, offset, limit), is_json=stored.kind == "json")
    shown = {name: getattr(call, name) for name in ToolCall.__dataclass_fields__}
    # The result is JSON already: to read and write megabytes of it again would hold up other requests.
    totals = {"result": orjson.Fragment(page.json), "result_total": page.result_total, "next_offset": page.next_offset}
    return Response(orjson.dumps({**shown, **totals}, option=orjson.OPT_UTC_Z), media_type="application/json")


def _download(call: ToolCall, part: BinaryPart, number: int) -> Response:
    """A tool chose the media type: a browser must neither guess another nor open it as a page of ours."""
    name = f"{call.tool_call_id}-{number}{mimetypes.guess_extension(part.media_type) or ''}"
    headers = {
        "Content-Disposition": f'attachment; filename="{name}"',
        "X-Content-Type-Options": "nosniff",
        "Content-Security-Policy": "sandbox",
    }
    return Response(part.content(), media_type=part.media_type, headers=headers)
