"""The command line: the name and the help line of each command. A command's module is imported only when it runs."""

import gc
from importlib import import_module
from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup


class Subcommand(NamedTuple):
    target: str  # module:name below `segue.around`
    help: str


COMMANDS = {
    "serve": Subcommand(
        "serve:serve",
        "Serve the HTTP API and run turns. Without DATABASE_URL and REDIS_URL it starts its own servers in DATA_DIR.",
    ),
    "worker": Subcommand(
        "serve:worker",
        "Run turns that other processes accept. Shares their servers: the same URLs, or the same DATA_DIR.",
    ),
    "migrate": Subcommand("open_stores:migrate", "Bring the database to the newest schema, once, before a rollout."),
    "init": Subcommand(
        "init_command:init", "Write .env, mcp.json and agents.toml with comments. A file that is there stays as it is."
    ),
    "chat": Subcommand(
        "chat_command:chat", "Talk to the service. Without a service it starts one, and stops it when you leave."
    ),
    "approvals": Subcommand(
        "approvals_command:approvals", "What waits for your yes at a running service; approve it, or reject it."
    ),
    "doctor": Subcommand(
        "doctor_command:doctor",
        "Say what is wrong and what to do. Exits with 0 if nothing is wrong, with 1 if something is, and with 2 if "
        "there is no such session.",
    ),
    "keys": Subcommand("user_commands:keys", "API keys, for AUTH=api_key."),
    "users": Subcommand("user_commands:users", "What one user may use; and what was said before there were keys."),
    "mcp": Subcommand(
        "mcp_command:mcp", "The Model Context Protocol: Segue as a server of it, and your logins at others."
    ),
    "agents": Subcommand("init_command:agents", "The agents of AGENTS_CONFIG."),
    "export": Subcommand(
        "user_commands:export", "Write everything a user has, a JSON object a line: to hand it out, or before `erase`."
    ),
    "erase": Subcommand(
        "user_commands:erase",
        "Remove everything a user has, for good: rows, payloads, keys and streams. Shows it and asks.",
    ),
    "backup": Subcommand("backup:backup", "Write everything that is stored into a new file, while the service runs."),
    "restore": Subcommand("backup:restore", "Put what a backup holds into an empty store. No service may run on it."),
    "receipts": Subcommand(
        "receipts_command:receipts", "Receipts of what calls changed: whether a file of them holds."
    ),
    "replay": Subcommand(
        "replay_command:replay", "Play recorded conversations and report what differs. Exits with 1 if anything does."
    ),
    "rehearse": Subcommand(
        "replay_command:rehearse",
        "Play recorded conversations with another model, agent or mcp.json, and report which effects differ. None is "
        "performed. Exits with 1 where --fail-on says.",
    ),
}


class _Commands(TyperGroup):
    """The service takes seconds to import; most commands need little of it, and `--help` none."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        # What a list of commands shows, and what a misspelt one is compared with; `resolve_command` returns what runs.
        self.commands = {name: TyperCommand(name, help=entry.help) for name, entry in COMMANDS.items()}

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, _, rest = super().resolve_command(ctx, args)
        return name, _load(COMMANDS[name]) if name else None, rest


def _load(entry: Subcommand) -> Any:
    module, _, name = entry.target.partition(":")
    gc.disable()  # what modules make stays: to look for garbage in it takes 0.14 s and more, to free 2 MB
    try:
        found = getattr(import_module(f"segue.around.{module}"), name)
    finally:
        gc.freeze()
        gc.enable()
    if not isinstance(found, typer.Typer):
        function, found = found, typer.Typer(add_completion=False)
        found.command()(function)
    command = typer.main.get_command(found)
    command.name, command.help = name, entry.help
    return command


app = typer.Typer(cls=_Commands, no_args_is_help=True)


def _print_version(wanted: bool) -> None:  # noqa: FBT001 (typer calls it)
    if wanted:
        from segue.version import VERSION  # noqa: PLC0415 (no other command needs it at once)

        typer.echo(f"segue {VERSION}")
        raise typer.Exit


@app.callback()
def segue(
    *,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Say which release this is.")
    ] = False,
) -> None:
    """Segue: an agent web service that picks up where it left off."""
