"""Asks the fork server for processes. As a script it stands for `python` where a shell starts one, and hands on the
descriptors that it was given:

    python -I -S fork_client.py SOCKET -m segue ARGUMENTS

It imports little and only from the standard library, so that the script starts fast. It must not know what runs.
"""

import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from threading import Lock

SOCKET = "SEGUE_FORK_SERVER"  # the environment variable with the path of the server's socket
BYTES = 4  # of a number on the wire
FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
MOST = 16  # descriptors of a process, and the pipe for its end
Streams = tuple[int, int, int]


class Forked:
    """A process that the server has started: the part of `subprocess.Popen` that the tests use."""

    def __init__(self, status: int) -> None:
        """`status` is a pipe on which the server writes the process id and, at the end, the exit code."""
        self._status = status
        self.pid = self._number()
        self.returncode: int | None = None

    def wait(self, timeout: float | None = None) -> int:
        """Returns the exit code; minus the number of the signal that ended it. Raises subprocess.TimeoutExpired."""
        if self.returncode is None:
            if not select.select([self._status], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired("segue", timeout or 0)
            self.returncode = self._number()
            os.close(self._status)
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Sends nothing to a process that has ended: its id may belong to another one."""
        if self.returncode is None and not select.select([self._status], [], [], 0)[0]:
            os.kill(self.pid, number)

    def _number(self) -> int:
        number = os.read(self._status, BYTES)
        assert number, "the fork server has ended"
        return int.from_bytes(number, signed=True)


class ForkServer:
    """A connection to the server, made with the first process. When it closes, the server kills all of them."""

    def __init__(self, path: str | None = None) -> None:
        """Without a path it is the server of this test run."""
        self._path = path
        self._lock = Lock()
        self._connection: socket.socket | None = None

    def start(
        self,
        arguments: Sequence[str],
        cwd: str | os.PathLike[str],
        environment: Mapping[str, str],
        streams: Streams,
        given: Sequence[int] = (),
    ) -> Forked:
        """Runs `python` with these arguments on copies of these streams, and on those given under their own numbers."""
        request = json.dumps([[*arguments], os.fspath(cwd), dict(environment), [0, 1, 2, *given]]).encode()
        status, told = os.pipe()
        with self._lock:
            if self._connection is None:
                self._connection = socket.socket(socket.AF_UNIX)
                self._connection.connect(self._path or os.environ[SOCKET])
            socket.send_fds(self._connection, [len(request).to_bytes(BYTES)], [*streams, *given, told])
            self._connection.sendall(request)
        os.close(told)
        return Forked(status)

    def close(self) -> None:
        with self._lock:
            if self._connection is not None:
                self._connection.close()


def command(path: str) -> tuple[str, ...]:
    """What stands for `python`, of which the server that listens there forks one."""
    return sys.executable, "-I", "-S", __file__, path


def main() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)
    given = [number for number in map(int, os.listdir("/dev/fd")) if number > 2 and _is_open(number)]  # noqa: PTH208
    server = ForkServer(sys.argv[1])
    process = server.start(sys.argv[2:], os.getcwd(), os.environ, (0, 1, 2), given)  # noqa: PTH109 (a slow import)
    for number in given:
        os.close(number)
    for number in FORWARDED:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, lambda number, _: process.send_signal(number))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED)
    _end(process.wait())


def _is_open(number: int) -> bool:
    """Not the one that the folder was read with."""
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


def _end(code: int) -> None:
    """Ends this process as the other one has ended."""
    if code < 0:
        with suppress(OSError):  # SIGKILL has no handler to take away
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    sys.exit(code)


if __name__ == "__main__":
    main()
