"""A session that begins with a history: a fork, with that of another session, or one that a client has imported.

A fork copies messages up to one, with their files, turns, tool calls and results, and the health of tools; of plans
only the turns' reports. A copied row's id is derived from the fork's id and the old one, so each statement knows the
ids of the others, and none reads a row into this process. Imported turns are stored as ended, without calls or facts.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Literal

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY, JSONB, insert

from segue.db.engine import Connection
from segue.db.models import OPEN_TURNS, attachments, messages, sessions, tool_calls, tool_results, tool_states, turns
from segue.db.rows import made_before, oldest_first
from segue.domain import session
from segue.domain.errors import app_error, existing, turn_cancelled
from segue.domain.ids import new_id
from segue.memory.history import IN_HISTORY
from segue.memory.session_store import check_session, get_session, title_due_in_copy
from segue.turns.terminations import error_row

KEPT_OF_AN_ID = 13  # its last characters, which are random; those before are the last ones of the fork's id
MAX_TURNS = 100  # of an import, the newest: the window shows no more, and there is no summary of what is before
MAX_CHARS = 32_000  # of a message
_OF_NOTHING = (session.WebSearchReport(), session.MemoryReport(), session.Usage())
_REPORT = session.TurnReport(session.AcknowledgementReport(), None, *_OF_NOTHING, model="unknown")
_SOURCE, _FORK, _OWN = (sa.bindparam(name, type_=sa.Text) for name in ("source", "fork", "own"))
_TURN_SEQ, _SEQ = sa.bindparam("cut_turn_seq", type_=sa.BigInteger), sa.bindparam("cut_seq", type_=sa.BigInteger)
_CUT_TURN = sa.bindparam("cut_turn", type_=sa.Text)  # the turn that the cut divides, null if it is between two
_FORKED_FROM = sa.bindparam("forked_from", type_=JSONB)
_FIRST_PART = "[0-9a-z]{13}(?=[0-9a-z]{13}(?![0-9a-z]))"
# In what a turn reports: its plan, the calls of the plan's steps, and where their arguments came from.
_ORIGINS = '": "(?:(?:message|program|quoted):msg|result:call)_'
_REPORTED = f'("(?:tool_call_id|message_id|origin_message_id|plan_id)": "(?:call|msg|plan)_|"id": "plan_|{_ORIGINS})'
_LISTED = '("tool_call_id":"call_)'
_CARRIED, _READ = '("id": "att_)', '("attachment_id": "att_)'
_APPROVED, _ASKED = '("message_id": "msg_)', '("asked_in": "turn_)'


async def forked_before(connection: Connection, owner: str, fork_id: str | None) -> session.Session | None:
    """Returns the fork of this id, None if there is none. Raises AppError `idempotency_key_reused`."""
    made = await made_before(connection, sessions, owner, fork_id, locks=False)
    return await get_session(connection, owner, made.id) if made is not None else None


async def fork_session(
    connection: Connection, owner: str, session_id: str, message_id: str, fork_id: str | None = None, *, now: datetime
) -> session.Session:
    """Returns a new session with the history of this one up to and with a message, in the caller's transaction, which
    it begins. Raises NotFound, AppError `not_in_history`, and `turn_in_progress` if a turn up to there has not ended.
    """
    await connection.execute(sa.text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ"))
    await check_session(connection, owner, session_id)
    found = await connection.execute(_CUT, {"source": session_id, "message": message_id})
    cut = existing("message", found.one_or_none())
    if cut.branch is not None:
        raise app_error("not_in_history")
    if cut.busy is not None:
        raise app_error("turn_in_progress", extra={"turn_id": cut.busy})
    fork_id = fork_id or new_id("ses", now)
    values = {
        "source": session_id,
        "fork": fork_id,
        "own": fork_id[-KEPT_OF_AN_ID:],
        "cut_turn_seq": cut.turn_seq,
        "cut_seq": cut.seq,
        "cut_turn": cut.turn_id if cut.is_divided else None,
        "forked_from": {"forked_from": {"session_id": session_id, "message_id": message_id}},
    }
    make, *copy = _COPY
    if (await connection.execute(make, values)).rowcount:  # else the same request has made it at this moment
        for statement in copy:
            await connection.execute(statement, values)
    return await get_session(connection, owner, fork_id)


def _cut() -> sa.Select[*tuple[Any, ...]]:
    """A turn that has ended may stand behind one that runs: it was cancelled while it waited."""
    rest = messages.alias("rest")
    of_turn = (rest.c.session_id == messages.c.session_id, rest.c.turn_seq == messages.c.turn_seq)
    up_to = (turns.c.session_id == messages.c.session_id, turns.c.seq <= messages.c.turn_seq)
    busy = sa.select(turns.c.id).where(*up_to, turns.c.status.in_(OPEN_TURNS)).order_by(turns.c.seq).limit(1)
    is_divided = sa.select(rest.c.id).where(*of_turn, rest.c.seq > messages.c.seq, rest.c.branch.is_(None)).exists()
    found = (busy.scalar_subquery().label("busy"), is_divided.label("is_divided"))
    cut = sa.select(*(messages.c[name] for name in ("seq", "turn_seq", "turn_id", "branch")), *found)
    return cut.where(messages.c.session_id == _SOURCE, messages.c.id == sa.bindparam("message"))


def _placed() -> sa.FromClause:
    """The messages to copy, and their places. A question that came while another turn ran stands before its answer."""
    place = sa.func.row_number().over(order_by=(messages.c.turn_seq, messages.c.seq)).label("new_seq")
    numbered = (
        sa.select(messages.c.id, messages.c.seq, messages.c.turn_seq, place)
        .where(messages.c.session_id == _SOURCE, IN_HISTORY)
        .where(sa.tuple_(messages.c.turn_seq, messages.c.seq) <= sa.tuple_(_TURN_SEQ, _SEQ))
        .subquery("numbered")
    )
    opening = sa.func.min(numbered.c.new_seq).over(partition_by=numbered.c.turn_seq)
    return sa.select(numbered, opening.label("new_turn_seq")).subquery("placed")


_PLACED = _placed()


def _own(old_id: sa.ColumnElement[Any]) -> sa.ColumnElement[str]:
    """The id that the copy has of a row; null for null."""
    return _own_ids(old_id, "^([a-z]+_)", "")


def _own_ids(found_in: sa.ColumnElement[Any], before: str, flags: str = "g") -> sa.ColumnElement[str]:
    """A text in which the ids that stand behind a pattern are those of the copies."""
    return sa.func.regexp_replace(found_in, before + _FIRST_PART, sa.literal("\\1", sa.Text).concat(_OWN), flags)


def _own_json(column: sa.ColumnElement[Any], before: str) -> sa.ColumnElement[Any]:
    return sa.cast(_own_ids(sa.cast(column, sa.Text), before), JSONB)


def _copied(
    table: sa.Table, changed: Mapping[str, Any], *, own: Collection[str] = (), left_out: str = ""
) -> tuple[list[str], list[Any]]:
    """The columns of a copy with their values: the row's, unless `changed` or one of the `own` ids."""
    changed = {"session_id": _FORK, **{name: _own(table.c[name]) for name in own}, **changed}
    columns = {each.name: changed.get(each.name, each) for each in table.c if each.name != left_out}
    return list(columns), list(columns.values())


