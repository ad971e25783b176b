"""`segue init` writes the files that the service reads, for those who have no checkout to copy them from."""

from pathlib import Path
from textwrap import indent
from typing import Annotated, Final

import typer

from segue.commands.new_file import new_file

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
