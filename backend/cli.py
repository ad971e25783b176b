"""The command line: `segue serve`, `segue migrate`. Flags win over the environment."""

import asyncio
import signal
import sys
from contextlib import AsyncExitStack
from typing import Annotated, Any

import typer
import uvicorn
from pydantic import ValidationError

from backend.config import Settings
from backend.db.migrations import upgrade
from backend.domain.errors import AppError
from backend.log import configure_logging
from backend.main import SHUTDOWN_SHARE, create_app, server_urls

app = typer.Typer(help="Segue: an agent web service that picks up where it left off.", no_args_is_help=True)


@app.command()
def serve(
    host: Annotated[str | None, typer.Option(help="Address to listen on. [HOST]")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on; 0 takes a free one. [PORT]")] = None,
) -> None:
    """Serve the HTTP API and run turns. Without DATABASE_URL and REDIS_URL it starts its own servers in DATA_DIR."""
    settings = _settings(host=host, port=port)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # uvicorn raises it again once everything has stopped
    uvicorn.run(
        create_app(settings),
        host=settings.host,
        port=settings.port,
        loop="uvloop",
        http="httptools",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=max(round(settings.shutdown_grace_s * SHUTDOWN_SHARE), 1),
    )


@app.command()
def migrate() -> None:
    """Bring the database to the newest schema, once, before a rollout."""
    settings = _settings()

    async def run() -> None:
        async with AsyncExitStack() as stack:
            urls = await server_urls(stack, settings)
            await asyncio.to_thread(upgrade, urls.database)

    try:
        asyncio.run(run())
    except AppError as error:
        raise _refusal(error.detail) from error
    typer.echo("The database is at the newest revision.")


def _settings(**flags: Any) -> Settings:
    try:
        settings = Settings(**{name: value for name, value in flags.items() if value is not None})
    except ValidationError as error:
        faults = [f"{'.'.join(map(str, fault['loc'])).upper()} {fault['msg']}".strip() for fault in error.errors()]
        raise _refusal("\n".join(faults)) from None
    configure_logging(level=settings.log_level, log_format=settings.log_format)
    return settings


def _refusal(text: str) -> typer.Exit:
    typer.secho(text, err=True, fg=typer.colors.RED)
    return typer.Exit(code=2)


if __name__ == "__main__":
    app()
