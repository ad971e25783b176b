"""A session that begins with a history: a fork, with that of another session, or one with what a client has imported.

Copied for a fork are the messages up to one, with their files, their turns, tool calls with their results, and the
health of tools; of the plans only what the turns tell of them. One id of a copied row is made of the fork's id and of
the old one, so that each statement knows the ids that the others give, and none of them reads a row into this process.
The turns of a conversation that was held elsewhere are stored as ended: no tool was called, no fact is noted from them.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Literal

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    FromClause,
    Insert,
    Select,
    Table,
    Text,
    Update,
    and_,
    bindparam,
    case,
    cast,
    func,
    insert,
    literal,
    null,
    or_,
    select,
    text,
    tuple_,
    update,
)
from sqlalchemy.dialects.postgresql import ARRAY, JSONB
from sqlalchemy.ext.asyncio import AsyncConnection

from segue.db.models import OPEN_TURNS, attachments, messages, sessions, tool_calls, tool_results, tool_states, turns
from segue.db.rows import oldest_first
from segue.domain import session, turn_errors
from segue.domain.errors import existing
from segue.domain.ids import new_id
from segue.memory import summary
from segue.memory.history import IN_HISTORY
from segue.memory.session_store import check_session, first_words, get_session
from segue.turns.terminations import error_row

KEPT_OF_AN_ID = 13  # its last characters, which are random; those before are the last ones of the fork's id
MAX_TURNS = 100  # of an import, the newest: the window shows no more, and there is no summary of what is before
MAX_CHARS = 32_000  # of a message
_OF_NOTHING = (session.WebSearchReport(), session.MemoryReport(), session.Usage())
_REPORT = session.TurnReport(session.AcknowledgementReport(), None, *_OF_NOTHING, model="unknown")
_SOURCE, _FORK, _OWN = bindparam("source", type_=Text), bindparam("fork", type_=Text), bindparam("own", type_=Text)
_TURN_SEQ, _SEQ = bindparam("cut_turn_seq", type_=BigInteger), bindparam("cut_seq", type_=BigInteger)
_CUT_TURN = bindparam("cut_turn", type_=Text)  # the turn that the cut divides, null if it is between two
_FORKED_FROM = bindparam("forked_from", type_=JSONB)
_FIRST_PART = "[0-9a-z]{13}"
# In what a turn reports: its plan, the calls of the plan's steps, and where their arguments came from.
_ORIGINS = '": "(?:(?:message|program|quoted):msg|result:call)_'
_REPORTED = f'("(?:tool_call_id|origin_message_id|plan_id)": "(?:call|msg|plan)_|"id": "plan_|{_ORIGINS})'
_LISTED = '("tool_call_id":"call_)'
_CARRIED, _READ = '("id": "att_)', '("attachment_id": "att_)'


async def fork_session(
    connection: AsyncConnection, owner: str, session_id: str, message_id: str, *, now: datetime
) -> session.Session:
    """Returns a new session with the history of this one up to and with a message, in the caller's transaction, of
    which this is the beginning. Raises NotFound, AppError `not_in_history`, and `turn_in_progress` if a turn up to that
    message has not ended.
    """
    await connection.execute(text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ"))
    await check_session(connection, owner, session_id)
    found = await connection.execute(_CUT, {"source": session_id, "message": message_id})
    cut = existing("message", found.one_or_none())
    if cut.branch is not None:
        raise turn_errors.not_in_history()
    if cut.busy is not None:
        raise turn_errors.in_progress(cut.busy)
    fork_id = new_id("ses", now)
    values = {
        "source": session_id,
        "fork": fork_id,
        "own": fork_id[-KEPT_OF_AN_ID:],
        "cut_turn_seq": cut.turn_seq,
        "cut_seq": cut.seq,
        "cut_turn": cut.turn_id if cut.is_divided else None,
        "forked_from": {"forked_from": {"session_id": session_id, "message_id": message_id}},
    }
    for statement in _COPY:
        await connection.execute(statement, values)
    return await get_session(connection, owner, fork_id)


def _cut() -> Select[*tuple[Any, ...]]:
    """A turn that has ended may stand behind one that runs: it was cancelled while it waited."""
    rest = messages.alias("rest")
    of_turn = (rest.c.session_id == messages.c.session_id, rest.c.turn_seq == messages.c.turn_seq)
    busy = (
        select(turns.c.id)
        .where(turns.c.session_id == messages.c.session_id, turns.c.seq <= messages.c.turn_seq)
        .where(turns.c.status.in_(OPEN_TURNS))
        .order_by(turns.c.seq)
        .limit(1)
    )
    is_divided = select(rest.c.id).where(*of_turn, rest.c.seq > messages.c.seq, rest.c.branch.is_(None)).exists()
    found = (busy.scalar_subquery().label("busy"), is_divided.label("is_divided"))
    cut = select(*(messages.c[name] for name in ("seq", "turn_seq", "turn_id", "branch")), *found)
    return cut.where(messages.c.session_id == _SOURCE, messages.c.id == bindparam("message"))


def _placed() -> FromClause:
    """The messages to copy, and their places. A question that came while another turn ran stands before its answer."""
    place = func.row_number().over(order_by=(messages.c.turn_seq, messages.c.seq)).label("new_seq")
    numbered = (
        select(messages.c.id, messages.c.seq, messages.c.turn_seq, place)
        .where(messages.c.session_id == _SOURCE, IN_HISTORY)
        .where(tuple_(messages.c.turn_seq, messages.c.seq) <= tuple_(_TURN_SEQ, _SEQ))
        .subquery("numbered")
    )
    opening = func.min(numbered.c.new_seq).over(partition_by=numbered.c.turn_seq)
    return select(numbered, opening.label("new_turn_seq")).subquery("placed")


_PLACED = _placed()


def _own(old_id: ColumnElement[Any]) -> ColumnElement[str]:
    """The id that the copy has of a row; null for null."""
    return _own_ids(old_id, "^([a-z]+_)", "")


def _own_ids(found_in: ColumnElement[Any], before: str, flags: str = "g") -> ColumnElement[str]:
    """A text in which the ids that stand behind a pattern are those of the copies."""
    return func.regexp_replace(found_in, before + _FIRST_PART, literal("\\1", Text).concat(_OWN), flags)


def _copied(
    table: Table, changed: Mapping[str, Any], *, own: Collection[str] = (), left_out: str = ""
) -> tuple[list[str], list[Any]]:
    """The columns of a copy, and what each is: what the row has, unless it is `changed` or one of the `own` ids."""
    changed = {"session_id": _FORK, **{name: _own(table.c[name]) for name in own}, **changed}
    columns = {each.name: changed.get(each.name, each) for each in table.c if each.name != left_out}
    return list(columns), list(columns.values())


def _session() -> Insert:
    """A summary is copied if the copied turns are all it covers."""
    opens = _PLACED.c.seq == _PLACED.c.turn_seq
    covered = select(func.max(_PLACED.c.new_seq)).where(opens, _PLACED.c.turn_seq <= sessions.c.summary_seq)
    fits = and_(sessions.c.summary_seq <= _TURN_SEQ, or_(_CUT_TURN.is_(None), sessions.c.summary_seq != _TURN_SEQ))
    line = func.jsonb_array_elements_text(sessions.c.summary_references).column_valued("line")
    lines = select(func.jsonb_agg(_own_ids(line, _LISTED, ""))).scalar_subquery()
    is_list = func.jsonb_typeof(sessions.c.summary_references) == "array"
    is_object = func.jsonb_typeof(sessions.c.metadata) == "object"
    given = {name: sessions.c[name] for name in ("owner", "title", "language", "time_zone", "agent")}
    columns = given | {
        "id": _FORK,
        "metadata": case((is_object, sessions.c.metadata), else_=literal({}, JSONB)).op("||")(_FORKED_FROM),
        "title_due_at": summary.title_due_in_copy(),
        "summary": case((fits, sessions.c.summary)),
        "summary_seq": case((fits, func.coalesce(covered.scalar_subquery(), 0)), else_=0),
        "summary_references": case((and_(fits, is_list), lines)),
        "created_at": func.now(),
        "updated_at": func.now(),
        "gaps": literal(0),
    }
    return insert(sessions).from_select(list(columns), select(*columns.values()).where(sessions.c.id == _SOURCE))


def _turns() -> Insert:
    """A turn that the cut divides ended there: it may be run again. No plan of the other session is decided on here."""
    is_divided = turns.c.id == _CUT_TURN
    unplanned = {"decided_plan_id": None, "shown_plan": None, "amends": False}
    report = cast(_own_ids(cast(turns.c.report, Text), _REPORTED), JSONB)
    names, values = _copied(
        turns,
        {
            "seq": _PLACED.c.new_seq,
            "status": case((is_divided, "cancelled"), else_=turns.c.status),
            "request": turns.c.request.op("||")(literal(unplanned, JSONB)),
            "report": case((is_divided, null()), else_=report),
            "error": case((is_divided, literal(error_row(turn_errors.forked()), JSONB)), else_=turns.c.error),
            "error_extra": case((is_divided, null()), else_=turns.c.error_extra),
            "idempotency_key": null(),
            "body_hash": null(),
            "facts_due_at": null(),
        },
        own=["id"],
    )
    opened = and_(turns.c.session_id == _SOURCE, turns.c.seq == _PLACED.c.seq, _PLACED.c.seq == _PLACED.c.turn_seq)
    return insert(turns).from_select(names, select(*values).select_from(turns.join(_PLACED, opened)))


def _is_answered(turn_id: ColumnElement[Any], call_id: ColumnElement[Any]) -> ColumnElement[bool]:
    """Whether a call's answer is copied too, if the cut divides its turn."""
    answer = messages.alias("answer")
    within = select(answer.c.id).where(answer.c.tool_call_id == call_id, answer.c.seq <= _SEQ).exists()
    return or_(turn_id.is_distinct_from(_CUT_TURN), within)


