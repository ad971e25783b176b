"""Instances of this version and the one before share a database while they are replaced: migrations only add to it,
and the code does not mind what a later one adds.
"""

import asyncio
from collections.abc import AsyncIterator

import asyncpg
import pytest
from alembic.script import ScriptDirectory
from sqlalchemy import make_url

from alembic import command
from segue.around.embedded.server_urls import ServerUrls
from segue.config import Settings
from segue.db.migrations import config, upgrade
from segue.db.models import metadata
from segue.db.postgres_server import newest
from segue.domain.errors import AppError
from tests.support.patience import PATIENCE_S
from tests.support.provider import Provider, calls, says
from tests.support.proxy import Proxy, proxied
from tests.support.schemas import Schema, schema
from tests.support.service import running
from tests.support.stores import looking_into, new_database, plain, socket_of

# An index that is built concurrently waits as long as another connection has an older snapshot.
NO_WAITING = """
DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET lock_timeout = ''20s''', current_database()); END $$
"""

REPEATABLE = "0035"  # what follows it can be done once more

BREAKING = {
    "DROP TABLE api_keys": "api_keys.digest is gone",
    "ALTER TABLE sessions DROP COLUMN title": "sessions.title is gone",
    "ALTER TABLE sessions RENAME COLUMN title TO name": "sessions.title is gone",
    "ALTER TABLE turns ALTER COLUMN attempts TYPE smallint": "turns.attempts was int4 and is int2",
    "ALTER TABLE sessions ALTER COLUMN title TYPE varchar(9)": "sessions.title was text and is varchar9",
    "ALTER TABLE sessions ALTER COLUMN title SET NOT NULL": "sessions.title has to be given now",
    "ALTER TABLE turns ALTER COLUMN attempts DROP DEFAULT": "turns.attempts has to be given now",
    "ALTER TABLE turns ADD COLUMN shade text NOT NULL": "turns.shade is needed and has no default",
    "CREATE UNIQUE INDEX one_title ON sessions (owner, title)": "one_title",
    "ALTER TABLE sessions ADD CONSTRAINT short CHECK (length(title) < 9)": "short CHECK",
}


def breaks(before: Schema, after: Schema) -> list[str]:
    """What code that knows only `before` may fail on."""
    found = [f"{name} is gone" for name in before.columns if name not in after.columns]
    for name, column in after.columns.items():
        known = before.columns.get(name)
        if known is None:
            if name.partition(".")[0] in before.tables and column.needed and not column.filled:
                found.append(f"{name} is needed and has no default")
        elif column.type != known.type:
            found.append(f"{name} was {known.type} and is {column.type}")
        elif column.needed and (not known.needed or (known.filled and not column.filled)):
            found.append(f"{name} has to be given now")
    narrower = [
        name for name, about in after.rules.items() if name not in before.rules and about <= before.columns.keys()
    ]
    return [*found, *(f"rows have to keep to {name} now" for name in narrower)]


@pytest.fixture
def database_url(own_database_url: str) -> str:
    return own_database_url


@pytest.fixture
async def connection(settings: Settings) -> AsyncIterator[asyncpg.Connection]:
    async with looking_into(settings) as stores:
        yield stores.database


async def test_every_migration_leaves_alone_what_the_version_before_it_uses(servers: ServerUrls) -> None:
    async with new_database(servers, "template0") as url:
        connection = await asyncpg.connect(plain(url))
        await connection.execute(NO_WAITING)
        await connection.close()
        made = config(url)
        revisions = [found.revision for found in ScriptDirectory.from_config(made).walk_revisions()][::-1]
        before = Schema({}, {})
        for revision in revisions:
            await asyncio.to_thread(command.upgrade, made, revision)
            connection = await asyncpg.connect(plain(url))
            after = await schema(connection)
            await connection.close()
            assert not breaks(before, after), f"{revision}: let it go one release after the code has let go of it"
            before = after
    assert before.tables == metadata.tables.keys()
    assert revisions[-1] == newest()


@pytest.mark.sweep
async def test_an_index_that_a_migration_had_to_leave_unfinished_is_built_anew(servers: ServerUrls) -> None:
    """PostgreSQL keeps it, and no query ever uses it, if what builds it beside reads and writes is ended."""
    tables = "SELECT tablename FROM pg_tables WHERE schemaname = 'public'"
    indexes = "SELECT indexname, indexdef FROM pg_indexes WHERE schemaname = 'public' AND tablename = ANY($1)"
    unfinished = "SELECT count(*) FROM pg_index WHERE NOT indisvalid"
    async with new_database(servers, "template0") as url:
        await asyncio.to_thread(upgrade, url, revision=REPEATABLE)
        connection, writer = [await asyncpg.connect(plain(url)) for _ in range(2)]
        known = [name for (name,) in await connection.fetch(tables)]  # those that may be large
        before = dict(await connection.fetch(indexes, known))
        await asyncio.to_thread(upgrade, url)
        built = {name: made for name, made in await connection.fetch(indexes, known) if name not in before}
        await connection.execute("SET lock_timeout = '1ms'")
        for name, made in built.items():
            await connection.execute(f"DROP INDEX {name}")
            async with writer.transaction():
                await writer.execute(f"LOCK TABLE {', '.join(known)} IN ROW EXCLUSIVE MODE")
                with pytest.raises(asyncpg.LockNotAvailableError):
                    await connection.execute(made.replace(" INDEX ", " INDEX CONCURRENTLY "))
        was_unfinished = await connection.fetchval(unfinished)
        await connection.execute("UPDATE alembic_version SET version_num = $1", REPEATABLE)
        await asyncio.to_thread(upgrade, url)
        left = await connection.fetchval(unfinished)
        await connection.close()
        await writer.close()
    assert {"plans_for_group_idx", "sessions_pinned_idx"} <= built.keys()
    assert (was_unfinished, left) == (len(built), 0)


