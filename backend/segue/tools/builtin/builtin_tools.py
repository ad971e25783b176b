"""The tools of the service itself, made from the settings, and all but those of the web: facts, what was said, results,
time, promises. Whose memory it is, and the time, come from the context, never from arguments or a clock.
"""

from collections.abc import Collection, Sequence
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Protocol
from zoneinfo import ZoneInfo

import httpx2
import orjson

from segue.db.engine import Database
from segue.domain.errors import AppError, NotFound
from segue.domain.ids import known_zone, local_time
from segue.domain.session import READ_ATTACHMENT, SHOWN_BYTES, Memory, MemoryKind
from segue.domain.tool import Audience, Tool, ToolCall, ToolContext, ToolFailed, ToolRetry
from segue.net.http_client import checked_client, tls_context
from segue.tools.builtin import EVERY, REFUSED, defined
from segue.tools.builtin.web_fetch import web_fetch_tool
from segue.tools.builtin.web_search import web_search_tool
from segue.tools.normalize import clean_text
from segue.tools.paging import PageSpec, page_of, part_at, passages_in
from segue.tools.results import StoredResult, load_result, search_calls
from segue.tools.summaries import one_line
from segue.tools.tool_settings import ToolSettings
from segue.users.usage import Payer

MAX_FOUND: Final = 10
FOUND: Final = 5
DAYS_OF_EVERY_MONTH: Final = 28
A_YEAR: Final = timedelta(days=366)
MAX_ANSWER: Final = 8000
ENVELOPE_BYTES: Final = 500  # what an answer says beside the result
LISTED: Final = 20
MAX_ARGS_CHARS: Final = 200
NO_TEXT: Final = "`query` finds words in a text, which this is not: give a path, such as items[?contains(name, 'Ada')]."
SEARCH_CONVERSATION: Final = defined("search_conversation")
PROMISE: Final = defined("promise")


class UserFacts(Protocol):
    """Facts about users across sessions. `remember` and `forget` return None for words that the user has not said."""

    async def remember(
        self, owner: str, session_id: str, content: str, kind: MemoryKind, *, now: datetime, time_zone: str
    ) -> Memory | None: ...

    async def forget(self, owner: str, session_id: str, contents: Collection[str]) -> list[str] | None: ...

    async def search(self, payer: Payer, query: str, *, now: datetime, limit: int) -> list[Memory]: ...


class SearchSaid(Protocol):
    """Returns passages of a session's messages from before a turn, the best first; none of another owner's."""

    async def __call__(
        self, database: Database, owner: str, session_id: str, query: str, *, before_turn: str, limit: int
    ) -> list[dict[str, Any]]: ...


class Promises(Protocol):
    """`make` returns the id and the first moment, None for words that the user has not said. `rrule` counts from `at`.
    `end` says whether there was such a promise. Both raise AppError if it is impossible.
    """

    async def make(
        self, context: ToolContext, what: str, *, at: datetime, rrule: str | None, until: datetime | None
    ) -> tuple[str, datetime] | None: ...

    async def end(self, context: ToolContext, promise_id: str) -> bool: ...


async def builtin_tools(
    stack: AsyncExitStack,
    settings: ToolSettings,
    database: Database,
    facts: UserFacts,
    search_said: SearchSaid,
    own: Sequence[Tool],
) -> tuple[Tool, ...]:
    """`own` are those that a higher room makes."""
    tools = [
        current_time_tool(),
        web_fetch_tool(client=await stack.enter_async_context(checked_client())),
        get_tool_result_tool(database, shown_bytes=settings.fresh_result_bytes),
        *_tools_of_facts(facts),
        _search_conversation_tool(database, search_said),
        *own,
    ]
    if settings.web_search_provider != "none":
        tools.append(
            web_search_tool(
                provider=settings.web_search_provider,
                client=await stack.enter_async_context(httpx2.AsyncClient(verify=tls_context())),
                searxng_url=settings.searxng_url,
                tavily_api_key=settings.tavily_api_key,
            )
        )
    return tuple(tool for tool in tools if tool.spec.name not in settings.disabled_tools)


def _tools_of_facts(facts: UserFacts) -> tuple[Tool, ...]:
    async def remember(args: dict[str, Any], context: ToolContext) -> object:
        said = (context.owner, context.session_id, args["content"], args["kind"])
        kept = await facts.remember(*said, now=context.now, time_zone=context.time_zone)
        if kept is None:
            raise ToolRetry(REFUSED["remember"])
        return {"remembered": kept.content, "kind": kept.kind}

    async def forget(args: dict[str, Any], context: ToolContext) -> object:
        gone = await facts.forget(context.owner, context.session_id, args["facts"])
        if gone is None:
            raise ToolRetry(REFUSED["forget"])
        return {"forgotten": gone, "not_known": len(set(args["facts"])) - len(gone)}

    async def search(args: dict[str, Any], context: ToolContext) -> object:
        payer = context.owner, context.session_id
        found = await facts.search(payer, args["query"], now=context.now, limit=MAX_FOUND)
        dated = [(local_time(fact.created_at, context.time_zone).date().isoformat(), fact) for fact in found]
        return {"facts": [{"date": date, "kind": fact.kind, "fact": fact.content} for date, fact in dated]}

    runs = {"remember": remember, "forget": forget, "search_memory": search}
    return tuple(Tool(defined(name), run) for name, run in runs.items())