def _messages() -> Insert:
    """A call without its answer is left out, and what the provider wants back with the calls of its message."""
    call = func.jsonb_array_elements(messages.c.tool_calls).table_valued("value", with_ordinality="place")
    value = cast(call.c.value, JSONB)
    own = func.jsonb_set(value, literal(["id"], ARRAY(Text)), func.to_jsonb(_own(value["id"].astext)))
    calls = (
        select(func.jsonb_agg(case((func.jsonb_typeof(value["id"]) == "string", own), else_=value)))
        .select_from(call)
        .where(_is_answered(messages.c.turn_id, value["id"].astext))
        .scalar_subquery()
    )
    reference = func.replace(messages.c.content, messages.c.tool_call_id, _own(messages.c.tool_call_id))
    is_list = func.jsonb_typeof(messages.c.tool_calls) == "array"
    names, values = _copied(
        messages,
        {
            "seq": _PLACED.c.new_seq,
            "turn_seq": _PLACED.c.new_turn_seq,
            "content": case((messages.c.role == "tool", reference), else_=messages.c.content),
            "tool_calls": case((is_list, calls), else_=messages.c.tool_calls),
            "opaque": case((and_(messages.c.turn_id == _CUT_TURN, is_list), null()), else_=messages.c.opaque),
            "attachments": cast(_own_ids(cast(messages.c.attachments, Text), _CARRIED), JSONB),
        },
        own=["id", "turn_id", "tool_call_id"],
    )
    placed = messages.join(_PLACED, _PLACED.c.id == messages.c.id)
    return insert(messages).from_select(names, select(*values).select_from(placed))


