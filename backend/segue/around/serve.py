"""`segue serve` and `segue worker`: the processes that stay."""

import asyncio
import errno
import gc
import os
import resource
import shutil
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from types import FrameType
from typing import Annotated, cast

import typer
import uvicorn
import uvloop
from fastapi import FastAPI
from prometheus_client.exposition import ThreadingWSGIServer

from segue.agents_config import declared_agents, tools_before_start
from segue.api.connection import TimedConnection
from segue.api.deps import Services
from segue.around.processes import ProcessPlace, ProcessSupervisor, Run
from segue.around.terminal import refusal, settings_with
from segue.config import Settings
from segue.domain.errors import AppError
from segue.language import lexicon
from segue.log import log
from segue.main import create_app, run_worker
from segue.mcp.mcp_config import read_mcp_config
from segue.secret_files import read_secrets
from segue.turns.turn_deps import Agents
from segue.turns.turn_settings import SHUTDOWN_SHARE

REQUEST_SHARE = SHUTDOWN_SHARE + 0.2  # a request may wait for a turn until the last one is given back
STARTUP_FAILURE = 3
KILL_AFTER_S = 10.0  # beyond the grace in which a process ends by itself
FAREWELL_S = 0.5  # in which a client that is busy asks again
MAX_PROCESSES = 256

Processes = Annotated[str, typer.Option(help="How many processes share the work: a number, or auto for one a core.")]


