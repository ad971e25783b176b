"""Migrations run beneath processes that serve, of this release and of those before: none loses or fails anything.

`make migrations OTHER="path path"` takes checkouts of releases before, each with a .venv, and migrates from the
revision of each to the newest, one by one. CI migrates beneath this release alone, from where its statements work.
"""

import asyncio
import itertools
import os
import subprocess
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import asyncpg
import httpx2
import pytest
from alembic.script import ScriptDirectory
from structlog.testing import capture_logs

from alembic import command
from segue.around.embedded.server_urls import ServerUrls
from segue.db.migrations import config, upgrade
from segue.db.postgres_server import newest
from tests.support.commands import Started
from tests.support.fork_client import Streams
from tests.support.logs import until
from tests.support.patience import PATIENCE_S
from tests.support.service import Process
from tests.support.stores import new_database, plain
from tests.support.sweeps import first

OTHERS = [Path(each).resolve() for each in os.environ.get("OTHER", "").split()]
REPEATABLE = "0035"  # what follows it can be done once more, and takes its locks again
AFTER_IT = [each.revision for each in ScriptDirectory.from_config(config("")).iterate_revisions("head", REPEATABLE)]
READ_ALL = """
DO $$ DECLARE name text; BEGIN
    FOR name IN SELECT tablename FROM pg_tables WHERE schemaname = 'public' AND tablename <> 'alembic_version' LOOP
        EXECUTE format('LOCK TABLE %I IN ACCESS SHARE MODE', name);
    END LOOP;
END $$
"""
TALKERS = 4
WAITS_FOR = "SELECT count(*) FROM pg_stat_activity WHERE $1 = ANY(pg_blocking_pids(pid))"
WAITS_BESIDE_OTHERS = "SELECT count(*) FROM pg_locks WHERE NOT granted AND locktype = 'virtualxid'"
STAMP = "UPDATE alembic_version SET version_num = $1"


@pytest.fixture
def environment(redis_url: str, tmp_path: Path) -> dict[str, str]:
    (tmp_path / "none.json").write_text('{"mcpServers": {}}')
    others = {"REDIS_URL": redis_url, "MCP_CONFIG": str(tmp_path / "none.json"), "MIGRATE_ON_START": "false"}
    return {**others, "DATA_DIR": str(tmp_path / "data"), "WEB_SEARCH_PROVIDER": "none"}


class Traffic:
    """Users who talk to all processes in turn until they are told to stop. Nothing they are answered is a failure."""

    def __init__(self, http: httpx2.AsyncClient) -> None:
        self.urls: list[str] = []
        self.over = asyncio.Event()
        self.slowest_s = 0.0
        self._answered = 0
        self._heard = asyncio.Event()
        self._http = http
        self._numbers = itertools.count()

    async def post(self, path: str, body: Mapping[str, str], **headers: str) -> dict[str, str]:
        began = time.monotonic()
        url = self.urls[next(self._numbers) % len(self.urls)]
        response = await self._http.post(url + path, json=body, headers=headers)
        assert response.is_success, (url, path, response.text)
        self._answered += 1
        self._heard.set()
        self.slowest_s = max(self.slowest_s, time.monotonic() - began)
        answer: dict[str, str] = response.json()
        return answer

    async def talk(self, number: int) -> tuple[str, int]:
        """Returns the session, and how many messages were answered."""
        session, said = (await self.post("/sessions", {}))["id"], 0
        while not self.over.is_set():
            text, key = f"message {said} of {number}", {"Idempotency-Key": f"{number}-{said}"}
            answer = await self.post(f"/sessions/{session}/chat", {"message": text}, **key)
            assert answer["status"] == "completed"
            said += 1
        return session, said

    async def heard(self, count: int) -> None:
        """Returns once so many more requests were answered."""
        wanted = self._answered + count
        async with asyncio.timeout(PATIENCE_S):
            while self._answered < wanted:
                self._heard.clear()
                await self._heard.wait()


@asynccontextmanager
async def traffic(url: str) -> AsyncIterator[Traffic]:
    """Within the block users talk to the process at this URL, and to those that are added. What was said is stored."""
    async with httpx2.AsyncClient(timeout=PATIENCE_S) as http:
        users = Traffic(http)
        users.urls.append(url)
        talks = asyncio.gather(*map(users.talk, range(TALKERS)))
        try:
            await users.heard(TALKERS)
            yield users
        finally:
            users.over.set()
            talked = await talks
        for session, said in talked:
            page = (await http.get(f"{users.urls[0]}/sessions/{session}/messages", params={"limit": 200})).json()
            stored = [(message["role"], message["content"]) for message in page["items"]]
            number = talked.index((session, said))
            first = [f"message {each} of {number}" for each in range(said)][:100]
            assert [content for role, content in stored if role == "user"] == first
            assert [role for role, _ in stored] == ["user", "assistant"] * min(said, 100)


@asynccontextmanager
async def started(process: Process) -> AsyncIterator[str]:
    try:
        yield await asyncio.to_thread(process.start)
    finally:
        process.kill()


