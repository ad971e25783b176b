"""The command line. `commands.toml` has the commands; the module of one is imported only when it runs."""

import gc
import os
import sys
import tomllib
from errno import EBADF, EDQUOT, EFBIG, EIO, ENOSPC
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

COMMANDS = tomllib.loads(Path(__file__).with_name("commands.toml").read_text("utf-8"))
# How /dev/null takes the place of a closed stream: empty, an error to write to, and open to what is logged.
CLOSED = {"stdin": ("r", os.O_RDONLY), "stdout": ("w", os.O_RDONLY), "stderr": ("w", os.O_WRONLY)}


class _Commands(TyperGroup):
    """The service takes seconds to import; most commands need little of it, and `--help` none."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        # What a list of commands shows, and what a misspelt one is compared with; `resolve_command` returns what runs.
        self.commands = {name: TyperCommand(name, help=row["help"]) for name, row in COMMANDS.items()}

    def main(self, *args: Any, **options: Any) -> Any:
        """Runs a command. If its output cannot be written, exits with 1 and says so."""
        for name, (mode, flags) in CLOSED.items():
            if getattr(sys, name) is None:
                setattr(sys, name, os.fdopen(os.open(os.devnull, flags), mode))
            getattr(sys, name).reconfigure(errors="replace")  # what a terminal cannot show, or is no text in a pipe
        try:
            return super().main(*args, **options)
        except OSError as error:
            if error.errno not in (EBADF, EDQUOT, EFBIG, EIO, ENOSPC):
                raise
            sys.stdout = None  # Python would flush it once more
            sys.exit(f"The output cannot be written: {error.strerror}.")

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if any("\udc80" <= char <= "\udcff" for char in "".join(args)):  # what became of bytes that are none
            raise typer.BadParameter("An argument is not UTF-8 text.")
        return super().parse_args(ctx, args)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, _, rest = super().resolve_command(ctx, args)
        return name, _load(name) if name else None, rest


def _load(name: str) -> Any:
    module, _, target = COMMANDS[name]["target"].partition(":")
    gc.disable()  # what modules make stays: to look for garbage in it takes 0.14 s and more, to free 2 MB
    try:
        found = getattr(import_module(f"segue.around.{module}"), target)
    finally:
        gc.freeze()
        gc.enable()
    if not isinstance(found, typer.Typer):
        function, found = found, typer.Typer(add_completion=False)
        found.command()(function)
    command = typer.main.get_command(found)
    command.name, command.help = name, COMMANDS[name]["help"]
    return command


app = typer.Typer(cls=_Commands, no_args_is_help=True)


def _print_version(wanted: bool) -> None:  # noqa: FBT001 (typer calls it)
    if wanted:
        from segue import __version__  # noqa: PLC0415 (no other command needs it at once)

        typer.echo(f"segue {__version__}")
        raise typer.Exit


@app.callback()
def segue(
    *,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Say which release this is.")
    ] = False,
) -> None:
    """Segue: an agent web service that picks up where it left off."""
