"""`segue replay`: plays recorded conversations against a service."""

import asyncio
import json
import signal
from pathlib import Path
from typing import Annotated

import typer

from segue.commands.terminal import refusal
from segue.replay import run
from segue.replay.config import CannotPlay

ENDED_BY_SIGTERM = 128 + signal.SIGTERM


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
    """Plays recordings against a service and prints what differs."""
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
