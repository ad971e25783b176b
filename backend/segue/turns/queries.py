"""Turns as their owner reads them: how they stand, and the answer of one that is completed, put together again.

Only reads. The rows are `store.py`'s to write while a turn lives and `endings.py`'s when it ends without an answer.
"""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from pydantic import TypeAdapter
from sqlalchemy import Row, Select, select
from sqlalchemy.ext.asyncio import AsyncConnection

from segue.db.engine import Database
from segue.db.models import OPEN_TURNS, sessions, turns
from segue.domain.errors import AppError, NotFound
from segue.domain.session import ChatAnswer, Message, Outcome, Turn, TurnError, TurnKey, TurnReport
from segue.domain.tool import ToolCall
from segue.memory.history import final_messages
from segue.tools.results import calls_of_turns

_OTHER = turns.alias("other")
_read_report = TypeAdapter(TurnReport).validate_python


async def get_turn(connection: AsyncConnection, owner: str, session_id: str, turn_id: str) -> Turn:
    """Raises NotFound for a missing turn and for somebody else's."""
    rows = (await connection.execute(_owned(owner, session_id).where(turns.c.id == turn_id))).all()
    if not rows:
        raise NotFound("turn")
    return (await _turns(connection, rows))[0]


async def list_turns(
    connection: AsyncConnection, owner: str, session_id: str, *, before: str | None, limit: int
) -> list[Turn]:
    """Newest first, by arrival: ids are made before that, and by several clocks."""
    statement = _owned(owner, session_id).order_by(turns.c.seq.desc()).limit(limit)
    if before is not None:
        statement = statement.where(turns.c.seq < select(_OTHER.c.seq).where(_OTHER.c.id == before).scalar_subquery())
    return await _turns(connection, (await connection.execute(statement)).all())


async def find_turn(connection: AsyncConnection, owner: str, session_id: str, turn_id: str) -> TurnKey:
    """Raises NotFound for a session or a turn that is missing or somebody else's."""
    found = (
        select(turns.c.seq)
        .select_from(sessions)
        .outerjoin(turns, (turns.c.session_id == sessions.c.id) & (turns.c.id == turn_id))
        .where(sessions.c.id == session_id, sessions.c.owner == owner)
    )
    row = (await connection.execute(found)).one_or_none()
    if row is None:
        raise NotFound("session")
    if row.seq is None:
        raise NotFound("turn")
    return TurnKey(session_id, turn_id, row.seq)


async def turn_ids(connection: AsyncConnection, session_id: str) -> list[str]:
    return list((await connection.execute(select(turns.c.id).where(turns.c.session_id == session_id))).scalars())


async def outcomes_of(database: Database, turn_ids: Sequence[str]) -> dict[str, Outcome]:
    """The outcome of those of the turns that have ended, by id; NotFound, as a value, for one that was deleted."""
    async with database.read_only() as connection:
        rows = (await connection.execute(select(turns).where(turns.c.id.in_(turn_ids)))).all()
        ended = await _turns(connection, [row for row in rows if row.status not in OPEN_TURNS])
    outcomes: dict[str, Outcome] = {turn.turn_id: turn.answer for turn in ended if turn.answer}
    outcomes |= {turn.turn_id: AppError(**asdict(turn.error)) for turn in ended if turn.error}
    return outcomes | {turn_id: NotFound("session") for turn_id in set(turn_ids) - {row.id for row in rows}}


def chat_answer(turn: TurnKey, message: Message, report: TurnReport, calls: tuple[ToolCall, ...]) -> ChatAnswer:
    return ChatAnswer(
        session_id=turn.session_id,
        turn_id=turn.turn_id,
        status="completed",
        message=message,
        acknowledgement=report.acknowledgement,
        plan=report.plan,
        tool_calls=calls,
        web_search=report.web_search,
        memory_used=report.memory_used,
        usage=report.usage,
        model=report.model,
    )


async def _turns(connection: AsyncConnection, rows: Sequence[Row[Any]]) -> list[Turn]:
    completed = [row.id for row in rows if row.report is not None]
    messages = await final_messages(connection, completed) if completed else {}
    calls = await calls_of_turns(connection, completed) if completed else {}
    return [
        Turn(
            turn_id=row.id,
            session_id=row.session_id,
            status=row.status,
            attempts=row.attempts,
            created_at=row.created_at,
            started_at=row.started_at,
            finished_at=row.finished_at,
            error=TurnError(**row.error) if row.error else None,
            answer=_answer(row, messages[row.id], calls.get(row.id, ())) if row.id in messages else None,
        )
        for row in rows
    ]


def _answer(row: Row[Any], message: Message, calls: tuple[ToolCall, ...]) -> ChatAnswer:
    return chat_answer(TurnKey(row.session_id, row.id, row.seq), message, _read_report(row.report), calls)


def _owned(owner: str, session_id: str) -> Select[Any]:
    return (
        select(*turns.c)
        .join(sessions, sessions.c.id == turns.c.session_id)
        .where(sessions.c.id == session_id, sessions.c.owner == owner)
    )
