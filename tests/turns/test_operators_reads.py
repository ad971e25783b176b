"""What the pages of operators read does not grow with what there is."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime

import pytest

from segue.config import Settings
from segue.db.engine import Database
from segue.history.operator_figures import COUNTED, list_users
from segue.history.operator_turns import TurnFilter, list_any
from tests.support.explained import explained
from tests.support.stores import looking_into

NOON = datetime(2026, 3, 2, 12, tzinfo=UTC)
# Of one user many sessions with a turn each, of the others a session with many turns.
USERS = """
INSERT INTO sessions (id, owner, metadata, created_at, updated_at)
SELECT 'ses_' || lpad(n::text, 26, '0'), CASE n WHEN 1 THEN 'bob' WHEN 2 THEN 'carl' ELSE 'ada' END, '{}', $1, $1
FROM generate_series(1, 6000) AS n
"""
TURNS = """
INSERT INTO turns (id, session_id, seq, status, request, started_at, created_at, error)
SELECT 'turn_' || right(sessions.id, 6) || lpad(n::text, 20, '0'), sessions.id, n, status, '{}', updated_at,
       CASE owner WHEN 'ada' THEN updated_at ELSE updated_at + interval '1 minute' * (n - 3000) END,
       CASE status WHEN 'failed' THEN '{"code": "internal_error"}'::jsonb END
FROM sessions, generate_series(1, CASE owner WHEN 'ada' THEN 1 ELSE 3000 END) AS n,
LATERAL (SELECT CASE n % 1000 WHEN 5 THEN 'failed' ELSE 'completed' END AS status) AS ended
"""
FAILED = """
INSERT INTO turns (id, session_id, seq, status, request, created_at, error)
SELECT 'turn_' || lpad(n::text, 26, '0'), 'ses_' || lpad((1 + n % 3000)::text, 26, '0'), 10000 + n, 'failed', '{}', $1,
       '{"code": "internal_error"}'
FROM generate_series(1, 5000) AS n
"""


@pytest.fixture
async def database(settings: Settings) -> AsyncIterator[Database]:
    assert settings.database_url is not None
    async with looking_into(settings) as stores:
        await stores.database.execute(USERS, NOON)
        await stores.database.execute(TURNS)
        await stores.database.execute("VACUUM ANALYZE sessions, turns")
    opened = Database(settings.database_url.get_secret_value())
    yield opened
    await opened.close()


async def test_of_a_user_no_more_than_a_thousand_sessions_and_turns_are_counted(database: Database) -> None:
    async with database.read_only() as connection, explained(connection) as reading:
        found = await list_users(connection, after=None, limit=50, now=NOON)
    assert {each.user: (each.sessions, each.turns_today) for each in found} == {
        "ada": (COUNTED, COUNTED),
        "bob": (1, 721),
        "carl": (1, 721),
    }
    assert reading.rows < 6 * COUNTED


@pytest.mark.in_turns(1)
@pytest.mark.parametrize("session_id", [f"ses_{1:026}", None])
async def test_failed_turns_are_read_from_an_index_of_those(database: Database, session_id: str | None) -> None:
    async with database.read_only() as connection, explained(connection) as reading:
        found = await list_any(connection, TurnFilter(status="failed", session_id=session_id), limit=50)
    assert len(found) == (3 if session_id else 6)
    assert reading.indexes & {"turns_failed_idx", "turns_failed_id_idx"}
    assert reading.rows < 50


async def test_a_page_of_failed_turns_does_not_read_every_failed_turn(database: Database, settings: Settings) -> None:
    async with looking_into(settings) as stores:
        await stores.database.execute(FAILED, NOON)
        await stores.database.execute("VACUUM ANALYZE turns")
    async with database.read_only() as connection, explained(connection) as reading:
        newest = await list_any(connection, TurnFilter(status="failed"), limit=50)
        following = await list_any(connection, TurnFilter(status="failed"), before=newest[-1].turn_id, limit=50)
    ids = [each.turn_id for each in (*newest, *following)]
    assert ids == sorted(set(ids), reverse=True)
    assert len(ids) == 100
    assert reading.rows <= 2 * len(ids)
