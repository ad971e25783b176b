"""`segue serve` and `segue worker`: the processes that stay."""

import asyncio
import gc
import resource
import signal
import socket
import sys
from contextlib import suppress
from functools import partial
from typing import Annotated, cast

import typer
import uvicorn
import uvloop

from segue.api.connection import TimedConnection
from segue.api.deps import Services
from segue.commands.terminal import refusal, settings_with
from segue.config import Settings
from segue.domain.errors import AppError
from segue.limits import SHUTDOWN_SHARE
from segue.main import create_app, run_worker

REQUEST_SHARE = SHUTDOWN_SHARE + 0.2  # a request may wait for a turn until the last one is given back
STARTUP_FAILURE = 3

COLLECT_AFTER = 10_000, 20, 20  # objects made, and collections of the next younger generation


class _Server(uvicorn.Server):
    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Turns are brought to an end first: requests that wait for one end with it, or hear that it goes on."""
        services: Services = self.lifespan.state["services"]
        leaving = asyncio.create_task(services.turns.leave(), name="leaving")
        await super().shutdown(sockets)
        await leaving


def serve(
    host: Annotated[str | None, typer.Option(help="Address to listen on. [HOST]")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on; 0 takes a free one. [PORT]")] = None,
    *,
    no_worker: Annotated[bool, typer.Option("--no-worker", help="Leave the turns to `segue worker`.")] = False,
) -> None:
    """Serve the HTTP API and run turns. Without DATABASE_URL and REDIS_URL it starts its own servers in DATA_DIR."""
    settings = settings_with(host=host, port=port)
    application = create_app(settings, takes_turns=not no_worker)
    _spare_what_stays()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # uvicorn raises it again once everything has stopped
    config = uvicorn.Config(
        application,
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
    server = _Server(config)
    with suppress(KeyboardInterrupt):
        server.run()
    if not server.started:
        raise typer.Exit(code=STARTUP_FAILURE)


def connections(settings: Settings) -> type[asyncio.Protocol]:
    """Three quarters of the files this process may open: the stores, the tools and the model need the rest."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = sys.maxsize if files == resource.RLIM_INFINITY else files * 3 // 4
    made = partial(TimedConnection, read_timeout_s=settings.request_read_timeout_s, most=most)
    return cast(type[asyncio.Protocol], made)


def worker(
    concurrency: Annotated[int | None, typer.Option(help="How many turns to run at once. [WORKER_CONCURRENCY]")] = None,
) -> None:
    """Run turns that other processes accept. Shares their servers: the same URLs, or the same DATA_DIR."""
    settings = settings_with(worker_concurrency=concurrency)
    _spare_what_stays()

    async def run() -> None:
        stopped = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stopped.set)
        await run_worker(settings, stopped, lambda: typer.echo("Waiting for turns.", err=True))

    try:
        uvloop.run(run())
    except AppError as error:
        raise refusal(error.detail) from error


def _spare_what_stays() -> None:
    """Modules are not looked through for garbage again: at 0.2 s a time, with everything at a halt, it was a fifth of
    the processor time of a turn.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*COLLECT_AFTER)