def _session() -> sa.Insert:
    """A summary is copied if the copied turns are all it covers."""
    opens = _PLACED.c.seq == _PLACED.c.turn_seq
    covered = sa.select(sa.func.max(_PLACED.c.new_seq)).where(opens, _PLACED.c.turn_seq <= sessions.c.summary_seq)
    fits = (sessions.c.summary_seq <= _TURN_SEQ) & (_CUT_TURN.is_(None) | (sessions.c.summary_seq != _TURN_SEQ))
    line = sa.func.jsonb_array_elements_text(sessions.c.summary_references).column_valued("line")
    lines = sa.select(sa.func.jsonb_agg(_own_ids(line, _LISTED, ""))).scalar_subquery()
    is_list = sa.func.jsonb_typeof(sessions.c.summary_references) == "array"
    is_object = sa.func.jsonb_typeof(sessions.c.metadata) == "object"
    copied = {name: sessions.c[name] for name in ("owner", "title", "language", "time_zone", "agent")}
    columns = copied | {
        "id": _FORK,
        "metadata": sa.case((is_object, sessions.c.metadata), else_=sa.literal({}, JSONB)).op("||")(_FORKED_FROM),
        "title_due_at": title_due_in_copy(),
        "summary": sa.case((fits, sessions.c.summary)),
        "summary_seq": sa.case((fits, sa.func.coalesce(covered.scalar_subquery(), 0)), else_=0),
        "summary_references": sa.case((sa.and_(fits, is_list), lines)),
        "created_at": sa.func.now(),
        "updated_at": sa.func.now(),
        "gaps": sa.literal(0),
    }
    source = sa.select(*columns.values()).where(sessions.c.id == _SOURCE)
    return insert(sessions).from_select(list(columns), source).on_conflict_do_nothing()


