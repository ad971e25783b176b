"""`get_tool_result`: loads more of a result that the model knows only by reference. Leaves no row in the ledger."""

from typing import Any

import orjson

from segue.db.engine import Database
from segue.domain.errors import AppError, NotFound
from segue.domain.tool import Tool, ToolCall, ToolContext, ToolFailed, ToolRetry, ToolSpec
from segue.tools.paging import page_of
from segue.tools.results import list_calls, load_result

MAX_ANSWER = 8000
ENVELOPE_BYTES = 500  # what an answer says beside the result
NEWEST = 5

SPEC = ToolSpec(
    name="get_tool_result",
    description=(
        "Load the stored result of an earlier tool call of this session, or a part of it. Use it when a reference's "
        "preview is not enough. `path` is JMESPath into a JSON result (emails[0].id); text and lists are paged with "
        "`offset` and `limit` (characters of text, items of a list)."
    ),
    input_schema={
        "type": "object",
        "properties": {
            "tool_call_id": {"type": "string", "description": "The tool_call_id of a reference, call_…"},
            "path": {"type": "string", "maxLength": 1000},
            "offset": {"type": "integer", "minimum": 0},
            "limit": {"type": "integer", "minimum": 1, "maximum": MAX_ANSWER},
        },
        "required": ["tool_call_id"],
        "additionalProperties": False,
    },
    ephemeral=True,
)


def get_tool_result_tool(database: Database, *, shown_bytes: int) -> Tool:
    """`shown_bytes` is the size up to which the model gets a result in full in the turn that made it."""

    max_bytes = max(shown_bytes - ENVELOPE_BYTES, ENVELOPE_BYTES)

    async def run(args: dict[str, Any], context: ToolContext) -> object:
        call, value = await _load(database, args["tool_call_id"], context)
        if call.turn_id == context.turn_id and call.metadata.size_bytes <= shown_bytes and "path" not in args:
            raise ToolRetry(f"You already have the whole result of {call.tool_call_id} above, in this turn.")
        return _answer(call, value, args, max_bytes=max_bytes)

    return Tool(SPEC, run)


async def _load(database: Database, tool_call_id: str, context: ToolContext) -> tuple[ToolCall, Any]:
    async with database.read_only() as connection:
        try:
            return await load_result(connection, context.owner, context.session_id, tool_call_id, now=context.now)
        except NotFound:
            pass
        except AppError as error:
            raise (ToolRetry if error.code == "tool_result_expired" else ToolFailed)(error.detail) from error
        newest = await list_calls(connection, context.owner, context.session_id, limit=NEWEST)
    known = "; ".join(f"{call.tool_call_id}: {call.metadata.summary}" for call in newest) or "none yet"
    raise ToolRetry(f"This session has no result {tool_call_id[:64]}. Newest results: {known}.")


def _answer(call: ToolCall, value: Any, args: dict[str, Any], *, max_bytes: int) -> dict[str, Any]:
    path, offset, limit = args.get("path"), args.get("offset", 0), args.get("limit", MAX_ANSWER)
    try:
        part = page_of(value, path=path, offset=offset, limit=limit)
        if not _fits(part.result, max_bytes) and not isinstance(part.result, str | list):
            value, path = orjson.dumps(part.result).decode(), None
            part = page_of(value, path=None, offset=offset, limit=limit)
        while not _fits(part.result, max_bytes) and len(part.result) > 1:
            part = page_of(value, path=path, offset=offset, limit=len(part.result) // 2)
    except AppError as error:
        raise ToolRetry(error.detail) from error
    result, note = part.result, None
    if not _fits(result, max_bytes):
        at = f"{path} | [{offset}]" if path else f"[{offset}]"
        result, note = [], f"Item {offset} alone is longer than an answer may be: load it with the path {at}"
    return {
        "tool_call_id": call.tool_call_id,
        "tool_name": call.tool_name,
        "result": result,
        "result_total": part.result_total,
        "next_offset": part.next_offset,
        **({"note": note} if note else {}),
    }


def _fits(result: Any, max_bytes: int) -> bool:
    """Whether the model can be shown all of it: in characters for its context, in bytes for a fresh result."""
    written = orjson.dumps(result)
    return len(written) <= max_bytes and (isinstance(result, str) or len(written.decode()) <= MAX_ANSWER)
