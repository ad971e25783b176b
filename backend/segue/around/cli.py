"""The command line. `commands.toml` has the commands; the module of one is imported only when it runs."""

import gc
import tomllib
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

COMMANDS = tomllib.loads(Path(__file__).with_name("commands.toml").read_text("utf-8"))


class _Commands(TyperGroup):
    """The service takes seconds to import; most commands need little of it, and `--help` none."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        # What a list of commands shows, and what a misspelt one is compared with; `resolve_command` returns what runs.
        self.commands = {name: TyperCommand(name, help=row["help"]) for name, row in COMMANDS.items()}

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