def _turns() -> sa.Insert:
    """A turn that the cut divides ended there: it may be run again. No plan of the other session is decided on here."""
    is_divided = turns.c.id == _CUT_TURN
    unplanned = {"decided_plan_id": None, "shown_plan": None, "amends": False}
    report = _own_json(turns.c.report, _REPORTED)
    names, values = _copied(
        turns,
        {
            "seq": _PLACED.c.new_seq,
            "status": sa.case((is_divided, "cancelled"), else_=turns.c.status),
            "request": turns.c.request.op("||")(sa.literal(unplanned, JSONB)),
            "report": sa.case((is_divided, sa.null()), else_=report),
            "error": sa.case((is_divided, sa.literal(error_row(app_error("forked")), JSONB)), else_=turns.c.error),
            "error_extra": sa.case((is_divided, sa.null()), else_=turns.c.error_extra),
            **dict.fromkeys(("idempotency_key", "body_hash", "facts_due_at", "run", "timeline"), sa.null()),
        },
        own=["id"],
    )
    opened = sa.and_(turns.c.session_id == _SOURCE, turns.c.seq == _PLACED.c.seq, _PLACED.c.seq == _PLACED.c.turn_seq)
    return sa.insert(turns).from_select(names, sa.select(*values).select_from(turns.join(_PLACED, opened)))


def _is_answered(turn_id: sa.ColumnElement[Any], call_id: sa.ColumnElement[Any]) -> sa.ColumnElement[bool]:
    """Whether a call's answer is copied too, if the cut divides its turn."""
    answer = messages.alias("answer")
    within = sa.select(answer.c.id).where(answer.c.tool_call_id == call_id, answer.c.seq <= _SEQ).exists()
    return sa.or_(turn_id.is_distinct_from(_CUT_TURN), within)


def _messages() -> sa.Insert:
    """A call without its answer is left out, and what the provider wants back with the calls of its message."""
    call = sa.func.jsonb_array_elements(messages.c.tool_calls).table_valued("value", with_ordinality="place")
    value = sa.cast(call.c.value, JSONB)
    own = sa.func.jsonb_set(value, sa.literal(["id"], ARRAY(sa.Text)), sa.func.to_jsonb(_own(value["id"].astext)))
    calls = (
        sa.select(sa.func.jsonb_agg(sa.case((sa.func.jsonb_typeof(value["id"]) == "string", own), else_=value)))
        .select_from(call)
        .where(_is_answered(messages.c.turn_id, value["id"].astext))
        .scalar_subquery()
    )
    reference = sa.func.replace(messages.c.content, messages.c.tool_call_id, _own(messages.c.tool_call_id))
    is_list = sa.func.jsonb_typeof(messages.c.tool_calls) == "array"
    names, values = _copied(
        messages,
        {
            "seq": _PLACED.c.new_seq,
            "turn_seq": _PLACED.c.new_turn_seq,
            "content": sa.case((messages.c.role == "tool", reference), else_=messages.c.content),
            "tool_calls": sa.case((is_list, calls), else_=messages.c.tool_calls),
            "opaque": sa.case((sa.and_(messages.c.turn_id == _CUT_TURN, is_list), sa.null()), else_=messages.c.opaque),
            "attachments": _own_json(messages.c.attachments, _CARRIED),
        },
        own=["id", "turn_id", "tool_call_id"],
    )
    placed = messages.join(_PLACED, _PLACED.c.id == messages.c.id)
    return sa.insert(messages).from_select(names, sa.select(*values).select_from(placed))


def _attachments() -> sa.Insert:
    """The files that the copied messages carry."""
    own = _own(attachments.c.id)
    file = sa.func.jsonb_array_elements(messages.c.attachments).table_valued("value")
    carried = sa.select(sa.cast(file.c.value, JSONB)["id"].astext).select_from(messages).join(file, sa.literal(True))
    names, values = _copied(attachments, {}, own=["id"], left_out="seq")
    copied = sa.select(*values).where(attachments.c.session_id == _SOURCE)
    copied = copied.where(own.in_(carried.where(messages.c.session_id == _FORK))).order_by(*oldest_first(attachments))
    return sa.insert(attachments).from_select(names, copied)


