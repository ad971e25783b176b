"""The commands that need no running service: `segue init`, `agents check`, `receipts verify` and `doctor`."""

import asyncio
from dataclasses import dataclass
from pathlib import Path
from textwrap import indent
from typing import Annotated, Final

import typer
from pydantic import TypeAdapter, ValidationError

from segue.agents_config import declared_agents, tools_before_start
from segue.around.doctor.examine import examine
from segue.around.terminal import new_file, printable, refusal, refusing, settings_with
from segue.domain.errors import NotFound
from segue.domain.ids import utc_now
from segue.domain.receipt import ChainHead, Receipt, faults_in
from segue.language.lexicon import load_toml
from segue.log import configure_logging

_INSTALLED: Final = Path(__file__).with_name("files")  # in a wheel
HOME: Final = _INSTALLED if _INSTALLED.is_dir() else Path(__file__).resolve().parents[3]
MOST_BYTES: Final = 1 << 28  # of a page: what is longer, as a device without end, is none
FILES: Final = load_toml("commands.toml", package="segue.around")["init"]["files"]


def init(
    folder: Annotated[Path, typer.Argument(exists=True, file_okay=False, help="Where the service starts.")] = Path(),
) -> None:
    """Writes .env, mcp.json and agents.toml. A file that is there stays as it is."""
    for name, (source, about) in FILES.items():
        path, text = folder / name, (HOME / source).read_text("utf-8")
        if path.exists() or path.is_symlink():
            typer.echo(f"{path} is there, and stays as it is.")
            continue
        if path.suffix == ".toml":
            text = indent(text, "# ", lambda line: bool(line.strip()) and not line.startswith("#"))
        with new_file(path) as file:
            file.write(text.encode())
        typer.echo(f"{path}: {about}")
    typer.echo("Change what you need, then run `segue serve`.")


agents = typer.Typer(no_args_is_help=True, add_completion=False)
agents.callback()(lambda: None)  # with a callback typer keeps the name of the one command


@agents.command("check")
def check() -> None:
    """Say what is wrong, a line each, and exit with 2; or list the agents there would be."""
    settings = settings_with()
    with refusing():
        declared = declared_agents(settings, tools_before_start(settings))
    for agent_id, agent in declared.items():
        typer.echo(f"{agent_id}  {agent.name}")


receipts = typer.Typer(no_args_is_help=True, add_completion=False)
receipts.callback()(lambda: None)  # the same


@dataclass(frozen=True, slots=True)
class _Page:
    items: tuple[Receipt, ...]
    head: ChainHead | None


@receipts.command("verify")
def verify(
    files: Annotated[list[Path], typer.Argument(help="All pages of GET /sessions/{id}/receipts, in their order.")],
    key: Annotated[list[str] | None, typer.Option("--key", help="A public key that may have signed them.")] = None,
) -> None:
    """Finds every change, gap and reordering, and a cut at the end. Exits with 1 if it finds one, and with 2 if a file
    is none of receipts.
    """
    pages = list[_Page]()
    try:
        for file in files:
            with file.open("rb") as opened:
                pages.append(TypeAdapter(_Page).validate_json(opened.read(MOST_BYTES)))
    except (OSError, ValidationError) as fault:
        why = fault if isinstance(fault, OSError) else "it is not what GET /sessions/{id}/receipts answers"
        raise refusal(f"This is no page of receipts: {why}.") from fault
    found = [each for page in pages for each in page.items]
    if faults := faults_in(found, pages[-1].head, keys=key or ()):
        typer.echo("\n".join(map(printable, faults)))
        raise typer.Exit(code=1)
    erased = sum(each.content is None for each in found)
    typer.echo(f"{len(found)} receipts, unbroken; the words of {erased} are erased.")
    signers = ", ".join(sorted({each.signed_by for each in found if each.signed_by}))
    typer.echo(f"Signed by {signers}: {'as --key says' if key else 'compare it'}." if signers else "Not signed.")


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