@pytest.fixture
async def door(database_url: str) -> AsyncIterator[Proxy]:
    async with proxied(socket_of(database_url)) as proxy:
        yield proxy


def through(door: Proxy, url: str, **said: str) -> str:
    """As a host hands it out."""
    there = make_url(url).set(drivername="postgres", host="127.0.0.1", port=door.port, query=said)
    return there.render_as_string(hide_password=False)


@pytest.mark.sweep
async def test_a_migration_ends_though_nobody_says_that_the_server_has_hung_up(door: Proxy, database_url: str) -> None:
    door.swallows_ends = True
    async with asyncio.timeout(PATIENCE_S):
        await asyncio.to_thread(upgrade, through(door, database_url, sslmode="prefer", channel_binding="prefer"))


@pytest.mark.sweep
async def test_a_server_that_takes_a_connection_and_says_nothing_ends_a_migration_with_its_cause(
    door: Proxy, database_url: str
) -> None:
    await door.begin("freezes")
    with pytest.raises(AppError, match=r"it does not answer in time\. See whether its machine"):
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.to_thread(upgrade, through(door, database_url))


async def test_a_migration_that_would_break_the_version_before_is_told(connection: asyncpg.Connection) -> None:
    before = await schema(connection)
    for change, told in BREAKING.items():
        trial = connection.transaction()
        await trial.start()
        await connection.execute(change)
        assert any(told in fault for fault in breaks(before, await schema(connection))), change
        await trial.rollback()


@pytest.mark.sweep
async def test_grants_become_mandates_and_what_the_release_before_does_to_them_still_counts(
    servers: ServerUrls,
) -> None:
    mandates = "SELECT tool, definition, plan_id, owner FROM mandates ORDER BY tool"
    async with new_database(servers, "template0") as url:
        made = config(url)
        await asyncio.to_thread(command.upgrade, made, "0042")
        connection = await asyncpg.connect(plain(url))
        await connection.execute(
            "INSERT INTO sessions (id, owner, metadata, created_at, updated_at)"
            " VALUES ('s', 'ada', '{}', now(), now());"
            "INSERT INTO grants VALUES ('s', 'before', 'one', 'plan', now())"
        )
        await asyncio.to_thread(command.upgrade, made, "head")
        await connection.execute(
            "INSERT INTO grants VALUES ('s', 'after', 'two', 'plan', now()) ON CONFLICT ON CONSTRAINT grants_pkey"
            " DO UPDATE SET definition = excluded.definition"
        )
        found = [tuple(row) for row in await connection.fetch(mandates)]
        await connection.execute("UPDATE grants SET definition = 'three' WHERE tool = 'after'")
        await connection.execute("DELETE FROM grants WHERE tool = 'before'")
        left = [tuple(row) for row in await connection.fetch(mandates)]
        assert await connection.fetchval("SELECT bool_and(id ~ '^man_[0-9a-hjkmnp-tv-z]{26}$') FROM mandates")
        await connection.close()
    assert found == [("after", "two", "plan", "ada"), ("before", "one", "plan", "ada")]
    assert left == [("after", "three", "plan", "ada")]


async def test_this_version_runs_on_a_database_that_a_later_one_has_added_to(
    settings: Settings, connection: asyncpg.Connection, provider: Provider
) -> None:
    before = await schema(connection)
    for table in metadata.tables:
        await connection.execute(f"ALTER TABLE {table} ADD COLUMN later text NOT NULL DEFAULT 'x', ADD COLUMN last int")
    await connection.execute("CREATE TABLE later (session_id text REFERENCES sessions ON DELETE CASCADE)")
    assert breaks(before, await schema(connection)) == []
    provider.will(calls(("current_time", {})), says("noon"), says("again"))
    async with running(settings) as client:
        session = await client.new_session(title="before")
        await client.chat(session, "what time is it?")
        await client.chat(session, "and now?")
        assert len(await client.messages(session)) == 6
        assert len((await client.get(f"/sessions/{session}/tool-results"))["items"]) == 1
        for listing in ("/sessions", "/memories", f"/sessions/{session}/turns", f"/sessions/{session}/tool-states"):
            await client.get(listing)
        assert (await client.http.delete(f"/sessions/{session}")).is_success


@pytest.mark.sweep
async def test_what_a_program_said_before_the_column_is_marked_as_its_own(servers: ServerUrls) -> None:
    async with new_database(servers, "template0") as url:
        made = config(url)
        revision = next(each for each in ScriptDirectory.from_config(made).walk_revisions() if "words_of" in each.path)
        await asyncio.to_thread(command.upgrade, made, str(revision.down_revision))
        connection = await asyncpg.connect(plain(url))
        await connection.execute(
            "INSERT INTO sessions (id, owner, metadata, created_at, updated_at) VALUES ('s', 'ada', '{}', now(), now())"
        )
        for seq, request in ((1, "{}"), (2, '{"approves": false}')):
            await connection.execute(
                "INSERT INTO turns (id, session_id, seq, status, request, created_at)"
                " VALUES ($1, 's', $2, 'queued', $3, now())",
                f"t{seq}",
                seq,
                request,
            )
            await connection.execute(
                "INSERT INTO messages (id, session_id, seq, turn_id, turn_seq, role, content, created_at)"
                " VALUES ($1, 's', $2, $1, $2, 'user', 'hello', now())",
                f"t{seq}",
                seq,
            )
        await asyncio.to_thread(command.upgrade, made, "head")
        marked = await connection.fetch("SELECT id FROM messages WHERE by_program")
        await connection.close()
    assert [row["id"] for row in marked] == ["t2"]