class _Server(uvicorn.Server):
    """`place` is that of this process among several, which share one socket."""

    def __init__(self, config: uvicorn.Config, place: ProcessPlace | None) -> None:
        super().__init__(config)
        self._place = place

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """A start has nothing to end in good order, and may wait long for another process: it ends at once."""
        if not hasattr(cast(FastAPI, self.config.app).state, "services"):
            signal.signal(sig, signal.SIG_DFL)
            signal.raise_signal(sig)
        super().handle_exit(sig, frame)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            await _started(self.lifespan.state["services"], self._place)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Ends the turns first, so that the requests that wait for one get its answer, or hear that it goes on."""
        services: Services = self.lifespan.state["services"]
        leaving = asyncio.create_task(services.turns.leave(), name="leaving")
        if self._place is not None:
            # A client that is told so opens another connection; one that is closed between its requests may lose one.
            for server in self.servers:
                server.close()
            state = self.server_state
            state.default_headers = [*state.default_headers, (b"connection", b"close")]
            await asyncio.sleep(FAREWELL_S)
        await super().shutdown(sockets)
        await leaving


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
    settings, count = _settings_with(host=host, port=port), _count(processes)
    listener = _bound(settings.host, settings.port) if fd is None else socket.socket(fileno=fd)
    sockets = [listener] if fd is not None or count > 1 else None
    if sockets is None:
        listener.close()  # uvicorn takes all addresses of a name, and says where it listens

    def serving(settings: Settings) -> Run:
        try:
            application = create_app(settings, takes_turns=not no_worker)
        except AppError as error:
            raise refusal(error.detail) from None
        return partial(_serve, application, settings, sockets)

    if count > 1:
        bound, name = listener.getsockname()[1], f"[{settings.host}]" if ":" in settings.host else settings.host
        log.info("serving", url=f"http://{name}:{bound}", processes=count)
    _run(count, serving, settings, host=host, port=port)


def _serve(app: FastAPI, settings: Settings, sockets: list[socket.socket] | None, place: ProcessPlace | None) -> int:
    config = uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        loop="uvloop",
        http=connections(settings),
        ws="none",
        timeout_keep_alive=settings.keep_alive_s,  # type: ignore[arg-type]  # it takes fractions too
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=max(round(settings.shutdown_grace_s * REQUEST_SHARE), 1),
    )
    server = _Server(config, place)
    signal.signal(signal.SIGTERM, server.handle_exit)  # uvicorn's, until the end: a late one cuts off nothing
    with suppress(KeyboardInterrupt):
        server.run(sockets)
    return 0 if server.started else STARTUP_FAILURE


def worker(
    concurrency: Annotated[int | None, typer.Option(help="How many turns to run at once. [WORKER_CONCURRENCY]")] = None,
    *,
    processes: Processes = "1",
) -> None:
    """Runs turns that other processes accept, on the same stores."""
    count, settings = _count(processes), _settings_with(worker_concurrency=concurrency)
    if settings.worker_metrics_port and count > 1:  # other workers that share it would tell of themselves there
        _bound(settings.host, settings.worker_metrics_port, "WORKER_METRICS_PORT").close()
    _run(count, lambda settings: partial(_work, settings), settings, worker_concurrency=concurrency)


def _work(settings: Settings, place: ProcessPlace | None) -> int:
    ThreadingWSGIServer.allow_reuse_port = place is not None  # one that a SIGHUP begins listens beside the old one
    if place is not None and place.number > 0:  # the first one has the port, and the figures of all
        settings = settings.model_copy(update={"worker_metrics_port": None})

    async def run() -> None:
        stopped, loop = asyncio.Event(), asyncio.get_running_loop()

        def end_start(number: int) -> None:
            stopped.set()  # the first process of a container outlives the signal, and ends once it has started
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)

        async def started(services: Services) -> None:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, stopped.set)
            await _started(services, place)
            log.info("waiting_for_turns")

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, end_start, number)
        await run_worker(settings, stopped, started)

    try:
        uvloop.run(run())
    except AppError as error:
        raise refusal(error.detail) from error
    return 0


# --- one process or several ---


def _count(processes: str) -> int:
    if processes == "auto":
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if processes.isdecimal() and 1 <= int(processes) <= MAX_PROCESSES:
        return int(processes)
    raise refusal(f"--processes takes a number from 1 to {MAX_PROCESSES}, or auto")


def _run(count: int, run_with: Callable[[Settings], Run], settings: Settings, **flags: object) -> None:
    """Runs in this process, or in `count` that it forks. Raises typer.Exit with their exit code."""

    def renewed() -> Run | None:
        """Reads the settings anew, for the processes that a SIGHUP begins. Returns None if they cannot be used."""
        nonlocal settings
        with suppress(typer.Exit):  # it has said why
            run, settings = run_with(read := _settings_with(**flags)), read
            return run
        return None

    def stop_s() -> float:
        return settings.shutdown_grace_s * REQUEST_SHARE + KILL_AFTER_S

    if not os.isatty(0):  # on a terminal it may mean that this was closed; else to read what a start reads anyway
        signal.signal(signal.SIGHUP, lambda *_: None)
    first = run_with(settings)
    if count > 1:
        lexicon.read_all()  # what is there before a fork is shared
    code = first(None) if count == 1 else ProcessSupervisor(count, first, renewed, stop_s=stop_s).run()
    if code:
        raise typer.Exit(code=code)


async def _started(services: Services, place: ProcessPlace | None) -> None:
    reload_on_hangup(services.agents)
    if place is not None:
        asyncio.get_running_loop().add_reader(place.supervisor_gone, _leave, place)
        with suppress(FileNotFoundError):  # the supervisor was killed, and another process has left before
            await services.metrics.share(place.folder, place.number)
        place.ready()
    await asyncio.to_thread(lexicon.read_all)
    # Now that the lifespan has imported it all: a full collection took 0.2 s, a fifth of the processor time of a turn.
    gc.collect()
    gc.freeze()
    gc.set_threshold(5_000, 5, 5)  # objects made, then collections of the next younger generation


def _leave(place: ProcessPlace) -> None:
    """Ends the process in good order, since its supervisor was killed."""
    asyncio.get_running_loop().remove_reader(place.supervisor_gone)
    shutil.rmtree(place.folder, ignore_errors=True)
    os.kill(os.getpid(), signal.SIGTERM)


# --- settings and address ---


def _settings_with(**flags: object) -> Settings:
    """Also raises typer.Exit if the file of MCP servers or that of agents is invalid, or named and not there."""
    settings = settings_with(**flags)
    path = settings.mcp_config
    if path != Settings.model_fields["mcp_config"].default and not os.access(path, os.F_OK):
        raise refusal(f"MCP_CONFIG={path} cannot be read. Correct it, or leave it out for no MCP servers.")
    try:
        read_mcp_config(path, read_secrets(settings.secrets_dir))
        declared_agents(settings, tools_before_start(settings))
    except AppError as error:
        raise refusal(error.detail) from None
    return settings


def _address_of(fd: int) -> tuple[str, int]:
    with suppress(OSError), socket.socket(fileno=os.dup(fd)) as bound:
        if bound.type == socket.SOCK_STREAM and bound.family in (socket.AF_INET, socket.AF_INET6):
            host, port = bound.getsockname()[:2]
            return host, port
    raise refusal(f"--fd {fd} is no TCP socket that this process was given.")


def _bound(host: str, port: int, given_by: str = "--port or PORT") -> socket.socket:
    """Raises typer.Exit before the stores start if the address cannot be used."""
    bound = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as uvicorn does, to bind after a restart
    try:
        bound.bind((host, port))
    except OSError as error:
        bound.close()
        match error:
            case OSError(errno=errno.EADDRINUSE):
                text = f"Port {port} on {host} is taken. Stop what uses it, or give another one with {given_by}."
            case OSError(errno=errno.EACCES):
                text = f"Port {port} on {host} is not for this account. Give one above 1023 with {given_by}."
            case socket.gaierror() | OSError(errno=errno.EADDRNOTAVAIL):
                text = f"This machine has no address {host}. Give one that it has with --host or HOST."
            case _:
                raise
        raise refusal(text, code=STARTUP_FAILURE) from None
    return bound


def connections(settings: Settings) -> type[asyncio.Protocol]:
    """Returns the protocol class of a connection. Connections get three quarters of the files the process may open:
    the stores, the tools and the model need the rest. uvicorn's `limit_concurrency` would count idle connections too.
    """
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = sys.maxsize if files == resource.RLIM_INFINITY else files * 3 // 4
    made = partial(TimedConnection, read_timeout_s=settings.request_read_timeout_s, max_connections=most)
    return cast(type[asyncio.Protocol], made)


def reload_on_hangup(agents: Agents) -> None:
    """SIGHUP loads the agents anew. One that comes because the terminal was closed still ends the process."""
    loop, on_terminal, loading = asyncio.get_running_loop(), os.isatty(0), set[asyncio.Task[None]]()

    def hang_up() -> None:
        if on_terminal and not os.isatty(0):
            os.kill(os.getpid(), signal.SIGTERM)
            return
        task = loop.create_task(agents.reload_if_valid(), name="agents")
        loading.add(task)
        task.add_done_callback(loading.discard)

    loop.add_signal_handler(signal.SIGHUP, hang_up)