def _search_conversation_tool(database: Database, search: SearchSaid) -> Tool:
    async def run(args: dict[str, Any], context: ToolContext) -> object:
        query, limit, turn = args["query"], args.get("limit", FOUND), context.turn_id
        found = await search(database, context.owner, context.session_id, query, before_turn=turn, limit=limit)
        times = [local_time(each["at"], context.time_zone).isoformat(timespec="minutes") for each in found]
        return {"found": [{**each, "at": at} for each, at in zip(found, times, strict=True)]}

    return Tool(SEARCH_CONVERSATION, run)


def current_time_tool() -> Tool:
    """Returns `{"utc", "local", "timezone", "weekday"}`: ISO 8601 to the second, the weekday of `local` in English."""

    async def run(args: dict[str, Any], context: ToolContext) -> object:
        try:
            name = known_zone(args.get("timezone", context.time_zone))
        except ValueError as error:
            raise ToolRetry(str(error)) from None
        local = local_time(context.now, name)
        utc, shown = (each.isoformat(timespec="seconds") for each in (context.now.astimezone(UTC), local))
        return {"utc": utc, "local": shown, "timezone": name, "weekday": local.strftime("%A")}

    return Tool(defined("current_time"), run)


def promise_tool(promises: Promises, groups: Collection[str] = ()) -> Tool:
    """Returns the tool; with `groups` only users in one of them have it."""

    async def run(args: dict[str, Any], context: ToolContext) -> object:
        if (ended := args.get("end")) is not None:
            if not await promises.end(context, ended):
                raise ToolRetry("There is no promise with this id that could end.")
            return {"ended": ended}
        if "what" not in args or "at" not in args or ("every" in args) != ("until" in args):
            raise ToolRetry("Give `what` and `at`, with `every` also `until`; or `end`.")
        what, rrule = args["what"], EVERY[args["every"]] if "every" in args else None
        at, until = (_moment(args[name], context) if name in args else None for name in ("at", "until"))
        if args.get("every") == "month" and at and (day := local_time(at, context.time_zone).day) > DAYS_OF_EVERY_MONTH:
            days = ",".join(map(str, range(DAYS_OF_EVERY_MONTH, day + 1)))
            rrule = f"{rrule};BYMONTHDAY={days};BYSETPOS=-1"  # of those that the month has the last one
        try:
            promised = await promises.make(context, what, at=at or context.now, rrule=rrule, until=until)
        except AppError as refused:
            raise ToolRetry(refused.detail) from None
        if promised is None:
            raise ToolRetry(REFUSED["promise"])
        promise_id, first = promised
        return {"promise": promise_id, "show": f"⏰ {local_time(first, context.time_zone):%Y-%m-%d %H:%M} — {what}"}

    return Tool(PROMISE, run, audience=Audience(groups=frozenset(groups)) if groups else None)


def _moment(text: str, context: ToolContext) -> datetime:
    try:
        moment = datetime.fromisoformat(text if ":" in text else "")  # a day alone would be its first moment
    except ValueError:
        raise ToolRetry("Write a date and time as 2026-11-30T09:00.") from None
    moment = moment if moment.tzinfo else moment.replace(tzinfo=ZoneInfo(context.time_zone))
    if not -A_YEAR < moment - context.now < 100 * A_YEAR:  # every hour since then would take minutes to count
        raise ToolRetry("Give a time that is to come.")
    return moment


def get_tool_result_tool(database: Database, *, shown_bytes: int) -> Tool:
    """Returns the tool that finds the results of a session, and loads more of one. It leaves no row in the ledger. The
    model gets a result of up to `shown_bytes` in full in the turn that made it.
    """
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
    bound = PageSpec(max_bytes=max_bytes, max_chars=MAX_ANSWER)
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
    wanted = PageSpec(path, offset, args.get("limit", MAX_ANSWER), max_bytes, max_chars=MAX_ANSWER)
    part = await page_of(stored.content or "", wanted, is_json=stored.kind == "json")
    answer = {"result_total": part.result_total, "next_offset": part.next_offset}
    if wanted.fits(part.json):
        return {**answer, "result": part.result}
    at = f"{path} | [{offset}]" if path else f"[{offset}]"
    note = f"Item {offset} alone is longer than an answer may be: load it with the path {at}"
    return {**answer, "result": [], "note": note}
