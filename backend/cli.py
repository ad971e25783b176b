"""The command line: `segue serve`, `worker`, `migrate`, `replay`, and `commands/`. Flags win over the environment."""

import asyncio
import gc
import json
import signal
import socket
import sys
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Annotated

import typer
import uvicorn
import uvloop

from backend.api.deps import Services
from backend.commands.chat.command import chat
from backend.commands.doctor.command import doctor
from backend.commands.terminal import refusal, settings_with
from backend.commands.users import erase, keys
from backend.db.migrations import upgrade
from backend.domain.errors import AppError
from backend.main import SHUTDOWN_SHARE, create_app, run_worker
from backend.parts import server_urls
from backend.replay.cast import CannotPlay

REQUEST_SHARE = SHUTDOWN_SHARE + 0.2  # a request may wait for a turn until the last one is given back
STARTUP_FAILURE = 3
ENDED_BY_SIGTERM = 128 + signal.SIGTERM

COLLECT_AFTER = 10_000, 20, 20  # objects made, and collections of the next younger generation

app = typer.Typer(help="Segue: an agent web service that picks up where it left off.", no_args_is_help=True)
app.add_typer(keys, name="keys")
app.command()(erase)
app.command()(chat)
app.command()(doctor)


class _Server(uvicorn.Server):
    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Turns are brought to an end first: requests that wait for one end with it, or hear that it goes on."""
        services: Services = self.lifespan.state["services"]
        leaving = asyncio.create_task(services.turns.leave(), name="leaving")
        await super().shutdown(sockets)
        await leaving


@app.command()
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
        http="httptools",
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


@app.command()
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


@app.command()
def migrate() -> None:
    """Bring the database to the newest schema, once, before a rollout."""
    settings = settings_with()

    async def run() -> None:
        async with AsyncExitStack() as stack:
            urls = await server_urls(stack, settings)
            await asyncio.to_thread(upgrade, urls.database)

    try:
        asyncio.run(run())
    except AppError as error:
        raise refusal(error.detail) from error
    typer.echo("The database is at the newest revision.")


@app.command()
def replay(
    files: Annotated[list[Path], typer.Argument(help="Recordings, as GET /sessions/{id}/export gives them.")],
    *,
    url: Annotated[str | None, typer.Option(help="A running service to play on, instead of one of its own.")] = None,
    listen: Annotated[str, typer.Option(help="With --url: where that service finds the model and the tools.")] = (
        "127.0.0.1:8900"
    ),
    api_key: Annotated[
        str | None, typer.Option(envvar="SEGUE_API_KEY", help="With --url: a key of the service.")
    ] = None,
    restart_between_turns: Annotated[
        bool, typer.Option("--restart-between-turns", help="kill -9 its own service after every turn.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Play recorded conversations and report what comes out otherwise. Exits with 1 where anything does."""
    from backend.replay import run  # noqa: PLC0415 (serving does not need it, nor the embedded servers it brings)

    host, _, port = listen.rpartition(":")
    if not port.isdecimal() or not host:
        raise refusal("--listen takes HOST:PORT")
    if url and restart_between_turns:
        raise refusal("--restart-between-turns needs a service of its own: leave out --url")
    given = run.GivenService(url, api_key, (host, int(port)), lambda text: typer.echo(text, err=True)) if url else None
    try:
        report = asyncio.run(run.replay(files, given=given, restarting=restart_between_turns))
    except CannotPlay as error:
        raise refusal(str(error)) from error
    except asyncio.CancelledError:
        raise typer.Exit(code=ENDED_BY_SIGTERM) from None
    typer.echo(json.dumps(report.as_json(), ensure_ascii=False, indent=1) if as_json else "\n".join(report.lines()))
    raise typer.Exit(code=int(report.differs))


def _spare_what_stays() -> None:
    """Modules are not looked through for garbage again: at 0.2 s a time, with everything at a halt, it was a fifth of
    the processor time of a turn.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*COLLECT_AFTER)


if __name__ == "__main__":
    app()
