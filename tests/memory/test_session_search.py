"""A search looks at a bounded part of what a user has, and the next page goes on from there."""

from collections.abc import AsyncIterator

import pytest

from segue.db.engine import Database
from segue.memory.session_search import MOST_MESSAGES, MOST_SESSIONS, SearchPosition, search_sessions
from segue.memory.session_store import list_sessions
from tests.support.explained import explained
from tests.support.stores import Stores

SESSIONS = """
INSERT INTO sessions (id, owner, title, metadata, created_at, updated_at, next_seq, gaps, archived, pinned)
SELECT 'ses_' || lpad(n::text, 26, '0'), 'local', 'title ' || n, '{}', now(), now() - interval '1 second' * n,
       $2 + 1, 0, n % 100 = 0, n % 100 = 1
FROM generate_series(1, $1::int) AS n
"""
MESSAGES = """
WITH made AS (
    INSERT INTO turns (id, session_id, seq, status, request, created_at)
    SELECT 'turn_' || right(id, 26), id, 1, 'completed', '{}', now() FROM sessions RETURNING id, session_id
)
INSERT INTO messages (id, session_id, seq, turn_id, turn_seq, role, content, created_at)
SELECT 'msg_' || right(session_id, 6) || lpad(seq::text, 20, '0'), session_id, seq, made.id, 1,
       CASE seq % 2 WHEN 1 THEN 'user' ELSE 'assistant' END, 'message ' || seq, now()
FROM made, generate_series(1, $1::int) AS seq
"""


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    opened = Database(database_url)
    yield opened
    await opened.close()


async def fill(stores: Stores, *, sessions: int, messages: int) -> None:
    await stores.database.execute(SESSIONS, sessions, messages)
    await stores.database.execute(MESSAGES, messages)
    await stores.database.execute("VACUUM ANALYZE sessions, turns, messages")


async def search(
    database: Database, words: str, after: SearchPosition | None = None, *, limit: int = 50
) -> tuple[list[str], SearchPosition | None, float]:
    """The titles that were found, where to go on, and how many rows were read."""
    async with database.read_only() as connection, explained(connection) as reading:
        found, behind = await search_sessions(
            connection, "local", words.split(), archived=False, pinned=None, after=after, limit=limit
        )
    return [str(session.title) for session in found], behind, reading.rows


async def everything(database: Database, words: str, *, limit: int = 50) -> list[list[str]]:
    found, behind, _ = await search(database, words, limit=limit)
    pages = [found]
    while behind is not None:
        found, behind, _ = await search(database, words, behind, limit=limit)
        pages.append(found)
    return pages


async def test_a_page_looks_at_so_many_sessions_and_the_next_goes_on_behind_them(
    database: Database, stores: Stores
) -> None:
    await fill(stores, sessions=3 * MOST_SESSIONS, messages=1)
    late = 2 * MOST_SESSIONS + 7
    await stores.database.execute("UPDATE messages SET content = 'ZITRONE ' || content WHERE session_id = $1",
                                  f"ses_{late:026}")  # fmt: skip
    found, behind, rows = await search(database, "zitrone")
    assert found == []
    assert behind is not None
    assert rows <= 4 * MOST_SESSIONS
    assert [page for page in await everything(database, "zitrone") if page] == [[f"title {late}"]]
    assert [page for page in await everything(database, "lampada") if page] == []
    async with database.read_only() as connection:
        theirs = await search_sessions(
            connection, "eve", ["message"], archived=False, pinned=None, after=behind, limit=50
        )
    assert theirs == ([], None)
    found, _, rows = await search(database, "message")
    assert found == [f"title {n}" for n in range(1, 51)]
    assert rows < 500


@pytest.mark.sweep
async def test_a_page_looks_at_so_many_messages_and_the_next_goes_on_within_the_session(
    database: Database, stores: Stores
) -> None:
    await fill(stores, sessions=3, messages=MOST_MESSAGES + 10)
    for said, seqs in {"apricot": (5,), "banana": (10, 11), "cherry": (MOST_MESSAGES + 10,)}.items():
        await stores.database.execute(
            "UPDATE messages SET content = $1 WHERE session_id = $2 AND seq = ANY($3)", said, f"ses_{2:026}", seqs
        )
    found, behind, rows = await search(database, "lampada")
    assert behind is not None
    assert (found, behind.session_id, behind.below) == ([], f"ses_{1:026}", 11)
    assert rows <= MOST_MESSAGES + 10
    for words in ("apricot", "banana", "cherry"):
        assert [page for page in await everything(database, words) if page] == [["title 2"]], words
    assert [page for page in await everything(database, "title", limit=1) if page] == [
        [f"title {n}"] for n in (1, 2, 3)
    ]


async def test_archived_and_pinned_sessions_are_listed_without_reading_the_others(
    database: Database, stores: Stores
) -> None:
    await fill(stores, sessions=3000, messages=1)
    for archived, pinned, is_listed in ((True, None, 0), (False, True, 1)):
        async with database.read_only() as connection, explained(connection) as reading:
            found = await list_sessions(connection, "local", archived=archived, pinned=pinned, before=None, limit=50)
        assert [session.title for session in found] == [f"title {n}" for n in range(1, 3001) if n % 100 == is_listed]
        assert reading.rows <= 300, (archived, pinned)


@pytest.mark.sweep
async def test_a_word_that_a_long_message_has_millions_of_times_is_found_at_its_first_place_before_the_statement_ends(
    database: Database, stores: Stores
) -> None:
    await fill(stores, sessions=1, messages=1)
    await stores.database.execute("UPDATE messages SET content = repeat('à ', 2000000)")
    async with database.read_only() as connection:
        words = ["a"] * 60
        found, _ = await search_sessions(connection, "local", words, archived=False, pinned=None, after=None, limit=1)
    assert [getattr(each, "snippet", "")[:3] for each in found] == ["à à"]
