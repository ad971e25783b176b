"""The ledger of tool calls and, apart from it, their payloads. A row is written before a tool runs and gets its outcome
after. Payloads expire (`retention.py`), rows stay. Clients read by owner, turns within their session.
"""

from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from anyio import to_thread
from sqlalchemy import Row, Select, Text, any_, bindparam, case, cast, func, select, true, tuple_, update
from sqlalchemy.dialects.postgresql import ARRAY

from segue.db.engine import Connection
from segue.db.models import attachments, messages, sessions, tool_calls, tool_results, turns
from segue.db.rows import newest_first, note_unreadable, older_than, oldest_first, readable, reader
from segue.domain import tool as domain
from segue.domain.errors import app_error, existing
from segue.domain.session import READ_ATTACHMENT, RequestedCall
from segue.domain.tool import CallEffect, CallStatus, Reference, ToolCall, TurnEffect, UnreadableCall
from segue.tools.child_process import LARGE, READ_S, TooMuch, in_child_process
from segue.tools.normalize import Payload, PayloadKind, described, payload_of, read_payload, value_in
from segue.tools.retention import evict, storing
from segue.tools.run import CallOutcome, lost
from segue.tools.summaries import preview, summarise_failure, summary_line, text_in
from segue.tools.tool_settings import ToolSettings


@dataclass(frozen=True, slots=True)
class PlanStep:
    """The step of a plan that a call carries out."""

    plan_id: str
    step_id: int


@dataclass(frozen=True, slots=True)
class StoredResult:
    """`content` is text or JSON, as `kind` says, or text that should be JSON; None if it is larger than asked for."""

    kind: PayloadKind
    content: str | None
    call_id: str = ""

    def value(self) -> Any:
        if self.kind != "json" or self.content is None:
            return self.content
        value = value_in(self.content, is_json=True)
        if value is self.content:
            note_unreadable("tool_results", self.call_id)
        return value

    def shown(self) -> Any:
        return described(self.value())[0]

    def shown_text(self) -> str:
        """Returns the text that the model sees."""
        return payload_of(self.value(), self.content or "").shown_text


@dataclass(frozen=True, slots=True)
class LedgerCall:
    """A call as the ledger has it. `outcome` is None while it runs."""

    call: ToolCall
    reference: Reference
    outcome: CallOutcome | None
    effect: CallEffect | None = None


async def finish_call(
    connection: Connection,
    call: RequestedCall,
    outcome: CallOutcome,
    *,
    now: datetime,
    settings: ToolSettings,
    was: CallStatus = "running",
) -> tuple[ToolCall, Reference]:
    """Records the outcome of a call once, or that of one that `was` unknown: a second one for the same call raises."""
    payload = outcome.payload
    stored, until = payload.size_bytes > 0, now + timedelta(days=settings.tool_result_ttl_days)
    shown = text_in(payload.shown) or payload.shown_text if stored else outcome.error or ""
    values = {
        **{name: getattr(outcome, name) for name in ("status", "error", "duration_ms", "settled_by")},
        "summary": summarise_failure(call.name, outcome.error) if outcome.error else outcome.summary,
        "preview": preview(shown, max_chars=settings.tool_result_preview_chars),
        "identifiers": list(outcome.identifiers) or None,
        "size_bytes": payload.size_bytes,
        "expires_at": until if stored else None,
    }
    parameters = {_OUTCOME[name].key: value for name, value in values.items()}
    parameters |= {"size": payload.size_bytes, "stored_kind": payload.kind, "stored_text": payload.text, "until": until}
    row = (await connection.execute(_FINISH, {"ended_call": call.id, "was": was, **parameters})).one()
    if stored and (beyond := row.stored_before + payload.size_bytes - settings.tool_result_session_bytes) > 0:
        await evict(connection, row.session_id, min(beyond, row.stored_before), now=now)  # the newest is always kept
    return _entry(row)


async def list_calls(
    connection: Connection,
    owner: str,
    session_id: str,
    *,
    tool: str | None = None,
    turn_id: str | None = None,
    status: CallStatus | None = None,
    before: str | None = None,
    limit: int,
) -> list[ToolCall]:
    """Returns calls, newest first, without reading payloads."""
    statement = _owned(owner, session_id).order_by(*newest_first(tool_calls)).limit(limit)
    filters = {"tool_name": tool, "turn_id": turn_id, "status": status}
    these = (tool_calls.c[name] == value for name, value in filters.items() if value is not None)
    return [call_of(row) for row in await connection.execute(statement.where(older_than(tool_calls, before), *these))]


