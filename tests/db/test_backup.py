"""A backup that was made while the service ran goes on elsewhere, and a restore is whole or has not happened."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from subprocess import run
from typing import Any
from zipfile import ZipFile

import pytest
from pydantic import SecretStr

from segue.around.backup import driver_of, opened_archive
from segue.around.embedded.server_urls import ServerUrls
from segue.config import Settings
from segue.db.engine import Database
from segue.db.migrations import MIGRATION_LOCK
from segue.domain.errors import AppError
from tests.support.commands import ROOT, forked, segue, surroundings
from tests.support.logs import until
from tests.support.patience import PATIENCE_S
from tests.support.plans import ASK, THREE_STEPS, planned
from tests.support.provider import Provider, calls, says
from tests.support.schemas import schema
from tests.support.service import Client, running
from tests.support.shelf import Shelf, serving_shelf
from tests.support.stores import Stores, looking_into, new_database, urls_of

SEQUENCES = "SELECT sequencename, last_value FROM pg_sequences WHERE schemaname = 'public' ORDER BY sequencename"
INDEXES = "SELECT indexdef FROM pg_indexes WHERE schemaname = 'public' ORDER BY indexdef"
LEFT_OVER = "SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = 'segue_restore')"
OURS = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'segue'"
WAITS = "SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted AND relation = '{}'::regclass)"
A_SESSION = "INSERT INTO sessions (id, owner, metadata, created_at, updated_at) VALUES ($1, 'ada', '{}', now(), now())"

SESSIONS = """
INSERT INTO sessions (id, owner, title, metadata, created_at, updated_at)
SELECT n::text, 'ada', repeat(md5(n::text), 20), '{}', now(), now() FROM generate_series(1, 30000) AS n
"""


@pytest.fixture
def database_url(own_database_url: str) -> str:
    """A restore puts tables of its own in the place of those that it found."""
    return own_database_url


@pytest.fixture
async def shelf(settings: Settings) -> AsyncIterator[Shelf]:
    async with serving_shelf() as served:
        settings.mcp_config.write_text(json.dumps({"mcpServers": {"shelf": {"url": served.url}}}))
        yield served


@asynccontextmanager
async def elsewhere(servers: ServerUrls, settings: Settings) -> AsyncIterator[Settings]:
    """Other stores, with nothing in them."""
    assert settings.redis_url is not None
    redis = f"{settings.redis_url.get_secret_value()}?db=1"
    async with new_database(servers, "template0") as url:
        yield settings.model_copy(update={"database_url": SecretStr(url), "redis_url": SecretStr(redis)})


async def ran(settings: Settings, *arguments: str | Path) -> tuple[int, str]:
    return await asyncio.to_thread(lambda: segue(*map(str, arguments), **urls_of(settings)))


async def backed_up(settings: Settings, file: Path) -> Path:
    code, said = await ran(settings, "backup", file)
    assert code == 0, said
    return file


@contextmanager
def killed(settings: Settings, *arguments: str | Path) -> Iterator[None]:
    """A command that is killed at the end of the block."""
    with open(os.devnull, "r+b") as nothing:  # noqa: PTH123 (it is no file)
        streams = (nothing.fileno(),) * 3
        process = forked(tuple(map(str, arguments)), ROOT, surroundings(urls_of(settings)), streams)
    try:
        yield
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait(30)


@asynccontextmanager
async def holding(settings: Settings, lock: str) -> AsyncIterator[None]:
    """On a connection that does nothing else: an index that is built concurrently waits for those that read."""
    async with looking_into(settings) as holder, holder.database.transaction():
        await holder.database.execute(lock)
        yield


async def answered(client: Client, session: str) -> list[dict[str, Any]]:
    results = await client.get(f"/sessions/{session}/tool-results")
    return [*await client.messages(session), *results["items"]]


async def test_a_backup_of_a_service_in_a_turn_goes_on_elsewhere_and_runs_nothing_twice(
    settings: Settings, servers: ServerUrls, provider: Provider, shelf: Shelf, tmp_path: Path, stores: Stores
) -> None:
    settings = settings.model_copy(update={"turn_lease_s": 3, "tool_timeout_s": 4 * PATIENCE_S})  # what burns, burns
    provider.will_to("Rossi", planned(THREE_STEPS))
    provider.will_to("brucia", calls(("mcp_burn_item", {"item_id": "itm-9"})))
    async with running(settings) as client, elsewhere(servers, settings) as other:
        asked, cut_off = await client.new_session(), await client.new_session()
        assert (await client.chat(asked, ASK))["plan"]["status"] == "waiting"
        assert (await client.chat(cut_off, "brucia itm-9"))["plan"]["status"] == "waiting"
        approved = (await client.send(cut_off, "sì", background=True)).json()["turn_id"]
        await shelf.wait_for("burn itm-9")
        file = await backed_up(settings, tmp_path / "segue.backup")
        assert file.stat().st_mode & 0o777 == 0o600
        code, said = await ran(other, "restore", file)
        assert code == 0, said
        async with looking_into(other) as restored:
            assert await restored.database.fetch(SEQUENCES) == await stores.database.fetch(SEQUENCES)
            assert await restored.database.fetch(INDEXES) == await stores.database.fetch(INDEXES)
            assert await schema(restored.database) == await schema(stores.database)
        async with running(other) as there:
            assert await answered(there, asked) == await answered(client, asked)
            provider.always("brucia", says("Non so se è bruciato."))
            [_, turn] = await there.ended(cut_off, 2)
            provider.will_to("Rossi", says("Cancellata."))
            assert (await there.chat(asked, "sì, grazie"))["plan"]["status"] == "completed"
            [call] = (await there.get(f"/sessions/{cut_off}/tool-results"))["items"]
        await client.http.post(f"/sessions/{cut_off}/turns/{approved}/cancel")
    assert (turn["status"], turn["attempts"], call["status"]) == ("completed", 2, "unknown")
    assert sorted(shelf.effects) == ["burn itm-9", "delete itm-1", "get itm-1"]


@pytest.mark.sweep
async def test_a_store_that_is_in_use_or_not_empty_is_refused_and_force_replaces_all_of_it(
    settings: Settings, provider: Provider, tmp_path: Path, stores: Stores
) -> None:
    provider.will(says("Ciao."))
    async with running(settings) as client:
        session = await client.new_session()
        await client.chat(session, "ciao")
        file = await backed_up(settings, tmp_path / "segue.backup")
        code, said = await ran(settings, "restore", file, "--force")
        assert (code, "Stop it first" in said) == (2, True)
        later = await client.new_session()
    code, said = await ran(settings, "restore", file)
    assert (code, "not empty: audit, sessions, turns" in said) == (2, True)
    await stores.redis.set(f"segue:memory:{session}", "of a turn that has not happened")
    code, said = await ran(settings, "restore", file, "--force")
    assert code == 0, said
    assert await stores.keys() == []
    async with running(settings) as client:
        assert [message["content"] for message in await client.messages(session)] == ["ciao", "Ciao."]
        assert (await client.http.get(f"/sessions/{later}")).status_code == 404


async def test_a_file_that_is_damaged_changed_or_newer_changes_nothing(
    settings: Settings, tmp_path: Path, stores: Stores
) -> None:
    await stores.database.execute(A_SESSION, "ses_1")
    whole = await backed_up(settings, tmp_path / "whole")
    with ZipFile(whole) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    altered = members["sessions"].replace(b"ada", b"bob")
    damaged = {
        "cut": (whole.read_bytes()[:-100], "it is damaged"),
        "without its beginning": (whole.read_bytes()[1000:], "it is damaged"),
        "changed": (rewritten(tmp_path, members | {"sessions": altered}), "sessions is not what"),
        "newer": (rewritten(tmp_path, members | newer(members)), "0999"),
    }  # fmt: skip
    for name, (content, told) in damaged.items():
        (tmp_path / name).write_bytes(content)
        code, said = await ran(settings, "restore", tmp_path / name, "--force")
        assert (code, told in said, "Traceback" in said) == (2, True, False), (name, said)
    code, said = await ran(settings, "restore", Path(os.devnull), "--force")
    assert (code, "cannot be restored: it is a device, which may have no end." in said) == (2, True), said
    assert await stores.database.fetchval("SELECT id FROM sessions") == "ses_1"
    assert await stores.database.fetchval(LEFT_OVER) is False


@pytest.mark.parametrize("lost", [ConnectionError("unexpected connection_lost() call"), TimeoutError()])
async def test_a_database_that_is_lost_in_a_restore_is_no_damage_of_the_file(
    lost: OSError, settings: Settings, tmp_path: Path
) -> None:
    whole = await backed_up(settings, tmp_path / "whole")
    with pytest.raises(type(lost)), opened_archive(whole):
        raise lost


def rewritten(folder: Path, members: dict[str, bytes]) -> bytes:
    with ZipFile(folder / "rewritten", "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return (folder / "rewritten").read_bytes()


def newer(members: dict[str, bytes]) -> dict[str, bytes]:
    return {"manifest.json": json.dumps(json.loads(members["manifest.json"]) | {"revision": "0999"}).encode()}


@pytest.mark.sweep
async def test_a_restore_that_is_killed_has_changed_nothing_and_the_next_one_is_whole(
    settings: Settings, tmp_path: Path, stores: Stores
) -> None:
    await stores.database.execute(A_SESSION, "ses_1")
    file = await backed_up(settings, tmp_path / "segue.backup")
    await stores.database.execute("UPDATE sessions SET id = 'ses_2'")
    before_it_is_filled = f"SELECT pg_advisory_xact_lock({MIGRATION_LOCK})", LEFT_OVER
    before_it_is_swapped_in = "LOCK TABLE sessions IN ACCESS SHARE MODE", WAITS.format("sessions")
    for lock, reached in (before_it_is_filled, before_it_is_swapped_in):
        async with holding(settings, lock):
            with killed(settings, "restore", file, "--force"):
                await until(partial(stores.database.fetchval, reached))
        await until(lambda: gone(stores))
        assert await stores.database.fetchval("SELECT id FROM sessions") == "ses_2"
        assert await stores.database.fetchval(LEFT_OVER) is True
    code, said = await ran(settings, "restore", file, "--force")
    assert code == 0, said
    assert await stores.database.fetchval("SELECT id FROM sessions") == "ses_1"
    assert await stores.database.fetchval(LEFT_OVER) is False


@pytest.mark.sweep  # a restore that is killed is the harder half
async def test_a_backup_that_is_killed_leaves_no_file_of_this_name_and_the_next_one_is_whole(
    settings: Settings, tmp_path: Path, stores: Stores
) -> None:
    file = tmp_path / "segue.backup"
    (tmp_path / "segue.backup.part").write_bytes(b"of one that was killed" * 1000)
    async with holding(settings, "LOCK TABLE tool_results"):
        with killed(settings, "backup", file):
            await until(lambda: stores.database.fetchval(WAITS.format("tool_results")))
    assert files(tmp_path) == ["segue.backup.part"]
    await backed_up(settings, file)
    assert files(tmp_path) == ["segue.backup"]
    with ZipFile(file) as archive:
        assert archive.testzip() is None
    code, said = await ran(settings, "backup", file)
    assert (code, "File exists" in said) == (2, True)


def files(folder: Path) -> list[str]:
    return [path.name for path in folder.glob("segue.*")]


@pytest.mark.sweep
async def test_a_backup_that_does_not_fit_the_disk_says_so_and_leaves_no_file(
    settings: Settings, tmp_path: Path, stores: Stores
) -> None:
    await stores.database.execute(SESSIONS)
    # -B: the limit would cut the bytecode of a module that has changed, and every later import of it would fail.
    limited = f"ulimit -f 64; exec {sys.executable} -B -m segue backup {tmp_path / 'segue.backup'}"
    environment = surroundings(urls_of(settings))
    done = await asyncio.to_thread(partial(run, ["sh", "-c", limited], env=environment, capture_output=True, text=True))
    said = "segue.backup cannot be written: File too large. Make room there"
    assert (done.returncode, said in done.stderr) == (2, True), done.stderr
    assert files(tmp_path) == []


async def test_no_time_limit_of_a_statement_ends_a_copy(settings: Settings) -> None:
    database = Database(urls_of(settings)["DATABASE_URL"], writing=1, reading=1)
    async with database.transaction() as connection, driver_of(connection) as driver:
        assert await driver.fetchval("SHOW statement_timeout") == "0"
    await database.close()


async def test_a_statement_that_takes_too_long_is_a_copy_that_failed(settings: Settings) -> None:
    database = Database(urls_of(settings)["DATABASE_URL"], writing=1, reading=1)
    with pytest.raises(AppError) as late:
        async with database.transaction() as connection, driver_of(connection) as driver:
            await driver.execute("SELECT pg_sleep(60)", timeout=0.05)
    assert (late.value.code, "did not answer in time" in late.value.detail) == ("copy_failed", True)
    await database.close()


async def gone(stores: Stores) -> bool:
    return bool(await stores.database.fetchval(OURS) == 0)


def test_where_there_is_no_store_none_is_made_for_a_backup(tmp_path: Path) -> None:
    code, said = segue("backup", str(tmp_path / "file"), DATA_DIR=str(tmp_path / "data"))
    assert (code, "There is no database in" in said) == (2, True)
    assert list(tmp_path.iterdir()) == []


async def test_a_copy_behind_a_pooler_that_keeps_no_sessions_is_refused_before_it_changes_any(
    settings: Settings, tmp_path: Path
) -> None:
    behind = {**urls_of(settings), "DATABASE_POOLER": "transaction"}
    (made := tmp_path / "made").touch()
    for command in (("backup", str(tmp_path / "new")), ("restore", str(made))):
        code, said = await asyncio.to_thread(partial(segue, *command, **behind))
        assert (code, "give the DATABASE_URL that leads past the pooler" in said) == (2, True)
    assert not (tmp_path / "new").exists()