def _attachments() -> Insert:
    """The files that the copied messages carry."""
    own = _own(attachments.c.id)
    file = func.jsonb_array_elements(messages.c.attachments).table_valued("value")
    carried = select(cast(file.c.value, JSONB)["id"].astext).select_from(messages).join(file, literal(True))
    names, values = _copied(attachments, {}, own=["id"], left_out="seq")
    copied = select(*values).where(attachments.c.session_id == _SOURCE)
    copied = copied.where(own.in_(carried.where(messages.c.session_id == _FORK))).order_by(*oldest_first(attachments))
    return insert(attachments).from_select(names, copied)


def _calls() -> Insert:
    read = cast(_own_ids(cast(tool_calls.c.args, Text), _READ), JSONB)
    names, values = _copied(
        tool_calls,
        {
            "args": case((tool_calls.c.tool_name == session.READ_ATTACHMENT, read), else_=tool_calls.c.args),
            "covered": cast(_own_ids(cast(tool_calls.c.covered, Text), f"({_ORIGINS})"), JSONB),
        },
        own=["id", "turn_id", "message_id", "plan_id", "settled_by"],
        left_out="seq",
    )
    made = (
        select(*values)
        .select_from(tool_calls.join(_PLACED, _PLACED.c.id == tool_calls.c.message_id))
        .where(tool_calls.c.session_id == _SOURCE, _is_answered(tool_calls.c.turn_id, tool_calls.c.id))
        .order_by(*oldest_first(tool_calls))
    )
    return insert(tool_calls).from_select(names, made)