async def search_calls(
    connection: Connection, owner: str, session_id: str, words: Sequence[str], *, offset: int, limit: int
) -> tuple[list[ToolCall], int]:
    """Returns ended calls with every word in their summary, tool, arguments or identifiers, and how many there are.
    Newest first by the seq of the message that made them. Reads no payloads.
    """
    statement = (
        _owned(owner, session_id)
        .add_columns(func.count().over().label("found"))
        .join(messages, messages.c.id == tool_calls.c.message_id)
        .where(messages.c.branch.is_(None), tool_calls.c.status != "running")
        .where(*(_SEARCHED.icontains(word, autoescape=True) for word in words))
        .order_by(messages.c.seq.desc(), *newest_first(tool_calls))
    )
    rows = (await connection.execute(statement.offset(offset).limit(limit))).all()
    return [call_of(row) for row in rows], rows[0].found if rows else 0


async def calls_of_turns(connection: Connection, turn_ids: Sequence[str]) -> dict[str, tuple[ToolCall, ...]]:
    """Returns the calls of each turn in the order they were made."""
    calls = select(tool_calls, turns.c.branch).join(turns, turns.c.id == tool_calls.c.turn_id)
    statement = calls.where(turns.c.id.in_(turn_ids)).order_by(*oldest_first(tool_calls))
    found: dict[str, tuple[ToolCall, ...]] = {}
    for row in await connection.execute(statement):
        found[row.turn_id] = (*found.get(row.turn_id, ()), call_of(row))
    return found


async def effects_of_turns(connection: Connection, turn_ids: Collection[str]) -> dict[str, tuple[TurnEffect, ...]]:
    """Returns the effects that the calls of each turn had, or may have had, in the order they were made."""
    changing = select(tool_calls).where(tool_calls.c.turn_id.in_(turn_ids), tool_calls.c.effect.is_not(None))
    found: dict[str, tuple[TurnEffect, ...]] = {}
    for row in await connection.execute(changing.order_by(*oldest_first(tool_calls))):
        kept = effect_made(row)
        if kept is not None and (effect := domain.effect_of(call_of(row), kept)) is not None:
            found[row.turn_id] = (*found.get(row.turn_id, ()), effect)
    return found


def effect_made(row: Row[Any]) -> CallEffect | None:
    """Returns the effect noted as a row's call started; None if it only reads, or the note cannot be read."""
    if row.effect is None:
        return None
    kept = readable(
        reader(tuple[CallEffect, domain.EffectApproval | None]), (row.effect, row.approval), "tool_calls", row.id
    )
    return replace(kept[0], approved_by=kept[1]) if kept else None


async def recorded_calls(connection: Connection, turn_id: str) -> tuple[LedgerCall, ...]:
    """Returns the calls of a turn so far in the order they were made, each with its outcome."""
    statement = (
        select(tool_calls, tool_results.c.kind, tool_results.c.payload)
        .outerjoin(tool_results, tool_results.c.tool_call_id == tool_calls.c.id)
        .where(tool_calls.c.turn_id == turn_id)
        .order_by(*oldest_first(tool_calls))
    )
    entries = [(row, *_entry(row)) for row in (await connection.execute(statement)).all()]
    return tuple([LedgerCall(call, found, await _outcome(row, call), effect_made(row)) for row, call, found in entries])


async def recent_references(
    connection: Connection,
    session_id: str,
    *,
    up_to: int | None = None,
    left: bool = False,
    but_of: Collection[str] = (),
) -> list[Reference]:
    """Returns references of a session's finished calls, newest first; only of the turns up to this seq, if given, and
    of no tool in `but_of`. They are those of the history, or those that have `left` it.
    """
    statement = (
        select(tool_calls)
        .join(turns, turns.c.id == tool_calls.c.turn_id)
        .where(tool_calls.c.session_id == session_id, tool_calls.c.status != "running")
        .where(turns.c.branch.is_not(None) if left else turns.c.branch.is_(None))
        .where(tool_calls.c.tool_name.not_in(but_of))
        .order_by(*newest_first(tool_calls))
        .limit(50)
    )
    if up_to is not None:
        behind = await _first_call_behind(connection, session_id, up_to)
        statement = statement.where(tuple_(*oldest_first(tool_calls)) < behind if behind else turns.c.seq <= up_to)
    entries = map(_entry, await connection.execute(statement))
    return [reference for call, reference in entries if not isinstance(call, UnreadableCall)]


async def _first_call_behind(connection: Connection, session_id: str, turn_seq: int) -> tuple[int, str] | None:
    """Returns the place of the first call of the next turns, so that the calls of all later ones are not read."""
    later = (turns.c.session_id == session_id, turns.c.seq > turn_seq, turns.c.branch.is_(None))
    following = select(turns.c.id, turns.c.seq).where(*later).order_by(turns.c.seq).limit(100).subquery("following")
    calls = select(*oldest_first(tool_calls)).join(following, following.c.id == tool_calls.c.turn_id)
    first_one = calls.order_by(following.c.seq, *oldest_first(tool_calls)).limit(1)
    first = (await connection.execute(first_one)).one_or_none()
    return (first.seq, first.id) if first else None


