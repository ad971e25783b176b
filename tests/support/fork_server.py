"""Starts Pythons that need not import the service: one server for a whole test run has imported it and forks them.

Such a process has its own environment, folder, signals and exit code, and a test can kill it, as if a shell had started
it. It belongs to the connection that asked for it, and is killed when that is closed. What such a process starts with
`python -P -m`, as the commands start the service, or with a script, as an MCP server, is forked too. The server imports
nothing before the first request, and ends with its last connection. It must not know what the processes do.
"""

import atexit
import fcntl
import gc
import json
import os
import runpy
import select
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

from tests.support import fork_client
from tests.support.fork_client import BYTES, MOST, SOCKET

ROOT = Path(__file__).resolve().parents[2]
END_S = 10
PYTHON = "python"  # beside the socket
STANDS_FOR_PYTHON = """#!/bin/sh
case "$1" in
-P) shift; exec {python} -I -S {client} {socket} "$@" ;;
*.py) exec {python} -I -S {client} {socket} "$@" ;;
esac
exec {python} "$@"
"""
PRELOADED = (
    "segue.around.embedded.servers",
    "segue.around.service_process",
    "segue.db.migrations",
    "mcp.server.mcpserver",
)  # imported late, or by MCP servers


def launch() -> Callable[[], None]:
    """Starts the server of this test run, for this process and those it starts. Returns what ends it."""
    listener, connection = listening()
    path = Path(listener.getsockname())
    stands_for_python = path.with_name(PYTHON)
    parts = {"python": sys.executable, "client": fork_client.__file__, "socket": str(path)}
    stands_for_python.write_text(
        STANDS_FOR_PYTHON.format_map({name: shlex.quote(part) for name, part in parts.items()})
    )
    stands_for_python.chmod(0o700)
    with listener:
        number = listener.fileno()
        command = [sys.executable, "-m", __name__, str(number)]
        server = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, pass_fds=[number])
    os.environ[SOCKET] = str(path)

    def end() -> None:
        connection.close()
        server.wait(END_S)

    return end


def listening() -> tuple[socket.socket, socket.socket]:
    """What a server listens on, and the first connection, which keeps the server while there is no other."""
    listener, connection = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)
    path = Path(tempfile.mkdtemp(prefix="forks-")) / "socket"
    listener.bind(str(path))
    listener.listen()
    connection.connect(str(path))
    return listener, connection


class _Request(NamedTuple):
    arguments: list[str]
    cwd: str
    environment: dict[str, str]
    streams: dict[int, int]  # under which numbers it has them
    status: int  # the pipe on which to write the process id and the exit code


class _Child(NamedTuple):
    connection: socket.socket
    status: int


class _Server:
    def __init__(self, listener: socket.socket, preload: Callable[[], None]) -> None:
        self._listener = listener
        self._preload = preload
        self._connections: list[socket.socket] = []
        self._children: dict[int, _Child] = {}
        self._signals, self._signalled = socket.socketpair()
        self._signals.setblocking(False)
        self._signalled.setblocking(False)

    def serve(self) -> list[str] | None:
        """Returns the arguments of a child, in that child; None in the server, when all connections are closed."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the tests, which then end this
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._signalled.fileno(), warn_on_full_buffer=False)
        self._accept()
        while self._connections or self._children:
            for ready in select.select([self._listener, self._signals, *self._connections], [], [])[0]:
                if ready is self._listener:
                    self._accept()
                elif ready is self._signals:
                    self._report()
                elif (request := _received(ready)) is None:
                    self._drop(ready)
                elif self._fork(ready, request):
                    return request.arguments
        return None

    def _accept(self) -> None:
        self._connections.append(self._listener.accept()[0])

    def _drop(self, connection: socket.socket) -> None:
        for child, (asked_by, _) in self._children.items():
            if asked_by is connection:
                os.kill(child, signal.SIGKILL)
        self._connections.remove(connection)
        connection.close()

    def _report(self) -> None:
        """Writes down the exit code of each child that has ended."""
        self._signals.recv(1024)
        while self._children:
            child, code = os.waitpid(-1, os.WNOHANG)
            if child == 0:
                return
            status = self._children.pop(child).status
            _write(status, os.waitstatus_to_exitcode(code))
            os.close(status)

    def _fork(self, connection: socket.socket, request: _Request) -> bool:
        """Returns whether this is the child."""
        self._preload()
        child = os.fork()
        if child == 0:
            self._become(request)
            return True
        self._children[child] = _Child(connection, request.status)
        _write(request.status, child)
        for each in request.streams.values():
            os.close(each)
        return False

    def _become(self, request: _Request) -> None:
        """Makes this child what a shell would start: nothing of the server's is left but what it has imported."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for each in (self._listener, self._signals, self._signalled, *self._connections):
            each.close()
        for status in (request.status, *(child.status for child in self._children.values())):
            os.close(status)
        above = max(request.streams) + 1
        for number, stream in [(number, _moved(stream, above)) for number, stream in request.streams.items()]:
            os.dup2(stream, number)
            os.close(stream)
        _reopen_standard_streams()
        os.environ.clear()
        os.environ.update(request.environment)
        time.tzset()
        os.chdir(request.cwd)
        sys.path[0] = request.cwd


