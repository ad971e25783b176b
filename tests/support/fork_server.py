"""Starts `segue` commands as processes that need not import the service: a server that has imported it forks them.

Such a process has its own environment, folder, signals and exit code, and a test can kill it, as if a shell had
started it. The server ends with the test run and kills what is left. It must not know what the commands do.
"""

import atexit
import gc
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from threading import Lock

from segue.commands.cli import COMMANDS

ROOT = Path(__file__).resolve().parents[2]
BYTES = 4  # of a number on the wire
Streams = tuple[int, int, int]


class Forked:
    """A process that the server has started: the part of `subprocess.Popen` that the tests use."""

    def __init__(self, status: int) -> None:
        """`status` is a pipe on which the server writes the process id and, at the end, the exit code."""
        self._status = status
        self.pid = self._number()
        self.returncode: int | None = None

    def wait(self, timeout: float) -> int:
        """Returns the exit code; minus the number of the signal that ended it. Raises subprocess.TimeoutExpired."""
        if self.returncode is None:
            if not select.select([self._status], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired("segue", timeout)
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
    """The client of the server, which starts with the first command and ends with this process."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._requests: socket.socket | None = None

    def start(self, arguments: tuple[str, ...], cwd: Path, environment: Mapping[str, str], streams: Streams) -> Forked:
        """Runs `segue` with these arguments on copies of these standard streams."""
        request = json.dumps([arguments, str(cwd), dict(environment)]).encode()
        status, told = os.pipe()
        with self._lock:
            if self._requests is None:
                self._requests = _launch()
            socket.send_fds(self._requests, [len(request).to_bytes(BYTES)], [*streams, told])
            self._requests.sendall(request)
        os.close(told)
        return Forked(status)


def _launch() -> socket.socket:
    ours, theirs = socket.socketpair()
    with theirs:
        number = theirs.fileno()
        server = subprocess.Popen([sys.executable, "-m", __name__, str(number)], cwd=ROOT, pass_fds=[number])
    atexit.register(server.wait)
    atexit.register(ours.close)  # is called first, and ends the server
    return ours


class _Server:
    def __init__(self, requests: socket.socket) -> None:
        self._requests = requests
        self._status: dict[int, int] = {}  # the pipe of each running child

    def serve(self) -> list[str] | None:
        """Returns the arguments of a command, in a child that is to run it; None in the server, at its end."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the tests, which then end this
        signal.signal(signal.SIGCHLD, self._report)
        while True:
            length, descriptors, _, _ = socket.recv_fds(self._requests, BYTES, 4)
            if not length:
                return None
            arguments, cwd, environment = json.loads(self._receive(int.from_bytes(length)))
            *streams, status = descriptors
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
            child = os.fork()
            if child == 0:
                self._become(cwd, environment, streams)
                os.close(status)
                return list(arguments)
            self._status[child] = status
            _write(status, child)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
            for each in streams:
                os.close(each)

    def kill_children(self) -> None:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for child in self._status:
            os.kill(child, signal.SIGKILL)

    def _receive(self, length: int) -> bytes:
        parts = []
        while length:
            parts.append(self._requests.recv(length))
            length -= len(parts[-1])
        return b"".join(parts)

    def _report(self, *_: object) -> None:
        """Writes down the exit code of each child that has ended."""
        while self._status:
            child, code = os.waitpid(-1, os.WNOHANG)
            if child == 0:
                return
            status = self._status.pop(child)
            _write(status, os.waitstatus_to_exitcode(code))
            os.close(status)

    def _become(self, cwd: str, environment: dict[str, str], streams: list[int]) -> None:
        """Makes this child what a shell would start: nothing of the server's is left but what it has imported."""
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
        self._requests.close()
        for status in self._status.values():
            os.close(status)
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
            os.close(stream)
        os.environ.clear()
        os.environ.update(environment)
        time.tzset()
        os.chdir(cwd)
        sys.path[0] = cwd


def _write(status: int, number: int) -> None:
    with suppress(BrokenPipeError):  # the test that asked has ended
        os.write(status, number.to_bytes(BYTES, signed=True))


def _preload() -> None:
    """Imports what the commands do when they run."""
    gc.disable()  # as the command line does
    for entry in COMMANDS.values():
        import_module(f"segue.commands.{entry.target.partition(':')[0]}")
    import_module("segue.embedded.servers")
    import_module("segue.db.migrations")
    gc.freeze()
    gc.enable()


def main() -> None:
    _preload()
    with socket.socket(fileno=int(sys.argv[1])) as requests:
        server = _Server(requests)
        arguments = server.serve()
    if arguments is None:
        server.kill_children()
        return
    sys.argv = ["segue", *arguments]
    runpy.run_module("segue", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