def _results() -> Insert:
    """They count for the fork from the oldest on, as when they were stored."""
    copy = tool_calls.alias("copy")
    order = (func.coalesce(tool_results.c.stored_before, 0), *oldest_first(tool_calls))
    before = func.sum(tool_calls.c.size_bytes).over(order_by=order, rows=(None, -1))
    names, values = _copied(tool_results, {"tool_call_id": copy.c.id, "stored_before": func.coalesce(before, 0)})
    kept = tool_results.join(tool_calls, tool_calls.c.id == tool_results.c.tool_call_id)
    kept = kept.join(copy, copy.c.id == _own(tool_calls.c.id))
    mine = (tool_calls.c.session_id == _SOURCE, copy.c.session_id == _FORK)
    return insert(tool_results).from_select(names, select(*values).select_from(kept).where(*mine))


def _states() -> Insert:
    """As they are now: whether a tool works is no matter of the history."""
    names, values = _copied(tool_states, {})
    return insert(tool_states).from_select(names, select(*values).where(tool_states.c.session_id == _SOURCE))


def _counted() -> Update:
    stored = tool_results.join(tool_calls, tool_calls.c.id == tool_results.c.tool_call_id)
    size = select(func.coalesce(func.sum(tool_calls.c.size_bytes), 0)).select_from(stored)
    answered = select(turns.c.id).where(turns.c.session_id == _FORK, turns.c.status == "completed")
    return (
        update(sessions)
        .where(sessions.c.id == _FORK)
        .values(
            next_seq=select(func.count() + 1).where(messages.c.session_id == _FORK).scalar_subquery(),
            last_turn_id=answered.order_by(turns.c.seq.desc()).limit(1).scalar_subquery(),
            result_bytes=size.where(tool_results.c.session_id == _FORK).scalar_subquery(),
        )
    )


_CUT = _cut()
_COPY = (_session(), _turns(), _messages(), _attachments(), _calls(), _results(), _states(), _counted())


@dataclass(frozen=True, slots=True)
class Said:
    """What one of the two said."""

    role: Literal["user", "assistant"]
    text: str


async def import_history(
    connection: AsyncConnection, session_id: str, said: Sequence[Said], *, key: str, now: datetime
) -> None:
    """Stores the newest turns in a session that has none yet. The last of them is found under the idempotency `key`."""
    exchanges = _exchanges(said)[-MAX_TURNS:]
    if not exchanges:
        return
    turn_rows: list[dict[str, Any]] = []
    message_rows: list[dict[str, Any]] = []
    for question, answer in exchanges:
        turn = {"id": new_id("turn", now), "session_id": session_id, "seq": len(message_rows) + 1}
        for role, words in (("user", question), ("assistant", answer)):
            if words:
                of_turn = {"session_id": session_id, "turn_id": turn["id"], "turn_seq": turn["seq"]}
                place = {"id": new_id("msg", now), "seq": len(message_rows) + 1, "created_at": now}
                message_rows.append({**of_turn, **place, "role": role, "content": words[:MAX_CHARS]})
        turn_rows.append(turn | _ended(answer, now=now) | {"idempotency_key": None})
    turn_rows[-1]["idempotency_key"] = key
    await connection.execute(insert(turns), turn_rows)
    await connection.execute(insert(messages), message_rows)
    answered = [turn["id"] for turn in turn_rows if turn["status"] == "completed"]
    held = {"next_seq": len(message_rows) + 1, "last_turn_id": answered[-1] if answered else None}
    held["title"] = first_words(exchanges[0][0])
    await connection.execute(update(sessions).where(sessions.c.id == session_id).values(held))


def _exchanges(said: Sequence[Said]) -> list[tuple[str, str]]:
    """Returns what the user said, each with what was answered; empty if nothing was, which only the last can be."""
    exchanges: list[tuple[str, str]] = []
    for each in said:
        if each.role == "user" and (not exchanges or exchanges[-1][1]):
            exchanges.append((each.text, ""))
        elif exchanges:
            question, answer = exchanges.pop()
            if each.role == "user":
                question = f"{question}\n\n{each.text}"
            else:
                answer = f"{answer}\n\n{each.text}".strip()
            exchanges.append((question, answer))
    return exchanges


def _ended(answer: str, *, now: datetime) -> dict[str, Any]:
    return {
        "status": "completed" if answer else "cancelled",
        "report": asdict(_REPORT) if answer else None,
        "error": None if answer else error_row(turn_errors.cancelled()),
        "request": {"force_web_search": False},
        "created_at": now,
        "finished_at": now,
    }
