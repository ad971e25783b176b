"""`segue serve` and `segue worker`: one process, or several with one address. What a process is made of takes most of a
start to import: `service_process.py` is imported while the embedded servers start.

A supervisor forks several processes, replaces those that end, and passes signals on. It runs no event loop and no
thread, since a fork copies neither whole. The processes share what it has imported.
"""

import errno
import gc
import os
import select
import shutil
import signal
import socket
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Final, NoReturn

import typer

from segue.around.embedded.server_urls import servers_under_way
from segue.around.terminal import refusal, refusing, settings_with
from segue.config import Settings
from segue.language import lexicon
from segue.log import log
from segue.turns.turn_settings import SHUTDOWN_SHARE

REQUEST_SHARE: Final = SHUTDOWN_SHARE + 0.2  # a request may wait for a turn until the last one is given back
STARTUP_FAILURE: Final = 3  # the exit code of a process that cannot start
SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD)
PAUSES_S: Final = (0.0, 0.5, 1.0, 2.0, 5.0, 10.0)  # before the next try of a process that does not get ready
READY: Final = b"r"
KILL_AFTER_S = 10.0  # beyond the grace in which a process ends by itself
MAX_PROCESSES = 256


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
Processes = Annotated[str, typer.Option(help="How many processes share the work: a number, or auto for one a core.")]


def serve(
    host: Annotated[str | None, typer.Option(help="Address to listen on. [HOST]")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on; 0 takes a free one. [PORT]")] = None,
    fd: Annotated[int | None, typer.Option(help="A bound TCP socket to listen on instead, by its descriptor.")] = None,
    *,
    no_worker: Annotated[bool, typer.Option("--no-worker", help="Leave the turns to `segue worker`.")] = False,
    processes: Processes = "1",
) -> None:
    """Serves the HTTP API, and runs turns. Exits with 3 if the service cannot start."""
    if fd is not None:
        host, port = _address_of(fd)  # so that what a public address asks for is asked of it too
    settings, count = settings_with(host=host, port=port), _count(processes)
    listener = bound_to(settings.host, settings.port) if fd is None else socket.socket(fileno=fd)
    sockets = [listener] if fd is not None or count > 1 else None
    if sockets is None:
        listener.close()  # uvicorn takes all addresses of a name, and says where it listens

    def run_with(settings: Settings) -> Run:
        from segue.around.service_process import serving  # noqa: PLC0415 (see above)

        return serving(settings, sockets, takes_turns=not no_worker)

    if count > 1:
        bound, name = listener.getsockname()[1], f"[{settings.host}]" if ":" in settings.host else settings.host
        log.info("serving", url=f"http://{name}:{bound}", processes=count)
    _run(count, run_with, settings, host=host, port=port)


def worker(
    concurrency: Annotated[int | None, typer.Option(help="How many turns to run at once. [WORKER_CONCURRENCY]")] = None,
    *,
    processes: Processes = "1",
) -> None:
    """Runs turns that other processes accept, on the same stores."""
    count, settings = _count(processes), settings_with(worker_concurrency=concurrency)
    if settings.worker_metrics_port and count > 1:  # other workers that share it would tell of themselves there
        bound_to(settings.host, settings.worker_metrics_port, "WORKER_METRICS_PORT").close()

    def run_with(settings: Settings) -> Run:
        from segue.around.service_process import work  # noqa: PLC0415 (see above)

        return partial(work, settings)

    _run(count, run_with, settings, worker_concurrency=concurrency)


# --- one process or several ---


def _count(processes: str) -> int:
    if processes == "auto":
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if processes.isdecimal() and 1 <= int(processes) <= MAX_PROCESSES:
        return int(processes)
    raise refusal(f"--processes takes a number from 1 to {MAX_PROCESSES}, or auto")


def _run(count: int, run_with: Callable[[Settings], Run], settings: Settings, **flags: object) -> None:
    """Runs in this process, or in `count` that it forks. Raises typer.Exit with their exit code, or for a bad file."""

    def made_with(settings: Settings) -> Run:
        with refusing():
            return run_with(settings)

    def renewed() -> Run | None:
        """Reads the settings anew, for the processes that a SIGHUP begins. Returns None if they cannot be used."""
        nonlocal settings
        try:
            _check_files(read := settings_with(**flags))
            run, settings = made_with(read), read
        except typer.Exit:  # it has said why
            return None
        except (Exception, SystemExit) as fault:  # of code that they name: what runs goes on
            log.warning("renewal_raised", exc_info=fault)
            return None
        return run

    def stop_s() -> float:
        return settings.shutdown_grace_s * REQUEST_SHARE + KILL_AFTER_S

    if not os.isatty(0):  # on a terminal it may mean that this was closed; else to read what a start reads anyway
        signal.signal(signal.SIGHUP, lambda *_: None)
    _check_files(settings)
    given = settings.database_url, settings.redis_url, settings.data_dir
    with servers_under_way(*given) if count == 1 else nullcontext():  # a fork copies no thread that waits for them
        gc.disable()  # as for the commands: what modules make stays
        first = made_with(settings)
        gc.freeze()
        gc.enable()
        if count > 1:
            lexicon.read_all()  # what is there before a fork is shared
        code = first(None) if count == 1 else ProcessSupervisor(count, first, renewed, stop_s=stop_s).run()
    if code:
        raise typer.Exit(code=code)


def _check_files(settings: Settings) -> None:
    """Raises typer.Exit, before the stores start, if a file that the settings name cannot be used."""
    from segue.agents_config import declared_agents, tools_before_start  # noqa: PLC0415 (a fifth of the imports)

    path = settings.mcp_config
    if path != Settings.model_fields["mcp_config"].default and not os.access(path, os.F_OK):
        raise refusal(f"MCP_CONFIG={path} cannot be read. Correct it, or leave it out for no MCP servers.")
    with refusing():
        declared_agents(settings, tools_before_start(settings))


# --- address ---


def _address_of(fd: int) -> tuple[str, int]:
    with suppress(OSError), socket.socket(fileno=os.dup(fd)) as bound:
        if bound.type == socket.SOCK_STREAM and bound.family in (socket.AF_INET, socket.AF_INET6):
            host, port = bound.getsockname()[:2]
            return host, port
    raise refusal(f"--fd {fd} is no TCP socket that this process was given.")


def bound_to(host: str, port: int, given_by: str = "--port or PORT") -> socket.socket:
    """Raises typer.Exit before the stores start if the address cannot be used."""
    bound = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as uvicorn does, to bind after a restart
    try:
        bound.bind((host, port))
    except (OSError, TypeError) as error:  # TypeError: no host can have this name
        bound.close()
        match error:
            case OSError(errno=errno.EADDRINUSE):
                text = f"Port {port} on {host} is taken. Stop what uses it, or give another one with {given_by}."
            case OSError(errno=errno.EACCES):
                text = f"Port {port} on {host} is not for this account. Give one above 1023 with {given_by}."
            case TypeError() | socket.gaierror() | OSError(errno=errno.EADDRNOTAVAIL):
                text = f"This machine has no address {host}. Give one that it has with --host or HOST."
            case _:
                raise
        raise refusal(text, code=STARTUP_FAILURE) from None
    return bound


# --- the supervisor ---


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
