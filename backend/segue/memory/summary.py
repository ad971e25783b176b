"""The rolling summary of a session, which a model writes. Owns the summary columns of `sessions`.

A summary only grows at its end, so its beginning stays as it is; once it is too long, its oldest lines are condensed.
The wait for a next try grows with each: a failure is not tried at every turn.
"""

import re
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, case, func, null, select, update

from segue.db.engine import Connection
from segue.db.models import sessions
from segue.db.rows import LEASE, claim_row, claiming, due_in, postpone_row

SECTIONS = ("Wishes", "Facts", "Done", "Open")
STATE = SECTIONS[-1]  # the one that each summary writes anew
SHARE = 1 / 4  # of a summary: what the next messages may add, and what its older half is condensed to
MAX_LINE_CHARS = 1000
CHARS_PER_TOKEN = 8  # more is no text
MOST_DOUBLINGS = 6

_NO_WORDS = re.compile(r'"[^"\n]*"\s*:|```\w*|\bnull\b')  # in JSON, of which only the values are said

SummaryLines = dict[str, list[str]]  # of a summary, by section; those before its first heading are under ""


def says_anything(text: str) -> bool:
    """Whether a text has words. "{}" and `{"Facts": []}` have none."""
    return any(map(str.isalnum, _NO_WORDS.sub("", text)))


def read_lines(summary: str) -> SummaryLines:
    """Returns the lines of a summary by section. Other headings are lines, unless all four are: a model translates."""
    lines: SummaryLines = {name: [] for name in ("", *SECTIONS)}
    said = [line for line in map(str.strip, summary.splitlines()) if line and not line.startswith("```")]
    named = {line: line.strip("#*:： ").capitalize() for line in said}
    marked = [line for line in said if line[0] == "#"]
    if len(marked) == len(SECTIONS) and set(SECTIONS).isdisjoint(named.values()):
        named |= zip(marked, SECTIONS, strict=True)
    section = ""
    for line in said:
        if named[line] in SECTIONS:
            section = named[line]
        else:
            lines[section].append(line[:MAX_LINE_CHARS])
    return lines


def written(lines: SummaryLines) -> str:
    return "\n".join("\n".join([f"## {name}", *of] if name else of) for name, of in lines.items() if of)


def carried_on(summary: SummaryLines, added: SummaryLines) -> SummaryLines:
    """Returns a summary with new lines added at its end; open points are stated anew, if any section is."""
    joined = {name: list(dict.fromkeys([*of, *added[name]])) for name, of in summary.items()}
    return {**joined, STATE: added[STATE] if any(added[name] for name in SECTIONS) else summary[STATE]}


