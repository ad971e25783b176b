"""`segue init` writes the files that the service reads; `segue agents check` says what is wrong with AGENTS_CONFIG."""

from pathlib import Path
from textwrap import indent
from typing import Annotated, Final

import typer

from segue.agents_config import declared_agents, tools_before_start
from segue.around.terminal import new_file, refusal, settings_with
from segue.domain.errors import AppError

_INSTALLED: Final = Path(__file__).with_name("files")  # in a wheel
HOME: Final = _INSTALLED if _INSTALLED.is_dir() else Path(__file__).resolve().parents[3]
FILES: Final = {
    ".env": (".env.example", "every setting with its default"),
    "mcp.json": ("examples/mcp.json", "the MCP servers; the example is switched off"),
    "agents.toml": ("examples/agents.toml", "who may answer; the two examples are comments"),
}


def init(
    folder: Annotated[
        Path, typer.Argument(exists=True, file_okay=False, help="Where the service will start.")
    ] = Path(),
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


agents = typer.Typer(no_args_is_help=True)


@agents.callback()
def _group() -> None:
    """The agents of AGENTS_CONFIG."""  # with a callback typer keeps the name of the one command


@agents.command("check")
def check() -> None:
    """Say what is wrong, a line each, and exit with 2; or list the agents there would be."""
    settings = settings_with()
    try:
        declared = declared_agents(settings, tools_before_start(settings))
    except AppError as error:
        raise refusal(error.detail) from None
    for agent_id, agent in declared.items():
        typer.echo(f"{agent_id}  {agent.name}")
