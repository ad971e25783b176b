"""A process that serves HTTP or only runs turns, from start to end. `process_supervisor.py` has the commands."""

import asyncio
import gc
import os
import resource
import shutil
import signal
import socket
import sys
from contextlib import suppress
from functools import partial
from types import FrameType
from typing import cast

import uvicorn
import uvloop
from fastapi import FastAPI
from prometheus_client.exposition import ThreadingWSGIServer

from segue.api.connection import TimedConnection
from segue.api.deps import Services
from segue.around.process_supervisor import REQUEST_SHARE, STARTUP_FAILURE, ProcessPlace, Run
from segue.around.terminal import refusing
from segue.config import Settings
from segue.log import log
from segue.main import create_app, run_worker
from segue.turns.turn_deps import Agents

FAREWELL_S = 0.5  # in which a client that is busy asks again


def serving(settings: Settings, sockets: list[socket.socket] | None, *, takes_turns: bool) -> Run:
    """Returns what serves the HTTP API. Raises AppError if LANGUAGE_DIR cannot be used."""
    return partial(_serve, create_app(settings, takes_turns=takes_turns), settings, sockets)


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
        leaving = asyncio.create_task(self.lifespan.state["services"].turns.leave(), name="leaving")
        if self._place is not None:
            # A client that is told so opens another connection; one that is closed between its requests may lose one.
            for server in self.servers:
                server.close()
            state = self.server_state
            state.default_headers = [*state.default_headers, (b"connection", b"close")]
            await asyncio.sleep(FAREWELL_S)
        await super().shutdown(sockets)
        await leaving


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


def work(settings: Settings, place: ProcessPlace | None) -> int:
    """Runs turns that other processes accept."""
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

    with refusing():
        uvloop.run(run())
    return 0


async def _started(services: Services, place: ProcessPlace | None) -> None:
    reload_on_hangup(services.agents)
    if place is not None:
        asyncio.get_running_loop().add_reader(place.supervisor_gone, _leave, place)
        with suppress(FileNotFoundError):  # the supervisor was killed, and another process has left before
            await services.metrics.share(place.folder, place.number)
        place.ready()
    await services.words
    # Now that the lifespan has imported it all: a full collection took 0.2 s, a fifth of the processor time of a turn.
    gc.collect()
    gc.freeze()
    gc.set_threshold(5_000, 5, 5)  # objects made, then collections of the next younger generation


def _leave(place: ProcessPlace) -> None:
    """Ends the process in good order, since its supervisor was killed."""
    asyncio.get_running_loop().remove_reader(place.supervisor_gone)
    shutil.rmtree(place.folder, ignore_errors=True)
    os.kill(os.getpid(), signal.SIGTERM)


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