def parted(lines: SummaryLines) -> tuple[SummaryLines, SummaryLines]:
    """Returns the older half of each section's lines, and the others. Open points count as new."""
    halves = {name: 0 if name == STATE else (len(of) + 1) // 2 for name, of in lines.items()}
    old = {name: of[: halves[name]] for name, of in lines.items()}
    return old, {name: of[halves[name] :] for name, of in lines.items()}


def fitting(lines: SummaryLines, most: int, count: Callable[[str], int]) -> str:
    """Returns a summary in at most so many tokens, if need be without the oldest lines of its longest sections."""
    sizes = {name: deque(count(line) + 1 for line in of) for name, of in lines.items()}
    totals = {name: sum(of) for name, of in sizes.items()}
    room = most - sum(count(name) + 3 for name in SECTIONS)
    while (total := sum(totals.values())) > room and total:
        longest = max(totals, key=totals.__getitem__)
        totals[longest] -= sizes[longest].popleft()
    return written({name: of[len(of) - len(sizes[name]) :] for name, of in lines.items()})


@dataclass(frozen=True, slots=True)
class DueSummary:
    """`summary` covers the turns up to `after`; those up to `until` are to go in. `time_zone` is the session's."""

    owner: str
    session_id: str
    summary: str | None
    after: int
    until: int
    time_zone: str


@dataclass(frozen=True, slots=True)
class SummaryState:
    """The summary covers the turns up to `covers_until_seq`; those up to `due_until_seq` are due to go in."""

    chars: int
    covers_until_seq: int
    due_until_seq: int | None
    tries: int


async def summary_state(connection: Connection, session_id: str) -> SummaryState:
    """Returns how far a session's summary is, without its text. For ops."""
    is_due = sessions.c.summary_due_at.is_not(None)
    chars, due_until = func.coalesce(func.length(sessions.c.summary), 0), case((is_due, sessions.c.summary_until))
    statement = select(chars, sessions.c.summary_seq, due_until, sessions.c.summary_tries)
    return SummaryState(*(await connection.execute(statement.where(sessions.c.id == session_id))).one())


def due_columns(cut_off: ColumnElement[int], seen_seq: ColumnElement[int]) -> dict[str, ColumnElement[object]]:
    """Returns the columns of its session that the statement finishing a turn sets. `cut_off` is null if nothing is due.
    Marks nothing if a summary is due already, or has changed since the turn saw it: a later turn has a better cut-off.
    """
    falls_due = cut_off.is_not(None) & sessions.c.summary_due_at.is_(None) & (sessions.c.summary_seq == seen_seq)
    return {
        "summary_until": case((falls_due, cut_off), else_=sessions.c.summary_until),
        "summary_due_at": case((falls_due, func.now()), else_=sessions.c.summary_due_at),
    }


def columns_before(cut: int) -> dict[str, object]:
    """Returns a session's columns once its turns from seq `cut` on leave its history, and so its summary."""
    has_them = sessions.c.summary_seq >= cut
    emptied: dict[str, Any] = {"summary": null(), "summary_references": null(), "summary_seq": 0}
    kept = {name: case((has_them, empty), else_=sessions.c[name]) for name, empty in emptied.items()}
    return {**kept, "summary_until": None, "summary_due_at": None, "summary_tries": 0}


_TRIES = sessions.c.summary_tries
_NEXT_TRY = func.now() + func.power(2, func.least(_TRIES, MOST_DOUBLINGS)) * LEASE
_READ = sessions.c["owner", "id", "summary", "summary_seq", "summary_until", "time_zone"]
_CLAIM = claiming(sessions, "summary_due_at", read=_READ, summary_due_at=_NEXT_TRY, summary_tries=_TRIES + 1)


async def claim_summary(connection: Connection, *, lease_s: float) -> DueSummary | None:
    """Claims the summary due for longest, for `lease_s` seconds, longer with every try. Returns None if none is due."""
    due = await claim_row(connection, _CLAIM, lease_s=lease_s)
    return DueSummary(*tuple[Any, ...](due)) if due else None


async def give_back_summary(connection: Connection, due: DueSummary, *, wait_s: float) -> None:
    """Makes a claimed summary due again in `wait_s` seconds, which counts as no try."""
    values = {"summary_due_at": due_in(wait_s), "summary_tries": _TRIES - 1}
    await postpone_row(connection, sessions, "summary_due_at", due.session_id, _TRIES > 0, **values)


async def store_summary(
    connection: Connection, due: DueSummary, summary: str | None, *, covers: int, references: Sequence[str]
) -> bool:
    """Stores the next summary and the lines that list the results of the turns it covers, which change only with it.
    Returns False if another process has stored one since, turns have left the history, or the session is gone.
    """
    more = sessions.c.summary_until > covers
    next_one = {"summary": summary, "summary_seq": covers, "summary_references": list(references)}
    due_again = {"summary_tries": 0, "summary_due_at": case((more, func.now()))}
    stored = (
        update(sessions)
        .where(sessions.c.id == due.session_id, sessions.c.summary_seq == due.after)
        .where(sessions.c.summary_until == due.until)
        .values({**next_one, **due_again})
    )
    return await connection.scalar(stored.returning(sessions.c.id)) is not None


async def forget_reference(connection: Connection, session_id: str, tool_call_id: str) -> None:
    """Takes the line of a call out of those that are listed with a summary."""
    line = func.jsonb_array_elements_text(sessions.c.summary_references).column_valued("line")
    kept = select(func.jsonb_agg(line)).where(~line.contains(tool_call_id)).scalar_subquery()
    listed = (sessions.c.id == session_id, func.jsonb_typeof(sessions.c.summary_references) == "array")
    await connection.execute(update(sessions).where(*listed).values(summary_references=kept))
