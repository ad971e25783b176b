"""Ends the servers of a data folder once no process uses them, or the folder is deleted.

A process of its own, because `kill -9` leaves those who use the servers no time to stop them. It imports nothing of
Segue, because it runs as long as they do: 10 MB, 20 ms to start.
"""

import fcntl
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

CHECK_EVERY = 1.0  # seconds
LOCKS = ("door.lock", "users.lock", "redis.lock", "postgres.lock")
PS = "/bin/ps -ww -o pid= -o command="

REDIS_STOPS = ((signal.SIGTERM, 5.0), (signal.SIGKILL, 5.0))  # tried in this order, each for a number of seconds
POSTGRES_STOPS = ((signal.SIGINT, 20.0), (signal.SIGQUIT, 5.0), (signal.SIGKILL, 5.0))


def watch(folder: str, sockets: str) -> None:
    """Returns once the servers have ended. The path of their sockets, in their command lines, tells them from others:
    a deleted folder has no pid files, and may have been made anew with servers of its own.
    """
    door, users, *servers = (os.open(f"{folder}/{name}", os.O_RDWR) for name in LOCKS)
    while True:
        time.sleep(CHECK_EVERY)
        if not try_lock(door):
            continue  # a process is starting or stopping them
        deleted = not is_in_place(door, folder)
        if deleted or try_lock(users):
            _end(f"--unixsocket {sockets}/redis.sock", REDIS_STOPS)
            _end(f"unix_socket_directories={sockets}", POSTGRES_STOPS)
            if all(try_lock(lock) for lock in servers):
                _remove(sockets, "" if deleted else f"{folder}/sockets")
                return
            unlock(*servers, users)
        unlock(door)


def _end(sign: str, stops: tuple[tuple[signal.Signals, float], ...]) -> None:
    for number, patience in stops:
        pids = send(sign, number)
        if wait_until(lambda: not pids_of(sign, *pids), patience):  # noqa: B023 (called at once)
            return


def _remove(sockets: str, link: str) -> None:
    with suppress(OSError):
        for name in os.listdir(sockets):
            if name in ("redis.sock", ".s.PGSQL.5432", ".s.PGSQL.5432.lock"):
                os.unlink(f"{sockets}/{name}")
        os.rmdir(sockets)
    with suppress(OSError):
        os.unlink(link)


# --- files and processes, as `server_process.py` asks for them too ---


def is_in_place(descriptor: int, folder: str) -> bool:
    """Returns whether the door's file is still that of the folder."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(f"{folder}/door.lock"))
    except (FileNotFoundError, NotADirectoryError):
        return False


def try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def unlock(*descriptors: int) -> None:
    for descriptor in descriptors:
        fcntl.flock(descriptor, fcntl.LOCK_UN)


def wait_until(condition: Callable[[], bool], timeout: float) -> bool:
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def send(sign: str, number: signal.Signals) -> list[int]:
    """Returns the processes that got the signal: those with these words in their command lines."""
    pids = pids_of(sign)
    for pid in pids:
        with suppress(OSError):  # it has just ended, or is not ours to end
            os.kill(pid, number)
    return pids


def pids_of(sign: str, *among: int) -> list[int]:
    return [pid for pid, line in command_lines(*among) if f"{sign} " in f"{line} "]


def command_lines(*pids: int) -> Iterator[tuple[int, str]]:
    """Yields the pid and the command line of these processes, or of all."""
    if not os.path.exists("/proc/self/cmdline"):
        with os.popen(f"{PS} {'-p ' + ','.join(map(str, pids)) if pids else '-ax'}") as ps:  # noqa: S605 (numbers)
            for line in ps:
                number, _, command = line.strip().partition(" ")
                yield int(number), command.strip()
        return
    for pid in pids or [int(name) for name in os.listdir("/proc") if name.isdigit()]:
        with suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as file:
            yield pid, os.fsdecode(file.read().replace(b"\0", b" ")).strip()


if __name__ == "__main__":
    watch(sys.argv[1], sys.argv[3])
