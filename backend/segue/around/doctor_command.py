"""`segue doctor`: what is wrong with the service, or with one session, and what to do about it."""

import asyncio
from typing import Annotated

import typer

from segue.around.doctor.examine import examine
from segue.around.terminal import refusal, settings_with
from segue.domain.errors import NotFound
from segue.domain.ids import utc_now
from segue.log import configure_logging


def doctor(
    session: Annotated[str | None, typer.Argument(help="A session's id: what it waits for, and why.")] = None,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was found as JSON.")] = False,
) -> None:
    """Prints a report. Exits with 0 if nothing is wrong, 1 if something is, 2 if there is no such session."""
    settings = settings_with()
    configure_logging(level="critical", log_format=settings.log_format)  # the report says it
    try:
        report = asyncio.run(examine(settings, session))
    except NotFound as error:
        where = "`segue chat` and GET /sessions list the ids; DATA_DIR and DATABASE_URL say where."
        raise refusal(f"{error.detail} {where}") from error
    now = utc_now()
    typer.echo(report.json_text(now) if as_json else "\n".join(report.lines(now)))
    raise typer.Exit(code=int(not report.healthy))
