"""Several processes with one address: a supervisor forks them, replaces those that end, and passes signals on. It runs
no event loop and no thread, since a fork copies neither whole. The processes share what it has imported.
"""

import gc
import os
import select
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NoReturn

from segue.log import log

SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD)
PAUSES_S: Final = (0.0, 0.5, 1.0, 2.0, 5.0, 10.0)  # before the next try of a process that does not get ready
READY: Final = b"r"


@dataclass(frozen=True, slots=True)
class ProcessPlace:
    """What one of the processes knows of itself: its number from 0, a folder for sockets, and two pipes' ends."""

    number: int
    folder: Path
    supervisor_gone: int  # can be read from once the supervisor has ended
    _is_ready: int

    def ready(self) -> None:
        with suppress(OSError):  # the supervisor was killed
            os.write(self._is_ready, READY)


Run = Callable[[ProcessPlace | None], int]  # runs a process, the only one if it gets None, and returns its exit code


@dataclass(eq=False, slots=True)
class _Process:
    pid: int
    number: int
    ready_pipe: int  # -1 once nothing comes from it any more
    run: Run
    is_ready: bool = False
    is_leaving: bool = False

    def send(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)


class ProcessSupervisor:
    """From a SIGHUP on runs what `renewed` returns, if not None. Kills what is left `stop_s()` after a SIGTERM."""

    def __init__(self, count: int, run: Run, renewed: Callable[[], Run | None], *, stop_s: Callable[[], float]) -> None:
        self._run, self._renewed, self._stop_s = run, renewed, stop_s
        self._proven_run = run  # what the last one runs that got ready
        self._processes: list[_Process] = []
        self._to_renew: list[_Process] = []  # the first one is being renewed
        self._due = dict.fromkeys(range(count), 0.0)  # number → when to fork it
        self._failures = dict.fromkeys(range(count), 0)  # in a row, of processes that did not get ready
        self._any_ready = self._is_stopping = False
        self._kill_at: float | None = None
        self._code = 0
        self._on_terminal = os.isatty(0)

    def run(self) -> int:
        """Returns the exit code once all have ended: 0, or that of the first one if none of them ever got ready."""
        gc.collect()
        gc.freeze()  # the collector writes into what it looks at, which would then be shared no more
        self._folder = Path(tempfile.mkdtemp(prefix="segue-processes-"))
        self._life = os.pipe()
        self._signals = os.pipe()
        for end in self._signals:
            os.set_blocking(end, False)
        signal.set_wakeup_fd(self._signals[1])
        for number in SIGNALS:
            signal.signal(number, lambda *_: None)  # the pipe tells
        while self._processes or self._due:
            for each in [number for number, at in self._due.items() if at <= time.monotonic()]:
                del self._due[each]
                self._fork(each)
            self._renew_next()
            self._wait()
            self._bury()
        shutil.rmtree(self._folder, ignore_errors=True)
        return self._code

    def _fork(self, number: int) -> None:
        ready, is_ready = os.pipe()
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        if (pid := os.fork()) == 0:
            self._become(ProcessPlace(number, self._folder, self._life[0], is_ready), ready)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        os.close(is_ready)
        self._processes.append(_Process(pid, number, ready, self._run))

    def _become(self, place: ProcessPlace, ready: int) -> NoReturn:
        """Ends with the process. Its process group is its own: Ctrl-C is the supervisor's to pass on."""
        code = 1
        try:
            os.setpgid(0, 0)
            signal.set_wakeup_fd(-1)
            for number in SIGNALS:
                signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
            others = [each.ready_pipe for each in self._processes if each.ready_pipe >= 0]
            for inherited in (self._life[1], *self._signals, ready, *others):
                os.close(inherited)
            code = self._run(place)
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        except BaseException:  # noqa: BLE001 (above it is the supervisor's own stack)
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    def _wait(self) -> None:
        """Returns when there was a signal, a process is ready or has ended, or something is due."""
        pipes = {each.ready_pipe: each for each in self._processes if each.ready_pipe >= 0}
        due = [*self._due.values(), *([] if self._kill_at is None else [self._kill_at])]
        timeout = max(min(due) - time.monotonic(), 0) if due else None
        readable, _, _ = select.select([self._signals[0], *pipes], [], [], timeout)
        for pipe in readable:
            if pipe in pipes:
                self._hear(pipes[pipe])
            else:
                for number in os.read(pipe, 1024):
                    self._take(signal.Signals(number))
        if self._kill_at is not None and time.monotonic() >= self._kill_at:
            self._kill_at = None
            self._send(signal.SIGKILL)

    def _hear(self, process: _Process) -> None:
        """Takes the word that a process is ready, or nothing if it has ended before."""
        if os.read(process.ready_pipe, 1) == READY:
            process.is_ready = self._any_ready = True
            self._failures[process.number] = 0
            self._proven_run = process.run
            log.info("process_ready", number=process.number, pid=process.pid)
        os.close(process.ready_pipe)
        process.ready_pipe = -1

    def _take(self, number: signal.Signals) -> None:
        hung_up = number == signal.SIGHUP and self._on_terminal and not os.isatty(0)
        if number == signal.SIGCHLD:
            pass  # `_bury` looks
        elif self._is_stopping:
            self._send(number)
        elif number in (signal.SIGTERM, signal.SIGINT) or hung_up:
            self._stop(0)
        elif (run := self._renewed()) is None:
            log.warning("renewal_refused")
        else:
            self._run = run
            self._to_renew = list(self._processes)

    def _stop(self, code: int) -> None:
        self._code, self._is_stopping, self._kill_at = code, True, time.monotonic() + self._stop_s()
        self._due.clear()
        self._to_renew.clear()
        self._send(signal.SIGTERM)

    def _send(self, number: signal.Signals) -> None:
        for process in self._processes:
            process.send(number)

    def _bury(self) -> None:
        """Takes those out that have ended, and says when others take their places."""
        for process in list(self._processes):
            pid, status = os.waitpid(process.pid, os.WNOHANG)
            if pid == 0:
                continue
            if process.ready_pipe >= 0:
                self._hear(process)
            self._processes.remove(process)
            if process.is_leaving or self._is_stopping:
                log.info("process_left", number=process.number, pid=process.pid)
            else:
                self._replace(process, os.waitstatus_to_exitcode(status))

    def _replace(self, process: _Process, code: int) -> None:
        log.warning("process_ended", number=process.number, pid=process.pid, code=code)
        if not self._any_ready:
            self._stop(code)
        elif any(each.number == process.number for each in self._processes):  # the one it was to renew goes on
            if process.run is self._run and not process.is_ready:
                log.warning("renewal_failed", number=process.number)
                self._run = self._proven_run
                self._to_renew.clear()
        else:
            self._failures[process.number] += not process.is_ready
            pause = PAUSES_S[min(self._failures[process.number], len(PAUSES_S) - 1)]
            self._due[process.number] = time.monotonic() + pause

    def _renew_next(self) -> None:
        """Renews one process after another: the new one is ready and the old one gone before the next is renewed."""
        while self._to_renew and self._to_renew[0] not in self._processes:
            self._to_renew.pop(0)
        if not self._to_renew or self._to_renew[0].is_leaving:
            return
        old = self._to_renew[0]
        new = next((each for each in self._processes if each.number == old.number and each is not old), None)
        if new is None:
            self._fork(old.number)
        elif new.is_ready:
            old.is_leaving = True
            old.send(signal.SIGTERM)
