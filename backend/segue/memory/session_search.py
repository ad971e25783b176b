"""Finds sessions for their user, and passages of one session for the model; never another owner's. It searches by
letters: no stemmer knows every language, and an index of word parts would outgrow all others. The work is bounded.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from typing import Any, Final
from unicodedata import normalize

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import array

from segue.db.engine import Connection, Database
from segue.db.models import messages, sessions
from segue.domain.session import Session
from segue.language.utterance import PLAIN_LETTERS, stem_of
from segue.memory.fact_cues import search_words
from segue.memory.session_store import in_list, latest_first, readable_session, shown

MOST_SESSIONS: Final = 2_000
MOST_MESSAGES: Final = 10_000
SNIPPET_CHARS: Final = 160
PASSAGE_CHARS: Final = 600
MOST_WORDS: Final = 20
_MARKS: Final = "[\u0300-\u036f\u064b-\u0655]*"  # accents of Latin letters, vowels of Arabic
_AROUND: Final = " \"'“”„«»「」()[]?!.,;:…？！。，、；：؟،"


@dataclass(frozen=True, slots=True)
class SearchPosition:
    """A search goes on behind this session or, if `below` is given, in it, with its messages below that seq."""

    updated_at: datetime
    session_id: str
    below: int | None = None


async def search_sessions(
    connection: Connection,
    owner: str,
    words: Sequence[str],
    *,
    archived: bool,
    pinned: bool | None,
    after: SearchPosition | None,
    limit: int,
) -> tuple[list[Session], SearchPosition | None]:
    """Returns the latest active sessions that have all the words in the title or in one message, as FoundSession, and
    where to go on; None if none is left to look at. Looks at MOST_SESSIONS with MOST_MESSAGES at most, and so may
    return fewer than `limit`, or none, though there are.
    """
    words = [word.strip(_AROUND) or word for word in words]
    looked_at = _looked_at(owner, archived=archived, pinned=pinned, after=after)
    # With OFFSET 0 PostgreSQL looks for a hit once, not for the condition and again for what is returned.
    with_hits = sa.select(*looked_at.c, _hit(words, looked_at).label("hit")).order_by(*latest_first(looked_at))
    searched = with_hits.offset(0).subquery("searched")
    statement = shown(searched).add_columns(searched.c.hit, searched.c.above, searched.c.is_last)
    statement = statement.where(sa.or_(searched.c.hit.is_not(None), searched.c.is_last))
    rows = (await connection.execute(statement.order_by(*latest_first(searched)).limit(limit + 1))).all()
    found = [row for row in rows if row.hit is not None]
    page = [readable_session(row, hit=row.hit) for row in found[:limit]]
    if len(found) > limit:
        return page, SearchPosition(page[-1].updated_at, page[-1].id)
    if not rows or not (last := rows[-1]).is_last:
        return page, None
    is_done = last.hit is not None or last.above == 0
    return page, SearchPosition(last.updated_at, last.id, None if is_done else last.above + 1)


async def search_said(
    database: Database, owner: str, session_id: str, query: str, *, before_turn: str, limit: int
) -> list[dict[str, Any]]:
    """Returns passages (`seq`, `at`, `who`, `text`) of the newest MOST_MESSAGES of a session that have words of the
    query: those with most of its letters first, then the newest; none of another owner's, or of the turn that asks.
    """
    as_written, asked = (word.strip(_AROUND) for word in query.split()), search_words(query).split()
    distinct = {word.lower(): word for word in [*asked, *filter(None, as_written), *map(stem_of, asked)]}
    words = list(distinct.values())[:MOST_WORDS]
    if not words:
        return []
    small = sa.func.lower(messages.c.content)
    letters = (sa.case((small.regexp_match(_pattern(word)), len(word)), else_=0) for word in words)
    score = sum(letters, sa.literal(0))  # a long word tells more than a short one
    places = (_place(messages.c.content, word) for word in words)
    start = sa.func.greatest(sa.func.least(*places) - PASSAGE_CHARS // 3, 1)
    passage = sa.func.substr(messages.c.content, start, PASSAGE_CHARS).label("text")
    statement = (
        sa.select(messages.c.seq, messages.c.created_at.label("at"), messages.c.role.label("who"), passage)
        .join(sessions, sessions.c.id == messages.c.session_id)
        .where(sessions.c.id == session_id, sessions.c.owner == owner, messages.c.branch.is_(None))
        .where(messages.c.seq >= sessions.c.next_seq - MOST_MESSAGES, messages.c.role != "tool")
        .where(messages.c.turn_id != before_turn, score > 0)
        .order_by(score.desc(), messages.c.seq.desc())
        .limit(limit)
    )
    return [dict(row) for row in (await database.read(Connection.execute, statement)).mappings()]


def _looked_at(owner: str, *, archived: bool, pinned: bool | None, after: SearchPosition | None) -> sa.FromClause:
    """The sessions to look at, and the seqs `above` and `below`, between which their messages are to be looked at.
    PostgreSQL reads them one by one, and no more than the page needs.
    """
    below: sa.ColumnElement[int] = sessions.c.next_seq
    conditions = in_list(owner, archived=archived, pinned=pinned)
    if after is not None:
        place, end = sa.tuple_(sessions.c.updated_at, sessions.c.id), (after.updated_at, after.session_id)
        conditions = [*conditions, place < end if after.below is None else place <= end]
        below = sa.case((sessions.c.id == after.session_id, sa.func.coalesce(after.below, below)), else_=below)
    latest = sa.select(*sessions.c, below.label("below")).where(*conditions).order_by(*latest_first(sessions))
    newest = latest.limit(MOST_SESSIONS).subquery("newest")
    so_far = sa.func.sum(newest.c.below - 1).over(order_by=latest_first(newest), rows=(None, 0)).cast(sa.BigInteger)
    at = sa.func.row_number().over(order_by=latest_first(newest))
    counted = sa.select(*newest.c, so_far.label("so_far"), at.label("place")).subquery("counted")
    above = sa.func.greatest(counted.c.so_far - MOST_MESSAGES, 0)
    is_last = sa.or_(counted.c.so_far >= MOST_MESSAGES, counted.c.place == MOST_SESSIONS)
    has_room = counted.c.so_far - (counted.c.below - 1) < MOST_MESSAGES
    return sa.select(*counted.c, above.label("above"), is_last.label("is_last")).where(has_room).subquery("looked_at")


def _hit(words: Sequence[str], looked_at: sa.FromClause) -> sa.ColumnElement[Any]:
    """Returns where the words are, in the title or else in the newest message that has them all, and its id."""

    def has_all(text: sa.ColumnElement[Any]) -> sa.ColumnElement[bool]:
        return sa.and_(*(sa.func.lower(text).regexp_match(_pattern(word)) for word in words))

    def place(text: sa.ColumnElement[Any], message_id: sa.ColumnElement[Any]) -> sa.ColumnElement[Any]:
        start = sa.func.greatest(_place(text, words[0]) - SNIPPET_CHARS // 3, 1)
        return array([sa.func.substr(text, start, SNIPPET_CHARS), message_id])

    in_session = (messages.c.session_id == looked_at.c.id, messages.c.branch.is_(None), messages.c.role != "tool")
    between = (messages.c.seq > looked_at.c.above, messages.c.seq < looked_at.c.below)
    found = sa.select(place(messages.c.content, messages.c.id))
    found = found.where(*in_session, *between, has_all(messages.c.content))
    newest = found.order_by(messages.c.seq.desc()).limit(1).scalar_subquery()
    return sa.case((has_all(looked_at.c.title), place(looked_at.c.title, sa.null())), else_=newest)


# By letter those that a search takes for it.
_BY_PLAIN: Final = groupby(sorted(PLAIN_LETTERS, key=PLAIN_LETTERS.__getitem__), PLAIN_LETTERS.__getitem__)
_GROUPS: Final = {plain: "".join(letters) for plain, letters in _BY_PLAIN}
_ALIKE: Final = {letter: f"[{_GROUPS[plain]}]{_MARKS}" for letter, plain in PLAIN_LETTERS.items()}


def _place(text: sa.ColumnElement[Any], word: str) -> sa.ColumnElement[int]:
    """Returns the first position of a word, from 1, or NULL. `regexp_instr` would look for all of them."""
    small = sa.func.lower(text)
    return sa.func.strpos(small, sa.func.substring(small, _pattern(word)))


def _pattern(word: str) -> sa.ColumnElement[str]:
    """Returns what finds a word with any accents. PostgreSQL's small letters are not always Python's, and some devices
    write è, and others 가, in parts.
    """
    letters = (_ALIKE.get(letter.lower(), re.escape(letter)) for letter in normalize("NFC", word))
    pattern = "|".join(("".join(letters), re.escape(word), re.escape(normalize("NFD", word))))
    return sa.func.lower(pattern)