async def allowed_among(connection: Connection, ids: Collection[str]) -> dict[str, dict[str, str]]:
    """Returns the metadata of calls that ran under a mandate, by the calls' ids."""
    if not ids:
        return {}
    columns = tool_calls.c.id, tool_calls.c.granted, tool_calls.c.mandate_id
    statement = select(*columns).where(tool_calls.c.id.in_(ids), tool_calls.c.granted | columns[2].is_not(None))
    return {
        row.id: ({"grant": "session"} if row.granted else {}) | ({"mandate": row.mandate_id} if row.mandate_id else {})
        for row in await connection.execute(statement)
    }


async def unknown_calls(connection: Connection, session_id: str, ids: Collection[str]) -> list[ToolCall]:
    """Returns those of these calls of a session whose outcome is unknown and whose turn has not left the history."""
    statement = select(tool_calls).join(turns, turns.c.id == tool_calls.c.turn_id)
    these = (tool_calls.c.session_id == session_id, tool_calls.c.id.in_(ids), tool_calls.c.status == "unknown")
    found = statement.where(*these, turns.c.branch.is_(None)).order_by(*newest_first(tool_calls))
    return [call for call in map(call_of, await connection.execute(found)) if not isinstance(call, UnreadableCall)]


async def calls_that_ran(connection: Connection, session_id: str, *, but_of: Collection[str]) -> list[str]:
    """Returns the newest calls of a session that took effect, or may have, but of some tools: lines to tell them by."""
    calls = select(tool_calls.c.tool_name, tool_calls.c.status, tool_calls.c.args).order_by(*newest_first(tool_calls))
    ran = (tool_calls.c.status.in_(("succeeded", "unknown")), tool_calls.c.tool_name.not_in(but_of))
    rows = await connection.execute(calls.where(tool_calls.c.session_id == session_id, *ran).limit(20))
    return [summary_line(f"{row.tool_name} {row.status} {row.args}") for row in rows]


async def started_at(connection: Connection, tool_call_id: str) -> datetime:
    statement = select(tool_calls.c.started_at).where(tool_calls.c.id == tool_call_id)
    began: datetime = (await connection.execute(statement)).scalar_one()
    return began


async def unanswered_calls(connection: Connection, turn_id: str) -> list[Reference]:
    """Returns references of the calls of a turn that has ended, whose answer is not in the history."""
    unknown = select(tool_calls).where(tool_calls.c.turn_id == turn_id, tool_calls.c.status == "unknown")
    ended = [reference_of(row) for row in await connection.execute(unknown.order_by(*oldest_first(tool_calls)))]
    if not ended:
        return []
    answers = select(messages.c.tool_call_id).where(messages.c.turn_id == turn_id)
    answered = set((await connection.execute(answers)).scalars())
    return [reference for reference in ended if reference.tool_call_id not in answered]


async def load_results(
    connection: Connection, session_id: str, ids: Collection[str], *, now: datetime, max_bytes: int = 2**62
) -> dict[str, StoredResult]:
    """Returns results by their calls' ids: without their content if over `max_bytes`, and none that have expired. Text
    read from a file is kept as long as the file.
    """
    if not ids:
        return {}
    bounds = {"at_session": session_id, "these": list(ids), "as_of": now, "max_bytes": max_bytes}
    return {row.id: StoredResult(row.kind, row.content, row.id) for row in await connection.execute(_KEPT, bounds)}


async def load_result(
    connection: Connection, owner: str, session_id: str, tool_call_id: str, *, now: datetime
) -> tuple[ToolCall, StoredResult]:
    """Returns a call and its result. Raises NotFound, for foreign ids too, and AppError `tool_result_expired` (410)."""
    statement = _owned(owner, session_id).where(tool_calls.c.id == tool_call_id)
    row = existing("tool_result", (await connection.execute(statement)).one_or_none())
    kept = (await load_results(connection, session_id, [row.id], now=now)).get(row.id)
    if kept is None and row.size_bytes > 0:
        advice = "Ask the user to attach the file" if row.tool_name == READ_ATTACHMENT else "Run the tool"
        raise app_error("tool_result_expired", call=row, advice=advice)
    return call_of(row), kept or StoredResult("json", "null")


def _owned(owner: str, session_id: str) -> Select[Any]:
    of_turns = select(*tool_calls.c, turns.c.branch).join(turns, turns.c.id == tool_calls.c.turn_id)
    of_sessions = of_turns.join(sessions, sessions.c.id == tool_calls.c.session_id)
    return of_sessions.where(sessions.c.id == session_id, sessions.c.owner == owner)


