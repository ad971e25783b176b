"""A `segue serve` of the caller's own. Runs with the standard library alone, and knows nothing of who talks to it."""

import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

HOST = "127.0.0.1"
STOP_S = 30.0
SHOWN_LOG_LINES = 20


class OwnService:
    """A `segue serve` as a child process on a free port of this machine. `environment` is all of its environment, apart
    from the path of Segue's code. It runs in `folder`.
    """

    def __init__(self, log: Path, environment: Mapping[str, str], *, folder: Path | None = None) -> None:
        # Bound until the service has stopped: a port that was only found free may be another program's by its start.
        self._listener = socket.socket()
        self._listener.bind((HOST, 0))
        self.url = f"http://{HOST}:{self._listener.getsockname()[1]}"
        self._log = log
        self._folder = folder
        path = os.pathsep.join(filter(None, (str(Path(__file__).parents[2]), environment.get("PYTHONPATH"))))
        self._environment = {**environment, "PYTHONPATH": path}
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Starts it in a process session of its own, which Ctrl-C does not reach. It may not answer yet, and once it
        has been killed, requests wait for the next start.
        """
        fd = self._listener.fileno()
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603 (our own program)
                [sys.executable, "-P", "-m", "segue", "serve", "--fd", str(fd)],
                pass_fds=(fd,),
                cwd=self._folder,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    @property
    def has_ended(self) -> bool:
        return self._process is not None and self._process.poll() is not None

    def log_end(self) -> str:
        return "\n".join(self._log.read_text("utf-8", "replace").splitlines()[-SHOWN_LOG_LINES:])

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def stop(self) -> None:
        """Blocks until it has ended, for half a minute at most. It does not start again."""
        self._listener.close()
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.kill()
