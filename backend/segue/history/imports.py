"""A conversation that was held elsewhere, as the first turns of a session: what a client sends that keeps its own.

Its turns are stored as ended. The model is shown their words as it is those of any other; no tool had been called, and
no fact is noted from them.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Literal

from sqlalchemy import insert, update
from sqlalchemy.ext.asyncio import AsyncConnection

from segue.db.models import messages, sessions, turns
from segue.domain import turn_errors
from segue.domain.ids import new_id
from segue.domain.session import AcknowledgementReport, MemoryReport, TurnReport, Usage, WebSearchReport
from segue.memory.session_store import first_words
from segue.turns.terminations import error_row

MAX_TURNS = 100  # the newest: the window shows no more, and there is no summary of what is before
MAX_CHARS = 32_000  # of a message

_REPORT = TurnReport(AcknowledgementReport(), None, WebSearchReport(), MemoryReport(), Usage(), model="unknown")


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
        for role, text in (("user", question), ("assistant", answer)):
            if text:
                of_turn = {"session_id": session_id, "turn_id": turn["id"], "turn_seq": turn["seq"]}
                place = {"id": new_id("msg", now), "seq": len(message_rows) + 1, "created_at": now}
                message_rows.append({**of_turn, **place, "role": role, "content": text[:MAX_CHARS]})
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
