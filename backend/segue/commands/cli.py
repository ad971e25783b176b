"""The command line. What a command does stands in `commands/`; flags win over the environment."""

from importlib import import_module
from typing import Any

import typer
from typer.core import TyperGroup

COMMANDS = {
    "serve": "serve:serve",
    "worker": "serve:worker",
    "migrate": "migrate:migrate",
    "chat": "chat.command:chat",
    "doctor": "doctor.command:doctor",
    "keys": "users:keys",
    "erase": "users:erase",
    "replay": "replay:replay",
}


class _Commands(TyperGroup):
    """Each command is imported when it is called for: most need little of what serving needs, which takes seconds."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 (typer gives it)
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002 (the same)
        if cmd_name not in COMMANDS:
            return None
        module, _, name = COMMANDS[cmd_name].partition(":")
        found = getattr(import_module(f"segue.commands.{module}"), name)
        if not isinstance(found, typer.Typer):
            function, found = found, typer.Typer(add_completion=False)
            found.command()(function)
        command = typer.main.get_command(found)
        command.name = cmd_name
        return command


app = typer.Typer(cls=_Commands, no_args_is_help=True)


@app.callback()
def segue() -> None:
    """Segue: an agent web service that picks up where it left off."""