def _received(connection: socket.socket) -> _Request | None:
    """Returns None if the other side has closed the connection."""
    length, descriptors, _, _ = socket.recv_fds(connection, BYTES, MOST)
    left, body = int.from_bytes(length), b""
    while left and (part := connection.recv(left)):
        body += part
        left -= len(part)
    if left or not body:
        for each in descriptors:
            os.close(each)
        return None
    arguments, cwd, environment, numbers = json.loads(body)
    *streams, status = descriptors
    return _Request(arguments, cwd, environment, dict(zip(numbers, streams, strict=True)), status)


def _moved(descriptor: int, above: int) -> int:
    """The same one under a number that none of those has which a process is to have."""
    moved = fcntl.fcntl(descriptor, fcntl.F_DUPFD, above)
    os.close(descriptor)
    return moved


def _reopen_standard_streams() -> None:
    """Those of the server remember what they were opened on: if it was a terminal, and if it had positions."""
    sys.stdin = os.fdopen(0, encoding=sys.stdin.encoding, errors=sys.stdin.errors, closefd=False)
    sys.stdout = os.fdopen(1, "w", encoding=sys.stdout.encoding, errors=sys.stdout.errors, closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, encoding=sys.stderr.encoding, errors=sys.stderr.errors, closefd=False)


def _write(status: int, number: int) -> None:
    with suppress(BrokenPipeError):  # the test that asked has ended
        os.write(status, number.to_bytes(BYTES, signed=True))


@cache
def _preload() -> None:
    gc.disable()  # as the command line does
    commands = import_module("segue.around.cli").COMMANDS
    for entry in commands.values():
        import_module(f"segue.around.{entry['target'].partition(':')[0]}")
    for module in PRELOADED:
        import_module(module)
    import_module("segue.language.lexicon").read_all()
    gc.freeze()
    gc.enable()


def serve(listener: socket.socket, preload: Callable[[], None]) -> list[str] | None:
    """Returns the arguments of a child, in that child. Removes the socket and its folder in the server. Before the
    first child is forked it is called what all of them are to find imported.
    """
    path = Path(listener.getsockname())
    arguments = _Server(listener, preload).serve()
    if arguments is None:
        path.with_name(PYTHON).unlink(missing_ok=True)
        path.unlink()
        path.parent.rmdir()
    return arguments


def _run(arguments: list[str]) -> None:
    """Does what `python` does with these arguments: a script and its own, or -m, a module and its own."""
    if arguments[0] == "-m":
        sys.argv = arguments[1:]
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv = arguments
        sys.path[0] = str(Path(sys.argv[0]).parent)
        runpy.run_path(sys.argv[0], run_name="__main__")


def _leave(codes: list[int]) -> None:
    """Ends a child here: to take apart all that was imported takes Python a quarter of a second more."""
    if codes:
        for stream in filter(None, (sys.stdout, sys.stderr)):
            stream.flush()
        os._exit(codes[0])


def main() -> None:
    codes: list[int] = []
    atexit.register(_leave, codes)  # the first, which is called last
    with socket.socket(fileno=int(sys.argv[1])) as listener:
        stands_for_python = Path(listener.getsockname()).with_name(PYTHON)
        arguments = serve(listener, _preload)
    if arguments is not None:
        sys.executable = str(stands_for_python)
        try:
            _run(arguments)
        except SystemExit as end:
            if end.code is None or isinstance(end.code, int):
                codes.append(end.code or 0)
            raise
        codes.append(0)


if __name__ == "__main__":
    main()