def _calls() -> sa.Insert:
    read = _own_json(tool_calls.c.args, _READ)
    names, values = _copied(
        tool_calls,
        {
            "args": sa.case((tool_calls.c.tool_name == session.READ_ATTACHMENT, read), else_=tool_calls.c.args),
            "covered": _own_json(tool_calls.c.covered, f"({_ORIGINS})"),
            "approval": _own_json(tool_calls.c.approval, _APPROVED),
            "effect": _own_json(tool_calls.c.effect, _ASKED),
        },
        own=["id", "turn_id", "message_id", "plan_id", "settled_by"],
        left_out="seq",
    )
    rows = (
        sa.select(*values)
        .select_from(tool_calls.join(_PLACED, _PLACED.c.id == tool_calls.c.message_id))
        .where(tool_calls.c.session_id == _SOURCE, _is_answered(tool_calls.c.turn_id, tool_calls.c.id))
        .order_by(*oldest_first(tool_calls))
    )
    return sa.insert(tool_calls).from_select(names, rows)


def _results() -> sa.Insert:
    """They count for the fork from the oldest on, as when they were stored."""
    copy = tool_calls.alias("copy")
    order = (sa.func.coalesce(tool_results.c.stored_before, 0), *oldest_first(tool_calls))
    before = sa.func.sum(tool_calls.c.size_bytes).over(order_by=order, rows=(None, -1))
    names, values = _copied(tool_results, {"tool_call_id": copy.c.id, "stored_before": sa.func.coalesce(before, 0)})
    kept = tool_results.join(tool_calls, tool_calls.c.id == tool_results.c.tool_call_id)
    kept = kept.join(copy, copy.c.id == _own(tool_calls.c.id))
    mine = (tool_calls.c.session_id == _SOURCE, copy.c.session_id == _FORK)
    return sa.insert(tool_results).from_select(names, sa.select(*values).select_from(kept).where(*mine))


def _states() -> sa.Insert:
    """Copies the states as they are now: whether a tool works does not depend on the history."""
    names, values = _copied(tool_states, {})
    return sa.insert(tool_states).from_select(names, sa.select(*values).where(tool_states.c.session_id == _SOURCE))


def _counted() -> sa.Update:
    stored = tool_results.join(tool_calls, tool_calls.c.id == tool_results.c.tool_call_id)
    size = sa.select(sa.func.coalesce(sa.func.sum(tool_calls.c.size_bytes), 0)).select_from(stored)
    answered = sa.select(turns.c.id).where(turns.c.session_id == _FORK, turns.c.status == "completed")
    return (
        sa.update(sessions)
        .where(sessions.c.id == _FORK)
        .values(
            next_seq=sa.select(sa.func.count() + 1).where(messages.c.session_id == _FORK).scalar_subquery(),
            last_turn_id=answered.order_by(turns.c.seq.desc()).limit(1).scalar_subquery(),
            result_bytes=size.where(tool_results.c.session_id == _FORK).scalar_subquery(),
        )
    )


_CUT = _cut()
_COPY = (_session(), _turns(), _messages(), _attachments(), _calls(), _results(), _states(), _counted())


@dataclass(frozen=True, slots=True)
class Said:
    """A message of the user or the assistant."""

    role: Literal["user", "assistant"]
    text: str


async def import_history(
    connection: Connection, session_id: str, imported: Sequence[Said], *, key: str, now: datetime
) -> None:
    """Stores the newest turns in a session that has none yet. The last of them is found under the idempotency `key`."""
    exchanges = _exchanges(imported)[-MAX_TURNS:]
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
    await connection.execute(sa.insert(turns), turn_rows)
    await connection.execute(sa.insert(messages), message_rows)
    answered = [turn["id"] for turn in turn_rows if turn["status"] == "completed"]
    changes = {"next_seq": len(message_rows) + 1, "last_turn_id": answered[-1] if answered else None}
    changes["title"] = session.first_words(exchanges[0][0])
    await connection.execute(sa.update(sessions).where(sessions.c.id == session_id).values(changes))


def _exchanges(messages: Sequence[Said]) -> list[tuple[str, str]]:
    """Returns the user's messages, each with its answer; empty if there is none, as only the last may lack one."""
    exchanges: list[tuple[str, str]] = []
    for each in messages:
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
        "error": None if answer else error_row(turn_cancelled()),
        "request": {"force_web_search": False},
        "created_at": now,
        "finished_at": now,
    }
