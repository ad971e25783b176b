"""The service that `segue chat` talks to without --url: the one that runs, or one that it starts and stops."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import httpx2

from segue.commands.chat.api import Refused
from segue.config import Settings
from segue.domain.identity import is_loopback

ASK_S = 2.0
START_S = 120.0  # the first start makes a database
STOP_S = 30.0
POLL_S = 0.05
SHOWN_LOG_LINES = 8


@contextmanager
def local_service(settings: Settings, note: Callable[[str], None]) -> Iterator[str]:
    """Yields its base URL. Raises Refused if a service has to be started and does not start."""
    url = _url(settings.host if is_loopback(settings.host) else "127.0.0.1", settings.port)
    if settings.port and _answers(url):
        yield url
        return
    own = _url("127.0.0.1", _free_port())
    note(f"No service answers at {url}; starting one for this conversation, with DATA_DIR={settings.data_dir} …")
    with tempfile.TemporaryFile() as log:
        process = _start(own, log)
        try:
            _wait_for(process, own, log)
            note(f"It serves at {own} until you leave.")
            yield own
        finally:
            _stop(process)


def _start(url: str, log: IO[bytes]) -> subprocess.Popen[bytes]:
    """Starts it in a process session of its own, which Ctrl-C does not reach."""
    path = os.pathsep.join(filter(None, (str(Path(__file__).parents[3]), os.environ.get("PYTHONPATH"))))
    return subprocess.Popen(  # noqa: S603 (our own program)
        [
            sys.executable,
            "-P",
            "-m",
            "segue",
            "serve",
            "--host",
            "127.0.0.1",
            "--port",
            url.rpartition(":")[2],
        ],
        env={**os.environ, "PYTHONPATH": path},
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        start_new_session=True,
    )


def _wait_for(process: subprocess.Popen[bytes], url: str, log: IO[bytes]) -> None:
    deadline = time.monotonic() + START_S
    while not _answers(url):
        if process.poll() is not None or time.monotonic() > deadline:
            log.seek(0)
            lines = log.read().decode(errors="replace").splitlines()[-SHOWN_LOG_LINES:]
            raise Refused("\n".join(("The service does not start. Its log ends so:", *lines)))
        time.sleep(POLL_S)


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Waits for its end however often Ctrl-C is pressed: nothing else would stop it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _answers(url: str) -> bool:
    """Returns whether Segue answers there."""
    try:
        response = httpx2.get(f"{url}/health/live", timeout=ASK_S, trust_env=False)
    except httpx2.HTTPError:
        return False
    return response.is_success and "X-Request-Id" in response.headers


def _url(host: str, port: int) -> str:
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])
