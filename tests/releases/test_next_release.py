"""A rollback: this release starts on what the next one has migrated and written, and serves all that it can read."""

import asyncio

import asyncpg
import pytest
from structlog.testing import capture_logs

from segue.around.doctor.examine import examine
from segue.config import Settings
from segue.db.migrations import upgrade
from segue.domain.errors import AppError
from tests.support.copies import copied
from tests.support.pasted import pasted
from tests.support.provider import Provider, says
from tests.support.service import running
from tests.support.stores import looking_into, plain

MIGRATED = """
UPDATE alembic_version SET version_num = '0999';
ALTER TABLE sessions ADD COLUMN mood text;
ALTER TABLE plans ADD COLUMN kind text NOT NULL DEFAULT 'linear';
ALTER TABLE turns DROP CONSTRAINT turns_status_check;
CREATE TABLE moods (session_id text REFERENCES sessions ON DELETE CASCADE);
"""
ADDED = """
UPDATE turns SET request = request || '{"mood": "calm"}', report = report || '{"mood": {"is": ["calm"]}}';
UPDATE tool_states SET health = health || '{"mood": "calm"}';
UPDATE plans SET steps = jsonb_set(steps, '{2,mood}', '"calm"');
UPDATE messages SET tool_calls = jsonb_set(tool_calls, '{0,mood}', '"calm"') WHERE tool_calls IS NOT NULL;
"""
NEW_STATUS = """UPDATE plans SET steps = jsonb_set(steps, '{2,status}', '"delegated"') WHERE session_id = $1"""


@pytest.fixture
async def database_url(own_database_url: str) -> str:
    """A database that the next release has migrated."""
    connection = await asyncpg.connect(plain(own_database_url))
    await connection.execute(MIGRATED)
    await connection.close()
    return own_database_url


async def test_a_release_serves_what_the_next_one_left_and_says_that_the_schema_is_newer(
    settings: Settings, provider: Provider
) -> None:
    provider.always("Hello there.", says("Hi."))
    settings = settings.model_copy(update={"migrate_on_start": True})
    async with looking_into(settings) as stores:
        readable, delegated = await copied(stores, 2)
        await stores.database.execute(ADDED)
        await stores.database.execute(NEW_STATUS, delegated)
        with capture_logs() as logs:
            async with running(settings) as client:
                listed = {item["id"]: item["pending_plan"] for item in (await client.get("/sessions"))["items"]}
                assert [len(listed[each]["steps"]) for each in (readable, delegated)] == [3, 0]
                assert [listed[each].get("unreadable") for each in (readable, delegated)] == [None, True]
                for session in (readable, delegated):
                    assert len(await client.messages(session)) == 6
                    [turn] = await client.turns(session)
                    assert turn["answer"]["message"]["content"]
                    assert (await client.chat(session, "Hello there."))["message"]["content"].startswith("Hi.")
                assert (await client.http.delete(f"/sessions/{delegated}")).status_code == 204
        assert [line["revision"] for line in logs if line["event"] == "schema_is_newer"] == ["0999"]
        assert await stores.database.fetchval("SELECT version_num FROM alembic_version") == "0999"
    report = await examine(settings, readable)
    assert [note["what"] for note in report.notes if note["area"] == "migrations"]
    assert not [problem for problem in report.problems if problem["area"] == "migrations"]


async def test_rolling_back_as_the_page_says_changes_nothing_and_says_so(urls: dict[str, str]) -> None:
    code, printed = await pasted("operations.md", "Rolling back", **urls)
    assert (code, "0999, which a newer release made" in printed) == (0, True)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ("ALTER TABLE sessions RENAME COLUMN title TO name", "sessions.title is gone"),
        ("ALTER TABLE turns ADD COLUMN mood text NOT NULL", "turns.mood has no default"),
    ],
)
async def test_a_schema_that_this_release_cannot_use_is_refused_in_one_sentence(
    change: str, told: str, database_url: str
) -> None:
    connection = await asyncpg.connect(plain(database_url))
    await connection.execute(change)
    await connection.close()
    with pytest.raises(AppError) as refused:
        await asyncio.to_thread(upgrade, database_url)
    assert refused.value.code == "database_too_new"
    assert told in refused.value.detail
    assert "0999" in refused.value.detail