def release_before(checkout: Path, environment: dict[str, str]) -> Process:
    def start(arguments: tuple[str, ...], cwd: Path, given: Mapping[str, str], streams: Streams) -> Started:
        stdin, stdout, stderr = streams
        program = [str(checkout / ".venv/bin/python"), "-m", "segue", *arguments]
        own = {**given, "PYTHONPATH": str(checkout / "backend")}
        return subprocess.Popen(program, cwd=cwd, env=own, stdin=stdin, stdout=stdout, stderr=stderr)

    return Process(environment, cwd=checkout, start=start)


@pytest.mark.sweep
async def test_migrations_beneath_this_release_fail_no_request_and_lose_no_message(
    environment: dict[str, str], own_database_url: str
) -> None:
    admin = await asyncpg.connect(plain(own_database_url))
    async with (
        started(Process({**environment, "DATABASE_URL": own_database_url})) as url,
        traffic(url) as users,
    ):
        await admin.execute(STAMP, REPEATABLE)
        await asyncio.to_thread(upgrade, own_database_url)
        await users.heard(TALKERS)
    assert await admin.fetchval("SELECT version_num FROM alembic_version") == newest()
    await admin.close()


@pytest.mark.timeout(1800)
@pytest.mark.skipif(not OTHERS, reason="it takes checkouts of releases before: make migrations")
@pytest.mark.parametrize("checkout", OTHERS or [Path()], ids=lambda path: path.name)
async def test_every_migration_since_a_release_fails_no_request_of_it_and_none_of_this_one_after_them(
    environment: dict[str, str], servers: ServerUrls, checkout: Path
) -> None:
    was = max(path.name.partition("_")[0] for path in (checkout / "alembic/versions").glob("[0-9]*.py"))
    async with new_database(servers, "template0") as url:
        made = config(url)
        await asyncio.to_thread(command.upgrade, made, was)
        revisions = [each.revision for each in ScriptDirectory.from_config(made).iterate_revisions("head", was)][::-1]
        environment = {**environment, "DATABASE_URL": url}
        async with started(release_before(checkout, environment)) as before, traffic(before) as users:
            for revision in revisions:
                users.slowest_s = 0
                await asyncio.to_thread(upgrade, url, revision=revision)
                await users.heard(TALKERS)
                print(f"{checkout.name} {was} → {revision}: slowest answer {users.slowest_s * 1000:.0f} ms")  # noqa: T201
            async with started(Process(environment)) as after:
                users.urls.append(after)
                await users.heard(10 * TALKERS)
                users.urls.remove(after)
                await users.heard(TALKERS)


@pytest.mark.in_turns(4)
@pytest.mark.parametrize("revision", first(2, dict.fromkeys([AFTER_IT[0], "0042", *AFTER_IT])))
async def test_a_migration_waits_for_no_reader_while_others_wait_behind_it(
    own_database_url: str, revision: str
) -> None:
    admin, looking = [await asyncpg.connect(plain(own_database_url)) for _ in range(2)]
    await admin.execute(STAMP, AFTER_IT[AFTER_IT.index(revision) + 1] if revision != AFTER_IT[-1] else REPEATABLE)
    await admin.execute("BEGIN")
    await admin.execute(READ_ALL)  # as a dump does
    with capture_logs() as logs:
        migrating = asyncio.create_task(asyncio.to_thread(upgrade, own_database_url, revision=revision))

        async def is_in_nobodys_way() -> bool:
            has_given_way = "migration_gave_way" in [line["event"] for line in logs]
            return has_given_way or migrating.done() or bool(await looking.fetchval(WAITS_BESIDE_OTHERS))

        try:
            await until(is_in_nobodys_way)
        finally:
            await admin.execute("COMMIT")
            await migrating
    assert await admin.fetchval("SELECT version_num FROM alembic_version") == revision
    await admin.close()
    await looking.close()


async def test_a_migration_gives_way_to_a_transaction_that_needs_what_it_has_and_has_what_it_needs(
    servers: ServerUrls,
) -> None:
    """0027 locks sessions and then messages."""
    async with new_database(servers, "template0") as url:
        await asyncio.to_thread(upgrade, url, revision="0026")
        admin, looking = await asyncpg.connect(plain(url)), await asyncpg.connect(plain(url))

        async def waits() -> bool:
            return bool(await looking.fetchval(WAITS_FOR, admin.get_server_pid()))

        await admin.execute("BEGIN")
        await admin.execute("LOCK TABLE messages IN ROW SHARE MODE")
        with capture_logs() as logs:
            migrating = asyncio.create_task(asyncio.to_thread(upgrade, url, revision="0027"))
            await until(waits)
            await admin.execute("UPDATE sessions SET title = 'busy'")
            await admin.execute("COMMIT")
            await migrating
        assert {line["cause"] for line in logs if line["event"] == "migration_gave_way"} == {"locked"}
        assert await admin.fetchval("SELECT version_num FROM alembic_version") == "0027"
        await admin.close()
        await looking.close()
