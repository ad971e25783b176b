"""The command line as a user runs it, in a process of its own: forked from one that has imported Segue, or fresh."""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryFile
from typing import Protocol

from tests.support import fork_client
from tests.support.fork_client import Forked, ForkServer, Streams

ROOT = Path(__file__).resolve().parents[2]
INHERITED = ("PATH", "HOME", "TMPDIR", "LANG", "PYTHONPATH")
TIMEOUT_S = 200  # below that of a test
forks = ForkServer()


class Started(Protocol):
    """What subprocess.Popen and Forked share."""

    @property
    def pid(self) -> int: ...

    def wait(self, timeout: float) -> int: ...

    def send_signal(self, sig: int, /) -> None: ...


class Starter(Protocol):
    def __call__(
        self, arguments: tuple[str, ...], cwd: Path, environment: Mapping[str, str], streams: Streams, /
    ) -> Started: ...


def forked(arguments: tuple[str, ...], cwd: Path, environment: Mapping[str, str], streams: Streams) -> Forked:
    """Starts a process that has imported the service already."""
    return forks.start(("-m", "segue", *arguments), cwd, environment, streams)


def fresh(arguments: tuple[str, ...], cwd: Path, environment: Mapping[str, str], streams: Streams) -> Started:
    """Starts a new Python, as the shell of a user does. It takes seconds of processor time to import the service."""
    stdin, stdout, stderr = streams
    command = [sys.executable, "-m", "segue", *arguments]
    return subprocess.Popen(command, cwd=cwd, env=environment, stdin=stdin, stdout=stdout, stderr=stderr)


def python() -> tuple[str, ...]:
    """What stands for `python` where another program starts one: it has imported Segue and the MCP SDK already."""
    return fork_client.command(os.environ[fork_client.SOCKET])


def segue(*arguments: str, **environment: str) -> tuple[int, str]:
    """The exit code and everything that was printed."""
    done = piped("", *arguments, **environment)
    return done.returncode, done.stdout + done.stderr


def piped(given: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """What became of it, with this on its standard input."""
    reads, writes = os.pipe()
    os.write(writes, given.encode())
    os.close(writes)
    with TemporaryFile("w+") as stdout, TemporaryFile("w+") as stderr:
        process = forked(arguments, ROOT, surroundings(environment), (reads, stdout.fileno(), stderr.fileno()))
        os.close(reads)
        try:
            code = process.wait(TIMEOUT_S)
        finally:
            process.send_signal(signal.SIGKILL)
        stdout.seek(0)
        stderr.seek(0)
        return subprocess.CompletedProcess(arguments, code, stdout.read(), stderr.read())


def surroundings(environment: dict[str, str]) -> dict[str, str]:
    """The environment of a process: none of the test run's own settings, but the same code."""
    return {**{name: os.environ[name] for name in INHERITED if name in os.environ}, **environment}
