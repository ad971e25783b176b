"""Starts and ends one server process, and says whether it is alive, under an account that PostgreSQL accepts.

A server is alive while its `flock` is held: the kernel drops it with the last process that has the descriptor. Signals
go to the processes with its command line: a pid in a file outlives its process. Knows nothing of PostgreSQL or Redis.
"""

import importlib.util
import os
import shutil
import signal
import subprocess
import tomllib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from segue.domain.errors import AppError, app_error

try:
    import fcntl
    import pwd

    from segue.around.embedded.watcher import send, try_lock, wait_until
except ImportError as error:  # Windows
    raise app_error("embedded_unavailable") from error

PROBE_TIMEOUT = 10.0  # seconds
TABLES = tomllib.loads(Path(__file__).with_name("servers.toml").read_text("utf-8"))


@dataclass(frozen=True, slots=True)
class Server:
    """One tree of processes. Only they hold its lock, through a descriptor that they inherit."""

    name: str
    path: Path  # has the lock and a log
    sign: str  # a part of the command line of its first process and of no other
    command: tuple[str, ...]
    stop_signals: tuple[tuple[signal.Signals, float], ...]  # tried in order, each for a number of seconds
    leftovers: tuple[Path, ...] = ()
    prepare: Callable[[int], None] = lambda _lock: None  # gets the lock for the programs that it runs
    answers: Callable[[], bool] = lambda: True
    start_timeout: float = PROBE_TIMEOUT

    @property
    def lock(self) -> Path:
        return self.path.with_suffix(".lock")

    @property
    def log(self) -> Path:
        return self.path.with_suffix(".log")


def start_failure(name: str, log: Path) -> AppError:
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    complaints = [line for line in lines if "error:" in line.lower() or "fatal" in line.lower()]
    why = next(reversed(complaints or lines), "it wrote nothing")
    return app_error("embedded_start_failed", name=name, why=why, log=log)


def binary(*programs: tuple[str, str]) -> Path:
    """Returns the first program that is installed, by its package, which is not imported, and a pattern below that."""
    for package, pattern in programs:
        spec = importlib.util.find_spec(package)
        for root in (spec and spec.submodule_search_locations) or []:
            if found := next(Path(root).glob(pattern), None):
                return found
    names = " or ".join(package for package, _ in programs)
    raise app_error("embedded_program_missing", package=names, program=Path(programs[0][1]).name)


def start(server: Server) -> None:
    """Raises AppError `embedded_failed` if the server does not answer in time."""
    for leftover in server.leftovers:
        leftover.unlink(missing_ok=True)
    with private_file(server.lock) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        server.prepare(lock)
        with new_log(server.log) as log:
            # The shell exits at once, so init adopts and reaps the server.
            run(["/bin/sh", "-c", '"$@" &', "sh", *server.command], output=log, lock=lock)
    if not wait_until_it_answers(server):
        raise start_failure(server.name, server.log)


def run(
    command: Sequence[str],
    *,
    given: bytes = b"",
    output: int = subprocess.DEVNULL,
    lock: int | None = None,
    timeout: float = PROBE_TIMEOUT,
) -> bool:
    """Returns whether it succeeded. It runs in its own process session, out of reach of Ctrl-C, and inherits `lock`."""
    with suppress(subprocess.TimeoutExpired):
        done = subprocess.run(  # noqa: S603 our own binaries
            command,
            input=given,
            stdout=output,
            stderr=output,
            env={"PATH": os.defpath, "LC_ALL": "C"},  # none of our own: the servers need none of its secrets
            cwd="/",
            umask=0o077,
            start_new_session=True,
            pass_fds=[] if lock is None else [lock],
            timeout=timeout,
            check=False,
        )
        return done.returncode == 0
    return False


def wait_until_it_answers(server: Server) -> bool:
    """Returns whether the server answers, once it has finished starting or stopping."""
    return wait_until(lambda: not is_alive(server) or server.answers(), server.start_timeout) and is_alive(server)


def end(server: Server) -> None:
    for number, patience in server.stop_signals:
        # What has just started may still have the command line of the shell.
        wait_until(lambda: not is_alive(server) or bool(send(server.sign, number)), patience)  # noqa: B023 called at once
        if wait_until(lambda: not is_alive(server), patience):
            return
    raise app_error("embedded_stop_failed", name=server.name, folder=server.path.parent, log=server.log)


def is_alive(server: Server) -> bool:
    with private_file(server.lock) as lock:
        return not try_lock(lock)


@contextmanager
def new_log(path: Path) -> Iterator[int]:
    """Yields an empty log; the one before it is kept as `.1`."""
    if path.exists():
        path.replace(f"{path}.1")
    with private_file(path, os.O_WRONLY | os.O_APPEND) as descriptor:
        yield descriptor


@contextmanager
def private_file(path: Path, flags: int = os.O_RDWR) -> Iterator[int]:
    """Yields the descriptor of a file for this account only, made if missing."""
    descriptor = os.open(path, flags | os.O_CREAT, 0o600)
    try:
        if is_root():  # once with sudo must not lock the owner of the folder out
            os.fchown(descriptor, path.parent.stat().st_uid, -1)
        yield descriptor
    finally:
        os.close(descriptor)


def share_lock(descriptor: int) -> None:
    fcntl.flock(descriptor, fcntl.LOCK_SH)


# --- accounts ---


def is_root() -> bool:
    return os.geteuid() == 0


def account_for(*folders: Path) -> pwd.struct_passwd | None:
    """Returns the account for PostgreSQL, which refuses root: the folders' owner or `nobody`. None if not root."""
    if not is_root():
        return None
    for folder in folders:
        if folder.exists() and (owner := folder.stat().st_uid):
            with suppress(KeyError):
                return pwd.getpwuid(owner)
    return pwd.getpwnam("nobody")


def names_of(*uids: int) -> set[str]:
    """Returns the user names, ours first. Raises AppError if our user has none, which PostgreSQL needs."""
    try:
        names = {pwd.getpwuid(os.geteuid()).pw_name}
    except KeyError as error:
        raise app_error("embedded_user_nameless", uid=os.geteuid()) from error
    for uid in uids:
        with suppress(KeyError):
            names.add(pwd.getpwuid(uid).pw_name)
    return names


def as_account(account: pwd.struct_passwd | None, *needed: Path) -> list[str]:
    """Returns the prefix of a command that runs as `account` and reaches the `needed` paths."""
    if account is None:
        return []
    setpriv = shutil.which("setpriv", path=os.defpath)
    if setpriv is None:
        raise app_error("embedded_as_root")
    command = [setpriv, f"--reuid={account.pw_uid}", f"--regid={account.pw_gid}", "--clear-groups", "--no-new-privs"]
    above = [folder.stat() for path in needed for folder in path.resolve().parents]
    if not all(it.st_mode & 0o001 or (it.st_uid == account.pw_uid and it.st_mode & 0o100) for it in above):
        # Below /root, say: the process keeps root's access to folders, instead of opening them to everyone.
        # Without the securebit, access(2) ignores capabilities, and initdb does not find its programs.
        way_in = "-all,+dac_override"
        command += ["--securebits=+no_setuid_fixup", f"--inh-caps={way_in}", f"--ambient-caps={way_in}"]
    return command


def hand_over(folder: Path, account: pwd.struct_passwd | None) -> None:
    if account is None or folder.stat().st_uid == account.pw_uid:
        return
    for path in (folder, *folder.rglob("*")):
        os.chown(path, account.pw_uid, account.pw_gid, follow_symlinks=False)
