"""`get_tool_result`: finds the results of a session, and loads more of one. Leaves no row in the ledger."""

from typing import Any

import orjson

from segue.db.engine import Database
from segue.domain.errors import AppError, NotFound
from segue.domain.ids import local_time
from segue.domain.session import READ_ATTACHMENT, SHOWN_BYTES
from segue.domain.tool import Tool, ToolCall, ToolContext, ToolFailed, ToolRetry
from segue.tools.builtin import defined
from segue.tools.normalize import clean_text
from segue.tools.paging import Wanted, page_of, part_at, passages_in
from segue.tools.results import StoredResult, load_result, search_calls
from segue.tools.summaries import one_line

MAX_ANSWER = 8000
ENVELOPE_BYTES = 500  # what an answer says beside the result
LISTED = 20
MAX_ARGS_CHARS = 200
NO_TEXT = "`query` finds words in a text, which this is not: give a path, such as items[?contains(name, 'Rossi')]."


def get_tool_result_tool(database: Database, *, shown_bytes: int) -> Tool:
    """`shown_bytes` is the size up to which the model gets a result in full in the turn that made it."""

    max_bytes = max(shown_bytes - ENVELOPE_BYTES, ENVELOPE_BYTES)

    async def run(args: dict[str, Any], context: ToolContext) -> object:
        if "tool_call_id" not in args:
            return await _search(database, args, context, max_bytes=max_bytes)
        call, stored = await _load(database, args["tool_call_id"], context)
        most = SHOWN_BYTES if call.tool_name == READ_ATTACHMENT else shown_bytes
        is_shown = call.turn_id == context.turn_id and call.metadata.size_bytes <= most
        if is_shown and not args.keys() & {"path", "part"}:
            raise ToolRetry(f"You already have the whole result of {call.tool_call_id} above, in this turn.")
        about = _about(call, context)
        try:
            if "part" in args:
                stored = await _text_of(stored, args["part"])
            if (query := args.get("query")) and "path" not in args:
                found = await passages_in(stored.content or "", query, is_json=stored.kind == "json")
                if found is None:
                    raise ToolRetry(NO_TEXT)
                return {**about, "found": found}
            return {**about, **await _answer(stored, args, max_bytes=max_bytes)}
        except AppError as error:
            raise ToolRetry(error.detail) from error

    return Tool(defined("get_tool_result"), run)


async def _search(database: Database, args: dict[str, Any], context: ToolContext, *, max_bytes: int) -> dict[str, Any]:
    words, offset, limit = args.get("query", "").split(), args.get("offset", 0), min(args.get("limit", LISTED), LISTED)
    of = context.owner, context.session_id
    found, total = await database.read(search_calls, *of, words[:8], offset=offset, limit=limit)
    args_shown = (one_line(orjson.dumps(call.args).decode(), MAX_ARGS_CHARS) for call in found)
    listed = [
        {**_about(call, context), "status": call.status, "args": shown, "summary": call.metadata.summary}
        for call, shown in zip(found, args_shown, strict=True)
    ]
    bound = Wanted(max_bytes=max_bytes, max_chars=MAX_ANSWER)
    while len(listed) > 1 and not bound.fits(orjson.dumps(listed)):
        listed = listed[: len(listed) // 2]
    end = offset + len(listed)
    return {"results": listed, "results_total": total, "next_offset": end if end < total else None}


async def _text_of(stored: StoredResult, number: int) -> StoredResult:
    """Raises ToolRetry for a part that is no text: an image of an earlier turn is for the user only."""
    part, count = await part_at(stored.content or "", number, is_json=stored.kind == "json")
    if part is None:
        raise ToolRetry(f"This result has no part {number}; its parts are {count}, counted from 0.")
    try:
        return StoredResult("text", clean_text(part.content().decode()))
    except UnicodeDecodeError:
        raise ToolRetry(f"Part {number} is {part.media_type}, which cannot be shown as text.") from None


async def _load(database: Database, tool_call_id: str, context: ToolContext) -> tuple[ToolCall, StoredResult]:
    async with database.read_only() as connection:
        try:
            return await load_result(connection, context.owner, context.session_id, tool_call_id, now=context.now)
        except NotFound:
            pass
        except AppError as error:
            raise (ToolRetry if error.code == "tool_result_expired" else ToolFailed)(error.detail) from error
        newest, _ = await search_calls(connection, context.owner, context.session_id, (), offset=0, limit=5)
    known = "; ".join(f"{call.tool_call_id}: {call.metadata.summary}" for call in newest) or "none yet"
    raise ToolRetry(f"This session has no result {tool_call_id[:64]}. Newest results: {known}.")


def _about(call: ToolCall, context: ToolContext) -> dict[str, Any]:
    """Returns which call it was, and when where the user is: what it gave may be otherwise by now."""
    at = local_time(call.started_at, context.time_zone).isoformat(timespec="minutes")
    return {"tool_call_id": call.tool_call_id, "tool_name": call.tool_name, "at": at}


async def _answer(stored: StoredResult, args: dict[str, Any], *, max_bytes: int) -> dict[str, Any]:
    path, offset = args.get("path"), args.get("offset", 0)
    wanted = Wanted(path, offset, args.get("limit", MAX_ANSWER), max_bytes, max_chars=MAX_ANSWER)
    part = await page_of(stored.content or "", wanted, is_json=stored.kind == "json")
    answer = {"result_total": part.result_total, "next_offset": part.next_offset}
    if wanted.fits(part.json):
        return {**answer, "result": part.result}
    at = f"{path} | [{offset}]" if path else f"[{offset}]"
    note = f"Item {offset} alone is longer than an answer may be: load it with the path {at}"
    return {**answer, "result": [], "note": note}