async def _outcome(row: Row[Any], call: ToolCall) -> CallOutcome | None:
    """Returns None while the call runs. Whether one that cannot be read took effect is unknown."""
    if isinstance(call, UnreadableCall):
        return lost(call.tool_name)
    if call.status == "running":
        return None
    payload = await payload_of_stored(StoredResult(row.kind or "text", row.payload or "", row.id))
    return CallOutcome(call.status, payload, row.error, row.duration_ms or 0)


async def payload_of_stored(stored: StoredResult) -> Payload:
    text = stored.content or ""
    if len(text) > LARGE:
        with suppress(TooMuch):
            return await in_child_process(read_payload, stored.kind, text, deadline_s=READ_S)
    return await to_thread.run_sync(lambda: payload_of(stored.value(), text))


@dataclass(frozen=True, slots=True)
class _Columns:
    args: dict[str, Any]
    status: CallStatus
    identifiers: tuple[str, ...]
    covered: dict[str, str] | None = None


_AS_STORED = ("turn_id", "started_at", "duration_ms", "error", "expires_at", "plan_id", "step_id", "settled_by")


def call_of(row: Row[Any]) -> ToolCall:
    return _entry(row)[0]


def reference_of(row: Row[Any]) -> Reference:
    return _entry(row)[1]


def _entry(row: Row[Any]) -> tuple[ToolCall, Reference]:
    """Returns an UnreadableCall, and a reference like it, for a row that cannot be read."""
    columns = {"args": row.args, "status": row.status, "identifiers": row.identifiers or (), "covered": row.covered}
    read = readable(reader(_Columns), columns, "tool_calls", row.id)
    shown = read or _Columns({}, "unknown", ())
    result = (row.size_bytes, row.summary, row.preview)
    is_of = (row.id, row.tool_name, shown.args, shown.status)
    call = ToolCall(
        *is_of,
        **{name: getattr(row, name) for name in _AS_STORED},
        metadata=domain.ToolCallMetadata(*result, "session" if row.granted else None, row.mandate_id, shown.covered),
        result_ref=domain.ResultRef(row.session_id, row.id),
        branch=getattr(row, "branch", None),
    )
    reference = Reference(*is_of, *result, shown.identifiers)
    if read is None:
        call = UnreadableCall(**{name: getattr(call, name) for name in ToolCall.__slots__}, unreadable=True)
    return call, reference


_OUTCOME = {
    name: bindparam(f"new_{name}", type_=tool_calls.c[name].type)
    for name in (
        *("status", "error", "summary", "preview", "identifiers"),
        *("size_bytes", "duration_ms", "settled_by", "expires_at"),
    )
}
_THE_CALL = (tool_calls.c.id == bindparam("ended_call"), tool_calls.c.status == bindparam("was"))
_ENDED = update(tool_calls).where(*_THE_CALL).values(_OUTCOME).returning(*tool_calls.c).cte("ended")
_STORED_RESULT = storing(_ENDED).cte("stored")
_FINISH: Select[*tuple[Any, ...]] = select(*_ENDED.c, _STORED_RESULT.c.stored_before).select_from(
    _ENDED.outerjoin(_STORED_RESULT, true())
)
_AS_TEXT = (cast(tool_calls.c.args, Text), cast(tool_calls.c.identifiers, Text))
_SEARCHED = func.concat_ws(" ", tool_calls.c.tool_name, tool_calls.c.summary, *_AS_TEXT)
_THESE = any_(bindparam("these", type_=ARRAY(Text)))
_IS_KEPT = (tool_results.c.tool_call_id == tool_calls.c.id) & (tool_results.c.expires_at > bindparam("as_of"))
# The text of a file stays with the file. It is among the session's own: an argument may name any.
_IS_FILE = (tool_calls.c.tool_name == READ_ATTACHMENT) & (attachments.c.session_id == tool_calls.c.session_id)
_OF_FILE = _IS_FILE & (attachments.c.id == tool_calls.c.args["attachment_id"].astext) & (attachments.c.text != "")
_CONTENT = func.coalesce(tool_results.c.payload, attachments.c.text)
_KEPT = (
    select(
        tool_calls.c.id,
        func.coalesce(tool_results.c.kind, "text").label("kind"),
        case((tool_calls.c.size_bytes <= bindparam("max_bytes"), _CONTENT)).label("content"),
    )
    # Of both tables, or PostgreSQL reads all results that have not expired and joins these calls to them.
    .outerjoin(tool_results, _IS_KEPT & (tool_results.c.tool_call_id == _THESE))
    .outerjoin(attachments, _OF_FILE)
    .where(tool_calls.c.session_id == bindparam("at_session"), tool_calls.c.id == _THESE)
    .where(tool_results.c.tool_call_id.is_not(None) | attachments.c.id.is_not(None))
)
