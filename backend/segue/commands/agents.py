"""`segue agents check` reads AGENTS_CONFIG as a service would, and says what is wrong with it."""

import typer

from segue.agents_from_settings import declared_agents, tools_before_start
from segue.commands.terminal import refusal, settings_with
from segue.domain.errors import AppError

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
