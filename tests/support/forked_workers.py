"""Forks the workers of a run from one process that has collected its tests: each would import the service and all tests
again, which takes twice as long as all else that a worker does before its first test.

xdist starts a worker as `python -u -c CODE` and speaks to it over its standard streams. That python is a fork client.
"""

import os
import shlex
import signal
import socket
import sys
from collections.abc import Generator, Sequence
from contextlib import suppress
from multiprocessing import get_context
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.support import fork_server, garbage
from tests.support.fork_client import ForkServer, command
from tests.support.fork_server import END_S, ROOT


class _Modules:
    """Of what pytest collects, only the modules: a worker needs its own tests."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_pycollect_makeitem(self) -> list[pytest.Item]:
        return []

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(self, collector: pytest.Collector) -> Generator[None, pytest.CollectReport, Any]:
        """A module that failed or skipped itself stays, half made, and a worker would find it and no error in it."""
        report = yield
        if not report.passed:
            path = str(collector.path)
            for name in [name for name, module in sys.modules.items() if getattr(module, "__file__", None) == path]:
                del sys.modules[name]
        return report


def launch(config: pytest.Config) -> None:
    """Starts the process that forks, and lets xdist ask it for workers. It ends with this process, if not before."""
    listener, connection = fork_server.listening()
    path = listener.getsockname()
    server = get_context("fork").Process(target=_serve, args=(listener, connection, config.invocation_params.args))
    server.start()
    assert server.pid is not None
    pid = server.pid
    listener.close()
    asks = ForkServer(path)

    def end() -> None:
        connection.close()
        asks.close()
        os.kill(pid, signal.SIGINT)  # it may still collect
        server.join(END_S)
        server.kill()

    config.add_cleanup(end)
    config.option.tx = [f"popen//python={shlex.join(command(path))}"] * len(config.option.tx)
    asks.start(("-c", ""), ROOT, {}, (0, 1, 2))  # answered when it has collected


def _serve(listener: socket.socket, connection: socket.socket, options: Sequence[str]) -> None:
    connection.close()
    with suppress(KeyboardInterrupt):  # it is to end as ever
        _collect(options)
    arguments = fork_server.serve(listener, lambda: None)
    if arguments is not None:
        os.setpgrp()  # Ctrl-C is for the process that stands for this one and passes it on: it would come twice
        sys.argv = ["-c"]
        sys.modules["__main__"] = main = ModuleType("__main__")
        exec(arguments[-1], vars(main))  # noqa: S102 (as `python -c` does)


def _collect(options: Sequence[str]) -> None:
    """Imports what a worker would, which then finds it. What is wrong with the tests, each worker sees and says."""
    with Path(os.devnull).open("w") as nowhere:
        os.dup2(nowhere.fileno(), 1)
        os.dup2(nowhere.fileno(), 2)
    pytest.main([*options, "--collect-only", "-n0"], plugins=[_Modules()])
    garbage.keep()
